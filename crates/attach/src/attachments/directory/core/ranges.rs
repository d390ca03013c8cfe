//! Which blocks of which files are being read or changed.

use std::ops::Range;

use rustix::io::Errno;
use underlay_sync::claims;
pub(super) use underlay_sync::claims::Access;

use super::Done;

/// By inode, in blocks of the file.
pub(super) type Ranges = claims::Claims<u64, Range<u64>>;
pub(super) type Claim = claims::Claim<u64, Range<u64>>;

/// The answer first, then the range: whoever waits for it need not be waited for.
pub(super) fn answer<T>(done: Done<T>, outcome: Result<T, Errno>, held: Claim) {
    done(outcome);
    drop(held);
}
