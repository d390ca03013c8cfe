//! A study: read from TOML, expanded into cells, run one by one, recorded.

#![cfg_attr(not(test), warn(clippy::disallowed_types))]

pub mod advice;
pub mod estimate;
mod fill;
pub mod fio_job;
pub mod machine;
pub mod modelled;
pub mod plan;
pub mod reference;
pub mod run;
pub mod selection;
pub mod session;
mod shortened;
pub mod spec;
pub mod standstill;
mod ticker;
