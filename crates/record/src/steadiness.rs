//! Whether what was measured is of a steady state: a system that had warmed up when the measurement began, and figures
//! that did not drift.

use std::fmt;

use schemars::JsonSchema;
use serde::Serialize;

use crate::cell::{CellStatus, RunRecord};
use crate::measured::{MeasuredWindow, SeriesPoint};
use crate::statistics::series::MIN_SAMPLES;
use crate::statistics::settling::{SettlingVerdict, settling};
use crate::statistics::trend;

/// A beginning of a measurement that was not like the rest of it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WarmUp {
    /// How much longer the warm-up should have been, on the clock of the machine that measured; at least that, where it
    /// never settled.
    pub lacking_wall_s: f64,
    /// The beginning's figure over the rest's, less one: `-0.3` is 30 % lower. Absent where there is no rest that is
    /// settled.
    pub difference: Option<f64>,
    pub figure: SteadinessMetric,
}

/// The metric that shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SteadinessMetric {
    /// Of a closed loop.
    Throughput,
    /// With a rate, whose throughput is the rate.
    MeanLatency,
}

impl SteadinessMetric {
    pub fn describe(self) -> &'static str {
        match self {
            SteadinessMetric::Throughput => "throughput",
            SteadinessMetric::MeanLatency => "mean latency",
        }
    }
}

impl WarmUp {
    /// The longest of a cell's repetitions, where most of them show one: a system that warms up does it each time. None
    /// where they are too short to tell.
    ///
    /// Silent about what is meant to change: such a rate, a compaction on command, a fault, a node that goes away, a
    /// data set that grows or shrinks.
    pub fn longest(records: &[&RunRecord]) -> Option<WarmUp> {
        let measured = records.iter().filter(|record| record.measured.is_some()).count();
        let found: Vec<WarmUp> = records.iter().filter_map(|record| WarmUp::from_record(record)).collect();
        let longest = found.iter().copied().max_by(|a, b| a.lacking_wall_s.total_cmp(&b.lacking_wall_s));
        longest.filter(|_| 2 * found.len() > measured)
    }

    fn from_record(record: &RunRecord) -> Option<WarmUp> {
        let cell = &record.cell;
        if is_meant_to_change(record) || record.status != CellStatus::Completed {
            return None;
        }
        let figure =
            if cell.is_unthrottled() { SteadinessMetric::Throughput } else { SteadinessMetric::MeanLatency };
        WarmUp::from_measurement(record.measured.as_ref()?, figure, record.scale.time)
    }

    /// One measurement's steadiness; `time` seconds here are one of its seconds. None where it is steady, or too short
    /// to tell.
    pub fn from_measurement(
        measured: &MeasuredWindow,
        figure: SteadinessMetric,
        time: f64,
    ) -> Option<WarmUp> {
        let samples = samples(measured, figure);
        let (count, difference) = match settling(&samples)? {
            SettlingVerdict::Steady => return None,
            SettlingVerdict::WarmsUp { samples, difference } => (samples, Some(difference)),
            SettlingVerdict::NeverSettles => (samples.len(), None),
        };
        let end_s = measured.series.get(count.checked_sub(1)?)?.t_s;
        // The series counts modelled seconds; a study sets its warm-up on the wall clock.
        Some(WarmUp { lacking_wall_s: end_s * time, difference, figure })
    }
}

fn samples(measured: &MeasuredWindow, figure: SteadinessMetric) -> Vec<f64> {
    let pick = |point: &SeriesPoint| match figure {
        SteadinessMetric::Throughput => point.throughput_per_s,
        SteadinessMetric::MeanLatency => point.mean_us,
    };
    measured.series.iter().map(pick).collect()
}

/// Whether its figures change because that is what was asked for, or because of what was done to it.
fn is_meant_to_change(record: &RunRecord) -> bool {
    let cell = &record.cell;
    !cell.rate_parts().is_empty()
        || cell.compacts_at().is_some()
        || cell.visits_every_record()
        || !record.node_events.is_empty()
        || record.devices.iter().any(|device| !device.faults.is_empty())
}

/// Why a cell's figures are not those of a steady state.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(tag = "unsteady", rename_all = "kebab-case")]
pub enum UnsteadyReason {
    /// Its figure rose or fell by this share of its mean while it was measured.
    Drift { change: f64 },
    /// It was still warming up when the measurement began. The figure was this much higher or lower at first, where the
    /// rest is settled.
    WarmingUp { difference: Option<f64> },
    /// Too few samples to tell.
    TooShort { samples: usize, needed: usize },
}

impl fmt::Display for UnsteadyReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = |change: f64, up, down| if change > 0.0 { up } else { down };
        match *self {
            UnsteadyReason::Drift { change } => {
                let direction = word(change, "rose", "fell");
                write!(f, "it {direction} by {:.0} % of its mean while it was measured", 100.0 * change.abs())
            }
            UnsteadyReason::WarmingUp { difference: Some(share) } => {
                let direction = word(share, "higher", "lower");
                write!(f, "it was still warming up, {:.0} % {direction} at first", 100.0 * share.abs())
            }
            UnsteadyReason::WarmingUp { difference: None } => {
                f.write_str("it still changed in the second half of the measured window")
            }
            UnsteadyReason::TooShort { samples, needed } => {
                write!(f, "its series has {samples} samples, and it takes {needed} to tell")
            }
        }
    }
}

/// Samples that it takes to tell a beginning from the rest.
const NEEDED_SAMPLES: usize = 2 * MIN_SAMPLES;

/// Whether the completed repetitions of a cell show a steady state. A drift of any of them counts, and a warm-up that
/// most of them show. A benchmark that does not tell its progress, and a batch job, are not judged: nothing of theirs
/// is a rate over time.
///
/// # Errors
/// The sign that they do not, or that nothing tells.
pub fn check(records: &[&RunRecord]) -> Result<(), UnsteadyReason> {
    let figure_of = |record: &RunRecord| match record.cell.is_unthrottled() {
        true => SteadinessMetric::Throughput,
        false => SteadinessMetric::MeanLatency,
    };
    for record in records.iter().filter(|record| !is_meant_to_change(record)) {
        let all = match (&record.measured, &record.benchmark) {
            (Some(measured), _) => samples(measured, figure_of(record)),
            (None, Some(benchmark)) => {
                let series = benchmark.figures.first().map_or(&[][..], |first| &first.series);
                if series.len() < NEEDED_SAMPLES {
                    continue;
                }
                series.iter().map(|sample| sample.value).collect()
            }
            (None, None) => continue,
        };
        if all.len() < NEEDED_SAMPLES {
            return Err(UnsteadyReason::TooShort { samples: all.len(), needed: NEEDED_SAMPLES });
        }
        if let Some(change) = trend::change(&all) {
            return Err(UnsteadyReason::Drift { change });
        }
    }
    match WarmUp::longest(records) {
        Some(warm_up) => Err(UnsteadyReason::WarmingUp { difference: warm_up.difference }),
        None => Ok(()),
    }
}
