//! The results in one cell's records, apart from any comparison.

pub(crate) mod activity;
pub(crate) mod benchmark;
pub(crate) mod by_phase;
pub(crate) mod completed;
pub(crate) mod cost;
pub mod directories;
pub(crate) mod jobs;
