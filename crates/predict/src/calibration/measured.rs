//! Properties of measured cells that do not depend on the question.

use crate::cache::{AccessDistribution, CachePoint, MissCurve};
use crate::cell::{CellPoint, MeasuredCell};

const MANY_OPERATIONS: f64 = 10_000.0;

/// Counts of few operations are imprecise; with many, other differences dominate.
pub(super) fn precision(cell: &MeasuredCell) -> f64 {
    cell.operations / (cell.operations + MANY_OPERATIONS)
}

/// The curve through the measurements; `None` for a law that is not modelled.
pub(crate) fn miss_curve(question: &CellPoint, sources: &[&MeasuredCell]) -> Option<MissCurve> {
    miss_curve_of(&question.distribution, sources)
}

pub(super) fn miss_curve_of(distribution: &str, sources: &[&MeasuredCell]) -> Option<MissCurve> {
    let law = AccessDistribution::parse(distribution)?;
    let points: Vec<CachePoint> = sources
        .iter()
        .map(|cell| CachePoint {
            records: cell.point.records,
            record_bytes: cell.point.record_bytes,
            memory_bytes: cell.point.memory_bytes,
            reads: cell.demand.reads(),
        })
        .collect();
    MissCurve::fit(law, &points)
}
