//! What the records of one cell have to show, whatever it is compared with.

pub(crate) mod activity;
pub(crate) mod benchmark;
pub(crate) mod by_phase;
pub(crate) mod completed;
pub(crate) mod cost;
pub mod directories;
pub(crate) mod jobs;
