//! What this host has, and what it lets us do.

pub(crate) mod error;
pub mod free_space;
pub mod host;
pub mod memory_budget;
pub mod missing;
pub mod mounts;
pub mod privileges;
pub mod processes;
pub mod programs;
