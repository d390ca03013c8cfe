//! `find_rate`: the highest rate under a latency, instead of a rate.

use std::ops::RangeInclusive;

use underlay_config::{Diagnostic, Diagnostics, Field, Section, Spanned};
use underlay_workload::search::LatencyBound;

use crate::spec::model::FindRate;
use crate::spec::model::rate::{EXPECTED_RATE, RATES_PER_S};

const EXAMPLE: &str = "expected a percentile and a time, as in `find_rate = { p99 = \"10 ms\" }`";
const WITHIN: RangeInclusive<f64> = 0.01..=0.5;

/// Reads `find_rate`, which replaces `rate`.
pub(in crate::spec) fn read(
    section: &mut Section<'_>,
    findings: &mut Diagnostics,
) -> Option<Spanned<FindRate>> {
    let field = section.take("find_rate")?;
    let mut wanted = field.section(field.place.clone(), findings)?;
    let rate = |field: Option<Field<'_>>, findings: &mut Diagnostics| match field {
        None => Some(None),
        Some(field) => field.rate_per_s(RATES_PER_S, EXPECTED_RATE, findings).map(Some),
    };
    let from_per_s = rate(wanted.take("from"), findings);
    let to_per_s = rate(wanted.take("to"), findings);
    let tolerance = match wanted.take("within") {
        None => Some(0.05),
        Some(field) => field.number_within(WITHIN, "a fraction from 0.01 to 0.5, such as 0.05", findings),
    };
    let step = match wanted.take("step") {
        None => None,
        Some(field) => Some(field.duration(false, findings)?.value),
    };
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
            // p99.9 without quotes is a 9 in p99.
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
