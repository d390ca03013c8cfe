//! The certificate of a cell's inputs: of what its devices were asked for, and of how long its programs compute beside them.

use underlay_record::{CpuRecord, DeviceActivity, InputCertificate, RunRecord};
use underlay_workload::Aftermath;

use super::callers;
use crate::run::cell_plan::CellPlan;
use crate::run::certificate::{Callers, Evidence, certify};

/// As the certificate of timing calls it.
const OWN_TIME: &str = "own time";

/// Of a record that has its devices and CPUs; none where nothing is known of any device.
pub(super) fn certified(
    plan: &CellPlan<'_>,
    record: &RunRecord,
    is_searched: bool,
) -> Option<InputCertificate> {
    let known: Vec<_> = record
        .devices
        .iter()
        .filter_map(|device| Some((device.totals.busy_us, device.inputs.as_ref()?)))
        .collect();
    let open_loop = plan.cell().rate_per_s().is_some() || is_searched;
    let callers = match plan.cell().is_benchmark() {
        true => Callers::Programs,
        false => callers(plan, open_loop),
    };
    let own_time = own_time(&record.devices, record.cpu.as_ref(), callers, record.scale.time);
    InputCertificate::of(&known).map(|inputs| inputs.with_own_time(own_time))
}

/// How many times as long operations would take if slow motion did not speed up what programs compute, where the certificate of timing finds
/// that worth telling. It judges the measurement by it from a higher limit on: here it is a value that the study needs and that has no source.
fn own_time(
    devices: &[DeviceActivity],
    cpu: Option<&CpuRecord>,
    callers: Callers,
    time_scale: f64,
) -> Option<f64> {
    let certificate = certify(&Evidence {
        devices,
        paths: &[],
        measured: None,
        floor_us: None,
        aftermath: &Aftermath::default(),
        cpu,
        callers,
        searching: None,
        memory_enforced: None,
        ceiling_per_s: None,
        open_loop: false,
        hides_records: false,
        nodes_away: None,
        read_back: None,
        time_scale,
    });
    certificate.checks.into_iter().find(|check| check.name == OWN_TIME)?.extent
}

#[cfg(test)]
mod tests {
    use underlay_record::{DeviceTotals, Histogram};

    use super::*;

    /// One reader of a fast drive, whose page faults take longer than the drive.
    #[test]
    fn what_programs_compute_is_told_as_the_certificate_of_timing_has_it() {
        let device = DeviceActivity {
            duration_s: 2.0,
            totals: DeviceTotals { reads: 1000, queue_us: 0.93 * 2e6, ..DeviceTotals::default() },
            modelled: Some(Histogram::default()),
            ..DeviceActivity::default()
        };
        let cpu = CpuRecord {
            modelled_cores: 32,
            due_cpus: 0.67,
            held_to_cpus: 0.67,
            enforced_by: "cgroup v2".to_owned(),
            used_cpus: 0.07,
            throttled_share: 0.0,
            lost_share: 0.0,
            waited_share: None,
            system_cpus: "1".to_owned(),
            system_stolen_share: 0.0,
            emulation_cpus: "0".to_owned(),
            emulation_busy_share: 0.2,
            emulation_stolen_share: 0.0,
            emulation_waiting_threads: None,
            speed_probe_us: None,
        };
        let devices = [device];
        let times = own_time(&devices, Some(&cpu), Callers::Programs, 48.0).unwrap();
        assert!((times - 4.29).abs() < 0.01, "{times}");
        assert_eq!(own_time(&devices, Some(&cpu), Callers::Programs, 1.0), None, "no slow motion");
        assert_eq!(own_time(&devices, Some(&cpu), Callers::Nobody, 48.0), None, "nobody waits");
        assert_eq!(own_time(&devices, None, Callers::Programs, 48.0), None, "no modelled cores");
    }
}
