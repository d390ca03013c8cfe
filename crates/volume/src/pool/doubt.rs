//! Members whose last flush has failed: what was written to them before may be in a cache alone, for good.

mod kept;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use underlay_storage::device::{BlockDevice, Completion, DeviceError, Done, Geometry, Request};
use underlay_sync::Mutex;

use self::kept::Kept;
use super::core::Core;
use super::description::{MemberState, PoolError};
use super::extent::{Extent, Unit, first_unit, mask};
use super::map::Outstanding;
use super::member::Places;
use super::plain::copy_to;
use super::unflushed::HostMemory;

/// What is known about the flushes of one member.
#[derive(Default)]
pub struct Doubt {
    /// What could not be made durable, by this process or by one before it, has yet to be written again.
    owes: AtomicBool,
    /// How many have failed.
    failures: AtomicU64,
}

impl Doubt {
    /// Whether a flush of the member would answer for what it may never have been given.
    pub fn owes(&self) -> bool {
        self.owes.load(Ordering::Acquire)
    }
}

/// Of all members of a pool.
#[derive(Default)]
pub struct Doubts {
    list: Mutex<Vec<Arc<Doubt>>>,
    kept: Mutex<Option<Kept>>,
}

impl Doubts {
    /// Keeps them from now on. Whoever was in doubt owes what it has.
    ///
    /// # Errors
    /// When they can't be kept.
    pub fn begin(&self, memory: Option<&HostMemory>, identity: u64, members: usize) -> io::Result<()> {
        let kept = memory.map(|memory| Kept::open(memory, identity)).transpose()?;
        let doubt = |member: usize| {
            let owes = kept.as_ref().is_some_and(|kept| kept.has(member as u8));
            Arc::new(Doubt { owes: AtomicBool::new(owes), ..Doubt::default() })
        };
        *self.list.lock() = (0..members).map(doubt).collect();
        *self.kept.lock() = kept;
        Ok(())
    }

    /// By member.
    pub fn all(&self) -> Vec<Arc<Doubt>> {
        self.list.lock().clone()
    }

    fn set(&self, member: u8, is_doubtful: bool) {
        if let Some(kept) = self.kept.lock().as_mut() {
            // Where it can't be written changes of the maps can't be noted either: they fail.
            let _ = kept.set(member, is_doubtful);
        }
    }
}

/// Keeps beside the journal that a flush of the member has failed, before anybody else hears of it.
///
/// The next process finds in its notes where data is that this one could not make durable. Linux takes the pages for clean, so
/// it reads them and its flush succeeds: unless it writes them again, a power cut leaves a map that points to what was never
/// written.
pub struct Witness {
    device: Arc<dyn BlockDevice>,
    member: u8,
    outstanding: Arc<Outstanding>,
    doubt: Arc<Doubt>,
}

impl Witness {
    pub fn new(
        device: Arc<dyn BlockDevice>,
        member: u8,
        doubt: Arc<Doubt>,
        outstanding: &Arc<Outstanding>,
    ) -> Witness {
        Witness { device, member, outstanding: Arc::clone(outstanding), doubt }
    }
}

impl BlockDevice for Witness {
    fn geometry(&self) -> Geometry {
        self.device.geometry()
    }

    fn submit(&self, request: Request, done: Done) {
        let is_flush = matches!(request, Request::Flush);
        // A forced write is a flush as well on a device that has no other way to force it.
        if !is_flush && !matches!(request, Request::Write { fua: true, .. }) {
            return self.device.submit(request, done);
        }
        let (member, outstanding) = (self.member, Arc::clone(&self.outstanding));
        let doubt = Arc::clone(&self.doubt);
        // What was written again after the flush began, and what another one has lost meanwhile, it does not cover.
        let (owed, failures) = (doubt.owes(), doubt.failures.load(Ordering::SeqCst));
        let answered = move |completion: Completion| {
            if completion.is_err() {
                doubt.failures.fetch_add(1, Ordering::SeqCst);
                outstanding.doubts.set(member, true);
            } else if is_flush && !owed && doubt.failures.load(Ordering::SeqCst) == failures {
                outstanding.doubts.set(member, false);
            }
            done(completion);
        };
        self.device.submit(request, Box::new(answered));
    }
}

impl Core {
    /// At opening: writes again what is on members that could not be flushed. Where one still fails
    /// the pool opens nevertheless, for the sake of what is elsewhere; flushes of what is on this one fail until a resync or
    /// another opening has made up for it.
    pub fn settle_all(self: &Arc<Self>) {
        for index in 0..self.members.list.len() {
            let _ = self.settle(index);
        }
    }

    /// Writes again what a member owes, if it owes anything.
    ///
    /// # Errors
    /// When it still fails.
    pub fn settle(self: &Arc<Self>, index: usize) -> Result<(), PoolError> {
        let Some(member) = self.members.list.get(index).filter(|member| member.doubt.owes()) else {
            return Ok(());
        };
        for volume in self.volumes() {
            // All of it: what was written over in place since the last flush is in no note.
            for extent in volume.map.mapped_in(0..u32::MAX) {
                let written = volume.wait_on(self, extent, move |core, _, mapped, done| match mapped {
                    Some(mapped) => core.write_again(core.runs_on(index, &mapped), done),
                    None => done(Ok(())),
                });
                written.map_err(|error| PoolError::MemberFails(index, error))?;
            }
        }
        member.doubt.owes.store(false, Ordering::Release);
        Ok(())
    }

    /// Each part of an extent that is on this member: where to read it, where it is, and which blocks from there on it has.
    fn runs_on(&self, index: usize, extent: &Extent) -> Vec<(Unit, Unit, u64)> {
        let run = |unit: Unit, other: Option<Unit>, blocks: u64| {
            let other = other.map(|unit| (unit, self.members.index_of(unit)));
            // A copy on a member that is out is not used before it is brought up to date.
            let is_out = self.members.list[index].state() == MemberState::Out;
            if self.members.index_of(unit) != index || (other.is_some() && is_out) {
                return None;
            }
            // What a cache had for clean it may have dropped: the other copy is the better one.
            let is_sound =
                |member: &usize| self.members.is_read(*member) && !self.members.list[*member].doubt.owes();
            let from = other.filter(|(_, member)| is_sound(member)).map_or(unit, |(unit, _)| unit);
            Some((from, unit, blocks))
        };
        let both = |first: Unit, second: Option<Unit>, blocks: u64| {
            let second_run = second.and_then(|second| run(second, Some(first), blocks));
            run(first, second, blocks).into_iter().chain(second_run)
        };
        match extent {
            Extent::Plain(plain) => {
                both(first_unit(plain.slab), plain.copy.map(first_unit), plain.valid).collect()
            }
            Extent::Packed(packed) => packed
                .stored()
                .flat_map(|(chunk, stored)| both(stored.unit(), packed.copy(chunk), mask(0, stored.units())))
                .collect(),
        }
    }

    /// Writes runs again, one after the other.
    fn write_again(
        self: &Arc<Self>,
        mut runs: Vec<(Unit, Unit, u64)>,
        done: Box<dyn FnOnce(Result<(), DeviceError>) + Send>,
    ) {
        let Some((from, unit, blocks)) = runs.pop() else { return done(Ok(())) };
        let next = Arc::clone(self);
        copy_to(self, Places { first: from, second: None }, unit, blocks, move |copied| match copied {
            Ok(()) => next.write_again(runs, done),
            Err(error) => done(Err(error)),
        });
    }
}
