//! `mixes`: YCSB mixes by name, or the shares of each kind of operation.

use serde_json::{Value, json};
use underlay_config::keys::{KeyRow, KeySection, OwnSchema, one_or_many_schema, words_schema};
use underlay_config::{Diagnostics, Field, Spanned};
use underlay_workload::{OperationKind, OperationMix, OperationProportions};

pub(super) const MIXES: KeyRow<OwnSchema> = KeyRow::new(
    "mixes",
    OwnSchema(|| one_or_many_schema(mix_schema())),
    "[\"a\", \"b\", \"c\"]",
    "YCSB's a to f, load, delete, or shares as in { read = 0.8, update = 0.2 }; each is a cell.",
)
.required();

const fn share(kind: &'static str) -> KeyRow<OwnSchema> {
    let schema = || json!({ "type": "number", "minimum": 0.0, "maximum": 100.0 });
    KeyRow::new(kind, OwnSchema(schema), "0.5", "Its share of the operations: from 0 to 1, or percent.")
}

const READ: KeyRow<OwnSchema> = share("read");
const UPDATE: KeyRow<OwnSchema> = share("update");
const INSERT: KeyRow<OwnSchema> = share("insert");
const SCAN: KeyRow<OwnSchema> = share("scan");
const READ_MODIFY_WRITE: KeyRow<OwnSchema> = share("rmw");
const DELETE: KeyRow<OwnSchema> = share("delete");

/// A custom mix.
pub(in crate::spec) const OWN_MIX: KeySection = KeySection {
    path: "workload.NAME.mixes",
    meaning: "The shares of each kind of operation.",
    keys: &[&READ, &UPDATE, &INSERT, &SCAN, &READ_MODIFY_WRITE, &DELETE],
};

const SHARES: [(&str, OperationKind); 6] = [
    (READ.name, OperationKind::Read),
    (UPDATE.name, OperationKind::Update),
    (INSERT.name, OperationKind::Insert),
    (SCAN.name, OperationKind::Scan),
    (READ_MODIFY_WRITE.name, OperationKind::ReadModifyWrite),
    (DELETE.name, OperationKind::Delete),
];
/// Shares are written with few digits.
const ROUNDING: f64 = 1e-3;

pub(super) fn mix_schema() -> Value {
    let mut own_mix = OWN_MIX.schema();
    own_mix["minProperties"] = json!(1);
    let spelt_out = json!({ "type": "string", "pattern": "^[a-z]+[0-9.]+(-[a-z]+[0-9.]+)*$" });
    json!({ "anyOf": [words_schema(OperationMix::NAMES), own_mix, spelt_out] })
}

/// Each mix by its name; the name of a custom mix spells it out.
pub(in crate::spec) fn read(field: &Field<'_>, findings: &mut Diagnostics) -> Vec<Spanned<String>> {
    if field.is_table() {
        return read_one(field, findings).into_iter().collect();
    }
    field.list(findings, read_one)
}

pub(in crate::spec) fn read_one(element: &Field<'_>, findings: &mut Diagnostics) -> Option<Spanned<String>> {
    if element.is_table() {
        return read_shares(element, findings);
    }
    // In the form in which `check` and records write one of the above.
    if let Some(text) = element.as_text()
        && text.contains(|letter: char| letter.is_ascii_digit())
        && let Ok(mix) = OperationMix::parse(text)
    {
        return Some(Spanned::new(mix.name().to_owned(), element.span.clone()));
    }
    element.word(&OperationMix::NAMES, findings).map(|word| Spanned::new(word.value.to_owned(), word.span))
}

/// `{ read = 0.8, update = 0.2 }`, or the same in percent.
fn read_shares(element: &Field<'_>, findings: &mut Diagnostics) -> Option<Spanned<String>> {
    let mut section = element.section(element.place.clone(), findings)?;
    let fields = section.take_each(SHARES.map(|(key, _)| key));
    section.finish(findings);
    let mut weights = Vec::new();
    for (field, (_, kind)) in fields.into_iter().zip(SHARES) {
        let Some(field) = field else { continue };
        match field.as_number() {
            Some(share) if (0.0..=100.0).contains(&share) => weights.push((kind, share)),
            Some(_) => {
                field.invalid("expected a share: from 0 to 1, or percent up to 100", findings);
                return None;
            }
            None => {
                field.mismatch("a share, as in `{ read = 0.8, update = 0.2 }`", findings);
                return None;
            }
        }
    }
    let sum: f64 = weights.iter().map(|(_, share)| share).sum();
    // A forgotten share would make the others larger than written in the study.
    if (sum - 1.0).abs() > ROUNDING && (sum - 100.0).abs() > ROUNDING * 100.0 {
        let sum = (sum * 1e6).round() / 1e6;
        element.invalid(format!("the shares add up to {sum}: expected 1, or 100 for percent"), findings);
        return None;
    }
    let mix = OperationMix::spelt_out(OperationProportions::new(&weights).ok()?);
    Some(Spanned::new(mix.name().to_owned(), element.span.clone()))
}
