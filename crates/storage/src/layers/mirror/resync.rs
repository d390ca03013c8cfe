//! Bringing members up to date: at opening, and when one that was left out answers again.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::{BLOCK_BYTES, Inner, PIECE_BYTES, Role};
use crate::device::{Completion, DeviceError, Request};
use crate::layers::join::{Next, repeat};

impl Inner {
    /// At opening: copies what may differ to every member that answers, and writes down who is in.
    pub(super) fn agree(self: &Arc<Self>) -> Result<(), DeviceError> {
        let (source, kept) = {
            let state = self.lock();
            let source = state.roles.iter().position(|role| *role == Role::InSync);
            (source.ok_or(DeviceError::Gone)?, state.kept.clone())
        };
        for index in (0..self.members.len()).filter(|index| *index != source) {
            if self.members[index].journal.is_none() {
                self.lock().kept.missed[index].extend(&kept.marked);
                continue;
            }
            let regions: BTreeSet<u32> = kept.marked.union(&kept.missed[index]).copied().collect();
            let copied = regions.iter().try_for_each(|region| self.copy_and_wait(source, index, *region));
            let copied = copied.and_then(|()| self.members[index].device.execute(Request::Flush).map(|_| ()));
            let mut state = self.lock();
            match copied {
                Ok(()) => {
                    state.roles[index] = Role::InSync;
                    state.kept.out[index] = false;
                    state.kept.missed[index].clear();
                }
                Err(_) => {
                    state.roles[index] = Role::Out { looking: false };
                    state.kept.out[index] = true;
                    state.kept.missed[index].extend(&kept.marked);
                }
            }
        }
        // What was copied may have been read from the source's own cache.
        let durable = self.members[source].device.execute(Request::Flush).is_ok();
        {
            let mut state = self.lock();
            state.kept.epoch += 1;
            if durable {
                state.kept.marked.clear();
            }
        }
        let (sender, receiver) = underlay_sync::channel();
        let tell = move |result| {
            let _ = sender.send(result);
        };
        self.when_persisted(1, Box::new(tell));
        receiver.recv().unwrap_or(Err(DeviceError::Gone))
    }

    fn copy_and_wait(&self, from: usize, to: usize, region: u32) -> Result<(), DeviceError> {
        let (offset_bytes, length_bytes) = self.region_extent(region);
        let mut done = 0;
        while done < length_bytes {
            let piece = (length_bytes - done).min(PIECE_BYTES);
            let offset_bytes = self.reserved_bytes + offset_bytes + done;
            let read = Request::Read { offset_bytes, buffer: vec![0; piece as usize] };
            let data = self.members[from].device.execute(read)?;
            self.members[to].device.execute(Request::Write { offset_bytes, data, fua: false })?;
            done += piece;
        }
        self.resynced_bytes.fetch_add(length_bytes, Ordering::Relaxed);
        Ok(())
    }

    /// Looks whether members that are out answer again.
    pub(super) fn look_for_the_lost(self: &Arc<Self>) {
        let lost: Vec<usize> = {
            let mut state = self.lock();
            let mut lost = Vec::new();
            for (index, role) in state.roles.iter_mut().enumerate() {
                if *role == (Role::Out { looking: false }) && self.members[index].journal.is_some() {
                    *role = Role::Out { looking: true };
                    lost.push(index);
                }
            }
            lost
        };
        for index in lost {
            let inner = Arc::clone(self);
            let answered = move |completion: Completion| {
                let (attempt, missed) = {
                    let mut state = inner.lock();
                    state.roles[index] =
                        if completion.is_ok() { Role::Resyncing } else { Role::Out { looking: false } };
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
            self.members[index].device.submit(Request::Read { offset_bytes: 0, buffer }, Box::new(answered));
        }
    }

    /// Copies one region after the other, the last first; when none is left, the member is in again.
    fn resync(self: &Arc<Self>, index: usize, attempt: u64, mut regions: Vec<u32>) {
        let inner = Arc::clone(self);
        repeat(move |next| inner.resync_one(index, attempt, regions.pop(), next));
    }

    fn resync_one(self: &Arc<Self>, index: usize, attempt: u64, region: Option<u32>, next: Next) {
        if !self.lock().is_resyncing(index, attempt) {
            return;
        }
        let inner = Arc::clone(self);
        let Some(region) = region else {
            let flushed = move |completion: Completion| inner.readmit(index, attempt, completion.is_ok());
            return self.members[index].device.submit(Request::Flush, Box::new(flushed));
        };
        let (offset_bytes, length_bytes) = self.region_extent(region);
        let blocks = offset_bytes / BLOCK_BYTES..(offset_bytes + length_bytes) / BLOCK_BYTES;
        self.ranges.claim(blocks, false, move |claim| {
            let resync = Arc::clone(&inner);
            inner.copy(index, offset_bytes..offset_bytes + length_bytes, move |copied| {
                drop(claim);
                if copied {
                    resync.resynced_bytes.fetch_add(length_bytes, Ordering::Relaxed);
                    return next.go_on();
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

    /// Copies a range to a member, piece by piece, from whoever has it; `then` says whether that went well.
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
        next: Next,
    ) {
        let inner = Arc::clone(self);
        let read = move |completion: Completion| {
            let Ok(data) = completion else {
                failed.store(true, Ordering::SeqCst);
                return next.go_on();
            };
            let written = move |completion: Completion| {
                failed.fetch_or(completion.is_err(), Ordering::SeqCst);
                next.go_on();
            };
            let write = Request::Write { offset_bytes: inner.reserved_bytes + from_bytes, data, fua: false };
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
                state.roles[index] = Role::InSync;
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
