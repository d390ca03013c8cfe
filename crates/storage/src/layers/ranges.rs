//! Who may touch which blocks of a layer at the same time.

use std::ops::Range;

use underlay_sync::claims;
pub(super) use underlay_sync::claims::Access;

/// Of one device, so without a key.
pub(super) type Ranges = claims::Claims<(), Range<u64>>;
pub(super) type Claim = claims::Claim<(), Range<u64>>;
