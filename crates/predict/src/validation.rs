//! How wrong predictions are: every measured cell predicted without those that are like it, beside what people do
//! today.

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
    /// Throughput of the nearest measured cell: on the storage whose reads a second are nearest, or of the nearest size
    /// or load.
    pub nearest_per_s: Option<f64>,
    /// Small reads a second of the storage's devices over reads of devices an operation.
    pub by_iops_per_s: Option<f64>,
}

/// A measured figure, and the one that was predicted.
#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
pub struct ComparedMetric {
    pub measured: f64,
    pub predicted: Option<EstimatedValue>,
    /// Predicted over measured, less one.
    pub error: Option<f64>,
    /// Whether the measured figure is within the interval.
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

/// Every cell predicted with its storage, then with its size, then with its number of threads left out. A kind that
/// leaves nothing to learn from (one size was measured, say) is passed over.
pub fn held_out(calibration: &Calibration) -> Vec<HeldOut> {
    let mut all = Vec::new();
    for kind in LeftOut::ALL {
        // Cells that leave out the same others share the calibration, and with it the errors that its intervals are
        // from.
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

/// Small reads a second of all devices.
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
        // Another size or load on the same storage is nearer than any other storage of the same size.
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
