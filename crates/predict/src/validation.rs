//! The errors of predictions: every measured cell is predicted without similar ones, and compared with today's rules of
//! thumb.

use schemars::JsonSchema;
use serde::Serialize;
use underlay_record::EstimatedValue;

use crate::advice::memory::read_iops;
use crate::calibration::{Calibration, CellPrediction, LeftOut, PredictedMetric};
use crate::cell::{CellPoint, MeasuredCell};

/// A measured cell, predicted from others.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct HeldOut {
    pub cell: String,
    /// The part that was left out: `a storage`, `a size`, `a number of threads`.
    pub without: &'static str,
    pub repetitions: usize,
    pub throughput_per_s: ComparedMetric,
    pub mean_us: ComparedMetric,
    pub p50_us: ComparedMetric,
    pub p99_us: ComparedMetric,
    /// Why there is no prediction.
    pub refused: Option<String>,
    /// Throughput of the nearest measured cell: on the storage configuration with the nearest number of reads a second,
    /// or of the nearest size or load.
    pub nearest_per_s: Option<f64>,
    /// Small reads per second of the storage's devices divided by device reads per operation.
    pub by_iops_per_s: Option<f64>,
}

/// A measured value, and the predicted one.
#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
pub struct ComparedMetric {
    pub measured: f64,
    pub predicted: Option<EstimatedValue>,
    /// Predicted over measured, minus one.
    pub error: Option<f64>,
    /// Whether the measured value is within the interval.
    pub is_covered: Option<bool>,
}

impl ComparedMetric {
    fn new(
        metric: PredictedMetric,
        cell: &MeasuredCell,
        prediction: Option<&CellPrediction>,
    ) -> ComparedMetric {
        let measured = metric.measured(cell);
        let predicted = prediction.map(|prediction| prediction.estimate(metric));
        ComparedMetric {
            measured,
            predicted,
            error: predicted.map(|estimate| estimate.value / measured - 1.0),
            is_covered: predicted.map(|estimate| estimate.low <= measured && measured <= estimate.high),
        }
    }
}

/// Every cell predicted without its storage configuration, then without its size, then without its number of threads. A
/// kind that leaves no cells to learn from (for example, if only one size was measured) is skipped.
pub fn held_out(calibration: &Calibration) -> Vec<HeldOut> {
    let mut all = Vec::new();
    for kind in LeftOut::ALL {
        // Cells that leave out the same others share the calibration, and with it the errors for its intervals.
        let mut calibrations: Vec<(&CellPoint, Calibration)> = Vec::new();
        for cell in calibration.cells() {
            let point = &cell.point;
            let is_alone = !calibration
                .cells()
                .iter()
                .any(|other| is_same_question(point, &other.point) && !kind.leaves_out(point, &other.point));
            if is_alone {
                continue;
            }
            let place = calibrations.iter().position(|(first, _)| kind.leaves_out(first, point));
            let place = place.unwrap_or_else(|| {
                calibrations.push((point, calibration.without(point, kind)));
                calibrations.len() - 1
            });
            let others = &calibrations[place].1;
            let answer = others.predict(point);
            let prediction = answer.as_ref().ok();
            let nearest = nearest(others, point);
            all.push(HeldOut {
                cell: point.id.clone(),
                without: kind.name(),
                repetitions: cell.repetitions,
                throughput_per_s: ComparedMetric::new(PredictedMetric::Throughput, cell, prediction),
                mean_us: ComparedMetric::new(PredictedMetric::Mean, cell, prediction),
                p50_us: ComparedMetric::new(PredictedMetric::P50, cell, prediction),
                p99_us: ComparedMetric::new(PredictedMetric::P99, cell, prediction),
                refused: answer.as_ref().err().map(ToString::to_string),
                nearest_per_s: nearest.map(|near| PredictedMetric::Throughput.measured(near)),
                by_iops_per_s: nearest
                    .filter(|near| near.all_reads > 0.0)
                    .map(|near| storage_iops(point) / near.all_reads),
            });
        }
    }
    all
}

fn is_same_question(a: &CellPoint, b: &CellPoint) -> bool {
    a.system == b.system && a.settings == b.settings && a.mix == b.mix && a.distribution == b.distribution
}

/// Small reads per second of all devices.
fn storage_iops(point: &CellPoint) -> f64 {
    let mut devices: Vec<_> = point.volumes.iter().flat_map(|volume| volume.devices()).collect();
    if point.shares_devices {
        devices.sort_by(|a, b| a.name.cmp(&b.name));
        devices.dedup_by(|a, b| a.name == b.name);
    }
    devices.into_iter().filter_map(|device| device.medium.as_ref()).map(read_iops).sum()
}

/// The guess from these cells without a model.
fn nearest<'a>(others: &'a Calibration, point: &CellPoint) -> Option<&'a MeasuredCell> {
    let apart = |a: f64, b: f64| (a.max(1e-9) / b.max(1e-9)).ln().abs();
    let distance = |cell: &MeasuredCell| {
        // A different size or load on the same storage configuration is nearer than any other storage configuration of
        // the same size.
        let storage = if cell.point.volumes == point.volumes {
            0.0
        } else {
            1e-3 + apart(storage_iops(&cell.point), storage_iops(point))
        };
        storage
            + apart(cell.point.data_to_memory(), point.data_to_memory())
            + apart(f64::from(cell.point.threads), f64::from(point.threads))
    };
    others
        .cells()
        .iter()
        .filter(|cell| is_same_question(point, &cell.point))
        .min_by(|a, b| distance(a).total_cmp(&distance(b)))
        .map(|cell| &**cell)
}
