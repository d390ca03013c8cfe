//! `[run]` compared with the study: keys without any effect in it would otherwise be ignored silently.

use std::ops::Range;

use underlay_config::{Diagnostic, Diagnostics};

use crate::spec::read::SectionSites;

/// Reports keys of `[run]` that no cell of the full study uses. Parts that could not be read may use them.
pub(in crate::spec) fn check_run(sites: &SectionSites, findings: &mut Diagnostics) {
    let run = &sites.run;
    let mut refuse = |key: &str, span: &Option<Range<usize>>, reason: &str, label: &str| {
        if let Some(span) = span {
            let message = format!("[run] sets `{key}`, but {reason}");
            findings.push(Diagnostic::error(span.clone(), message, label));
        }
    };
    if sites.has_all_of_workloads && !sites.workloads.is_empty() {
        if sites.workloads.iter().all(|workload| workload.is_batch) {
            let reason = "every workload runs batch jobs";
            let label = "expected none: jobs take as long as they take";
            refuse("warmup", &run.warmup_span, reason, label);
            refuse("duration", &run.duration_span, reason, label);
        }
        let span = run.raw_span.clone().filter(|_| run.settings.raw);
        if !sites.workloads.iter().any(|workload| workload.sends_requests()) {
            refuse("raw", &span, "no workload sends requests", "expected a workload with `mixes`");
        }
    }
    if sites.has_all_storages()
        && !sites.storages.is_empty()
        && !sites.storages.iter().any(|storage| storage.spec.is_modelled())
    {
        let (reason, label) = ("no storage is modelled", "expected a storage with `devices` or `pool`");
        refuse("attachment", &run.attachment_span, reason, label);
        refuse("dirty_limit", &run.dirty_limit_span, reason, label);
    }
}
