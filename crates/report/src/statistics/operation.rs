//! The latencies of one kind of operation among several.

use std::collections::{BTreeMap, BTreeSet};

use underlay_record::{Histogram, MeasuredWindow, RecordedLatency};

use super::quantile::{design_effect, is_measurable, merged, quantile_us};
use super::{IntervalEstimate, StandardError};

/// The metrics of one kind of operation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OperationFigures {
    pub count: u64,
    pub mean_us: IntervalEstimate,
    /// Absent where too few operations lie beyond it.
    pub p999_us: Option<IntervalEstimate>,
}

/// One of an operation's latencies.
pub type LatencyPick = fn(&OperationFigures) -> Option<IntervalEstimate>;

/// The latencies that tables show of each kind of operation.
pub const SHOWN: [(&str, LatencyPick); 2] =
    [("mean", |figures| Some(figures.mean_us)), ("p99.9", |figures| figures.p999_us)];

/// Every kind of operation that repetitions have, by its name: `read`, `update`.
pub fn group_by_operation(repetitions: &[&MeasuredWindow]) -> BTreeMap<String, OperationFigures> {
    let kinds: BTreeSet<&String> = repetitions.iter().flat_map(|one| one.by_operation.keys()).collect();
    kinds.into_iter().filter_map(|kind| Some((kind.clone(), figures(repetitions, kind)?))).collect()
}

fn figures(repetitions: &[&MeasuredWindow], kind: &str) -> Option<OperationFigures> {
    // The time series is of all kinds together: what correlates their latencies correlates those of this kind.
    let alone: Vec<MeasuredWindow> = repetitions
        .iter()
        .map(|one| {
            let latency: RecordedLatency =
                one.by_operation.get(kind).map(|stats| stats.latency.clone()).unwrap_or_default();
            MeasuredWindow { latency, by_operation: BTreeMap::new(), ..(*one).clone() }
        })
        .collect();
    let alone: Vec<&MeasuredWindow> = alone.iter().collect();
    let all = merged(&alone);
    if all.count() == 0 {
        return None;
    }
    let p999_us = is_measurable(all.count(), 0.999).then(|| quantile_us(&alone, &all, 0.999)).flatten();
    Some(OperationFigures { count: all.count(), mean_us: mean_us(repetitions, &alone, &all), p999_us })
}

/// The mean with its interval: within repetitions by the operations' own spread over as many of them as are independent
/// of one another, which the series of all kinds together tells.
fn mean_us(repetitions: &[&MeasuredWindow], alone: &[&MeasuredWindow], all: &Histogram) -> IntervalEstimate {
    let (mean, count) = (all.mean_us(), all.count() as f64);
    let squares: f64 =
        all.values_ns().map(|(ns, times)| times as f64 * (ns as f64 / 1e3 - mean).powi(2)).sum();
    let has_series = repetitions.iter().all(|one| one.series.len() > 1);
    let within_error = has_series.then(|| StandardError {
        value: (squares / count.powi(2) * design_effect(repetitions)).sqrt(),
        degrees_of_freedom: repetitions.iter().map(|one| one.series.len() as f64 - 1.0).sum::<f64>().max(1.0),
    });
    let means: Vec<f64> = alone
        .iter()
        .filter(|one| one.latency.histogram.count() > 0)
        .map(|one| one.latency.histogram.mean_us())
        .collect();
    IntervalEstimate::combine(mean, within_error, StandardError::between(&means))
}
