//! Reading and writing: a file's bytes become requests at the places of its extents, as few as possible and all at
//! once. Nothing here waits; the last answer of the device answers the caller.

use std::ops::Range;
use std::sync::Arc;

use rustix::io::Errno;
use underlay_storage::device::{DeviceCompletion, DeviceRequest};
use underlay_storage::layers::join::CompletionJoin;

use super::extents::{BlockRun, FileSegment, SegmentPlace};
use super::failures::PlacedBlocks;
use super::operation::{FileTimestamp, TreeOperation};
use super::ranges::{InodeRangeLock, LockAccess, answer};
use super::space::{FreshBlocks, MAX_FILE_BYTES};
use super::{BLOCK_BYTES, CommitJob, CoreCallback, CoreResult, CoreState, DirectoryCore, errno, now};

const BLOCK: usize = BLOCK_BYTES as usize;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WriteOptions {
    /// Keeps the modification time: the kernel has the file's pages, and sets it later.
    pub keep_times: bool,
    /// Clears set-id bits.
    pub drop_privileges: bool,
}

/// Requests in flight: their outcome, and the data read.
type PendingRequests = CompletionJoin<(CoreResult, Vec<u8>)>;

fn requests(
    count: usize,
    buffer: Vec<u8>,
    then: impl FnOnce(CoreResult, Vec<u8>) + Send + 'static,
) -> Arc<PendingRequests> {
    Arc::new(CompletionJoin::new(count, (Ok(()), buffer), |(outcome, buffer)| then(outcome, buffer)))
}

/// One request has completed; `place` is where a read's bytes go in the buffer.
fn arrive(requests: &PendingRequests, completion: DeviceCompletion, place: Option<usize>) {
    requests.arrive(|(outcome, buffer)| match (completion, place) {
        (Ok(bytes), Some(index)) => buffer[index..index + bytes.len()].copy_from_slice(&bytes),
        (Ok(_), None) => {}
        (Err(error), _) => *outcome = outcome.and(Err(errno(&error))),
    });
}

/// Merges parts of the same kind that lie side by side on the device.
fn device_parts(segments: &[(u64, u64)]) -> Vec<(u64, u64)> {
    let mut parts: Vec<(u64, u64)> = Vec::new();
    for &(device, count) in segments {
        match parts.last_mut() {
            Some((start, length)) if *start + *length == device => *length += count,
            _ => parts.push((device, count)),
        }
    }
    parts
}

fn blocks(bytes: &Range<u64>) -> Range<u64> {
    bytes.start / BLOCK_BYTES..bytes.end.div_ceil(BLOCK_BYTES)
}

impl DirectoryCore {
    /// Reads a range, as far as it exists: less at the file's end, nothing after it.
    pub fn read(self: &Arc<Self>, inode: u64, offset: u64, length: u32, done: CoreCallback<Vec<u8>>) {
        if let Err(error) = self.check_alive() {
            return done(Err(error));
        }
        let end = offset.saturating_add(u64::from(length));
        let core = Arc::clone(self);
        self.ranges.claim(inode, blocks(&(offset..end)), LockAccess::Shared, move |lock| {
            let size = match core.file_size(inode) {
                Ok(size) => size,
                Err(error) => return answer(done, Err(error), lock),
            };
            let bytes = offset..end.min(size);
            if bytes.is_empty() {
                return answer(done, Ok(Vec::new()), lock);
            }
            let skip = (offset % BLOCK_BYTES) as usize;
            let wanted = (bytes.end - bytes.start) as usize;
            core.read_blocks(inode, blocks(&bytes), move |outcome, mut buffer| {
                let outcome = outcome.map(|()| {
                    if skip > 0 {
                        buffer.drain(..skip);
                    }
                    buffer.truncate(wanted);
                    buffer
                });
                answer(done, outcome, lock);
            });
        });
    }

    /// Reads whole blocks of a locked range.
    fn read_blocks(
        self: &Arc<Self>,
        inode: u64,
        blocks: Range<u64>,
        then: impl FnOnce(CoreResult, Vec<u8>) + Send + 'static,
    ) {
        let segments = self.state().tree.get(inode).map(|file| file.extents.segments(blocks.clone()));
        let Some(segments) = segments else { return then(Err(Errno::NOENT), Vec::new()) };
        let length = ((blocks.end - blocks.start) * BLOCK_BYTES) as usize;
        if let [FileSegment { place: SegmentPlace::Written(device) | SegmentPlace::Doubtful(device), .. }] =
            segments.as_slice()
        {
            let request = DeviceRequest::Read { offset_bytes: device * BLOCK_BYTES, buffer: vec![0; length] };
            let done = move |completion: DeviceCompletion| match completion {
                Ok(buffer) => then(Ok(()), buffer),
                Err(error) => then(Err(errno(&error)), Vec::new()),
            };
            return self.device.submit(request, Box::new(done));
        }
        let written: Vec<(u64, u64, u64)> = segments
            .iter()
            .filter_map(|segment| Some((segment.at, segment.place.content()?, segment.count)))
            .collect();
        if written.is_empty() {
            return then(Ok(()), vec![0; length]);
        }
        let all = requests(written.len(), vec![0; length], then);
        for (offset, device, count) in written {
            let (all, place) = (Arc::clone(&all), ((offset - blocks.start) * BLOCK_BYTES) as usize);
            let buffer = vec![0; (count * BLOCK_BYTES) as usize];
            let request = DeviceRequest::Read { offset_bytes: device * BLOCK_BYTES, buffer };
            self.device.submit(request, Box::new(move |completion| arrive(&all, completion, Some(place))));
        }
    }

    /// Writes, and answers when the device has: the data is not durable before a sync.
    pub fn write(
        self: &Arc<Self>,
        inode: u64,
        offset: u64,
        data: Vec<u8>,
        options: WriteOptions,
        done: CoreCallback<()>,
    ) {
        let Some(end) = offset.checked_add(data.len() as u64).filter(|end| *end <= MAX_FILE_BYTES) else {
            return done(Err(Errno::FBIG));
        };
        if let Err(error) = self.check_alive() {
            return done(Err(error));
        }
        if data.is_empty() {
            return done(self.file_size(inode).map(|_| ()));
        }
        let write = DataWrite { inode, bytes: offset..end, options, may_reclaim: true };
        self.begin_write(blocks(&(offset..end)), write, data, done);
    }

    fn begin_write(
        self: &Arc<Self>,
        range: Range<u64>,
        write: DataWrite,
        data: Vec<u8>,
        done: CoreCallback<()>,
    ) {
        let core = Arc::clone(self);
        self.ranges.claim(write.inode, range, LockAccess::Exclusive, move |lock| {
            core.write_held(write, data, lock, done)
        });
    }

    fn write_held(
        self: &Arc<Self>,
        write: DataWrite,
        data: Vec<u8>,
        lock: InodeRangeLock,
        done: CoreCallback<()>,
    ) {
        let size = match self.file_size(write.inode) {
            Ok(size) => size,
            Err(error) => return answer(done, Err(error), lock),
        };
        let cover = blocks(&write.bytes);
        // A gap between the old end and this write must read as zeros, also in the old last block.
        let gap = size < write.bytes.start && size / BLOCK_BYTES < cover.start;
        if gap && !self.state().is_tail_clean(write.inode) {
            if lock.region().start > size / BLOCK_BYTES {
                // Before the larger range is locked, which would otherwise wait for this lock.
                drop(lock);
                return self.begin_write(size / BLOCK_BYTES..cover.end, write, data, done);
            }
            let core = Arc::clone(self);
            return self.clean_tail(
                write.inode,
                Box::new(move |cleaned| match cleaned {
                    Ok(()) => core.write_edges(write, size, data, lock, done),
                    Err(error) => answer(done, Err(error), lock),
                }),
            );
        }
        self.write_edges(write, size, data, lock, done);
    }

    /// Fills up the first and the last block with the present content.
    fn write_edges(
        self: &Arc<Self>,
        write: DataWrite,
        size: u64,
        data: Vec<u8>,
        lock: InodeRangeLock,
        done: CoreCallback<()>,
    ) {
        let cover = blocks(&write.bytes);
        let head = (write.bytes.start % BLOCK_BYTES) as usize;
        let length = ((cover.end - cover.start) * BLOCK_BYTES) as usize;
        if head == 0 && data.len() == length {
            return self.write_blocks(write, data, lock, done);
        }
        let mut edges = vec![cover.start, cover.end - 1];
        edges.dedup();
        // Blocks with bytes of the file that this write does not change.
        edges.retain(|block| {
            let valid = block * BLOCK_BYTES..((block + 1) * BLOCK_BYTES).min(size);
            !valid.is_empty() && (valid.start < write.bytes.start || valid.end > write.bytes.end)
        });
        let mut whole = vec![0; length];
        whole[head..head + data.len()].copy_from_slice(&data);
        let core = Arc::clone(self);
        self.read_single_blocks(write.inode, edges, move |outcome| match outcome {
            Ok(edges) => {
                for (block, old) in edges {
                    let start = ((block - cover.start) * BLOCK_BYTES) as usize;
                    // Bytes after the file's end do not belong to the file.
                    let valid = size.saturating_sub(block * BLOCK_BYTES).min(BLOCK_BYTES) as usize;
                    let (first, last) = (head, head + data.len());
                    for index in 0..valid {
                        if start + index < first || start + index >= last {
                            whole[start + index] = old[index];
                        }
                    }
                }
                core.write_blocks(write, whole, lock, done);
            }
            Err(error) => answer(done, Err(error), lock),
        });
    }

    /// The content of those blocks that have been written.
    fn read_single_blocks(
        self: &Arc<Self>,
        inode: u64,
        blocks: Vec<u64>,
        then: impl FnOnce(Result<Vec<(u64, Vec<u8>)>, Errno>) + Send + 'static,
    ) {
        let written: Vec<(u64, u64)> = {
            let state = self.state();
            let place = |block: &u64| Some((*block, state.tree.get(inode)?.extents.place(*block).content()?));
            blocks.iter().filter_map(place).collect()
        };
        if written.is_empty() {
            return then(Ok(Vec::new()));
        }
        let numbers: Vec<u64> = written.iter().map(|(block, _)| *block).collect();
        let collect = move |outcome: CoreResult, buffer: Vec<u8>| {
            let pieces = buffer.chunks_exact(BLOCK).map(<[u8]>::to_vec);
            then(outcome.map(|()| numbers.into_iter().zip(pieces).collect()));
        };
        let all = requests(written.len(), vec![0; written.len() * BLOCK], collect);
        for (index, (_, device)) in written.into_iter().enumerate() {
            let all = Arc::clone(&all);
            let request = DeviceRequest::Read { offset_bytes: device * BLOCK_BYTES, buffer: vec![0; BLOCK] };
            self.device.submit(request, Box::new(move |answer| arrive(&all, answer, Some(index * BLOCK))));
        }
    }

    /// Writes whole blocks, and maps those without a place once they are written.
    fn write_blocks(
        self: &Arc<Self>,
        write: DataWrite,
        data: Vec<u8>,
        lock: InodeRangeLock,
        done: CoreCallback<()>,
    ) {
        let planned = self.plan(&mut self.state(), &write);
        let plan = match planned {
            Ok(plan) => plan,
            Err(Errno::NOSPC) if write.may_reclaim && self.state().has_blocks_waiting() => {
                let core = Arc::clone(self);
                // Only once, or a full device would make it commit forever.
                let write = DataWrite { may_reclaim: false, ..write };
                return self
                    .send(CommitJob::Reclaim(Box::new(move || core.write_blocks(write, data, lock, done))));
            }
            Err(error) => return answer(done, Err(error), lock),
        };
        let parts = device_parts(&plan.places);
        let core = Arc::clone(self);
        let finish = move |outcome: CoreResult| {
            let outcome = core.written(&write, plan, outcome);
            answer(done, outcome, lock);
        };
        if let [(device, _)] = parts[..] {
            let request = DeviceRequest::Write { offset_bytes: device * BLOCK_BYTES, data, fua: false };
            return self.device.submit(
                request,
                Box::new(move |completion| finish(completion.map(|_| ()).map_err(|error| errno(&error)))),
            );
        }
        let all = requests(parts.len(), Vec::new(), move |outcome, _| finish(outcome));
        let mut rest = data.as_slice();
        for (device, count) in parts {
            let (part, tail) = rest.split_at((count * BLOCK_BYTES) as usize);
            rest = tail;
            let all = Arc::clone(&all);
            let request =
                DeviceRequest::Write { offset_bytes: device * BLOCK_BYTES, data: part.to_vec(), fua: false };
            self.device.submit(request, Box::new(move |completion| arrive(&all, completion, None)));
        }
    }

    /// Finds a place for every block of a write, in order.
    fn plan(&self, state: &mut CoreState, write: &DataWrite) -> Result<WritePlan, Errno> {
        let file = state.tree.get(write.inode).ok_or(Errno::NOENT)?;
        let size = file.attributes.size;
        let segments = file.extents.segments(blocks(&write.bytes));
        let mut plan = WritePlan {
            places: Vec::new(),
            fresh: FreshBlocks::new(),
            unwritten: Vec::new(),
            failures: state.failures,
        };
        if segments.iter().any(|segment| !matches!(segment.place, SegmentPlace::Written(_))) {
            self.check_metadata(state, 128 * segments.len())?;
        }
        for segment in segments {
            match segment.place {
                SegmentPlace::Written(device) => plan.places.push((device, segment.count)),
                SegmentPlace::Unwritten(device) | SegmentPlace::Doubtful(device) => {
                    plan.places.push((device, segment.count));
                    plan.unwritten.push((segment.at, device, segment.count));
                }
                SegmentPlace::Hole => {
                    let hole = segment.at..segment.at + segment.count;
                    let Some(mut runs) = state.allocate(write.inode, hole, write.bytes.end > size) else {
                        state.give_back(&plan.fresh);
                        return Err(Errno::NOSPC);
                    };
                    plan.places.extend(runs.iter().map(|(_, run)| (run.start, run.count)));
                    plan.fresh.append(&mut runs);
                }
            }
        }
        Ok(plan)
    }

    /// The device has answered all parts of a write.
    fn written(&self, write: &DataWrite, plan: WritePlan, outcome: CoreResult) -> CoreResult {
        let mut state = self.state();
        if outcome.is_err() || state.tree.get(write.inode).is_none() {
            // No record names these blocks, so they are free at once, without discard or commit.
            state.give_back(&plan.fresh);
            return outcome.and(Err(Errno::IO));
        }
        state.note_write(write.inode);
        let fresh = plan.fresh.iter().map(|(offset, run)| (*offset, run.start, run.count));
        let mut placed = false;
        for (offset, device, count) in fresh.chain(plan.unwritten.iter().copied()).collect::<Vec<_>>() {
            placed = true;
            state.place(write.inode, offset, BlockRun { start: device, count })?;
        }
        state.written_across_failures(write.inode, plan.failures);
        let time: FileTimestamp = now();
        let end = write.bytes.end;
        let Some(attributes) = state.tree.attributes_mut(write.inode) else { return Err(Errno::IO) };
        let grows = end > attributes.size;
        attributes.size = attributes.size.max(end);
        let holds_end = attributes.size.div_ceil(BLOCK_BYTES) == end.div_ceil(BLOCK_BYTES);
        if !write.options.keep_times {
            attributes.mtime = time;
            attributes.ctime = time;
        }
        if write.options.drop_privileges {
            super::names::drop_privileges(attributes);
        }
        if placed || grows {
            state.changed(write.inode, true);
        } else if !write.options.keep_times || write.options.drop_privileges {
            state.changed(write.inode, false);
        }
        if holds_end {
            // The last block was filled up with zeros.
            state.volatile.entry(write.inode).or_default().tail_clean = true;
        }
        Ok(())
    }

    /// Zeros the part of the file's last block after its end. The block is locked.
    pub(super) fn clean_tail(self: &Arc<Self>, inode: u64, then: CoreCallback<()>) {
        let size = match self.file_size(inode) {
            Ok(size) => size,
            Err(error) => return then(Err(error)),
        };
        if size.is_multiple_of(BLOCK_BYTES) || self.state().is_tail_clean(inode) {
            return then(Ok(()));
        }
        let core = Arc::clone(self);
        self.zero_bytes(
            inode,
            size..size.next_multiple_of(BLOCK_BYTES),
            Box::new(move |outcome| {
                if outcome.is_ok() {
                    core.state().volatile.entry(inode).or_default().tail_clean = true;
                }
                then(outcome);
            }),
        );
    }

    /// Zeros a part of one block, if it was ever written. The block is locked.
    pub(super) fn zero_bytes(self: &Arc<Self>, inode: u64, bytes: Range<u64>, then: CoreCallback<()>) {
        let block = bytes.start / BLOCK_BYTES;
        if bytes.is_empty() || bytes.end - bytes.start == BLOCK_BYTES {
            // Nothing, or a whole block, which has been handled as such.
            return then(Ok(()));
        }
        let core = Arc::clone(self);
        self.read_single_blocks(inode, vec![block], move |outcome| {
            let mut found = match outcome {
                Ok(found) => found,
                Err(error) => return then(Err(error)),
            };
            let (place, failures) = {
                let state = core.state();
                (state.tree.get(inode).map(|file| file.extents.place(block)), state.failures)
            };
            let device = place.and_then(SegmentPlace::content);
            let (Some((_, mut data)), Some(device)) = (found.pop(), device) else {
                return then(Ok(()));
            };
            let inside = |byte: u64| (byte - block * BLOCK_BYTES) as usize;
            data[inside(bytes.start)..inside(bytes.end)].fill(0);
            let request = DeviceRequest::Write { offset_bytes: device * BLOCK_BYTES, data, fua: false };
            let writing = Arc::clone(&core);
            let done = move |completion: DeviceCompletion| {
                let mut outcome = completion.map(|_| ()).map_err(|error| errno(&error));
                let mut state = writing.state();
                state.note_write(inode);
                if outcome.is_ok() && matches!(place, Some(SegmentPlace::Doubtful(_))) {
                    outcome = state.place(inode, block, BlockRun { start: device, count: 1 });
                    state.changed(inode, true);
                }
                state.written_across_failures(inode, failures);
                drop(state);
                then(outcome);
            };
            core.device.submit(request, Box::new(done));
        });
    }
}

impl CoreState {
    /// Records where a file's content is from now on.
    fn place(&mut self, inode: u64, offset: u64, run: BlockRun) -> CoreResult {
        let BlockRun { start: device, count } = run;
        self.perform(TreeOperation::Map { inode, at: offset, device, count, written: true })?;
        self.unflushed.push(PlacedBlocks { written: self.written, inode, at: offset, run });
        Ok(())
    }

    fn is_tail_clean(&self, inode: u64) -> bool {
        self.volatile.get(&inode).is_some_and(|volatile| volatile.tail_clean)
            || self.tree.get(inode).is_some_and(|file| file.attributes.size.is_multiple_of(BLOCK_BYTES))
    }
}

/// A write in progress.
#[derive(Clone, Debug)]
struct DataWrite {
    inode: u64,
    bytes: Range<u64>,
    options: WriteOptions,
    /// A commit may free blocks for it.
    may_reclaim: bool,
}

/// The destination of a write.
struct WritePlan {
    /// Device block and count, in the order of the file.
    places: Vec<(u64, u64)>,
    fresh: FreshBlocks,
    unwritten: Vec<(u64, u64, u64)>,
    /// The number of flushes that had failed.
    failures: u64,
}
