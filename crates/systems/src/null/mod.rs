#![doc = include_str!("docs.md")]

mod config;
mod profile;
mod start;

pub use start::{INSTALLED, Null};
