//! Cells that had slower CPUs than others of their run.

use underlay_record::CpuRecord;

use super::{ReportWarning, WarningCollector, cell_name};
use crate::comparison::{CellResult, RunComparison};
use crate::quantity;

/// A system that uses this share of what it is due waits for its CPUs, and not for storage alone.
const BOUND: f64 = 0.8;
/// Differences below this one are within what repetitions differ by anyway.
const TOLERATED: f64 = 0.15;

/// A core that a hypervisor gives to two guests does less for each in the same time. Figures that the CPUs limit then
/// differ between cells that should differ by their storage alone.
pub(super) fn about_cpus(comparison: &RunComparison, found: &mut WarningCollector) {
    let all = comparison.cells().flat_map(probed).map(|(_, took_us)| took_us);
    let Some(fastest_us) = all.filter(|us| *us > 0.0).reduce(f64::min) else { return };
    for result in comparison.cells() {
        let bound = probed(result).filter(|(cpu, _)| cpu.used_by_each_cpus() > BOUND * cpu.due_cpus);
        let Some(slowest_us) = bound.map(|(_, took_us)| took_us).reduce(f64::max) else { continue };
        let longer = slowest_us / fastest_us - 1.0;
        if longer > TOLERATED {
            let text = format!(
                "This host's CPUs were not equally fast: a fixed computation took {} longer than in the run's best cell, and this cell was limited \
                 by its CPUs",
                quantity::percent(longer)
            );
            let remedy = "more repetitions, or run when other guests of the same machine are quiet";
            found.add(
                ReportWarning::note(text)
                    .extent(longer)
                    .remedy(remedy)
                    .with_cell(&cell_name(comparison, result)),
            );
        }
    }
}

/// Each repetition's CPU time, and the computation's time there.
fn probed<'r>(result: &'r CellResult<'_>) -> impl Iterator<Item = (&'r CpuRecord, f64)> {
    let records = result.records.iter().filter_map(|record| record.cpu.as_ref());
    // Slowness that more CPU time made up for made no difference.
    records.filter_map(|cpu| Some((cpu, cpu.speed_probe_us? / cpu.allowed_slowdown.unwrap_or(1.0))))
}
