//! A namespace's writes: those in flight, those that wait, those kept until a flush, and lost ones.
//!
//! Two writes that touch the same block are not in flight together. The order in which a target does such two is its
//! own, and when one of them is done again after a loss, the block could turn back to what it was before.

use std::collections::{BTreeMap, VecDeque};
use underlay_sync::planted::{PlantedBug, is_planted};

use super::lost::LostRanges;
use super::options::UnflushedLimits;
use super::unflushed::{BlockRange, UnflushedWrite, UnflushedWrites};
use crate::status::NvmeStatus;

/// At this many times the limits, kept or in flight, further writes wait for the flush.
const WAITING_FACTOR: usize = 2;

/// `W` is what waits: a write, and where its answer goes.
pub(super) struct WriteRecord<W> {
    /// A completed write is not durable, so it has to be kept.
    keeps: bool,
    limits: UnflushedLimits,
    unflushed: UnflushedWrites,
    lost: LostRanges,
    /// The target's answer to lost writes.
    refusal: Option<NvmeStatus>,
    under_way: BTreeMap<u64, u64>,
    under_way_bytes: usize,
    waiting: VecDeque<(BlockRange, usize, W)>,
    /// A flush of our own is in flight.
    is_flushing: bool,
    /// Somebody is sending what waited.
    is_admitting: bool,
}

impl<W> WriteRecord<W> {
    pub(super) fn new(keeps_writes: bool, limits: UnflushedLimits) -> WriteRecord<W> {
        WriteRecord {
            keeps: keeps_writes,
            limits,
            unflushed: UnflushedWrites::default(),
            lost: LostRanges::default(),
            refusal: None,
            under_way: BTreeMap::new(),
            under_way_bytes: 0,
            waiting: VecDeque::new(),
            is_flushing: false,
            is_admitting: false,
        }
    }

    /// Whether a write may be sent, which then is in flight.
    pub(super) fn begin(&mut self, blocks: BlockRange, bytes: usize) -> bool {
        // No overtaking, or a stream of small writes could keep a large one waiting forever.
        self.waiting.is_empty() && self.begin_waited(blocks, bytes)
    }

    fn begin_waited(&mut self, blocks: BlockRange, bytes: usize) -> bool {
        let (start, end) = blocks;
        // Those in flight don't overlap: of those that begin before `end`, the last one ends last.
        let is_alone =
            self.under_way.range(..end).next_back().is_none_or(|(_, other_end)| *other_end <= start);
        let may_begin = is_alone && self.has_room(bytes);
        if may_begin {
            self.under_way.insert(start, end);
            self.under_way_bytes += bytes;
        }
        may_begin
    }

    fn has_room(&self, bytes: usize) -> bool {
        let all_bytes = self.unflushed.bytes() + self.under_way_bytes;
        let all = self.unflushed.len() + self.under_way.len();
        !self.keeps
            || is_planted(PlantedBug::KeptWithoutBound)
            || all == 0
            || (all_bytes + bytes <= WAITING_FACTOR * self.limits.bytes
                && all < WAITING_FACTOR * self.limits.commands)
    }

    pub(super) fn wait(&mut self, blocks: BlockRange, bytes: usize, write: W) {
        self.waiting.push_back((blocks, bytes, write));
    }

    /// A write is over. Answered blocks are as last written, and their data is kept where needed. Whether there may be
    /// something to send now: see [`WriteRecord::begin_own_flush`] and [`WriteRecord::begin_admitting`]. Mostly there
    /// is not.
    pub(super) fn end(&mut self, blocks: BlockRange, bytes: usize, answered: Option<UnflushedWrite>) -> bool {
        self.under_way.remove(&blocks.0);
        self.under_way_bytes -= bytes;
        if let Some(write) = answered {
            self.lost.remove(blocks);
            if self.keeps {
                self.unflushed.keep(write);
            }
        }
        !self.waiting.is_empty() || (self.keeps_too_much() && !self.is_flushing)
    }

    fn keeps_too_much(&self) -> bool {
        self.unflushed.bytes() > self.limits.bytes || self.unflushed.len() > self.limits.commands
    }

    /// Whether the caller is the one to send what may begin now, by [`WriteRecord::next`] until there is no more.
    pub(super) fn begin_admitting(&mut self) -> bool {
        !self.waiting.is_empty() && !std::mem::replace(&mut self.is_admitting, true)
    }

    pub(super) fn next(&mut self) -> Option<W> {
        let (blocks, bytes) =
            self.waiting.front().map_or(((0, 0), 0), |(blocks, bytes, _)| (*blocks, *bytes));
        if self.waiting.is_empty() || !self.begin_waited(blocks, bytes) {
            self.is_admitting = false;
            return None;
        }
        self.waiting.pop_front().map(|(_, _, write)| write)
    }

    /// Whether the caller is to send a flush now, and to call [`WriteRecord::own_flush_ended`] when it is over.
    pub(super) fn begin_own_flush(&mut self) -> bool {
        // A long write may find no room beside less than the limit, and nothing else would ever make any.
        let is_in_the_way = self.unflushed.len() > 0
            && self.waiting.front().is_some_and(|(_, bytes, _)| !self.has_room(*bytes));
        (self.keeps_too_much() || is_in_the_way) && !std::mem::replace(&mut self.is_flushing, true)
    }

    /// The writes that waited for a flush that failed, and fail with it.
    pub(super) fn own_flush_ended(&mut self, succeeded: bool) -> Vec<W> {
        self.is_flushing = false;
        if succeeded {
            return Vec::new();
        }
        self.waiting.drain(..).map(|(_, _, write)| write).collect()
    }

    /// The writes that a flush sent now covers.
    pub(super) fn mark(&self) -> u64 {
        self.unflushed.mark()
    }

    pub(super) fn flushed(&mut self, mark: u64) {
        self.unflushed.flushed(mark);
    }

    /// Writes to repeat, in any order.
    pub(super) fn unflushed(&mut self, capacity_blocks: u64) -> Vec<UnflushedWrite> {
        // Blocks behind the end of a shrunk namespace were given up with it.
        self.unflushed.cut_out((capacity_blocks, u64::MAX));
        self.forget_behind(capacity_blocks);
        if is_planted(PlantedBug::NothingRepeated) { Vec::new() } else { self.unflushed.all() }
    }

    pub(super) fn forget_behind(&mut self, capacity_blocks: u64) {
        self.lost.remove((capacity_blocks, u64::MAX));
    }

    /// A kept write was done again.
    pub(super) fn repeated(&mut self, blocks: BlockRange) {
        self.lost.remove(blocks);
    }

    /// The target does not take a kept write again.
    pub(super) fn lose(&mut self, blocks: BlockRange, status: NvmeStatus) {
        self.unflushed.cut_out(blocks);
        self.lost.insert(blocks);
        self.refusal = Some(status);
    }

    pub(super) fn is_lost(&self, blocks: BlockRange) -> bool {
        self.lost.overlaps(blocks) && !is_planted(PlantedBug::LostWritesForgotten)
    }

    pub(super) fn has_lost(&self) -> bool {
        !self.lost.is_empty()
    }

    pub(super) fn forget_lost(&mut self) {
        self.lost.remove((0, u64::MAX));
    }

    pub(super) fn refusal(&self) -> Option<NvmeStatus> {
        self.refusal
    }

    /// Of data that is kept or in flight.
    pub(super) fn held_bytes(&self) -> usize {
        self.unflushed.bytes() + self.under_way_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::NvmeCommand;
    use crate::initiator::exchange::SharedBuffer;

    /// Those of [`UnflushedLimits::default`].
    const LIMITS: UnflushedLimits = UnflushedLimits { bytes: 64 << 20, commands: 16 << 10 };

    fn kept(blocks: BlockRange, data: Option<SharedBuffer>) -> UnflushedWrite {
        UnflushedWrite { command: NvmeCommand::default(), data, blocks, fua: false }
    }

    /// As a stream of writes through a flush that does not end: how many are let through.
    fn admitted_without_a_flush(bytes: usize) -> (WriteRecord<u64>, u64) {
        let mut record = WriteRecord::new(true, LIMITS);
        let mut admitted = 0;
        let mut flushes = 0;
        while record.begin((admitted, admitted + 1), bytes) {
            let data = (bytes > 0).then(|| SharedBuffer::new(vec![0; bytes]));
            record.end((admitted, admitted + 1), bytes, Some(kept((admitted, admitted + 1), data)));
            flushes += u64::from(record.begin_own_flush());
            admitted += 1;
            assert!(admitted < 1 << 20, "there is no end to it");
        }
        assert_eq!(flushes, 1);
        record.wait((admitted, admitted + 1), bytes, admitted);
        (record, admitted)
    }

    #[test]
    fn writes_during_long_flush_are_bounded_by_bytes() {
        let (mut record, admitted) = admitted_without_a_flush(1 << 20);
        assert_eq!((admitted, record.held_bytes()), (128, 128 << 20));
        assert!(record.begin_admitting() && record.next().is_none());
        // The flush ends, and what waited goes on.
        record.flushed(record.mark());
        assert!(record.own_flush_ended(true).is_empty());
        assert!(record.begin_admitting());
        assert_eq!((record.next(), record.next()), (Some(128), None));
    }

    #[test]
    fn writes_during_long_flush_are_bounded_by_number() {
        let (mut record, admitted) = admitted_without_a_flush(0);
        assert_eq!(admitted as usize, WAITING_FACTOR * LIMITS.commands);
        assert_eq!(record.own_flush_ended(false), [admitted], "told that the flush failed");
        assert!(!record.begin_admitting());
    }

    #[test]
    fn long_write_near_limit_makes_flush_free_space() {
        let mut record = WriteRecord::new(true, UnflushedLimits { bytes: 8, commands: 100 });
        assert!(record.begin((0, 1), 7));
        record.end((0, 1), 7, Some(kept((0, 1), Some(SharedBuffer::new(vec![0; 7])))));
        assert!(!record.begin_own_flush());
        assert!(!record.begin((1, 2), 12));
        record.wait((1, 2), 12, 'a');
        assert!(record.begin_own_flush() && !record.begin_own_flush());
        record.flushed(record.mark());
        assert!(record.own_flush_ended(true).is_empty() && !record.begin_own_flush());
        assert!(record.begin_admitting());
        assert_eq!((record.next(), record.next()), (Some('a'), None));
    }

    #[test]
    fn writes_of_same_block_are_ordered() {
        let mut record = WriteRecord::new(false, LIMITS);
        assert!(record.begin((0, 4), 4));
        assert!(!record.begin((3, 8), 5));
        record.wait((3, 8), 5, 'a');
        // No request overtakes one that waits.
        assert!(!record.begin((20, 21), 1));
        record.wait((20, 21), 1, 'b');
        assert!(record.begin_admitting() && record.next().is_none());
        record.end((0, 4), 4, None);
        assert!(record.begin_admitting() && !record.begin_admitting());
        assert_eq!((record.next(), record.next(), record.next()), (Some('a'), Some('b'), None));
    }

    /// An older write of the same block is not what was last written, however often the target comes back.
    #[test]
    fn lost_block_is_not_restored_by_older_write() {
        let mut record = WriteRecord::<()>::new(true, LIMITS);
        for blocks in [(0, 8), (4, 6), (5, 6)] {
            assert!(record.begin(blocks, 0));
            record.end(blocks, 0, Some(kept(blocks, None)));
        }
        let extents = |record: &mut WriteRecord<()>| {
            record.unflushed(8).iter().map(|one| one.blocks).collect::<Vec<_>>()
        };
        assert_eq!(extents(&mut record), [(0, 4), (4, 5), (5, 6), (6, 8)]);
        record.lose((4, 5), NvmeStatus::NAMESPACE_NOT_READY);
        let lost = |record: &WriteRecord<()>| {
            (0..8).filter(|&block| record.is_lost((block, block + 1))).collect::<Vec<_>>()
        };
        for _ in 0..2 {
            let all = extents(&mut record);
            assert_eq!(all, [(0, 4), (5, 6), (6, 8)]);
            all.into_iter().for_each(|blocks| record.repeated(blocks));
            assert_eq!(lost(&record), [4]);
        }
        assert!(record.begin((4, 5), 1));
        record.end((4, 5), 1, Some(kept((4, 5), None)));
        assert_eq!(lost(&record), [0; 0]);
    }

    #[test]
    fn blocks_beyond_smaller_namespace_are_dropped() {
        let mut record = WriteRecord::<()>::new(true, LIMITS);
        for blocks in [(0, 8), (8, 16)] {
            assert!(record.begin(blocks, 0));
            record.end(blocks, 0, Some(kept(blocks, None)));
        }
        let all = record.unflushed(6);
        assert_eq!(all.iter().map(|one| one.blocks).collect::<Vec<_>>(), [(0, 6)]);
    }
}
