//! Who may touch which parts of an extent at the same time.

use std::sync::Arc;

use underlay_sync::claims;
pub(super) use underlay_sync::claims::{Access, Parts};

use super::extents::Hashing;

/// Many, so that requests on different extents don't wait for each other's lock.
const SHARDS: usize = 64;

/// By extent.
pub(super) type Claims = claims::Claims<u32, Parts, Hashing>;
pub(super) type Claim = claims::Claim<u32, Parts, Hashing>;

pub(super) fn new() -> Arc<Claims> {
    Arc::new(Claims::with_shards(SHARDS))
}
