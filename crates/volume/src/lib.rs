//! Volumes cut from a pool of devices: thin, striped, compressed or mirrored as each asks, with a map that outlives
//! a crash at any moment. `docs/volumes.md` says what is promised.
//!
//! ```text
//! let pool = Pool::open(devices, PoolSettings::default())?;            // makes it on blank devices
//! let volume = pool.create("data", &VolumeSpec { compress: Some(Codec::Lz4), ..VolumeSpec::new(64 << 30) })?;
//! volume.submit(Request::Write { .. }, done);                          // a `BlockDevice`
//! pool.snapshot("data", "monday", Access::ReadOnly)?;
//! pool.close()?;
//! ```

#![cfg_attr(not(test), warn(clippy::disallowed_types, clippy::disallowed_methods))]

pub mod pool;
pub mod pool_file;
pub mod rate;
pub mod server;

pub use pool::{VolumeHandle, VolumePool};
