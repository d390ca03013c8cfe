//! The effect of the system's own compactions on operations that users wait for.
//!
//! A system says how many compactions run while it is measured; each interval of the time series then belongs to one of
//! two windows, with a compaction or without. Both windows are of the same storage under the same load, so that what
//! differs is the compaction.

use underlay_record::{MeasuredWindow, RunRecord, SeriesPoint};

use crate::comparison::{CellResult, ComparisonRow, RunComparison};
use crate::statistics::ratio::EstimateRatio;
use crate::statistics::throughput::{mean_latency_error, weighted};
use crate::statistics::{IntervalEstimate, StandardError};

/// How the name of every gauge of running compactions ends: `major_compactions_running`.
const GAUGE: &str = "compactions_running";
/// The end of the one that is preferred where there are several: a major compaction rewrites what is stored.
const MAJOR: &str = "major_compactions_running";

/// The operations of one window.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CompactionWindow {
    pub mean_us: IntervalEstimate,
    pub throughput_per_s: f64,
}

/// A cell's operations with and without a compaction, over all completed repetitions.
#[derive(Clone, Debug, PartialEq)]
pub struct CompactionComparison {
    /// The gauge that tells: `major_compactions_running`. Absent where the system has none. Then only the time of the
    /// command to compact is known, and everything after it counts as with a compaction.
    pub gauge: Option<String>,
    /// Of the measured time, 0 to 1.
    pub share: f64,
    /// Absent when none ran.
    pub during: Option<CompactionWindow>,
    /// Absent when one ran all the time.
    pub without: Option<CompactionWindow>,
    /// Mean latency with a compaction to that without.
    pub slowdown: Option<EstimateRatio>,
}

/// A row with what its cells tell, each with the index of its storage.
pub type RowWith<'c, 'a> = (&'c ComparisonRow<'a>, Vec<(usize, CompactionComparison)>);

impl CompactionComparison {
    /// None where the system tells of no compactions.
    pub fn from_result(result: &CellResult) -> Option<CompactionComparison> {
        let gauge = gauge(result);
        let parts: Vec<SeriesParts> =
            result.completed().filter_map(|record| SeriesParts::new(record, gauge.as_deref())).collect();
        let (during_s, all_s) = parts.iter().fold((0.0, 0.0), |(during, all), one| {
            (during + one.during_s, all + one.during_s + one.without_s)
        });
        if all_s <= 0.0 {
            return None;
        }
        let during = window(&parts, |one| (&one.during, one.during_s));
        let outside = window(&parts, |one| (&one.without, one.without_s));
        let slowdown = during
            .zip(outside)
            .and_then(|(inside, outside)| EstimateRatio::new(&inside.mean_us, &outside.mean_us));
        Some(CompactionComparison { gauge, share: during_s / all_s, during, without: outside, slowdown })
    }

    /// The rows with what their cells tell, by storage, in two: those in which a compaction ran or was asked for, and
    /// the names of those in which none did.
    pub fn group_by_row<'c, 'a>(comparison: &'c RunComparison<'a>) -> (Vec<RowWith<'c, 'a>>, Vec<&'c str>) {
        let (mut ran, mut none_ran) = (Vec::new(), Vec::new());
        for row in comparison.operations() {
            let cells = row.cells.iter().enumerate();
            let found: Vec<(usize, CompactionComparison)> = cells
                .filter_map(|(storage, result)| {
                    Some((storage, CompactionComparison::from_result(result.as_ref()?)?))
                })
                .collect();
            if found.iter().any(|(_, one)| one.during.is_some() || row.cell.compacts_at().is_some()) {
                ran.push((row, found));
            } else if !found.is_empty() {
                none_ran.push(row.label());
            }
        }
        (ran, none_ran)
    }

    /// The slowdown as an estimate, to be held against that of another storage.
    pub fn slowdown_estimate(&self) -> Option<IntervalEstimate> {
        let (during, outside) = (self.during?.mean_us, self.without?.mean_us);
        let value = self.slowdown?.value;
        let relative =
            |one: IntervalEstimate| Some((one.standard_error? / one.value, one.degrees_of_freedom));
        let error = relative(during).zip(relative(outside)).map(|((a, a_degrees), (b, b_degrees))| {
            let (a, b) = (a.powi(2), b.powi(2));
            // By the delta method, with Welch's degrees of freedom, as in `EstimateRatio::of`.
            let spread = a.powi(2) / a_degrees + b.powi(2) / b_degrees;
            let degrees_of_freedom = if spread > 0.0 { (a + b).powi(2) / spread } else { f64::INFINITY };
            StandardError { value: value * (a + b).sqrt(), degrees_of_freedom }
        });
        Some(IntervalEstimate::combine(value, error, None))
    }
}

/// The gauge of a cell's records: that of major compactions, or the first one.
fn gauge(result: &CellResult) -> Option<String> {
    let names = || {
        result.completed().flat_map(|record| &record.system_series).flat_map(|sample| sample.figures.keys())
    };
    let first =
        names().find(|name| name.ends_with(MAJOR)).or_else(|| names().find(|name| name.ends_with(GAUGE)));
    first.cloned()
}

/// One repetition's series in two.
struct SeriesParts {
    during: Vec<SeriesPoint>,
    without: Vec<SeriesPoint>,
    during_s: f64,
    without_s: f64,
}

impl SeriesParts {
    fn new(record: &RunRecord, gauge: Option<&str>) -> Option<SeriesParts> {
        let measured = record.measured.as_ref()?;
        let spans = spans_of(record, gauge);
        let first_s = match gauge {
            Some(gauge) => samples(record, gauge).map(|(t_s, _)| t_s).next()?,
            None => record.cell.compacts_at().map(|_| 0.0)?,
        };
        let mut parts =
            SeriesParts { during: Vec::new(), without: Vec::new(), during_s: 0.0, without_s: 0.0 };
        let mut start_s = 0.0;
        for point in &measured.series {
            let (from_s, to_s) = (start_s, point.t_s);
            start_s = point.t_s;
            let length_s = to_s - from_s;
            // Before the first sample nothing is known.
            if length_s.is_nan() || length_s <= 0.0 || to_s < first_s {
                continue;
            }
            // Any overlap counts: the window without a compaction must hold nothing of one.
            let touches = spans.iter().any(|(begin, end)| *begin < to_s && *end > from_s);
            if touches {
                parts.during.push(*point);
                parts.during_s += length_s;
            } else {
                parts.without.push(*point);
                parts.without_s += length_s;
            }
        }
        Some(parts)
    }
}

fn samples<'a>(record: &'a RunRecord, gauge: &'a str) -> impl Iterator<Item = (f64, f64)> + 'a {
    record
        .system_series
        .iter()
        .filter_map(move |sample| Some((sample.t_s, *sample.figures.get(gauge)?)))
        .filter(|(t_s, value)| t_s.is_finite() && value.is_finite())
}

/// From when to when compactions ran, in seconds from the start of the measurement: a sample speaks for the time since
/// the one before it.
fn spans_of(record: &RunRecord, gauge: Option<&str>) -> Vec<(f64, f64)> {
    let Some(gauge) = gauge else {
        let compaction = record.cell.compacts_at().zip(record.measured.as_ref());
        return compaction.map(|(share, one)| (share * one.duration_s, one.duration_s)).into_iter().collect();
    };
    let mut spans: Vec<(f64, f64)> = Vec::new();
    let mut before_s = 0.0;
    for (t_s, value) in samples(record, gauge) {
        if value > 0.0 {
            match spans.last_mut() {
                Some(last) if last.1 >= before_s => last.1 = t_s,
                _ => spans.push((before_s, t_s)),
            }
        }
        before_s = t_s;
    }
    spans
}

/// When compactions ran in a cell's first completed repetition; none where the system tells of none.
pub fn spans(result: &CellResult) -> Vec<(f64, f64)> {
    result.completed().next().map_or(Vec::new(), |record| spans_of(record, gauge(result).as_deref()))
}

/// The operations of one window over all repetitions; none where it has none.
fn window(
    parts: &[SeriesParts],
    pick: fn(&SeriesParts) -> (&Vec<SeriesPoint>, f64),
) -> Option<CompactionWindow> {
    let each: Vec<(f64, f64, Option<StandardError>)> = parts
        .iter()
        .filter_map(|one| {
            let series = pick(one).0;
            let operations: f64 = series.iter().map(|point| point.operations as f64).sum();
            let total: f64 = series.iter().map(|point| point.operations as f64 * point.mean_us).sum();
            let alone = MeasuredWindow { series: series.clone(), ..MeasuredWindow::default() };
            (operations > 0.0).then(|| (operations, total / operations, mean_latency_error(&alone)))
        })
        .collect();
    let operations: f64 = each.iter().map(|one| one.0).sum();
    let seconds: f64 = parts.iter().map(|one| pick(one).1).sum();
    if operations <= 0.0 || seconds <= 0.0 {
        return None;
    }
    let mean = each.iter().map(|(count, mean, _)| count * mean).sum::<f64>() / operations;
    let errors: Vec<(f64, Option<StandardError>)> =
        each.iter().map(|(count, _, error)| (count / operations, *error)).collect();
    let means: Vec<f64> = each.iter().map(|one| one.1).collect();
    Some(CompactionWindow {
        mean_us: IntervalEstimate::combine(mean, weighted(&errors), StandardError::between(&means)),
        throughput_per_s: operations / seconds,
    })
}
