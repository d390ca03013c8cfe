//! Who may touch which parts of an extent at the same time.

use std::sync::Arc;

use underlay_sync::claims;
pub(super) use underlay_sync::claims::{Access, Parts};

use super::extents::Hashing;

/// Requests of many threads, on different extents, are not to wait for each other.
const SHARDS: usize = 64;

/// By extent.
pub(super) type Claims = claims::Claims<u32, Parts, Hashing>;
pub(super) type Claim = claims::Claim<u32, Parts, Hashing>;

pub(super) fn new() -> Arc<Claims> {
    Arc::new(Claims::with_shards(SHARDS))
}
