//! The messages between coordinator and workers.

use serde::{Deserialize, Serialize};
use underlay_record::Measured;

use crate::job::Job;
use crate::particulars::SentParticulars;

/// A worker's first bytes, before any frame. The number is the version of the protocol.
pub const PREFACE: [u8; 18] = *b"underlay-worker 1\n";

/// A worker's first message.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Welcome {
    pub version: String,
    pub cores: u32,
    /// The worker is busy with another coordinator and won't answer any requests.
    pub is_taken: bool,
}

/// A coordinator's requests.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Request {
    /// Report the time of your clock.
    Time,
    /// Connect to the system and wait.
    Prepare(Box<Job>),
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
pub enum Answer {
    Time { now_ns: u64 },
    Done,
    Report(Report),
    Measured(Box<Part>),
    Failed(String),
}

impl Answer {
    pub(crate) fn in_words(&self) -> &'static str {
        match self {
            Answer::Time { .. } => "a time",
            Answer::Done => "'done'",
            Answer::Report(_) => "a report",
            Answer::Measured(_) => "a measurement",
            Answer::Failed(_) => "a failure",
        }
    }
}

/// The progress of one worker, or of all of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Report {
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
    pub report: Report,
    /// It has stopped responding.
    pub is_lost: bool,
}

impl Report {
    /// Adds those of another worker.
    pub fn add(&mut self, other: &Report) {
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
pub struct Part {
    pub measured: Measured,
    pub particulars: SentParticulars,
    pub unstarted: u64,
    pub reconnections: u32,
    pub lost_threads: u32,
    /// How much later than requested its threads started, by its own clock.
    pub start_lateness_ns: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mean_of_all_workers_is_that_of_their_operations() {
        let report = |throughput_per_s: f64, mean_us: f64, p99_us: f64| Report {
            operations: 10,
            throughput_per_s,
            mean_us,
            p50_us: mean_us,
            p99_us,
            has_ended: true,
            ..Report::default()
        };
        let mut whole = Report { has_ended: true, ..Report::default() };
        // One that does nothing yet has no part in it.
        for one in [report(0.0, 9.0, 9e9), report(300.0, 100.0, 900.0), report(100.0, 500.0, 700.0)] {
            whole.add(&one);
        }
        assert_eq!((whole.operations, whole.throughput_per_s, whole.mean_us), (30, 400.0, 200.0));
        assert_eq!((whole.p50_us, whole.p99_us, whole.has_ended), (500.0, 900.0, true));
    }
}
