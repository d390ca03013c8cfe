//! The device daemon, its launcher, its discovery, and the kernel's interfaces to it.

pub mod daemon;
pub(crate) mod daemon_process;
pub(crate) mod daemon_watchdog;
pub mod fuse_uring;
pub mod remote;
pub(crate) mod ring;
pub mod served;
pub mod ublk;
