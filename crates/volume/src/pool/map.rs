//! The map of one volume: which extents are where, which of them changed since the journal heard of it.
//!
//! A change is noted beside the journal before it is made, under the lock under which it is made.

use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use underlay_sync::planted::{PlantedBug, is_planted};
use underlay_sync::{Mutex, MutexGuard};

use underlay_storage::device::DeviceError;

use super::extent::{ExtentUsage, MappedExtent, PlainExtent, ReleasedSpace};
use super::extents::{BuildNumberHasher, ExtentTable};
use super::failed_flushes::FlushHistories;
use super::record::PoolRecord;
use super::unflushed::UnflushedNotes;

const SHARDS: usize = 32;

/// What the journal has yet to hear of, over all maps.
#[derive(Default)]
pub(super) struct OutstandingChanges {
    pub unflushed: UnflushedNotes,
    /// Pieces that maps no longer point to and that a flush has yet to give back.
    pub releasing: AtomicU64,
    pub doubts: FlushHistories,
}

#[derive(Default)]
pub(super) struct VolumeMap {
    /// The number of the volume.
    volume: u32,
    outstanding: Arc<OutstandingChanges>,
    shards: [Mutex<MapShard>; SHARDS],
    used_bytes: AtomicU64,
    stored_bytes: AtomicU64,
    map_bytes: AtomicU64,
    single: AtomicU64,
}

#[derive(Default)]
struct MapShard {
    extents: ExtentTable,
    /// Changed since the last [`VolumeMap::capture`].
    dirty: HashSet<u32, BuildNumberHasher>,
    /// No longer pointed to, since then.
    released: Vec<ReleasedSpace>,
}

/// What a flush takes along of one volume.
#[derive(Default)]
pub(super) struct MapChanges {
    pub extents: Vec<(u32, Option<MappedExtent>)>,
    pub released: Vec<ReleasedSpace>,
}

impl VolumeMap {
    pub(super) fn new(
        volume: u32,
        extents: &ExtentTable,
        outstanding: &Arc<OutstandingChanges>,
    ) -> VolumeMap {
        let map = VolumeMap { volume, outstanding: Arc::clone(outstanding), ..VolumeMap::default() };
        for (index, extent) in extents {
            map.account(ExtentUsage::default(), extent.usage());
            map.shard(*index).extents.insert(*index, extent.clone());
        }
        map
    }

    fn shard(&self, index: u32) -> MutexGuard<'_, MapShard> {
        self.shards[index as usize % SHARDS].lock()
    }

    fn shards(&self) -> impl Iterator<Item = MutexGuard<'_, MapShard>> {
        self.shards.iter().map(|shard| shard.lock())
    }

    pub(super) fn get(&self, index: u32) -> Option<MappedExtent> {
        self.shard(index).extents.get(&index).cloned()
    }

    fn note(&self, index: u32, extent: Option<&MappedExtent>) -> Result<(), DeviceError> {
        if is_planted(PlantedBug::NoteSkipped) {
            return Ok(());
        }
        let record = PoolRecord::Extent { volume: self.volume, index, extent: extent.cloned() };
        self.outstanding.unflushed.note(&record)
    }

    /// Changes an extent. What it no longer points to is named by `change` and given back with the next capture.
    /// Nothing happens where `change` answers `None`.
    ///
    /// # Errors
    /// When the change can't be noted. It is not made then.
    pub(super) fn change(
        &self,
        index: u32,
        change: impl FnOnce(Option<&MappedExtent>) -> Option<(Option<MappedExtent>, Vec<ReleasedSpace>)>,
    ) -> Result<(), DeviceError> {
        let mut shard = self.shard(index);
        let shard = &mut *shard;
        let Some((extent, released)) = change(shard.extents.get(&index)) else { return Ok(()) };
        self.note(index, extent.as_ref())?;
        self.outstanding.releasing.fetch_add(released.len() as u64, Ordering::AcqRel);
        shard.released.extend(released);
        shard.dirty.insert(index);
        let new = extent.as_ref().map_or(ExtentUsage::default(), MappedExtent::usage);
        let old = match extent {
            Some(extent) => shard.extents.insert(index, extent),
            None => shard.extents.remove(&index),
        };
        self.account(old.map_or(ExtentUsage::default(), |old| old.usage()), new);
        Ok(())
    }

    /// Blocks of a plain extent were written.
    ///
    /// # Errors
    /// When the change can't be noted. It is not made then.
    pub(super) fn mark_valid(&self, index: u32, blocks: u64) -> Result<(), DeviceError> {
        self.change(index, |old| match old {
            Some(MappedExtent::Plain(plain)) if plain.valid & blocks != blocks => {
                let more = PlainExtent { valid: plain.valid | blocks, ..*plain };
                Some((Some(MappedExtent::Plain(more)), Vec::new()))
            }
            _ => None,
        })
    }

    /// Whether the journal has not heard of the extent's last change, as far as this map knows.
    pub(super) fn is_dirty(&self, index: u32) -> bool {
        self.shard(index).dirty.contains(&index)
    }

    /// Whether the journal has not heard of something, as far as this map knows.
    pub(super) fn has_dirty(&self) -> bool {
        self.shards().any(|shard| !shard.dirty.is_empty())
    }

    /// Everything that changed since the last time.
    pub(super) fn capture(&self) -> MapChanges {
        let mut changes = MapChanges::default();
        for mut shard in self.shards() {
            let shard = &mut *shard;
            changes.released.append(&mut shard.released);
            changes
                .extents
                .extend(shard.dirty.drain().map(|index| (index, shard.extents.get(&index).cloned())));
        }
        changes
    }

    /// What was captured did not get into the journal. It is noted again: older notes go when the flush is over.
    ///
    /// # Errors
    /// When it can't be noted. It is given back nevertheless.
    pub(super) fn give_back(&self, changes: MapChanges) -> Result<(), DeviceError> {
        let mut released = changes.released;
        let mut noted = Ok(());
        for (index, _) in changes.extents {
            let mut shard = self.shard(index);
            noted = noted.and_then(|()| self.note(index, shard.extents.get(&index)));
            shard.dirty.insert(index);
        }
        if !released.is_empty() {
            // Any shard will do: the next capture collects from all of them.
            self.shard(0).released.append(&mut released);
        }
        noted
    }

    /// Notes everything that the journal has not heard of.
    ///
    /// # Errors
    /// When it can't be written.
    pub(super) fn note_dirty(&self) -> Result<(), DeviceError> {
        self.shards().try_for_each(|shard| {
            shard.dirty.iter().try_for_each(|index| self.note(*index, shard.extents.get(index)))
        })
    }

    /// The extents that are mapped, of those in a range.
    pub(super) fn mapped_in(&self, range: Range<u32>) -> Vec<u32> {
        let length = u64::from(range.end.saturating_sub(range.start));
        let mut mapped: Vec<u32> = Vec::new();
        if length < 1024 {
            mapped.extend(range.filter(|index| self.shard(*index).extents.contains_key(index)));
        } else {
            for shard in self.shards() {
                mapped.extend(shard.extents.keys().copied().filter(|index| range.contains(index)));
            }
            mapped.sort_unstable();
        }
        mapped
    }

    /// A copy of everything. Packed extents are shared with it.
    pub(super) fn extents(&self) -> ExtentTable {
        let mut extents = ExtentTable::default();
        for shard in self.shards() {
            extents.extend(shard.extents.iter().map(|(index, extent)| (*index, extent.clone())));
        }
        extents
    }

    /// Whether there is an extent like that.
    pub(super) fn any(&self, like: impl Fn(&MappedExtent) -> bool) -> bool {
        self.shards().any(|shard| shard.extents.values().any(&like))
    }

    /// Whether there is a piece like that among those that were given up since the last [`VolumeMap::capture`].
    pub(super) fn any_released(&self, like: impl Fn(&ReleasedSpace) -> bool) -> bool {
        self.shards().any(|shard| shard.released.iter().any(&like))
    }

    pub(super) fn usage(&self) -> ExtentUsage {
        ExtentUsage {
            used_bytes: self.used_bytes.load(Ordering::Relaxed),
            stored_bytes: self.stored_bytes.load(Ordering::Relaxed),
            map_bytes: self.map_bytes.load(Ordering::Relaxed),
            single: self.single.load(Ordering::Relaxed),
        }
    }

    fn account(&self, old: ExtentUsage, new: ExtentUsage) {
        // Sums wrap around on the way, and are right in the end.
        let change = |sum: &AtomicU64, old: u64, new: u64| {
            if old != new {
                sum.fetch_add(new.wrapping_sub(old), Ordering::Relaxed);
            }
        };
        change(&self.used_bytes, old.used_bytes, new.used_bytes);
        change(&self.stored_bytes, old.stored_bytes, new.stored_bytes);
        change(&self.map_bytes, old.map_bytes, new.map_bytes);
        change(&self.single, old.single, new.single);
    }
}
