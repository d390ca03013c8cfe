//! One load from several hosts: a coordinator divides it, workers generate their parts, and what they measured is put
//! together.
//!
//! The coordinator asks and a worker answers, one frame each way. Over the network they speak TLS 1.3, by a key made of a
//! token that both know or by certificates of one authority: before the handshake is done a worker reads nothing else, and
//! says nothing. A worker that was started over ssh speaks through ssh. Clocks are never compared by their time of day: the
//! coordinator learns by how much a worker's monotonic clock is ahead of its own, as exactly as the way between them allows,
//! and says when to begin in the worker's own time.

mod clock_offset;
mod coordinator;
pub mod frame;
mod generator;
mod host;
mod job;
mod merge;
pub mod message;
mod particulars;
mod secret_file;
mod session;
mod ssh;
mod stream;
mod token;
mod trust;
mod worker;

pub use clock_offset::ClockOffset;
pub use coordinator::{Coordinator, HostReport, LostHost, Together};
pub use generator::{Connect, Connector};
pub use host::HostAddress;
pub use job::{Job, RateChange};
pub use merge::merge;
pub use message::Report;
pub use ssh::SshHost;
pub use token::Token;
pub use trust::{Certificates, Trust};
pub use worker::{ConnectionEvent, Listener, Worker};

/// Why a load from several hosts did not come about.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    #[error("worker {worker} can't be reached: {problem}")]
    Unreachable { worker: String, problem: String },
    /// One of the two does not trust the other, or they don't understand each other.
    #[error("worker {worker} and this host don't agree: {problem}")]
    Refused { worker: String, problem: String },
    /// It stopped responding. What it had measured is gone with it.
    #[error("worker {worker} was lost: {problem}")]
    Lost { worker: String, problem: String },
    /// It answered that it can't.
    #[error("worker {worker} failed: {problem}")]
    Failed { worker: String, problem: String },
    #[error("{0}")]
    Job(String),
    #[error("cannot listen on {address}: {problem}")]
    Listen { address: String, problem: String },
    /// A token or a certificate is no good.
    #[error("{0}")]
    Trust(String),
    #[error("the run was stopped")]
    Stopped,
}
