//! `rate`: the load offered to a system in one cell. One rate, a sequence of rates, or as much as the system can
//! handle.

use std::time::Duration;

use serde_json::{Value, json};
use underlay_config::keys::{DurationKind, KeyRow, KeySection, OwnSchema, list_schema, one_or_many_schema};
use underlay_config::{Diagnostics, Field, Spanned};

use crate::spec::model::rate::{EXPECTED_RATE, RATES_PER_S};
use crate::spec::model::{ChangingRate, StudyRate};

/// Each step needs at least two intervals of the time series.
const MAX_STEPS: usize = 20;

pub(super) const RATE: KeyRow<OwnSchema> = KeyRow::new(
    "rate",
    OwnSchema(rates_schema),
    "[5_000, \"max\"]",
    "Operations a second; \"max\" is as many as the system answers. A list gives a cell for each.",
)
.or("\"max\"");

const RAMP: KeyRow<OwnSchema> = KeyRow::new(
    "ramp",
    OwnSchema(|| json!({ "type": "array", "items": rate_schema(), "minItems": 2, "maxItems": 2 })),
    "[1_000, 50_000]",
    "From one rate to another.",
)
.required();
const OVER: KeyRow<DurationKind> =
    KeyRow::new("over", DurationKind { allows_zero: false }, "\"60 s\"", "How long the ramp takes.")
        .or_else("the whole measured time");
const STEPS: KeyRow<OwnSchema> = KeyRow::new(
    "steps",
    OwnSchema(|| list_schema(rate_schema())),
    "[1_000, 5_000]",
    "Rates that follow one another.",
)
.required();
const EACH: KeyRow<DurationKind> =
    KeyRow::new("each", DurationKind { allows_zero: false }, "\"20 s\"", "How long each step takes.")
        .or_else("equal parts of the measured time");

/// `rate = { ramp = ... }`
pub(in crate::spec) const RATE_RAMP: KeySection = KeySection {
    path: "workload.NAME.rate (ramp)",
    meaning: "A rate that changes evenly.",
    keys: &[&RAMP, &OVER],
};
/// `rate = { steps = ... }`
pub(in crate::spec) const RATE_STEPS: KeySection = KeySection {
    path: "workload.NAME.rate (steps)",
    meaning: "Rates that follow one another.",
    keys: &[&STEPS, &EACH],
};

fn rates_schema() -> Value {
    let each = [json!({ "const": "max" }), rate_schema(), RATE_RAMP.schema(), RATE_STEPS.schema()];
    one_or_many_schema(json!({ "anyOf": each }))
}

pub(super) fn rate_schema() -> Value {
    json!({ "type": "number", "minimum": RATES_PER_S.start(), "maximum": RATES_PER_S.end() })
}

pub(in crate::spec) fn read_rates(field: &Field<'_>, findings: &mut Diagnostics) -> Vec<Spanned<StudyRate>> {
    let expected = format!("\"max\" or {EXPECTED_RATE}");
    field.list(findings, |element, findings| {
        let span = element.span.clone();
        if element.is_table() {
            return read_changing(element, findings)
                .map(|rate| Spanned::new(StudyRate::Changing(rate), span));
        }
        if element.as_text() == Some("max") {
            return Some(Spanned::new(StudyRate::Max, span));
        }
        let rate = element.rate_per_s(RATES_PER_S, &expected, findings)?;
        Some(Spanned::new(StudyRate::Steady(rate), span))
    })
}

fn read_changing(element: &Field<'_>, findings: &mut Diagnostics) -> Option<ChangingRate> {
    let mut section = element.section(element.place.clone(), findings)?;
    let [ramp, over, steps, each] = section.take_each([RAMP.name, OVER.name, STEPS.name, EACH.name]);
    section.finish(findings);
    match (ramp, steps) {
        (Some(ramp), None) => {
            refuse(each, "expected `over`, how long the ramp takes", findings);
            let (rates, over) = (read_each(&ramp, findings), read_length(over, findings)?);
            let rates = rates?;
            let [from_per_s, to_per_s] = *rates.as_slice() else {
                ramp.invalid("expected two rates, as in `ramp = [1_000, 50_000]`", findings);
                return None;
            };
            Some(ChangingRate::Ramp { from_per_s, to_per_s, over })
        }
        (None, Some(steps)) => {
            refuse(over, "expected `each`, how long each step takes", findings);
            let (rates_per_s, each) = (read_each(&steps, findings), read_length(each, findings)?);
            let rates_per_s = rates_per_s?;
            if !(2..=MAX_STEPS).contains(&rates_per_s.len()) {
                let expected = format!("expected two to {MAX_STEPS} rates, as in `steps = [1_000, 2_000]`");
                steps.invalid(expected, findings);
                return None;
            }
            Some(ChangingRate::Steps { rates_per_s, each })
        }
        _ => {
            element.invalid("expected either `ramp = [1_000, 50_000]` or `steps = [1_000, 2_000]`", findings);
            None
        }
    }
}

/// Refuses a length that belongs to the other kind.
fn refuse(length: Option<Field<'_>>, expected: &str, findings: &mut Diagnostics) {
    if let Some(length) = length {
        length.invalid(expected, findings);
    }
}

/// Rates in order; a rate may occur again.
fn read_each(field: &Field<'_>, findings: &mut Diagnostics) -> Option<Vec<f64>> {
    let mut rates = Vec::new();
    for element in field.one_or_many(findings) {
        rates.push(element.rate_per_s(RATES_PER_S, EXPECTED_RATE, findings)?);
    }
    (!rates.is_empty()).then_some(rates)
}

/// `None` after a mistake.
fn read_length(field: Option<Field<'_>>, findings: &mut Diagnostics) -> Option<Option<Duration>> {
    match field {
        None => Some(None),
        Some(field) => field.duration(false, findings).map(|length| Some(length.value)),
    }
}
