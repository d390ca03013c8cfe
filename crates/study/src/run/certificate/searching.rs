//! Whether devices and CPUs kept up during the search for the rate at which a cell is measured. A delay of the search
//! would have decided the rate.

use underlay_record::{Check, CpuRecord, DeviceActivity, PathRecord, PauseRecord};

use super::latencies::DeviceLatencies;
use super::{pauses, processors};

/// Counts from the first step of a search to the last.
pub struct SearchObservation {
    pub devices: Vec<DeviceActivity>,
    pub paths: Vec<PathRecord>,
    /// Absent where the study names no cores.
    pub cpu: Option<CpuRecord>,
    /// Processes that stalled meanwhile. A step without load fails, and so does its rate.
    pub pauses: PauseRecord,
    /// Processes that stalled in a single step, in words. This is little compared with the whole search.
    pub stopped: Option<String>,
    /// The largest number of operations in flight.
    pub threads: u32,
}

/// The failed checks. Where all passed, the measured window says enough.
pub(super) fn failed_checks(searching: &SearchObservation, time_scale: f64, slower: &str) -> Vec<Check> {
    let of_devices =
        DeviceLatencies::new(&searching.devices, &searching.paths).checks(&searching.paths, None, time_scale);
    // The number of operations in flight is unknown, but it was at most the number of threads. A CPU without any time
    // left is doubtful too.
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

/// Over the whole search, or in one of its steps.
fn stops(searching: &SearchObservation) -> Check {
    let whole = pauses::stops(&searching.pauses, None, 1.0);
    match &searching.stopped {
        Some(stopped) if whole.passed => pauses::stopped(&searching.pauses, format!("in a step, {stopped}")),
        _ => whole,
    }
}
