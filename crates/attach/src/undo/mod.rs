//! What was made on this host, and how it is taken away again, after a crash too.

pub mod cleanup;
pub mod registry;
