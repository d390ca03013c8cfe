//! Visibility of fields and filters of scans: whether the systems support them.

use std::ops::Range;

use underlay_config::{Diagnostic, Diagnostics};
use underlay_systems::system::SystemCapabilities;

use crate::spec::read::{SystemSite, WorkloadSite};

/// Checks that the systems support a workload's visibility and scan filter.
pub(super) fn check(system: &SystemSite, workload: &WorkloadSite, findings: &mut Diagnostics) {
    if let Some(visibility) = &workload.visibility {
        let feature = ("visibility of fields", &visibility.span);
        check_feature(system, workload, feature, |capabilities| capabilities.cell_visibility, findings);
    }
    if let Some(filter) = &workload.scan_filter {
        let feature = ("a filter of scans", &filter.span);
        check_feature(system, workload, feature, |capabilities| capabilities.scan_filter, findings);
    }
}

fn check_feature(
    system: &SystemSite,
    workload: &WorkloadSite,
    (feature, span): (&str, &Range<usize>),
    has_feature: fn(&SystemCapabilities) -> bool,
    findings: &mut Diagnostics,
) {
    let Some(capabilities) = system.capabilities else { return };
    if has_feature(&capabilities) {
        return;
    }
    let example = underlay_systems::all().find(|other| has_feature(&other.capabilities()));
    let hint = example.map(|other| format!(", such as {}", other.name())).unwrap_or_default();
    let message =
        format!("[workload.{}] asks for {feature}, which {} cannot do", workload.name, system.spec.kind);
    findings.push(
        Diagnostic::error(span.clone(), message, format!("expected a system that can{hint}"))
            .with_context(system.key_span.clone(), "the system"),
    );
}
