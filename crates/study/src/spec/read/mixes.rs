//! `mixes`: YCSB's by their names, or the shares of each kind of operation.

use underlay_config::{Diagnostics, Field, Spanned};
use underlay_workload::{OperationKind, OperationMix, OperationProportions};

/// The keys of a mix of one's own.
const SHARES: [(&str, OperationKind); 6] = [
    ("read", OperationKind::Read),
    ("update", OperationKind::Update),
    ("insert", OperationKind::Insert),
    ("scan", OperationKind::Scan),
    ("rmw", OperationKind::ReadModifyWrite),
    ("delete", OperationKind::Delete),
];
/// Shares are written with a few digits.
const ROUNDING: f64 = 1e-3;

/// Each by its name; that of a mix of one's own spells it out.
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
    // As `check` and records write one of the above.
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
    // A share that was forgotten would make the others more than the study says.
    if (sum - 1.0).abs() > ROUNDING && (sum - 100.0).abs() > ROUNDING * 100.0 {
        let sum = (sum * 1e6).round() / 1e6;
        element.invalid(format!("the shares add up to {sum}: expected 1, or 100 for percent"), findings);
        return None;
    }
    let mix = OperationMix::spelt_out(OperationProportions::new(&weights).ok()?);
    Some(Spanned::new(mix.name().to_owned(), element.span.clone()))
}
