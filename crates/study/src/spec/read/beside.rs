//! `beside` of a `[workload.NAME]`: the background load next to the measured operations.

use serde_json::{Value, json};
use underlay_config::keys::{CountKind, KeyRow, KeySection, OwnSchema};
use underlay_config::{Diagnostic, Diagnostics, Section, Spanned};
use underlay_workload::{OperationKind, OperationMix};

use super::{mixes, rate};
use crate::spec::model::BesideSpec;
use crate::spec::model::rate::{EXPECTED_RATE, RATES_PER_S};

/// The number of clients of one cell.
pub(super) const MAX_THREADS: u32 = 1024;

pub(super) const BESIDE: KeyRow<OwnSchema> = KeyRow::new(
    "beside",
    OwnSchema(|| BACKGROUND.schema()),
    "{ mix = { update = 1.0 }, threads = 2, rate = 500 }",
    "Unmeasured background operations, such as a writer of a fixed rate beside readers.",
);

const MIX: KeyRow<OwnSchema> = KeyRow::new(
    "mix",
    OwnSchema(mixes::mix_schema),
    "{ update = 1.0 }",
    "Its operations: shares, or one of YCSB's a to f.",
)
.required();
const THREADS: KeyRow<CountKind> =
    KeyRow::new("threads", CountKind { min: 1, max: MAX_THREADS }, "2", "Its clients.").or("1");
const RATE: KeyRow<OwnSchema> = KeyRow::new(
    "rate",
    OwnSchema(rate_schema),
    "500",
    "Operations a second of all its clients together, or \"max\" for as many as the system answers.",
)
.or("\"max\"");

/// `beside = { ... }`
pub(in crate::spec) const BACKGROUND: KeySection = KeySection {
    path: "workload.NAME.beside",
    meaning: "Unmeasured background operations.",
    keys: &[&MIX, &THREADS, &RATE],
};

fn rate_schema() -> Value {
    json!({ "anyOf": [{ "const": "max" }, rate::rate_schema()] })
}

/// `beside = { mix = { update = 1.0 }, threads = 1, rate = 10_000 }`
pub(in crate::spec) fn read(
    section: &mut Section<'_>,
    measured: &[Spanned<String>],
    findings: &mut Diagnostics,
) -> Option<Spanned<BesideSpec>> {
    let field = section.take_key(&BESIDE, findings)?;
    let mut subsection = field.section(field.place.clone(), findings)?;
    let mix = subsection.take_key(&MIX, findings).and_then(|field| mixes::read_one(&field, findings));
    let threads = subsection
        .read_optional(&THREADS, findings)
        .map(|threads| threads.map_or_else(|| THREADS.default_value(), |threads| threads.value));
    let rate = subsection.take_key(&RATE, findings);
    subsection.finish(findings);
    let rate_per_s = match rate {
        None => None,
        Some(field) if field.as_text() == Some("max") => None,
        Some(field) => {
            let expected = format!("\"max\" or {EXPECTED_RATE}");
            Some(field.rate_per_s(RATES_PER_S, &expected, findings)?)
        }
    };
    let (mix, threads) = (mix?, threads?);
    check(&mix, measured, findings)
        .then(|| Spanned::new(BesideSpec { mix: mix.value, threads, rate_per_s }, field.span))
}

/// Whether the two can run at once.
fn check(mix: &Spanned<String>, measured: &[Spanned<String>], findings: &mut Diagnostics) -> bool {
    let parsed = |name: &str| OperationMix::parse(name).ok();
    let ends = |name: &str| parsed(name).is_some_and(|mix| mix.visits_every_record());
    let inserts = |name: &str| parsed(name).is_some_and(|mix| mix.share(OperationKind::Insert) > 0.0);
    if ends(&mix.value) {
        let message = format!("mix \"{}\" ends with its records, so it can't go on beside others", mix.value);
        let label = "expected shares, as in `{ update = 1.0 }`, or one of YCSB's a to f";
        findings.push(Diagnostic::error(mix.span.clone(), message, label));
        return false;
    }
    let mut is_sound = true;
    for other in measured {
        let problem = if ends(&other.value) {
            "ends with its records: nothing goes on beside it"
        } else if inserts(&other.value) && inserts(&mix.value) {
            "inserts too: both would add the same records"
        } else {
            continue;
        };
        let message = format!("mix \"{}\" {problem}", other.value);
        let finding =
            Diagnostic::error(other.span.clone(), message, "expected a section of its own, without `beside`");
        findings.push(finding.with_context(mix.span.clone(), "beside it"));
        is_sound = false;
    }
    is_sound
}
