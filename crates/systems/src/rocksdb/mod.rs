#![doc = include_str!("docs.md")]

mod client;
pub mod config;
pub mod engine;
mod start;
mod statistics;
mod store;

pub use client::RocksdbClient;
pub use start::{INSTALLED, Rocksdb};
