//! The messages between coordinator and workers.

use serde::{Deserialize, Serialize};
use underlay_record::MeasuredWindow;

use crate::job::RemoteJob;
use crate::ycsb_stats::SentParticulars;

/// A worker's first bytes, before any frame. The number is the version of the protocol.
pub const PREFACE: [u8; 18] = *b"underlay-worker 1\n";

/// A worker's first message.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WorkerWelcome {
    pub version: String,
    pub cores: u32,
    /// The worker is busy with another coordinator and won't answer any requests.
    pub is_taken: bool,
}

/// A coordinator's requests.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum CoordinatorRequest {
    /// Report the time of your clock.
    Time,
    /// Connect to the system and wait.
    Prepare(Box<RemoteJob>),
    /// Start at this instant of your clock.
    Start {
        at_ns: u64,
    },
    Report,
    /// Return the results.
    Collect,
    Stop,
}

/// A worker's answers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum WorkerAnswer {
    Time { now_ns: u64 },
    Done,
    Report(ProgressReport),
    Measured(Box<MeasuredPart>),
    Failed(String),
}

impl WorkerAnswer {
    pub(crate) fn describe(&self) -> &'static str {
        match self {
            WorkerAnswer::Time { .. } => "a time",
            WorkerAnswer::Done => "'done'",
            WorkerAnswer::Report(_) => "a report",
            WorkerAnswer::Measured(_) => "a measurement",
            WorkerAnswer::Failed(_) => "a failure",
        }
    }
}

/// The progress of one worker, or of all of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
// A worker of another build may not have all of these figures, which is no reason to lose it.
#[serde(default)]
pub struct ProgressReport {
    /// Operations answered since the run started, including the warm-up.
    pub operations: u64,
    pub errors: u64,
    /// Over the last second.
    pub throughput_per_s: f64,
    /// Over the last second; of several workers the mean of all their operations.
    pub mean_us: f64,
    /// Over the last second, as the next one; the highest of several workers.
    pub p50_us: f64,
    pub p99_us: f64,
    pub has_ended: bool,
}

/// One worker's part of a run that goes on.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct WorkerProgress {
    pub worker: String,
    /// The last that it said.
    pub report: ProgressReport,
    /// It has stopped responding.
    pub is_lost: bool,
    /// It reported an error.
    pub has_failed: bool,
}

impl WorkerProgress {
    /// The last that it said, without rates where it answers nothing any more or nobody knows what it does: the last
    /// report of a run that has ended is of its last second, which is over.
    pub fn now(&self) -> ProgressReport {
        let ProgressReport { operations, errors, has_ended, .. } = self.report;
        match self.is_lost || self.has_failed || has_ended {
            true => ProgressReport { operations, errors, has_ended, ..ProgressReport::default() },
            false => self.report,
        }
    }
}

impl ProgressReport {
    /// Adds those of another worker.
    pub fn add(&mut self, other: &ProgressReport) {
        self.operations = self.operations.saturating_add(other.operations);
        self.errors = self.errors.saturating_add(other.errors);
        // One that answers nothing has no latencies either.
        let is_quiet = other.throughput_per_s <= 0.0;
        let together_per_s = self.throughput_per_s + other.throughput_per_s;
        if !is_quiet {
            self.mean_us = (self.mean_us * self.throughput_per_s + other.mean_us * other.throughput_per_s)
                / together_per_s;
        }
        self.throughput_per_s = together_per_s;
        if !is_quiet {
            self.p50_us = self.p50_us.max(other.p50_us);
            self.p99_us = self.p99_us.max(other.p99_us);
        }
        self.has_ended &= other.has_ended;
    }
}

/// A worker's results.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MeasuredPart {
    pub measured: MeasuredWindow,
    pub particulars: SentParticulars,
    pub unstarted: u64,
    /// Operations that were answered before or after the measured time. A worker of an earlier build doesn't say.
    #[serde(default)]
    pub outside: u64,
    pub reconnections: u32,
    pub lost_threads: u32,
    /// How much later than requested its threads started, by its own clock.
    pub start_lateness_ns: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mean_over_workers_is_weighted_by_operations() {
        let report = |throughput_per_s: f64, mean_us: f64, p99_us: f64| ProgressReport {
            operations: 10,
            throughput_per_s,
            mean_us,
            p50_us: mean_us,
            p99_us,
            has_ended: true,
            ..ProgressReport::default()
        };
        let mut whole = ProgressReport { has_ended: true, ..ProgressReport::default() };
        // One that does nothing yet has no part in it.
        for one in [report(0.0, 9.0, 9e9), report(300.0, 100.0, 900.0), report(100.0, 500.0, 700.0)] {
            whole.add(&one);
        }
        assert_eq!((whole.operations, whole.throughput_per_s, whole.mean_us), (30, 400.0, 200.0));
        assert_eq!((whole.p50_us, whole.p99_us, whole.has_ended), (500.0, 900.0, true));
    }

    #[test]
    fn ended_worker_has_operations_without_rates() {
        let report = ProgressReport {
            operations: 7,
            errors: 1,
            throughput_per_s: 5.0,
            p99_us: 3.0,
            ..ProgressReport::default()
        };
        let running = WorkerProgress { report, ..WorkerProgress::default() };
        assert_eq!(running.now(), report);
        let ended = ProgressReport { has_ended: true, ..report };
        for one in [
            WorkerProgress { is_lost: true, ..running.clone() },
            WorkerProgress { has_failed: true, ..running.clone() },
            WorkerProgress { report: ended, ..running.clone() },
        ] {
            let now = one.now();
            assert_eq!((now.operations, now.errors, now.throughput_per_s, now.p99_us), (7, 1, 0.0, 0.0));
            assert_eq!(now.has_ended, one.report.has_ended);
        }
    }

    #[test]
    fn report_of_earlier_build_is_parsed() {
        let text = r#"{"operations":7,"errors":0,"throughput_per_s":5.0,"mean_us":3.0,"has_ended":false}"#;
        let report: ProgressReport = serde_json::from_str(text).unwrap();
        assert_eq!((report.operations, report.p99_us), (7, 0.0));
    }
}
