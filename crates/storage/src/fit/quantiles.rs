//! A measured distribution as few quantiles, whose mean is the measured one.

use underlay_record::Histogram;

use super::medium_file::SOURCE;
use super::rounding::rounded;
use crate::catalogue::SourcedDistribution;

/// Shares at which every distribution is written down.
const SHARES: [f64; 13] = [0.0, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99];
/// And further ones where so many of the slowest begin: the line from p99 to the one slowest of 500 requests would make
/// a dozen slow.
const SLOWEST: [f64; 7] = [1.0, 2.0, 4.0, 10.0, 100.0, 1e3, 1e4];
/// A mean this near to the measured one needs no more quantiles.
const MEAN_ERROR: f64 = 0.005;
const MAX_QUANTILES: usize = 60;

/// Ten digits of a share tell the largest of 100,000 requests from the one before it.
fn rounded_share(share: f64) -> f64 {
    (share * 1e10).round() / 1e10
}

/// The quantiles of what was measured. Between two of them models draw from a straight line; where that would give
/// another mean than was measured, as between two kinds of requests, more are written down.
pub(super) fn quantiles(latency: &Histogram) -> SourcedDistribution {
    let sorted = SortedSamples::from_histogram(latency);
    let count = sorted.count.max(1) as f64;
    // A share beyond which nothing was seen tells nothing.
    let last_seen = 1.0 - 1.0 / count;
    let slowest = SLOWEST.iter().map(|slowest| 1.0 - slowest / count).filter(|share| *share > 0.99);
    let mut shares: Vec<f64> = SHARES.iter().copied().chain(slowest).map(rounded_share).collect();
    shares.retain(|share| *share <= rounded_share(last_seen));
    shares.sort_by(f64::total_cmp);
    let mut points: Vec<(f64, f64)> =
        shares.iter().map(|share| (*share, sorted.quantile_us(*share))).collect();
    // The largest of n draws lies at the share n / (n + 1) on average.
    points.push((rounded_share(1.0 - 1.0 / (count + 1.0)), sorted.quantile_us(1.0)));
    points.dedup_by(|later, earlier| later.0 <= earlier.0);
    let mut found = SourcedDistribution { quantiles: points, source: SOURCE.into(), estimate: false };
    let mean_us = latency.mean_us();
    while (found.mean() - mean_us).abs() > MEAN_ERROR * mean_us && found.quantiles.len() < MAX_QUANTILES {
        let Some((index, point)) = sorted.most_bent(&found.quantiles) else { break };
        found.quantiles.insert(index, point);
    }
    found
}

/// Recorded values in rising order, by the number of requests up to each.
struct SortedSamples {
    /// Requests up to and with this value, and the value.
    upto: Vec<(u64, f64)>,
    count: u64,
}

impl SortedSamples {
    fn from_histogram(latency: &Histogram) -> SortedSamples {
        let mut count = 0;
        let upto = latency
            .values_ns()
            .map(|(ns, requests)| {
                count += requests;
                (count, rounded(ns as f64 / 1e3))
            })
            .collect();
        SortedSamples { upto, count }
    }

    /// The value that this share of all does not exceed.
    fn quantile_us(&self, share: f64) -> f64 {
        // Shares are rounded: 0.998 of 500 requests are 499.
        let rank = ((share * self.count as f64 - 1e-4).ceil() as u64).clamp(1, self.count.max(1));
        let index = self.upto.partition_point(|(upto, _)| *upto < rank);
        self.upto.get(index).or(self.upto.last()).map_or(0.0, |(_, us)| *us)
    }

    /// The quantile between two others at which the line between those is furthest from the truth, weighed by how many
    /// requests lie between, and where it goes in.
    fn most_bent(&self, quantiles: &[(f64, f64)]) -> Option<(usize, (f64, f64))> {
        let mut worst: Option<(f64, usize, (f64, f64))> = None;
        for (index, pair) in quantiles.windows(2).enumerate() {
            let ((share0, us0), (share1, us1)) = (pair[0], pair[1]);
            // Fewer than two requests have no middle.
            if (share1 - share0) * (self.count as f64) < 2.0 || us1 <= us0 {
                continue;
            }
            // The middle on the scale on which models draw a straight line.
            let middle = rounded_share(1.0 - ((1.0 - share0) * (1.0 - share1)).sqrt());
            let us = self.quantile_us(middle);
            let off = (us - (us0 + us1) / 2.0).abs() * (share1 - share0);
            if middle > share0 && middle < share1 && worst.is_none_or(|(most, ..)| off > most) {
                worst = Some((off, index + 1, (middle, us)));
            }
        }
        worst.map(|(_, index, point)| (index, point))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn histogram_of(values: &[(u64, u64)]) -> Histogram {
        let mut histogram = Histogram::default();
        for (us, count) in values {
            histogram.record_n_ns(us * 1000, *count);
        }
        histogram
    }

    #[test]
    fn single_slow_request_stays_single() {
        let latency = histogram_of(&[(50, 200), (60, 312), (90, 4), (3633, 1)]);
        let found = quantiles(&latency);
        assert!((found.mean() / latency.mean_us() - 1.0).abs() < 0.01, "{found:?}, {}", latency.mean_us());
        let last = *found.quantiles.last().unwrap();
        assert!((last.1 / 3633.0 - 1.0).abs() < 0.01, "the slowest is not left out: {found:?}");
    }

    #[test]
    fn two_kinds_of_requests_have_no_middle() {
        let latency = histogram_of(&[(10, 550), (1000, 450)]);
        let found = quantiles(&latency);
        assert!((found.mean() / latency.mean_us() - 1.0).abs() < 0.01, "{found:?}, {}", latency.mean_us());
    }

    #[test]
    fn few_requests_are_written_down_as_they_are() {
        assert_eq!(quantiles(&histogram_of(&[(100, 1)])).quantiles.len(), 2);
        assert!(quantiles(&Histogram::default()).problem(0.0, 1e9).is_none());
    }

    proptest! {
        #[test]
        fn fitted_mean_equals_measured_mean(
            values in prop::collection::vec((1_u64..1_000_000, 1_u64..5_000), 1..12)
        ) {
            let latency = histogram_of(&values);
            let found = quantiles(&latency);
            prop_assert!(found.problem(0.0, 1e9).is_none(), "{found:?}");
            // Of a handful of requests the largest can't be placed exactly.
            let tolerance = 0.02 + 1.0 / latency.count() as f64;
            let off = found.mean() / latency.mean_us() - 1.0;
            prop_assert!(off.abs() < tolerance, "off by {off}: {found:?}");
        }
    }
}
