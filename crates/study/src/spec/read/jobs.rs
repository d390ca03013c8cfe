//! `[workload.NAME]` of batch jobs: their names, their data, and whether the systems run them.

use std::ops::Range;

use serde_json::{Value, json};
use underlay_config::keys::{
    BytesKind, CountKind, DurationKind, KeyKind, KeyRow, KeySection, OwnSchema, ShareKind, WordKind,
    one_or_many_schema, words_schema,
};
use underlay_config::{Diagnostic, Diagnostics, Field, Section, Spanned, UnknownName};

use crate::spec::model::JobSpec;

/// A task has its own memory, so a larger number must be a mistake.
const MAX_TASKS: u32 = 100_000;
/// The size for every job that `data` does not name.
const OTHERS: &str = "others";

const KIND: KeyRow<WordKind<()>> = KeyRow::new("kind", WordKind(&[("jobs", ())]), "\"jobs\"", "Batch jobs.")
    .or_else("told by the section's `jobs`");
pub(super) const JOBS: KeyRow<OwnSchema> = KeyRow::new(
    "jobs",
    OwnSchema(names_schema),
    "[\"teragen\", \"terasort\"]",
    "Batch jobs of the system, each a cell.",
)
.required();
pub(super) const JOB_DATA: KeyRow<OwnSchema> =
    KeyRow::new("data", OwnSchema(amounts_schema), "\"1 TB\"", "What each job makes, moves or reads.")
        .required();
const MAPS: KeyRow<CountKind> = KeyRow::new("maps", CountKind { min: 1, max: MAX_TASKS }, "16", "Map tasks.")
    .or_else("the system's choice");
const REDUCES: KeyRow<CountKind> =
    KeyRow::new("reduces", CountKind { min: 1, max: MAX_TASKS }, "16", "Reduce tasks.")
        .or_else("the system's choice");
// The same default as for the generators of other workloads.
const COMPRESSIBILITY: KeyRow<ShareKind> =
    KeyRow::new("compressibility", ShareKind, "0.5", "The share of generated values that repeats.").or("0.5");
pub(super) const LIMIT: KeyRow<DurationKind> = KeyRow::new(
    "limit",
    DurationKind { allows_zero: false },
    "\"2 h\"",
    "The longest time on your clock: what takes longer has failed.",
)
.or("\"1 h\"");

/// `[workload.NAME]` of jobs
pub(in crate::spec) const BATCH: KeySection = KeySection {
    path: "workload.NAME (jobs)",
    meaning: "Batch jobs.",
    keys: &[&KIND, &JOBS, &JOB_DATA, &MAPS, &REDUCES, &COMPRESSIBILITY, &LIMIT],
};

fn names_schema() -> Value {
    let systems = underlay_systems::all();
    let mut names: Vec<&'static str> = Vec::new();
    // Several systems may have jobs of the same name.
    for &(name, _) in systems.flat_map(|system| system.capabilities().jobs) {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    one_or_many_schema(words_schema(names))
}

/// One size, or one per job.
fn amounts_schema() -> Value {
    json!({ "anyOf": [BytesKind.schema(), { "type": "object", "additionalProperties": BytesKind.schema() }] })
}

/// A job with the positions that later checks need.
#[derive(Clone)]
pub(in crate::spec) struct JobSite {
    pub spec: JobSpec,
    pub span: Range<usize>,
    pub data_span: Range<usize>,
}

/// The amount of data for each job.
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

    /// The jobs with an amount of their own, and its position.
    pub(crate) fn named(&self) -> impl Iterator<Item = (&str, &Range<usize>)> {
        self.of_jobs.iter().map(|(name, bytes)| (name.as_str(), &bytes.span))
    }

    /// Replaces the job's own amount if the job is named.
    pub(crate) fn apply(&self, job: &mut JobSite) {
        if let Some(bytes) = self.amount_for(&job.spec.name) {
            (job.spec.data_bytes, job.data_span) = (bytes.value, bytes.span.clone());
        }
    }
}

/// The jobs of a section whose other keys have been read.
pub(in crate::spec) fn read(section: &mut Section<'_>, findings: &mut Diagnostics) -> Vec<JobSite> {
    let jobs = section.take_key(&JOBS, findings);
    let data = section.take_key(&JOB_DATA, findings);
    let maps = section.read(&MAPS, findings);
    let reduces = section.read(&REDUCES, findings);
    let compressibility = section
        .read_optional(&COMPRESSIBILITY, findings)
        .map(|share| share.map_or_else(|| COMPRESSIBILITY.default_value(), |share| share.value));
    let limit = section.read(&LIMIT, findings);
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
            limit: limit.as_ref().map_or_else(|| LIMIT.default_value(), |limit| limit.value),
        };
        sites.push(JobSite { spec, span: name.span, data_span: bytes.span.clone() });
    }
    sites
}

pub(in crate::spec) fn read_names(field: &Field<'_>, findings: &mut Diagnostics) -> Vec<Spanned<String>> {
    field.list(findings, |element, findings| element.text("the name of a job, as in \"terasort\"", findings))
}

/// A size, or one per job. `jobs` are all existing jobs, if they could be read.
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
            // Without any job, the whole table is misplaced.
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
