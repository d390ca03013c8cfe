//! The numbers of records that a run adds, and the number up to which all of them were answered.

use std::sync::atomic::{AtomicU64, Ordering};

/// No insert is in progress.
const IDLE: u64 = u64::MAX;

/// One thread's insert in progress, on its own cache line.
#[derive(Debug)]
#[repr(align(64))]
struct PendingInsert(AtomicU64);

/// Hands out record numbers and knows the highest one up to which every insert was answered, so that no reader requests
/// a record that may not exist yet. It takes one cache line per thread, and no thread waits.
///
/// A failed insert counts as answered: its record reads as missing, and the others go on.
#[derive(Debug)]
pub(crate) struct InsertSequence {
    next: AtomicU64,
    last_acknowledged: AtomicU64,
    pending: Vec<PendingInsert>,
}

impl InsertSequence {
    /// The records below `first` already exist.
    pub(crate) fn new(first: u64, threads: u32) -> Self {
        InsertSequence {
            next: AtomicU64::new(first),
            last_acknowledged: AtomicU64::new(first.saturating_sub(1)),
            pending: (0..threads).map(|_| PendingInsert(AtomicU64::new(IDLE))).collect(),
        }
    }

    /// The number of `thread`'s next insert, which is now in progress.
    pub(crate) fn begin(&self, thread: u32) -> u64 {
        let pending = &self.pending[thread as usize].0;
        // The lower bound is published before the number is taken: a thread that sees the number taken also sees the
        // bound.
        pending.store(self.next.load(Ordering::SeqCst), Ordering::SeqCst);
        // SeqCst throughout: threads that read several of these counters must see the same order of events.
        let number = self.next.fetch_add(1, Ordering::SeqCst);
        pending.store(number, Ordering::SeqCst);
        number
    }

    /// `thread`'s insert was answered.
    pub(crate) fn acknowledge(&self, thread: u32) {
        self.pending[thread as usize].0.store(IDLE, Ordering::SeqCst);
        // Before the scan: an insert that begins later has this number or a higher one.
        let next_number = self.next.load(Ordering::SeqCst);
        let first_open = self
            .pending
            .iter()
            .map(|pending| pending.0.load(Ordering::SeqCst))
            .min()
            .unwrap_or(IDLE)
            .min(next_number);
        // Another thread may have found a higher bound meanwhile.
        self.last_acknowledged.fetch_max(first_open.saturating_sub(1), Ordering::SeqCst);
    }

    /// Every insert up to this number was answered.
    pub(crate) fn last_acknowledged(&self) -> u64 {
        self.last_acknowledged.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn open_insert_holds_back_later_ones() {
        let sequence = InsertSequence::new(100, 3);
        assert_eq!(sequence.last_acknowledged(), 99);
        assert_eq!((sequence.begin(0), sequence.begin(1), sequence.begin(2)), (100, 101, 102));
        sequence.acknowledge(2);
        sequence.acknowledge(1);
        assert_eq!(sequence.last_acknowledged(), 99);
        sequence.acknowledge(0);
        assert_eq!(sequence.last_acknowledged(), 102);
    }

    proptest! {
        /// Compared with a set of open numbers, for any order of beginnings and answers.
        #[test]
        fn acknowledged_end_is_lowest_open_number(
            threads in 1u32..6,
            turns in proptest::collection::vec(0u32..6, 0..200),
        ) {
            let sequence = InsertSequence::new(1, threads);
            let mut open = vec![None; threads as usize];
            let mut next_number = 1;
            for turn in turns {
                let thread = turn % threads;
                match open[thread as usize].take() {
                    Some(_) => sequence.acknowledge(thread),
                    None => {
                        prop_assert_eq!(sequence.begin(thread), next_number);
                        open[thread as usize] = Some(next_number);
                        next_number += 1;
                    }
                }
                let lowest = open.iter().flatten().min().copied().unwrap_or(next_number);
                prop_assert!(sequence.last_acknowledged() < lowest);
                if open.iter().all(Option::is_none) {
                    prop_assert_eq!(sequence.last_acknowledged(), next_number - 1);
                }
            }
        }
    }

    #[test]
    fn threads_never_see_an_insert_acknowledged_that_is_open() {
        let sequence = InsertSequence::new(0, 4);
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let sequence = &sequence;
                scope.spawn(move || {
                    for _ in 0..20_000 {
                        let number = sequence.begin(thread);
                        // Zero stands for "none yet" when the sequence begins at zero.
                        assert!(number == 0 || sequence.last_acknowledged() < number);
                        sequence.acknowledge(thread);
                    }
                });
            }
        });
        assert_eq!(sequence.last_acknowledged(), 79_999);
    }
}
