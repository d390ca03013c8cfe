#![doc = include_str!("docs.md")]

mod class_archive;
mod cluster;
mod config;
mod job_client;
mod jobs;
mod local_directories;
mod memory;
mod profile;
mod site;
mod start;
mod yarn;

pub use cluster::HadoopCluster;
pub(crate) use site::YarnSite;
pub use start::{Hadoop, INSTALLED};
pub(crate) use yarn::{Yarn, YarnPlan};

const NAME: &str = "hadoop";
