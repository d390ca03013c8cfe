//! A pool of devices and the volumes that share it.
//!
//! | module | what it does |
//! | --- | --- |
//! | `label`, `opening` | where things are on the members; making a pool, opening one |
//! | `extent`, `extents`, `map` | what a volume's map says, and which of it the journal does not know yet |
//! | `record`, `log` | what the journal keeps |
//! | `unflushed`, `replay`, `host_memory` | what was answered and is not in the journal, over the end of a process |
//! | `space`, `discards`, `release` | which slabs and units are free, and how many maps share one; what members may forget |
//! | `member`, `unread`, `resync` | reading and writing one or two copies; members that fail and come back |
//! | `volume`, `plain`, `packed` | requests, on volumes that are stored as they are or compressed |
//! | `failed_flushes`, `flush_monitor`, `settle` | members whose last flush failed, over the end of a process |
//! | `claims`, `gate`, `intents`, `overwrite` | who may touch what at the same time |
//! | `flush` | what becomes durable when |

mod check;
mod claims;
mod core;
mod description;
mod discards;
pub mod extent;
mod extents;
mod failed_flushes;
mod flush;
mod flush_monitor;
mod gate;
mod host_memory;
mod intents;
pub mod label;
mod log;
mod map;
mod member;
mod opening;
mod overwrite;
mod packed;
mod plain;
pub mod record;
mod release;
mod replay;
mod resync;
mod settle;
mod space;
pub mod unflushed;
mod unread;
mod volume;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use underlay_sync::{MutexGuard, channel};

use underlay_storage::device::{
    BlockDevice, CompletionCallback, DeviceCompletion, DeviceError, DeviceRequest,
};

use self::core::{PoolCore, VOLUME_MAP_BYTES, VolumeCore};
use crate::rate::{RateLimiter, RateLimits};
pub use description::{
    CheckReport, MemberInfo, MemberState, PoolError, PoolInfo, PoolSettings, SnapshotAccess, VolumeInfo,
    VolumeSpec,
};
use extent::{BLOCK_BYTES, EXTENT_BYTES};
use extents::ExtentTable;
pub use host_memory::HostMemory;
use record::{PoolRecord, VolumeHeader};
pub use volume::VolumeHandle;

/// The most volumes that a pool has, snapshots included.
pub const MAX_VOLUMES: usize = 4096;

/// A pool; a handle: clones are the same pool.
///
/// What makes, changes or deletes volumes waits for devices: it must not be called from a request's completion.
#[derive(Clone)]
pub struct VolumePool {
    core: Arc<PoolCore>,
}

impl VolumePool {
    /// Opens the pool on its members, in the order in which it was made, or makes one on blank devices. Waits for
    /// the devices, so someone must be driving them. A member that can't be read is left out.
    ///
    /// # Errors
    /// When the members are not those of one pool, are too small, or the journal can't be read.
    pub fn open(members: Vec<Arc<dyn BlockDevice>>, settings: PoolSettings) -> Result<VolumePool, PoolError> {
        opening::open(members, settings).map(|core| VolumePool { core })
    }

    /// Whether there was no pool on the members before it was opened.
    pub fn is_new(&self) -> bool {
        self.core.is_new
    }

    fn admin(&self) -> Result<MutexGuard<'_, ()>, PoolError> {
        let admin = self.core.admin.lock();
        if self.core.closed.load(Ordering::Acquire) {
            return Err(PoolError::Device(DeviceError::Gone));
        }
        Ok(admin)
    }

    fn find(&self, name: &str) -> Result<Arc<VolumeCore>, PoolError> {
        let volumes = self.core.volumes.read();
        let found = volumes.values().find(|volume| volume.name() == name).cloned();
        found.ok_or_else(|| PoolError::NoVolume(name.into()))
    }

    fn handle(&self, volume: Arc<VolumeCore>) -> VolumeHandle {
        VolumeHandle { core: Arc::clone(&self.core), volume }
    }

    /// Makes an empty volume.
    ///
    /// # Errors
    /// When there is one of that name, or the pool can't have it.
    pub fn create(&self, name: &str, spec: &VolumeSpec) -> Result<VolumeHandle, PoolError> {
        let _admin = self.admin()?;
        check_capacity(spec.capacity_bytes)?;
        if let Some(problem) = spec.compress.and_then(|codec| codec.problem()) {
            return Err(PoolError::Codec(problem));
        }
        if spec.mirror && self.core.members.count_in_use() < 2 {
            return Err(PoolError::TooFewToMirror(self.core.members.count_in_use()));
        }
        self.check_new(name, VOLUME_MAP_BYTES)?;
        let header =
            VolumeHeader { name: name.into(), spec: *spec, access: SnapshotAccess::Writable, origin: None };
        let number = self.core.log.with_tables(|tables| tables.next_volume);
        let volume = self.core.new_volume(number, &header, &ExtentTable::default());
        self.core.log.append([PoolRecord::Volume { volume: number, header: Box::new(header) }]);
        self.insert(&volume);
        self.commit()?;
        Ok(self.handle(volume))
    }

    /// # Errors
    /// When there is no such volume.
    pub fn volume(&self, name: &str) -> Result<VolumeHandle, PoolError> {
        self.find(name).map(|volume| self.handle(volume))
    }

    /// By name.
    pub fn list(&self) -> Vec<VolumeInfo> {
        let mut list: Vec<VolumeInfo> =
            self.core.volumes().into_iter().map(|volume| self.handle(volume).info()).collect();
        list.sort_by(|a, b| a.name.cmp(&b.name));
        list
    }

    pub fn info(&self) -> PoolInfo {
        let free = self.core.space.free_slabs();
        let members = self.core.members.list.iter().zip(free).map(|(member, free)| MemberInfo {
            space_bytes: u64::from(member.label.slabs) * EXTENT_BYTES,
            free_bytes: u64::from(free) * EXTENT_BYTES,
            state: member.shown_state(),
        });
        let members: Vec<MemberInfo> = members.collect();
        PoolInfo {
            identity: self.core.identity,
            space_bytes: members.iter().map(|member| member.space_bytes).sum(),
            free_bytes: members.iter().map(|member| member.free_bytes).sum(),
            map_bytes: self.core.map_bytes(),
            map_limit_bytes: self.core.map_limit_bytes,
            journal_bytes: self.core.members.list[0].label.journal_bytes,
            journal_members: members.len().min(label::JOURNAL_MEMBERS),
            members,
        }
    }

    /// Makes a volume longer or shorter; shortening discards what lies behind the new end.
    ///
    /// # Errors
    /// When there is no such volume, or it can't be.
    pub fn resize(&self, name: &str, capacity_bytes: u64) -> Result<(), PoolError> {
        let _admin = self.admin()?;
        check_capacity(capacity_bytes)?;
        let volume = self.find(name)?;
        let old_bytes = volume.capacity_bytes.load(Ordering::Acquire);
        if volume.read_only && capacity_bytes != old_bytes {
            return Err(PoolError::Capacity {
                capacity_bytes,
                problem: "a read-only snapshot keeps its size",
            });
        }
        self.quietly(&volume, || {
            if capacity_bytes < old_bytes {
                let length_bytes = old_bytes - capacity_bytes;
                let discard = DeviceRequest::Discard { offset_bytes: capacity_bytes, length_bytes };
                wait(|done| self.handle(Arc::clone(&volume)).perform(discard, done))?;
                wait(|done| self.core.flush(Some(Arc::clone(&volume)), done))?;
            }
            let header = {
                let mut header = volume.header.write();
                header.spec.capacity_bytes = capacity_bytes;
                header.clone()
            };
            volume.capacity_bytes.store(capacity_bytes, Ordering::Release);
            self.core.log.append([PoolRecord::Volume { volume: volume.number, header: Box::new(header) }]);
            self.commit()
        })
    }

    /// Makes a volume with the content that another one has now, flushed or not. The two share what neither changes.
    ///
    /// # Errors
    /// When there is no such volume, there is one of that name, or the map has no room for another copy of it. When a
    /// device fails the snapshot may be there nevertheless: [`VolumePool::list`] shows it.
    pub fn snapshot(
        &self,
        source: &str,
        name: &str,
        access: SnapshotAccess,
    ) -> Result<VolumeHandle, PoolError> {
        let _admin = self.admin()?;
        let source = self.find(source)?;
        self.check_new(name, source.map.usage().map_bytes + VOLUME_MAP_BYTES)?;
        self.quietly(&source, || {
            // The journal's map of the source must be the one that is copied.
            wait(|done| self.core.flush(Some(Arc::clone(&source)), done))?;
            let extents = source.map.extents();
            let mut shared = Vec::new();
            for piece in extents.values().flat_map(extent::MappedExtent::pieces) {
                if !self.core.space.share(piece) {
                    self.core.release(shared);
                    return Err(PoolError::MapFull { limit_bytes: self.core.map_limit_bytes });
                }
                shared.push(piece);
            }
            let spec = source.header.read().spec;
            let header = VolumeHeader { name: name.into(), spec, access, origin: Some(source.number) };
            let number = self.core.log.with_tables(|tables| tables.next_volume);
            let volume = self.core.new_volume(number, &header, &extents);
            let header = Box::new(header);
            self.core.log.append([PoolRecord::Snapshot { source: source.number, volume: number, header }]);
            self.insert(&volume);
            self.commit()?;
            Ok(self.handle(volume))
        })
    }

    /// Deletes a volume. Requests to it are answered with `Gone` from now on; what it shares with snapshots stays.
    ///
    /// # Errors
    /// When there is no such volume, or a device fails; the volume is gone then until the pool is opened again.
    pub fn delete(&self, name: &str) -> Result<(), PoolError> {
        let _admin = self.admin()?;
        let volume = self.find(name)?;
        volume.gate.close();
        // A flush that has taken changes of it along is over after this one, however it ends. And if the process ends
        // before the journal knows that the volume is gone, it is there with everything that was answered.
        let _ = self.core.flush_and_wait();
        // Before it leaves the list: a flush that no longer finds the volume there frees the notes of its
        // changes, so it must commit the deletion too.
        self.core.log.append([PoolRecord::Delete { volume: volume.number }]);
        self.core.volumes.write().remove(&volume.number);
        for (_, done) in volume.gate.shut() {
            done(Err(DeviceError::Gone));
        }
        let changes = volume.map.capture();
        let mut pieces: Vec<_> =
            volume.map.extents().values().flat_map(extent::MappedExtent::pieces).collect();
        let owned = pieces.len() as u64;
        pieces.extend(changes.released);
        self.core.outstanding.releasing.fetch_add(owned, Ordering::AcqRel);
        self.core.release_after_commit(pieces);
        Ok(self.core.flush_and_wait()?)
    }

    /// # Errors
    /// When there is no such volume, or a device fails.
    pub fn set_limits(&self, name: &str, limits: RateLimits) -> Result<(), PoolError> {
        let _admin = self.admin()?;
        let volume = self.find(name)?;
        let header = {
            let mut header = volume.header.write();
            header.spec.limits = limits;
            header.clone()
        };
        *volume.limiter.lock() = RateLimiter::new(limits, self.core.clock.now());
        volume.limited.store(!limits.is_unlimited(), Ordering::Relaxed);
        self.core.log.append([PoolRecord::Volume { volume: volume.number, header: Box::new(header) }]);
        self.commit()
    }

    /// Makes everything durable that was written to any volume.
    ///
    /// # Errors
    /// When a device fails that has the only copy of something.
    pub fn flush(&self) -> Result<(), DeviceError> {
        self.core
            .volumes()
            .into_iter()
            .try_for_each(|volume| wait(|done| self.core.flush(Some(volume), done)).map(|_| ()))?;
        self.core.flush_and_wait()
    }

    /// Leaves a device out that is about to lose what it has not made durable: noted first, so that a process that
    /// opens the pool after a crash does not take it for up to date. False, and nothing has happened, where another one
    /// is out or it can't be noted.
    pub(crate) fn leave_out(&self, member: usize) -> bool {
        self.core.members.leave_out(member)
    }

    /// Asks both devices of the journal for a flush: one without power fails it, and its copy is no longer used.
    pub(crate) fn check_journal(&self) {
        if let Some(mirror) = &self.core.journal_mirror {
            let _ = mirror.execute(DeviceRequest::Flush);
        }
    }

    /// Whether both copies of the journal are up to date.
    pub(crate) fn journal_is_whole(&self) -> bool {
        self.core.journal_mirror.as_ref().is_none_or(|mirror| mirror.health().is_whole())
    }

    /// Compares the maps, the journal's tables and the space. Requests wait meanwhile.
    ///
    /// # Errors
    /// When the pool can't be flushed: what is not in the journal can't be compared with it.
    pub fn check(&self) -> Result<CheckReport, PoolError> {
        let _admin = self.admin()?;
        self.core.check()
    }

    /// Brings a member that was left out up to date, with what mirrored volumes keep on it, and uses it again. What is
    /// there only once gets its second copy.
    ///
    /// # Errors
    /// When the member still fails, or there is no space for second copies.
    pub fn resync(&self, member: usize) -> Result<(), PoolError> {
        let _admin = self.admin()?;
        self.core.resync(member)
    }

    /// Flushes, writes a checkpoint, so that the next opening is quick, and ends the pool's thread. Every later request
    /// is answered with `Gone`.
    ///
    /// # Errors
    /// When a device fails. The pool is closed nevertheless.
    pub fn close(&self) -> Result<(), PoolError> {
        let _admin = self.admin()?;
        self.core.closed.store(true, Ordering::Release);
        // First those that wait for a limit: they are let in at once, and the gates below wait for them.
        self.core.timer.end();
        for volume in self.core.volumes() {
            volume.gate.close();
            for (_, done) in volume.gate.shut() {
                done(Err(DeviceError::Gone));
            }
        }
        self.flush()?;
        // Everything is durable on each member in use, so no copies will have to be made alike.
        self.core.clear_quiet(u64::MAX);
        self.core.log.checkpoint_and_wait()?;
        self.core.outstanding.unflushed.end();
        Ok(())
    }

    fn check_new(&self, name: &str, map_bytes: u64) -> Result<(), PoolError> {
        let first = name.bytes().next().is_some_and(|byte| byte.is_ascii_alphanumeric());
        let rest = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte));
        if !first || !rest || name.len() > 64 {
            return Err(PoolError::Name(name.into()));
        }
        if self.find(name).is_ok() {
            return Err(PoolError::Exists(name.into()));
        }
        if self.core.volumes().len() >= MAX_VOLUMES {
            return Err(PoolError::TooManyVolumes(MAX_VOLUMES));
        }
        let limit_bytes = self.core.map_limit_bytes;
        if self.core.map_bytes() + map_bytes > limit_bytes {
            return Err(PoolError::MapFull { limit_bytes });
        }
        Ok(())
    }

    fn insert(&self, volume: &Arc<VolumeCore>) {
        let mut volumes = self.core.volumes.write();
        volumes.insert(volume.number, Arc::clone(volume));
    }

    fn commit(&self) -> Result<(), PoolError> {
        let (sender, receiver) = channel();
        self.core.log.commit(Box::new(move |result| {
            let _ = sender.send(result);
        }));
        Ok(receiver.recv().unwrap_or(Err(DeviceError::Gone))?)
    }

    /// Does something to a volume while no request is in flight on it.
    fn quietly<T>(
        &self,
        volume: &Arc<VolumeCore>,
        act: impl FnOnce() -> Result<T, PoolError>,
    ) -> Result<T, PoolError> {
        volume.gate.close();
        let result = act();
        let handle = self.handle(Arc::clone(volume));
        for (request, done) in volume.gate.open() {
            handle.enter(request, done);
        }
        result
    }
}

fn check_capacity(capacity_bytes: u64) -> Result<(), PoolError> {
    let problem = if capacity_bytes == 0 {
        "it must have at least one block of 4096 bytes"
    } else if !capacity_bytes.is_multiple_of(BLOCK_BYTES) {
        "it must be a multiple of 4096 bytes"
    } else if capacity_bytes > u64::from(u32::MAX) * EXTENT_BYTES {
        "a volume has at most 1 PiB"
    } else {
        return Ok(());
    };
    Err(PoolError::Capacity { capacity_bytes, problem })
}

fn wait(ask: impl FnOnce(CompletionCallback)) -> DeviceCompletion {
    let (sender, receiver) = channel();
    ask(Box::new(move |completion| {
        let _ = sender.send(completion);
    }));
    receiver.recv().unwrap_or(Err(DeviceError::Gone))
}
