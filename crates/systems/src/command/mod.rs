#![doc = include_str!("docs.md")]

mod command_env;
mod config;
mod foreign_files;
mod host_space;
mod identity;
mod leftovers;
pub mod placeholders;
mod profile;
mod progress;
mod running;
mod start;

pub use start::{CommandSystem, INSTALLED};

pub(crate) const NAME: &str = "command";
