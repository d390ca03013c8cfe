//! Members whose last flush has failed: what was written to them before may be in a cache alone, for good.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use underlay_storage::device::{BlockDevice, Completion, DeviceError, Done, Geometry, Request};
use underlay_sync::channel;

use super::core::Core;
use super::description::MemberState;
use super::extent::{Extent, Piece, Unit, first_unit, mask};
use super::map::Outstanding;
use super::member::Places;
use super::plain::copy_to;
use super::record::Record;

/// Notes beside the journal that a flush of the member has failed, before anybody else hears of it.
///
/// The next process finds in its notes where data is that this one could not make durable. Linux takes the pages for clean, so
/// it reads them and its flush succeeds: unless it writes them again, a power cut leaves a map that points to what was never
/// written.
pub struct Witness {
    device: Arc<dyn BlockDevice>,
    member: u8,
    outstanding: Arc<Outstanding>,
    is_doubtful: Arc<AtomicBool>,
}

impl Witness {
    pub fn new(device: Arc<dyn BlockDevice>, member: u8, outstanding: &Arc<Outstanding>) -> Witness {
        let is_doubtful = Arc::new(AtomicBool::new(false));
        outstanding.doubtful.lock().push((member, Arc::clone(&is_doubtful)));
        Witness { device, member, outstanding: Arc::clone(outstanding), is_doubtful }
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
        let is_doubtful = Arc::clone(&self.is_doubtful);
        let answered = move |completion: Completion| {
            if completion.is_err() {
                is_doubtful.store(true, Ordering::SeqCst);
                // Where it can't be noted, changes of the maps can't be noted either.
                let _ = outstanding.unflushed.note(&Record::Doubtful { member });
            } else if is_flush {
                is_doubtful.store(false, Ordering::SeqCst);
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
        let doubtful = self.doubtful.lock();
        let mut members = doubtful.iter().filter(|(_, is_doubtful)| is_doubtful.load(Ordering::SeqCst));
        members.try_for_each(|(member, _)| self.unflushed.note(&Record::Doubtful { member: *member }))
    }
}

impl Core {
    /// Writes again, where it is, what an extent has on one of these members.
    ///
    /// # Errors
    /// When that fails for something that is nowhere else.
    pub fn write_again(
        self: &Arc<Self>,
        extent: &Extent,
        members: impl Fn(u8) -> bool,
    ) -> Result<(), DeviceError> {
        for (unit, blocks, has_copy) in runs_of(extent) {
            let index = self.members.index_of(unit);
            // A copy on a member that is out is not used before it is brought up to date.
            let is_void = has_copy && self.members.list[index].state() == MemberState::Out;
            if is_void || !members(index as u8) {
                continue;
            }
            let (sender, receiver) = channel();
            copy_to(self, Places { first: unit, second: None }, unit, blocks, move |copied| {
                let _ = sender.send(copied);
            });
            let copied = receiver.recv().unwrap_or(Err(DeviceError::Gone));
            if let Err(error) = copied
                && !(has_copy && self.members.leave_out(index))
            {
                return Err(error);
            }
        }
        Ok(())
    }
}

/// Where each part of an extent begins, which blocks from there on it has, and whether it is there twice.
fn runs_of(extent: &Extent) -> Vec<(Unit, u64, bool)> {
    match extent {
        Extent::Plain(plain) => {
            let slabs = std::iter::once(plain.slab).chain(plain.copy);
            slabs.map(|slab| (first_unit(slab), plain.valid, plain.copy.is_some())).collect()
        }
        Extent::Packed(packed) => {
            let of_chunk = |chunk: usize| {
                let has_copy = packed.copy(chunk).is_some();
                packed.pieces_of(chunk).filter_map(move |piece| match piece {
                    Piece::Run { unit, units } => Some((unit, mask(0, units), has_copy)),
                    Piece::Slab(_) => None,
                })
            };
            packed.stored().flat_map(|(chunk, _)| of_chunk(chunk)).collect()
        }
    }
}
