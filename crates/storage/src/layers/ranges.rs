//! Who may touch which blocks of a layer at the same time.

use std::ops::Range;

use underlay_sync::range_locks;
pub(super) use underlay_sync::range_locks::LockAccess;

/// Of one device, so without a key.
pub(super) type DeviceRanges = range_locks::RangeLocks<(), Range<u64>>;
pub(super) type DeviceRangeLock = range_locks::RangeLock<(), Range<u64>>;
