//! `[workload.NAME]` of a benchmark that is a user's command or a fio job.

use std::ops::Range;
use std::time::Duration;

use serde_json::{Value, json};
use underlay_config::keys::{
    AnyText, BooleanKind, BytesKind, KeyKind, KeyRow, KeySection, OwnSchema, WordKind,
};
use underlay_config::{Diagnostic, Diagnostics, Field, Section};
use underlay_record::{BetterDirection, MetricDilation, usual_unit};
use underlay_systems::benchmark::{
    self, BenchmarkPlan, FigurePlan, MarkPlan, MetricReading, MetricSource, ValueChoice, fio,
};
use underlay_systems::command::placeholders;

use super::jobs::LIMIT;
use crate::spec::model::BenchmarkSpec;

const MAX_NAME: usize = 40;
const MAX_UNIT: usize = 24;

const COMMAND_KIND: KeyRow<WordKind<()>> =
    KeyRow::new("kind", WordKind(&[("command", ())]), "\"command\"", "A benchmark of yours.").required();
const RUN: KeyRow<AnyText> = KeyRow::new(
    "run",
    AnyText("a command for the shell"),
    "\"pgbench -p {port} -T {duration_s}\"",
    "A command for the shell, with placeholders: docs/any-system.md has them.",
)
.required();
const COMMAND_JOB: KeyRow<AnyText> = KeyRow::new(
    "job",
    AnyText("the text of a file"),
    "\"threads=4\"",
    "The text of the file that {job} names.",
);
const BUDGET: KeyRow<WordKind<bool>> = KeyRow::new(
    "budget",
    WordKind(&[("client", false), ("system", true)]),
    "\"system\"",
    "Whose memory and CPU time the command uses.",
)
.or("\"client\"");
const LOADED_DATA: KeyRow<BytesKind> = KeyRow::new(
    "data",
    BytesKind,
    "\"100 GB\"",
    "What the system's `load` puts there, on the modelled machine.",
);
const FIGURES: KeyRow<OwnSchema> = KeyRow::new(
    "figures",
    OwnSchema(|| json!({ "type": "object", "minProperties": 1, "additionalProperties": figure_schema() })),
    "{ throughput = { pattern = 'tps = ([0-9.]+)', unit = \"tps\", better = \"higher\" } }",
    "What it measures, and where that is found; storages are compared by the first.",
)
.required();
const MARKS: KeyRow<OwnSchema> = KeyRow::new(
    "marks",
    OwnSchema(|| json!({ "type": "object", "additionalProperties": MARK.schema() })),
    "{ checkpoint = { pattern = '^checkpoint from (?<from>[0-9.]+)' } }",
    "Activity during the benchmark, as the program reports it: checkpoints, compactions.",
);

/// `[workload.NAME]` of a command
pub(in crate::spec) const COMMAND: KeySection = KeySection {
    path: "workload.NAME (command)",
    meaning: "A benchmark of yours.",
    keys: &[&COMMAND_KIND, &RUN, &COMMAND_JOB, &BUDGET, &LOADED_DATA, &LIMIT, &FIGURES, &MARKS],
};

const FIO_KIND: KeyRow<WordKind<()>> =
    KeyRow::new("kind", WordKind(&[("fio", ())]), "\"fio\"", "A job of fio.").required();
const FIO_JOB: KeyRow<AnyText> = KeyRow::new(
    "job",
    AnyText("the text of a job file"),
    "\"[random-reads]\\ndirectory={data}\\nrw=randread ...\"",
    "The text of a job file, with placeholders.",
)
.required();

/// `[workload.NAME]` of fio
pub(in crate::spec) const FIO: KeySection = KeySection {
    path: "workload.NAME (fio)",
    meaning: "A job of fio.",
    keys: &[&FIO_KIND, &FIO_JOB, &LOADED_DATA, &LIMIT],
};

const UNIT: KeyRow<AnyText> =
    KeyRow::new("unit", AnyText("a unit, as in \"ms\""), "\"ms\"", "Such as \"ms\" or \"tps\".").required();
const BETTER: KeyRow<WordKind<BetterDirection>> =
    KeyRow::new("better", WordKind(&BetterDirection::NAMES), "\"higher\"", "Which values are good ones.")
        .required();
const FIGURE_PATTERN: KeyRow<AnyText> = KeyRow::new(
    "pattern",
    AnyText("a string"),
    "'tps = ([0-9.]+)'",
    "A regular expression with one group, or one called value.",
);
const JSON_PATH: KeyRow<AnyText> =
    KeyRow::new("json", AnyText("a string"), "\"jobs[0].read.iops\"", "A path into JSON.");
const CSV_COLUMN: KeyRow<AnyText> =
    KeyRow::new("csv", AnyText("a string"), "\"ops/s\"", "A column by its heading.");
const PERCENTILES: KeyRow<AnyText> = KeyRow::new(
    "percentiles",
    AnyText("a string"),
    "'(?<percentile>[0-9.]+)th=(?<value>[0-9.]+)'",
    "A regular expression with the groups percentile and value.",
);
const HDR: KeyRow<BooleanKind> = KeyRow::new("hdr", BooleanKind, "true", "An HdrHistogram log.").or("false");
const PROGRESS: KeyRow<AnyText> = KeyRow::new(
    "progress",
    AnyText("a regular expression"),
    "'^(?<t>[0-9]+) s: (?<value>[0-9.]+)'",
    "A regular expression with the group value, and t where the time is printed.",
);
const TAKE: KeyRow<WordKind<ValueChoice>> =
    KeyRow::new("take", WordKind(&ValueChoice::NAMES), "\"mean\"", "Which of several matches.")
        .or_else("\"last\", or \"mean\" of a progress");
const FILE: KeyRow<AnyText> =
    KeyRow::new("file", AnyText("a file"), "\"{work}/result.json\"", "Where to look.")
        .or_else("what the command printed");
const SLOW_MOTION: KeyRow<WordKind<MetricDilation>> = KeyRow::new(
    "slow_motion",
    WordKind(&MetricDilation::NAMES),
    "\"rate\"",
    "The effect of slow motion on it.",
)
.or_else("what the unit says");

/// A figure of a command
pub(in crate::spec) const FIGURE: KeySection = KeySection {
    path: "workload.NAME.figures.NAME",
    meaning: "A figure that a benchmark measures.",
    keys: &[
        &UNIT,
        &BETTER,
        &FIGURE_PATTERN,
        &JSON_PATH,
        &CSV_COLUMN,
        &PERCENTILES,
        &HDR,
        &PROGRESS,
        &TAKE,
        &FILE,
        &SLOW_MOTION,
    ],
};

fn figure_schema() -> Value {
    FIGURE.schema()
}

const MARK_PATTERN: KeyRow<AnyText> = KeyRow::new(
    "pattern",
    AnyText("a regular expression"),
    "'^checkpoint from (?<from>[0-9.]+) s to (?<to>[0-9.]+) s'",
    "A regular expression with the group from, and to where it has an end: seconds since the benchmark began.",
)
.required();

/// A mark of a command
pub(in crate::spec) const MARK: KeySection = KeySection {
    path: "workload.NAME.marks.NAME",
    meaning: "Activity during a benchmark, as the program reports it.",
    keys: &[&MARK_PATTERN, &FILE],
};

/// A benchmark with its position, for later checks.
#[derive(Clone)]
pub(in crate::spec) struct BenchmarkSite {
    pub spec: BenchmarkSpec,
    /// Its `run`, or fio's `job`.
    pub text_span: Range<usize>,
    /// The position of its `job`.
    pub job_span: Option<Range<usize>>,
}

/// `kind = "command"`; its other keys have been read.
pub(super) fn read_command(section: &mut Section<'_>, findings: &mut Diagnostics) -> Option<BenchmarkSite> {
    let run_field = section.take_key(&RUN, findings);
    let run = run_field.as_ref().and_then(|field| read_template(field, "a command for the shell", findings));
    let job = section.take_key(&COMMAND_JOB, findings);
    let job_span = job.as_ref().map(|field| field.span.clone());
    let lacks_job = job.is_none() && run.as_ref().is_some_and(|run| placeholders::has(run, "job"));
    if let Some(field) = run_field.as_ref().filter(|_| lacks_job) {
        field.invalid("expected a `job` beside it, whose file {job} is", findings);
    }
    let run = run.filter(|_| !lacks_job);
    let job = job.and_then(|field| read_template(&field, "the text of a file", findings));
    let budget = section.read_optional(&BUDGET, findings);
    let figures = section.require(
        FIGURES.name,
        "figures.throughput = { pattern = 'tps = ([0-9.]+)', unit = \"tps\", better = \"higher\" }",
        findings,
    );
    let figures = figures.and_then(|field| read_figures(&field, findings));
    let marks = section.take_key(&MARKS, findings).map(|field| read_marks(&field, findings));
    let (limit, data_bytes) = read_limits(section, findings);
    let in_budget = budget?.map(|budget| budget.value);
    let marks = match marks {
        Some(marks) => marks?,
        None => Vec::new(),
    };
    let text_span = run_field?.span;
    let figures = MetricSource::Planned(figures?);
    let plan = BenchmarkPlan { run: run?, job, in_budget, limit: limit?, figures, marks };
    Some(BenchmarkSite { spec: BenchmarkSpec { plan, data_bytes: data_bytes? }, text_span, job_span })
}

/// `kind = "fio"`
pub(super) fn read_fio(section: &mut Section<'_>, findings: &mut Diagnostics) -> Option<BenchmarkSite> {
    let field = section.take_key(&FIO_JOB, findings);
    let job = field.as_ref().and_then(|field| read_template(field, "the text of a job file", findings));
    let (limit, data_bytes) = read_limits(section, findings);
    let (field, job) = (field?, job?);
    let mistakes = fio::mistakes(&job, None);
    for mistake in &mistakes {
        let finding = fio_finding(mistake, &field.span, &job, findings);
        findings.push(finding);
    }
    if !mistakes.is_empty() {
        return None;
    }
    let job_span = field.span.clone();
    let plan = BenchmarkPlan {
        run: fio::command(),
        job: Some(job),
        in_budget: Some(true),
        limit: limit?,
        figures: MetricSource::OfFio,
        marks: Vec::new(),
    };
    Some(BenchmarkSite {
        spec: BenchmarkSpec { plan, data_bytes: data_bytes? },
        text_span: job_span.clone(),
        job_span: Some(job_span),
    })
}

/// A mistake in a job's text, at its line in the study.
pub(in crate::spec) fn fio_finding(
    mistake: &fio::JobMistake,
    job_span: &Range<usize>,
    job: &str,
    findings: &Diagnostics,
) -> Diagnostic {
    match findings.part_of(job_span, job, &mistake.span) {
        Some(span) => Diagnostic::error(span, &mistake.message, &mistake.expected),
        None => {
            let line = job[..mistake.span.start].matches('\n').count() + 1;
            let message = format!("line {line} of the job: {}", mistake.message);
            Diagnostic::error(job_span.clone(), message, &mistake.expected)
        }
    }
}

fn read_limits(section: &mut Section<'_>, findings: &mut Diagnostics) -> (Option<Duration>, Option<u64>) {
    let limit = section.read_optional(&LIMIT, findings);
    let data_bytes = section.read_optional(&LOADED_DATA, findings);
    (
        limit.map(|limit| limit.map_or_else(|| LIMIT.default_value(), |limit| limit.value)),
        data_bytes.map(|bytes| bytes.map_or(0, |bytes| bytes.value)),
    )
}

/// A text with placeholders.
fn read_template(field: &Field<'_>, expected: &str, findings: &mut Diagnostics) -> Option<String> {
    let text = field.text(expected, findings)?;
    if text.value.trim().is_empty() || text.value.contains('\0') {
        field.invalid(format!("expected {expected}"), findings);
        return None;
    }
    if let Some(word) = placeholders::unknown(&text.value) {
        let message = format!("{{{word}}} in {} is no placeholder", field.place);
        let names: Vec<&str> = placeholders::names().collect();
        let meant = underlay_config::closest(word, names.iter().copied());
        let label = match meant {
            Some(meant) => format!("did you mean {{{meant}}}?"),
            None => format!("expected one of {}", names.join(", ")),
        };
        let help = format!("where the braces are the command's own, write {{{{{word}}}}}");
        findings.push(Diagnostic::error(text.span, message, label).with_help(help));
        return None;
    }
    Some(text.value)
}

fn read_figures(field: &Field<'_>, findings: &mut Diagnostics) -> Option<Vec<FigurePlan>> {
    let mut section = field.section(field.place.clone(), findings)?;
    let fields = section.take_rest();
    if fields.is_empty() {
        field.invalid("expected at least one figure", findings);
        return None;
    }
    let figures: Vec<Option<FigurePlan>> = fields.iter().map(|field| read_figure(field, findings)).collect();
    let figures: Vec<FigurePlan> = figures.into_iter().collect::<Option<_>>()?;
    for (field, figure) in fields.iter().zip(&figures) {
        if let Some(other) =
            figures.iter().find(|other| other.has_several() && is_one_of(&figure.name, &other.name))
        {
            let message = format!("figure `{}` may get the name of one of `{}`", figure.name, other.name);
            let label = "expected another name";
            findings.push(Diagnostic::error(field.key_span.clone(), message, label));
            return None;
        }
    }
    Some(figures)
}

/// Whether a percentile of a metric would have this name: `latency p99`, `latency max`.
fn is_one_of(name: &str, several: &str) -> bool {
    let rest = name.strip_prefix(several).and_then(|rest| rest.strip_prefix(' '));
    rest.is_some_and(|rest| matches!(rest, "mean" | "max") || rest.starts_with('p'))
}

/// Names appear in tables and charts.
fn check_name(field: &Field<'_>, kind: &str, findings: &mut Diagnostics) -> Option<()> {
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || " -_.".contains(letter);
    if field.key.len() <= MAX_NAME && field.key.chars().all(is_plain) {
        return Some(());
    }
    let label = format!("expected letters, digits, dashes and dots, {MAX_NAME} at most");
    findings.push(Diagnostic::error(field.key_span.clone(), format!("not a name for a {kind}"), label));
    None
}

fn read_marks(field: &Field<'_>, findings: &mut Diagnostics) -> Option<Vec<MarkPlan>> {
    let mut section = field.section(field.place.clone(), findings)?;
    let marks: Vec<Option<MarkPlan>> =
        section.take_rest().iter().map(|field| read_mark(field, findings)).collect();
    marks.into_iter().collect()
}

fn read_mark(field: &Field<'_>, findings: &mut Diagnostics) -> Option<MarkPlan> {
    let mut section = field.section(format!("mark `{}`", field.key), findings)?;
    check_name(field, "mark", findings)?;
    let file = match section.take_key(&FILE, findings) {
        Some(field) => Some(read_template(&field, "a file", findings)?),
        None => None,
    };
    let pattern = section.read(&MARK_PATTERN, findings);
    section.finish(findings);
    let pattern = pattern?;
    if let Err(problem) = benchmark::check_mark(&pattern.value) {
        let message = format!("wrong value for `pattern` of mark `{}`", field.key);
        findings.push(Diagnostic::error(pattern.span, message, problem));
        return None;
    }
    Some(MarkPlan { name: field.key.clone(), file, pattern: pattern.value })
}

/// Creates a reading from the text of a key.
type MakeReading = fn(String) -> MetricReading;

fn read_figure(field: &Field<'_>, findings: &mut Diagnostics) -> Option<FigurePlan> {
    let mut section = field.section(format!("figure `{}`", field.key), findings)?;
    check_name(field, "figure", findings)?;
    let unit_field = section.take_key(&UNIT, findings);
    let unit = unit_field.as_ref().and_then(|field| {
        let unit = UNIT.kind.read(field, findings)?;
        if unit.value.len() > MAX_UNIT || unit.value.chars().any(char::is_control) {
            field.invalid(format!("expected a unit of {MAX_UNIT} letters at most"), findings);
            return None;
        }
        Some(unit)
    });
    let better = section.read(&BETTER, findings);
    let dilation = section.read_optional(&SLOW_MOTION, findings);
    let take_field = section.take_key(&TAKE, findings);
    let take = take_field.as_ref().map(|field| TAKE.kind.read(field, findings));
    let file = match section.take_key(&FILE, findings) {
        Some(field) => Some(read_template(&field, "a file", findings)?),
        None => None,
    };
    let mut texts: Vec<(MetricReading, Range<usize>)> = Vec::new();
    let readings: [(&KeyRow<AnyText>, MakeReading); 4] = [
        (&FIGURE_PATTERN, MetricReading::Pattern),
        (&JSON_PATH, MetricReading::Json),
        (&CSV_COLUMN, MetricReading::Csv),
        (&PERCENTILES, MetricReading::Percentiles),
    ];
    for (row, make) in readings {
        texts.extend(section.read(row, findings).map(|text| (make(text.value), text.span)));
    }
    if let Some(is_hdr) = section.read(&HDR, findings).filter(|is_hdr| is_hdr.value) {
        texts.push((MetricReading::Hdr, is_hdr.span));
    }
    let progress = section.read(&PROGRESS, findings);
    section.finish(findings);
    let ways = "one of `pattern`, `json`, `csv`, `percentiles`, `hdr = true`, or `progress`";
    let (reading, span) = match (texts.len(), &progress) {
        (1, _) => texts.remove(0),
        (0, Some(progress)) => (MetricReading::Progress, progress.span.clone()),
        (0, None) => {
            section.missing("pattern", format!("expected {ways}"), findings);
            return None;
        }
        _ => {
            let message = format!("figure `{}` is taken in two ways", field.key);
            findings.push(Diagnostic::error(texts[1].1.clone(), message, format!("expected {ways}")));
            return None;
        }
    };
    let take = match (take, &reading) {
        // Each is a separate metric.
        (Some(_), MetricReading::Percentiles(_) | MetricReading::Hdr) => {
            let field = take_field.expect("it was read");
            field
                .invalid("expected none: percentiles are a figure each, and histograms are merged", findings);
            return None;
        }
        (Some(take), _) => take?.value,
        (None, MetricReading::Progress) => ValueChoice::Mean,
        (None, _) => ValueChoice::default(),
    };
    let (unit, better) = (unit?, better?);
    let slow_motion = match dilation? {
        Some(dilation) => dilation.value,
        None => MetricDilation::from_unit(&unit.value).or_else(|| {
            let message =
                format!("`{}` does not say whether slow motion changes figure `{}`", unit.value, field.key);
            let label = "expected `slow_motion = \"time\"`, \"rate\" or \"none\" beside it";
            findings.push(Diagnostic::error(unit.span.clone(), message, label));
            None
        })?,
    };
    let progress_span = progress.as_ref().map(|progress| progress.span.clone());
    let progress = progress.map(|progress| progress.value);
    let plan = FigurePlan {
        name: field.key.clone(),
        unit: usual_unit(&unit.value).into_owned(),
        better: better.value,
        slow_motion,
        file,
        reading,
        progress,
        take,
    };
    if let Err((key, problem)) = benchmark::check(&plan) {
        let span = progress_span.filter(|_| key == "progress").unwrap_or(span);
        findings.push(Diagnostic::error(
            span,
            format!("wrong value for `{key}` of figure `{}`", field.key),
            problem,
        ));
        return None;
    }
    Some(plan)
}
