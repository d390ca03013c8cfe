//! Alluxio 2.9, unmodified, as a cache of a system: between its clients and a bucket of an object store.

mod cluster;
mod configuration;
mod figures;

pub(crate) use cluster::{Alluxio, AlluxioPlan};
pub(crate) use configuration::{BlockSettings, CacheTiers, client_properties};

const MIB: u64 = 1 << 20;

/// Heaps and what Java has besides them, of all four servers together, without the memory tier.
pub(crate) const OWN_BYTES: u64 = cluster::HEAPS_BYTES + 4 * cluster::JAVA_OWN_BYTES;
/// Each client's memory: buffers of its connections.
pub(crate) const CLIENT_BYTES: u64 = 96 * MIB;
/// Of its masters, where clients find them.
pub(crate) const AUTHORITY: &str = "127.0.0.1:19998";
