//! One load from several hosts: a coordinator divides it, workers generate their parts, and the results are merged.
//!
//! The coordinator sends requests and a worker answers, one frame each. Over the network they use TLS 1.3, with a key
//! derived from a shared token or with certificates of the same authority. Until the handshake is done, a worker reads
//! and sends nothing else. A worker that was started over ssh communicates through ssh. The time of day is never
//! compared: the coordinator measures how far a worker's monotonic clock is ahead of its own, as precisely as the round
//! trip allows, and tells it when to start by the worker's own clock.

#![cfg_attr(not(test), warn(clippy::disallowed_types))]

mod clock_offset;
mod coordinator;
pub mod frame;
mod generator;
mod host;
mod job;
mod merge;
pub mod message;
mod secret_file;
mod session;
mod ssh;
mod stream;
mod token;
mod trust;
mod worker;
mod ycsb_stats;

pub use clock_offset::ClockOffset;
pub use coordinator::{CombinedResults, HostReport, LostHost, WorkerCoordinator};
pub use generator::{ConnectionOpener, JobConnector, StoppedIn, WatchStarter};
pub use host::HostAddress;
pub use job::{RateChange, RemoteJob};
pub use merge::merge;
pub use message::{ProgressReport, WorkerProgress};
pub use ssh::SshHost;
pub use token::SharedToken;
pub use trust::{CertificateFiles, TrustMethod};
pub use worker::{ConnectionEvent, WorkerListener, WorkerServer};

/// Why a load could not be run on several hosts.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    #[error("worker {worker} can't be reached: {problem}")]
    Unreachable { worker: String, problem: String },
    /// One of the two does not trust the other, or they speak different protocols.
    #[error("worker {worker} and this host don't agree: {problem}")]
    Refused { worker: String, problem: String },
    /// It stopped responding. Its results are lost.
    #[error("worker {worker} was lost: {problem}")]
    Lost { worker: String, problem: String },
    /// It reported an error.
    #[error("worker {worker} failed: {problem}")]
    Failed { worker: String, problem: String },
    #[error("{0}")]
    Job(String),
    #[error("cannot listen on {address}: {problem}")]
    Listen { address: String, problem: String },
    /// A token or a certificate can't be used.
    #[error("{0}")]
    Trust(String),
    #[error("the run was stopped")]
    Stopped,
}
