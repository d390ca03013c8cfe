//! Whether the system had warmed up when the measurement began.

use underlay_record::{CellStatus, Measured, RunRecord};

use crate::statistics::settling::{Settling, settling};

/// A beginning of a measurement that was not like the rest of it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WarmUp {
    /// How much longer the warm-up should have been, on the clock of the machine that measured; at least that, where it
    /// never settled.
    pub lacking_wall_s: f64,
    /// The beginning's figure over the rest's, less one: `-0.3` is 30 % lower. Absent where there is no rest that is settled.
    pub difference: Option<f64>,
    pub figure: Figure,
}

/// What shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Figure {
    /// Of a closed loop.
    Throughput,
    /// With a rate, whose throughput is the rate.
    MeanLatency,
}

impl Figure {
    pub fn in_words(self) -> &'static str {
        match self {
            Figure::Throughput => "throughput",
            Figure::MeanLatency => "mean latency",
        }
    }
}

impl WarmUp {
    /// The longest of a cell's repetitions, where most of them show one: a system that warms up does it each time. None where
    /// they are too short to tell.
    ///
    /// Silent about what is meant to change: such a rate, a compaction on command, a fault, a node that goes away, a
    /// data set that grows or shrinks.
    pub fn longest(records: &[&RunRecord]) -> Option<WarmUp> {
        let measured = records.iter().filter(|record| record.measured.is_some()).count();
        let found: Vec<WarmUp> = records.iter().filter_map(|record| WarmUp::of(record)).collect();
        let longest = found.iter().copied().max_by(|a, b| a.lacking_wall_s.total_cmp(&b.lacking_wall_s));
        longest.filter(|_| 2 * found.len() > measured)
    }

    fn of(record: &RunRecord) -> Option<WarmUp> {
        let cell = &record.cell;
        let is_meant = !cell.rate_parts().is_empty()
            || cell.compacts_at().is_some()
            || cell.visits_every_record()
            || !record.node_events.is_empty()
            || record.devices.iter().any(|device| !device.faults.is_empty());
        if is_meant || record.status != CellStatus::Completed {
            return None;
        }
        let figure = if cell.is_unthrottled() { Figure::Throughput } else { Figure::MeanLatency };
        WarmUp::of_measurement(record.measured.as_ref()?, figure, record.scale.time)
    }

    /// What one measurement shows, of which `time` seconds here are one. None where it is steady, or too short to tell.
    pub fn of_measurement(measured: &Measured, figure: Figure, time: f64) -> Option<WarmUp> {
        let samples = samples(measured, figure);
        let (count, difference) = match settling(&samples)? {
            Settling::Steady => return None,
            Settling::WarmsUp { samples, difference } => (samples, Some(difference)),
            Settling::NeverSettles => (samples.len(), None),
        };
        let end_s = measured.series.get(count.checked_sub(1)?)?.t_s;
        // The series counts modelled seconds; a study sets its warm-up on the wall clock.
        Some(WarmUp { lacking_wall_s: end_s * time, difference, figure })
    }
}

fn samples(measured: &Measured, figure: Figure) -> Vec<f64> {
    let pick = |point: &underlay_record::SeriesPoint| match figure {
        Figure::Throughput => point.throughput_per_s,
        Figure::MeanLatency => point.mean_us,
    };
    measured.series.iter().map(pick).collect()
}
