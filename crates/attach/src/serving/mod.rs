//! The device daemon, who starts it and who finds it, and how the kernel asks it for blocks.

pub mod daemon;
pub(crate) mod daemon_process;
pub(crate) mod daemon_watchdog;
pub mod fuse_uring;
pub mod remote;
pub(crate) mod ring;
pub mod served;
pub mod ublk;
