//! Data systems, one folder each, all of one shape: `start` (how it comes up and goes down), `client` (how the
//! generator talks to it), `config` (its settings and how it divides its memory), `docs.md` (what a user must know).
//!
//! Systems that run in a process of ours are children ([`child`]) and speak framed messages ([`wire`]) over a
//! Unix socket ([`connection`]).

pub mod accumulo;
pub mod artifacts;
pub mod cassandra;
pub mod child;
pub mod compiled;
pub mod connection;
mod credentials;
mod error;
pub mod figures;
pub mod hadoop;
pub mod hdfs;
pub mod java;
pub mod java_server;
pub mod jvm;
pub mod may_connect;
mod mount_namespace;
pub mod network_namespace;
pub mod null;
pub mod rocksdb;
mod setting;
pub mod system;
mod unprivileged;
pub mod wire;

use system::System;

static SYSTEMS: &[&dyn System] =
    &[&rocksdb::INSTALLED, &cassandra::INSTALLED, &accumulo::INSTALLED, &hadoop::INSTALLED, &null::Null];

/// The system that a study calls `name`.
pub fn find(name: &str) -> Option<&'static dyn System> {
    SYSTEMS.iter().copied().find(|system| system.name() == name)
}

/// The names that [`find`] knows, real systems first.
pub fn names() -> Vec<&'static str> {
    SYSTEMS.iter().map(|system| system.name()).collect()
}
