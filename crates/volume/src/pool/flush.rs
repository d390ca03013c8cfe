//! What makes a pool durable: the members' data, then the map that points to it, then the space that nobody points to.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use underlay_sync::MutexGuard;
use underlay_sync::planted::{PlantedBug, is_planted};

use underlay_storage::device::{CompletionCallback, DeviceError};
use underlay_storage::layers::join::{NextStep, repeat};

use super::core::{FlushWaiter, PoolCore, PoolFlusher, VolumeCore};
use super::description::MemberState;
use super::extent::{MappedExtent, ReleasedSpace};
use super::map::MapChanges;
use super::record::PoolRecord;

impl PoolCore {
    fn lock_flusher(&self) -> MutexGuard<'_, PoolFlusher> {
        self.flusher.lock()
    }

    /// Makes durable what had been written when it was called.
    pub(super) fn flush(self: &Arc<Self>, volume: Option<Arc<VolumeCore>>, done: CompletionCallback) {
        {
            let mut flusher = self.lock_flusher();
            flusher.waiters.push(FlushWaiter { volume, done });
            if flusher.flushing {
                return;
            }
            flusher.flushing = true;
        }
        let core = Arc::clone(self);
        // A loop, so that the stack does not grow where devices answer at once and requests keep coming.
        repeat(move |next| core.begin_flush(next));
    }

    /// Whether the journal has durably what the tables have, and no flush is about to add to them.
    pub(super) fn is_settled(&self) -> bool {
        let flusher = self.lock_flusher();
        !flusher.flushing && !flusher.uncommitted && !self.members.is_changed()
    }

    /// What no map points to once everything appended so far is durable. The caller has counted it as releasing, and
    /// flushes.
    pub(super) fn release_after_commit(&self, pieces: Vec<ReleasedSpace>) {
        self.lock_flusher().held.extend(pieces);
    }

    fn begin_flush(self: &Arc<Self>, next: NextStep) {
        let waiters = std::mem::take(&mut self.lock_flusher().waiters);
        // Before the maps are captured: every captured change was noted by then, or is noted twice.
        self.outstanding.unflushed.turn();
        let epoch = self.epoch.fetch_add(1, Ordering::AcqRel) + 1;
        // Captured before the members are flushed: what the captured maps point to had been written by then.
        let captured: Vec<(Arc<VolumeCore>, MapChanges)> = self
            .volumes()
            .into_iter()
            .map(|volume| {
                let changes = volume.map.capture();
                (volume, changes)
            })
            .filter(|(_, changes)| !changes.extents.is_empty() || !changes.released.is_empty())
            .collect();
        let core = Arc::clone(self);
        if is_planted(PlantedBug::MapBeforeData) {
            let results = vec![Ok(()); self.members.list.len()];
            return core.members_flushed(waiters, captured, &results, epoch, next);
        }
        self.members.flush(move |results| core.members_flushed(waiters, captured, &results, epoch, next));
    }

    fn members_flushed(
        self: &Arc<Self>,
        waiters: Vec<FlushWaiter>,
        captured: Vec<(Arc<VolumeCore>, MapChanges)>,
        results: &[Result<(), DeviceError>],
        epoch: u64,
        next: NextStep,
    ) {
        for (index, _) in results.iter().enumerate().filter(|(_, result)| result.is_err()) {
            self.members.leave_out(index);
        }
        let failed = results.iter().find_map(|result| result.as_ref().err());
        let (mut records, mut released, mut is_noted) = (Vec::new(), Vec::new(), true);
        let (changed, states) = self.members.take_changed();
        if changed {
            for (index, state) in states.iter().enumerate() {
                let out = *state != MemberState::InUse;
                if out != self.log.with_tables(|tables| tables.out.contains(&(index as u8))) {
                    records.push(PoolRecord::Member { member: index as u8, out });
                }
            }
        }
        let durable = DurableFlush { core: self, results, states: &states };
        let mut hurt_volumes = BTreeSet::new();
        for (volume, mut changes) in captured {
            if failed.is_some() {
                let lost = |(_, extent): &mut (u32, Option<MappedExtent>)| {
                    extent.as_ref().is_some_and(|extent| !durable.holds(extent))
                };
                let extents: Vec<_> = changes.extents.extract_if(.., lost).collect();
                if !extents.is_empty() {
                    // Wherever the map points by now: the flush is about what it pointed to when it began.
                    hurt_volumes.insert(volume.number);
                    // It is no longer known which extent released what, so all of it goes back.
                    let released = std::mem::take(&mut changes.released);
                    is_noted &= volume.map.give_back(MapChanges { extents, released }).is_ok();
                }
            }
            released.append(&mut changes.released);
            let extent = |(index, extent)| PoolRecord::Extent { volume: volume.number, index, extent };
            records.extend(changes.extents.into_iter().map(extent));
        }
        self.log.append(records);
        if failed.is_none() {
            // Only now is all that was written over durable on both members.
            self.clear_quiet(epoch);
        }
        let hurt: Vec<Option<DeviceError>> = waiters
            .iter()
            .map(|waiter| {
                let volume = waiter.volume.as_ref()?;
                let error = failed?;
                // Of what is there twice only one copy can be on the member that is left out.
                let twice = volume.mirror && volume.map.usage().single == 0 && durable.is_survived();
                // So is space that it has given up since then, which the journal still lists.
                let was_lost = |piece: &ReleasedSpace| {
                    let is_out = durable.states[self.member_of(*piece)] == MemberState::Out;
                    let is_void = volume.mirror && is_out;
                    !is_void && !durable.is_flushed(*piece)
                };
                let moved =
                    || hurt_volumes.contains(&volume.number) || !twice && volume.map.any_released(was_lost);
                let hurt = !twice && volume.map.any(|extent| !durable.holds(extent))
                    || !is_planted(PlantedBug::MovedForgotten) && moved();
                hurt.then(|| error.clone())
            })
            .collect();
        // What is held by now waits for records that this commit has. What comes later may wait for newer ones.
        let held_count = self.lock_flusher().held.len();
        let core = Arc::clone(self);
        self.log.commit(Box::new(move |result| {
            if result.is_err() && changed {
                core.members.set_changed();
            }
            if result.is_ok() && is_noted {
                core.outstanding.unflushed.free_other();
            }
            core.end_flush(waiters, hurt, (released, held_count), result, next);
        }));
    }

    fn end_flush(
        self: &Arc<Self>,
        waiters: Vec<FlushWaiter>,
        hurt: Vec<Option<DeviceError>>,
        (mut released, held_count): (Vec<ReleasedSpace>, usize),
        result: Result<(), DeviceError>,
        next: NextStep,
    ) {
        {
            let mut flusher = self.lock_flusher();
            flusher.uncommitted = result.is_err();
            if result.is_ok() || is_planted(PlantedBug::FreedUncommitted) {
                // Not before the commit: as long as the journal's map points there, a crash would find the
                // next owner's data in the place of this one's.
                released.extend(flusher.held.drain(..held_count));
            } else {
                flusher.held.append(&mut released);
            }
        }
        let count = released.len() as u64;
        self.release(released);
        // After the release, so that `await_space` finds the space counted here or on its way, and not in
        // neither place.
        self.outstanding.releasing.fetch_sub(count, Ordering::AcqRel);
        let again = {
            let mut flusher = self.lock_flusher();
            // Under one lock: a caller that asks for a flush now is either seen here, or finds none in flight and
            // begins one.
            flusher.flushing = !flusher.waiters.is_empty();
            flusher.flushing
        };
        for (waiter, hurt) in waiters.into_iter().zip(hurt) {
            let answer = hurt.map_or(result.clone(), Err);
            (waiter.done)(answer.map(|()| Vec::new()));
        }
        if again {
            next.resume();
        }
    }
}

/// What a flush of the members has made durable, once the journal has the entries that go with it.
struct DurableFlush<'a> {
    core: &'a PoolCore,
    results: &'a [Result<(), DeviceError>],
    /// As the journal hears of them by this flush: a member that is left out later does not count as out.
    states: &'a [MemberState],
}

impl DurableFlush<'_> {
    /// Whether at most one member failed, and it is out.
    fn is_survived(&self) -> bool {
        let mut failing = self.results.iter().zip(self.states).filter(|(result, _)| result.is_err());
        failing.all(|(_, state)| *state == MemberState::Out)
            && self.states.iter().filter(|state| **state == MemberState::Out).count() <= 1
    }

    fn is_flushed(&self, piece: ReleasedSpace) -> bool {
        self.results[self.core.member_of(piece)].is_ok()
    }

    /// Whether everything in an extent is durable on each member from which it may be read again.
    fn holds(&self, extent: &MappedExtent) -> bool {
        match extent {
            MappedExtent::Plain(plain) => {
                self.holds_both(ReleasedSpace::Slab(plain.slab), plain.copy.map(ReleasedSpace::Slab))
            }
            MappedExtent::Packed(packed) => packed.stored().all(|(chunk, _)| {
                let mut pieces = packed.pieces_of(chunk);
                pieces.next().is_none_or(|first| self.holds_both(first, pieces.next()))
            }),
        }
    }

    fn holds_both(&self, first: ReleasedSpace, second: Option<ReleasedSpace>) -> bool {
        let Some(second) = second else { return self.is_flushed(first) };
        let state = |piece| self.states[self.core.member_of(piece)];
        let pair = [first, second];
        let one_lasts = pair.into_iter().any(|p| self.is_flushed(p) && state(p) == MemberState::InUse);
        // One durable copy is not enough while the other one is read: a power cut may make that old again.
        let none_is_old = pair.into_iter().all(|p| self.is_flushed(p) || state(p) == MemberState::Out);
        one_lasts && (none_is_old || is_planted(PlantedBug::FlushedWithOneCopy))
    }
}
