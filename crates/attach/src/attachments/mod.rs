//! Attachments, which show storage to a program, and the parts below them.

pub mod attachment;
pub(crate) mod block_attachment;
pub(crate) mod block_volumes;
pub mod choice;
pub mod directory;
pub mod dirty_limit;
pub(crate) mod exported;
pub mod filesystem;
pub mod loop_device;
pub mod nvme_kernel;
pub mod read_ahead;
pub mod real_paths;
