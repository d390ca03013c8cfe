//! How far what is known of media carries a cell's figures, beside whether they are faithful to it.

use underlay_record::{Covered, InputCertificate, InputVerdict};

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
    let covered = covered_in_words(&inputs.covered);
    if inputs.estimated <= 0.0 {
        return format!("{covered}; no device time rests on estimates");
    }
    const NAMED: usize = 3;
    let named: Vec<String> = inputs
        .estimates
        .iter()
        .take(NAMED)
        .map(|estimate| format!("{} {}", estimate.name, quantity::percent(estimate.share)))
        .collect();
    let named = if named.is_empty() { String::new() } else { format!(" ({})", named.join(", ")) };
    let estimated = quantity::percent(inputs.estimated);
    format!("{covered}, and {estimated} of device time rests on estimates{named}")
}

/// What of the requests is known, and if that is little, what the sources lack.
fn covered_in_words(covered: &Covered) -> String {
    const ENOUGH: f64 = InputCertificate::MIN_COVERED;
    if covered.all >= ENOUGH {
        return format!(
            "{} of the I/O is like what the media's sources measured",
            quantity::percent(covered.all)
        );
    }
    let lacking = match (covered.kind >= ENOUGH, covered.size >= ENOUGH) {
        (false, _) => "of that kind, reads or writes, random or in sequence",
        (true, false) => "for requests of that size",
        (true, true) => "with as many requests under way",
    };
    let uncovered = quantity::percent(1.0 - covered.all);
    format!("for {uncovered} of the I/O the media's sources have no figure {lacking}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_sources_lack_is_named() {
        let of = |kind, size, depth| {
            let covered = Covered { kind, size, depth, mix: 1.0, all: depth };
            covered_in_words(&covered)
        };
        assert_eq!(of(1.0, 1.0, 0.9), "90 % of the I/O is like what the media's sources measured");
        let lacking = |words: String| words.rsplit_once("no figure ").unwrap().1.to_owned();
        assert_eq!(lacking(of(1.0, 1.0, 0.1)), "with as many requests under way");
        assert_eq!(lacking(of(1.0, 0.2, 0.1)), "for requests of that size");
        assert!(lacking(of(0.3, 0.2, 0.1)).starts_with("of that kind"));
        assert!(of(1.0, 1.0, 0.1).starts_with("for 90 % of the I/O"));
    }

    #[test]
    fn certificates_say_how_much_rests_on_estimates() {
        let inputs = InputCertificate {
            verdict: InputVerdict::Uncertain,
            covered: Covered { kind: 1.0, size: 1.0, depth: 0.0, mix: 1.0, all: 0.0 },
            estimated: 0.25,
            estimates: Vec::new(),
            time_if_fast: 1.0,
            time_if_slow: 1.25,
        };
        assert_eq!(
            in_words(&inputs),
            "for 100 % of the I/O the media's sources have no figure with as many requests under way, and 25 % of device time rests on estimates"
        );
    }
}
