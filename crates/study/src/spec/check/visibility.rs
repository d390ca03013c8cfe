//! Visibility of fields and filters of scans: whether the systems can.

use underlay_config::{Diagnostic, Diagnostics};

use crate::spec::read::{SystemSite, WorkloadSite};

/// Checks that the systems support a workload's visibility and scan filter.
pub(super) fn check(system: &SystemSite, workload: &WorkloadSite, findings: &mut Diagnostics) {
    let Some(capabilities) = system.capabilities else { return };
    let asked = [
        (
            workload.visibility.as_ref().map(|visibility| &visibility.span),
            capabilities.cell_visibility,
            "visibility of fields",
        ),
        (
            workload.scan_filter.as_ref().map(|filter| &filter.span),
            capabilities.scan_filter,
            "a filter of scans",
        ),
    ];
    for (span, is_able, feature) in asked {
        if let (Some(span), false) = (span, is_able) {
            let message = format!(
                "[workload.{}] asks for {feature}, which {} cannot do",
                workload.name, system.spec.kind
            );
            findings.push(
                Diagnostic::error(span.clone(), message, "expected a system that can, such as accumulo")
                    .with_context(system.key_span.clone(), "the system"),
            );
        }
    }
}
