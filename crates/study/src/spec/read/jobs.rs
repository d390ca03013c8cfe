//! `[workload.NAME]` of batch jobs: which ones, over how much data, and whether the systems run them.

use std::ops::Range;
use std::time::Duration;

use underlay_config::{Diagnostic, Diagnostics, Field, Section, Spanned, UnknownName};

use crate::spec::model::JobSpec;

/// A task has its own memory, so more than this is a slip.
const MAX_TASKS: u32 = 100_000;
/// As the generators of other workloads have it when nothing is said.
const COMPRESSIBILITY: f64 = 0.5;
/// On this machine's clock.
const LIMIT: Duration = Duration::from_secs(3600);
/// The size of every job that `data` does not name.
const OTHERS: &str = "others";

/// A job with the places that later checks point at.
#[derive(Clone)]
pub(in crate::spec) struct JobSite {
    pub spec: JobSpec,
    pub span: Range<usize>,
    pub data_span: Range<usize>,
}

/// How much data each job is asked for.
#[derive(Clone, Default)]
pub(in crate::spec) struct JobAmounts {
    of_jobs: Vec<(String, Spanned<u64>)>,
    others: Option<Spanned<u64>>,
}

impl JobAmounts {
    fn amount_for(&self, job: &str) -> Option<&Spanned<u64>> {
        let own = self.of_jobs.iter().find(|(name, _)| name == job).map(|(_, bytes)| bytes);
        own.or(self.others.as_ref())
    }

    /// The jobs that have an amount of their own, with the place of it.
    pub(crate) fn named(&self) -> impl Iterator<Item = (&str, &Range<usize>)> {
        self.of_jobs.iter().map(|(name, bytes)| (name.as_str(), &bytes.span))
    }

    /// In place of the job's own, where it is named.
    pub(crate) fn apply(&self, job: &mut JobSite) {
        if let Some(bytes) = self.amount_for(&job.spec.name) {
            (job.spec.data_bytes, job.data_span) = (bytes.value, bytes.span.clone());
        }
    }
}

/// The jobs of a section, whose other keys are read already.
pub(in crate::spec) fn read(section: &mut Section<'_>, findings: &mut Diagnostics) -> Vec<JobSite> {
    let jobs = section.require("jobs", "jobs = [\"teragen\", \"terasort\"]", findings);
    let data = section.require("data", "data = \"1 TB\"", findings);
    let maps = section.take("maps").and_then(|field| field.count(1..=MAX_TASKS, findings));
    let reduces = section.take("reduces").and_then(|field| field.count(1..=MAX_TASKS, findings));
    let compressibility = match section.take("compressibility") {
        Some(field) => read_share(&field, findings),
        None => Some(COMPRESSIBILITY),
    };
    let limit = section.take("limit").and_then(|field| field.duration(false, findings));
    let (names, has_all_names) =
        findings.attempt(|findings| jobs.map(|field| read_names(&field, findings)).unwrap_or_default());
    let job_names: Vec<&str> = names.iter().map(|name| name.value.as_str()).collect();
    let job_names = has_all_names.then_some(job_names.as_slice());
    let amounts = data.as_ref().and_then(|field| read_amounts(field, job_names, findings));
    let (Some(amounts), Some(compressibility), Some(data)) = (amounts, compressibility, data) else {
        return Vec::new();
    };
    let mut sites = Vec::new();
    for name in names {
        let Some(bytes) = amounts.amount_for(&name.value) else {
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

pub(in crate::spec) fn read_names(field: &Field<'_>, findings: &mut Diagnostics) -> Vec<Spanned<String>> {
    field.list(findings, |element, findings| element.text("the name of a job, as in \"terasort\"", findings))
}

/// A size, or one by job. `jobs` are all that there are, if they could be read.
pub(in crate::spec) fn read_amounts(
    field: &Field<'_>,
    jobs: Option<&[&str]>,
    findings: &mut Diagnostics,
) -> Option<JobAmounts> {
    if field.as_text().is_some() {
        return Some(JobAmounts { of_jobs: Vec::new(), others: Some(field.bytes(findings)?) });
    }
    if field.is_array() || !field.is_table() {
        field.mismatch("a size such as \"1 TB\", or a table of them by job", findings);
        return None;
    }
    let mut section = field.section(field.place.clone(), findings)?;
    let mut amounts = JobAmounts::default();
    let mut is_sound = true;
    for size in section.take_rest() {
        let Some(bytes) = size.bytes(findings) else {
            is_sound = false;
            continue;
        };
        if size.key == OTHERS {
            amounts.others = Some(bytes);
        } else if jobs.is_none_or(|jobs| jobs.contains(&size.key.as_str())) {
            amounts.of_jobs.push((size.key.clone(), bytes));
        } else if let Some(jobs) = jobs.filter(|jobs| !jobs.is_empty()) {
            // Without any job, all of the table is out of place.
            let names: Vec<&str> = jobs.iter().copied().chain([OTHERS]).collect();
            let message = format!("`{}` in {} is not one of the jobs", size.key.escape_debug(), field.place);
            let expected = format!("expected one of {}", names.join(", "));
            findings.push(Diagnostic::unknown(
                size.key_span,
                message,
                UnknownName::Value(&size.key),
                names.iter().copied(),
                expected,
            ));
            is_sound = false;
        }
    }
    is_sound.then_some(amounts)
}

/// A share from 0 to 1.
pub(in crate::spec) fn read_share(field: &Field<'_>, findings: &mut Diagnostics) -> Option<f64> {
    match field.as_number() {
        Some(share) if (0.0..=1.0).contains(&share) => return Some(share),
        Some(_) => field.invalid("expected a share from 0 to 1", findings),
        None => field.mismatch("a share from 0 to 1", findings),
    }
    None
}
