//! `[workload.NAME]`: YCSB mixes over one shape of record, or batch jobs.

use std::collections::BTreeMap;
use std::ops::Range;

use underlay_systems::system::Visibility;
use underlay_workload::properties::{self, Origin, Properties};
use underlay_workload::{Mix, RequestDistribution, Workload};

use super::jobs::{self, JobSite};
use super::reader::{Field, Section, Spanned, named_sections};
use super::{DataSize, KEY_BYTES, WorkloadSpec, suggest, visibility};
use crate::diagnostics::{Diagnostic, Diagnostics};
use crate::units;

const THREADS_MAX: u32 = 1024;
const FIELDS_MAX: u32 = 1000;
const FIELD_BYTES_MAX: u32 = 1 << 20;
const LABEL_MAX: usize = 24;
/// Faster than any generator: a rate beyond it is a slip.
const RATE_MAX_PER_S: f64 = 1e9;

/// CoreWorkload properties that a study says in words of its own, and where.
const PROPERTIES_WITH_A_KEY: [(&str, &str); 18] = [
    ("recordcount", "`records` or `data`"),
    ("insertcount", "`records` or `data`"),
    ("insertstart", "`records` or `data`"),
    ("fieldcount", "`record = { fields = ... }`"),
    ("fieldlength", "`record = { bytes = ... }`"),
    ("requestdistribution", "`distribution`"),
    ("threadcount", "`threads`"),
    ("target", "`rate`"),
    ("operationcount", "`duration` in [run]"),
    ("maxexecutiontime", "`duration` in [run]"),
    ("warmupexecutiontime", "`warmup` in [run]"),
    ("db", "a section [system.NAME]"),
    ("readproportion", "`mixes`"),
    ("updateproportion", "`mixes`"),
    ("insertproportion", "`mixes`"),
    ("scanproportion", "`mixes`"),
    ("readmodifywriteproportion", "`mixes`"),
    ("deleteproportion", "`mixes`"),
];

/// How much data, before it is known what a record holds.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Amount {
    Records(u64),
    Data { bytes: u64, label: String },
}

impl Amount {
    fn same(&self, other: &Amount) -> bool {
        match (self, other) {
            (Amount::Data { bytes, .. }, Amount::Data { bytes: others, .. }) => bytes == others,
            _ => self == other,
        }
    }

    pub fn records(&self, record_bytes: u64) -> u64 {
        match self {
            Amount::Records(records) => *records,
            Amount::Data { bytes, .. } => (bytes.saturating_add(record_bytes / 2) / record_bytes).max(1),
        }
    }
}

/// A workload with the places that later checks point at. A list may be empty only after a mistake.
#[derive(Clone)]
pub(super) struct WorkloadSite {
    pub name: String,
    pub key_span: Range<usize>,
    /// Batch jobs; `jobs` may then be empty only after a mistake.
    pub is_batch: bool,
    pub jobs: Vec<JobSite>,
    pub mixes: Vec<Spanned<&'static str>>,
    pub distributions: Vec<Spanned<&'static str>>,
    pub threads: Vec<Spanned<u32>>,
    pub rates: Vec<Spanned<Option<f64>>>,
    pub amounts: Vec<Spanned<Amount>>,
    pub fields: u32,
    pub field_bytes: u32,
    pub properties: BTreeMap<String, String>,
    pub visibility: Option<Spanned<Visibility>>,
    pub scan_filter: Option<Spanned<String>>,
    pub compact_at: Option<f64>,
}

impl WorkloadSite {
    /// Batch jobs, which have nothing of what requests have.
    fn batch(name: String, key_span: Range<usize>, jobs: Vec<JobSite>) -> Self {
        WorkloadSite {
            name,
            key_span,
            is_batch: true,
            jobs,
            mixes: Vec::new(),
            distributions: Vec::new(),
            threads: Vec::new(),
            rates: Vec::new(),
            amounts: Vec::new(),
            fields: 0,
            field_bytes: 0,
            properties: BTreeMap::new(),
            visibility: None,
            scan_filter: None,
            compact_at: None,
        }
    }

    /// Whether anything of it runs.
    pub fn is_empty(&self) -> bool {
        self.mixes.is_empty() && self.jobs.is_empty()
    }

    pub fn record_bytes(&self) -> u64 {
        KEY_BYTES + u64::from(self.fields) * u64::from(self.field_bytes)
    }

    /// The share of a value that repeats: the property, or the generator's own.
    pub fn compressibility(&self) -> f64 {
        let written = self.properties.get("compressibility").and_then(|share| share.parse().ok());
        written.unwrap_or_else(|| Workload::new(1, 1, 1).compressibility)
    }

    pub fn into_spec(self) -> WorkloadSpec {
        fn values<T>(list: Vec<Spanned<T>>) -> Vec<T> {
            list.into_iter().map(|spanned| spanned.value).collect()
        }
        let record_bytes = self.record_bytes();
        WorkloadSpec {
            name: self.name,
            jobs: self.jobs.into_iter().map(|job| job.spec).collect(),
            mixes: self.mixes.iter().map(|mix| mix.value.to_owned()).collect(),
            distributions: self.distributions.iter().map(|given| given.value.to_owned()).collect(),
            threads: values(self.threads),
            rates: values(self.rates),
            sizes: values(self.amounts)
                .into_iter()
                .map(|amount| DataSize {
                    records: amount.records(record_bytes),
                    label: match amount {
                        Amount::Data { label, .. } => Some(label),
                        Amount::Records(_) => None,
                    },
                })
                .collect(),
            fields: self.fields,
            field_bytes: self.field_bytes,
            properties: self.properties,
            visibility: self.visibility.map(|visibility| visibility.value),
            scan_filter: self.scan_filter.map(|filter| filter.value),
            compact_at: self.compact_at,
        }
    }
}

pub(super) fn read(root: &mut Section<'_>, findings: &mut Diagnostics) -> Vec<WorkloadSite> {
    named_sections(root, "workload", "ycsb", findings)
        .into_iter()
        .map(|(name, section)| read_workload(name, section, findings))
        .collect()
}

fn read_workload(name: String, mut section: Section<'_>, findings: &mut Diagnostics) -> WorkloadSite {
    let key_span = section.span.clone();
    let kind = section.take("kind").and_then(|field| field.word(&["ycsb", "jobs"], findings));
    // A section that names jobs has said what it is.
    if kind.map_or_else(|| section.has("jobs"), |kind| kind.value == "jobs") {
        let jobs = jobs::read(&mut section, findings);
        section.finish(findings);
        return WorkloadSite::batch(name, key_span, jobs);
    }
    let (fields, field_bytes) = read_record(&mut section, findings).unwrap_or((10, 100));
    let records = section.take("records");
    let data = section.take("data");
    let amounts = match (records, data) {
        (Some(records), Some(data)) => {
            let message = format!("{} gives its amount of data twice", section.title);
            findings.push(
                Diagnostic::error(data.key_span, message, "expected either `records` or `data`")
                    .with_context(records.key_span, "given here already"),
            );
            Vec::new()
        }
        (Some(records), None) => read_records(&records, findings),
        (None, Some(data)) => read_data(&data, findings),
        (None, None) => {
            let message = format!("{} does not say how much data there is", section.title);
            let label = "expected `records = 2_000_000` or `data = \"256 GB\"` here";
            findings.push(Diagnostic::error(key_span.clone(), message, label));
            Vec::new()
        }
    };
    let mixes = section
        .require("mixes", "mixes = [\"a\", \"b\", \"c\"]", findings)
        .map(|field| read_mixes(&field, findings))
        .unwrap_or_default();
    let distributions =
        section.take("distribution").map(|field| read_distributions(&field, findings)).unwrap_or_default();
    let threads = section
        .require("threads", "threads = 8", findings)
        .map(|field| read_threads(&field, findings))
        .unwrap_or_default();
    let rates = match section.take("rate") {
        Some(field) => read_rates(&field, findings),
        None => vec![Spanned::new(None, key_span.clone())],
    };
    let properties =
        section.take("properties").map(|field| read_properties(&field, findings)).unwrap_or_default();
    let visibility = visibility::read(&mut section, findings);
    let scan_filter =
        section.take("scan_filter").and_then(|field| field.text("a regular expression", findings));
    let compact_at = section.take("compact_at").and_then(|field| jobs::read_share(&field, findings));
    section.finish(findings);
    WorkloadSite {
        name,
        key_span,
        is_batch: false,
        jobs: Vec::new(),
        mixes,
        distributions,
        threads,
        rates,
        amounts,
        fields,
        field_bytes,
        properties,
        visibility,
        scan_filter,
        compact_at,
    }
}

fn read_record(section: &mut Section<'_>, findings: &mut Diagnostics) -> Option<(u32, u32)> {
    let field = section.take("record")?;
    let mut record = field.section(format!("`record` in {}", section.title), findings)?;
    let fields = record
        .require("fields", "fields = 10", findings)
        .and_then(|field| field.count(1..=FIELDS_MAX, findings));
    let bytes = record
        .require("bytes", "bytes = 100", findings)
        .and_then(|field| field.count(1..=FIELD_BYTES_MAX, findings));
    record.finish(findings);
    Some((fields?.value, bytes?.value))
}

pub(super) fn read_mixes(field: &Field<'_>, findings: &mut Diagnostics) -> Vec<Spanned<&'static str>> {
    field.list(findings, |element, findings| element.word(&Mix::NAMES, findings))
}

pub(super) fn read_distributions(
    field: &Field<'_>,
    findings: &mut Diagnostics,
) -> Vec<Spanned<&'static str>> {
    field.list(findings, |element, findings| {
        element.word(&RequestDistribution::ALL.map(RequestDistribution::name), findings)
    })
}

pub(super) fn read_threads(field: &Field<'_>, findings: &mut Diagnostics) -> Vec<Spanned<u32>> {
    field.list(findings, |element, findings| element.count(1..=THREADS_MAX, findings))
}

pub(super) fn read_rates(field: &Field<'_>, findings: &mut Diagnostics) -> Vec<Spanned<Option<f64>>> {
    const EXPECTED: &str = "\"max\" or a number of operations per second above zero";
    field.list(findings, |element, findings| {
        if element.as_text() == Some("max") {
            return Some(Spanned::new(None, element.span.clone()));
        }
        match element.as_number() {
            Some(rate) if (0.001..=RATE_MAX_PER_S).contains(&rate) => {
                return Some(Spanned::new(Some(rate), element.span.clone()));
            }
            Some(_) => element.invalid(format!("expected {EXPECTED}"), findings),
            None if element.as_text().is_some() => element.invalid(format!("expected {EXPECTED}"), findings),
            None => element.mismatch(EXPECTED, findings),
        }
        None
    })
}

pub(super) fn read_records(field: &Field<'_>, findings: &mut Diagnostics) -> Vec<Spanned<Amount>> {
    field.list(findings, |element, findings| {
        let records = element.whole(1..=u64::MAX, findings)?;
        Some(Spanned::new(Amount::Records(records.value), records.span))
    })
}

pub(super) fn read_data(field: &Field<'_>, findings: &mut Diagnostics) -> Vec<Spanned<Amount>> {
    let mut amounts: Vec<Spanned<Amount>> = Vec::new();
    for element in field.one_or_many(findings) {
        let Some(bytes) = element.bytes(findings) else { continue };
        let label = element.as_text().unwrap_or_default().split_whitespace().collect::<Vec<_>>().join(" ");
        // Labels become parts of file names; nobody writes a size this long.
        let label = if label.len() > LABEL_MAX { units::format_bytes(bytes.value) } else { label };
        let amount = Amount::Data { bytes: bytes.value, label };
        match amounts.iter().find(|earlier| earlier.value.same(&amount)) {
            Some(earlier) => findings.push(
                Diagnostic::error(
                    bytes.span,
                    format!("{} has the same size twice", field.place),
                    "again here",
                )
                .with_context(earlier.span.clone(), "first here"),
            ),
            None => amounts.push(Spanned::new(amount, bytes.span)),
        }
    }
    amounts
}

fn read_properties(field: &Field<'_>, findings: &mut Diagnostics) -> BTreeMap<String, String> {
    let mut values = BTreeMap::new();
    let mut spans = BTreeMap::new();
    let Some(mut section) = field.section(field.place.clone(), findings) else {
        return values;
    };
    let owned = |name: &str| PROPERTIES_WITH_A_KEY.iter().find(|(with_a_key, _)| *with_a_key == name);
    let known: Vec<&str> =
        properties::KNOWN.iter().map(|known| known.name).filter(|name| owned(name).is_none()).collect();
    for property in section.take_rest() {
        if let Some((_, key)) = owned(&property.key) {
            let message = format!("property `{}` is set elsewhere", property.key);
            findings.push(Diagnostic::error(property.key_span, message, format!("expected {key} instead")));
        } else if !known.contains(&property.key.as_str()) {
            let message = format!("unknown CoreWorkload property `{}`", property.key);
            let list = format!("expected one of {}", known.join(", "));
            findings.push(match suggest::closest(&property.key, known.iter().copied()) {
                Some(meant) => {
                    Diagnostic::error(property.key_span, message, format!("did you mean `{meant}`?"))
                        .with_help(list)
                }
                None => Diagnostic::error(property.key_span, message, "").with_help(list),
            });
        } else if let Some(value) = property.scalar(findings) {
            spans.insert(property.key.clone(), property.span);
            values.insert(property.key, value);
        }
    }
    // The generator reads them in the end, so it is asked what it makes of them.
    let mut asked = Properties::new();
    for (name, value) in &values {
        asked.add(name, value, Origin::Argument(name.clone()));
    }
    for mistake in asked.workload().err().into_iter().flat_map(|mistakes| mistakes.0) {
        let span = match &mistake.origin {
            Origin::Argument(name) => spans.get(name).cloned(),
            Origin::File { .. } => None,
        };
        let message = format!("wrong value in {}", field.place);
        findings.push(Diagnostic::error(span.unwrap_or(field.span.clone()), message, mistake.problem));
    }
    values
}
