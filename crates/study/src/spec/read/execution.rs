//! `[run]`, `[scale]` and `[reference]`: how the matrix is run and what it is held against.

use std::ops::Range;
use std::time::Duration;

use underlay_attach::choice;
use underlay_config::{Diagnostic, Diagnostics, Field, Section, Spanned, UnknownName};
use underlay_record::{ReferenceTable, ScaleFactors};

use crate::reference;
use crate::spec::model::{InitialCacheState, RunSettings};

pub const MAX_REPETITIONS: u32 = 1000;
pub const MAX_TIME: f64 = ScaleFactors::MAX_TIME;
pub(in crate::spec) const MAX_DATA: f64 = ScaleFactors::MAX_DATA;
/// More machines than any published study has had.
const MAX_MACHINES: u32 = 100_000;

/// A shorter one has no request of any device in it.
const MIN_MEASURED: Duration = Duration::from_millis(1);

/// How long a cell is measured.
pub(super) fn read_measured_time(field: &Field<'_>, findings: &mut Diagnostics) -> Option<Spanned<Duration>> {
    let duration = field.duration(false, findings)?;
    if duration.value < MIN_MEASURED {
        field.invalid("expected at least \"1 ms\": a shorter time holds no request", findings);
        return None;
    }
    Some(duration)
}

/// The settings of `[run]`, with the places that later checks point at.
#[derive(Clone)]
pub(in crate::spec) struct RunSite {
    pub settings: RunSettings,
    /// Absent when the default was taken, as each of these.
    pub warmup_span: Option<Range<usize>>,
    pub duration_span: Option<Range<usize>>,
    pub attachment_span: Option<Range<usize>>,
    pub dirty_limit_span: Option<Range<usize>>,
    pub raw_span: Option<Range<usize>>,
    /// Whether the duration is what the study says, and not the default for one that could not be read.
    pub has_duration: bool,
}

/// `[run]`; a key that is left out has the default below.
pub(in crate::spec) fn read_run(root: &mut Section<'_>, findings: &mut Diagnostics) -> RunSite {
    let mut site = RunSite {
        settings: RunSettings {
            warmup: Duration::from_secs(20),
            duration: Duration::from_secs(60),
            repetitions: 3,
            seed: 1,
            // On a disk a cache fills for hours; who asks for cold means it.
            cache: InitialCacheState::Warm,
            attachment: None,
            dirty_limit_bytes: None,
            raw: false,
        },
        warmup_span: None,
        duration_span: None,
        attachment_span: None,
        dirty_limit_span: None,
        raw_span: None,
        has_duration: true,
    };
    let Some(field) = root.take("run") else { return site };
    let Some(mut section) = field.section("[run]", findings) else {
        site.has_duration = false;
        return site;
    };
    if let Some(warmup) = section.take("warmup").and_then(|field| field.duration(true, findings)) {
        site.settings.warmup = warmup.value;
        site.warmup_span = Some(warmup.span);
    }
    if let Some(field) = section.take("duration") {
        match read_measured_time(&field, findings) {
            Some(duration) => {
                site.settings.duration = duration.value;
                site.duration_span = Some(duration.span);
            }
            None => site.has_duration = false,
        }
    }
    if let Some(count) =
        section.take("repetitions").and_then(|field| field.count(1..=MAX_REPETITIONS, findings))
    {
        site.settings.repetitions = count.value;
    }
    if let Some(seed) = section.take("seed").and_then(|field| field.whole(0..=u64::MAX, findings)) {
        site.settings.seed = seed.value;
    }
    if let Some(cache) = section.take("cache").and_then(|field| field.word(&["cold", "warm"], findings)) {
        site.settings.cache =
            if cache.value == "cold" { InitialCacheState::Cold } else { InitialCacheState::Warm };
    }
    if let Some(field) = section.take("attachment") {
        let names: Vec<&'static str> = choice::ATTACHMENTS.iter().map(|way| way.name).collect();
        if let Some(word) = field.word(&names, findings) {
            site.settings.attachment = Some(word.value.to_owned());
            site.attachment_span = Some(word.span);
        }
    }
    if let Some(limit) = section.take("dirty_limit").and_then(|field| field.bytes(findings)) {
        site.settings.dirty_limit_bytes = Some(limit.value);
        site.dirty_limit_span = Some(limit.span);
    }
    if let Some(field) = section.take("raw")
        && let Some(raw) = field.boolean(findings)
    {
        site.settings.raw = raw;
        site.raw_span = Some(field.span);
    }
    section.finish(findings);
    site
}

/// The factors of `[scale]`.
#[derive(Clone)]
pub(in crate::spec) struct ScaleSite {
    pub value: ScaleFactors,
    pub span: Range<usize>,
    /// Whether the study says what `time` is.
    pub time_is_given: bool,
}

/// `[scale]`: both factors are 1 unless it says otherwise, and never less.
pub(in crate::spec) fn read_scale(root: &mut Section<'_>, findings: &mut Diagnostics) -> ScaleSite {
    let mut scale = ScaleSite { value: ScaleFactors::default(), span: 0..0, time_is_given: false };
    let Some(field) = root.take("scale") else { return scale };
    scale.span = field.key_span.clone();
    let Some(mut section) = field.section("[scale]", findings) else { return scale };
    if let Some(factor) = section.take("time").and_then(|field| read_factor(&field, MAX_TIME, findings)) {
        (scale.value.time, scale.time_is_given) = (factor, true);
    }
    if let Some(factor) = section.take("data").and_then(|field| read_factor(&field, MAX_DATA, findings)) {
        scale.value.data = factor;
    }
    section.finish(findings);
    scale
}

/// A factor of a scale: from 1 to `largest`.
pub(in crate::spec) fn read_factor(
    field: &Field<'_>,
    largest: f64,
    findings: &mut Diagnostics,
) -> Option<f64> {
    match field.as_number() {
        Some(factor) if (1.0..=largest).contains(&factor) => return Some(factor),
        Some(_) => field.invalid(format!("expected a factor from 1 to {largest}"), findings),
        None => field.mismatch(&format!("a factor from 1 to {largest}"), findings),
    }
    None
}

/// `[reference]`: the published figures, and the study's departures from how they came about.
pub(in crate::spec) fn read_reference(
    root: &mut Section<'_>,
    findings: &mut Diagnostics,
) -> Option<Spanned<ReferenceTable>> {
    let field = root.take("reference")?;
    let mut section = field.section("[reference]", findings)?;
    let paper = section
        .require("paper", "paper = \"oracle-nosql-flash\"", findings)
        .and_then(|field| field.text("the name of a paper", findings));
    let departures = section
        .take("departures")
        .map(|field| field.list(findings, |element, findings| element.text("a sentence", findings)))
        .unwrap_or_default();
    let one_of = section.take("one_of").and_then(|field| field.count(1..=MAX_MACHINES, findings));
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
