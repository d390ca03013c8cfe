#![doc = include_str!("docs.md")]

mod cluster;
mod configuration;
mod parts;
mod plan;
mod programs;
mod requests;

pub(crate) use cluster::{Bucket, planned_nodes};
pub use cluster::{Ceph, Keys};
pub(crate) use parts::parts;
pub use plan::{Memory, Plan};
pub(crate) use plan::{SHARED_SHARE, WHOLE_SHARE};
pub(crate) use requests::MARK;
pub use requests::{Logged, RequestLog, StoreRequest};
