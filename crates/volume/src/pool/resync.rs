//! Bringing a member that was left out up to date.

use std::sync::Arc;
use std::time::Duration;
use underlay_sync::channel;
use underlay_sync::planted::{PlantedBug, is_planted};
use underlay_sync::thread;

use underlay_storage::device::{DeviceError, DeviceRequest};

use super::claims::{LockAccess, PartSet};
use super::core::{PoolCore, VolumeCore};
use super::description::{MemberState, PoolError};
use super::extent::{
    BLOCK_BYTES, BLOCKS, MappedExtent, PackedExtent, PlainExtent, ReleasedSpace, Unit, first_unit, mask,
};
use super::label::JOURNAL_MEMBERS;
use super::member::ExtentPlaces;
use super::plain::{copy_to, places};

/// How often the journal's mirror is asked to look for a member, and the pause in between.
const LOOKS: u32 = 10;
const PAUSE: Duration = Duration::from_millis(20);

fn journal_waits() -> DeviceError {
    let problem = "its copy of the journal can't be brought up to date; opening the pool tries again";
    DeviceError::Io(problem.into())
}

type CopyResult = Result<(), DeviceError>;

impl PoolCore {
    pub(super) fn resync(self: &Arc<Self>, index: usize) -> Result<(), PoolError> {
        let member = self.members.list.get(index).ok_or(PoolError::NoMember(index))?;
        // One that was never read since the opening shows its label by it.
        let probe = DeviceRequest::Read { offset_bytes: 0, buffer: vec![0; BLOCK_BYTES as usize] };
        member.device.execute(probe).map_err(|error| PoolError::MemberFails(index, error))?;
        self.settle(index)?;
        // That may be out by itself: a member may have failed the journal and nothing else.
        let journal = self.bring_back_journal(index);
        if member.state() == MemberState::InUse {
            self.make_whole()?;
            return journal;
        }
        journal.map_err(|error| match error {
            PoolError::JournalOnce => PoolError::MemberFails(index, journal_waits()),
            other => other,
        })?;
        // A volume whose deletion the journal has not heard of is on no list, and may be there again with the next
        // opening.
        self.flush_and_wait()?;
        if !self.members.change(index, MemberState::Out, MemberState::Resyncing) {
            return Ok(());
        }
        // From here on it gets every write, so what is copied stays right. It is flushed before it counts as
        // in use: a power cut must not make its copies old again.
        let copied = self.copy_all(index).and_then(|()| {
            member.device.execute(DeviceRequest::Flush)?;
            Ok(())
        });
        if let Err(error) = copied {
            self.members.change(index, MemberState::Resyncing, MemberState::Out);
            return Err(PoolError::NotResynced(index, error));
        }
        if !self.members.change(index, MemberState::Resyncing, MemberState::InUse) {
            let problem = DeviceError::Io("it failed again while it was brought up to date".into());
            return Err(PoolError::MemberFails(index, problem));
        }
        self.flush_and_wait()?;
        self.make_whole()
    }

    /// The journal's mirror looks after itself; this waits until it has.
    fn bring_back_journal(&self, index: usize) -> Result<(), PoolError> {
        let Some(mirror) = self.journal_mirror.as_ref().filter(|_| index < JOURNAL_MEMBERS) else {
            return Ok(());
        };
        let mut looks = 0;
        loop {
            // What it has to tell is for the journal's own flushes.
            mirror.look()?;
            let health = mirror.health();
            if health.is_whole() {
                return Ok(());
            }
            // While it is being brought up to date it may take its time.
            looks += u32::from(health.resyncing == 0);
            if looks > LOOKS {
                return Err(PoolError::JournalOnce);
            }
            thread::sleep(PAUSE);
        }
    }

    fn copy_all(self: &Arc<Self>, index: usize) -> CopyResult {
        for volume in self.volumes().into_iter().filter(|volume| volume.mirror) {
            for extent in volume.map.mapped_in(0..u32::MAX) {
                volume.wait_on(self, extent, move |core, _, mapped, done| match mapped {
                    Some(MappedExtent::Plain(plain)) => core.copy_plain(index, &plain, done),
                    Some(MappedExtent::Packed(packed)) => core.copy_packed(index, &packed, done),
                    None => done(Ok(())),
                })?;
            }
        }
        Ok(())
    }

    /// Everything in a mirrored volume that is there once gets its second copy.
    fn make_whole(self: &Arc<Self>) -> Result<(), PoolError> {
        for volume in
            self.volumes().into_iter().filter(|volume| volume.mirror && volume.map.usage().single > 0)
        {
            for extent in volume.map.mapped_in(0..u32::MAX) {
                volume.wait_on(self, extent, move |core, volume, mapped, done| match mapped {
                    Some(MappedExtent::Plain(plain)) if plain.copy.is_none() => {
                        core.second_plain(volume, extent, plain, done);
                    }
                    Some(MappedExtent::Packed(packed)) => core.second_packed(volume, extent, &packed, done),
                    _ => done(Ok(())),
                })?;
            }
        }
        Ok(self.flush_and_wait()?)
    }

    /// To the place that the member has for it; nothing where it has none.
    fn copy_plain(
        self: &Arc<Self>,
        index: usize,
        plain: &PlainExtent,
        done: impl FnOnce(CopyResult) + Send + 'static,
    ) {
        let slabs = [Some(plain.slab), plain.copy];
        let of_member = |slab: &u32| self.members.index_of(first_unit(*slab)) == index;
        match slabs {
            [Some(slab), Some(copy)] if of_member(&slab) || of_member(&copy) => {
                let (from, to) = if of_member(&slab) { (copy, slab) } else { (slab, copy) };
                match self.source(first_unit(from)) {
                    Ok(from) => copy_to(self, from, first_unit(to), plain.valid, done),
                    Err(error) => done(Err(error)),
                }
            }
            _ => done(Ok(())),
        }
    }

    /// Where to copy from: a member that is out as well has old data, which would take the place of better.
    fn source(&self, unit: Unit) -> Result<ExtentPlaces, DeviceError> {
        let index = self.members.index_of(unit);
        if self.members.is_read(index) || is_planted(PlantedBug::StaleCopyServed) {
            return Ok(ExtentPlaces { first: unit, second: None });
        }
        Err(DeviceError::Io(format!("member {index}, which has the other copy of something, is out as well")))
    }

    fn copy_packed(
        self: &Arc<Self>,
        index: usize,
        packed: &PackedExtent,
        done: impl FnOnce(CopyResult) + Send + 'static,
    ) {
        let mut runs: Vec<(Unit, Unit, u32)> = Vec::new();
        for (chunk, stored) in packed.stored() {
            let Some(copy) = packed.copy(chunk) else { continue };
            if self.members.index_of(copy) == index {
                runs.push((stored.unit(), copy, stored.units()));
            } else if self.members.index_of(stored.unit()) == index {
                runs.push((copy, stored.unit(), stored.units()));
            }
        }
        if let Some(error) = runs.iter().find_map(|(from, ..)| self.source(*from).err()) {
            return done(Err(error));
        }
        copy_runs(self, runs, done);
    }

    fn second_plain(
        self: &Arc<Self>,
        volume: &Arc<VolumeCore>,
        extent: u32,
        plain: PlainExtent,
        done: impl FnOnce(CopyResult) + Send + 'static,
    ) {
        let first = self.members.index_of(first_unit(plain.slab));
        // What snapshots share stays as it is: their maps would have to change with it.
        if self.space.is_shared(plain.slab) {
            return done(Ok(()));
        }
        let Some(copy) = self.space.take_slab(|member| member != first && self.members.takes_data(member))
        else {
            return done(Err(DeviceError::NoSpace));
        };
        let (core, volume) = (Arc::clone(self), Arc::clone(volume));
        copy_to(self, places(&plain, 0), first_unit(copy), plain.valid, move |copied| {
            let whole = MappedExtent::Plain(PlainExtent { copy: Some(copy), ..plain });
            let made = copied.and_then(|()| volume.map.change(extent, |_| Some((Some(whole), Vec::new()))));
            if made.is_err() {
                core.release([ReleasedSpace::Slab(copy)]);
            }
            done(made);
        });
    }

    fn second_packed(
        self: &Arc<Self>,
        volume: &Arc<VolumeCore>,
        extent: u32,
        packed: &Arc<PackedExtent>,
        done: impl FnOnce(CopyResult) + Send + 'static,
    ) {
        let mut runs: Vec<(usize, Unit, Unit, u32)> = Vec::new();
        for (chunk, stored) in packed.stored().filter(|(chunk, _)| packed.copy(*chunk).is_none()) {
            // The first copies may be on different members, so each chunk finds its place by itself.
            let first = self.members.index_of(stored.unit());
            let allowed = |member| member != first && self.members.takes_data(member);
            match self.space.take_runs(&[stored.units()], allowed) {
                Some(places) => {
                    runs.extend(places.first().map(|to| (chunk, stored.unit(), *to, stored.units())))
                }
                None => {
                    self.release(
                        runs.iter()
                            .map(|(_, _, unit, units)| ReleasedSpace::Run { unit: *unit, units: *units }),
                    );
                    return done(Err(DeviceError::NoSpace));
                }
            }
        }
        if runs.is_empty() {
            return done(Ok(()));
        }
        let (core, volume) = (Arc::clone(self), Arc::clone(volume));
        let copies = runs.iter().map(|(_, from, to, units)| (*from, *to, *units)).collect();
        let mut packed = PackedExtent::clone(packed);
        copy_runs(self, copies, move |copied| {
            for (chunk, _, to, _) in &runs {
                packed.set(*chunk, packed.chunks[*chunk], Some(*to));
            }
            let whole = MappedExtent::Packed(Arc::new(packed));
            let made = copied.and_then(|()| volume.map.change(extent, |_| Some((Some(whole), Vec::new()))));
            // The map has not changed then, and nothing points to what was taken.
            if made.is_err() {
                let piece = |(_, _, unit, units): &(usize, Unit, Unit, u32)| ReleasedSpace::Run {
                    unit: *unit,
                    units: *units,
                };
                core.release(runs.iter().map(piece));
            }
            done(made);
        });
    }

    pub(super) fn flush_and_wait(self: &Arc<Self>) -> Result<(), DeviceError> {
        let (sender, receiver) = channel();
        let tell = move |completion| {
            let _ = sender.send(completion);
        };
        self.flush(None, Box::new(tell));
        receiver.recv().unwrap_or(Err(DeviceError::Gone)).map(|_| ())
    }
}

/// Runs of units, each from one place to another.
fn copy_runs(
    core: &Arc<PoolCore>,
    mut runs: Vec<(Unit, Unit, u32)>,
    done: impl FnOnce(CopyResult) + Send + 'static,
) {
    let Some((from, to, units)) = runs.pop() else { return done(Ok(())) };
    debug_assert!(units <= BLOCKS);
    let (next, from) = (Arc::clone(core), ExtentPlaces { first: from, second: None });
    let done: Box<dyn FnOnce(CopyResult) + Send> = Box::new(done);
    copy_to(core, from, to, mask(0, units), move |copied| match copied {
        Ok(()) => copy_runs(&next, runs, done),
        Err(error) => done(Err(error)),
    });
}

type ExtentContinuation = Box<dyn FnOnce(CopyResult) + Send>;

impl VolumeCore {
    /// Does something to an extent while nobody else does, and waits for it.
    pub(super) fn wait_on(
        self: &Arc<Self>,
        core: &Arc<PoolCore>,
        extent: u32,
        act: impl FnOnce(&Arc<PoolCore>, &Arc<VolumeCore>, Option<MappedExtent>, ExtentContinuation)
        + Send
        + 'static,
    ) -> CopyResult {
        let (sender, receiver) = channel();
        let (core, volume) = (Arc::clone(core), Arc::clone(self));
        self.claims.claim(extent, PartSet(u64::MAX), LockAccess::Exclusive, move |claim| {
            let mapped = volume.map.get(extent);
            let done = move |copied| {
                drop(claim);
                let _ = sender.send(copied);
            };
            act(&core, &volume, mapped, Box::new(done));
        });
        receiver.recv().unwrap_or(Err(DeviceError::Gone))
    }
}
