#![doc = include_str!("docs.md")]

mod admin;
mod agent_log;
mod client;
mod config;
mod deployment;
mod figures;
mod formed;
mod home;
mod memory;
mod parts;
mod places;
mod profile;
mod reports;
mod start;
mod storage_node;
mod store;
mod tools;

pub use home::KvHome;
pub use start::{INSTALLED, OracleNosql};

const NAME: &str = "oracle-nosql";
