//! Results that YCSB reports and a record does not keep: how long failed operations took, the two halves of a
//! read-modify-write, and the time for checking values and closing connections.

use std::collections::BTreeMap;

use underlay_record::Histogram;
use underlay_sync::Mutex;

use crate::mix::OperationKind;
use crate::run::latency_counts::LatencyCounts;
use crate::run::raw::RawAnswer;

/// The number of places for counts: threads rarely wait for a lock, and thousands of threads need little memory.
const PLACES: usize = 16;

/// Latencies of the same operations, by both kinds of start.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct BothLatencies {
    /// From the intended start; in a closed loop the same as the other.
    pub intended: Histogram,
    /// From the actual start.
    pub service: Histogram,
}

/// A run's details besides its measurement, in modelled time. Operations count if they were sent within the measured
/// time, by either kind of start.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct YcsbStatistics {
    /// Operations without success, by outcome.
    pub failed: BTreeMap<(OperationKind, RawAnswer), BothLatencies>,
    /// The reads and the updates of read-modify-writes, by outcome.
    pub parts: BTreeMap<(OperationKind, RawAnswer), BothLatencies>,
    /// Where the record's latencies, which count operations that were due, cover other operations than those that were
    /// sent.
    pub edges: BTreeMap<OperationKind, EdgeLatencies>,
    /// The time to check a record's values.
    pub checks: Histogram,
    /// The time to close each connection.
    pub closings: Histogram,
}

/// Latencies from the intended start of operations of an open loop whose intended and actual start are on different
/// sides of an edge of the measured time.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct EdgeLatencies {
    /// Due within it, and sent after it or never.
    pub unsent: Histogram,
    /// Due before it, and sent within it.
    pub overdue: Histogram,
}

/// The latencies of one part of an operation, or of one that failed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TimedPart {
    pub intended_ns: u64,
    pub service_ns: u64,
}

/// On which side of an edge the intended start is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EdgeSide {
    Unsent,
    Overdue,
}

#[derive(Debug, Default)]
struct BothCounts {
    intended: LatencyCounts<u64>,
    service: LatencyCounts<u64>,
}

impl BothCounts {
    fn add(&mut self, timed: TimedPart) {
        self.intended.add(timed.intended_ns);
        self.service.add(timed.service_ns);
    }

    fn add_to(&self, both: &mut BothLatencies) {
        self.intended.add_to_histogram(&mut both.intended);
        self.service.add_to_histogram(&mut both.service);
    }
}

#[derive(Debug, Default)]
pub(crate) struct EndingCounts {
    failed: BTreeMap<(OperationKind, RawAnswer), BothCounts>,
    parts: BTreeMap<(OperationKind, RawAnswer), BothCounts>,
    unsent: BTreeMap<OperationKind, LatencyCounts<u64>>,
    overdue: BTreeMap<OperationKind, LatencyCounts<u64>>,
    checks: LatencyCounts<u64>,
    closings: LatencyCounts<u64>,
}

impl EndingCounts {
    pub(crate) fn add_failed(&mut self, kind: OperationKind, answer: RawAnswer, timed: TimedPart) {
        self.failed.entry((kind, answer)).or_default().add(timed);
    }

    pub(crate) fn add_part(&mut self, kind: OperationKind, answer: RawAnswer, timed: TimedPart) {
        self.parts.entry((kind, answer)).or_default().add(timed);
    }

    /// An operation in the record that was not sent within the measured time, or vice versa.
    pub(crate) fn add_edge(&mut self, kind: OperationKind, edge: EdgeSide, intended_ns: u64) {
        let counts = match edge {
            EdgeSide::Unsent => &mut self.unsent,
            EdgeSide::Overdue => &mut self.overdue,
        };
        counts.entry(kind).or_default().add(intended_ns);
    }

    /// `records` were checked, each in this much time.
    pub(crate) fn add_checks(&mut self, records: u64, each_ns: u64) {
        for _ in 0..records {
            self.checks.add(each_ns);
        }
    }

    pub(crate) fn add_closing(&mut self, ns: u64) {
        self.closings.add(ns);
    }
}

/// Where the threads of a run count these.
#[derive(Debug, Default)]
pub(crate) struct ParticularCounts {
    places: [Mutex<EndingCounts>; PLACES],
}

impl ParticularCounts {
    /// One thread's place.
    pub(crate) fn place(&self, thread: u32) -> &Mutex<EndingCounts> {
        &self.places[thread as usize % PLACES]
    }

    /// The sum of all counts.
    pub(crate) fn sum(&self) -> YcsbStatistics {
        let mut sum = YcsbStatistics::default();
        for counts in self.places.iter().map(Mutex::lock) {
            for (&key, both) in &counts.failed {
                both.add_to(sum.failed.entry(key).or_default());
            }
            for (&key, both) in &counts.parts {
                both.add_to(sum.parts.entry(key).or_default());
            }
            for (&kind, unsent) in &counts.unsent {
                unsent.add_to_histogram(&mut sum.edges.entry(kind).or_default().unsent);
            }
            for (&kind, overdue) in &counts.overdue {
                overdue.add_to_histogram(&mut sum.edges.entry(kind).or_default().overdue);
            }
            counts.checks.add_to_histogram(&mut sum.checks);
            counts.closings.add_to_histogram(&mut sum.closings);
        }
        sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_are_summed_by_kind_and_answer() {
        let counts = ParticularCounts::default();
        for thread in [0, 1, 16] {
            let mut place = counts.place(thread).lock();
            let timed = TimedPart { intended_ns: 2_000, service_ns: 1_000 };
            place.add_failed(OperationKind::Read, RawAnswer::Missing, timed);
            place.add_part(OperationKind::Update, RawAnswer::Found, timed);
            place.add_edge(OperationKind::Scan, EdgeSide::Unsent, 9_000);
            place.add_checks(3, 500);
            place.add_closing(70);
        }
        let sum = counts.sum();
        let counted = |both: &BothLatencies| (both.intended.count(), both.service.count());
        assert_eq!(sum.failed.len(), 1);
        assert_eq!(counted(&sum.failed[&(OperationKind::Read, RawAnswer::Missing)]), (3, 3));
        assert_eq!(counted(&sum.parts[&(OperationKind::Update, RawAnswer::Found)]), (3, 3));
        let edges = &sum.edges[&OperationKind::Scan];
        assert_eq!((edges.unsent.count(), edges.overdue.count()), (3, 0));
        assert_eq!((sum.checks.count(), sum.closings.count()), (9, 3));
    }
}
