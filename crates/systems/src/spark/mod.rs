#![doc = include_str!("docs.md")]

mod cache;
mod cluster;
mod committer;
mod config;
mod defaults;
mod driver;
mod elsewhere;
mod endpoint;
mod environment;
mod event_log;
mod jobs;
mod joining;
mod manager;
mod master;
mod memory;
mod on_yarn;
mod parts;
mod profile;
mod servers;
mod shuffle_service;
mod start;
mod store;
mod version;

pub use cluster::SparkCluster;
pub use committer::OutputCommitter;
pub use environment::s3a_class_path;
pub use event_log::{JobEvents, SparkStage};
pub use start::{INSTALLED, Spark};

const NAME: &str = "spark";
