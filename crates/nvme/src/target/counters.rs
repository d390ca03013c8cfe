//! Counters of namespaces and connections.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};

/// A namespace's requests so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NamespaceCounters {
    pub reads: u64,
    pub read_bytes: u64,
    pub writes: u64,
    pub written_bytes: u64,
    pub flushes: u64,
    /// Ranges that were deallocated, by Dataset Management or Write Zeroes.
    pub discards: u64,
    pub discarded_bytes: u64,
    pub compares: u64,
    /// Commands that ended with an error of the device.
    pub errors: u64,
}

#[derive(Default)]
pub(super) struct TargetCounters {
    pub reads: AtomicU64,
    pub read_bytes: AtomicU64,
    pub writes: AtomicU64,
    pub written_bytes: AtomicU64,
    pub flushes: AtomicU64,
    pub discards: AtomicU64,
    pub discarded_bytes: AtomicU64,
    pub compares: AtomicU64,
    pub errors: AtomicU64,
}

impl TargetCounters {
    pub(super) fn snapshot(&self) -> NamespaceCounters {
        let value = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        NamespaceCounters {
            reads: value(&self.reads),
            read_bytes: value(&self.read_bytes),
            writes: value(&self.writes),
            written_bytes: value(&self.written_bytes),
            flushes: value(&self.flushes),
            discards: value(&self.discards),
            discarded_bytes: value(&self.discarded_bytes),
            compares: value(&self.compares),
            errors: value(&self.errors),
        }
    }
}

pub(super) fn count(counter: &AtomicU64, increment: u64) {
    counter.fetch_add(increment, Ordering::Relaxed);
}

/// A connection: one queue of one host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectionSnapshot {
    pub peer: Option<SocketAddr>,
    /// `None` before the host has connected its queue.
    pub queue: Option<QueueSnapshot>,
    pub commands: u64,
    /// Commands that ended with another status than success.
    pub errors: u64,
    pub received_bytes: u64,
    pub sent_bytes: u64,
}

/// Whose queue it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueSnapshot {
    pub subsystem_nqn: String,
    pub host_nqn: String,
    pub controller_id: u16,
    /// 0 is the admin queue.
    pub queue_id: u16,
}
