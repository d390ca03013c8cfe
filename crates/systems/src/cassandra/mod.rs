#![doc = include_str!("docs.md")]

mod addresses;
mod client;
mod config;
mod database;
mod memory;
mod network;
mod node;
mod node_files;
pub mod nodetool;
mod parts;
mod profile;
mod ring;
mod start;
mod table;

pub use start::{Cassandra, INSTALLED};

const NAME: &str = "cassandra";
