//! What is asked of a data system, and how the answers are timed.
//!
//! A [`Workload`] says what the records are and how keys are chosen; a [`Mix`] says which operations are
//! asked for; [`run`] asks a system for them through its [`client::Client`] and returns what it measured.
//! Names, defaults and distributions are those of YCSB's CoreWorkload.

mod ceiling;
pub mod client;
pub mod clock;
pub mod control;
mod decimal;
pub mod distribution;
mod draws;
mod insert_sequence;
pub mod integrity;
pub mod keys;
mod lanes;
mod latency_counts;
mod length_histogram;
mod live;
pub mod machine_use;
pub mod memory_client;
pub mod mix;
pub mod null_client;
mod operations;
pub mod pacing;
mod particulars;
pub mod properties;
mod property_names;
mod rate_profile;
mod raw;
mod recorder;
pub mod runner;
pub mod search;
mod series;
#[cfg(test)]
mod simulation;
pub mod values;
#[cfg(test)]
mod waiting_tests;
mod worker;
#[cfg(test)]
mod worker_tests;
pub mod workload;
mod written_values;
pub mod ycsb;

pub use ceiling::null_ceiling;
pub use control::{Aftermath, Control, LatenciesSoFar, Phase, Progress};
pub use distribution::RequestDistribution;
pub use memory_client::{MemoryClient, MemoryStore};
pub use mix::{Mix, OperationKind, Proportions};
pub use null_client::{KeysOnlyClient, NullClient};
pub use pacing::Arrivals;
pub use particulars::{BothLatencies, Edges, Particulars};
pub use properties::{Origin, Properties, Property, PropertyErrors};
pub use rate_profile::{RatePart, RateProfile};
pub use raw::{RawAnswer, RawLog, RawOperation, RawOperations};
pub use runner::{RunError, RunSpec, Share, run};
pub use series::IntervalLatencies;
pub use workload::Workload;
