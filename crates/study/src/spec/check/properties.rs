//! Whether the properties of a workload match its records and mixes.

use underlay_config::{Diagnostic, Diagnostics};
use underlay_workload::OperationMix;
use underlay_workload::properties::{PropertyOrigin, YcsbProperties};

use crate::spec::read::WorkloadSite;

/// Each property was checked with the generator's own defaults. Here they are checked against the rest of the study.
pub(super) fn check(workload: &WorkloadSite, findings: &mut Diagnostics) {
    let mut asked = YcsbProperties::new();
    for (name, value) in &workload.properties {
        asked.add(name, value, PropertyOrigin::Argument(name.clone()));
    }
    // Their own mistakes have been reported. Jobs and benchmarks have no mixes.
    if workload.mixes.is_empty() || asked.workload().is_err() {
        return;
    }
    for (name, value) in [("fieldcount", workload.fields), ("fieldlength", workload.field_bytes)] {
        asked.add(name, &value.to_string(), PropertyOrigin::Argument(name.to_owned()));
    }
    let described = match asked.workload() {
        Ok(described) => described,
        Err(mistakes) => {
            for mistake in mistakes.0 {
                let message = format!("`properties` and `record` of [workload.{}] contradict", workload.name);
                findings.push(Diagnostic::error(workload.key_span.clone(), message, mistake.problem));
            }
            return;
        }
    };
    for mix in &workload.all_mixes() {
        let problem = OperationMix::parse(&mix.value).ok().and_then(|parsed| described.scan_problem(&parsed));
        if let Some(problem) = problem {
            let message = format!("the scans of mix \"{}\" have no length", mix.value);
            findings.push(
                Diagnostic::error(mix.span.clone(), message, problem)
                    .with_context(workload.key_span.clone(), "the workload"),
            );
        }
    }
}
