//! What an administrator does to a pool that is in use.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use underlay_volume::VolumePool;
use underlay_volume::pool::{MemberState, SnapshotAccess};

use super::unfinished::UnfinishedCommand;
use super::{BLOCK, VolumesRig};
use crate::script::ScriptStep;
use crate::user::DeviceUser;

const MAX_SNAPSHOTS: usize = 4;

impl VolumesRig {
    /// Does something to the pool in a task of its server.
    pub(super) fn administer(&mut self, act: impl FnOnce(&VolumePool, usize) + Send + 'static) {
        if self.serves_other {
            return;
        }
        let Some(pool) = self.pool() else { return };
        let members = self.disks.len();
        let task = self.world.spawn(self.server.process, move || act(&pool, members));
        task.expect("a thread can be had");
    }

    /// A member goes, and may lose its power later if everything is there twice: for an only copy nothing can be
    /// promised.
    pub(super) fn pull_out(&mut self, member: u32) {
        let Some(pool) = self.pool().filter(|_| !self.serves_other) else { return };
        let is_whole = pool.list().iter().all(|volume| volume.mirror && !volume.degraded);
        self.pulled_out = is_whole.then_some(member as usize % self.disks.len());
        self.faults.strike(&ScriptStep::Vanish { member }, &self.events, false);
    }

    /// Only of a member that the pool has left out: of one that is back before anybody missed it nobody could tell that
    /// it has lost something. Nor where a disk lied: what it lost then may have been flushed.
    pub(super) fn lose_power(&mut self, member: u32) {
        let has_lied = self.events.flushes_are_void.load(Ordering::Relaxed);
        let Some(pool) = self.pool().filter(|_| !self.serves_other && !has_lied) else { return };
        let index = member as usize % self.disks.len();
        if self.pulled_out == Some(index) && pool.info().members[index].state == MemberState::Out {
            self.disks[index].lose_power();
        }
    }

    fn begin(&self, command: UnfinishedCommand) -> impl FnOnce() + Send + 'static {
        let is_same = {
            let name = command.name().to_owned();
            move |other: &UnfinishedCommand| other.name() == name
        };
        self.unfinished().push(command);
        let unfinished = Arc::clone(&self.unfinished);
        move || unfinished.lock().retain(|one| !is_same(one))
    }

    fn is_being_changed(&self, name: &str) -> bool {
        self.unfinished().iter().any(|one| one.name() == name)
    }

    pub(super) fn snapshot(&mut self, volume: u32, writable: bool) {
        let Some(source) = self.user(volume) else { return };
        let snapshots = self.known().len().saturating_sub(self.setup.volumes.len());
        if snapshots >= MAX_SNAPSHOTS || self.is_being_changed(&source.name) || self.pool().is_none() {
            return;
        }
        self.snapshots += 1;
        let (kind, access) =
            if writable { ("copy", SnapshotAccess::Writable) } else { ("frozen", SnapshotAccess::ReadOnly) };
        let name = format!("{kind}-{}", self.snapshots);
        let began = self.events.next();
        source.with_model(|model| model.begin_snapshot(began));
        let end = self.begin(UnfinishedCommand::Snapshot {
            name: name.clone(),
            began,
            source: Arc::clone(&source),
            model: None,
        });
        let (events, users) = (Arc::clone(&self.events), Arc::clone(&self.known));
        let has_lost = Arc::clone(&self.has_lost);
        let unfinished = Arc::clone(&self.unfinished);
        self.administer(move |pool, _| {
            let outcome = pool.snapshot(&source.name, &name, access);
            if outcome.is_err() && pool.volume(&name).is_ok() {
                // It is there, and may be gone when the pool is opened again: nobody uses it until then. What it holds
                // is what its source may have held by now.
                let failed = events.next();
                let mut all = unfinished.lock();
                if let Some(one) = all.iter_mut().find(|one| one.name() == name) {
                    one.stays_as_of(failed, has_lost.load(Ordering::Relaxed));
                }
                return;
            }
            if outcome.is_ok() {
                let ended = events.next();
                let has_lost = has_lost.load(Ordering::Relaxed);
                let model = source.with_model(|model| model.snapshot_at_server(began, ended, has_lost));
                let user = DeviceUser::new(&name, &events, model);
                users.lock().insert(name, user);
            }
            source.with_model(|model| model.end_snapshot(began));
            end();
        });
    }

    pub(super) fn delete(&mut self, volume: u32) {
        let names: Vec<String> = self.known().keys().cloned().collect();
        let of_script = |name: &&String| !name.starts_with("volume-");
        let deletable: Vec<&String> = names.iter().filter(of_script).collect();
        let Some(index) = (volume as usize).checked_rem(deletable.len()) else { return };
        let name = deletable[index].clone();
        if self.is_being_changed(&name) || self.pool().is_none() {
            return;
        }
        let end = self.begin(UnfinishedCommand::Delete { name: name.clone() });
        let users = Arc::clone(&self.known);
        self.administer(move |pool, _| {
            if pool.delete(&name).is_ok() {
                users.lock().remove(&name);
                end();
            }
            // Else it is gone until the pool is opened again, and nobody knows whether for good.
        });
    }

    pub(super) fn resize(&mut self, volume: u32, blocks: u32) {
        // A host learns of it some time later, and until then it asks for what is not there.
        let Some(user) = self.user(volume).filter(|_| !self.setup.is_remote) else { return };
        if self.is_being_changed(&user.name) || self.is_read_only(volume) || self.pool().is_none() {
            return;
        }
        let name = user.name.clone();
        let end = self.begin(UnfinishedCommand::Resize { name: name.clone(), blocks });
        let events = Arc::clone(&self.events);
        // Before it begins: where it fails, a read that waited for it is answered before anybody here hears of that.
        let began = events.next();
        user.with_model(|model| model.begin_zeroing(blocks, began));
        self.administer(move |pool, _| {
            let _ = pool.resize(&name, u64::from(blocks) * BLOCK);
            let Ok(volume) = pool.volume(&name) else { return };
            let moment = events.next();
            let found = (volume.info().capacity_bytes / BLOCK) as u32;
            user.with_model(|model| {
                model.end(began, moment, false, false);
                model.resize(found);
            });
            end();
        });
    }
}
