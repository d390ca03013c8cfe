//! Changing rates: whether their end is reached.

use underlay_config::units::format_duration;
use underlay_config::{Diagnostic, Diagnostics};

use crate::spec::model::StudyRate;
use crate::spec::read::{SectionSites, WorkloadSite};

/// Notes rates of a sequence that would start after the end of the measurement.
pub(super) fn note_beyond_the_end(workload: &WorkloadSite, sites: &SectionSites, findings: &mut Diagnostics) {
    let duration = sites.run.settings.duration;
    for rate in &workload.rates {
        let StudyRate::Changing(changing) = &rate.value else { continue };
        let length = changing.length(duration);
        // Loading and deleting have no fixed length.
        if length <= duration
            || workload.mixes.iter().all(|mix| matches!(mix.value.as_str(), "load" | "delete"))
        {
            continue;
        }
        let message = format!(
            "this rate changes for {}, but a measurement takes {}",
            format_duration(length),
            format_duration(duration)
        );
        let finding = Diagnostic::note(rate.span.clone(), message, "its end is not reached");
        findings.push(match &sites.run.duration_span {
            Some(span) => finding.with_context(span.clone(), "the measurement"),
            None => finding,
        });
    }
}
