//! Both attachments on this machine itself: conformance, the daemon killed, the owner killed.

mod conformance;
mod daemon_killed;
mod dirty_limit;
mod fixture;
mod fuse_loop;
mod owner_killed;
mod path;
mod read_ahead;
mod remote;
