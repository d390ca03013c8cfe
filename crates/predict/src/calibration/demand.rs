//! The demand of the question's operation, from measured cells of its system and mix.

use std::collections::BTreeMap;

use super::measured::precision;
use super::reads::{ReadEstimate, reads};
use crate::cell::{CellPoint, MeasuredCell};
use crate::cpu::CpuTime;
use crate::demand::{BackgroundDemand, MixDemand, OperationClass};
use crate::refusal::PredictionRefusal;

/// The demand of the question's operation.
pub(super) struct OperationDemand {
    pub demand: MixDemand,
    pub reads: ReadEstimate,
    /// Assumptions, one sentence each.
    pub assumptions: Vec<String>,
}

/// `alike` are all cells of the system, whatever their mix: they show where CPU time goes. `memory` is the factor on
/// the question's memory.
pub(super) fn demand(
    question: &CellPoint,
    sources: &[&MeasuredCell],
    alike: &[&MeasuredCell],
    memory: f64,
) -> Result<OperationDemand, PredictionRefusal> {
    let weights: Vec<f64> = sources.iter().map(|cell| weight(question, cell)).collect();
    let mean = |value_of: &dyn Fn(&MeasuredCell) -> f64| {
        let sum: f64 = sources.iter().zip(&weights).map(|(cell, weight)| weight * value_of(cell)).sum();
        sum / weights.iter().sum::<f64>().max(f64::MIN_POSITIVE)
    };
    let mut assumptions = Vec::new();
    let memory_bytes = question.memory_bytes * memory;
    let reads = reads(question, sources, alike, memory_bytes, &mean, &mut assumptions)?;
    let measured_reads = mean(&|cell| cell.demand.reads());
    let factor = if measured_reads > 0.0 { reads.value / measured_reads } else { 0.0 };
    // A read costs the same in every mix; the question's own mix best shows what else an operation does.
    let cpu = CpuTime::fit(alike.iter().map(|cell| {
        let own = if cell.point.mix == question.mix { OWN_MIX } else { 1.0 };
        (*cell, own * weight(question, cell))
    }));
    let commits =
        sources.iter().filter(|cell| cell.demand.commit_bytes.is_some()).count() * 2 > sources.len();
    // By name: a rare kind of operation may be missing in a short measurement.
    let mut classes: BTreeMap<&str, OperationClass> = BTreeMap::new();
    let of_class = |cell: &MeasuredCell, name: &str, value_of: fn(&OperationClass) -> f64| {
        cell.demand.classes.iter().find(|class| class.name == name).map_or(0.0, value_of)
    };
    for one in sources.iter().flat_map(|cell| &cell.demand.classes) {
        let of_reads = factor * mean(&|cell| of_class(cell, &one.name, |class| class.reads));
        classes.entry(&one.name).or_insert_with(|| OperationClass {
            share: mean(&|cell| of_class(cell, &one.name, |class| class.share)),
            cpu_us: cpu.map_or(0.0, |cpu| cpu.estimate(of_reads, f64::from(u8::from(one.writes)))),
            reads: of_reads,
            read_bytes: mean(&|cell| of_class(cell, &one.name, |class| class.read_bytes)).max(512.0),
            commits: commits && one.writes,
            ..one.clone()
        });
    }
    let whole: f64 = classes.values().map(|class| class.share).sum();
    let mut classes: Vec<OperationClass> = classes.into_values().collect();
    classes.iter_mut().for_each(|class| class.share /= whole.max(f64::MIN_POSITIVE));
    let background = |value_of: fn(&BackgroundDemand) -> f64| mean(&|cell| value_of(&cell.demand.background));
    // Based on actual requests: a cell without any does not count for their length.
    let length = |bytes: fn(&BackgroundDemand) -> f64, request_bytes: fn(&BackgroundDemand) -> f64| {
        let requests = mean(&|cell| {
            let background = &cell.demand.background;
            bytes(background) / request_bytes(background).max(1.0)
        });
        if requests > 0.0 { background(bytes) / requests } else { background(request_bytes) }
    };
    if sources.iter().all(|cell| cell.demand.cpu_us() == 0.0) {
        assumptions.push(
            "the run names no cores, so the system's CPU time is unknown and is in the correction".to_owned(),
        );
    }
    let demand = MixDemand {
        classes,
        background: BackgroundDemand {
            read_bytes: background(|load| load.read_bytes),
            read_request_bytes: length(|load| load.read_bytes, |load| load.read_request_bytes),
            write_bytes: background(|load| load.write_bytes),
            write_request_bytes: length(|load| load.write_bytes, |load| load.write_request_bytes),
            flushes: background(|load| load.flushes),
        },
        commit_bytes: commits.then(|| mean(&|cell| cell.demand.commit_bytes.unwrap_or(4096.0))),
    };
    Ok(OperationDemand { demand, reads, assumptions })
}

/// Cells of a similar size and load count more, and so do those with many measured operations.
fn weight(question: &CellPoint, cell: &MeasuredCell) -> f64 {
    let apart = |a: f64, b: f64| (a.max(1e-9) / b.max(1e-9)).ln().powi(2);
    let size = apart(question.data_to_memory(), cell.point.data_to_memory());
    let threads = apart(f64::from(question.threads), f64::from(cell.point.threads));
    precision(cell) / (0.05 + size + 0.5 * threads)
}

/// The additional weight of a cell of the question's own mix for CPU time.
const OWN_MIX: f64 = 4.0;
