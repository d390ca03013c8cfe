//! `[run]`, `[scale]` and `[reference]`: how the matrix is run and what it is compared with.

use std::ops::Range;
use std::time::Duration;

use serde_json::Value;
use underlay_attach::choice;
use underlay_config::keys::{
    AnyText, AnyWord, BooleanKind, BytesKind, CountKind, DurationKind, FactorKind, KeyKind, KeyRow,
    KeySection, ListKind, OwnSchema, WholeKind, WordKind, words_schema,
};
use underlay_config::{Diagnostic, Diagnostics, Field, Section, Spanned, UnknownName};
use underlay_record::{ReferenceTable, ScaleFactors};

use crate::reference;
use crate::spec::model::{InitialCacheState, RunSettings};

pub const MAX_REPETITIONS: u32 = 1000;
pub const MAX_TIME: f64 = ScaleFactors::MAX_TIME;
pub(in crate::spec) const MAX_DATA: f64 = ScaleFactors::MAX_DATA;
/// More machines than in any published study.
const MAX_MACHINES: u32 = 100_000;

/// A shorter window contains no device request.
const MIN_MEASURED: Duration = Duration::from_millis(1);

/// How long a cell is measured.
#[derive(Clone, Copy, Debug)]
pub(super) struct MeasuredTime;

impl KeyKind for MeasuredTime {
    type Value = Duration;

    fn read(&self, field: &Field<'_>, findings: &mut Diagnostics) -> Option<Spanned<Duration>> {
        let duration = field.duration(false, findings)?;
        if duration.value < MIN_MEASURED {
            field.invalid("expected at least \"1 ms\": a shorter time holds no request", findings);
            return None;
        }
        Some(duration)
    }

    fn describe(&self) -> String {
        "a duration of at least \"1 ms\"".to_owned()
    }

    fn schema(&self) -> Value {
        DurationKind { allows_zero: false }.schema()
    }
}

pub(super) const WARMUP: KeyRow<DurationKind> = KeyRow::new(
    "warmup",
    DurationKind { allows_zero: true },
    "\"20 s\"",
    "Time before each measurement: on your clock, or modelled time where this host chooses [scale] time.",
)
.or("\"20 s\"");
pub(super) const DURATION: KeyRow<MeasuredTime> = KeyRow::new(
    "duration",
    MeasuredTime,
    "\"60 s\"",
    "Time that each cell is measured: on your clock, or modelled time where this host chooses [scale] time.",
)
.or("\"60 s\"");
pub(super) const REPETITIONS: KeyRow<CountKind> = KeyRow::new(
    "repetitions",
    CountKind { min: 1, max: MAX_REPETITIONS },
    "3",
    "How often each cell is measured.",
)
.or("3");
const SEED: KeyRow<WholeKind> = KeyRow::new(
    "seed",
    WholeKind { min: 0, max: u64::MAX },
    "1",
    "Decides the order of the cells, the keys and the models' random numbers.",
)
.or("1");
// On a disk a cache takes hours to fill, so a study must ask for cold explicitly.
const CACHE: KeyRow<WordKind<InitialCacheState>> = KeyRow::new(
    "cache",
    WordKind(&[("cold", InitialCacheState::Cold), ("warm", InitialCacheState::Warm)]),
    "\"cold\"",
    "What the caches hold when a cell begins.",
)
.or("\"warm\"");
const ATTACHMENT: KeyRow<AnyWord> = KeyRow::new(
    "attachment",
    AnyWord(|| choice::ATTACHMENTS.iter().map(|way| way.name).collect()),
    "\"fuse+loop\"",
    "How modelled storage is attached.",
)
.or_else("the best that works here");
pub(super) const DIRTY_LIMIT: KeyRow<BytesKind> = KeyRow::new(
    "dirty_limit",
    BytesKind,
    "\"1.2 GB\"",
    "Written data that may wait in memory, for all devices of one storage, on the modelled machine.",
)
.or_else("the limit of this machine's kernel");
const RAW: KeyRow<BooleanKind> = KeyRow::new(
    "raw",
    BooleanKind,
    "true",
    "Writes every measured operation to a file beside the cell's record.",
)
.or("false");

/// `[run]`
pub(in crate::spec) const RUN: KeySection = KeySection {
    path: "run",
    meaning: "How often and how long each cell is measured.",
    keys: &[&WARMUP, &DURATION, &REPETITIONS, &SEED, &CACHE, &ATTACHMENT, &DIRTY_LIMIT, &RAW],
};

pub(super) const TIME: KeyRow<FactorKind> = KeyRow::new(
    "time",
    FactorKind { max: MAX_TIME },
    "8",
    "Slow motion: makes every modelled time this many times longer.",
)
.or_else("what this host needs for [machine], or 1 without it");
pub(super) const DATA_SCALE: KeyRow<FactorKind> =
    KeyRow::new("data", FactorKind { max: MAX_DATA }, "1000", "Makes every size this many times smaller.")
        .or("1");

/// `[scale]`
pub(in crate::spec) const SCALE: KeySection = KeySection {
    path: "scale",
    meaning: "How the modelled machine becomes this one; the report divides both factors out.",
    keys: &[&TIME, &DATA_SCALE],
};

const PAPER: KeyRow<OwnSchema> = KeyRow::new(
    "paper",
    OwnSchema(|| words_schema(reference::names())),
    "\"oracle-nosql-flash\"",
    "Whose published figures.",
)
.required();
const DEPARTURES: KeyRow<ListKind<AnyText>> = KeyRow::new(
    "departures",
    ListKind(AnyText("a sentence")),
    "[\"Data is a thousandth.\"]",
    "Where the study departs from how they came about.",
);
const ONE_OF: KeyRow<CountKind> = KeyRow::new(
    "one_of",
    CountKind { min: 1, max: MAX_MACHINES },
    "5",
    "How many equal machines the paper had: the study is one of them.",
);

/// `[reference]`
pub(in crate::spec) const REFERENCE: KeySection = KeySection {
    path: "reference",
    meaning: "Published figures to print beside the study's own.",
    keys: &[&PAPER, &DEPARTURES, &ONE_OF],
};

/// The settings of `[run]`, with the positions that later checks need.
#[derive(Clone)]
pub(in crate::spec) struct RunSite {
    pub settings: RunSettings,
    /// Absent when the default applies; so are the next ones.
    pub warmup_span: Option<Range<usize>>,
    pub duration_span: Option<Range<usize>>,
    pub attachment_span: Option<Range<usize>>,
    pub dirty_limit_span: Option<Range<usize>>,
    pub raw_span: Option<Range<usize>>,
    /// Whether the duration comes from the study, rather than being the default for one that could not be read.
    pub has_duration: bool,
}

/// `[run]`; a missing key has the default below.
pub(in crate::spec) fn read_run(root: &mut Section<'_>, findings: &mut Diagnostics) -> RunSite {
    let mut site = RunSite {
        settings: RunSettings {
            warmup: WARMUP.default_value(),
            duration: DURATION.default_value(),
            repetitions: REPETITIONS.default_value(),
            seed: SEED.default_value(),
            cache: CACHE.default_value(),
            attachment: None,
            dirty_limit_bytes: None,
            raw: RAW.default_value(),
        },
        warmup_span: None,
        duration_span: None,
        attachment_span: None,
        dirty_limit_span: None,
        raw_span: None,
        has_duration: true,
    };
    let Some(field) = root.take(RUN.path) else { return site };
    let Some(mut section) = field.section("[run]", findings) else {
        site.has_duration = false;
        return site;
    };
    if let Some(warmup) = section.read(&WARMUP, findings) {
        site.settings.warmup = warmup.value;
        site.warmup_span = Some(warmup.span);
    }
    match section.read_optional(&DURATION, findings) {
        Some(Some(duration)) => {
            site.settings.duration = duration.value;
            site.duration_span = Some(duration.span);
        }
        Some(None) => {}
        None => site.has_duration = false,
    }
    if let Some(count) = section.read(&REPETITIONS, findings) {
        site.settings.repetitions = count.value;
    }
    if let Some(seed) = section.read(&SEED, findings) {
        site.settings.seed = seed.value;
    }
    if let Some(cache) = section.read(&CACHE, findings) {
        site.settings.cache = cache.value;
    }
    if let Some(word) = section.read(&ATTACHMENT, findings) {
        site.settings.attachment = Some(word.value.to_owned());
        site.attachment_span = Some(word.span);
    }
    if let Some(limit) = section.read(&DIRTY_LIMIT, findings) {
        site.settings.dirty_limit_bytes = Some(limit.value);
        site.dirty_limit_span = Some(limit.span);
    }
    if let Some(raw) = section.read(&RAW, findings) {
        site.settings.raw = raw.value;
        site.raw_span = Some(raw.span);
    }
    section.finish(findings);
    site
}

/// The factors of `[scale]`.
#[derive(Clone)]
pub(in crate::spec) struct ScaleSite {
    pub value: ScaleFactors,
    pub span: Range<usize>,
    /// Whether the study gives `time`.
    pub time_is_given: bool,
}

/// `[scale]`: both factors are 1 by default, and never less.
pub(in crate::spec) fn read_scale(root: &mut Section<'_>, findings: &mut Diagnostics) -> ScaleSite {
    let mut scale = ScaleSite { value: ScaleFactors::default(), span: 0..0, time_is_given: false };
    let Some(field) = root.take(SCALE.path) else { return scale };
    scale.span = field.key_span.clone();
    let Some(mut section) = field.section("[scale]", findings) else { return scale };
    if let Some(factor) = section.read(&TIME, findings) {
        (scale.value.time, scale.time_is_given) = (factor.value, true);
    }
    if let Some(factor) = section.read(&DATA_SCALE, findings) {
        scale.value.data = factor.value;
    }
    section.finish(findings);
    scale
}

/// `[reference]`: the published figures, and the study's differences from their setup.
pub(in crate::spec) fn read_reference(
    root: &mut Section<'_>,
    findings: &mut Diagnostics,
) -> Option<Spanned<ReferenceTable>> {
    let field = root.take(REFERENCE.path)?;
    let mut section = field.section("[reference]", findings)?;
    let paper =
        section.take_key(&PAPER, findings).and_then(|field| field.text("the name of a paper", findings));
    let departures =
        section.read(&DEPARTURES, findings).map(|departures| departures.value).unwrap_or_default();
    let one_of = section.read(&ONE_OF, findings);
    section.finish(findings);

    let paper = paper?;
    let Some(found) = reference::find(&paper.value) else {
        let names = reference::names();
        let message = format!("unknown paper \"{}\"", paper.value.escape_debug());
        let expected = format!("expected one of {}", names.join(", "));
        findings.push(Diagnostic::unknown(
            paper.span,
            message,
            UnknownName::Value(&paper.value),
            names.iter().copied(),
            expected,
        ));
        return None;
    };
    let departures = departures.into_iter().map(|departure| departure.value).collect();
    Some(Spanned::new(found.table(departures, one_of.map(|machines| machines.value)), paper.span))
}
