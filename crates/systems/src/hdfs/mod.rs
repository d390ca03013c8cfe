#![doc = include_str!("docs.md")]

mod cluster;
pub(crate) mod configuration;
mod figures;
mod parts;
mod plan;

pub use cluster::Hdfs;
pub(crate) use cluster::{planned_nodes, without_datanodes};
pub use figures::VolumeUse;
pub(crate) use parts::parts;
pub use plan::{DataDirectory, HdfsPlan, ServerHeaps, StorageType, VolumeChoosing};
