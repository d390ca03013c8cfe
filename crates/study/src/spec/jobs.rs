//! `[workload.NAME]` of batch jobs: which ones, over how much data, and whether the systems run them.

use std::ops::Range;
use std::time::Duration;

use super::checks::Sites;
use super::reader::{Field, Section, Spanned};
use super::storage::StorageSite;
use super::system::SystemSite;
use super::workload::WorkloadSite;
use super::{JobSpec, scaled_down, suggest};
use crate::diagnostics::{Diagnostic, Diagnostics};
use crate::units::rounded_bytes;

/// A task has memory of its own, so more than this is a slip.
const TASKS_MAX: u32 = 100_000;
/// Less than this is over before it began.
const DATA_MIN_BYTES: u64 = 1 << 20;
/// As the generators of other workloads have it when nothing is said.
const COMPRESSIBILITY: f64 = 0.5;
/// On this machine's clock.
const LIMIT: Duration = Duration::from_secs(3600);
/// What a sequence of jobs keeps of its largest data set: three replicas of it, its output, and what lies between the two.
const ROOM: f64 = 5.0;
/// The size of every job that `data` does not name.
const OTHERS: &str = "others";

/// A job with the places that later checks point at.
#[derive(Clone)]
pub(super) struct JobSite {
    pub spec: JobSpec,
    pub span: Range<usize>,
    pub data_span: Range<usize>,
}

/// How much data each job is asked for.
#[derive(Clone, Default)]
pub(super) struct Amounts {
    of_jobs: Vec<(String, Spanned<u64>)>,
    others: Option<Spanned<u64>>,
}

impl Amounts {
    fn of(&self, job: &str) -> Option<&Spanned<u64>> {
        let own = self.of_jobs.iter().find(|(name, _)| name == job).map(|(_, bytes)| bytes);
        own.or(self.others.as_ref())
    }

    /// In place of the job's own, where it is named.
    pub fn apply(&self, job: &mut JobSite) {
        if let Some(bytes) = self.of(&job.spec.name) {
            (job.spec.data_bytes, job.data_span) = (bytes.value, bytes.span.clone());
        }
    }
}

/// The jobs of a section, whose other keys are read already.
pub(super) fn read(section: &mut Section<'_>, findings: &mut Diagnostics) -> Vec<JobSite> {
    let jobs = section.require("jobs", "jobs = [\"teragen\", \"terasort\"]", findings);
    let data = section.require("data", "data = \"1 TB\"", findings);
    let maps = section.take("maps").and_then(|field| field.count(1..=TASKS_MAX, findings));
    let reduces = section.take("reduces").and_then(|field| field.count(1..=TASKS_MAX, findings));
    let compressibility = match section.take("compressibility") {
        Some(field) => read_share(&field, findings),
        None => Some(COMPRESSIBILITY),
    };
    let limit = section.take("limit").and_then(|field| field.duration(false, findings));
    let names = jobs.map(|field| read_names(&field, findings)).unwrap_or_default();
    let job_names: Vec<&str> = names.iter().map(|name| name.value.as_str()).collect();
    let amounts = data.as_ref().and_then(|field| read_amounts(field, &job_names, findings));
    let (Some(amounts), Some(compressibility), Some(data)) = (amounts, compressibility, data) else {
        return Vec::new();
    };
    let mut sites = Vec::new();
    for name in names {
        let Some(bytes) = amounts.of(&name.value) else {
            let message = format!("{} has no size for `{}`", data.place, name.value.escape_debug());
            let label = format!("expected one of its own, or `{OTHERS} = \"1 TB\"`");
            findings.push(
                Diagnostic::error(data.span.clone(), message, label).with_context(name.span, "the job"),
            );
            continue;
        };
        let spec = JobSpec {
            name: name.value,
            data_bytes: bytes.value,
            maps: maps.as_ref().map(|count| count.value),
            reduces: reduces.as_ref().map(|count| count.value),
            compressibility,
            limit: limit.as_ref().map_or(LIMIT, |limit| limit.value),
        };
        sites.push(JobSite { spec, span: name.span, data_span: bytes.span.clone() });
    }
    sites
}

pub(super) fn read_names(field: &Field<'_>, findings: &mut Diagnostics) -> Vec<Spanned<String>> {
    field.list(findings, |element, findings| element.text("the name of a job, as in \"terasort\"", findings))
}

/// A size, or one by job.
pub(super) fn read_amounts(field: &Field<'_>, jobs: &[&str], findings: &mut Diagnostics) -> Option<Amounts> {
    if field.as_text().is_some() {
        return Some(Amounts { of_jobs: Vec::new(), others: Some(field.bytes(findings)?) });
    }
    if field.is_array() || !field.is_table() {
        field.mismatch("a size such as \"1 TB\", or a table of them by job", findings);
        return None;
    }
    let mut section = field.section(field.place.clone(), findings)?;
    let mut amounts = Amounts::default();
    let mut is_sound = true;
    for size in section.take_rest() {
        let Some(bytes) = size.bytes(findings) else {
            is_sound = false;
            continue;
        };
        if size.key == OTHERS {
            amounts.others = Some(bytes);
        } else if jobs.contains(&size.key.as_str()) {
            amounts.of_jobs.push((size.key.clone(), bytes));
        } else if !jobs.is_empty() {
            let names: Vec<&str> = jobs.iter().copied().chain([OTHERS]).collect();
            let message = format!("`{}` in {} is none of the jobs", size.key.escape_debug(), field.place);
            let expected = format!("expected one of {}", names.join(", "));
            findings.push(match suggest::closest(&size.key, names.iter().copied()) {
                Some(meant) => Diagnostic::error(size.key_span, message, format!("did you mean `{meant}`?"))
                    .with_help(expected),
                None => Diagnostic::error(size.key_span, message, expected),
            });
            is_sound = false;
        }
    }
    is_sound.then_some(amounts)
}

/// A share from 0 to 1.
pub(super) fn read_share(field: &Field<'_>, findings: &mut Diagnostics) -> Option<f64> {
    match field.as_number() {
        Some(share) if (0.0..=1.0).contains(&share) => return Some(share),
        Some(_) => field.invalid("expected a share from 0 to 1", findings),
        None => field.mismatch("a share from 0 to 1", findings),
    }
    None
}

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
                    underlay_systems::find(name).is_some_and(|it| !it.capabilities().jobs.is_empty())
                })
                .collect();
            let label = match with_jobs.as_slice() {
                [] => "no system of this program runs any".to_owned(),
                some => format!("expected a study of {}", some.join(" or ")),
            };
            let message = format!("[workload.{}] is batch jobs, and {kind} runs none", workload.name);
            findings.push(
                Diagnostic::error(workload.key_span.clone(), message, label)
                    .with_context(system.key_span.clone(), "the system"),
            );
        }
        (false, false) => {
            let message = format!("{kind} runs batch jobs, and [workload.{}] is requests", workload.name);
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
                let finding = match suggest::closest(&job.spec.name, names.iter().copied()) {
                    Some(meant) => {
                        Diagnostic::error(job.span.clone(), message, format!("did you mean \"{meant}\"?"))
                            .with_help(expected)
                    }
                    None => Diagnostic::error(job.span.clone(), message, expected),
                };
                findings.push(finding.with_context(system.key_span.clone(), "the system"));
            }
        }
        (false, true) => {}
    }
    if let (true, Some(span), true) = (workload.is_batch, &system.servers_span, system.spec.servers > 1) {
        let message = format!("the jobs of [workload.{}] can't be shared by several servers", workload.name);
        findings.push(
            Diagnostic::error(span.clone(), message, "expected one server")
                .with_context(workload.key_span.clone(), "the jobs")
                .with_help("`nodes` makes a cluster of one system"),
        );
    }
}

/// Whether each job has work to do after the data scale.
pub(super) fn check_amounts(workload: &WorkloadSite, sites: &Sites, findings: &mut Diagnostics) {
    for job in &workload.jobs {
        let here = scaled_down(job.spec.data_bytes, sites.scale.value.data);
        if here < DATA_MIN_BYTES {
            let message = format!("job `{}` has only {} on this machine", job.spec.name, rounded_bytes(here));
            let label = format!("expected at least {} after the data scale", rounded_bytes(DATA_MIN_BYTES));
            findings.push(
                Diagnostic::error(job.data_span.clone(), message, label)
                    .with_help("ask for more data, or lower `data` in [scale]"),
            );
        }
    }
}

/// Whether a storage with so much room on this machine holds what the jobs leave.
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
