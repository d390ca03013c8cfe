//! A controller's use, and its response times.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use underlay_sync::{Mutex, MutexGuard};

use hdrhistogram::Histogram;

/// 1 ns to a minute, to three digits.
const MAX_NS: u64 = 60_000_000_000;

#[derive(Debug, Default)]
pub(super) struct InitiatorCounters {
    pub requests: AtomicU64,
    pub read_bytes: AtomicU64,
    pub written_bytes: AtomicU64,
    pub reconnects: AtomicU64,
    pub resent: AtomicU64,
}

/// Times of this machine's clock.
#[derive(Debug)]
pub(super) struct InitiatorStats {
    pub counters: InitiatorCounters,
    commands: Mutex<Histogram<u64>>,
    network: Mutex<Histogram<u64>>,
}

/// A copy of the figures.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InitiatorMetrics {
    /// Commands of I/O queues that were answered.
    pub requests: u64,
    pub read_bytes: u64,
    pub written_bytes: u64,
    /// How often the connection was lost and found again.
    pub reconnects: u64,
    /// Commands that were sent once more for that.
    pub resent: u64,
    /// From sending a command to its answer: the network, the target and its device.
    pub command: InitiatorLatency,
    /// The same of keep-alive commands, which no device has to do with: the network and the target alone.
    pub network: InitiatorLatency,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InitiatorLatency {
    pub count: u64,
    pub mean_ns: u64,
    pub p50_ns: u64,
    pub p99_ns: u64,
    pub p999_ns: u64,
    pub max_ns: u64,
}

impl Default for InitiatorStats {
    fn default() -> InitiatorStats {
        let histogram =
            || Mutex::new(Histogram::new_with_bounds(1, MAX_NS, 3).expect("the bounds make sense"));
        InitiatorStats { counters: InitiatorCounters::default(), commands: histogram(), network: histogram() }
    }
}

impl InitiatorStats {
    pub(super) fn record_command(&self, latency: Duration) {
        record(&self.commands, latency);
    }

    pub(super) fn record_network(&self, latency: Duration) {
        record(&self.network, latency);
    }

    /// Forgets latencies, not counts.
    pub(super) fn reset_latencies(&self) {
        lock(&self.commands).reset();
        lock(&self.network).reset();
    }

    pub(super) fn figures(&self) -> InitiatorMetrics {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        InitiatorMetrics {
            requests: count(&self.counters.requests),
            read_bytes: count(&self.counters.read_bytes),
            written_bytes: count(&self.counters.written_bytes),
            reconnects: count(&self.counters.reconnects),
            resent: count(&self.counters.resent),
            command: latency(&lock(&self.commands)),
            network: latency(&lock(&self.network)),
        }
    }
}

fn lock(histogram: &Mutex<Histogram<u64>>) -> MutexGuard<'_, Histogram<u64>> {
    histogram.lock()
}

fn record(histogram: &Mutex<Histogram<u64>>, latency: Duration) {
    let latency_ns = u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX).max(1);
    lock(histogram).saturating_record(latency_ns);
}

fn latency(histogram: &Histogram<u64>) -> InitiatorLatency {
    if histogram.is_empty() {
        return InitiatorLatency::default();
    }
    InitiatorLatency {
        count: histogram.len(),
        mean_ns: histogram.mean() as u64,
        p50_ns: histogram.value_at_quantile(0.5),
        p99_ns: histogram.value_at_quantile(0.99),
        p999_ns: histogram.value_at_quantile(0.999),
        max_ns: histogram.max(),
    }
}
