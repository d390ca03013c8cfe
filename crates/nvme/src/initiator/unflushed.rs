//! Writes that were answered and that no flush has covered yet, kept to be done again.
//!
//! A target that dies takes with it what its volatile write cache held, and comes back as if nothing had been. A
//! flush after that would promise what it can't keep. So what was written since the last flush is written again
//! before anything else happens.
//!
//! Of each block only the last write is done again. An older write must not come back over a newer one: the newer one
//! may be durable by itself, or the target may refuse it when it is repeated. It also makes the order of repeating
//! irrelevant.
//!
//! Writes are many and losses are few: so answers are only put down in their order, and what replaced what is found out
//! when it matters. Until then what was replaced counts as kept. A map by blocks, kept up at each answer, took a third
//! of an initiator's requests at 4 KiB.

use std::collections::{BTreeMap, VecDeque};

use super::exchange::SharedBuffer;
use crate::command::{DatasetRange, NvmeCommand, nvm};
use underlay_sync::planted::{PlantedBug, is_planted};

/// First block and the one behind the last.
pub(super) type BlockRange = (u64, u64);

/// A write, or what empties blocks.
#[derive(Clone, Debug)]
pub(super) struct UnflushedWrite {
    pub command: NvmeCommand,
    pub data: Option<SharedBuffer>,
    pub blocks: BlockRange,
    /// It was durable when it was answered.
    pub fua: bool,
}

impl UnflushedWrite {
    fn bytes(&self) -> usize {
        self.data.as_ref().map_or(0, SharedBuffer::len)
    }

    /// The same for some of its blocks; `None` for none.
    fn part(&self, (start, end): BlockRange) -> Option<UnflushedWrite> {
        if start >= end {
            return None;
        }
        let mut command = self.command;
        let data = if command.opcode == nvm::DATASET_MANAGEMENT {
            // The initiator sends one range at a time.
            let range = DatasetRange { attributes: 0, blocks: (end - start) as u32, lba: start };
            Some(SharedBuffer::new(range.encode().to_vec()))
        } else {
            command.set_blocks(start, (end - start) as u32);
            self.data.as_ref().and_then(|data| {
                let block_bytes = data.len() / (self.blocks.1 - self.blocks.0) as usize;
                let offset = (start - self.blocks.0) as usize * block_bytes;
                data.remainder(offset, (end - start) as usize * block_bytes)
            })
        };
        Some(UnflushedWrite { command, data, blocks: (start, end), fua: self.fua })
    }
}

#[derive(Debug, Default)]
pub(super) struct UnflushedWrites {
    /// In the order of the answers, each with a number that grows with them.
    answers: VecDeque<(u64, UnflushedEntry)>,
    next: u64,
    bytes: usize,
}

#[derive(Debug)]
enum UnflushedEntry {
    Write(UnflushedWrite),
    /// Nothing older of these blocks will be done again.
    Void(BlockRange),
}

impl UnflushedWrites {
    /// In the order of the answers.
    pub(super) fn keep(&mut self, write: UnflushedWrite) {
        if write.fua {
            return self.cut_out(write.blocks);
        }
        self.bytes += write.bytes();
        self.push(UnflushedEntry::Write(write));
    }

    /// Nothing of these blocks will be done again.
    pub(super) fn cut_out(&mut self, blocks: BlockRange) {
        if !self.answers.is_empty() {
            self.push(UnflushedEntry::Void(blocks));
        }
    }

    fn push(&mut self, answered: UnflushedEntry) {
        self.answers.push_back((self.next, answered));
        self.next += 1;
    }

    /// Of all that is held, replaced or not.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn len(&self) -> usize {
        self.answers.len()
    }

    /// The writes that a flush sent now covers.
    pub(super) fn mark(&self) -> u64 {
        self.next
    }

    /// A flush has succeeded.
    pub(super) fn flushed(&mut self, mark: u64) {
        let mark = if is_planted(PlantedBug::FlushedTooMuch) { self.next } else { mark };
        while self.answers.front().is_some_and(|(number, _)| *number < mark) {
            if let Some((_, UnflushedEntry::Write(write))) = self.answers.pop_front() {
                self.bytes -= write.bytes();
            }
        }
    }

    /// All that is to be done again, in any order: no two touch the same block.
    pub(super) fn all(&mut self) -> Vec<UnflushedWrite> {
        let mut last = LastWrites::default();
        for (number, answered) in self.answers.drain(..) {
            match answered {
                UnflushedEntry::Write(write) => last.keep(number, write),
                UnflushedEntry::Void(blocks) => last.cut_out(blocks),
            }
        }
        // Replaced writes are gone, so this is all that is held now.
        let all: Vec<UnflushedWrite> = last.by_block.values().map(|(_, write)| write.clone()).collect();
        self.bytes = all.iter().map(UnflushedWrite::bytes).sum();
        let mut writes: Vec<(u64, UnflushedWrite)> = last.by_block.into_values().collect();
        writes.sort_by_key(|(number, _)| *number);
        self.answers =
            writes.into_iter().map(|(number, write)| (number, UnflushedEntry::Write(write))).collect();
        all
    }
}

/// The last write to each block.
#[derive(Default)]
struct LastWrites {
    /// By first block, with the number of the answer. No two touch the same block.
    by_block: BTreeMap<u64, (u64, UnflushedWrite)>,
}

impl LastWrites {
    fn keep(&mut self, number: u64, write: UnflushedWrite) {
        self.cut_out(write.blocks);
        self.by_block.insert(write.blocks.0, (number, write));
    }

    fn cut_out(&mut self, (start, end): BlockRange) {
        while let Some((&first, (_, last))) = self.by_block.range(..end).next_back()
            && last.blocks.1 > start
            && let Some((number, write)) = self.by_block.remove(&first)
        {
            let rests = [(first, start.max(first)), (end.min(write.blocks.1), write.blocks.1)];
            for rest in rests.into_iter().filter_map(|blocks| write.part(blocks)) {
                self.by_block.insert(rest.blocks.0, (number, rest));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::command::{FUA, SglDescriptor};

    const BLOCKS: usize = 40;
    const BLOCK_BYTES: usize = 4;

    #[derive(Clone, Copy, Debug)]
    enum Kind {
        Write,
        Forced,
        WriteZeroes,
        Deallocate,
    }

    /// Its content of a block: its tag, or a zero.
    fn content(kind: Kind, tag: u16, block: u64) -> [u8; BLOCK_BYTES] {
        match kind {
            Kind::Write | Kind::Forced => (u32::from(tag) << 16 | block as u32).to_le_bytes(),
            Kind::WriteZeroes | Kind::Deallocate => [0; BLOCK_BYTES],
        }
    }

    fn change(kind: Kind, tag: u16, (start, end): BlockRange) -> UnflushedWrite {
        let count = (end - start) as u32;
        let blocks = |opcode| NvmeCommand::blocks(opcode, 0, 1, SglDescriptor::empty(), start, count);
        let bytes = || SharedBuffer::new((start..end).flat_map(|block| content(kind, tag, block)).collect());
        let range = DatasetRange { attributes: 0, blocks: count, lba: start };
        let (mut command, data) = match kind {
            Kind::Write | Kind::Forced => (blocks(nvm::WRITE), Some(bytes())),
            Kind::WriteZeroes => (blocks(nvm::WRITE_ZEROES), None),
            Kind::Deallocate => {
                let command = NvmeCommand::new(nvm::DATASET_MANAGEMENT, 0, 1, SglDescriptor::empty());
                (command, Some(SharedBuffer::new(range.encode().to_vec())))
            }
        };
        let fua = matches!(kind, Kind::Forced);
        command.dwords[2] |= if fua { FUA } else { 0 };
        UnflushedWrite { command, data, blocks: (start, end), fua }
    }

    fn write(start: u64, length: u64) -> UnflushedWrite {
        change(Kind::Write, 1, (start, start + length))
    }

    fn forced(start: u64, length: u64) -> UnflushedWrite {
        change(Kind::Forced, 1, (start, start + length))
    }

    /// A device's blocks after these: nothing where it is left alone.
    fn carried_out(all: &[UnflushedWrite]) -> Vec<Option<[u8; BLOCK_BYTES]>> {
        let mut device = vec![None; BLOCKS];
        for UnflushedWrite { command, data, blocks, .. } in all {
            let data = data.as_ref().map_or(&[][..], SharedBuffer::as_bytes);
            let (lba, count) = match command.opcode {
                nvm::DATASET_MANAGEMENT => {
                    let ranges: Vec<DatasetRange> = DatasetRange::decode_all(data).collect();
                    assert_eq!(ranges.len(), 1);
                    (ranges[0].lba, u64::from(ranges[0].blocks))
                }
                _ => (command.lba(), u64::from(command.block_count())),
            };
            assert_eq!(*blocks, (lba, lba + count));
            for block in lba..lba + count {
                let place = (block - lba) as usize * BLOCK_BYTES;
                let bytes = match command.opcode {
                    nvm::WRITE => data[place..place + BLOCK_BYTES].try_into().unwrap(),
                    _ => [0; BLOCK_BYTES],
                };
                let before = device[block as usize].replace(bytes);
                assert_eq!(before, None, "block {block} is written twice, in any order");
            }
            assert!(command.opcode != nvm::WRITE || data.len() == count as usize * BLOCK_BYTES);
        }
        device
    }

    fn extents(unflushed: &mut UnflushedWrites) -> Vec<BlockRange> {
        unflushed.all().iter().map(|write| write.blocks).collect()
    }

    #[test]
    fn flush_forgets_covered_writes_only() {
        let mut unflushed = UnflushedWrites::default();
        unflushed.keep(write(0, 8));
        let mark = unflushed.mark();
        unflushed.keep(write(8, 8));
        assert_eq!(unflushed.bytes(), 16 * BLOCK_BYTES);
        unflushed.flushed(mark);
        assert_eq!(extents(&mut unflushed), [(8, 16)]);
        unflushed.flushed(mark);
        assert_eq!(extents(&mut unflushed), [(8, 16)]);
        unflushed.flushed(unflushed.mark());
        assert_eq!((unflushed.len(), unflushed.bytes), (0, 0));
    }

    #[test]
    fn write_replaced_by_durable_one_stays_gone() {
        let mut unflushed = UnflushedWrites::default();
        unflushed.keep(change(Kind::Deallocate, 0, (6, 10)));
        unflushed.keep(write(20, 4));
        unflushed.keep(forced(7, 2));
        assert_eq!(extents(&mut unflushed), [(6, 7), (9, 10), (20, 24)]);
        unflushed.keep(forced(0, 30));
        assert!(extents(&mut unflushed).is_empty());
        assert_eq!((unflushed.len(), unflushed.bytes()), (0, 0));
        // Nor is anything kept for the sake of nothing.
        unflushed.keep(forced(0, 30));
        assert_eq!(unflushed.len(), 0);
    }

    #[test]
    fn remainder_of_long_write_frees_its_buffer() {
        let mut unflushed = UnflushedWrites::default();
        unflushed.keep(write(0, 32));
        unflushed.keep(forced(1, 31));
        let all = unflushed.all();
        assert_eq!((all.len(), unflushed.bytes()), (1, BLOCK_BYTES));
        assert_eq!(all[0].data.as_ref().unwrap().buffer_bytes(), BLOCK_BYTES);
    }

    #[derive(Clone, Debug)]
    enum Event {
        Answered(Kind, BlockRange),
        FlushBegins,
        FlushSucceeds,
        Refused(u64),
    }

    fn event() -> impl Strategy<Value = Event> {
        let kinds =
            prop::sample::select(vec![Kind::Write, Kind::Forced, Kind::WriteZeroes, Kind::Deallocate]);
        let answered = (kinds, 0_u64..30, 1_u64..10)
            .prop_map(|(kind, start, length)| Event::Answered(kind, (start, start + length)));
        prop_oneof![
            12 => answered,
            1 => Just(Event::FlushBegins),
            1 => Just(Event::FlushSucceeds),
            1 => (0_u64..30).prop_map(Event::Refused),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(500))]

        /// Against an array that has for each block when it was last written, and with what, unless that is durable.
        #[test]
        fn blocks_are_repeated_with_last_write_unless_durable(
            events in prop::collection::vec(event(), 0..60),
        ) {
            let mut unflushed = UnflushedWrites::default();
            let mut expected: Vec<Option<(usize, [u8; BLOCK_BYTES])>> = vec![None; BLOCKS];
            let mut flush = None;
            for (now, event) in events.into_iter().enumerate() {
                match event {
                    Event::Answered(kind, (start, end)) => {
                        unflushed.keep(change(kind, now as u16 + 1, (start, end)));
                        for block in start..end {
                            let written = (now, content(kind, now as u16 + 1, block));
                            let is_durable = matches!(kind, Kind::Forced);
                            expected[block as usize] = (!is_durable).then_some(written);
                        }
                    }
                    Event::FlushBegins => flush = Some((now, unflushed.mark())),
                    Event::FlushSucceeds => {
                        let Some((began, mark)) = flush.take() else { continue };
                        unflushed.flushed(mark);
                        for block in &mut expected {
                            *block = block.filter(|(written, _)| *written > began);
                        }
                    }
                    Event::Refused(block) => {
                        let one = unflushed.all().into_iter().find(|one| one.blocks.1 > block);
                        let Some(UnflushedWrite { blocks, .. }) = one else { continue };
                        unflushed.cut_out(blocks);
                        expected[blocks.0 as usize..blocks.1 as usize].fill(None);
                    }
                }
                let all = unflushed.all();
                let contents: Vec<_> = expected.iter().map(|block| block.map(|(_, bytes)| bytes)).collect();
                prop_assert_eq!(carried_out(&all), contents);
                prop_assert_eq!(all.iter().map(UnflushedWrite::bytes).sum::<usize>(), unflushed.bytes());
                prop_assert_eq!(all.len(), unflushed.len());
            }
        }
    }
}
