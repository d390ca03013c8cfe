//! Sends operations to a data system, and times the answers.
//!
//! A [`CoreWorkload`] describes the records and the choice of keys; a [`OperationMix`] describes the operations.
//! [`run()`] sends them to a system through its [`client::Client`] and returns its measurements. Names, defaults and
//! distributions are those of YCSB's CoreWorkload.

#![cfg_attr(not(test), warn(clippy::disallowed_types))]

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
pub use mix::{OperationKind, OperationMix, OperationProportions};
pub use run::acknowledged::{AcknowledgedWrites, ReadBack};
pub use run::ceiling::{null_ceiling, null_ceiling_up_to};
pub use run::control::{LatenciesSoFar, RunAftermath, RunHandle, RunPhase, RunProgress, RunWindow};
pub use run::memory_client::{MemoryClient, MemoryStore};
pub use run::null_client::{KeysOnlyClient, NullClient};
pub use run::pacing::ArrivalProcess;
pub use run::pauses::PauseWatch;
pub use run::rate_profile::{RatePart, RateProfile};
pub use run::raw::{RawAnswer, RawLog, RawOperation, RawOperations};
pub use run::runner::{CLIENT_THREADS, RunError, run};
pub use run::series::{IntervalLatencies, TimelineInterval};
pub use run::spec::{BackgroundWork, HostShare, RunSpec};
pub use run::ycsb_stats::{BothLatencies, EdgeLatencies, YcsbStatistics};
pub use workload::CoreWorkload;
pub use ycsb::properties::{PropertyErrors, PropertyOrigin, YcsbProperties, YcsbProperty};
