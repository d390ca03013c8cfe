//! Faults of disks, as steps of a script name them.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::disk::Disk;
use crate::script::Step;
use crate::user::Events;

pub struct Faults {
    disks: Vec<Disk>,
}

impl Faults {
    pub fn new(disks: &[Disk]) -> Faults {
        Faults { disks: disks.to_vec() }
    }

    fn disk(&self, member: u32) -> &Disk {
        &self.disks[member as usize % self.disks.len()]
    }

    /// Does nothing for a step that is no fault of a disk.
    pub fn strike(&self, step: &Step, events: &Arc<Events>) {
        match *step {
            Step::Fail { member, what, count } => self.disk(member).fail(what, count.min(8)),
            Step::Vanish { member } => self.disk(member).vanish(),
            Step::Return { member } => self.disk(member).come_back(),
            Step::Slow { member, factor } => self.disk(member).set_slow(factor.min(1000)),
            Step::Lie { member } => {
                events.flushes_are_void.store(true, Ordering::Relaxed);
                self.disk(member).set_lies(true);
            }
            _ => {}
        }
    }

    pub fn heal(&self) {
        self.disks.iter().for_each(Disk::heal);
    }
}

/// A disk that lied has lost its power: what it had answered for is anywhere.
pub fn power_lost(events: &Events) {
    if events.flushes_are_void.load(Ordering::Relaxed) {
        events.anything_goes.store(true, Ordering::Relaxed);
    }
}
