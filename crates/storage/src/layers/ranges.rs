//! Who may touch which blocks of a layer at the same time.

use std::ops::Range;

use underlay_sync::range_locks;
pub(super) use underlay_sync::range_locks::LockAccess;

/// Of one device, so without a key.
pub(super) type DeviceRanges = claims::RangeLocks<(), Range<u64>>;
pub(super) type DeviceRangeLock = claims::RangeLock<(), Range<u64>>;
