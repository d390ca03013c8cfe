//! How long the load generator and the devices waited for a CPU while a cell was measured.
//!
//! The kernel counts this per thread, and forgets threads that have ended. So the counters are read repeatedly while
//! the threads live, and the differences are added up.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use underlay_attach::{CpuWaits, Processors};

use crate::ticker::SamplerTicker;

/// A reading takes some 10 µs per thread.
const EVERY: Duration = Duration::from_millis(250);
/// Readings may take this share of a CPU; beyond it they become rarer.
const SHARE_OF_A_CPU: f64 = 0.01;
/// If less than this share of the time was observed, there is no result.
const SEEN: f64 = 0.5;

/// The observations so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ObservedCpuWaits {
    /// Added up over threads.
    waited: Duration,
    /// The time over which this was observed.
    seen: Duration,
}

impl ObservedCpuWaits {
    /// The mean number of threads since `before` that were ready to run and had no CPU; `None` where too little of that
    /// time was observed.
    pub(super) fn threads_since(self, before: ObservedCpuWaits, elapsed: Duration) -> Option<f64> {
        let seen = self.seen.saturating_sub(before.seen);
        if seen.is_zero() || seen < elapsed.mul_f64(SEEN) {
            return None;
        }
        Some(self.waited.saturating_sub(before.waited).as_secs_f64() / seen.as_secs_f64())
    }
}

#[derive(Default)]
struct CpuWaitTotals {
    waited_ns: AtomicU64,
    seen_ns: AtomicU64,
}

/// A thread that reads the counters. It ends when this is dropped.
pub(super) struct WaitProbe {
    totals: Arc<CpuWaitTotals>,
    ticker: SamplerTicker,
}

impl WaitProbe {
    /// Where the thread can't be started, or the kernel keeps no counters, nothing is observed.
    pub(super) fn start(cpus: &Processors) -> WaitProbe {
        let totals = Arc::new(CpuWaitTotals::default());
        let (shared_totals, cpus) = (totals.clone(), cpus.clone());
        let ticker = SamplerTicker::start("cpu-waits", EVERY, move || {
            let read = move || (Instant::now(), CpuWaits::read(underlay_workload::CLIENT_THREADS, &cpus));
            let mut last = read();
            Some(move || {
                let now = read();
                let pause = EVERY.max(now.0.elapsed().div_f64(SHARE_OF_A_CPU));
                let elapsed = now.0 - last.0;
                if let Some(waited) = now.1.delta_since(&last.1) {
                    // A concurrent read is off by one interval.
                    shared_totals.waited_ns.fetch_add(waited.as_nanos() as u64, Ordering::Relaxed);
                    shared_totals.seen_ns.fetch_add(elapsed.as_nanos() as u64, Ordering::Relaxed);
                }
                last = now;
                pause
            })
        });
        WaitProbe { totals, ticker }
    }

    pub(super) fn read(&self) -> ObservedCpuWaits {
        self.ticker.check();
        ObservedCpuWaits {
            waited: Duration::from_nanos(self.totals.waited_ns.load(Ordering::Relaxed)),
            seen: Duration::from_nanos(self.totals.seen_ns.load(Ordering::Relaxed)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn barely_observed_waits_are_omitted() {
        let waits_at = |waited_ms, seen_ms| ObservedCpuWaits {
            waited: Duration::from_millis(waited_ms),
            seen: Duration::from_millis(seen_ms),
        };
        let second = Duration::from_secs(1);
        // Three threads, on average, of 800 ms.
        let threads = waits_at(2500, 1000).threads_since(waits_at(100, 200), second).unwrap();
        assert!((threads - 3.0).abs() < 1e-9);
        assert_eq!(waits_at(2500, 600).threads_since(waits_at(100, 200), second), None);
        assert_eq!(waits_at(0, 0).threads_since(waits_at(0, 0), second), None);
    }
}
