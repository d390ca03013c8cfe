//! The reads that an operation waits for, from cells of the same or another size, and their possible error.

use super::measured::{miss_curve, miss_curve_of, precision};
use super::residuals::student_t;
use super::{LeftOut, UNREPEATED};
use crate::cache::MissCurve;
use crate::cell::{CellPoint, MeasuredCell, PAST_MEMORY};
use crate::refusal::PredictionRefusal;

/// Fewer reads count as none.
const FEW_READS: f64 = 0.03;
/// If no measurement shows which part of the memory caches data, it is between these multiples of the usual one.
const ASSUMED_FROM: f64 = 0.5;
const ASSUMED_TO: f64 = 1.5;

/// The weighted mean of a value over the sources.
pub(super) type WeightedMean<'a> = &'a dyn Fn(&dyn Fn(&MeasuredCell) -> f64) -> f64;

#[derive(Clone, Copy, Debug)]
pub(super) struct ReadEstimate {
    pub value: f64,
    /// The true number is between these multiples of it, with a probability of 95 %.
    pub fewer: f64,
    pub more: f64,
}

impl ReadEstimate {
    /// `down` and `up` are how far the logarithm may be off.
    fn within(value: f64, down: f64, up: f64) -> ReadEstimate {
        ReadEstimate { value, fewer: (-down).exp(), more: up.exp() }
    }
}

/// `alike` are all cells of the system, whatever their mix: they show how far reads vary.
pub(super) fn reads(
    question: &CellPoint,
    sources: &[&MeasuredCell],
    alike: &[&MeasuredCell],
    memory_bytes: f64,
    mean: WeightedMean<'_>,
    assumptions: &mut Vec<String>,
) -> Result<ReadEstimate, PredictionRefusal> {
    let ratio = question.data_bytes() / memory_bytes.max(1.0);
    let same_size: Vec<&MeasuredCell> = sources
        .iter()
        .copied()
        .filter(|cell| {
            cell.point.distribution == PAST_MEMORY || (cell.point.data_to_memory() / ratio - 1.0).abs() < 0.02
        })
        .collect();
    let scatter = scatter(alike);
    // A measurement is better than any curve.
    if !same_size.is_empty() {
        let weight: f64 = same_size.iter().map(|cell| precision(cell)).sum();
        let sum: f64 = same_size.iter().map(|cell| precision(cell) * cell.demand.reads()).sum();
        let off = scatter * (1.0 + 1.0 / same_size.len() as f64).sqrt();
        return Ok(ReadEstimate::within(sum / weight.max(f64::MIN_POSITIVE), off, off));
    }
    let Some(curve) = miss_curve(question, sources) else {
        return Err(PredictionRefusal::Distribution { distribution: question.distribution.clone() });
    };
    // Zipf's law depends on the number of records, so each size is used unchanged, with its own memory.
    let reads_with = |curve: &MissCurve| {
        let reads = curve.reads(question.records, question.record_bytes, memory_bytes);
        let nearest = mean(&|cell| {
            let own = curve.reads(cell.point.records, cell.point.record_bytes, cell.point.memory_bytes);
            if own > 0.02 { (cell.demand.reads() / own).clamp(0.5, 2.0).ln() } else { 0.0 }
        });
        reads * nearest.exp()
    };
    let value = reads_with(&curve);
    let (down, up) = if curve.is_assumed {
        assumptions.push(format!(
            "one size was measured, so nothing tells how much of the memory caches data: {:.0} % is assumed",
            100.0 * curve.useful_share
        ));
        let off = |times: f64| {
            let other = reads_with(&MissCurve { useful_share: times * curve.useful_share, ..curve });
            (other.max(1e-3) / value.max(1e-3)).ln()
        };
        let (one, other) = (off(ASSUMED_FROM), off(ASSUMED_TO));
        (-one.min(other).min(0.0), one.max(other).max(0.0))
    } else {
        let off = estimate_size_error(question, sources);
        (off, off)
    };
    Ok(ReadEstimate::within(value, down.hypot(scatter), up.hypot(scatter)))
}

/// How far the reads of cells with one mix and size differ, with a probability of 95 %: storage configurations and
/// loads cause differences.
fn scatter(alike: &[&MeasuredCell]) -> f64 {
    let is_same = |a: &CellPoint, b: &CellPoint| {
        a.mix == b.mix && a.distribution == b.distribution && LeftOut::Size.leaves_out(a, b)
    };
    let mut groups: Vec<(&CellPoint, Vec<f64>)> = Vec::new();
    for cell in alike.iter().filter(|cell| cell.demand.reads() > FEW_READS) {
        let log = cell.demand.reads().ln();
        match groups.iter_mut().find(|(first, _)| is_same(first, &cell.point)) {
            Some((_, logs)) => logs.push(log),
            None => groups.push((&cell.point, vec![log])),
        }
    }
    let (mut squares, mut degrees) = (0.0, 0usize);
    for (_, logs) in &groups {
        let mean = logs.iter().sum::<f64>() / logs.len() as f64;
        squares += logs.iter().map(|log| (log - mean).powi(2)).sum::<f64>();
        degrees += logs.len() - 1;
    }
    match degrees {
        0 => student_t(usize::MAX) * UNREPEATED,
        _ => student_t(degrees) * (squares / degrees as f64).sqrt(),
    }
}

/// The curve's error for an unknown size, with a probability of 95 %: each measured size is predicted from the others.
fn estimate_size_error(question: &CellPoint, sources: &[&MeasuredCell]) -> f64 {
    let mut sizes: Vec<&CellPoint> = Vec::new();
    let (mut squares, mut count) = (0.0, 0usize);
    for cell in sources.iter().filter(|cell| cell.demand.reads() > FEW_READS) {
        let others: Vec<&MeasuredCell> = sources
            .iter()
            .copied()
            .filter(|other| !LeftOut::Size.leaves_out(&cell.point, &other.point))
            .collect();
        let Some(curve) = miss_curve_of(&question.distribution, &others) else { continue };
        let reads = |cell: &MeasuredCell| {
            curve.reads(cell.point.records, cell.point.record_bytes, cell.point.memory_bytes)
        };
        // In the same way as the answer is fitted to its source cells.
        let log_ratios: Vec<f64> = others
            .iter()
            .filter(|other| reads(other) > 0.02)
            .map(|other| (other.demand.reads() / reads(other)).clamp(0.5, 2.0).ln())
            .collect();
        let nearest = log_ratios.iter().sum::<f64>() / log_ratios.len().max(1) as f64;
        let found = reads(cell) * nearest.exp();
        if found > FEW_READS {
            squares += (found / cell.demand.reads()).ln().powi(2);
            count += 1;
        }
        if !sizes.iter().any(|size| LeftOut::Size.leaves_out(size, &cell.point)) {
            sizes.push(&cell.point);
        }
    }
    match count {
        0 => 0.0,
        // Cells of one size share its error.
        _ => student_t(sizes.len()) * (squares / count as f64).sqrt(),
    }
}
