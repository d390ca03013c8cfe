//! How a program sees storage: as directories, on file systems of its own or the user's.
//!
//! An [`Attachment`] makes directories out of a storage configuration and removes them again. It notes each resource in
//! a [`ResourceRegistry`] before creating it, so that [`cleanup::clean`] can undo it after a crash. A
//! [`ResourceBudget`] limits a system and its page cache to the memory of its cell, and to its share of this host's CPU
//! time.

#![cfg_attr(not(test), warn(clippy::disallowed_types))]

mod attachments;
mod machine;
mod measurement;
mod serving;
mod undo;

pub use attachments::{
    attachment, choice, directory, dirty_limit, filesystem, loop_device, nvme_kernel, read_ahead, real_paths,
};
pub use machine::{
    budget, host, missing, mounts, page_cache, privileges, processes, processors, programs, standstill,
};
pub use measurement::{direct_load, overhead, probe, real_activity};
pub use serving::{daemon, fuse_uring, remote, served, ublk};
pub use undo::{cleanup, registry};

pub use attachments::attachment::{AttachSpec, AttachedStorage, Attachment, DirtyLimit};
pub use attachments::block_attachment::BlockAttachment;
pub use attachments::block_volumes::BlockVolumes;
pub use attachments::directory::FuseDirectory;
pub use attachments::filesystem::FilesystemKind;
pub use attachments::nvme_kernel::KernelNvme;
pub use attachments::real_paths::RealPaths;
pub use machine::awake::IdlePreventer;
pub use machine::budget::{CpuQuota, CpuShare, CpuUsage, GroupLimits, ResourceBudget};
pub use machine::error::AttachError;
pub use machine::missing::MissingCapability;
pub use machine::processors::{CpuConfinement, CpuTimes, Processors};
pub use machine::waiting::CpuWaits;
pub use serving::served::ServedStorage;
pub use undo::registry::{LeftoverResource, OwnFolder, OwnedResource, RegistryNote, ResourceRegistry};
