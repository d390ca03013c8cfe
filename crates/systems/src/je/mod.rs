#![doc = include_str!("docs.md")]

mod config;
pub(crate) mod engine;
pub(crate) mod memory;
mod profile;
mod start;

pub use start::{INSTALLED, Je};

const NAME: &str = "je";
