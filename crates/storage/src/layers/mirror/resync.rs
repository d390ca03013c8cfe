//! Bringing members up to date: at opening, and when one that was left out answers again.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use underlay_sync::channel;
use underlay_sync::planted::{PlantedBug, is_planted};

use super::{BLOCK_BYTES, MemberRole, Mirror, MirrorInner, PIECE_BYTES};
use crate::device::{DeviceCompletion, DeviceError, DeviceRequest};
use crate::layers::join::{NextStep, repeat};
use crate::layers::ranges::LockAccess;

/// When a flush reports a failure that no request could report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FailureReport {
    Now,
    /// The caller has written nothing: a writer's next flush reports it.
    Later,
}

impl Mirror {
    /// Flushes the members, as a power cut may have taken what some of them had not made durable: those that are
    /// without power fail it and are left out. Nobody would notice a member that came back between two requests.
    pub(crate) fn check_members(&self) {
        self.inner.to_members(DeviceRequest::Flush, FailureReport::Later, Box::new(drop));
    }

    /// Looks for members that are out and flushes all, for somebody who has written nothing.
    ///
    /// # Errors
    /// When no member can be flushed.
    pub fn look(&self) -> Result<(), DeviceError> {
        self.inner.look_for_the_lost();
        let (sender, receiver) = channel();
        let done = move |completion: DeviceCompletion| {
            let _ = sender.send(completion);
        };
        self.inner.to_members(DeviceRequest::Flush, FailureReport::Later, Box::new(done));
        // A dropped `done` is a device that vanished with the request inside.
        receiver.recv().unwrap_or(Err(DeviceError::Gone)).map(drop)
    }
}

impl MirrorInner {
    /// At opening: copies what may differ to every member that answers, and writes down who is in.
    pub(super) fn agree(self: &Arc<Self>) -> Result<(), DeviceError> {
        let (mut in_sync, snapshot) = {
            let state = self.lock();
            let is_in = |index: &usize| state.roles[*index] == MemberRole::InSync;
            ((0..self.members.len()).filter(is_in).collect::<Vec<usize>>(), state.kept.clone())
        };
        if in_sync.is_empty() {
            return Err(DeviceError::Gone);
        }
        snapshot.marked.iter().for_each(|region| self.make_alike(*region, &mut in_sync));
        let could_return = |index: &usize| {
            let missed = || snapshot.marked.union(&snapshot.missed[*index]);
            let lacks_data = snapshot.out[*index] && self.members[*index].journal.is_some();
            lacks_data && missed().all(|region| self.bring_up_to_date(*index, *region, &in_sync))
        };
        let mut returned: Vec<usize> = (0..self.members.len()).filter(could_return).collect();
        let is_durable = |index: &usize| self.members[*index].device.execute(DeviceRequest::Flush).is_ok();
        returned.retain(is_durable);
        // Copies may have been read from a member's own cache. Of those that had everything one stays in any case, and
        // as long as it has not made all of it durable, the marks stay as well.
        let lasting: Vec<usize> = in_sync.iter().copied().filter(is_durable).collect();
        let durable = !lasting.is_empty();
        let stay = if durable { lasting } else { in_sync };
        {
            let mut state = self.lock();
            for index in 0..self.members.len() {
                let is_in = stay.contains(&index) || returned.contains(&index);
                state.roles[index] =
                    if is_in { MemberRole::InSync } else { MemberRole::Out { looking: false } };
                state.kept.out[index] = !is_in;
                if is_in {
                    state.kept.missed[index].clear();
                } else {
                    state.kept.missed[index].extend(&snapshot.marked);
                }
            }
            state.kept.epoch += 1;
            if durable {
                state.kept.marked.clear();
            }
        }
        let (sender, receiver) = underlay_sync::channel();
        let tell = move |result| {
            let _ = sender.send(result);
        };
        self.run_when_persisted(1, Box::new(tell));
        receiver.recv().unwrap_or(Err(DeviceError::Gone))
    }

    /// Makes a region alike on members that have all data. Any of them will do as the source: each block is
    /// as it was before an unanswered write or after it. A member that can't be written to is dropped from
    /// the list. Where none can be read, the first one counts as right.
    fn make_alike(&self, region: u32, in_sync: &mut Vec<usize>) {
        for (offset_bytes, length) in self.pieces(region) {
            let sources = if is_planted(PlantedBug::HealthyMemberLeftOut) { 1 } else { in_sync.len() };
            let Some((source, data)) = self.read_any(&in_sync[..sources], offset_bytes, length) else {
                return in_sync.truncate(1);
            };
            // Where it was read from as well: it may have been read from that member's cache.
            in_sync.retain(|index| self.write_piece(*index, offset_bytes, &data) || *index == source);
        }
    }

    /// Copies a region to a member that lacks it; false if that can't be.
    fn bring_up_to_date(&self, to: usize, region: u32, sources: &[usize]) -> bool {
        self.pieces(region).into_iter().all(|(offset_bytes, length)| {
            let read = self.read_any(sources, offset_bytes, length);
            read.is_some_and(|(_, data)| self.write_piece(to, offset_bytes, &data))
        })
    }

    /// On the members: where each piece of a region begins, and how long it is.
    fn pieces(&self, region: u32) -> Vec<(u64, usize)> {
        let (offset_bytes, length_bytes) = self.region_extent(region);
        let piece = |done: u64| {
            let length = (length_bytes - done).min(PIECE_BYTES);
            (self.reserved_bytes + offset_bytes + done, length as usize)
        };
        (0..length_bytes).step_by(PIECE_BYTES as usize).map(piece).collect()
    }

    fn read_any(&self, sources: &[usize], offset_bytes: u64, length: usize) -> Option<(usize, Vec<u8>)> {
        sources.iter().find_map(|index| {
            let read = DeviceRequest::Read { offset_bytes, buffer: vec![0; length] };
            let data = self.members[*index].device.execute(read).ok()?;
            Some((*index, data))
        })
    }

    fn write_piece(&self, to: usize, offset_bytes: u64, data: &[u8]) -> bool {
        let write = DeviceRequest::Write { offset_bytes, data: data.to_vec(), fua: false };
        let written = self.members[to].device.execute(write).is_ok();
        if written {
            self.resynced_bytes.fetch_add(data.len() as u64, Ordering::Relaxed);
        }
        written
    }

    /// Asks members that are out whether they answer again.
    pub(super) fn look_for_the_lost(self: &Arc<Self>) {
        let lost: Vec<usize> = {
            let mut state = self.lock();
            let mut lost = Vec::new();
            for (index, role) in state.roles.iter_mut().enumerate() {
                if *role == (MemberRole::Out { looking: false }) && self.members[index].journal.is_some() {
                    *role = MemberRole::Out { looking: true };
                    lost.push(index);
                }
            }
            lost
        };
        for index in lost {
            let inner = Arc::clone(self);
            let answered = move |completion: DeviceCompletion| {
                // Under one lock: later writes go to the member too, and those in flight are marked, so what
                // it has missed is complete.
                let (attempt, missed) = {
                    let mut state = inner.lock();
                    state.roles[index] = if completion.is_ok() {
                        MemberRole::Resyncing
                    } else {
                        MemberRole::Out { looking: false }
                    };
                    state.version += 1;
                    let marked = state.kept.marked.clone();
                    state.kept.missed[index].extend(marked);
                    let missed: Vec<u32> = state.kept.missed[index].iter().copied().collect();
                    (state.attempts[index], missed)
                };
                if completion.is_ok() {
                    inner.resync(index, attempt, missed);
                }
            };
            let buffer = vec![0; BLOCK_BYTES as usize];
            self.members[index]
                .device
                .submit(DeviceRequest::Read { offset_bytes: 0, buffer }, Box::new(answered));
        }
    }

    /// Copies one region after the other, the last first; when none is left, the member is in again.
    fn resync(self: &Arc<Self>, index: usize, attempt: u64, mut regions: Vec<u32>) {
        let inner = Arc::clone(self);
        repeat(move |next| inner.resync_one(index, attempt, regions.pop(), next));
    }

    fn resync_one(self: &Arc<Self>, index: usize, attempt: u64, region: Option<u32>, next: NextStep) {
        if !self.lock().is_resyncing(index, attempt) {
            return;
        }
        let inner = Arc::clone(self);
        let Some(region) = region else {
            let flushed =
                move |completion: DeviceCompletion| inner.readmit(index, attempt, completion.is_ok());
            return self.members[index].device.submit(DeviceRequest::Flush, Box::new(flushed));
        };
        let (offset_bytes, length_bytes) = self.region_extent(region);
        let blocks = offset_bytes / BLOCK_BYTES..(offset_bytes + length_bytes) / BLOCK_BYTES;
        self.ranges.claim((), blocks, LockAccess::Exclusive, move |claim| {
            let resync = Arc::clone(&inner);
            inner.copy(index, offset_bytes..offset_bytes + length_bytes, move |copied| {
                drop(claim);
                if copied {
                    resync.resynced_bytes.fetch_add(length_bytes, Ordering::Relaxed);
                    return next.resume();
                }
                let mut state = resync.lock();
                if state.is_resyncing(index, attempt) {
                    state.leave_out(index);
                }
                drop(state);
                resync.persist();
            });
        });
    }

    /// Copies a range to a member, piece by piece, from one that has it; `then` says whether that went well.
    fn copy(self: &Arc<Self>, to: usize, mut range: Range<u64>, then: impl FnOnce(bool) + Send + 'static) {
        let inner = Arc::clone(self);
        let mut then = Some(then);
        let failed = Arc::new(AtomicBool::new(false));
        repeat(move |next| {
            let has_failed = failed.load(Ordering::SeqCst);
            if has_failed || range.is_empty() {
                if let Some(then) = then.take() {
                    then(!has_failed);
                }
                return;
            }
            let from_bytes = range.start;
            let length = (range.end - from_bytes).min(PIECE_BYTES);
            range.start += length;
            inner.copy_piece(to, from_bytes, length, Arc::clone(&failed), next);
        });
    }

    fn copy_piece(
        self: &Arc<Self>,
        to: usize,
        from_bytes: u64,
        length: u64,
        failed: Arc<AtomicBool>,
        next: NextStep,
    ) {
        let inner = Arc::clone(self);
        let read = move |completion: DeviceCompletion| {
            let Ok(data) = completion else {
                failed.store(true, Ordering::SeqCst);
                return next.resume();
            };
            let written = move |completion: DeviceCompletion| {
                failed.fetch_or(completion.is_err(), Ordering::SeqCst);
                next.resume();
            };
            let write =
                DeviceRequest::Write { offset_bytes: inner.reserved_bytes + from_bytes, data, fua: false };
            inner.members[to].device.submit(write, Box::new(written));
        };
        self.submit_read(from_bytes, vec![0; length as usize], Vec::new(), Box::new(read));
    }

    fn readmit(self: &Arc<Self>, index: usize, attempt: u64, flushed: bool) {
        {
            let mut state = self.lock();
            if !state.is_resyncing(index, attempt) {
                return;
            }
            if flushed {
                state.roles[index] = MemberRole::InSync;
                state.kept.out[index] = false;
                state.kept.missed[index].clear();
                state.kept.epoch += 1;
                state.version += 1;
                state.membership = state.version;
            } else {
                state.leave_out(index);
            }
        }
        self.persist();
    }
}
