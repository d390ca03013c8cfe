//! Which of a mirror's members are in, and which regions may differ between them.

use std::collections::HashMap;

use super::state::MirrorSnapshot;
use crate::device::DeviceError;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MemberRole {
    InSync,
    /// Someone may be looking whether it is there again.
    Out {
        looking: bool,
    },
    Resyncing,
}

pub(super) struct MirrorState {
    pub(super) roles: Vec<MemberRole>,
    /// By member: how often it was left out. Earlier attempts for it are void.
    pub(super) attempts: Vec<u64>,
    pub(super) kept: MirrorSnapshot,
    pub(super) regions: HashMap<u32, DirtyRegion>,
    /// Counts changes of `kept`.
    pub(super) version: u64,
    /// Up to which change the journals of all members in use have it.
    pub(super) persisted: u64,
    pub(super) persisting: bool,
    /// The last change of who is in and who is out.
    pub(super) membership: u64,
    pub(super) waiters: Vec<(u64, PersistCallback)>,
    /// Counts writes as they end.
    pub(super) writes: u64,
    /// The journal of the last member with all data failed, perhaps by a flush that took written data with it. The
    /// next flush has to report it.
    pub(super) unheard: Option<DeviceError>,
    /// Which one that is.
    pub(super) unheard_number: u64,
}

/// Called once the journals have a change, or can't have it.
pub(super) type PersistCallback = Box<dyn FnOnce(Result<(), DeviceError>) + Send>;

/// A region that is marked.
#[derive(Clone, Copy, Default)]
pub(super) struct DirtyRegion {
    /// The change that marked it.
    marked: u64,
    writing: u32,
    last_write: u64,
}

impl MirrorState {
    /// Marks regions, and says which change must be persisted before they are written.
    pub(super) fn mark(&mut self, regions: std::ops::Range<u32>) -> u64 {
        let mut needed = self.membership;
        for number in regions {
            let version = self.version;
            let region = self
                .regions
                .entry(number)
                .or_insert(DirtyRegion { marked: version + 1, ..DirtyRegion::default() });
            if region.marked > version {
                self.version = region.marked;
                self.kept.marked.insert(number);
            }
            region.writing += 1;
            needed = needed.max(region.marked);
        }
        needed
    }

    pub(super) fn written(&mut self, regions: std::ops::Range<u32>) {
        self.writes += 1;
        for number in regions {
            if let Some(region) = self.regions.get_mut(&number) {
                region.writing -= 1;
                region.last_write = self.writes;
            }
        }
    }

    /// A flush that began when `writes` writes had ended is over: most of what it covers needs no mark.
    pub(super) fn flushed(&mut self, writes: u64, marked_regions: usize) {
        if self.regions.len() <= marked_regions {
            return;
        }
        // A member's missed writes are noted beside the marks.
        let snapshot = &mut self.kept;
        self.regions.retain(|number, region| {
            let needed = region.writing > 0 || region.last_write > writes;
            if !needed {
                snapshot.marked.remove(number);
                for (missed, out) in snapshot.missed.iter_mut().zip(&snapshot.out) {
                    if *out {
                        missed.insert(*number);
                    }
                }
            }
            needed
        });
        self.version += 1;
    }

    pub(super) fn is_resyncing(&self, index: usize, attempt: u64) -> bool {
        self.roles[index] == MemberRole::Resyncing && self.attempts[index] == attempt
    }

    /// Leaves a member out, unless it is the last one with all data. It has missed all unflushed writes.
    ///
    /// What the last one failed it may lack, and those that are being brought up to date from it may have it:
    /// they begin anew, or they would be taken for alike.
    pub(super) fn leave_out(&mut self, index: usize) -> bool {
        if matches!(self.roles[index], MemberRole::Out { .. }) {
            return true;
        }
        let others =
            self.roles.iter().enumerate().filter(|(i, role)| *i != index && **role == MemberRole::InSync);
        if self.roles[index] == MemberRole::InSync && others.count() == 0 {
            for other in 0..self.roles.len() {
                if self.roles[other] == MemberRole::Resyncing {
                    self.put_out(other);
                }
            }
            return false;
        }
        self.put_out(index);
        true
    }

    fn put_out(&mut self, index: usize) {
        self.roles[index] = MemberRole::Out { looking: false };
        self.attempts[index] += 1;
        self.kept.out[index] = true;
        let marked = self.kept.marked.clone();
        self.kept.missed[index].extend(marked);
        // More than an opening adds: a member that has not heard that it is out, and was opened alone since, must not
        // look as new as those who know better.
        self.kept.epoch += 2;
        self.version += 1;
        self.membership = self.version;
    }
}
