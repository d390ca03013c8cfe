//! How a program sees a storage: as directories, on filesystems of its own or the user's.
//!
//! An [`Attachment`] makes directories out of a storage and takes them away again. Whatever it makes is
//! written into a [`Registry`] first, so that [`cleanup::clean`] can undo it after a crash. A
//! [`MemoryBudget`] holds a system and its page cache to the memory of its cell.

pub mod attachment;
mod block_attachment;
mod block_volumes;
pub mod choice;
pub mod cleanup;
pub mod daemon;
mod daemon_process;
pub mod directory;
pub mod dirty_limit;
mod error;
pub mod filesystem;
pub mod free_space;
pub mod fuse_uring;
pub mod host;
pub mod loop_device;
pub mod memory_budget;
pub mod missing;
pub mod mounts;
pub mod nvme_kernel;
pub mod overhead;
mod path_cost;
pub mod privileges;
pub mod probe;
pub mod processes;
pub mod programs;
pub mod real_activity;
pub mod real_paths;
pub mod registry;
pub mod remote;
mod ring;
pub mod served;
pub mod ublk;

pub use attachment::{AttachSpec, Attached, Attachment, DirtyLimit};
pub use block_attachment::BlockAttachment;
pub use block_volumes::BlockVolumes;
pub use directory::FuseDirectory;
pub use error::AttachError;
pub use filesystem::Filesystem;
pub use memory_budget::MemoryBudget;
pub use missing::Missing;
pub use nvme_kernel::KernelNvme;
pub use real_paths::RealPaths;
pub use registry::{Leftover, Note, OwnFolder, Registry, Resource};
pub use served::Served;
