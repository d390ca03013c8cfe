//! The certificate of a cell's inputs: the requests to its devices, and the computing time of its programs between
//! them.

use underlay_record::{InputCertificate, RunRecord};

use super::callers;
use crate::run::cell_plan::CellPlan;
use crate::run::certificate::{CallerKind, own_time_worth_telling};

/// The certificate of a record that has its devices and CPUs; none where nothing is known about any device.
pub(super) fn certified(
    plan: &CellPlan<'_>,
    record: &RunRecord,
    is_searched: bool,
) -> Option<InputCertificate> {
    let weighted_inputs: Vec<_> = record
        .devices
        .iter()
        .filter_map(|device| Some((device.totals.busy_us, device.inputs.as_ref()?)))
        .collect();
    let open_loop = plan.cell().rate_per_s().is_some() || is_searched;
    let callers = match plan.cell().is_benchmark() {
        true => CallerKind::Programs,
        false => callers(plan, open_loop),
    };
    // The certificate of timing judges the measurement by it, with a higher limit. Here it is a value that the study
    // needs and that has no source.
    let own_time = record
        .cpu
        .as_ref()
        .and_then(|cpu| own_time_worth_telling(callers, &record.devices, cpu, record.scale.time));
    InputCertificate::from_devices(&weighted_inputs).map(|inputs| inputs.with_own_time(own_time))
}
