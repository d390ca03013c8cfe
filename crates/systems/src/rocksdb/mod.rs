#![doc = include_str!("docs.md")]

mod client;
mod config;
pub mod engine;
mod profile;
mod start;
mod statistics;
mod store;

pub use start::{INSTALLED, Rocksdb};
