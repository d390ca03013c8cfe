//! What is known of the regions of a mirrored volume that are being written over.

use std::collections::HashMap;

use underlay_storage::device::DeviceError;
use underlay_sync::{Mutex, MutexGuard};

use super::extents::BuildNumberHasher;

type IntentCallback = Box<dyn FnOnce(Result<(), DeviceError>) + Send>;

#[derive(Default)]
pub(super) struct WriteIntents {
    regions: Mutex<HashMap<u32, IntentRegion, BuildNumberHasher>>,
}

#[derive(Default)]
pub(super) struct IntentRegion {
    /// The journal knows of it durably.
    pub set: bool,
    pub under_way: u32,
    /// The flush after which it was last written to.
    pub last_epoch: u64,
    /// A write was answered with an error: the copies may differ until the pool is opened again.
    pub has_failed: bool,
    pub waiting: Vec<IntentCallback>,
}

impl WriteIntents {
    pub(super) fn lock(&self) -> MutexGuard<'_, HashMap<u32, IntentRegion, BuildNumberHasher>> {
        self.regions.lock()
    }
}
