//! What all parts of a pool share.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use underlay_sync::{Mutex, RwLock};

use underlay_storage::clock::ModelClock;
use underlay_storage::device::{CompletionCallback, DeviceCompletion, DeviceError};
use underlay_storage::layers::compress::CompressionCodec;
use underlay_storage::layers::mirror::Mirror;
use underlay_storage::layers::workers::WorkerThreads;

use super::claims::{self, ExtentLocks};
use super::description::SnapshotAccess;
use super::discards::DiscardQueue;
use super::extent::{ReleasedSpace, first_unit};
use super::extents::ExtentTable;
use super::gate::RequestGate;
use super::intents::WriteIntents;
use super::log::PoolLog;
use super::map::{OutstandingChanges, VolumeMap};
use super::member::PoolMembers;
use super::record::VolumeHeader;
use super::space::SlabAllocator;
use crate::rate::{JobTimer, RateLimiter};

/// What a volume counts for in the map, beside its extents.
pub(super) const VOLUME_MAP_BYTES: u64 = 1024;

pub(super) struct PoolCore {
    pub identity: u64,
    pub members: Arc<PoolMembers>,
    pub space: SlabAllocator,
    pub discards: DiscardQueue,
    pub log: PoolLog,
    pub volumes: RwLock<BTreeMap<u32, Arc<VolumeCore>>>,
    pub flusher: Mutex<PoolFlusher>,
    /// Flushes so far.
    pub epoch: AtomicU64,
    pub outstanding: Arc<OutstandingChanges>,
    pub map_limit_bytes: u64,
    /// This opening has made it.
    pub is_new: bool,
    /// What keeps the journal on two members, where there are two.
    pub journal_mirror: Option<Arc<Mirror>>,
    pub timer: JobTimer,
    pub clock: Arc<dyn ModelClock>,
    pub workers: WorkerThreads,
    /// Held while volumes are made, changed or deleted.
    pub admin: Mutex<()>,
    pub closed: AtomicBool,
}

pub(super) struct VolumeCore {
    pub number: u32,
    pub identity: u64,
    pub header: RwLock<VolumeHeader>,
    pub capacity_bytes: AtomicU64,
    pub compress: Option<CompressionCodec>,
    pub mirror: bool,
    pub read_only: bool,
    pub map: VolumeMap,
    pub claims: Arc<ExtentLocks>,
    pub gate: RequestGate,
    pub intents: WriteIntents,
    pub limited: AtomicBool,
    pub limiter: Mutex<RateLimiter>,
}

/// One flush at a time, since the journal must get changes in order; those that come meanwhile share the next
/// one.
#[derive(Default)]
pub(super) struct PoolFlusher {
    pub flushing: bool,
    pub waiters: Vec<FlushWaiter>,
    /// What the maps of an uncommitted flush no longer point to.
    pub held: Vec<ReleasedSpace>,
    /// The last commit failed: something may be in the tables and not in the journal.
    pub uncommitted: bool,
}

pub(super) struct FlushWaiter {
    /// Whose data it is about; none for the map alone.
    pub volume: Option<Arc<VolumeCore>>,
    pub done: CompletionCallback,
}

impl PoolCore {
    pub(super) fn volumes(&self) -> Vec<Arc<VolumeCore>> {
        self.volumes.read().values().cloned().collect()
    }

    /// Of all volumes.
    pub(super) fn map_bytes(&self) -> u64 {
        let volumes = self.volumes.read();
        volumes.values().map(|volume| volume.map.usage().map_bytes + VOLUME_MAP_BYTES).sum()
    }

    pub(super) fn new_volume(
        &self,
        number: u32,
        header: &VolumeHeader,
        extents: &ExtentTable,
    ) -> Arc<VolumeCore> {
        let now = self.clock.now();
        Arc::new(VolumeCore {
            number,
            // Spread by 2^64 over the golden ratio, so that a part of it tells volumes apart as well. The
            // factor is odd, so no two volumes get the same identity.
            identity: (self.identity ^ u64::from(number)).wrapping_mul(0x9E37_79B9_7F4A_7C15),
            capacity_bytes: AtomicU64::new(header.spec.capacity_bytes),
            compress: header.spec.compress,
            mirror: header.spec.mirror,
            read_only: header.access == SnapshotAccess::ReadOnly,
            map: VolumeMap::new(number, extents, &self.outstanding),
            claims: claims::new(),
            gate: RequestGate::default(),
            intents: WriteIntents::default(),
            limited: AtomicBool::new(!header.spec.limits.is_unlimited()),
            limiter: Mutex::new(RateLimiter::new(header.spec.limits, now)),
            header: RwLock::new(header.clone()),
        })
    }

    pub(super) fn member_of(&self, piece: ReleasedSpace) -> usize {
        match piece {
            ReleasedSpace::Slab(slab) => self.members.index_of(first_unit(slab)),
            ReleasedSpace::Run { unit, .. } => self.members.index_of(unit),
        }
    }

    /// Calls `again` when there may be space that was not there before, or says that there is none to come.
    pub(super) fn await_space(
        self: &Arc<Self>,
        attempt: u32,
        again: impl FnOnce(Result<(), DeviceError>) + Send + 'static,
    ) {
        /// Others may take the space that was waited for: after this many attempts it gives up.
        const ATTEMPTS: u32 = 8;
        if attempt >= ATTEMPTS {
            return again(Err(DeviceError::NoSpace));
        }
        if self.outstanding.releasing.load(Ordering::Acquire) > 0 {
            let flushed = move |completion: DeviceCompletion| again(completion.map(|_| ()));
            return self.flush(None, Box::new(flushed));
        }
        // Nothing on its way may mean that the space came between the failed attempt and this: it tries twice
        // more.
        let again = Arc::new(Mutex::new(Some(again)));
        let slot = Arc::clone(&again);
        let freed = Box::new(move || {
            if let Some(again) = slot.lock().take() {
                again(Ok(()));
            }
        });
        if self.space.run_when_freed(freed).is_some() {
            let again = again.lock().take();
            if let Some(again) = again {
                again(if attempt < 2 { Ok(()) } else { Err(DeviceError::NoSpace) });
            }
        }
    }
}

impl VolumeCore {
    pub(super) fn name(&self) -> String {
        self.header.read().name.clone()
    }
}
