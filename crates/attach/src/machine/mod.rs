//! This host's resources, and this process's rights on it.

pub(crate) mod awake;
pub mod budget;
pub(crate) mod error;
pub mod host;
pub mod missing;
pub mod mounts;
pub mod page_cache;
pub mod privileges;
pub mod processes;
pub mod processors;
pub mod programs;
pub mod standstill;
pub(crate) mod waiting;
