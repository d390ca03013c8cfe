#![doc = include_str!("docs.md")]

mod cluster;
mod configuration;
mod parts;
mod plan;
mod programs;
mod requests;

pub use cluster::{Ceph, S3Keys};
pub(crate) use cluster::{CephBucket, planned_nodes};
pub(crate) use parts::parts;
pub use plan::{CephMemory, CephPlan};
pub(crate) use plan::{SHARED_SHARE, WHOLE_SHARE};
pub(crate) use requests::MARK;
pub use requests::{LoggedRequest, RequestLog, StoreRequest};
