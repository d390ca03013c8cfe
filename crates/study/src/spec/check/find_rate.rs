//! A search for a rate: whether its steps can show anything.

use underlay_config::units::format_duration;
use underlay_config::{Diagnostic, Diagnostics};

use crate::spec::read::{SectionSites, WorkloadSite};

/// Whether a step at the search's first rate can show anything about its percentiles.
pub(super) fn check_steps(workload: &WorkloadSite, sites: &SectionSites, findings: &mut Diagnostics) {
    let Some(wanted) = &workload.find_rate else { return };
    let (from_per_s, name) = match (wanted.value.from_per_s, wanted.value.to_per_s) {
        (Some(from_per_s), _) => (from_per_s, "from"),
        (None, Some(to_per_s)) => (to_per_s, "to"),
        (None, None) => return,
    };
    // A step without a length of its own has the measurement's.
    if wanted.value.step.is_none() && !sites.run.has_duration {
        return;
    }
    let (step, time) = (wanted.value.step(sites.run.settings.duration), sites.scale.value.time);
    // A step that is too short is lengthened.
    let search = wanted.value.search(step, time);
    let lowest = search.lowest_per_s(step.as_secs_f64() / time).ceil();
    if from_per_s < lowest {
        let message = format!(
            "a search at {from_per_s} operations per second has too few in a step of {}, even lengthened {} times",
            format_duration(step),
            search.extensions
        );
        let label = format!("expected at least {lowest} for {}", wanted.value.label());
        let finding = Diagnostic::error(wanted.span.clone(), message, label);
        findings.push(finding.with_help(format!("raise `{name}`, or lengthen `step`")));
    }
}
