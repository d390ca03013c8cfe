//! `find_rate`: the highest rate under a latency, instead of a rate.

use serde_json::{Value, json};
use underlay_config::keys::{DurationKind, KeyKind, KeyRow, KeySection, OwnSchema};
use underlay_config::{Diagnostic, Diagnostics, Field, Section, Spanned};
use underlay_workload::search::LatencyBound;

use super::rate::rate_schema;
use crate::spec::model::FindRate;
use crate::spec::model::rate::{EXPECTED_RATE, RATES_PER_S};

const EXAMPLE: &str = "expected a percentile and a time, as in `find_rate = { p99 = \"10 ms\" }`";

pub(super) const FIND_RATE: KeyRow<OwnSchema> = KeyRow::new(
    "find_rate",
    OwnSchema(schema),
    "{ p99 = \"10 ms\" }",
    "Looks for the highest rate that keeps to these latencies, in place of `rate`.",
);

const FROM: KeyRow<OwnSchema> = KeyRow::new(
    "from",
    OwnSchema(rate_schema),
    "100",
    "The first rate that is tried, in operations a second.",
);
const TO: KeyRow<OwnSchema> = KeyRow::new(
    "to",
    OwnSchema(rate_schema),
    "100_000",
    "The highest rate that is tried, in operations a second.",
);
const WITHIN: KeyRow<RateTolerance> =
    KeyRow::new("within", RateTolerance, "0.05", "The tolerance of the rate, from 0.01 to 0.5.").or("0.05");
const STEP: KeyRow<DurationKind> = KeyRow::new(
    "step",
    DurationKind { allows_zero: false },
    "\"5 s\"",
    "The length of each step on your clock.",
)
.or_else("a fourth of `duration`");

/// `find_rate = { ... }`; its other keys are percentiles.
pub(in crate::spec) const SEARCH: KeySection = KeySection {
    path: "workload.NAME.find_rate",
    meaning: "The highest rate under a latency. Other keys are percentiles with their limits: `p99 = \"10 ms\"`.",
    keys: &[&FROM, &TO, &WITHIN, &STEP],
};

fn schema() -> Value {
    let mut search = SEARCH.schema();
    let mut percentile = DurationKind { allows_zero: false }.schema();
    percentile["description"] = json!("A percentile, as p99 or p999, and the latency that it keeps to.");
    search["patternProperties"] = json!({ "^p[0-9]{2,6}$": percentile });
    search
}

/// The precision of the rate.
#[derive(Clone, Copy, Debug)]
struct RateTolerance;

impl RateTolerance {
    const ALLOWED: std::ops::RangeInclusive<f64> = 0.01..=0.5;
}

impl KeyKind for RateTolerance {
    type Value = f64;

    fn read(&self, field: &Field<'_>, findings: &mut Diagnostics) -> Option<Spanned<f64>> {
        let expected = "a fraction from 0.01 to 0.5, such as 0.05";
        let tolerance = field.number_within(RateTolerance::ALLOWED, expected, findings)?;
        Some(Spanned::new(tolerance, field.span.clone()))
    }

    fn describe(&self) -> String {
        "a fraction from 0.01 to 0.5".to_owned()
    }

    fn schema(&self) -> Value {
        let (min, max) = RateTolerance::ALLOWED.into_inner();
        json!({ "type": "number", "minimum": min, "maximum": max })
    }
}

/// Reads `find_rate`, which replaces `rate`.
pub(in crate::spec) fn read(
    section: &mut Section<'_>,
    findings: &mut Diagnostics,
) -> Option<Spanned<FindRate>> {
    let field = section.take_key(&FIND_RATE, findings)?;
    let mut wanted = field.section(field.place.clone(), findings)?;
    let rate = |field: Option<Field<'_>>, findings: &mut Diagnostics| match field {
        None => Some(None),
        Some(field) => field.rate_per_s(RATES_PER_S, EXPECTED_RATE, findings).map(Some),
    };
    let from_per_s = rate(wanted.take(FROM.name), findings);
    let to_per_s = rate(wanted.take(TO.name), findings);
    let tolerance = wanted
        .read_optional(&WITHIN, findings)
        .map(|tolerance| tolerance.map_or_else(|| WITHIN.default_value(), |tolerance| tolerance.value));
    let step = wanted.read_optional(&STEP, findings)?.map(|step| step.value);
    let (mut bounds, mut names_any) = (Vec::new(), false);
    for field in wanted.take_rest() {
        names_any = true;
        let Some(quantile) = LatencyBound::quantile_of(&field.key) else {
            let message = format!("unknown key `{}` in {}", field.key, wanted.title);
            let label = "expected a percentile such as p50, p99 or p999, or one of from, to, within, step";
            findings.push(Diagnostic::error(field.key_span, message, label));
            continue;
        };
        if field.is_table() {
            // p99.9 without quotes is read as a 9 in p99.
            let message = format!("`{}` in {} has parts of its own", field.key, wanted.title);
            let label = "expected percentiles without a point: `p999` for the 99.9th";
            findings.push(Diagnostic::error(field.key_span, message, label));
            continue;
        }
        let Some(limit) = field.duration(false, findings) else { continue };
        let limit_ns = u64::try_from(limit.value.as_nanos()).unwrap_or(u64::MAX);
        bounds.push(LatencyBound { quantile, limit_ns });
    }
    let (from_per_s, to_per_s, tolerance) = (from_per_s?, to_per_s?, tolerance?);
    if bounds.is_empty() {
        if names_any {
            return None;
        }
        let message = format!("{} has no limit on latency", field.place);
        findings.push(Diagnostic::error(field.span.clone(), message, EXAMPLE));
        return None;
    }
    if to_per_s.zip(from_per_s).is_some_and(|(to, from)| to < from) {
        let message = format!("{} ends below its start", field.place);
        findings.push(Diagnostic::error(field.span.clone(), message, "expected `to` above `from`"));
        return None;
    }
    Some(Spanned::new(FindRate { bounds, from_per_s, to_per_s, within: tolerance, step }, field.span.clone()))
}
