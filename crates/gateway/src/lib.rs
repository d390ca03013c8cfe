//! An S3 gateway: any S3 client in front, an S3 store or a local directory behind, and in between a cache, a journal
//! and metadata that make a rename a matter of a few rows. `docs/gateway.md` says what it promises.

#![cfg_attr(not(test), warn(clippy::disallowed_types))]

pub mod at_rest;
mod blocking;
mod blocks;
mod bypass;
mod check;
mod clean_pages;
mod cluster;
mod command;
pub mod config;
pub mod digests;
mod disk_room;
pub mod engine;
pub mod errors;
mod failure;
pub mod form;
mod from_disk;
mod headers;
mod init;
pub mod journal;
mod memory;
mod meta;
pub mod model;
pub mod outside;
mod ownership;
mod placement;
mod refusals;
mod s3;
mod serving;
mod staged;
pub mod store;
mod supervision;
mod url_escapes;

pub use serving::in_process;

/// The program `underlay-gateway`.
pub fn main() -> std::process::ExitCode {
    command::main()
}
