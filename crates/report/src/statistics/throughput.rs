//! Rates and means of a cell over its repetitions.

use underlay_record::MeasuredWindow;

use super::series::mean_error;
use super::{IntervalEstimate, StandardError};

/// The cell's throughput in operations per second: all operations over all time, with its interval.
///
/// None without a repetition that lasted.
pub fn throughput(repetitions: &[&MeasuredWindow]) -> Option<IntervalEstimate> {
    let lasted: Vec<&MeasuredWindow> =
        repetitions.iter().copied().filter(|one| one.duration_s > 0.0).collect();
    let duration_s: f64 = lasted.iter().map(|one| one.duration_s).sum();
    if duration_s <= 0.0 {
        return None;
    }
    let operations: f64 = lasted.iter().map(|one| one.operations as f64).sum();
    let rates: Vec<f64> = lasted.iter().map(|one| one.operations as f64 / one.duration_s).collect();
    let errors: Vec<(f64, Option<StandardError>)> = lasted
        .iter()
        .map(|one| {
            let samples: Vec<f64> = one.series.iter().map(|point| point.throughput_per_s).collect();
            (one.duration_s / duration_s, mean_error(&samples).map(|series| series.error))
        })
        .collect();
    Some(IntervalEstimate::combine(
        operations / duration_s,
        weighted(&errors),
        StandardError::between(&rates),
    ))
}

/// The cell's mean latency in microseconds, with its interval.
///
/// None when no operation was recorded.
pub fn mean_latency_us(repetitions: &[&MeasuredWindow]) -> Option<IntervalEstimate> {
    let count: u64 = repetitions.iter().map(|one| one.latency.histogram.count()).sum();
    if count == 0 {
        return None;
    }
    // Weighted by operations, the repetitions' means add up to the mean of all operations.
    let share = |one: &MeasuredWindow| one.latency.histogram.count() as f64 / count as f64;
    let value = repetitions.iter().map(|one| share(one) * one.latency.histogram.mean_us()).sum();
    let means: Vec<f64> = repetitions
        .iter()
        .filter(|one| one.latency.histogram.count() > 0)
        .map(|one| one.latency.histogram.mean_us())
        .collect();
    let errors: Vec<(f64, Option<StandardError>)> =
        repetitions.iter().map(|one| (share(one), mean_latency_error(one))).collect();
    Some(IntervalEstimate::combine(value, weighted(&errors), StandardError::between(&means)))
}

/// The error of one repetition's mean latency in microseconds, from its time series.
///
/// Intervals hold different numbers of operations, so the mean is a ratio of sums; by the delta method its error is
/// that of the mean of `nᵢ (xᵢ − x̄) / n̄` (W. G. Cochran, "Sampling Techniques", section 6.3: the ratio estimate).
pub fn mean_latency_error(measured: &MeasuredWindow) -> Option<StandardError> {
    let operations: f64 = measured.series.iter().map(|point| point.operations as f64).sum();
    if operations == 0.0 {
        return None;
    }
    let mean =
        measured.series.iter().map(|point| point.operations as f64 * point.mean_us).sum::<f64>() / operations;
    let per_interval = operations / measured.series.len() as f64;
    let deviations: Vec<f64> = measured
        .series
        .iter()
        .map(|point| point.operations as f64 * (point.mean_us - mean) / per_interval)
        .collect();
    mean_error(&deviations).map(|series| series.error)
}

/// The error of a weighted sum of independent estimates; none unless each has one.
pub(crate) fn weighted(parts: &[(f64, Option<StandardError>)]) -> Option<StandardError> {
    let mut variance = 0.0;
    let mut spread = 0.0;
    for (weight, error) in parts {
        let error = (*error)?;
        let part = (weight * error.value).powi(2);
        variance += part;
        spread += part.powi(2) / error.degrees_of_freedom;
    }
    if parts.is_empty() {
        return None;
    }
    // Satterthwaite's, as in `StandardError::larger`.
    let degrees_of_freedom = if spread > 0.0 { variance.powi(2) / spread } else { f64::INFINITY };
    Some(StandardError { value: variance.sqrt(), degrees_of_freedom })
}
