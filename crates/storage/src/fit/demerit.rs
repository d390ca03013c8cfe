//! How far two latency distributions lie apart.

use serde::{Deserialize, Serialize};
use underlay_record::Histogram;

/// The distance of a distribution from the one that it should be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DistributionDistance {
    /// The root mean square of the horizontal distance between the two cumulative curves (Ruemmler and Wilkes,
    /// "An introduction to disk drive modeling", 1994), in microseconds.
    pub demerit_us: f64,
    /// The same as a share of the mean that should be.
    pub demerit: f64,
    /// Relative differences.
    pub mean: f64,
    pub p50: f64,
    pub p99: f64,
}

/// How many shares of the distributions are compared, each in the middle of one of as many equal parts.
const SHARES: usize = 10_000;

/// The distance of `actual` from `expected`; `None` when one of them is empty.
pub fn distance(expected: &Histogram, actual: &Histogram) -> Option<DistributionDistance> {
    if expected.count() == 0 || actual.count() == 0 {
        return None;
    }
    let (wanted, found) = (sampled_us(expected), sampled_us(actual));
    let squares: f64 = wanted.iter().zip(&found).map(|(a, b)| (a - b).powi(2)).sum();
    let demerit_us = (squares / SHARES as f64).sqrt();
    let relative = |actual: f64, expected: f64| if expected > 0.0 { actual / expected - 1.0 } else { 0.0 };
    Some(DistributionDistance {
        demerit_us,
        demerit: demerit_us / expected.mean_us().max(f64::MIN_POSITIVE),
        mean: relative(actual.mean_us(), expected.mean_us()),
        p50: relative(actual.quantile_us(0.5), expected.quantile_us(0.5)),
        p99: relative(actual.quantile_us(0.99), expected.quantile_us(0.99)),
    })
}

/// The latency at the middle of each of `SHARES` equal parts of all requests.
fn sampled_us(histogram: &Histogram) -> Vec<f64> {
    let all = histogram.count() as f64;
    let mut sampled = Vec::with_capacity(SHARES);
    let mut below = 0u64;
    for (ns, count) in histogram.values_ns() {
        below += count;
        while sampled.len() < SHARES && (sampled.len() as f64 + 0.5) / SHARES as f64 * all <= below as f64 {
            sampled.push(ns as f64 / 1e3);
        }
    }
    sampled
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn histogram_of(values_us: &[u64]) -> Histogram {
        let mut histogram = Histogram::default();
        values_us.iter().for_each(|us| histogram.record_ns(us * 1000));
        histogram
    }

    #[test]
    fn constant_shift_equals_its_demerit() {
        let expected = histogram_of(&[100, 200, 300, 400]);
        let found = distance(&expected, &histogram_of(&[110, 210, 310, 410])).unwrap();
        assert!((found.demerit_us - 10.0).abs() < 0.4, "{found:?}");
        assert!((found.demerit - 0.04).abs() < 0.002, "{found:?}");
        assert_eq!(distance(&expected, &expected).unwrap().demerit_us, 0.0);
        assert!(distance(&expected, &Histogram::default()).is_none());
    }

    proptest! {
        /// Against sorted lists of equal length, where the curve's distance is that of the pairs.
        #[test]
        fn equals_the_distance_of_sorted_pairs(pairs in prop::collection::vec((1u64..100_000, 1u64..100_000), 1..100)) {
            let (mut a, mut b): (Vec<u64>, Vec<u64>) = pairs.into_iter().unzip();
            let found = distance(&histogram_of(&a), &histogram_of(&b)).unwrap().demerit_us;
            a.sort_unstable();
            b.sort_unstable();
            let squares: f64 = a.iter().zip(&b).map(|(a, b)| (*a as f64 - *b as f64).powi(2)).sum();
            let expected = (squares / a.len() as f64).sqrt();
            // Histograms hold three digits, and shares are 10,000.
            let largest = *a.last().unwrap().max(b.last().unwrap()) as f64;
            prop_assert!((found - expected).abs() <= 0.01 * largest + 0.01 * expected, "{found} {expected}");
        }
    }
}
