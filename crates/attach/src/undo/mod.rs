//! Resources created on this host, and their removal, even after a crash.

pub mod cleanup;
pub mod registry;
