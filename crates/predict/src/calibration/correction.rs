//! The factors that correct simulated values, from the differences between measured and simulated values in near cells.

use super::kind_ambiguity::KindAmbiguity;
use super::{PredictedMetric, UNKNOWN_ERROR};
use crate::cell::{CellPoint, MeasuredCell};
use crate::outcome::SimulationOutcome;

/// The factor that corrects the simulated value `asked`, from the differences between measured and simulated values in
/// near cells: near in storage speed, in size and in load.
///
/// Time that the simulation misses is added if the question is slower than the cell: a lock held for 100 µs is nothing
/// compared with a disk. If it is faster, that time is scaled in proportion, since nothing takes longer than the whole.
/// A cell whose median lies between two kinds of operations says little: the gap between them may explain its
/// deviation.
pub(super) fn correction(
    question: &CellPoint,
    outcome: &SimulationOutcome,
    sources: &[&MeasuredCell],
    metric: PredictedMetric,
    asked: f64,
) -> f64 {
    if metric == PredictedMetric::Throughput {
        return 1.0 / correction(question, outcome, sources, PredictedMetric::Mean, outcome.mean_us);
    }
    let (mut up, mut down, mut best) = (0.0, 0.0, 0.0f64);
    for cell in sources {
        let Ok(own) = cell.simulated() else { continue };
        let simulated = metric.simulated(own);
        let missed_us = metric.measured(cell) - simulated;
        let ratio = 1.0 + missed_us / simulated.max(asked);
        if !ratio.is_finite() || ratio <= 0.0 {
            continue;
        }
        let doubt = KindAmbiguity::from_measured(cell).deviation(metric, own) / UNKNOWN_ERROR;
        let trust = 1.0 / (1.0 + doubt * doubt);
        // A median's missing time belongs to its own kind of operation, independent of the other one.
        let latencies = match metric {
            PredictedMetric::P50 => (asked, simulated),
            _ => (outcome.mean_us, own.mean_us),
        };
        let weight = trust / (0.1 + distance(question, cell, latencies));
        up += weight * ratio.ln();
        down += weight;
        best = best.max(trust);
    }
    if down > 0.0 { (best * up / down).clamp(-3.0, 3.0).exp() } else { 1.0 }
}

/// The distance of the nearest cell, as a logarithm.
pub(super) fn nearest(question: &CellPoint, outcome: &SimulationOutcome, sources: &[&MeasuredCell]) -> f64 {
    let distances = sources.iter().filter_map(|cell| {
        let own = cell.simulated().ok()?;
        Some(distance(question, cell, (outcome.mean_us, own.mean_us)))
    });
    let squared = distances.fold(f64::INFINITY, f64::min);
    if squared.is_finite() { squared.sqrt() } else { 0.0 }
}

/// The distance of a measured cell from the question, by both simulated latencies: squares of logarithms.
fn distance(question: &CellPoint, cell: &MeasuredCell, latencies: (f64, f64)) -> f64 {
    let apart = |a: f64, b: f64| (a.max(1e-9) / b.max(1e-9)).ln().powi(2);
    apart(latencies.0, latencies.1)
        + apart(question.data_to_memory(), cell.point.data_to_memory())
        + 0.5 * apart(f64::from(question.threads), f64::from(cell.point.threads))
}
