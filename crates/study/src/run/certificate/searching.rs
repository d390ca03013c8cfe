//! Whether devices and CPUs kept up while the rate was looked for that a cell is measured at: what held the search up
//! decided the rate.

use underlay_record::{Check, CpuRecord, DeviceActivity, PathRecord, PauseRecord};

use super::latencies::DeviceLatencies;
use super::{pauses, processors};

/// Counts from the first step of a search to the last.
pub struct SearchObservation {
    pub devices: Vec<DeviceActivity>,
    pub paths: Vec<PathRecord>,
    /// Absent where the study names no cores.
    pub cpu: Option<CpuRecord>,
    /// Who stood still meanwhile: a step that nobody drove fails, and so does its rate.
    pub pauses: PauseRecord,
    /// Processes that stood still in a single step, in words: that is little beside the whole search.
    pub stopped: Option<String>,
    /// As many operations were in flight at most.
    pub threads: u32,
}

/// Those that failed: where all is well, the measured window tells enough.
pub(super) fn failed_checks(searching: &SearchObservation, time_scale: f64, slower: &str) -> Vec<Check> {
    let of_devices =
        DeviceLatencies::new(&searching.devices, &searching.paths).checks(&searching.paths, None, time_scale);
    // How many operations were in flight is not known, but that they were no more than threads: a CPU without any time
    // left is a doubt, too.
    let of_cpus = searching.cpu.iter().flat_map(|cpu| {
        let by_waits = processors::checks(cpu, Some(f64::from(searching.threads)), slower);
        let by_room = processors::checks(cpu, None, slower);
        by_waits.into_iter().zip(by_room).map(|(waits, room)| if waits.passed { room } else { waits })
    });
    let failed = of_devices
        .into_iter()
        .chain(of_cpus)
        .chain([stops(searching), pauses::delays(&searching.pauses, slower)])
        .filter(|check| !check.passed);
    failed.map(Check::moved_to_search).collect()
}

/// Over all of the search, or else in one of its steps.
fn stops(searching: &SearchObservation) -> Check {
    let whole = pauses::stops(&searching.pauses, None, 1.0);
    match &searching.stopped {
        Some(stopped) if whole.passed => pauses::stopped(&searching.pauses, format!("in a step, {stopped}")),
        _ => whole,
    }
}
