//! What is asked of a data system, and how the answers are timed.
//!
//! A [`Workload`] says what the records are and how keys are chosen; a [`Mix`] says which operations are
//! asked for; [`run()`] asks a system for them through its [`client::Client`] and returns what it measured.
//! Names, defaults and distributions are those of YCSB's CoreWorkload.

pub mod client;
mod draw;
pub mod mix;
mod run;
pub mod search;
mod workload;
pub mod ycsb;

pub use draw::{distribution, integrity, keys, values};
pub use run::{machine_use, runner};
pub use ycsb::properties;

pub use draw::distribution::RequestDistribution;
pub use mix::{Mix, OperationKind, Proportions};
pub use run::acknowledged::{AcknowledgedWrites, ReadBack};
pub use run::ceiling::{null_ceiling, null_ceiling_up_to};
pub use run::control::{Aftermath, Control, LatenciesSoFar, Phase, Progress, RunWindow};
pub use run::memory_client::{MemoryClient, MemoryStore};
pub use run::null_client::{KeysOnlyClient, NullClient};
pub use run::pacing::Arrivals;
pub use run::particulars::{BothLatencies, Edges, Particulars};
pub use run::pauses::PauseWatch;
pub use run::rate_profile::{RatePart, RateProfile};
pub use run::raw::{RawAnswer, RawLog, RawOperation, RawOperations};
pub use run::runner::{CLIENT_THREADS, RunError, run};
pub use run::series::{IntervalLatencies, TimelineInterval};
pub use run::spec::{Beside, RunSpec, Share};
pub use workload::Workload;
pub use ycsb::properties::{Origin, Properties, Property, PropertyErrors};
