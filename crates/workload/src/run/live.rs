//! Counters that threads update while they run, and that an observer reads at any time, without locks.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};

/// Eight buckets per octave: a bucket's bounds differ by an eighth.
const STEPS_PER_OCTAVE: usize = 8;
const BUCKETS: usize = 62 * STEPS_PER_OCTAVE;

/// One thread's counters, in its own cache lines. Only that thread writes, so increments are plain loads and
/// stores.
#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct LiveCounters {
    errors: AtomicU64,
    /// Their sum is the number of operations.
    latencies: [AtomicU64; BUCKETS],
}

impl Default for LiveCounters {
    fn default() -> Self {
        LiveCounters { errors: AtomicU64::new(0), latencies: std::array::from_fn(|_| AtomicU64::new(0)) }
    }
}

fn increment(counter: &AtomicU64) {
    counter.store(counter.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
}

/// Values below 8 have a bucket each. The others share buckets with values of the same three leading bits after the
/// first.
#[inline(always)]
fn bucket_of(ns: u64) -> usize {
    // How many low bits a bucket of this size ignores: none below 16.
    let shift = u64::BITS - 4 - (ns | STEPS_PER_OCTAVE as u64).leading_zeros();
    shift as usize * STEPS_PER_OCTAVE + (ns >> shift) as usize
}

/// The highest value of a bucket.
fn bucket_end_ns(bucket: usize) -> u64 {
    if bucket < STEPS_PER_OCTAVE {
        return bucket as u64;
    }
    let shift = bucket / STEPS_PER_OCTAVE - 1;
    let first = ((STEPS_PER_OCTAVE + bucket % STEPS_PER_OCTAVE) as u64) << shift;
    first + ((1u64 << shift) - 1)
}

impl LiveCounters {
    /// `latency_ns` in modelled time.
    pub(crate) fn answered(&self, latency_ns: u64) {
        self.answered_in(Self::bucket_of(latency_ns));
    }

    /// The same by the [`Self::bucket_of`] the latency.
    #[inline]
    pub(crate) fn answered_in(&self, bucket: usize) {
        increment(&self.latencies[bucket]);
    }

    /// The bucket that counts a latency.
    #[inline(always)]
    pub(crate) fn bucket_of(ns: u64) -> usize {
        bucket_of(ns)
    }

    pub(crate) fn failed(&self) {
        increment(&self.errors);
    }
}

/// The counters of all threads at one moment.
#[derive(Clone, Debug)]
struct CounterSnapshot {
    wall_ns: u64,
    operations: u64,
    errors: u64,
    latencies: Vec<u64>,
}

/// Turns counters into rates over the last second or so.
#[derive(Debug, Default)]
pub(crate) struct LiveMeter {
    snapshots: VecDeque<CounterSnapshot>,
}

/// The meter's reading in wall time; latencies are in modelled time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct LiveReading {
    pub operations: u64,
    pub errors: u64,
    pub throughput_per_wall_s: f64,
    pub mean_us: f64,
    pub p50_us: f64,
    pub p99_us: f64,
}

const METER_SPAN_NS: u64 = 1_000_000_000;

impl LiveMeter {
    pub(crate) fn read(&mut self, wall_ns: u64, threads: &[LiveCounters]) -> LiveReading {
        let sum = |counter: &dyn Fn(&LiveCounters) -> &AtomicU64| {
            threads.iter().map(|thread| counter(thread).load(Ordering::Relaxed)).sum::<u64>()
        };
        let latencies: Vec<u64> =
            (0..BUCKETS).map(|bucket| sum(&|thread| &thread.latencies[bucket])).collect();
        let latest = CounterSnapshot {
            wall_ns,
            operations: latencies.iter().sum(),
            errors: sum(&|thread| &thread.errors),
            latencies,
        };
        // The oldest snapshot kept is a second old, or a little more.
        while self.snapshots.len() > 1 && self.snapshots[1].wall_ns + METER_SPAN_NS <= wall_ns {
            self.snapshots.pop_front();
        }
        let mut reading =
            LiveReading { operations: latest.operations, errors: latest.errors, ..LiveReading::default() };
        if let Some(oldest) = self.snapshots.front() {
            let span_s = (wall_ns - oldest.wall_ns) as f64 / 1e9;
            if span_s > 0.0 {
                reading.throughput_per_wall_s = (latest.operations - oldest.operations) as f64 / span_s;
            }
            let counts: Vec<u64> = latest
                .latencies
                .iter()
                .zip(&oldest.latencies)
                .map(|(after, before)| after - before)
                .collect();
            reading.mean_us = mean_us(&counts);
            reading.p50_us = quantile_us(&counts, 50);
            reading.p99_us = quantile_us(&counts, 99);
        }
        self.snapshots.push_back(latest);
        reading
    }
}

/// Each bucket is represented by its middle.
fn mean_us(counts: &[u64]) -> f64 {
    let total: u64 = counts.iter().sum();
    let sum_ns = |(bucket, count): (usize, &u64)| {
        let begin_ns = if bucket == 0 { 0 } else { bucket_end_ns(bucket - 1) + 1 };
        *count as f64 * (begin_ns as f64 + bucket_end_ns(bucket) as f64) / 2.0
    };
    match total {
        0 => 0.0,
        // Most buckets are empty, and the last ones have no end that fits.
        _ => {
            counts.iter().enumerate().filter(|(_, count)| **count > 0).map(sum_ns).sum::<f64>()
                / total as f64
                / 1e3
        }
    }
}

fn quantile_us(counts: &[u64], percent: u64) -> f64 {
    let total: u64 = counts.iter().sum();
    let wanted = total - total * (100 - percent) / 100;
    let mut seen = 0;
    for (bucket, count) in counts.iter().enumerate() {
        seen += count;
        if *count > 0 && seen >= wanted {
            return bucket_end_ns(bucket) as f64 / 1e3;
        }
    }
    0.0
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn bucket_holds_values_within_an_eighth(ns in 0u64..=u64::MAX) {
            let end_ns = bucket_end_ns(bucket_of(ns));
            prop_assert!(end_ns >= ns);
            prop_assert!(end_ns - ns <= ns / 8);
        }
    }

    #[test]
    fn meter_forgets_values_older_than_a_second() {
        let threads = [LiveCounters::default(), LiveCounters::default()];
        let mut meter = LiveMeter::default();
        meter.read(0, &threads);
        for _ in 0..50 {
            threads[0].answered(1_000_000);
        }
        meter.read(1_000_000_000, &threads);
        for _ in 0..300 {
            threads[1].answered(2_000);
        }
        threads[1].failed();
        let reading = meter.read(2_000_000_000, &threads);
        assert_eq!((reading.operations, reading.errors, reading.throughput_per_wall_s), (350, 1, 300.0));
        for us in [reading.mean_us, reading.p50_us, reading.p99_us] {
            assert!((1.88..2.25).contains(&us), "{reading:?}");
        }
    }
}
