//! Latency quantiles over repetitions, with intervals.

use underlay_record::{Histogram, MeasuredWindow};

use super::distributions::student_t_quantile;
use super::throughput::mean_latency_error;
use super::{CONFIDENCE, ConfidenceInterval, IntervalEstimate, StandardError};

/// A quantile with fewer operations beyond it than this is not shown: a handful of outliers would decide it.
pub const MIN_OPERATIONS_BEYOND: f64 = 10.0;

/// The histograms of all repetitions as one.
pub fn merged(repetitions: &[&MeasuredWindow]) -> Histogram {
    let mut all = Histogram::default();
    for one in repetitions {
        all.merge(&one.latency.histogram);
    }
    all
}

/// Whether `count` operations leave at least [`MIN_OPERATIONS_BEYOND`] beyond the quantile.
pub fn is_measurable(count: u64, quantile: f64) -> bool {
    // The product of a count and `1 − 0.999` falls short of the whole number that it stands for.
    count as f64 * (1.0 - quantile) + 1e-6 >= MIN_OPERATIONS_BEYOND
}

/// The latency in microseconds that a share `quantile` of the operations stays within, with its interval.
///
/// The value is that of all repetitions together. Its interval takes on each side the larger of two:
/// - the order statistics' ranks `q ± z √(q (1 − q) / nₑ)` of the merged histogram, the normal approximation of the
///   binomial interval (W. J. Conover, "Practical Nonparametric Statistics", 3rd edition, section 3.2), where `nₑ` is
///   the number of operations over the design effect of [`design_effect`]: operations of one moment share its fate;
/// - the spread of the quantile between repetitions, with Student's t.
///
/// None where fewer than [`MIN_OPERATIONS_BEYOND`] operations lie beyond the quantile.
pub fn quantile_us(
    repetitions: &[&MeasuredWindow],
    all: &Histogram,
    quantile: f64,
) -> Option<IntervalEstimate> {
    if !is_measurable(all.count(), quantile) {
        return None;
    }
    let value = all.quantile_us(quantile);
    let effective = (all.count() as f64 / design_effect(repetitions)).max(1.0);
    let z = student_t_quantile(0.5 + CONFIDENCE / 2.0, f64::INFINITY);
    let reach = z * (quantile * (1.0 - quantile) / effective).sqrt();
    let low = all.quantile_us((quantile - reach).max(0.0));
    let high = all.quantile_us((quantile + reach).min(1.0));
    let each: Vec<f64> = repetitions
        .iter()
        .filter(|one| one.latency.histogram.count() > 0)
        .map(|one| one.latency.histogram.quantile_us(quantile))
        .collect();
    let between = StandardError::between(&each);
    let side = |half: f64| {
        let within_error = StandardError { value: half.max(0.0) / z, degrees_of_freedom: f64::INFINITY };
        StandardError::larger(Some(within_error), between).expect("one of them is given")
    };
    let (below, above) = (side(value - low), side(high - value));
    let larger = if below.value > above.value { below } else { above };
    Some(IntervalEstimate {
        value,
        standard_error: Some(larger.value),
        degrees_of_freedom: larger.degrees_of_freedom,
        interval: Some(ConfidenceInterval {
            low: (value - below.half_width()).max(0.0),
            high: value + above.half_width(),
        }),
    })
}

/// By how much the correlation of operations inflates the variance of their mean latency (L. Kish, "Survey
/// Sampling", section 8.2): the variance from the time series over that of as many independent operations.
///
/// At least one; one where a repetition has no usable time series.
pub fn design_effect(repetitions: &[&MeasuredWindow]) -> f64 {
    let mut worst: f64 = 1.0;
    for one in repetitions {
        let histogram = &one.latency.histogram;
        let (Some(error), count) = (mean_latency_error(one), histogram.count()) else { continue };
        let mean = histogram.mean_us();
        let squares: f64 =
            histogram.values_ns().map(|(ns, times)| times as f64 * (ns as f64 / 1e3 - mean).powi(2)).sum();
        // The variance of the mean of independent operations: theirs, divided once more by their number.
        let independent = squares / (count as f64).powi(2);
        if independent > 0.0 {
            worst = worst.max(error.value.powi(2) / independent);
        }
    }
    worst
}
