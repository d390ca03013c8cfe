//! Published figures beside ours.

pub mod accuracy;
pub mod data;

use underlay_record::metric::{LatencyStatistic, RequestKinds};
use underlay_record::{Cell, PublishedFigure, PublishedMetric, ReferenceTable};

use crate::cell::activity::{RequestDirection, request_bytes};
use crate::comparison::background::CompactionComparison;
use crate::comparison::{CellResult, ComparisonRow, RowMetrics, RunComparison};
use crate::findings::reference::data::{DataFit, LessData};
use crate::quantity;
use crate::statistics::ratio::{EstimateRatio, RatioDifference};
use crate::statistics::{ConfidenceInterval, IntervalEstimate, StandardError};

/// One published figure with what a cell of ours says.
#[derive(Clone, Debug)]
pub struct PublishedComparison<'a> {
    pub figure: &'a PublishedFigure,
    /// Index of the row in [`RunComparison::rows`] that it is held against; absent when no row fits, and where it is
    /// the mean over several.
    pub row: Option<usize>,
    /// In the figure's own unit.
    pub ours: Option<IntervalEstimate>,
    /// Published figure to the published one of the baseline; absent on the baseline and where none was published.
    pub published_ratio: Option<f64>,
    pub our_ratio: Option<EstimateRatio>,
    pub reading: ReferenceReading,
    /// Ours has less data than what is published.
    pub less_data: Option<LessData>,
}

/// How a published ratio and ours compare.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ReferenceReading {
    /// Ours holds the published ratio in its interval, or comes within a quarter of it.
    Agrees,
    SameDirectionSmaller,
    SameDirectionLarger,
    Opposite,
    /// Published a difference where ours sees none.
    NoDifferenceHere,
    /// Published none where ours sees one.
    OnlyHere,
    /// Ours is so uncertain that its interval holds the published ratio although the two are far apart.
    TooUncertain,
    /// One of the two ratios is missing.
    NotCompared,
}

impl ReferenceReading {
    pub fn describe(self) -> &'static str {
        match self {
            ReferenceReading::Agrees => "agrees",
            ReferenceReading::SameDirectionSmaller => "same direction, smaller",
            ReferenceReading::SameDirectionLarger => "same direction, larger",
            ReferenceReading::Opposite => "opposite",
            ReferenceReading::NoDifferenceHere => "no difference seen here",
            ReferenceReading::OnlyHere => "a difference only here",
            ReferenceReading::TooUncertain => "too uncertain to say",
            ReferenceReading::NotCompared => quantity::ABSENT,
        }
    }

    /// The reading of `ours` against a published ratio.
    pub fn classify(published: f64, ours: &EstimateRatio) -> ReferenceReading {
        if !(published > 0.0 && published.is_finite()) {
            return ReferenceReading::NotCompared;
        }
        let is_close = (ours.value / published).ln().abs() <= AGREEMENT.ln();
        let published_differs = published.ln().abs() > NO_DIFFERENCE.ln();
        if ours.difference() == RatioDifference::NoneSeen && published_differs && !is_close {
            // An interval that is wide enough for both supports neither.
            return ReferenceReading::NoDifferenceHere;
        }
        let opposite = published_differs && published.ln() * ours.value.ln() < 0.0;
        if !opposite && is_close {
            return ReferenceReading::Agrees;
        }
        if ours.interval.is_some_and(|interval| interval.contains(published)) {
            let apart = (ours.value / published).ln().abs();
            return if apart <= FAR_APART.ln() && !opposite {
                ReferenceReading::Agrees
            } else {
                ReferenceReading::TooUncertain
            };
        }
        let (published, ours) = (published.ln(), ours.value.ln());
        if published.abs() <= NO_DIFFERENCE.ln() {
            ReferenceReading::OnlyHere
        } else if published * ours < 0.0 {
            ReferenceReading::Opposite
        } else if ours.abs() < published.abs() {
            ReferenceReading::SameDirectionSmaller
        } else {
            ReferenceReading::SameDirectionLarger
        }
    }
}

/// Two ratios within this factor of each other agree, regardless of their intervals.
const AGREEMENT: f64 = 1.25;
/// Ratios further apart than this never agree: an interval that holds both is too wide to tell them apart.
const FAR_APART: f64 = 2.0;
/// A published ratio within this factor of 1 is read as no difference: papers seldom give intervals.
const NO_DIFFERENCE: f64 = 1.05;

/// Every published figure with each row of ours that it fits; a figure that fits none appears once, without ours.
pub fn compare<'a>(table: &'a ReferenceTable, comparison: &RunComparison) -> Vec<PublishedComparison<'a>> {
    let mut all = Vec::new();
    for figure in &table.figures {
        let storage = comparison.storages.iter().position(|name| *name == figure.storage);
        let (rows, less_data) = matching_rows(figure, table, comparison);
        let published_ratio = published_ratio(figure, table, comparison.baseline);
        // A mean over mixes is one figure, over any number of rows.
        let parts: Vec<(Option<usize>, Vec<usize>)> = match figure.mix.as_str() {
            _ if rows.is_empty() => vec![(None, Vec::new())],
            ALL_MIXES => vec![(None, rows)],
            _ => rows.into_iter().map(|row| (Some(row), vec![row])).collect(),
        };
        for (row, rows) in parts {
            let estimate = |storage: Option<usize>| {
                let each: Option<Vec<IntervalEstimate>> = rows
                    .iter()
                    .map(|row| ours(comparison.rows[*row].cells.get(storage?)?.as_ref()?, &figure.metric))
                    .collect();
                mean(&each?)
            };
            let ours = estimate(storage);
            let our_ratio = match (&ours, estimate(comparison.baseline_index())) {
                _ if figure.metric == PublishedMetric::RelativePerformance => {
                    row.zip(storage).and_then(|(row, storage)| comparison.rows[row].job(storage)?.performance)
                }
                (Some(ours), Some(base)) if figure.storage != comparison.baseline => {
                    EstimateRatio::new(ours, &base)
                }
                _ => None,
            };
            let reading = match (published_ratio, &our_ratio) {
                (Some(published), Some(ours)) => ReferenceReading::classify(published, ours),
                _ => ReferenceReading::NotCompared,
            };
            all.push(PublishedComparison {
                figure,
                row,
                ours,
                published_ratio,
                our_ratio,
                reading,
                less_data,
            });
        }
    }
    all
}

/// The mix of a figure that is the mean over all mixes.
pub const ALL_MIXES: &str = "all";
/// The mean of independent estimates, each of which counts as much; none of none.
fn mean(each: &[IntervalEstimate]) -> Option<IntervalEstimate> {
    let count = each.len() as f64;
    if let [one] = each {
        return Some(*one);
    }
    let value = each.iter().map(|one| one.value).sum::<f64>() / count;
    let errors: Option<Vec<(f64, f64)>> = each
        .iter()
        .map(|one| Some(((one.standard_error? / count).powi(2), one.degrees_of_freedom)))
        .collect();
    // Variances of independent estimates add up; the degrees of freedom are Satterthwaite's.
    let error = errors.map(|parts| {
        let variance: f64 = parts.iter().map(|part| part.0).sum();
        let spread: f64 = parts.iter().map(|(variance, degrees)| variance.powi(2) / degrees).sum();
        let degrees_of_freedom = if spread > 0.0 { variance.powi(2) / spread } else { f64::INFINITY };
        StandardError { value: variance.sqrt(), degrees_of_freedom }
    });
    (!each.is_empty()).then(|| IntervalEstimate::combine(value, error, None))
}

/// Rows that the figure's conditions fit, and what they lack of its data. Closed loops are preferred to offered rates,
/// and a number of threads that no row has is disregarded: a scaled study seldom has the paper's. Where some rows have
/// the figure's data, those with less are not held against it.
fn matching_rows(
    figure: &PublishedFigure,
    table: &ReferenceTable,
    comparison: &RunComparison,
) -> (Vec<usize>, Option<LessData>) {
    let fit = |cell: &Cell| match &figure.data {
        None => Some(DataFit::Same),
        Some(label) => data::fit(label, figure.data_bytes, cell, table, comparison.shortened),
    };
    let fits = |row: &ComparisonRow| {
        let cell = row.cell;
        let is_mix = match figure.mix.as_str() {
            ALL_MIXES => {
                row.is_operations() && matches!(cell.mix_or_job(), "a" | "b" | "c" | "d" | "e" | "f")
            }
            mix => cell.mix_or_job().eq_ignore_ascii_case(mix),
        };
        // No paper forces a compaction for its figures.
        is_mix
            && cell.compacts_at().is_none()
            && figure.distribution.as_ref().is_none_or(|name| {
                cell.requests().is_some_and(|requests| requests.distribution.eq_ignore_ascii_case(name))
            })
            && fit(cell).is_some()
    };
    let mut rows: Vec<usize> =
        comparison.rows.iter().enumerate().filter(|(_, row)| fits(row)).map(|(index, _)| index).collect();
    let narrow = |rows: &mut Vec<usize>, keep: &dyn Fn(&Cell) -> bool| {
        let matching: Vec<usize> =
            rows.iter().copied().filter(|index| keep(comparison.rows[*index].cell)).collect();
        if !matching.is_empty() {
            *rows = matching;
        }
    };
    narrow(&mut rows, &|cell| fit(cell) == Some(DataFit::Same));
    narrow(&mut rows, &|cell| {
        let threads = cell.requests().map(|requests| requests.threads);
        figure.threads.is_none() || figure.threads == threads
    });
    narrow(&mut rows, &|cell| cell.rate_per_s().is_none() && cell.rate_within().is_none());
    let less_data = rows.iter().find_map(|row| match fit(comparison.rows[*row].cell) {
        Some(DataFit::Less(less)) => Some(less),
        _ => None,
    });
    (rows, less_data)
}

fn published_ratio(figure: &PublishedFigure, table: &ReferenceTable, baseline: &str) -> Option<f64> {
    if figure.storage == baseline {
        return None;
    }
    if figure.metric == PublishedMetric::RelativePerformance {
        return Some(figure.value);
    }
    let base = table.figures.iter().find(|other| {
        other.storage == baseline
            && other.mix == figure.mix
            && other.distribution == figure.distribution
            && other.data == figure.data
            && other.threads == figure.threads
            && other.metric == figure.metric
    })?;
    (base.value > 0.0).then(|| figure.value / base.value)
}

/// Our figure for a metric, in the metric's unit. None for a metric that the cell doesn't have.
pub(crate) fn ours(result: &CellResult, metric: &PublishedMetric) -> Option<IntervalEstimate> {
    let kinds = match metric {
        PublishedMetric::Duration => return result.job().map(|job| job.duration_s),
        PublishedMetric::CompactionSlowdown => {
            return CompactionComparison::from_result(result)?.slowdown_estimate();
        }
        PublishedMetric::Throughput => return Some(result.figures()?.throughput_per_s),
        PublishedMetric::Latency { operation, statistic, unit } => {
            return latency(result.figures()?, operation.as_deref(), *statistic, unit.per_us());
        }
        PublishedMetric::RequestBytes(RequestKinds::Both) => RequestDirection::Both,
        PublishedMetric::RequestBytes(RequestKinds::Reads) => RequestDirection::Reads,
        PublishedMetric::RequestBytes(RequestKinds::Writes) => RequestDirection::Writes,
        PublishedMetric::RelativePerformance
        | PublishedMetric::UsdPerPerformance
        | PublishedMetric::UsdPerTb
        | PublishedMetric::Other(_) => return None,
    };
    request_bytes(&result.completed().collect::<Vec<_>>(), kinds)
}

/// `factor` turns microseconds into the unit that is asked for.
fn latency(
    figures: &RowMetrics,
    operation: Option<&str>,
    statistic: LatencyStatistic,
    factor: f64,
) -> Option<IntervalEstimate> {
    let estimate = match (operation, statistic) {
        (None, LatencyStatistic::Mean) => figures.mean_us,
        (None, LatencyStatistic::P50 | LatencyStatistic::Median) => figures.p50_us,
        (None, LatencyStatistic::P99) => figures.p99_us,
        (None, LatencyStatistic::P999) => figures.p999_us,
        (Some(operation), LatencyStatistic::Mean) => figures.operations.get(operation).map(|one| one.mean_us),
        (Some(operation), LatencyStatistic::P999) => {
            figures.operations.get(operation).and_then(|one| one.p999_us)
        }
        (Some(_), LatencyStatistic::P50 | LatencyStatistic::Median | LatencyStatistic::P99) => None,
    }?;
    Some(IntervalEstimate {
        value: estimate.value * factor,
        standard_error: estimate.standard_error.map(|error| error * factor),
        degrees_of_freedom: estimate.degrees_of_freedom,
        interval: estimate
            .interval
            .map(|one| ConfidenceInterval { low: one.low * factor, high: one.high * factor }),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readings_cover_both_directions() {
        let sure = |value: f64| EstimateRatio {
            value,
            interval: Some(ConfidenceInterval { low: value * 0.98, high: value * 1.02 }),
        };
        let vague = |value: f64| EstimateRatio {
            value,
            interval: Some(ConfidenceInterval { low: value * 0.4, high: value * 2.5 }),
        };
        assert_eq!(ReferenceReading::classify(10.0, &sure(11.0)), ReferenceReading::Agrees);
        assert_eq!(ReferenceReading::classify(10.0, &vague(5.0)), ReferenceReading::Agrees);
        assert_eq!(ReferenceReading::classify(10.0, &sure(5.0)), ReferenceReading::SameDirectionSmaller);
        assert_eq!(ReferenceReading::classify(10.0, &sure(20.0)), ReferenceReading::SameDirectionLarger);
        assert_eq!(ReferenceReading::classify(0.1, &sure(0.05)), ReferenceReading::SameDirectionLarger);
        assert_eq!(ReferenceReading::classify(0.1, &sure(0.2)), ReferenceReading::SameDirectionSmaller);
        assert_eq!(ReferenceReading::classify(10.0, &sure(0.5)), ReferenceReading::Opposite);
        assert_eq!(ReferenceReading::classify(10.0, &vague(1.1)), ReferenceReading::NoDifferenceHere);
        assert_eq!(
            ReferenceReading::classify(
                10.0,
                &EstimateRatio { value: 5.0, interval: Some(ConfidenceInterval { low: 0.5, high: 50.0 }) }
            ),
            ReferenceReading::NoDifferenceHere
        );
        assert_eq!(ReferenceReading::classify(1.15, &sure(0.95)), ReferenceReading::Opposite);
        let wide = EstimateRatio { value: 5.7, interval: Some(ConfidenceInterval { low: 1.1, high: 30.0 }) };
        assert_eq!(ReferenceReading::classify(1.2, &wide), ReferenceReading::TooUncertain);
        assert_eq!(ReferenceReading::classify(1.01, &sure(3.0)), ReferenceReading::OnlyHere);
        assert_eq!(ReferenceReading::classify(0.0, &sure(3.0)), ReferenceReading::NotCompared);
    }
}
