//! What is measured of real disks and of the attachments themselves.

pub mod overhead;
pub(crate) mod path_cost;
pub mod probe;
pub mod real_activity;
