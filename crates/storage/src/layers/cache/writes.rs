//! A cache's handling of writes and discards.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::lines::LineState;
use super::{BLOCK_BYTES, CacheInner, CacheState, RequestSource, place_runs, segments};
use crate::device::{CompletionCallback, DeviceCompletion, DeviceError, DeviceRequest};
use crate::layers::join::GatherJoin;
use crate::layers::ranges::{DeviceRangeLock, LockAccess};

impl CacheInner {
    pub(super) fn write(self: &Arc<Self>, offset_bytes: u64, data: Vec<u8>, done: CompletionCallback) {
        let first = offset_bytes / BLOCK_BYTES;
        let blocks = first..first + data.len() as u64 / BLOCK_BYTES;
        let inner = Arc::clone(self);
        self.ranges.claim((), blocks.clone(), LockAccess::Exclusive, move |claim| {
            if inner.journal.is_none() {
                return inner.write_through(blocks, data, claim, done);
            }
            let passes = data.len() as u64 > inner.bypass_bytes;
            let places: Vec<RequestSource> = {
                let mut state = inner.lock();
                blocks.map(|block| state.place_write(block as u32, passes)).collect()
            };
            let hits = places.iter().filter(|place| **place != RequestSource::Slow).count() as u64;
            inner.counters.write_hits.fetch_add(hits, Ordering::Relaxed);
            inner.counters.write_misses.fetch_add(places.len() as u64 - hits, Ordering::Relaxed);
            inner.write_places(first, &places, &data, claim, done);
        });
    }

    /// Writes each block where it belongs; what is on the fast device is dirty then.
    fn write_places(
        self: &Arc<Self>,
        first: u64,
        places: &[RequestSource],
        data: &[u8],
        claim: DeviceRangeLock,
        done: CompletionCallback,
    ) {
        let runs = place_runs(places);
        let (inner, slots) = (Arc::clone(self), places.to_vec());
        let shape = runs.clone();
        let gather = GatherJoin::new(runs.len(), move |completions: Vec<DeviceCompletion>| {
            let mut answer = Ok(Vec::new());
            {
                let mut state = inner.lock();
                for (run, completion) in shape.into_iter().zip(completions) {
                    slots[run].iter().for_each(|place| state.written(*place, completion.is_ok()));
                    if let Err(error) = completion {
                        answer = Err(error);
                    }
                }
            }
            drop(claim);
            done(answer);
            inner.write_back();
        });
        for (part, run) in runs.into_iter().enumerate() {
            let gather = Arc::clone(&gather);
            let bytes = data[run.start * BLOCK_BYTES as usize..run.end * BLOCK_BYTES as usize].to_vec();
            let (device, offset_bytes) = match places[run.start] {
                RequestSource::Fast(slot) => (&self.fast, self.slot_offset(slot)),
                RequestSource::Slow => (&self.slow, (first + run.start as u64) * BLOCK_BYTES),
            };
            let request = DeviceRequest::Write { offset_bytes, data: bytes, fua: false };
            device.submit(request, Box::new(move |completion| gather.arrive(part, completion)));
        }
    }

    /// A read cache: to the slow device, and over what is cached of it.
    fn write_through(
        self: &Arc<Self>,
        blocks: Range<u64>,
        data: Vec<u8>,
        claim: DeviceRangeLock,
        done: CompletionCallback,
    ) {
        let cached = {
            let mut state = self.lock();
            let cached = state.lines.find_all(blocks.clone());
            cached.iter().for_each(|(_, slot)| state.lines.set_standing(*slot, LineState::Filling));
            cached
        };
        self.counters.write_misses.fetch_add(blocks.end - blocks.start, Ordering::Relaxed);
        let runs = segments(&cached, |(block, slot), (b, s)| block + 1 == *b && slot + 1 == *s);
        let (inner, run_lines, shape) = (Arc::clone(self), cached.clone(), runs.clone());
        let gather = GatherJoin::new(runs.len() + 1, move |mut completions: Vec<DeviceCompletion>| {
            // The slow device's, whose part is the last.
            let answer = completions.pop().unwrap_or(Err(DeviceError::Gone));
            {
                let mut state = inner.lock();
                for (run, completion) in shape.into_iter().zip(completions) {
                    for (_, slot) in &run_lines[run] {
                        // A write that failed leaves each block old or new, here and there perhaps not alike.
                        if completion.is_ok() && answer.is_ok() {
                            state.lines.set_standing(*slot, LineState::Clean);
                        } else {
                            state.lines.clear(*slot);
                        }
                    }
                }
            }
            drop(claim);
            done(answer);
        });
        let last = runs.len();
        for (part, run) in runs.into_iter().enumerate() {
            let gather = Arc::clone(&gather);
            let (block, slot) = cached[run.start];
            let from = (u64::from(block) - blocks.start) * BLOCK_BYTES;
            let bytes = data[from as usize..][..run.len() * BLOCK_BYTES as usize].to_vec();
            let request =
                DeviceRequest::Write { offset_bytes: self.slot_offset(slot), data: bytes, fua: false };
            self.fast.submit(request, Box::new(move |completion| gather.arrive(part, completion)));
        }
        let request = DeviceRequest::Write { offset_bytes: blocks.start * BLOCK_BYTES, data, fua: false };
        self.slow.submit(request, Box::new(move |completion| gather.arrive(last, completion)));
    }

    /// Dirty blocks become zeros and stay dirty: dropping them would bring back the slow device's data.
    pub(super) fn discard(self: &Arc<Self>, offset_bytes: u64, length_bytes: u64, done: CompletionCallback) {
        let first = offset_bytes / BLOCK_BYTES;
        let blocks = first..first + length_bytes / BLOCK_BYTES;
        let inner = Arc::clone(self);
        self.ranges.claim((), blocks.clone(), LockAccess::Exclusive, move |claim| {
            let cached_lines: Vec<(u32, u32)> = {
                let mut state = inner.lock();
                let mut cached_lines = state.lines.find_all(blocks.clone());
                cached_lines.retain(|(_, slot)| match state.lines.get(*slot).standing {
                    LineState::Dirty | LineState::Releasing => {
                        state.lines.touch(*slot, true);
                        state.lines.set_standing(*slot, LineState::Dirty);
                        true
                    }
                    _ => {
                        state.lines.clear(*slot);
                        false
                    }
                });
                cached_lines
            };
            // Everything between the kept blocks.
            let mut gaps: Vec<Range<u64>> = Vec::new();
            let mut gap_start = blocks.start;
            for end in cached_lines.iter().map(|(block, _)| u64::from(*block)).chain([blocks.end]) {
                if gap_start < end {
                    gaps.push(gap_start..end);
                }
                gap_start = end + 1;
            }
            let runs = segments(&cached_lines, |(_, slot), (_, next)| slot + 1 == *next);
            let (next, run_lines, shape) = (Arc::clone(&inner), cached_lines.clone(), runs.clone());
            let gather =
                GatherJoin::new(runs.len() + gaps.len(), move |completions: Vec<DeviceCompletion>| {
                    {
                        let mut state = next.lock();
                        state.direct = true;
                        for (run, completion) in shape.into_iter().zip(&completions) {
                            for (_, slot) in &run_lines[run] {
                                state.written(RequestSource::Fast(*slot), completion.is_ok());
                            }
                        }
                    }
                    drop(claim);
                    done(completions.into_iter().find(Result::is_err).unwrap_or(Ok(Vec::new())));
                    next.write_back();
                });
            let zeroed = runs.len();
            for (part, run) in runs.into_iter().enumerate() {
                let gather = Arc::clone(&gather);
                let offset_bytes = inner.slot_offset(cached_lines[run.start].1);
                let data = vec![0; run.len() * BLOCK_BYTES as usize];
                let done = move |completion| gather.arrive(part, completion);
                inner.fast.submit(DeviceRequest::Write { offset_bytes, data, fua: false }, Box::new(done));
            }
            for (part, gap) in gaps.into_iter().enumerate() {
                let gather = Arc::clone(&gather);
                let (offset_bytes, length) = (gap.start * BLOCK_BYTES, gap.end - gap.start);
                let request = DeviceRequest::Discard { offset_bytes, length_bytes: length * BLOCK_BYTES };
                let done = move |completion| gather.arrive(zeroed + part, completion);
                inner.slow.submit(request, Box::new(done));
            }
        });
    }
}

impl CacheState {
    /// Where a block goes that is about to be written.
    fn place_write(&mut self, block: u32, passes: bool) -> RequestSource {
        let lines = &mut self.lines;
        let slot = match lines.find(block) {
            Some(slot) if matches!(lines.get(slot).standing, LineState::Dirty | LineState::Releasing) => {
                lines.touch(slot, true);
                // At once: one that became clean while this is in flight could be given to another block.
                lines.set_standing(slot, LineState::Dirty);
                return RequestSource::Fast(slot);
            }
            Some(slot) if passes => {
                lines.clear(slot);
                None
            }
            Some(slot) => {
                lines.set_standing(slot, LineState::Filling);
                lines.touch(slot, true);
                Some(slot)
            }
            None if passes => None,
            None => lines.assign(block),
        };
        match slot {
            Some(slot) => RequestSource::Fast(slot),
            None => RequestSource::Slow,
        }
    }

    fn written(&mut self, place: RequestSource, good: bool) {
        let RequestSource::Fast(slot) = place else {
            self.direct = true;
            return;
        };
        self.lines.touch(slot, false);
        match (self.lines.get(slot).standing, good) {
            // Old or new, block by block, as any write that failed; and the only copy.
            (LineState::Dirty, _) | (_, true) => self.lines.set_standing(slot, LineState::Dirty),
            (_, false) => self.lines.clear(slot),
        }
    }
}
