//! The S3 gateway in virtual time, under faults in any combination, held against a model of S3.

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
mod played;
pub mod run;
pub mod script;
mod store;
pub mod world;
