//! What makes a pool durable: the members' data, then the map that points to it, then the space that nobody points to.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use underlay_sync::MutexGuard;

use underlay_storage::device::{DeviceError, Done};
use underlay_storage::layers::join::{Next, repeat};

use super::core::{Core, VolumeCore};
use super::description::MemberState;
use super::extent::{Extent, Piece};
use super::map::Changes;
use super::record::Record;

/// One flush at a time, since the journal must get changes in their order; who comes meanwhile shares the next one.
#[derive(Default)]
pub struct Flusher {
    flushing: bool,
    waiters: Vec<Waiter>,
    /// What the maps of an uncommitted flush no longer point to.
    held: Vec<Piece>,
    /// The last commit failed: something may be in the tables and not in the journal.
    uncommitted: bool,
}

struct Waiter {
    /// Whose data it is about; none for the map alone.
    volume: Option<Arc<VolumeCore>>,
    done: Done,
}

impl Core {
    fn lock_flusher(&self) -> MutexGuard<'_, Flusher> {
        self.flusher.lock()
    }

    /// Makes durable what had been written when it was called.
    pub fn flush(self: &Arc<Self>, volume: Option<Arc<VolumeCore>>, done: Done) {
        {
            let mut flusher = self.lock_flusher();
            flusher.waiters.push(Waiter { volume, done });
            if flusher.flushing {
                return;
            }
            flusher.flushing = true;
        }
        let core = Arc::clone(self);
        // In a loop where devices answer at once, however many go on asking.
        repeat(move |next| core.begin_flush(next));
    }

    /// Whether the journal has durably what the tables have, and no flush is about to add to them.
    pub fn is_settled(&self) -> bool {
        let flusher = self.lock_flusher();
        !flusher.flushing && !flusher.uncommitted && !self.members.is_changed()
    }

    /// What no map points to once everything appended so far is durable. The caller has counted it as releasing, and
    /// flushes.
    pub fn release_after_commit(&self, pieces: Vec<Piece>) {
        self.lock_flusher().held.extend(pieces);
    }

    fn begin_flush(self: &Arc<Self>, next: Next) {
        let waiters = std::mem::take(&mut self.lock_flusher().waiters);
        // Before the maps are captured: whatever is captured was noted by then, or is noted twice.
        self.outstanding.unflushed.turn();
        let epoch = self.epoch.fetch_add(1, Ordering::AcqRel) + 1;
        // Captured before the members are flushed: what the captured maps point to had been written by then.
        let captured: Vec<(Arc<VolumeCore>, Changes)> = self
            .volumes()
            .into_iter()
            .map(|volume| {
                let changes = volume.map.capture();
                (volume, changes)
            })
            .filter(|(_, changes)| !changes.extents.is_empty() || !changes.released.is_empty())
            .collect();
        let core = Arc::clone(self);
        self.members.flush(move |results| core.members_flushed(waiters, captured, &results, epoch, next));
    }

    fn members_flushed(
        self: &Arc<Self>,
        waiters: Vec<Waiter>,
        captured: Vec<(Arc<VolumeCore>, Changes)>,
        results: &[Result<(), DeviceError>],
        epoch: u64,
        next: Next,
    ) {
        for (index, _) in results.iter().enumerate().filter(|(_, result)| result.is_err()) {
            self.members.leave_out(index);
        }
        let failing = || results.iter().zip(&self.members.list).filter(|(result, _)| result.is_err());
        let is_survived = failing().all(|(_, member)| member.state() == MemberState::Out);
        let failed = results.iter().find_map(|result| result.as_ref().err());
        let holds = |piece: Piece| {
            let member = self.member_of(piece);
            results[member].is_ok()
        };
        let (mut records, mut released, mut is_noted) = (Vec::new(), Vec::new(), true);
        let changed = self.members.take_changed();
        if changed {
            for (index, member) in self.members.list.iter().enumerate() {
                let out = member.state() != MemberState::InUse;
                if out != self.log.with_tables(|tables| tables.out.contains(&(index as u8))) {
                    records.push(Record::Member { member: index as u8, out });
                }
            }
        }
        for (volume, mut changes) in captured {
            if failed.is_some() {
                let lost = |(_, extent): &mut (u32, Option<Extent>)| {
                    extent.as_ref().is_some_and(|extent| !self.is_kept(extent, &holds))
                };
                let extents: Vec<_> = changes.extents.extract_if(.., lost).collect();
                if !extents.is_empty() {
                    // Which of them gave up what is not known any more.
                    let released = std::mem::take(&mut changes.released);
                    is_noted &= volume.map.give_back(Changes { extents, released }).is_ok();
                }
            }
            released.append(&mut changes.released);
            let extent = |(index, extent)| Record::Extent { volume: volume.number, index, extent };
            records.extend(changes.extents.into_iter().map(extent));
        }
        self.log.append(records);
        if failed.is_none() {
            for volume in
                self.volumes().into_iter().filter(|volume| volume.mirror && volume.compress.is_none())
            {
                volume.intents.clear_quiet(self, volume.number, epoch);
            }
        }
        let hurt: Vec<Option<DeviceError>> = waiters
            .iter()
            .map(|waiter| {
                let volume = waiter.volume.as_ref()?;
                let error = failed?;
                // Of what is there twice only one copy can be on the member that is left out.
                let twice = volume.mirror && volume.map.taken().single == 0 && is_survived;
                let hurt = !twice && volume.map.any(|extent| !self.is_kept(extent, &holds));
                hurt.then(|| error.clone())
            })
            .collect();
        let core = Arc::clone(self);
        self.log.commit(Box::new(move |result| {
            if result.is_err() && changed {
                core.members.set_changed();
            }
            if result.is_ok() && is_noted {
                core.outstanding.unflushed.free_other();
            }
            core.end_flush(waiters, hurt, released, result, next);
        }));
    }

    /// Whether of everything in an extent a copy that is used is on a member that was flushed.
    fn is_kept(&self, extent: &Extent, holds: &impl Fn(Piece) -> bool) -> bool {
        let pair = |first: Piece, second: Option<Piece>| match second {
            None => holds(first),
            Some(second) => [first, second].into_iter().any(|piece| {
                holds(piece) && self.members.list[self.member_of(piece)].state() == MemberState::InUse
            }),
        };
        match extent {
            Extent::Plain(plain) => pair(Piece::Slab(plain.slab), plain.copy.map(Piece::Slab)),
            Extent::Packed(packed) => packed.stored().all(|(chunk, _)| {
                let mut pieces = packed.pieces_of(chunk);
                pieces.next().is_none_or(|first| pair(first, pieces.next()))
            }),
        }
    }

    fn end_flush(
        self: &Arc<Self>,
        waiters: Vec<Waiter>,
        hurt: Vec<Option<DeviceError>>,
        mut released: Vec<Piece>,
        result: Result<(), DeviceError>,
        next: Next,
    ) {
        {
            let mut flusher = self.lock_flusher();
            flusher.uncommitted = result.is_err();
            if result.is_ok() {
                released.append(&mut flusher.held);
            } else {
                flusher.held.append(&mut released);
            }
        }
        let count = released.len() as u64;
        self.release(released);
        self.outstanding.releasing.fetch_sub(count, Ordering::AcqRel);
        let again = {
            let mut flusher = self.lock_flusher();
            flusher.flushing = !flusher.waiters.is_empty();
            flusher.flushing
        };
        for (waiter, hurt) in waiters.into_iter().zip(hurt) {
            let answer = hurt.map_or(result.clone(), Err);
            (waiter.done)(answer.map(|()| Vec::new()));
        }
        if again {
            next.go_on();
        }
    }
}
