//! `[workload.NAME]`: YCSB mixes over one shape of record, batch jobs, or a user's command.

use std::collections::BTreeMap;
use std::ops::Range;

use serde_json::{Map, Value, json};
use underlay_config::keys::{
    AnyText, AnyWord, BytesKind, CountKind, KeyKind, KeyRow, KeySection, ListKind, OwnSchema, ShareKind,
    WholeKind, WordKind, one_or_many_schema,
};
use underlay_config::{Diagnostic, Diagnostics, Field, Section, Spanned, UnknownName, named_sections, units};
use underlay_systems::system::Visibility;
use underlay_workload::properties::{self, PropertyOrigin, PropertyScope, YcsbProperties};
use underlay_workload::{ArrivalProcess, CoreWorkload, RequestDistribution};

use super::benchmark::BenchmarkSite;
use super::beside::{BESIDE, MAX_THREADS};
use super::find_rate::FIND_RATE;
use super::jobs::JobSite;
use super::mixes::MIXES;
use super::rate::RATE;
use super::visibility::{AUTHORIZATIONS, UNAUTHORIZED_SHARE, VISIBILITY};
use super::{benchmark, beside, find_rate, jobs, mixes, rate, visibility};
use crate::spec::model::{BesideSpec, DataSize, FindRate, KEY_BYTES, StudyRate, WorkloadSpec};

const MAX_FIELDS: u32 = 1000;
const MAX_FIELD_BYTES: u32 = 1 << 20;
const MAX_LABEL: usize = 24;

/// CoreWorkload properties for which a study has its own keys, and where they are.
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
    ("readproportion", "`mixes = [{ read = 1.0 }]`"),
    ("updateproportion", "`mixes = [{ update = 1.0 }]`"),
    ("insertproportion", "`mixes = [{ insert = 1.0 }]`"),
    ("scanproportion", "`mixes = [{ scan = 1.0 }]`"),
    ("readmodifywriteproportion", "`mixes = [{ rmw = 1.0 }]`"),
    ("deleteproportion", "`mixes = [{ delete = 1.0 }]`"),
];

const KIND: KeyRow<WordKind<()>> =
    KeyRow::new("kind", WordKind(&[("ycsb", ())]), "\"ycsb\"", "Operations on records.").or("\"ycsb\"");
pub(super) const DATA: KeyRow<OwnSchema> = KeyRow::new(
    "data",
    OwnSchema(|| one_or_many_schema(BytesKind.schema())),
    "\"450 GB\"",
    "The amount of data on the modelled machine; or `records`.",
);
pub(super) const RECORDS: KeyRow<ListKind<WholeKind>> = KeyRow::new(
    "records",
    ListKind(WholeKind { min: 1, max: u64::MAX }),
    "2_000_000",
    "The number of records; or `data`.",
);
const RECORD: KeyRow<OwnSchema> = KeyRow::new(
    "record",
    OwnSchema(|| RECORD_SHAPE.schema()),
    "{ fields = 10, bytes = 100 }",
    "The shape of a record.",
)
.or("{ fields = 10, bytes = 100 }");
pub(super) const DISTRIBUTION: KeyRow<ListKind<AnyWord>> = KeyRow::new(
    "distribution",
    ListKind(AnyWord(|| RequestDistribution::ALL.map(RequestDistribution::name).to_vec())),
    "[\"uniform\", \"zipfian\"]",
    "Which records are asked for.",
)
.or_else("YCSB's own for each mix");
pub(super) const THREADS: KeyRow<ListKind<CountKind>> = KeyRow::new(
    "threads",
    ListKind(CountKind { min: 1, max: MAX_THREADS }),
    "8",
    "Client threads. A list gives a cell for each.",
)
.required();
const ARRIVALS: KeyRow<AnyWord> = KeyRow::new(
    "arrivals",
    AnyWord(|| ArrivalProcess::ALL.map(ArrivalProcess::name).to_vec()),
    "\"poisson\"",
    "How the operations of a rate follow one another.",
)
.or("\"constant\"");
const PROPERTIES: KeyRow<OwnSchema> = KeyRow::new(
    "properties",
    OwnSchema(properties_schema),
    "{ readallfields = false }",
    "Other properties of YCSB's core workload.",
);
const SCAN_FILTER: KeyRow<AnyText> = KeyRow::new(
    "scan_filter",
    AnyText("a regular expression"),
    "\"user1.*\"",
    "A regular expression: scans leave out, on the servers, what does not match.",
);
const COMPACT_AT: KeyRow<ShareKind> = KeyRow::new(
    "compact_at",
    ShareKind,
    "0.5",
    "The share of the measured time after which everything is compacted.",
);

/// `[workload.NAME]` of requests
pub(in crate::spec) const REQUESTS: KeySection = KeySection {
    path: "workload.NAME",
    meaning: "YCSB's operations on records.",
    keys: &[
        &KIND,
        &MIXES,
        &DATA,
        &RECORDS,
        &RECORD,
        &DISTRIBUTION,
        &THREADS,
        &RATE,
        &ARRIVALS,
        &FIND_RATE,
        &BESIDE,
        &PROPERTIES,
        &VISIBILITY,
        &AUTHORIZATIONS,
        &UNAUTHORIZED_SHARE,
        &SCAN_FILTER,
        &COMPACT_AT,
    ],
};

const FIELDS: KeyRow<CountKind> =
    KeyRow::new("fields", CountKind { min: 1, max: MAX_FIELDS }, "10", "Fields of a record.").required();
const FIELD_BYTES: KeyRow<CountKind> =
    KeyRow::new("bytes", CountKind { min: 1, max: MAX_FIELD_BYTES }, "100", "Bytes of each field.")
        .required();

/// `record = { ... }`
pub(in crate::spec) const RECORD_SHAPE: KeySection = KeySection {
    path: "workload.NAME.record",
    meaning: "The shape of a record.",
    keys: &[&FIELDS, &FIELD_BYTES],
};

/// A workload of any kind.
pub(in crate::spec) fn schema() -> Value {
    let mut requests = REQUESTS.schema();
    requests["oneOf"] = json!([{ "required": [DATA.name] }, { "required": [RECORDS.name] }]);
    json!({ "anyOf": [requests, jobs::BATCH.schema(), benchmark::COMMAND.schema(), benchmark::FIO.schema()] })
}

/// Properties without a key of their own.
fn properties_schema() -> Value {
    let has_key = |name: &str| PROPERTIES_WITH_A_KEY.iter().any(|(with_a_key, _)| *with_a_key == name);
    let properties: Map<String, Value> = properties::KNOWN
        .iter()
        .filter(|property| property.scope == PropertyScope::Workload && !has_key(property.name))
        .map(|property| {
            let value = json!({ "type": ["string", "number", "boolean"], "description": property.meaning });
            (property.name.to_owned(), value)
        })
        .collect();
    json!({ "type": "object", "properties": properties, "additionalProperties": false })
}

/// An amount of data, before the size of a record is known.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::spec) enum DataAmount {
    Records(u64),
    Data { bytes: u64, label: String },
}

impl DataAmount {
    fn same(&self, other: &DataAmount) -> bool {
        match (self, other) {
            (DataAmount::Data { bytes, .. }, DataAmount::Data { bytes: others, .. }) => bytes == others,
            _ => self == other,
        }
    }

    pub(crate) fn records(&self, record_bytes: u64) -> u64 {
        match self {
            DataAmount::Records(records) => *records,
            DataAmount::Data { bytes, .. } => (bytes.saturating_add(record_bytes / 2) / record_bytes).max(1),
        }
    }
}

/// A workload with the positions that later checks need. A list may be empty only after a mistake.
#[derive(Clone)]
pub(in crate::spec) struct WorkloadSite {
    pub name: String,
    pub key_span: Range<usize>,
    /// Batch jobs; `jobs` may then be empty only after a mistake.
    pub is_batch: bool,
    pub jobs: Vec<JobSite>,
    /// A user's command; `benchmark` may then be absent only after a mistake.
    pub is_benchmark: bool,
    pub benchmark: Option<BenchmarkSite>,
    pub mixes: Vec<Spanned<String>>,
    pub distributions: Vec<Spanned<&'static str>>,
    pub threads: Vec<Spanned<u32>>,
    pub rates: Vec<Spanned<StudyRate>>,
    pub arrivals: ArrivalProcess,
    pub beside: Option<Spanned<BesideSpec>>,
    pub find_rate: Option<Spanned<FindRate>>,
    pub amounts: Vec<Spanned<DataAmount>>,
    pub fields: u32,
    pub field_bytes: u32,
    pub properties: BTreeMap<String, String>,
    pub visibility: Option<Spanned<Visibility>>,
    pub scan_filter: Option<Spanned<String>>,
    pub compact_at: Option<f64>,
}

impl WorkloadSite {
    /// Batch jobs, without anything that belongs to requests.
    fn batch(name: String, key_span: Range<usize>, jobs: Vec<JobSite>) -> Self {
        WorkloadSite {
            name,
            key_span,
            is_batch: true,
            jobs,
            is_benchmark: false,
            benchmark: None,
            mixes: Vec::new(),
            distributions: Vec::new(),
            threads: Vec::new(),
            rates: Vec::new(),
            arrivals: ArrivalProcess::default(),
            beside: None,
            find_rate: None,
            amounts: Vec::new(),
            fields: 0,
            field_bytes: 0,
            properties: BTreeMap::new(),
            visibility: None,
            scan_filter: None,
            compact_at: None,
        }
    }

    /// A benchmark, without anything that belongs to requests.
    fn command(name: String, key_span: Range<usize>, benchmark: Option<BenchmarkSite>) -> Self {
        let empty = WorkloadSite::batch(name, key_span, Vec::new());
        WorkloadSite { is_batch: false, is_benchmark: true, benchmark, ..empty }
    }

    /// Whether it consists of operations on records, rather than jobs or a command.
    pub(crate) fn sends_requests(&self) -> bool {
        !self.is_batch && !self.is_benchmark
    }

    /// Whether it runs nothing.
    pub(crate) fn is_empty(&self) -> bool {
        self.mixes.is_empty() && self.jobs.is_empty() && self.benchmark.is_none()
    }

    /// The mixes, including that of the background load.
    pub(crate) fn all_mixes(&self) -> Vec<Spanned<String>> {
        let background_mix = self
            .beside
            .iter()
            .map(|background| Spanned::new(background.value.mix.clone(), background.span.clone()));
        self.mixes.iter().cloned().chain(background_mix).collect()
    }

    pub(crate) fn record_bytes(&self) -> u64 {
        KEY_BYTES + u64::from(self.fields) * u64::from(self.field_bytes)
    }

    /// The share of a value that repeats: the property, or the generator's default.
    pub(crate) fn compressibility(&self) -> f64 {
        let written = self.properties.get("compressibility").and_then(|share| share.parse().ok());
        written.unwrap_or_else(|| CoreWorkload::new(1, 1, 1).compressibility)
    }

    pub(crate) fn into_spec(self) -> WorkloadSpec {
        fn values<T>(list: Vec<Spanned<T>>) -> Vec<T> {
            list.into_iter().map(|spanned| spanned.value).collect()
        }
        let record_bytes = self.record_bytes();
        WorkloadSpec {
            name: self.name,
            jobs: self.jobs.into_iter().map(|job| job.spec).collect(),
            benchmark: self.benchmark.map(|benchmark| benchmark.spec),
            mixes: values(self.mixes),
            distributions: self
                .distributions
                .iter()
                .map(|distribution| distribution.value.to_owned())
                .collect(),
            threads: values(self.threads),
            rates: values(self.rates),
            arrivals: self.arrivals,
            beside: self.beside.map(|background| background.value),
            find_rate: self.find_rate.map(|wanted| wanted.value),
            sizes: values(self.amounts)
                .into_iter()
                .map(|amount| DataSize {
                    records: amount.records(record_bytes),
                    label: match amount {
                        DataAmount::Data { label, .. } => Some(label),
                        DataAmount::Records(_) => None,
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

pub(in crate::spec) fn read(root: &mut Section<'_>, findings: &mut Diagnostics) -> Vec<WorkloadSite> {
    named_sections(root, "workload", "ycsb", findings)
        .into_iter()
        .map(|(name, section)| read_workload(name, section, findings))
        .collect()
}

fn read_workload(name: String, mut section: Section<'_>, findings: &mut Diagnostics) -> WorkloadSite {
    let key_span = section.span.clone();
    let kind =
        section.take(KIND.name).and_then(|field| field.word(&["ycsb", "jobs", "command", "fio"], findings));
    if let Some(kind) = kind.as_ref().filter(|kind| matches!(kind.value, "command" | "fio")) {
        let benchmark = match kind.value {
            "fio" => benchmark::read_fio(&mut section, findings),
            _ => benchmark::read_command(&mut section, findings),
        };
        section.finish(findings);
        return WorkloadSite::command(name, key_span, benchmark);
    }
    // A section with `jobs` needs no `kind`.
    if kind.map_or_else(|| section.has("jobs"), |kind| kind.value == "jobs") {
        let jobs = jobs::read(&mut section, findings);
        section.finish(findings);
        return WorkloadSite::batch(name, key_span, jobs);
    }
    let (fields, field_bytes) = read_record(&mut section, findings).unwrap_or((10, 100));
    let [records, data] = section.take_each([RECORDS.name, DATA.name]);
    let amounts = match (records, data) {
        (Some(records), Some(data)) => {
            let message = format!("{} gives its amount of data twice", section.title);
            findings.push(
                Diagnostic::error(data.key_span, message, "expected either `records` or `data`")
                    .with_context(records.key_span, "already given here"),
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
    let mixes =
        section.take_key(&MIXES, findings).map(|field| mixes::read(&field, findings)).unwrap_or_default();
    let distributions = section.read(&DISTRIBUTION, findings).map(|list| list.value).unwrap_or_default();
    let threads = section.read(&THREADS, findings).map(|list| list.value).unwrap_or_default();
    let (rates, has_all_rates) = findings.attempt(|findings| match section.take(RATE.name) {
        Some(field) => rate::read_rates(&field, findings),
        None => vec![Spanned::new(StudyRate::Max, key_span.clone())],
    });
    let is_searched = section.has(FIND_RATE.name);
    let find_rate = read_find_rate(&mut section, &rates, &mixes, findings);
    let may_have_rate = is_searched || !has_all_rates;
    let arrivals = read_arrivals(&mut section, &rates, may_have_rate, findings);
    let background = beside::read(&mut section, &mixes, findings);
    let properties =
        section.take(PROPERTIES.name).map(|field| read_properties(&field, findings)).unwrap_or_default();
    let visibility = visibility::read(&mut section, findings);
    let scan_filter = section.read(&SCAN_FILTER, findings);
    let compact_at = section.read(&COMPACT_AT, findings).map(|share| share.value);
    section.finish(findings);
    WorkloadSite {
        name,
        key_span,
        is_batch: false,
        jobs: Vec::new(),
        is_benchmark: false,
        benchmark: None,
        mixes,
        distributions,
        threads,
        rates,
        arrivals,
        beside: background,
        find_rate,
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
    let field = section.take_key(&RECORD, findings)?;
    let mut record = field.section(format!("`record` in {}", section.title), findings)?;
    let fields = record.read(&FIELDS, findings);
    let bytes = record.read(&FIELD_BYTES, findings);
    record.finish(findings);
    Some((fields?.value, bytes?.value))
}

/// A rate is given or searched for; mixes that end with their records have none.
fn read_find_rate(
    section: &mut Section<'_>,
    rates: &[Spanned<StudyRate>],
    mixes: &[Spanned<String>],
    findings: &mut Diagnostics,
) -> Option<Spanned<FindRate>> {
    let wanted = find_rate::read(section, findings)?;
    if rates.iter().any(|rate| rate.value != StudyRate::Max) {
        let message = format!("{} has a rate and searches for one", section.title);
        findings.push(Diagnostic::error(
            wanted.span.clone(),
            message,
            "expected either `rate` or `find_rate`",
        ));
    }
    for mix in mixes.iter().filter(|mix| matches!(mix.value.as_str(), "load" | "delete")) {
        let message = format!("mix \"{}\" ends with its records, so there is no rate to find", mix.value);
        let label = "expected a section of its own, without `find_rate`";
        findings.push(Diagnostic::error(mix.span.clone(), message, label));
    }
    Some(wanted)
}

/// Only operations at a rate have arrivals: a closed loop sends the next one after the last answer.
fn read_arrivals(
    section: &mut Section<'_>,
    rates: &[Spanned<StudyRate>],
    may_have_rate: bool,
    findings: &mut Diagnostics,
) -> ArrivalProcess {
    let Some(field) = section.take_key(&ARRIVALS, findings) else { return ArrivalProcess::default() };
    let Some(word) = ARRIVALS.kind.read(&field, findings) else { return ArrivalProcess::default() };
    if !may_have_rate && rates.iter().all(|rate| rate.value == StudyRate::Max) {
        let message = format!("{} says how operations arrive, but has no rate", section.title);
        findings.push(Diagnostic::error(
            field.key_span.clone(),
            message,
            "expected `rate = 5_000` beside it",
        ));
    }
    ArrivalProcess::parse(word.value).unwrap_or_default()
}

pub(in crate::spec) fn read_records(
    field: &Field<'_>,
    findings: &mut Diagnostics,
) -> Vec<Spanned<DataAmount>> {
    let list = RECORDS.kind.read(field, findings).map(|list| list.value).unwrap_or_default();
    list.into_iter().map(|records| Spanned::new(DataAmount::Records(records.value), records.span)).collect()
}

pub(in crate::spec) fn read_data(field: &Field<'_>, findings: &mut Diagnostics) -> Vec<Spanned<DataAmount>> {
    let mut amounts: Vec<Spanned<DataAmount>> = Vec::new();
    for element in field.one_or_many(findings) {
        let Some(bytes) = element.bytes(findings) else { continue };
        let label = element.as_text().unwrap_or_default().split_whitespace().collect::<Vec<_>>().join(" ");
        // Labels become parts of file names, and no size is this long.
        let label = if label.len() > MAX_LABEL { units::format_bytes(bytes.value) } else { label };
        let amount = DataAmount::Data { bytes: bytes.value, label };
        match amounts.iter().find(|earlier| earlier.value.same(&amount)) {
            Some(earlier) => element.repeated(earlier.span.clone(), findings),
            None => amounts.push(Spanned::new(amount, bytes.span)),
        }
    }
    amounts
}

/// Why a property that the generator accepts has no meaning in a study.
fn without_place(property: &str) -> Option<String> {
    match properties::known(property)?.scope {
        PropertyScope::Workload => None,
        PropertyScope::Output => {
            Some("it is about YCSB's output, and a study keeps a record instead".to_owned())
        }
        PropertyScope::Nothing(reason) => Some(format!("it changes nothing: {reason}")),
    }
}

fn read_properties(field: &Field<'_>, findings: &mut Diagnostics) -> BTreeMap<String, String> {
    let mut values = BTreeMap::new();
    let mut spans = BTreeMap::new();
    let Some(mut section) = field.section(field.place.clone(), findings) else {
        return values;
    };
    let owned = |name: &str| PROPERTIES_WITH_A_KEY.iter().find(|(with_a_key, _)| *with_a_key == name);
    let of_the_workload =
        properties::KNOWN.iter().filter(|known_property| known_property.scope == PropertyScope::Workload);
    let names: Vec<&str> = of_the_workload
        .map(|known_property| known_property.name)
        .filter(|name| owned(name).is_none())
        .collect();
    for property in section.take_rest() {
        if let Some((_, key)) = owned(&property.key) {
            let message = format!("property `{}` is set elsewhere", property.key);
            findings.push(Diagnostic::error(property.key_span, message, format!("expected {key} instead")));
        } else if let Some(problem) = without_place(&property.key) {
            let message = format!("property `{}` has no place in a study", property.key);
            findings.push(Diagnostic::error(property.key_span, message, problem));
        } else if !names.contains(&property.key.as_str()) {
            let message = format!("unknown CoreWorkload property `{}`", property.key);
            let list = format!("expected one of {}", names.join(", "));
            findings.push(Diagnostic::unknown(
                property.key_span,
                message,
                UnknownName::Key(&property.key),
                names.iter().copied(),
                list,
            ));
        } else if let Some(value) = property.scalar(findings) {
            spans.insert(property.key.clone(), property.span);
            values.insert(property.key, value);
        }
    }
    // The generator reads them in the end, so its own interpretation counts.
    let mut asked = YcsbProperties::new();
    for (name, value) in &values {
        asked.add(name, value, PropertyOrigin::Argument(name.clone()));
    }
    for mistake in asked.workload().err().into_iter().flat_map(|mistakes| mistakes.0) {
        let span = match &mistake.origin {
            PropertyOrigin::Argument(name) => spans.get(name).cloned(),
            PropertyOrigin::File { .. } => None,
        };
        let message = format!("wrong value in {}", field.place);
        findings.push(Diagnostic::error(span.unwrap_or(field.span.clone()), message, mistake.problem));
    }
    values
}
