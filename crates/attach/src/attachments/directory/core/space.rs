//! Assigns blocks to files, and changes their number.

use std::ops::Range;
use std::sync::Arc;

use rustix::io::Errno;

use super::extents::{BlockRun, ExtentContent, SegmentPlace};
use super::operation::TreeOperation;
use super::ranges::{InodeRangeLock, LockAccess, answer};
use super::{BLOCK_BYTES, CommitJob, CoreCallback, CoreResult, CoreState, DirectoryCore, now};

/// A growing file reserves as many blocks again as it has, within these bounds, so that its next blocks follow
/// directly.
const MIN_AHEAD_BLOCKS: u64 = 16;
const MAX_AHEAD_BLOCKS: u64 = 2048;

/// The largest file: the limit of a signed offset.
pub(super) const MAX_FILE_BYTES: u64 = i64::MAX as u64 / BLOCK_BYTES * BLOCK_BYTES;

/// Blocks for a part of a file that has none, by file block.
pub(super) type FreshBlocks = Vec<(u64, BlockRun)>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AllocateMode {
    /// Blocks for every hole of the range; existing content stays.
    Reserve,
    /// The range reads as zeros and keeps blocks.
    Zero,
    /// The range becomes a hole, and its blocks are freed.
    Punch,
}

impl CoreState {
    /// Blocks for a hole, in as few runs as possible. `None`, with nothing changed, when there are not enough.
    pub(super) fn allocate(&mut self, inode: u64, hole: Range<u64>, grows: bool) -> Option<FreshBlocks> {
        self.try_allocate(inode, hole.clone(), grows).or_else(|| {
            // Only the reservations of growing files are left, and those files can do without.
            let reserving: Vec<u64> = self
                .volatile
                .iter()
                .filter(|(_, volatile)| !volatile.reserved.is_empty())
                .map(|(inode, _)| *inode)
                .collect();
            reserving.into_iter().for_each(|other| self.give_back_reservation(other));
            self.try_allocate(inode, hole, false)
        })
    }

    fn try_allocate(&mut self, inode: u64, hole: Range<u64>, grows: bool) -> Option<FreshBlocks> {
        let mut fresh = FreshBlocks::new();
        let mut offset = hole.start;
        while offset < hole.end {
            let run = match self.take_reserved(inode, offset..hole.end) {
                Some(run) => Some(run),
                None => self.take_free(inode, offset..hole.end, grows),
            };
            let Some(run) = run else {
                self.give_back(&fresh);
                return None;
            };
            fresh.push((offset, run));
            offset += run.count;
        }
        Some(fresh)
    }

    fn take_reserved(&mut self, inode: u64, hole: Range<u64>) -> Option<BlockRun> {
        let reserved = &mut self.volatile.get_mut(&inode)?.reserved;
        let segment = *reserved.segments(hole).first()?;
        let run = BlockRun { start: segment.place.device()?, count: segment.count };
        reserved.unmap(segment.at..segment.at + segment.count);
        Some(run)
    }

    fn take_free(&mut self, inode: u64, hole: Range<u64>, grows: bool) -> Option<BlockRun> {
        let wanted = hole.end - hole.start;
        let block_count = self.tree.get(inode)?.extents.blocks() + wanted;
        let ahead = if grows { block_count.clamp(MIN_AHEAD_BLOCKS, MAX_AHEAD_BLOCKS) } else { 0 };
        let goal = self.goal(inode, hole.start);
        let run = self.allocator.allocate(goal, wanted + ahead)?;
        let volatile = self.volatile.entry(inode).or_default();
        volatile.hint = Some((hole.start + run.count, run.end()));
        if run.count > wanted {
            let rest = BlockRun { start: run.start + wanted, count: run.count - wanted };
            // Earlier reservations there lie elsewhere.
            for old in volatile.reserved.map(hole.start + wanted, rest, ExtentContent::Unwritten) {
                self.release(old);
            }
        }
        Some(BlockRun { count: run.count.min(wanted), ..run })
    }

    /// Where a block would be if the file were laid out in order.
    fn goal(&self, inode: u64, offset: u64) -> u64 {
        if let Some((next, device)) = self.volatile.get(&inode).and_then(|volatile| volatile.hint)
            && next == offset
        {
            return device;
        }
        let Some(file) = self.tree.get(inode) else { return 0 };
        let placed =
            |segment: super::extents::FileSegment| segment.place.device().map(|device| (segment.at, device));
        if let Some((start, device)) = file.extents.segment_before(offset).and_then(placed) {
            return device + (offset - start);
        }
        match file.extents.segment_after(offset).and_then(placed) {
            Some((start, device)) => device.saturating_sub(start - offset),
            None => file.home,
        }
    }

    pub(super) fn give_back(&mut self, fresh: &FreshBlocks) {
        fresh.iter().for_each(|(_, run)| self.release(*run));
    }

    pub(super) fn give_back_reservation(&mut self, inode: u64) {
        let Some(volatile) = self.volatile.get_mut(&inode) else { return };
        volatile.hint = None;
        for run in volatile.reserved.unmap(0..u64::MAX) {
            self.release(run);
        }
    }

    fn release(&mut self, run: BlockRun) {
        if let Err(overlap) = self.allocator.release(run) {
            tracing::error!("not used again: {overlap}");
        }
    }

    /// Blocks that will be free after a commit.
    pub(super) fn has_blocks_waiting(&self) -> bool {
        !self.transaction.freed.is_empty() || !self.sealed_runs.is_empty() || self.discarding_blocks > 0
    }
}

impl DirectoryCore {
    /// Sets a file's size: truncate(2).
    pub fn set_size(self: &Arc<Self>, inode: u64, size: u64, done: CoreCallback<()>) {
        if size > MAX_FILE_BYTES {
            return done(Err(Errno::FBIG));
        }
        let from = match self.file_size(inode) {
            Ok(old) => size.min(old) / BLOCK_BYTES,
            Err(error) => return done(Err(error)),
        };
        let core = Arc::clone(self);
        // Up to the end of any file, so that no write after the new end runs at the same time.
        self.ranges.claim(inode, from..u64::MAX, LockAccess::Exclusive, move |lock| {
            match core.file_size(inode) {
                // It shrank while we waited, so its old end must be locked as well.
                Ok(old) if size.min(old) / BLOCK_BYTES < lock.region().start => {
                    drop(lock);
                    core.set_size(inode, size, done);
                }
                Ok(old) if size > old => {
                    let next = Arc::clone(&core);
                    core.clean_tail(
                        inode,
                        Box::new(move |cleaned| {
                            answer(done, cleaned.and_then(|()| next.resize(inode, size)), lock);
                        }),
                    );
                }
                Ok(_) => {
                    let outcome = core.resize(inode, size);
                    answer(done, outcome, lock);
                }
                Err(error) => answer(done, Err(error), lock),
            }
        });
    }

    /// Called with the range locked, and the tail clean where it matters.
    fn resize(&self, inode: u64, size: u64) -> CoreResult {
        let mut state = self.state();
        let old = state.stat(inode)?.attributes.size;
        if size < old {
            state.perform(TreeOperation::Unmap { inode, range: size.div_ceil(BLOCK_BYTES)..u64::MAX })?;
            state.give_back_reservation(inode);
        }
        let time = now();
        if let Some(attributes) = state.tree.attributes_mut(inode) {
            attributes.size = size;
            attributes.mtime = time;
            attributes.ctime = time;
            super::names::drop_privileges(attributes);
        }
        state.changed(inode, true);
        if let Some(volatile) = state.volatile.get_mut(&inode) {
            // After a shorter end follows the cut-off content; after a longer one nothing was written yet.
            volatile.tail_clean =
                size > old || size.is_multiple_of(BLOCK_BYTES) || (size == old && volatile.tail_clean);
        }
        Ok(())
    }

    pub(super) fn file_size(&self, inode: u64) -> Result<u64, Errno> {
        let state = self.state();
        let found = state.stat(inode)?;
        match found.kind {
            super::InodeKind::File => Ok(found.attributes.size),
            super::InodeKind::Directory => Err(Errno::ISDIR),
            _ => Err(Errno::INVAL),
        }
    }

    /// Reserves, zeroes or frees a range: fallocate(2). `keep_size` leaves a file's end where it is.
    pub fn allocate(
        self: &Arc<Self>,
        inode: u64,
        range: Range<u64>,
        mode: AllocateMode,
        keep_size: bool,
        done: CoreCallback<()>,
    ) {
        if range.is_empty() {
            return done(Err(Errno::INVAL));
        }
        if range.end > MAX_FILE_BYTES {
            return done(Err(Errno::FBIG));
        }
        let size = match self.file_size(inode) {
            Ok(size) => size,
            Err(error) => return done(Err(error)),
        };
        let from = (range.start / BLOCK_BYTES).min(size / BLOCK_BYTES);
        let core = Arc::clone(self);
        self.ranges.claim(inode, from..u64::MAX, LockAccess::Exclusive, move |lock| {
            match core.file_size(inode) {
                Ok(size) if size / BLOCK_BYTES < lock.region().start => {
                    drop(lock);
                    core.allocate(inode, range, mode, keep_size, done);
                }
                Ok(size) => core.allocate_held(inode, size, range, (mode, keep_size), lock, done, true),
                Err(error) => answer(done, Err(error), lock),
            }
        });
    }

    #[expect(clippy::too_many_arguments, reason = "what one fallocate asks for, and where it stands")]
    fn allocate_held(
        self: &Arc<Self>,
        inode: u64,
        size: u64,
        range: Range<u64>,
        (mode, keep_size): (AllocateMode, bool),
        lock: InodeRangeLock,
        done: CoreCallback<()>,
        may_reclaim: bool,
    ) {
        let inner = range.start.div_ceil(BLOCK_BYTES)
            ..(range.end / BLOCK_BYTES).max(range.start.div_ceil(BLOCK_BYTES));
        let outer = range.start / BLOCK_BYTES..range.end.div_ceil(BLOCK_BYTES);
        let changed = {
            let mut state = self.state();
            match mode {
                AllocateMode::Reserve => self.reserve(&mut state, inode, outer),
                AllocateMode::Zero => {
                    state.forget_content(inode, inner).and_then(|()| self.reserve(&mut state, inode, outer))
                }
                AllocateMode::Punch => state.perform(TreeOperation::Unmap { inode, range: inner }),
            }
        };
        if changed == Err(Errno::NOSPC) && may_reclaim && self.state().has_blocks_waiting() {
            let core = Arc::clone(self);
            return self.send(CommitJob::Reclaim(Box::new(move || {
                core.allocate_held(inode, size, range, (mode, keep_size), lock, done, false);
            })));
        }
        let core = Arc::clone(self);
        let end = range.end;
        let finish = move |outcome: CoreResult| {
            if outcome.is_ok() {
                let mut state = core.state();
                let time = now();
                let grows = end > size && !keep_size;
                if let Some(attributes) = state.tree.attributes_mut(inode) {
                    attributes.mtime = time;
                    attributes.ctime = time;
                    attributes.size = if grows { end } else { attributes.size };
                }
                state.changed(inode, true);
                if let Some(volatile) = state.volatile.get_mut(&inode) {
                    volatile.tail_clean |= grows;
                }
            }
            answer(done, outcome, lock);
        };
        if let Err(error) = changed {
            return finish(Err(error));
        }
        let grows = end > size && !keep_size;
        let core = Arc::clone(self);
        let zero = move |then: CoreCallback<()>| {
            if mode == AllocateMode::Reserve {
                return then(Ok(()));
            }
            // The blocks at both ends that the range covers only partly.
            let head_end = range.end.min((range.start / BLOCK_BYTES + 1) * BLOCK_BYTES);
            let tail_start = range.start.max(range.end / BLOCK_BYTES * BLOCK_BYTES);
            let next = Arc::clone(&core);
            let tail = tail_start..range.end;
            core.zero_bytes(
                inode,
                range.start..head_end,
                Box::new(move |outcome| match outcome {
                    Ok(()) => next.zero_bytes(inode, tail, then),
                    Err(error) => then(Err(error)),
                }),
            );
        };
        if !grows {
            return zero(Box::new(finish));
        }
        self.clean_tail(
            inode,
            Box::new(move |outcome| match outcome {
                Ok(()) => zero(Box::new(finish)),
                Err(error) => finish(Err(error)),
            }),
        );
    }

    fn reserve(&self, state: &mut CoreState, inode: u64, blocks: Range<u64>) -> CoreResult {
        let segments = state.tree.get(inode).ok_or(Errno::NOENT)?.extents.segments(blocks);
        self.check_metadata(state, 64 * segments.len())?;
        let mut fresh = FreshBlocks::new();
        for hole in segments.into_iter().filter(|segment| segment.place == SegmentPlace::Hole) {
            match state.allocate(inode, hole.at..hole.at + hole.count, false) {
                Some(mut runs) => fresh.append(&mut runs),
                None => {
                    state.give_back(&fresh);
                    return Err(Errno::NOSPC);
                }
            }
        }
        for (offset, run) in fresh {
            let BlockRun { start: device, count } = run;
            state.perform(TreeOperation::Map { inode, at: offset, device, count, written: false })?;
        }
        Ok(())
    }
}

impl CoreState {
    /// Whole blocks that read as zeros from now on, without being written.
    fn forget_content(&mut self, inode: u64, blocks: Range<u64>) -> CoreResult {
        for segment in self.tree.get(inode).ok_or(Errno::NOENT)?.extents.segments(blocks) {
            if let Some(device) = segment.place.content() {
                let (offset, count) = (segment.at, segment.count);
                self.perform(TreeOperation::Map { inode, at: offset, device, count, written: false })?;
            }
        }
        Ok(())
    }
}
