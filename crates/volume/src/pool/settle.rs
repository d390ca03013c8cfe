//! Writing again what members owe whose last flush has failed.

use std::sync::Arc;

use underlay_storage::device::DeviceError;

use super::core::PoolCore;
use super::description::{MemberState, PoolError};
use super::extent::{MappedExtent, Unit, first_unit, mask};
use super::member::ExtentPlaces;
use super::plain::copy_to;

impl PoolCore {
    /// At opening: writes again what is on members that could not be flushed. Where one still fails
    /// the pool opens nevertheless, for the sake of what is elsewhere; flushes of what is on this one fail until a
    /// resync or another opening has made up for it.
    pub(super) fn settle_all(self: &Arc<Self>) {
        for index in 0..self.members.list.len() {
            let _ = self.settle(index);
        }
    }

    /// Writes again what a member owes, if it owes anything.
    ///
    /// # Errors
    /// When it still fails.
    pub(super) fn settle(self: &Arc<Self>, index: usize) -> Result<(), PoolError> {
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
        member.doubt.settle();
        Ok(())
    }

    /// Each part of an extent that is on this member: where to read it, where it is, and which blocks from there on it
    /// has.
    fn runs_on(&self, index: usize, extent: &MappedExtent) -> Vec<(Unit, Unit, u64)> {
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
            MappedExtent::Plain(plain) => {
                both(first_unit(plain.slab), plain.copy.map(first_unit), plain.valid).collect()
            }
            MappedExtent::Packed(packed) => packed
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
        copy_to(self, ExtentPlaces { first: from, second: None }, unit, blocks, move |copied| match copied {
            Ok(()) => next.write_again(runs, done),
            Err(error) => done(Err(error)),
        });
    }
}
