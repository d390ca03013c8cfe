//! What a paper states in words, beside what this run shows and what the paper's own figures say.

use underlay_record::{Claim, ClaimCheck, Expectation, ReferenceTable};

use crate::comparison::{Comparison, Row};
use crate::quantity;
use crate::reference::{self, metric_in_words};
use crate::statistics::ratio::{Difference, Ratio};

/// Ratios within this factor of 1 are read as the same.
const SAME: f64 = 1.25;

/// A claim with what is found of it.
#[derive(Debug)]
pub struct Judged<'a> {
    pub claim: &'a Claim,
    pub verdict: ClaimVerdict,
    /// What each check found, in words; empty for a claim without checks.
    pub findings: Vec<String>,
    /// Where the paper's own figures contradict it, in words.
    pub contradictions: Vec<String>,
}

/// What this run says of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ClaimVerdict {
    /// Every check holds in every cell that it concerns.
    Agrees,
    /// Some hold and some don't.
    AgreesInPart,
    Differs,
    /// The intervals are too wide to tell.
    TooUncertain,
    /// The run has no cells that it is about, or there is nothing to check.
    NotCompared,
}

impl ClaimVerdict {
    pub fn in_words(self) -> &'static str {
        match self {
            ClaimVerdict::Agrees => "agrees",
            ClaimVerdict::AgreesInPart => "agrees in part",
            ClaimVerdict::Differs => "differs here",
            ClaimVerdict::TooUncertain => "too uncertain to say",
            ClaimVerdict::NotCompared => "not compared",
        }
    }
}

/// What one ratio says of an expectation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Holds {
    Yes,
    No,
    Unclear,
}

/// Every claim of a paper.
pub fn judge<'a>(table: &'a ReferenceTable, comparison: &Comparison) -> Vec<Judged<'a>> {
    table.claims.iter().map(|claim| judge_claim(claim, table, comparison)).collect()
}

fn judge_claim<'a>(claim: &'a Claim, table: &ReferenceTable, comparison: &Comparison) -> Judged<'a> {
    let mut findings = Vec::new();
    let mut all = Vec::new();
    for check in &claim.checks {
        let each = ratios(check, comparison);
        if !each.is_empty() {
            findings.push(in_words(check, &each));
        }
        all.extend(each.iter().map(|one| holds(check.expect, &one.ratio)));
    }
    let count = |what: Holds| all.iter().filter(|one| **one == what).count();
    let verdict = match (count(Holds::Yes), count(Holds::No), count(Holds::Unclear)) {
        (0, 0, 0) => ClaimVerdict::NotCompared,
        (0, 0, _) => ClaimVerdict::TooUncertain,
        (_, 0, 0) => ClaimVerdict::Agrees,
        (0, _, _) => ClaimVerdict::Differs,
        _ => ClaimVerdict::AgreesInPart,
    };
    let contradictions = claim.checks.iter().filter_map(|check| contradiction(check, table)).collect();
    Judged { claim, verdict, findings, contradictions }
}

/// A check's ratio in one cell's row.
struct InRow<'a> {
    row: &'a Row<'a>,
    ratio: Ratio,
}

fn ratios<'a>(check: &ClaimCheck, comparison: &'a Comparison<'a>) -> Vec<InRow<'a>> {
    let place = |name: &str| comparison.storages.iter().position(|storage| *storage == name);
    let (Some(storage), Some(against)) = (place(&check.storage), place(&check.against)) else {
        return Vec::new();
    };
    let rows = comparison.rows.iter().filter(|row| concerns(check, row));
    rows.filter_map(|row| {
        let figure = |index| reference::ours(row.figures(index)?, &check.metric);
        Some(InRow { row, ratio: Ratio::of(&figure(storage)?, &figure(against)?)? })
    })
    .collect()
}

fn concerns(check: &ClaimCheck, row: &Row) -> bool {
    let cell = row.cell;
    if check.mix.as_ref().is_some_and(|mix| !mix.eq_ignore_ascii_case(&cell.mix)) {
        return false;
    }
    match cell.rate_per_s {
        // What nothing holds back lies above every step.
        None => check.unthrottled,
        Some(rate) => {
            let per_server = rate / f64::from(cell.servers.max(1));
            let from = check.rate_from_per_s.is_some_and(|from| per_server >= from);
            let below = check.rate_below_per_s.is_some_and(|below| per_server < below);
            match (check.rate_from_per_s, check.rate_below_per_s) {
                (Some(_), Some(_)) => from && below,
                (Some(_), None) => from,
                (None, Some(_)) => below,
                (None, None) => false,
            }
        }
    }
}

fn holds(expect: Expectation, ratio: &Ratio) -> Holds {
    let difference = ratio.difference();
    let is_close = ratio.value.ln().abs() <= SAME.ln();
    // Whatever the true ratio is, it is close to 1.
    let is_surely_close =
        ratio.interval.is_some_and(|interval| interval.low >= 1.0 / SAME && interval.high <= SAME);
    match expect {
        Expectation::Same if is_surely_close => Holds::Yes,
        Expectation::Same if is_close || difference == Difference::NoneSeen => Holds::Unclear,
        Expectation::Same if difference == Difference::Unknown => Holds::Unclear,
        Expectation::Same => Holds::No,
        Expectation::More | Expectation::Less => match (difference, expect) {
            (Difference::More, Expectation::More) | (Difference::Less, Expectation::Less) => Holds::Yes,
            (Difference::More | Difference::Less, _) => Holds::No,
            (Difference::NoneSeen, _) if is_surely_close => Holds::No,
            (Difference::NoneSeen | Difference::Unknown, _) => Holds::Unclear,
        },
    }
}

/// `remote has 1.02x the mean read latency of local at 60,000/s, 1.31x unthrottled: expected the same`
fn in_words(check: &ClaimCheck, each: &[InRow]) -> String {
    let ratios: Vec<String> = each
        .iter()
        .map(|one| {
            let interval = one
                .ratio
                .interval
                .map_or(String::new(), |interval| format!(" ({})", quantity::ratio_interval(interval)));
            let at = match one.row.cell.rate_per_s {
                Some(_) => format!("at {}", crate::rates::offered(one.row.cell)),
                None => crate::rates::UNTHROTTLED.to_owned(),
            };
            format!("{}{interval} {at}", quantity::ratio(one.ratio.value))
        })
        .collect();
    format!(
        "{} : {}, {}: {}; expected {}",
        check.storage,
        check.against,
        plain_metric(&check.metric),
        ratios.join(", "),
        match check.expect {
            Expectation::Same => "about the same",
            Expectation::More => "more",
            Expectation::Less => "less",
        }
    )
}

fn plain_metric(metric: &str) -> String {
    metric_in_words(metric).split(',').next().unwrap_or_default().to_owned()
}

/// Where the figures that the paper prints say otherwise than its words.
fn contradiction(check: &ClaimCheck, table: &ReferenceTable) -> Option<String> {
    let printed = |storage: &str| {
        table.figures.iter().find(|figure| {
            figure.storage == storage
                && figure.metric == check.metric
                && check.mix.as_ref().is_none_or(|mix| mix.eq_ignore_ascii_case(&figure.mix))
        })
    };
    // Figures without a rate are those of the unthrottled run.
    if !check.unthrottled {
        return None;
    }
    let (ours, theirs) = (printed(&check.storage)?, printed(&check.against)?);
    let ratio = ours.value / theirs.value;
    let contradicts = match check.expect {
        Expectation::Same => ratio.ln().abs() > SAME.ln(),
        Expectation::More => ratio <= 1.0,
        Expectation::Less => ratio >= 1.0,
    };
    let unit = metric_in_words(&check.metric);
    contradicts.then(|| {
        format!(
            "the paper prints {} for {} and {} for {} ({unit})",
            quantity::number(ours.value, 3),
            check.storage,
            quantity::number(theirs.value, 3),
            check.against,
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::statistics::Interval;

    fn ratio(value: f64, low: f64, high: f64) -> Ratio {
        Ratio { value, interval: Some(Interval { low, high }) }
    }

    #[test]
    fn expectations_are_held_against_intervals() {
        use Expectation::{Less, More, Same};
        let table = [
            (Same, ratio(1.01, 0.95, 1.07), Holds::Yes),
            // A difference so small that it is surely none to speak of.
            (Same, ratio(1.08, 1.02, 1.14), Holds::Yes),
            (Same, ratio(1.1, 0.5, 2.4), Holds::Unclear),
            (Same, ratio(1.6, 1.4, 1.8), Holds::No),
            (More, ratio(1.6, 1.4, 1.8), Holds::Yes),
            (Less, ratio(1.6, 1.4, 1.8), Holds::No),
            (Less, ratio(0.9, 0.85, 0.95), Holds::Yes),
            (More, ratio(1.0, 0.97, 1.03), Holds::No),
            (More, ratio(1.3, 0.8, 2.1), Holds::Unclear),
            (More, Ratio { value: 1.3, interval: None }, Holds::Unclear),
            (Same, Ratio { value: 3.0, interval: None }, Holds::Unclear),
        ];
        for (expect, ratio, expected) in table {
            assert_eq!(holds(expect, &ratio), expected, "{expect:?} of {ratio:?}");
        }
    }
}
