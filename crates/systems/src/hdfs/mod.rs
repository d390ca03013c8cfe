#![doc = include_str!("docs.md")]

pub mod cluster;
pub mod configuration;
mod figures;
pub mod plan;
pub mod web;

pub use cluster::Hdfs;
pub use figures::VolumeUse;
pub use plan::{DataDirectory, Heaps, Plan, StorageType, VolumeChoosing};
