//! The blocks of files that are being read or changed.

use std::ops::Range;

use rustix::io::Errno;
use underlay_sync::range_locks;
pub(super) use underlay_sync::range_locks::LockAccess;

use super::CoreCallback;

/// By inode, in blocks of the file.
pub(super) type InodeRanges = range_locks::RangeLocks<u64, Range<u64>>;
pub(super) type InodeRangeLock = range_locks::RangeLock<u64, Range<u64>>;

/// Sends the answer before it releases the range, so that the caller does not wait for the range's next user.
pub(super) fn answer<T>(done: CoreCallback<T>, outcome: Result<T, Errno>, lock: InodeRangeLock) {
    done(outcome);
    drop(lock);
}
