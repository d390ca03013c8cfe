//! What YCSB tells of a run and a record does not keep: how long failed operations took, the two halves of a
//! read-modify-write, and how long checking values and closing connections took.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use underlay_record::Histogram;

use crate::latency_counts::LatencyCounts;
use crate::mix::OperationKind;
use crate::raw::RawAnswer;

/// Threads that count in one place: a lock is rarely waited for, and thousands of threads need little memory.
const PLACES: usize = 16;

/// Latencies of the same operations by both starts.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct BothLatencies {
    /// From the intended start; in a closed loop the same as the other.
    pub intended: Histogram,
    /// From the actual start.
    pub service: Histogram,
}

/// What a run has to tell beside its measurement, in modelled time. Operations are counted that were due within the
/// measured time.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Particulars {
    /// Operations that did not end well, by how they ended.
    pub failed: BTreeMap<(OperationKind, RawAnswer), BothLatencies>,
    /// The reads and the updates that read-modify-writes consist of, by how they ended.
    pub parts: BTreeMap<(OperationKind, RawAnswer), BothLatencies>,
    /// How long it took to check a record's values.
    pub checks: Histogram,
    /// How long it took to close each connection.
    pub closings: Histogram,
}

/// The latencies of one part of an operation, or of one that failed; `None` where the window does not count it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timed {
    pub intended_ns: Option<u64>,
    pub service_ns: Option<u64>,
}

#[derive(Debug, Default)]
struct BothCounts {
    intended: LatencyCounts<u64>,
    service: LatencyCounts<u64>,
}

impl BothCounts {
    fn add(&mut self, timed: Timed) {
        if let Some(ns) = timed.intended_ns {
            self.intended.add(ns);
        }
        if let Some(ns) = timed.service_ns {
            self.service.add(ns);
        }
    }

    fn add_to(&self, both: &mut BothLatencies) {
        self.intended.add_to_histogram(&mut both.intended);
        self.service.add_to_histogram(&mut both.service);
    }
}

#[derive(Debug, Default)]
pub(crate) struct Counts {
    failed: BTreeMap<(OperationKind, RawAnswer), BothCounts>,
    parts: BTreeMap<(OperationKind, RawAnswer), BothCounts>,
    checks: LatencyCounts<u64>,
    closings: LatencyCounts<u64>,
}

impl Counts {
    pub fn add_failed(&mut self, kind: OperationKind, answer: RawAnswer, timed: Timed) {
        self.failed.entry((kind, answer)).or_default().add(timed);
    }

    pub fn add_part(&mut self, kind: OperationKind, answer: RawAnswer, timed: Timed) {
        self.parts.entry((kind, answer)).or_default().add(timed);
    }

    /// `records` were checked in so much time each.
    pub fn add_checks(&mut self, records: u64, each_ns: u64) {
        for _ in 0..records {
            self.checks.add(each_ns);
        }
    }

    pub fn add_closing(&mut self, ns: u64) {
        self.closings.add(ns);
    }
}

/// Where the threads of a run count them.
#[derive(Debug, Default)]
pub(crate) struct ParticularCounts {
    places: [Mutex<Counts>; PLACES],
}

impl ParticularCounts {
    /// One thread's place.
    pub fn place(&self, thread: u32) -> &Mutex<Counts> {
        &self.places[thread as usize % PLACES]
    }

    /// Everything that was counted.
    pub fn sum(&self) -> Particulars {
        let mut sum = Particulars::default();
        for counts in self.places.iter().map(lock) {
            for (&key, both) in &counts.failed {
                both.add_to(sum.failed.entry(key).or_default());
            }
            for (&key, both) in &counts.parts {
                both.add_to(sum.parts.entry(key).or_default());
            }
            counts.checks.add_to_histogram(&mut sum.checks);
            counts.closings.add_to_histogram(&mut sum.closings);
        }
        sum
    }
}

pub(crate) fn lock(place: &Mutex<Counts>) -> MutexGuard<'_, Counts> {
    place.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_are_summed_by_kind_and_answer() {
        let counts = ParticularCounts::default();
        for thread in [0, 1, 16] {
            let mut place = lock(counts.place(thread));
            let timed = Timed { intended_ns: Some(2_000), service_ns: (thread == 1).then_some(1_000) };
            place.add_failed(OperationKind::Read, RawAnswer::Missing, timed);
            place.add_part(OperationKind::Update, RawAnswer::Found, timed);
            place.add_checks(3, 500);
            place.add_closing(70);
        }
        let sum = counts.sum();
        let counted = |both: &BothLatencies| (both.intended.count(), both.service.count());
        assert_eq!(sum.failed.len(), 1);
        assert_eq!(counted(&sum.failed[&(OperationKind::Read, RawAnswer::Missing)]), (3, 1));
        assert_eq!(counted(&sum.parts[&(OperationKind::Update, RawAnswer::Found)]), (3, 1));
        assert_eq!((sum.checks.count(), sum.closings.count()), (9, 3));
    }
}
