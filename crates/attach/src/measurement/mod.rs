//! Measurements of real disks and of the attachments.

pub(crate) mod aligned_buffer;
pub(crate) mod block_counters;
pub mod direct_load;
pub mod overhead;
pub(crate) mod path_cost;
pub(crate) mod path_probes;
pub(crate) mod path_waits;
pub(crate) mod path_watch;
pub mod probe;
pub mod real_activity;
