//! How far what is known of media carries a cell's figures, beside whether they are faithful to it.

use underlay_record::{CoveredShare, InputCertificate, InputVerdict, UnknownInput};

use std::collections::BTreeSet;

use crate::cell::cost::under_test;
use crate::comparison::prices::performance;
use crate::comparison::{CellResult, ComparisonRow, RunComparison};
use crate::quantity;
use crate::statistics::ConfidenceInterval;
use crate::statistics::ratio::{EstimateRatio, RatioDifference};

/// The certificate of a cell's inputs: that of the completed repetition with the least known inputs. All of a cell ask
/// for the same, so they hardly differ; but one may lie on the other side of a limit, and it decides.
pub fn find_certificate<'a>(result: &CellResult<'a>) -> Option<&'a InputCertificate> {
    least_known(result.completed().filter_map(|record| record.inputs.as_ref()))
}

/// The one with the most that makes it uncertain, and of equal ones the one that rests most on estimates.
fn least_known<'a>(all: impl Iterator<Item = &'a InputCertificate>) -> Option<&'a InputCertificate> {
    let uncertain = |one: &InputCertificate| (one.verdict == InputVerdict::Uncertain, one.unknown().len());
    all.max_by(|a, b| uncertain(a).cmp(&uncertain(b)).then(a.estimated.total_cmp(&b.estimated)))
}

/// Whether less is known than it takes.
pub fn is_uncertain(result: &CellResult) -> bool {
    find_certificate(result).is_some_and(|inputs| inputs.verdict == InputVerdict::Uncertain)
}

/// Where a ratio of throughputs to the baseline would lie if the estimates of both were half or double: all of one
/// against all of the other, so no wider. None where neither rests on any.
pub fn range(ratio: f64, result: &CellResult, baseline: &CellResult) -> Option<ConfidenceInterval> {
    let (own, other) = (find_certificate(result)?, find_certificate(baseline)?);
    // As many operations in so much more or less time.
    let range = ConfidenceInterval {
        low: ratio * other.time_if_fast / own.time_if_slow.max(f64::MIN_POSITIVE),
        high: ratio * other.time_if_slow / own.time_if_fast.max(f64::MIN_POSITIVE),
    };
    (range.high > range.low * 1.005).then_some(range)
}

/// A conclusion that holds only if the inputs do.
#[derive(Clone, Debug, PartialEq)]
pub struct ConclusionReversal {
    /// In [`RunComparison::rows`].
    pub row: usize,
    /// In [`RunComparison::storages`]: which is how many times as good as which other.
    pub storage: usize,
    pub against: usize,
    pub ratio: EstimateRatio,
    /// Where it would lie, its own interval aside, with what no source gives half or double.
    pub range: ConfidenceInterval,
}

/// Ratios this far from 1 are a difference to somebody who found none.
const WORTH_TELLING: f64 = 1.25;

/// Every conclusion that the inputs can turn: that a storage is better or worse than the baseline, that it is no
/// different, or that one storage is the best. A rate that was offered caps throughput, so nothing is concluded from
/// it.
pub fn turns(comparison: &RunComparison) -> Vec<ConclusionReversal> {
    let Some(baseline) = comparison.baseline_index() else { return Vec::new() };
    let mut found = Vec::new();
    for (index, row) in comparison.rows.iter().enumerate() {
        if row.cell.rate_per_s().is_some() || row.cell.compacts_at().is_some() {
            continue;
        }
        let storages = 0..comparison.storages.len();
        let others = storages.clone().filter(|storage| *storage != baseline);
        let mut pairs: Vec<(usize, usize)> = others.map(|storage| (storage, baseline)).collect();
        // Without figures of the baseline none is called the best.
        let as_good = |storage: usize| Some((storage, performance(row, storage, baseline)?.value));
        let best = storages.clone().filter_map(as_good).max_by(|a, b| a.1.total_cmp(&b.1));
        if let Some((best, _)) = best.filter(|(best, _)| *best != baseline) {
            pairs.extend(
                storages.filter(|other| ![best, baseline].contains(other)).map(|other| (best, other)),
            );
        }
        found.extend(pairs.into_iter().filter_map(|(storage, against)| turn(row, index, storage, against)));
    }
    found
}

fn turn(row: &ComparisonRow, index: usize, storage: usize, against: usize) -> Option<ConclusionReversal> {
    let cell = |storage: usize| row.cells.get(storage)?.as_ref();
    let ratio = performance(row, storage, against)?;
    let factors = factors(cell(storage)?, cell(against)?);
    let range = ConfidenceInterval { low: ratio.value * factors.low, high: ratio.value * factors.high };
    let interval = ratio.interval.unwrap_or(ConfidenceInterval { low: ratio.value, high: ratio.value });
    let (low, high) = (interval.low * factors.low, interval.high * factors.high);
    let can_turn = match ratio.difference() {
        // It may not be one as it is.
        RatioDifference::Unknown => false,
        // The interval alone does not hold 1.
        RatioDifference::More => low <= 1.0,
        RatioDifference::Less => high >= 1.0,
        // Only what the inputs add counts: the report shows the measurement's own width beside it.
        RatioDifference::NoneSeen => factors.low < 1.0 / WORTH_TELLING || factors.high > WORTH_TELLING,
    };
    can_turn.then_some(ConclusionReversal { row: index, storage, against, ratio, range })
}

/// By what a ratio of two cells would be multiplied, at the least and at the most, if estimates were half or double and
/// programs computed no faster than this host's. One medium has the same estimates wherever it is: storages of nothing
/// else shift together.
fn factors(ours: &CellResult, theirs: &CellResult) -> ConfidenceInterval {
    let times = |result: &CellResult| {
        find_certificate(result)
            .map_or([1.0; 2], |certificate| [certificate.time_if_fast, certificate.time_if_slow])
    };
    let ([our_fast, our_slow], [their_fast, their_slow]) = (times(ours), times(theirs));
    let divided = |time: f64, divisor: f64| time / divisor.max(f64::MIN_POSITIVE);
    let [low, high] = match is_alike(ours, theirs) {
        true => {
            let together = [divided(their_fast, our_fast), 1.0, divided(their_slow, our_slow)];
            [together.iter().copied().fold(1.0, f64::min), together.iter().copied().fold(1.0, f64::max)]
        }
        false => [divided(their_fast, our_slow), divided(their_slow, our_fast)],
    };
    let own_time = |result: &CellResult| {
        let certificate = find_certificate(result)
            .filter(|certificate| certificate.unknown().contains(&UnknownInput::OwnTime));
        certificate.and_then(|certificate| certificate.own_time).unwrap_or(1.0)
    };
    ConfidenceInterval { low: low / own_time(ours), high: high * own_time(theirs) }
}

fn is_alike(ours: &CellResult, theirs: &CellResult) -> bool {
    let media = |result: &CellResult| -> Option<BTreeSet<String>> {
        under_test(result.storage()?).map(|device| device.medium.clone()).collect()
    };
    media(ours).zip(media(theirs)).is_some_and(|(ours, theirs)| !ours.is_empty() && ours == theirs)
}

/// `12 %`: of the device time of a cell, what rests on measured figures.
pub fn measured_in_words(result: &CellResult) -> Option<String> {
    find_certificate(result).map(|certificate| quantity::percent(certificate.measured()))
}

/// The uncertainty beside the devices' requests: how long the program computes.
pub fn own_time_in_words(inputs: &InputCertificate) -> Option<String> {
    let times = inputs.own_time.filter(|_| inputs.unknown().contains(&UnknownInput::OwnTime))?;
    Some(format!(
        "slow motion speeds up what its programs compute between their requests: on cores as fast as this host's, operations would take up to \
         {times:.1} times as long, and no source says how fast the study's are"
    ))
}

/// `52 % of its I/O is covered by what sources measured, and 81 % of device time rests on estimates (read_latency_us 78
/// %)`
pub fn describe(inputs: &InputCertificate) -> String {
    let devices = devices_in_words(inputs);
    match own_time_in_words(inputs) {
        Some(own_time) => format!("{devices}; {own_time}"),
        None => devices,
    }
}

/// The same, without what programs compute.
pub fn devices_in_words(inputs: &InputCertificate) -> String {
    let covered = covered_in_words(&inputs.covered);
    if inputs.estimated <= 0.0 {
        return format!("{covered}; no device time rests on estimates");
    }
    const NAMED: usize = 3;
    let mut named: Vec<String> = inputs
        .estimates
        .iter()
        .take(NAMED)
        .map(|estimate| format!("{} {}", estimate.name, quantity::percent(estimate.share)))
        .collect();
    if inputs.estimates.len() > NAMED {
        named.push(format!("and {} more", inputs.estimates.len() - NAMED));
    }
    let named = if named.is_empty() { String::new() } else { format!(" ({})", named.join(", ")) };
    let estimated = quantity::percent(inputs.estimated);
    format!("{covered}, and {estimated} of device time rests on estimates{named}")
}

/// The known share of requests, and if that is little, the gaps of the sources.
fn covered_in_words(covered: &CoveredShare) -> String {
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
        (true, true) => "with as many requests in flight",
    };
    let uncovered = quantity::percent(1.0 - covered.all);
    format!("for {uncovered} of the I/O the media's sources have no figure {lacking}")
}

#[cfg(test)]
mod tests {
    use underlay_record::{DeviceInputs, EstimateShare};

    use super::*;

    #[test]
    fn missing_source_inputs_are_named() {
        let phrase = |kind, size, depth| {
            let covered = CoveredShare { kind, size, depth, mix: 1.0, all: depth };
            covered_in_words(&covered)
        };
        assert_eq!(phrase(1.0, 1.0, 0.9), "90 % of the I/O is like what the media's sources measured");
        let lacking = |words: String| words.rsplit_once("no figure ").unwrap().1.to_owned();
        assert_eq!(lacking(phrase(1.0, 1.0, 0.1)), "with as many requests in flight");
        assert_eq!(lacking(phrase(1.0, 0.2, 0.1)), "for requests of that size");
        assert!(lacking(phrase(0.3, 0.2, 0.1)).starts_with("of that kind"));
        assert!(phrase(1.0, 1.0, 0.1).starts_with("for 90 % of the I/O"));
    }

    fn certificate(all: f64, estimated: f64) -> InputCertificate {
        let inputs = DeviceInputs {
            requests: 100,
            covered: CoveredShare { kind: 1.0, size: 1.0, depth: all, mix: 1.0, all },
            estimated,
            estimates: Vec::new(),
            time_if_fast: 1.0,
            time_if_slow: 1.0 + estimated,
        };
        InputCertificate::from_devices(&[(1.0, &inputs)]).unwrap()
    }

    #[test]
    fn estimates_beyond_the_named_are_counted() {
        let phrase = |count: usize| {
            let estimate = |number: usize| EstimateShare { name: format!("parameter_{number}"), share: 0.2 };
            devices_in_words(&InputCertificate {
                estimates: (0..count).map(estimate).collect(),
                ..certificate(0.9, 0.8)
            })
        };
        assert!(
            phrase(3).ends_with("(parameter_0 20 %, parameter_1 20 %, parameter_2 20 %)"),
            "{}",
            phrase(3)
        );
        assert!(phrase(5).ends_with("parameter_2 20 %, and 2 more)"), "{}", phrase(5));
    }

    #[test]
    fn uncertain_repetition_is_not_hidden_by_others() {
        let (covered, uncovered, guessed) =
            (certificate(0.51, 0.4), certificate(0.49, 0.1), certificate(0.9, 0.8));
        let least = |all: &[&InputCertificate]| least_known(all.iter().copied()).cloned();
        assert_eq!(least(&[&covered, &uncovered]), Some(uncovered.clone()));
        assert_eq!(least(&[&uncovered, &covered]), Some(uncovered.clone()));
        assert_eq!(
            least(&[&guessed, &uncovered]),
            Some(guessed),
            "of uncertain ones, the one with more estimates"
        );
        let sped_up = uncovered.clone().with_own_time(Some(1.5));
        assert_eq!(least(&[&sped_up, &uncovered, &covered]), Some(sped_up));
        assert_eq!(least(&[]), None);
    }

    #[test]
    fn own_time_of_programs_has_own_wording() {
        let plain = certificate(0.9, 0.0);
        assert_eq!(own_time_in_words(&plain), None);
        assert_eq!(own_time_in_words(&plain.clone().with_own_time(Some(1.2))), None);
        let sped_up = plain.with_own_time(Some(4.23));
        assert!(own_time_in_words(&sped_up).unwrap().contains("up to 4.2 times as long"));
        assert!(describe(&sped_up).starts_with("90 % of the I/O is like"), "{}", describe(&sped_up));
        assert!(describe(&sped_up).contains("; slow motion speeds up"), "{}", describe(&sped_up));
    }

    #[test]
    fn certificates_say_how_much_rests_on_estimates() {
        let inputs = InputCertificate {
            verdict: InputVerdict::Uncertain,
            covered: CoveredShare { kind: 1.0, size: 1.0, depth: 0.0, mix: 1.0, all: 0.0 },
            estimated: 0.25,
            estimates: Vec::new(),
            time_if_fast: 1.0,
            time_if_slow: 1.25,
            own_time: None,
        };
        assert_eq!(
            describe(&inputs),
            "for 100 % of the I/O the media's sources have no figure with as many requests in flight, and 25 % of device time rests on estimates"
        );
    }
}
