#![doc = include_str!("docs.md")]

mod config;
mod formed;
mod members;
mod parts;
mod places;
mod profile;
mod start;
mod store;
mod topology;
mod totals;

pub use start::{INSTALLED, JeHa};
pub use store::{JeHaStore, MemberState};

const NAME: &str = "je-ha";
