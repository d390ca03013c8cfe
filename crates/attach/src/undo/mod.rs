//! Resources made on this host, and their removal, after a crash too.

pub mod cleanup;
pub mod registry;
