//! How far what is known of media carries a cell's figures, beside whether they are faithful to it.

use underlay_record::{InputCertificate, InputVerdict};

use crate::comparison::CellResult;
use crate::quantity;
use crate::statistics::Interval;

/// The certificate of a cell's inputs: of the completed repetition that rests most on estimates. All of a cell ask for the same, so they
/// hardly differ.
pub fn of<'a>(result: &CellResult<'a>) -> Option<&'a InputCertificate> {
    let all = result.completed().filter_map(|record| record.inputs.as_ref());
    all.max_by(|a, b| a.estimated.total_cmp(&b.estimated))
}

/// Whether less is known than it takes.
pub fn is_uncertain(result: &CellResult) -> bool {
    of(result).is_some_and(|inputs| inputs.verdict == InputVerdict::Uncertain)
}

/// Where a ratio of throughputs to the baseline would lie if the estimates of both were half or double: all of one against all of the
/// other, so no wider. None where neither rests on any.
pub fn range(ratio: f64, result: &CellResult, baseline: &CellResult) -> Option<Interval> {
    let (own, other) = (of(result)?, of(baseline)?);
    // As many operations in so much more or less time.
    let range = Interval {
        low: ratio * other.time_if_fast / own.time_if_slow.max(f64::MIN_POSITIVE),
        high: ratio * other.time_if_slow / own.time_if_fast.max(f64::MIN_POSITIVE),
    };
    (range.high > range.low * 1.005).then_some(range)
}

/// `52 % of its I/O is covered by what sources measured, and 81 % of device time rests on estimates (read_latency_us 78 %)`
pub fn in_words(inputs: &InputCertificate) -> String {
    let covered = quantity::percent(inputs.covered.all);
    if inputs.estimated <= 0.0 {
        return format!(
            "{covered} of the I/O is like what the media's sources measured; no device time rests on estimates"
        );
    }
    const NAMED: usize = 3;
    let named: Vec<String> = inputs
        .estimates
        .iter()
        .take(NAMED)
        .map(|estimate| format!("{} {}", estimate.name, quantity::percent(estimate.share)))
        .collect();
    let named = if named.is_empty() { String::new() } else { format!(" ({})", named.join(", ")) };
    format!(
        "{covered} of the I/O is like what the media's sources measured, and {} of device time rests on estimates{named}",
        quantity::percent(inputs.estimated)
    )
}
