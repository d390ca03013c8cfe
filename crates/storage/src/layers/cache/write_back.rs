//! Makes dirty blocks durable, and writes them back to the slow device.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use underlay_sync::planted::{PlantedBug, is_planted};

use super::lines::LineState;
use super::{BLOCK_BYTES, CacheInner, CacheState, segments};
use crate::device::{CompletionCallback, DeviceCompletion, DeviceError, DeviceRequest};
use crate::layers::flushes;
use crate::layers::join::{GatherJoin, NextStep, repeat};

/// Dirty blocks written back together.
const BATCH_BLOCKS: usize = 128;

/// Slot and block; no block for a slot that is clean now.
pub(super) fn encode(entries: impl Iterator<Item = (u32, Option<u32>)>) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (slot, block) in entries {
        bytes.extend(slot.to_le_bytes());
        // 0 stands for no block.
        bytes.extend(block.map_or(0, |block| block + 1).to_le_bytes());
    }
    bytes
}

/// `None` for what `encode` doesn't write.
pub(super) fn decode(bytes: &[u8]) -> Option<Vec<(u32, Option<u32>)>> {
    let (entries, rest) = bytes.as_chunks::<8>();
    let entry = |entry: &[u8; 8]| {
        let [a, b, c, d, e, f, g, h] = *entry;
        (u32::from_le_bytes([a, b, c, d]), u32::from_le_bytes([e, f, g, h]).checked_sub(1))
    };
    rest.is_empty().then(|| entries.iter().map(entry).collect())
}

impl CacheInner {
    /// One flush at a time; those that come meanwhile share the next one.
    pub(super) fn flush(self: &Arc<Self>, done: CompletionCallback) {
        let begins = self.lock().flushes.join(done);
        if begins {
            self.begin_flush();
        }
    }

    fn begin_flush(self: &Arc<Self>) {
        let (waiters, fresh, direct) = {
            let mut state = self.lock();
            let tenancy = |slot: &u32| (*slot, state.lines.get(*slot).tenancy);
            let fresh: Vec<(u32, u32)> = state.lines.unjournalled.iter().map(tenancy).collect();
            // A read cache has nothing but what is on the slow device.
            let direct = std::mem::take(&mut state.direct) || self.journal.is_none();
            (state.flushes.begin(), fresh, direct)
        };
        let inner = Arc::clone(self);
        let targets = [self.journal.is_some().then_some(&self.fast), direct.then_some(&self.slow)];
        let targets: Vec<_> = targets.into_iter().flatten().cloned().collect();
        let gather = GatherJoin::new(targets.len(), move |completions: Vec<DeviceCompletion>| {
            if let Some(error) = completions.into_iter().find_map(Result::err) {
                inner.lock().direct |= direct;
                return inner.end_flush(waiters, Err(error));
            }
            let Some(journal) = &inner.journal else { return inner.end_flush(waiters, Ok(())) };
            {
                let mut state = inner.lock();
                let CacheState { lines, .. } = &mut *state;
                let mut entries = Vec::new();
                for (slot, tenancy) in fresh {
                    let line = *lines.get(slot);
                    // A block that came into the slot since was not flushed.
                    if line.tenancy == tenancy && line.standing == LineState::Dirty && !line.journalled {
                        entries.push((slot, Some(line.block)));
                        lines.set_journalled(slot, true);
                    }
                }
                if !entries.is_empty() {
                    journal.append(encode(entries.into_iter()));
                }
            }
            if is_planted(PlantedBug::FlushedUnjournalled) {
                return inner.end_flush(waiters, Ok(()));
            }
            let next = Arc::clone(&inner);
            journal.commit(Box::new(move |result| next.end_flush(waiters, result)));
        });
        for (part, device) in targets.into_iter().enumerate() {
            let gather = Arc::clone(&gather);
            device.submit(DeviceRequest::Flush, Box::new(move |completion| gather.arrive(part, completion)));
        }
    }

    fn end_flush(self: &Arc<Self>, waiters: Vec<CompletionCallback>, result: Result<(), DeviceError>) {
        let again = self.lock().flushes.end();
        flushes::answer(waiters, &result);
        if again {
            self.begin_flush();
        }
    }

    /// Writes dirty blocks back, a batch at a time, while there are more than there should be.
    pub(super) fn write_back(self: &Arc<Self>) {
        {
            let mut state = self.lock();
            if state.writing_back || state.lines.dirty.len() as u64 <= self.dirty_blocks {
                return;
            }
            state.writing_back = true;
        }
        let inner = Arc::clone(self);
        repeat(move |next| inner.write_back_batch(next));
    }

    fn write_back_batch(self: &Arc<Self>, after: NextStep) {
        let batch: Vec<(u32, u32, u32)> = {
            let mut state = self.lock();
            if state.lines.dirty.len() as u64 <= self.dirty_blocks {
                state.writing_back = false;
                return;
            }
            let found = state.lines.dirty_from(state.hand, BATCH_BLOCKS);
            if found.is_empty() {
                // All are being written, and each of these writes begins anew when it is over.
                state.writing_back = false;
                return;
            }
            state.hand = found.last().map_or(0, |(block, _)| block + 1);
            found.into_iter().map(|(block, slot)| (block, slot, state.lines.get(slot).version)).collect()
        };
        let runs = segments(&batch, |(block, ..), (next, ..)| block + 1 == *next);
        let (inner, written) = (Arc::clone(self), batch.clone());
        let gather = GatherJoin::new(runs.len(), move |results: Vec<Result<(), DeviceError>>| {
            if results.iter().any(Result::is_err) {
                // They stay dirty; the next write tries again.
                inner.lock().writing_back = false;
                return;
            }
            let next = Arc::clone(&inner);
            let flushed = move |completion: DeviceCompletion| match completion {
                Ok(_) => next.release(&written, after),
                Err(_) => next.lock().writing_back = false,
            };
            // Durable on the slow device before the copy on the fast one may be given up.
            inner.slow.submit(DeviceRequest::Flush, Box::new(flushed));
        });
        for (part, run) in runs.into_iter().enumerate() {
            let gather = Arc::clone(&gather);
            self.write_back_run(&batch[run], move |result| gather.arrive(part, result));
        }
    }

    /// Copies neighbouring blocks from wherever their slots are.
    fn write_back_run(
        self: &Arc<Self>,
        run: &[(u32, u32, u32)],
        then: impl FnOnce(Result<(), DeviceError>) + Send + 'static,
    ) {
        let reads = segments(run, |(_, slot, _), (_, next, _)| slot + 1 == *next);
        let offset_bytes = u64::from(run[0].0) * BLOCK_BYTES;
        let inner = Arc::clone(self);
        let gather = GatherJoin::new(reads.len(), move |parts: Vec<DeviceCompletion>| {
            let data: Result<Vec<Vec<u8>>, DeviceError> = parts.into_iter().collect();
            let data = match data {
                Ok(parts) => parts.concat(),
                Err(error) => return then(Err(error)),
            };
            inner.counters.written_back.fetch_add(data.len() as u64, Ordering::Relaxed);
            let write = DeviceRequest::Write { offset_bytes, data, fua: false };
            inner.slow.submit(write, Box::new(move |completion| then(completion.map(|_| ()))));
        });
        for (part, read) in reads.into_iter().enumerate() {
            let gather = Arc::clone(&gather);
            let buffer = vec![0; read.len() * BLOCK_BYTES as usize];
            let offset_bytes = self.slot_offset(run[read.start].1);
            let done = move |completion| gather.arrive(part, completion);
            self.fast.submit(DeviceRequest::Read { offset_bytes, buffer }, Box::new(done));
        }
    }

    /// Blocks that did not change meanwhile are clean, and their slots may be reused once the journal says so.
    fn release(self: &Arc<Self>, written: &[(u32, u32, u32)], after: NextStep) {
        let released: Vec<(u32, u32)> = {
            let mut state = self.lock();
            let CacheState { lines, unreleased, .. } = &mut *state;
            let mut released = Vec::new();
            for &(_, slot, version) in written {
                let line = *lines.get(slot);
                if line.version != version || line.standing != LineState::Dirty {
                    continue;
                }
                // Where a release failed, the record on the device is still the one that calls it dirty.
                if line.journalled || unreleased.contains(&(slot, line.tenancy)) {
                    lines.set_standing(slot, LineState::Releasing);
                    lines.set_journalled(slot, false);
                    released.push((slot, line.tenancy));
                } else {
                    lines.set_standing(slot, LineState::Clean);
                }
            }
            if let Some(journal) = self.journal.as_ref().filter(|_| !released.is_empty()) {
                journal.append(encode(released.iter().map(|(slot, _)| (*slot, None))));
            }
            released
        };
        let Some(journal) = self.journal.as_ref().filter(|_| !released.is_empty()) else {
            return self.end_batch(&[], after);
        };
        let inner = Arc::clone(self);
        journal.commit(Box::new(move |result| match result {
            Ok(()) => inner.end_batch(&released, after),
            Err(_) => {
                // The record is kept and goes out with the next commit; until then nobody takes these slots.
                let mut state = inner.lock();
                state.unreleased.extend(released);
                state.writing_back = false;
            }
        }));
    }

    fn end_batch(&self, released: &[(u32, u32)], after: NextStep) {
        {
            let mut state = self.lock();
            let CacheState { lines, unreleased, .. } = &mut *state;
            // A commit takes along what an earlier one could not.
            let earlier = if released.is_empty() { BTreeSet::new() } else { std::mem::take(unreleased) };
            for (slot, tenancy) in released.iter().chain(&earlier) {
                let line = *lines.get(*slot);
                if line.tenancy == *tenancy && line.standing == LineState::Releasing {
                    lines.set_standing(*slot, LineState::Clean);
                }
            }
        }
        after.resume();
    }
}
