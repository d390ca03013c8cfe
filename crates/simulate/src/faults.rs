//! Faults of disks, as steps of a script name them.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use underlay_sync::simulation::TaskGroup;

use crate::disk::{FailurePoint, SimulatedDisk};
use crate::script::ScriptStep;
use crate::user::UserEvents;

/// Strikes disks, within what is promised.
///
/// One combination is left out, because nothing can be promised for it: of disks that are mirrored, one goes out
/// without hearing of it, and is afterwards the only one that can be read when the mirror is opened. Its old content is
/// what there is then.
pub(crate) struct FaultInjector {
    disks: Vec<SimulatedDisk>,
    /// Those whose mirror has no other witness.
    mirrored: Range<usize>,
    /// Disks that may have been left out.
    suspects: RefCell<BTreeSet<usize>>,
}

impl FaultInjector {
    pub(crate) fn new(disks: &[SimulatedDisk], mirrored: Range<usize>) -> FaultInjector {
        FaultInjector { disks: disks.to_vec(), mirrored, suspects: RefCell::default() }
    }

    fn index(&self, member: u32) -> usize {
        member as usize % self.disks.len()
    }

    fn has_other_suspect(&self, disk: usize) -> bool {
        self.suspects.borrow().iter().any(|other| *other != disk && self.mirrored.contains(other))
    }

    /// Before a mirror is opened: a disk that can't be used is the only one that anything is the matter with.
    pub(crate) fn prepare_opening(&self) {
        for index in self.mirrored.clone() {
            if self.disks[index].is_unusable() {
                if self.has_other_suspect(index) {
                    self.disks[index].make_usable();
                } else {
                    self.suspects.borrow_mut().insert(index);
                }
            }
        }
    }

    /// Does nothing for a step that is no fault of a disk.
    pub(crate) fn strike(&self, step: &ScriptStep, events: &Arc<UserEvents>, is_opening: bool) {
        let may_hide =
            |index: usize| !(is_opening && self.mirrored.contains(&index) && self.has_other_suspect(index));
        match *step {
            ScriptStep::Fail { member, what: point, count } => {
                let index = self.index(member);
                if may_hide(index) {
                    if point != FailurePoint::Read || is_opening {
                        self.suspects.borrow_mut().insert(index);
                    }
                    self.disks[index].fail(point, count.min(8));
                }
            }
            ScriptStep::Vanish { member } => {
                let index = self.index(member);
                if may_hide(index) {
                    self.suspects.borrow_mut().insert(index);
                    self.disks[index].vanish();
                }
            }
            ScriptStep::Return { member } => self.disks[self.index(member)].come_back(),
            ScriptStep::Slow { member, factor } => self.disks[self.index(member)].set_slow(factor.min(1000)),
            ScriptStep::Lie { member } => {
                events.flushes_are_void.store(true, Ordering::Relaxed);
                self.disks[self.index(member)].set_lies(true);
            }
            _ => {}
        }
    }

    /// The process that used the disks is over, with their power or without.
    pub(crate) fn crash(&self, process: TaskGroup, takes_power: bool, events: &UserEvents) {
        for disk in &self.disks {
            match takes_power {
                true => disk.cut_power(),
                false => disk.abandon(process),
            }
        }
        if takes_power {
            power_lost(events);
        }
    }

    pub(crate) fn heal(&self) {
        self.disks.iter().for_each(SimulatedDisk::heal);
    }
}

/// A disk that lied has lost its power: what it had answered for is anywhere.
pub(crate) fn power_lost(events: &UserEvents) {
    if events.flushes_are_void.load(Ordering::Relaxed) {
        events.anything_goes.store(true, Ordering::Relaxed);
    }
}
