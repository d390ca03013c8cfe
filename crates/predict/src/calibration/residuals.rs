//! The errors of answers: each measured cell is predicted from the others.

use std::collections::BTreeMap;

use statrs::distribution::{ContinuousCDF, StudentsT};

use super::{Calibration, PredictedMetric, UNKNOWN_ERROR};
use crate::cell::{CellPoint, MeasuredCell};

/// Which measured cells an answer must do without.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeftOut {
    /// Every cell on the same storage configuration.
    Storage,
    /// Every cell of the same size.
    Size,
    /// Every cell with the same number of threads, or the same rate.
    Threads,
}

impl LeftOut {
    pub const ALL: [LeftOut; 3] = [LeftOut::Storage, LeftOut::Size, LeftOut::Threads];

    /// In words: `a storage`.
    pub fn name(self) -> &'static str {
        match self {
            LeftOut::Storage => "a storage",
            LeftOut::Size => "a size",
            LeftOut::Threads => "a number of threads",
        }
    }

    /// Whether `other` must not be used to answer `point`.
    pub fn leaves_out(self, point: &CellPoint, other: &CellPoint) -> bool {
        match self {
            LeftOut::Storage => point.volumes == other.volumes,
            LeftOut::Size => (point.data_to_memory() / other.data_to_memory() - 1.0).abs() < 0.02,
            LeftOut::Threads => point.threads == other.threads && point.arrivals == other.arrivals,
        }
    }
}

/// Errors grow with the distance of the nearest measured cell, beyond this distance (a logarithm). A storage
/// configuration forty times as fast says less about another one than one that is twice as fast.
const NEAR: f64 = 1.5;
/// Fewer errors say nothing.
const MIN_ERRORS: usize = 2;
/// The share that an interval must contain.
const COVERED: f64 = 0.95;

/// Errors of answers, as logarithms of predicted over measured, by system: errors for one system say nothing about
/// another.
#[derive(Clone, Debug, Default)]
pub(super) struct ResidualErrors {
    of: BTreeMap<String, SystemErrors>,
}

/// Those of one system, by metric.
#[derive(Clone, Debug, Default)]
pub(super) struct SystemErrors {
    /// Each normalised to a nearest cell at no distance.
    of: [Vec<f64>; 4],
}

impl ResidualErrors {
    pub(super) fn find_system(&self, system: &str) -> &SystemErrors {
        static NONE: SystemErrors = SystemErrors { of: [const { Vec::new() }; 4] };
        self.of.get(system).unwrap_or(&NONE)
    }
}

impl SystemErrors {
    /// Whether there are enough to say anything.
    pub(super) fn tell(&self, metric: PredictedMetric) -> bool {
        self.of[metric.index()].len() >= MIN_ERRORS
    }

    /// The mean square for an answer whose nearest cell has this distance. It is about zero and not about the mean,
    /// since a bias is an error too.
    pub(super) fn squared(&self, metric: PredictedMetric, distance: f64) -> f64 {
        if !self.tell(metric) {
            return UNKNOWN_ERROR * UNKNOWN_ERROR;
        }
        let errors = &self.of[metric.index()];
        let at_once = errors.iter().map(|error| error * error).sum::<f64>() / errors.len() as f64;
        at_once * (1.0 + distance / NEAR).powi(2)
    }

    /// The bound that contains 95 % of the errors, regardless of their distribution: the conformal quantile of Vovk,
    /// Gammerman and Shafer, "Algorithmic Learning in a Random World" (2005). With fewer than 19 errors it is the
    /// largest one. Zero if there are too few.
    pub(super) fn quantile(&self, metric: PredictedMetric, distance: f64) -> f64 {
        if !self.tell(metric) {
            return 0.0;
        }
        let mut sizes: Vec<f64> = self.of[metric.index()].iter().map(|error| error.abs()).collect();
        sizes.sort_by(f64::total_cmp);
        let rank = (COVERED * (sizes.len() + 1) as f64).ceil() as usize;
        sizes[rank.clamp(1, sizes.len()) - 1] * (1.0 + distance / NEAR)
    }

    pub(super) fn count(&self, metric: PredictedMetric) -> usize {
        // Too few are replaced by the usual value, which is not an estimate from a few.
        if self.tell(metric) { self.of[metric.index()].len() } else { 1_000 }
    }
}

/// The calibration's cells without those that are left out for this one.
pub(super) fn without(
    cells: &[std::sync::Arc<MeasuredCell>],
    point: &CellPoint,
    kind: LeftOut,
) -> Calibration {
    let others = cells.iter().filter(|cell| !kind.leaves_out(point, &cell.point)).cloned().collect();
    Calibration::new(others)
}

pub(super) fn errors(calibration: &Calibration, kind: LeftOut) -> ResidualErrors {
    let mut errors = ResidualErrors::default();
    for cell in calibration.cells() {
        let others = without(calibration.cells(), &cell.point, kind);
        let Ok((values, distance)) = others.value(&cell.point) else { continue };
        let of_system = errors.of.entry(cell.point.system.clone()).or_default();
        for metric in PredictedMetric::ALL {
            let measured = metric.measured(cell);
            let found = values[metric.index()];
            // A value within the answer's own range is not an error.
            let error = match measured {
                _ if !(measured > 0.0 && found.value.is_finite()) => f64::NAN,
                _ if found.low > measured => (found.low / measured).ln(),
                _ if found.high < measured => (found.high / measured).ln(),
                _ => 0.0,
            };
            if error.is_finite() {
                of_system.of[metric.index()].push(error / (1.0 + distance / NEAR));
            }
        }
    }
    errors
}

/// The range of 95 % of Student's t.
pub(super) fn student_t(degrees: usize) -> f64 {
    let degrees = degrees.clamp(1, 1_000) as f64;
    StudentsT::new(0.0, 1.0, degrees).map_or(1.96, |t| t.inverse_cdf(0.975))
}
