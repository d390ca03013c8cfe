//! Writes that were answered and that no flush has covered yet, kept to be done again.
//!
//! A target that dies takes with it what its volatile write cache held, and comes back as if nothing had been. A
//! flush after that would promise what it can't keep. So what was written since the last flush is written again
//! before anything else happens, in its old order.

use std::collections::{BTreeMap, VecDeque};

use super::exchange::Data;
use crate::command::Command;
use underlay_sync::planted::{Bug, is_planted};

/// A write, or what empties blocks.
#[derive(Clone, Debug)]
pub(super) struct Kept {
    pub command: Command,
    pub data: Option<Data>,
    /// First block and the one behind the last.
    pub blocks: (u64, u64),
    pub fua: bool,
}

impl Kept {
    fn bytes(&self) -> usize {
        self.data.as_ref().map_or(0, Data::len)
    }
}

#[derive(Debug, Default)]
pub(super) struct Unflushed {
    writes: VecDeque<(u64, Kept)>,
    next: u64,
    bytes: usize,
}

impl Unflushed {
    /// In the order of the answers.
    pub(super) fn keep(&mut self, write: Kept) {
        // What is durable by itself matters only to older writes of the same blocks, which must not come back over it.
        if !(write.fua && self.writes.is_empty()) {
            self.bytes += write.bytes();
            self.writes.push_back((self.next, write));
            self.next += 1;
        }
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn len(&self) -> usize {
        self.writes.len()
    }

    pub(super) fn oldest(&self) -> Option<u64> {
        self.writes.front().map(|(number, _)| *number)
    }

    /// Those that will not be done again.
    pub(super) fn forget(&mut self, is_one: impl Fn(u64, &Kept) -> bool) {
        let bytes = &mut self.bytes;
        self.writes.retain(|(number, write)| {
            let goes = is_one(*number, write);
            *bytes -= if goes { write.bytes() } else { 0 };
            !goes
        });
    }

    /// What a flush that is given to the target now covers.
    pub(super) fn mark(&self) -> u64 {
        self.next
    }

    /// A flush has succeeded.
    pub(super) fn flushed(&mut self, mark: u64) {
        let mark = if is_planted(Bug::FlushedTooMuch) { self.next } else { mark };
        while self.writes.front().is_some_and(|(number, _)| *number < mark) {
            let (_, write) = self.writes.pop_front().expect("there is a first one");
            self.bytes -= write.bytes();
        }
    }

    /// All of them with their numbers, in batches: within a batch no two touch the same block, so that their order does
    /// not matter.
    pub(super) fn batches(&self) -> Vec<Vec<(u64, Kept)>> {
        let mut batches = Vec::new();
        let mut batch = Vec::new();
        let mut taken: BTreeMap<u64, u64> = BTreeMap::new();
        for (number, write) in &self.writes {
            let (start, end) = write.blocks;
            if taken.range(..end).next_back().is_some_and(|(_, taken_end)| *taken_end > start) {
                batches.push(std::mem::take(&mut batch));
                taken.clear();
            }
            taken.insert(start, end);
            batch.push((*number, write.clone()));
        }
        batches.push(batch);
        batches.retain(|batch| !batch.is_empty());
        batches
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn write(start: u64, length: u64, fua: bool) -> Kept {
        let data = Some(Data::new(vec![0; length as usize]));
        Kept { command: Command::default(), data, blocks: (start, start + length), fua }
    }

    #[test]
    fn a_flush_forgets_what_it_covers_and_no_more() {
        let mut unflushed = Unflushed::default();
        unflushed.keep(write(0, 8, false));
        let mark = unflushed.mark();
        unflushed.keep(write(8, 8, false));
        assert_eq!(unflushed.bytes(), 16);
        unflushed.flushed(mark);
        assert_eq!(unflushed.batches().concat().len(), 1);
        unflushed.flushed(mark);
        assert_eq!(unflushed.batches()[0][0].1.blocks, (8, 16));
        unflushed.flushed(unflushed.mark());
        assert_eq!((unflushed.batches().len(), unflushed.bytes), (0, 0));
    }

    #[test]
    fn a_durable_write_is_kept_only_behind_one_that_is_not() {
        let mut unflushed = Unflushed::default();
        unflushed.keep(write(0, 8, true));
        assert_eq!(unflushed.bytes(), 0);
        unflushed.keep(write(0, 8, false));
        unflushed.keep(write(0, 8, true));
        assert_eq!(unflushed.bytes(), 16);
        unflushed.forget(|number, _| number == 0);
        assert_eq!((unflushed.len(), unflushed.bytes()), (1, 8));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(300))]

        /// Each batch done in reverse gives what all writes in order give.
        #[test]
        fn the_order_within_a_batch_does_not_matter(writes in prop::collection::vec((0_u64..30, 1_u64..6), 0..40)) {
            let mut unflushed = Unflushed::default();
            let mut expected = [0_u64; 40];
            for (number, (start, length)) in writes.iter().enumerate() {
                let mut kept = write(*start, *length, false);
                kept.command.dwords[5] = number as u32 + 1;
                unflushed.keep(kept);
                expected[*start as usize..(start + length) as usize].fill(number as u64 + 1);
            }
            let mut found = [0_u64; 40];
            for (_, kept) in unflushed.batches().iter().flat_map(|batch| batch.iter().rev()) {
                found[kept.blocks.0 as usize..kept.blocks.1 as usize].fill(u64::from(kept.command.dwords[5]));
            }
            prop_assert_eq!(found, expected);
        }
    }
}
