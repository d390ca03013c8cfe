//! What is known of the regions of a mirrored volume that are being written over.

use std::collections::HashMap;

use underlay_storage::device::DeviceError;
use underlay_sync::{Mutex, MutexGuard};

use super::extents::Hashing;

type Start = Box<dyn FnOnce(Result<(), DeviceError>) + Send>;

#[derive(Default)]
pub(super) struct Intents {
    regions: Mutex<HashMap<u32, Region, Hashing>>,
}

#[derive(Default)]
pub(super) struct Region {
    /// The journal knows of it durably.
    pub set: bool,
    pub under_way: u32,
    /// The flush after which it was last written to.
    pub last_epoch: u64,
    /// A write was answered with an error: the copies may differ until the pool is opened again.
    pub has_failed: bool,
    pub waiting: Vec<Start>,
}

impl Intents {
    pub(super) fn lock(&self) -> MutexGuard<'_, HashMap<u32, Region, Hashing>> {
        self.regions.lock()
    }
}
