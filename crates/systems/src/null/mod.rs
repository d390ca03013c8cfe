#![doc = include_str!("docs.md")]

mod config;
mod start;

pub use start::Null;
