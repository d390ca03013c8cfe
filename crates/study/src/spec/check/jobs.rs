//! Batch jobs: whether the systems run them, and the storage configurations have room for their output.

use std::ops::Range;

use underlay_config::units::rounded_bytes;
use underlay_config::{Diagnostic, Diagnostics, UnknownName};

use crate::spec::model::scaled_down;
use crate::spec::read::{SectionSites, StorageSite, SystemSite, WorkloadSite};

/// A smaller job is over before it began.
const MIN_DATA_BYTES: u64 = 1 << 20;

/// The copies that a sequence of jobs keeps of its largest data set: three replicas, its output, and intermediate data.
const ROOM: f64 = 5.0;

/// Whether a system runs a workload's jobs, and takes requests where the workload has none.
pub(super) fn check(system: &SystemSite, workload: &WorkloadSite, findings: &mut Diagnostics) {
    let Some(capabilities) = system.capabilities else { return };
    let kind = &system.spec.kind;
    let names: Vec<&str> = capabilities.jobs.iter().map(|&(name, _)| name).collect();
    match (workload.is_batch, names.is_empty()) {
        (true, true) => {
            let with_jobs: Vec<&str> = underlay_systems::names()
                .into_iter()
                .filter(|name| {
                    underlay_systems::find(name)
                        .is_some_and(|candidate| !candidate.capabilities().jobs.is_empty())
                })
                .collect();
            let label = match with_jobs.as_slice() {
                [] => "no system of this program runs any".to_owned(),
                some => format!("expected a study of {}", some.join(" or ")),
            };
            let message = format!("[workload.{}] runs batch jobs, but {kind} runs none", workload.name);
            findings.push(
                Diagnostic::error(workload.key_span.clone(), message, label)
                    .with_context(system.key_span.clone(), "the system"),
            );
        }
        (false, false) => {
            let message = format!("{kind} runs batch jobs, but [workload.{}] sends requests", workload.name);
            let label = "expected `kind = \"jobs\"` here";
            findings.push(
                Diagnostic::error(workload.key_span.clone(), message, label)
                    .with_context(system.key_span.clone(), "the system")
                    .with_help(format!("its jobs are {}", names.join(", "))),
            );
        }
        (true, false) => {
            for job in workload.jobs.iter().filter(|job| !names.contains(&job.spec.name.as_str())) {
                let message = format!("{kind} has no job `{}`", job.spec.name.escape_debug());
                let expected = format!("expected one of {}", names.join(", "));
                let finding = Diagnostic::unknown(
                    job.span.clone(),
                    message,
                    UnknownName::Value(&job.spec.name),
                    names.iter().copied(),
                    expected,
                );
                findings.push(finding.with_context(system.key_span.clone(), "the system"));
            }
        }
        // Requests for a system without jobs: the usual case.
        (false, true) => {}
    }
}

/// Whether each job still has work to do after the data scale.
pub(super) fn check_amounts(workload: &WorkloadSite, sites: &SectionSites, findings: &mut Diagnostics) {
    let mut reported: Vec<&Range<usize>> = Vec::new();
    for job in &workload.jobs {
        let here = scaled_down(job.spec.data_bytes, sites.scale.value.data);
        // A size that applies to several jobs is one mistake.
        if here < MIN_DATA_BYTES && !reported.contains(&&job.data_span) {
            reported.push(&job.data_span);
            let of_same_size = workload.jobs.iter().filter(|other| other.data_span == job.data_span);
            let names: Vec<String> = of_same_size.map(|other| format!("`{}`", other.spec.name)).collect();
            let subject = match names.as_slice() {
                [only] => format!("job {only} has"),
                several => format!("jobs {} have", several.join(", ")),
            };
            let message = format!("{subject} only {} on this machine", rounded_bytes(here));
            let label = format!("expected at least {} after the data scale", rounded_bytes(MIN_DATA_BYTES));
            findings.push(
                Diagnostic::error(job.data_span.clone(), message, label)
                    .with_help("ask for more data, or lower `data` in [scale]"),
            );
        }
    }
}

/// Whether a storage configuration with this much room on this machine holds the jobs' output.
pub(super) fn check_room(
    storage: &StorageSite,
    room_here: u64,
    workload: &WorkloadSite,
    data_scale: f64,
    findings: &mut Diagnostics,
) {
    let Some(largest) = workload.jobs.iter().max_by_key(|job| job.spec.data_bytes) else { return };
    let needed_here = (scaled_down(largest.spec.data_bytes, data_scale) as f64 * ROOM) as u64;
    if needed_here <= room_here {
        return;
    }
    let modelled = |here: u64| rounded_bytes((here as f64 * data_scale) as u64);
    let message = format!(
        "jobs over {} do not fit [storage.{}]",
        rounded_bytes(largest.spec.data_bytes),
        storage.spec.name
    );
    let label = format!("need {ROOM} times as much: {}", modelled(needed_here));
    findings.push(
        Diagnostic::error(largest.data_span.clone(), message, label)
            .with_context(storage.source_span.clone(), format!("room for {} here", modelled(room_here)))
            .with_help("use less data, or more or larger devices"),
    );
}
