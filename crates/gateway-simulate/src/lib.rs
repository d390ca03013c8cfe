//! The S3 gateway in virtual time, under faults in any combination, held against a model of S3.

#![cfg_attr(not(test), warn(clippy::disallowed_types))]

pub mod campaign;
pub mod child;
pub mod cli;
mod client;
mod clock;
mod disk;
mod etcd;
mod gateway;
mod log;
mod machine;
pub mod model;
mod network;
pub mod problem;
pub mod run;
pub mod script;
pub mod shrink;
mod store;
pub mod world;
