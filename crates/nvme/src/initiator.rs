//! The host's side: controllers that are reached over TCP, and their namespaces as block devices.
//!
//! A [`NvmeController`] has an admin queue and I/O queues, each a connection with a thread that reads and one that
//! waits
//! where the network does not take what is to be sent. Requests are sent from their caller's thread, and answered from
//! the reading one. One more does the work of no request: keep-alive, events, finding a lost connection again.

mod association;
mod controller;
mod dialer;
mod discovery;
mod error;
mod exchange;
mod identity;
mod lost;
mod options;
mod outbox;
mod queue;
mod record;
mod repetition;
mod stats;
mod unflushed;

pub use controller::{NvmeController, RemoteDevice};
pub use dialer::StreamDialer;
pub use discovery::discover;
pub use error::InitiatorError;
pub use options::{ControllerOptions, UnflushedLimits, this_host_nqn};
pub use stats::{InitiatorLatency, InitiatorMetrics};
