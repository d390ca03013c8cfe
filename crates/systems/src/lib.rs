//! Data systems, a folder each, all of the same shape.
//!
//! - `start`: how it is started and stopped.
//! - `client`: how the load generator talks to it.
//! - `config`: its settings, and how it divides its memory.
//! - `profile`: how it describes itself.
//! - `docs.md`: what a user must know.
//!
//! Systems that run in our own child process ([`child`]) exchange framed messages ([`wire`]) with it over a Unix socket
//! ([`connection`]).

#![cfg_attr(not(test), warn(clippy::disallowed_types))]

pub mod accumulo;
mod alluxio;
mod answer_lines;
pub mod artifacts;
pub mod benchmark;
pub mod cassandra;
pub mod ceph;
mod certificate;
pub mod child;
pub mod command;
mod compiled;
pub mod connect_allowlist;
pub mod connection;
mod credentials;
mod error;
pub mod figures;
pub mod first_study;
pub mod gateway;
pub mod hadoop;
pub mod hdfs;
pub mod java;
mod java_server;
pub mod je;
pub mod je_ha;
pub mod jvm;
pub mod left_elsewhere;
mod memory_folder;
pub mod memory_plan;
mod mount_namespace;
pub mod network_namespace;
pub mod nodes;
pub mod null;
pub mod oracle_nosql;
pub mod parts;
mod pid_namespace;
mod port_forward;
mod printed;
mod private_file;
mod process_memory;
pub mod profile;
mod program;
pub mod rocksdb;
mod setting;
pub mod spark;
mod storage_paths;
pub mod system;
mod tun_link;
mod unprivileged;
mod web;
pub mod wire;

use system::System;

/// The systems of these modules, in the order in which lists have them.
macro_rules! systems {
    ($($module:ident),+ $(,)?) => { &[$(&$module::INSTALLED),+] };
}

/// Real systems first. The modules themselves are declared above, since rustfmt finds none in a macro.
static SYSTEMS: &[&dyn System] =
    systems![rocksdb, je, je_ha, oracle_nosql, cassandra, accumulo, hadoop, spark, command, null];

/// All systems, real ones first.
pub fn all() -> impl Iterator<Item = &'static dyn System> {
    SYSTEMS.iter().copied()
}

/// The system that a study calls `name`.
pub fn find(name: &str) -> Option<&'static dyn System> {
    all().find(|system| system.name() == name)
}

/// The names that [`find`] knows, real systems first.
pub fn names() -> Vec<&'static str> {
    all().map(|system| system.name()).collect()
}
