//! The console: runs watched in a browser while they happen, and our other services on this host.
//!
//! It reads what runs write ([`underlay_record::live`] and records) and knows no system, no medium and no study: what
//! only others can do, such as stopping a node, it asks of a [`ConsoleHost`]. A run never depends on it.
//! `docs/console.md` says how it is used and what keeps it safe.
//!
//! Each module uses only those before it: [`host`], `access` (who may come in), `feed` (what runs write), `recorded`
//! (what records say), `runs` (which there are), `hub` (what all pages share), `page`, `drawn`, `api`, `metrics`,
//! `server`.

#![cfg_attr(not(test), warn(clippy::disallowed_types))]

mod access;
mod api;
mod drawn;
mod feed;
pub mod host;
mod hub;
mod metrics;
mod page;
mod recorded;
mod runs;
mod server;

pub use access::{AccessSecret, HostNames};
pub use host::ConsoleHost;
pub use server::{
    ADDRESS_VALID, ConsoleError, ConsoleOptions, ConsoleServer, ListenAddress, remove_leftovers, sockets,
};
