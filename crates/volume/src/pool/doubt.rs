//! Members whose last flush has failed: what was written to them before may be in a cache alone, for good.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use underlay_storage::device::{BlockDevice, Completion, DeviceError, Done, Geometry, Request};

use super::core::Core;
use super::description::{MemberState, PoolError};
use super::extent::{Extent, Piece, Unit, first_unit, mask};
use super::map::Outstanding;
use super::member::Places;
use super::plain::copy_to;
use super::record::Record;

/// What is known about the flushes of one member.
#[derive(Default)]
pub struct Doubt {
    /// The last one has failed.
    is_failed: AtomicBool,
    /// A process before this one could not flush it, and what it wrote has yet to be written again.
    owes: AtomicBool,
}

impl Doubt {
    /// Whether a flush of the member would answer for what it may never have been given.
    pub fn owes(&self) -> bool {
        self.owes.load(Ordering::Acquire)
    }
}

/// Notes beside the journal that a flush of the member has failed, before anybody else hears of it.
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
    pub fn new(device: Arc<dyn BlockDevice>, member: u8, outstanding: &Arc<Outstanding>) -> Witness {
        let doubt = Arc::new(Doubt::default());
        outstanding.doubts.lock().push((member, Arc::clone(&doubt)));
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
        let answered = move |completion: Completion| {
            if completion.is_err() {
                doubt.is_failed.store(true, Ordering::SeqCst);
                // Where it can't be noted, changes of the maps can't be noted either.
                let _ = outstanding.unflushed.note(&Record::Doubtful { member });
            } else if is_flush {
                doubt.is_failed.store(false, Ordering::SeqCst);
            }
            done(completion);
        };
        self.device.submit(request, Box::new(answered));
    }
}

impl Outstanding {
    /// Notes again who is in doubt: what was noted before goes with the older file.
    ///
    /// # Errors
    /// When it can't be written.
    pub fn note_doubtful(&self) -> Result<(), DeviceError> {
        let doubts = self.doubts.lock();
        let is_doubtful = |doubt: &Doubt| doubt.owes() || doubt.is_failed.load(Ordering::SeqCst);
        let mut members = doubts.iter().filter(|(_, doubt)| is_doubtful(doubt));
        members.try_for_each(|(member, _)| self.unflushed.note(&Record::Doubtful { member: *member }))
    }
}

impl Core {
    /// At opening, of a member that the last process could not flush: writes again what is on it. Where the member still fails
    /// the pool opens nevertheless, for the sake of what is elsewhere; flushes of what is on this one fail until a resync or
    /// another opening has made up for it.
    pub fn settle_or_owe(self: &Arc<Self>, index: usize) {
        let Some(member) = self.members.list.get(index) else { return };
        member.doubt.owes.store(true, Ordering::Release);
        let _ = self.settle(index);
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

    /// Where each part of an extent begins that is on this member, and which blocks from there on it has.
    fn runs_on(&self, index: usize, extent: &Extent) -> Vec<(Unit, u64)> {
        // A copy on a member that is out is not used before it is brought up to date.
        let is_out = self.members.list[index].state() == MemberState::Out;
        let is_wanted =
            |unit: Unit, has_copy: bool| self.members.index_of(unit) == index && !(has_copy && is_out);
        match extent {
            Extent::Plain(plain) => {
                let units = std::iter::once(plain.slab).chain(plain.copy).map(first_unit);
                let wanted = units.filter(|unit| is_wanted(*unit, plain.copy.is_some()));
                wanted.map(|unit| (unit, plain.valid)).collect()
            }
            Extent::Packed(packed) => {
                let of_chunk = |chunk: usize| {
                    let has_copy = packed.copy(chunk).is_some();
                    packed.pieces_of(chunk).filter_map(move |piece| match piece {
                        Piece::Run { unit, units } => {
                            is_wanted(unit, has_copy).then(|| (unit, mask(0, units)))
                        }
                        Piece::Slab(_) => None,
                    })
                };
                packed.stored().flat_map(|(chunk, _)| of_chunk(chunk)).collect()
            }
        }
    }

    /// Writes runs again where they are, one after the other.
    fn write_again(
        self: &Arc<Self>,
        mut runs: Vec<(Unit, u64)>,
        done: Box<dyn FnOnce(Result<(), DeviceError>) + Send>,
    ) {
        let Some((unit, blocks)) = runs.pop() else { return done(Ok(())) };
        let next = Arc::clone(self);
        copy_to(self, Places { first: unit, second: None }, unit, blocks, move |copied| match copied {
            Ok(()) => next.write_again(runs, done),
            Err(error) => done(Err(error)),
        });
    }
}
