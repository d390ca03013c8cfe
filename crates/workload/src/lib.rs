//! What is asked of a data system, and how the answers are timed.
//!
//! A [`Workload`] says what the records are and how keys are chosen; a [`Mix`] says which operations are
//! asked for; [`run`] asks a system for them through its [`client::Client`] and returns what it measured.
//! Names, defaults and distributions are those of YCSB's CoreWorkload.

pub mod client;
pub mod control;
pub mod distribution;
mod insert_sequence;
pub mod integrity;
pub mod keys;
mod live;
pub mod machine_use;
pub mod memory_client;
pub mod mix;
pub mod null_client;
mod operations;
pub mod pacing;
pub mod properties;
mod property_names;
mod recorder;
pub mod runner;
mod series;
pub mod values;
mod worker;
#[cfg(test)]
mod worker_tests;
pub mod workload;
pub mod ycsb_output;

pub use control::{Aftermath, Control, Phase, Progress};
pub use distribution::RequestDistribution;
pub use memory_client::{MemoryClient, MemoryStore};
pub use mix::{Mix, OperationKind, Proportions};
pub use null_client::NullClient;
pub use pacing::Arrivals;
pub use properties::{Origin, Properties, Property, PropertyErrors};
pub use runner::{RunError, RunSpec, null_ceiling, run};
pub use workload::Workload;
