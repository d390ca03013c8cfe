#![doc = include_str!("docs.md")]

mod config;
mod identity;
mod memory;
mod parts;
mod places;
mod profile;
mod running;
mod servers;
mod site;
mod splits;
mod start;

pub use start::{Accumulo, INSTALLED};

const NAME: &str = "accumulo";
