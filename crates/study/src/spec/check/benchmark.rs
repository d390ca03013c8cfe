//! Benchmarks of the user's: whether the systems are programs that commands start.

use underlay_config::{Diagnostic, Diagnostics};

use crate::spec::read::{SystemSite, WorkloadSite};

/// Whether a system takes a workload of commands, and has one where it takes nothing else.
pub(super) fn check(system: &SystemSite, workload: &WorkloadSite, findings: &mut Diagnostics) {
    let Some(capabilities) = system.capabilities else { return };
    if capabilities.by_command && system.spec.servers > 1 {
        let message = format!("[system.{}] is run by commands, which know one server", system.spec.name);
        findings.push(Diagnostic::error(system.key_span.clone(), message, "expected `servers = 1`"));
        return;
    }
    let kind = &system.spec.kind;
    let (message, label) = match (capabilities.by_command, workload.is_benchmark) {
        (true, false) => (
            format!("[system.{}] is run by commands, but [workload.{}] is not", system.spec.name, workload.name),
            "expected `kind = \"command\"` or `kind = \"fio\"` here",
        ),
        (false, true) => (
            format!("[workload.{}] is a command, but {kind} has clients of its own", workload.name),
            "expected a system of `kind = \"command\"`",
        ),
        _ => return,
    };
    findings.push(
        Diagnostic::error(workload.key_span.clone(), message, label)
            .with_context(system.key_span.clone(), "the system"),
    );
}
