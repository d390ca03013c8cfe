//! Who may touch which parts of an extent at the same time.

use std::sync::Arc;

use underlay_sync::range_locks;
pub(super) use underlay_sync::range_locks::{LockAccess, PartSet};

use super::extents::BuildNumberHasher;

/// Many, so that requests on different extents don't wait for each other's lock.
const SHARDS: usize = 64;

/// By extent.
pub(super) type ExtentLocks = range_locks::RangeLocks<u32, PartSet, BuildNumberHasher>;
pub(super) type ExtentLock = range_locks::RangeLock<u32, PartSet, BuildNumberHasher>;

pub(super) fn new() -> Arc<ExtentLocks> {
    Arc::new(ExtentLocks::with_shards(SHARDS))
}
