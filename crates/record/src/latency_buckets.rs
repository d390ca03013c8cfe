//! Latencies counted in a few hundred buckets: cheap to copy out of a busy device. Two copies give the quantiles of the
//! time between them. This is for live views; records have exact distributions.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Each doubling of the latency is divided into so many, of equal width.
const PER_OCTAVE_BITS: u32 = 3;
const PER_OCTAVE: usize = 1 << PER_OCTAVE_BITS;
/// Everything below 2^9 ns is one bucket.
const FIRST_OCTAVE: u32 = 9;
/// Up to 2^38 ns, which are four and a half minutes; slower requests are counted as this slow.
const OCTAVES: usize = 29;
const BUCKETS: usize = 1 + OCTAVES * PER_OCTAVE;

/// How many latencies fell into which bucket. A quantile is off by 6 % at most.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LatencyBuckets {
    counts: [u64; BUCKETS],
}

/// Those that are not empty, as number and count: what is said on sockets.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct SparseBuckets(Vec<(u16, u64)>);

impl Default for LatencyBuckets {
    fn default() -> LatencyBuckets {
        LatencyBuckets { counts: [0; BUCKETS] }
    }
}

fn bucket_of(ns: u64) -> usize {
    let octave = ns.max(1).ilog2();
    if octave < FIRST_OCTAVE {
        return 0;
    }
    let sub_bucket = (ns >> (octave - PER_OCTAVE_BITS)) as usize & (PER_OCTAVE - 1);
    (1 + (octave - FIRST_OCTAVE) as usize * PER_OCTAVE + sub_bucket).min(BUCKETS - 1)
}

/// The middle of a bucket.
fn middle_us(bucket: usize) -> f64 {
    if bucket == 0 {
        return f64::from(1 << FIRST_OCTAVE) / 2.0 / 1e3;
    }
    let (octave, sub_bucket) = ((bucket - 1) / PER_OCTAVE, (bucket - 1) % PER_OCTAVE);
    let low_ns = f64::from(1 << FIRST_OCTAVE) * 2f64.powi(octave as i32);
    low_ns * (1.0 + (sub_bucket as f64 + 0.5) / PER_OCTAVE as f64) / 1e3
}

impl LatencyBuckets {
    #[inline]
    pub fn record_ns(&mut self, ns: u64) {
        self.counts[bucket_of(ns)] += 1;
    }

    pub fn sparse(&self) -> SparseBuckets {
        let filled = (0u16..).zip(&self.counts).filter(|(_, count)| **count > 0);
        SparseBuckets(filled.map(|(bucket, count)| (bucket, *count)).collect())
    }
}

impl SparseBuckets {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The counts since an earlier copy; all of them where counting began anew meanwhile.
    pub fn delta_since(&self, earlier: &SparseBuckets) -> SparseBuckets {
        let before =
            |bucket: u16| earlier.0.iter().find(|(other, _)| *other == bucket).map_or(0, |(_, count)| *count);
        let is_later = earlier.0.iter().all(|(bucket, count)| {
            self.0.iter().find(|(other, _)| other == bucket).is_some_and(|(_, now)| now >= count)
        });
        if !is_later {
            return self.clone();
        }
        let left = self.0.iter().map(|(bucket, count)| (*bucket, count - before(*bucket)));
        SparseBuckets(left.filter(|(_, count)| *count > 0).collect())
    }

    /// In microseconds; nothing where nothing was counted.
    pub fn quantile_us(&self, share: f64) -> Option<f64> {
        let total: u64 = self.0.iter().fold(0, |sum, (_, count)| sum.saturating_add(*count));
        let wanted = ((total as f64 * share).ceil() as u64).clamp(1, total.max(1));
        let mut seen = 0u64;
        let reached = |(_, count): &&(u16, u64)| {
            seen = seen.saturating_add(*count);
            seen >= wanted
        };
        let (bucket, _) = self.0.iter().find(reached)?;
        Some(middle_us(usize::from(*bucket).min(BUCKETS - 1)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(latencies_ns: &[u64]) -> SparseBuckets {
        let mut buckets = LatencyBuckets::default();
        latencies_ns.iter().for_each(|ns| buckets.record_ns(*ns));
        buckets.sparse()
    }

    #[test]
    fn extreme_latencies_have_buckets() {
        let found = counted(&[0, 1, u64::MAX]);
        assert_eq!(found.0, [(0, 2), (BUCKETS as u16 - 1, 1)]);
        assert_eq!(counted(&[]).quantile_us(0.5), None);
    }

    #[test]
    fn counting_that_began_anew_is_told_as_it_is() {
        let before = counted(&[1_000, 2_000, 2_000]);
        assert_eq!(counted(&[2_000]).delta_since(&before), counted(&[2_000]));
        assert_eq!(counted(&[1_000, 2_000, 2_000, 9_000]).delta_since(&before), counted(&[9_000]));
    }

    /// Latencies that look like chance, from 1 µs to 4 minutes.
    fn latencies_ns(seed: u64, count: usize) -> Vec<u64> {
        let mut state = seed;
        let mut next = || {
            // Knuth's MMIX: good enough for a test.
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            state >> 16
        };
        (0..count).map(|_| 1_000 + (next() % (1 << (next() % 38)))).collect()
    }

    #[test]
    fn quantile_error_is_within_a_sixteenth() {
        for seed in 0..200 {
            let mut all_ns = latencies_ns(seed, 1 + seed as usize);
            let found = counted(&all_ns);
            all_ns.sort_unstable();
            for share in [0.0, 0.1, 0.5, 0.9, 0.99, 1.0] {
                let rank = ((all_ns.len() as f64 * share).ceil() as usize).max(1);
                let (found_us, exact_us) = (found.quantile_us(share).unwrap(), all_ns[rank - 1] as f64 / 1e3);
                assert!((found_us / exact_us - 1.0).abs() <= 1.0 / 16.0 + 1e-9, "{found_us} for {exact_us}");
            }
        }
    }

    #[test]
    fn bucket_difference_covers_time_between_copies() {
        for seed in 0..100 {
            let all_ns = latencies_ns(seed, 60);
            let (first, second) = all_ns.split_at(seed as usize % 60);
            assert_eq!(counted(&all_ns).delta_since(&counted(first)), counted(second));
        }
    }
}
