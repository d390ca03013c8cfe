//! A paper's claims in words, beside this run's results and the paper's own figures.

use underlay_record::{Cell, ClaimCheck, ClaimExpectation, PublishedClaim, PublishedMetric, ReferenceTable};

use crate::comparison::prices;
use crate::comparison::{ComparisonRow, RunComparison, storage_records};
use crate::findings::effect::envelope;
use crate::findings::reference::{self, ReferenceReading};
use crate::quantity;
use crate::statistics::ConfidenceInterval;
use crate::statistics::ratio::{EstimateRatio, RatioDifference};

/// Ratios within this factor of 1 are read as the same.
const SAME: f64 = 1.25;
/// Without an interval, ratios within this factor of 1 point nowhere.
const NO_DIFFERENCE: f64 = 1.05;

/// A claim with what is found of it.
#[derive(Debug)]
pub struct JudgedClaim<'a> {
    pub claim: &'a PublishedClaim,
    pub verdict: ClaimVerdict,
    /// Each check's finding, in words; empty for a claim without checks.
    pub findings: Vec<String>,
    /// Where the paper's own figures contradict it, in words.
    pub contradictions: Vec<String>,
}

/// This run's verdict on a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ClaimVerdict {
    /// Every check holds in every cell that it concerns, and comes close to what is published where that is a figure.
    Agrees,
    /// Every check holds, with a smaller effect than published.
    AgreesSmaller,
    /// Every check holds, with a larger effect than published.
    AgreesLarger,
    /// Some hold and some don't.
    AgreesInPart,
    Differs,
    /// The figures point the claim's way, without an interval to be sure by.
    PointsTheSameWay,
    /// The figures point the other way, without an interval to be sure by.
    PointsTheOtherWay,
    /// The intervals are too wide to tell.
    TooUncertain,
    /// The run has no cells that it is about, or there is nothing to check.
    NotCompared,
}

impl ClaimVerdict {
    pub fn describe(self) -> &'static str {
        match self {
            ClaimVerdict::Agrees => "agrees",
            ClaimVerdict::AgreesSmaller => "the same direction, a smaller effect here",
            ClaimVerdict::AgreesLarger => "the same direction, a larger effect here",
            ClaimVerdict::AgreesInPart => "agrees in part",
            ClaimVerdict::Differs => "differs here",
            ClaimVerdict::PointsTheSameWay => "points the same way, certainty unknown",
            ClaimVerdict::PointsTheOtherWay => "points the other way, certainty unknown",
            ClaimVerdict::TooUncertain => "too uncertain to say",
            ClaimVerdict::NotCompared => "not compared",
        }
    }
}

/// One ratio's verdict on an expectation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RatioVerdict {
    Yes,
    No,
    Unclear,
    /// Without an interval: what the value alone says.
    Likely,
    Unlikely,
}

/// Every claim of a paper.
pub fn judge<'a>(table: &'a ReferenceTable, comparison: &RunComparison) -> Vec<JudgedClaim<'a>> {
    table.claims.iter().map(|claim| judge_claim(claim, table, comparison)).collect()
}

fn judge_claim<'a>(
    claim: &'a PublishedClaim,
    table: &ReferenceTable,
    comparison: &RunComparison,
) -> JudgedClaim<'a> {
    // Checks that differ in nothing but the mix are one finding.
    let mut groups: Vec<(&ClaimCheck, Vec<CheckRatio>)> = Vec::new();
    for check in &claim.checks {
        let each = found(check, table, comparison);
        if each.is_empty() {
            continue;
        }
        match groups.iter_mut().find(|(other, _)| is_same_but_for_mix(other, check)) {
            Some((_, all)) => all.extend(each),
            None => groups.push((check, each)),
        }
    }
    let all: Vec<RatioVerdict> = groups
        .iter()
        .flat_map(|(check, each)| each.iter().map(|one| holds(check.expect, &one.ratio)))
        .collect();
    let count = |wanted: RatioVerdict| all.iter().filter(|one| **one == wanted).count();
    let unsure = count(RatioVerdict::Unclear);
    let verdict = match (
        count(RatioVerdict::Yes),
        count(RatioVerdict::No),
        count(RatioVerdict::Likely),
        count(RatioVerdict::Unlikely),
    ) {
        (0, 0, 0, 0) if unsure == 0 => ClaimVerdict::NotCompared,
        (0, 0, likely, 0) if likely > 0 && unsure == 0 => ClaimVerdict::PointsTheSameWay,
        (0, 0, 0, unlikely) if unlikely > 0 && unsure == 0 => ClaimVerdict::PointsTheOtherWay,
        (0, 0, _, _) => ClaimVerdict::TooUncertain,
        (_, 0, _, 0) if unsure == 0 => beside_published(&groups),
        (0, _, _, _) => ClaimVerdict::Differs,
        _ => ClaimVerdict::AgreesInPart,
    };
    let findings = groups.iter().map(|(check, each)| describe_check(check, each)).collect();
    let contradictions = claim.checks.iter().filter_map(|check| contradiction(check, table)).collect();
    JudgedClaim { claim, verdict, findings, contradictions }
}

fn is_same_but_for_mix(a: &ClaimCheck, b: &ClaimCheck) -> bool {
    let without_mix = |check: &ClaimCheck| ClaimCheck { mix: None, ..check.clone() };
    // An effect that is held against another one's needs both of them named.
    a.than_mix.is_none() && without_mix(a) == without_mix(b)
}

/// A claim whose every check holds: how the size of the effect compares with what is published.
fn beside_published(groups: &[(&ClaimCheck, Vec<CheckRatio>)]) -> ClaimVerdict {
    let mut verdict = ClaimVerdict::Agrees;
    for (check, each) in groups {
        let Some(published) = check.published else { continue };
        // The furthest of ours stands against the most that was published, and their mean against what is no bound.
        let ours = if check.up_to { furthest(each).map(|one| one.ratio) } else { mean(each) };
        let Some(ours) = ours else { continue };
        // One smaller effect decides: it says the least for the claim.
        verdict = match ReferenceReading::classify(published, &ours) {
            ReferenceReading::SameDirectionSmaller => return ClaimVerdict::AgreesSmaller,
            ReferenceReading::SameDirectionLarger => ClaimVerdict::AgreesLarger,
            _ => verdict,
        };
    }
    verdict
}

fn furthest(each: &[CheckRatio]) -> Option<&CheckRatio> {
    each.iter().max_by(|a, b| a.ratio.value.ln().abs().total_cmp(&b.ratio.value.ln().abs()))
}

/// The geometric mean; of more than one its interval is not known.
fn mean(each: &[CheckRatio]) -> Option<EstimateRatio> {
    match each {
        [] => None,
        [one] => Some(one.ratio),
        more => {
            let logarithms: f64 = more.iter().map(|one| one.ratio.value.ln()).sum();
            Some(EstimateRatio { value: (logarithms / more.len() as f64).exp(), interval: None })
        }
    }
}

/// A check's ratio, and where it is found.
struct CheckRatio {
    ratio: EstimateRatio,
    /// `unthrottled`, `terasort`; empty where it is of the storages alone.
    at: String,
}

fn found(check: &ClaimCheck, table: &ReferenceTable, comparison: &RunComparison) -> Vec<CheckRatio> {
    let place = |name: &str| comparison.storages.iter().position(|storage| *storage == name);
    let (Some(storage), Some(against)) = (place(&check.storage), place(&check.against)) else {
        return Vec::new();
    };
    if matches!(check.metric, PublishedMetric::UsdPerPerformance | PublishedMetric::UsdPerTb) {
        return costs(check, table, comparison, [storage, against]);
    }
    let rows = comparison.rows.iter().filter(|row| concerns(check, row));
    rows.filter_map(|row| {
        let ratio = ratio_in(row, &check.metric, [storage, against])?;
        let Some(other_mix) = &check.than_mix else {
            return Some(CheckRatio { ratio, at: describe_row(row, comparison) });
        };
        let other = comparison.rows.iter().find(|other| {
            other.cell.mix_or_job().eq_ignore_ascii_case(other_mix)
                && other.system == row.system
                && other.cell.data_bytes == row.cell.data_bytes
                && threads(other.cell) == threads(row.cell)
        })?;
        let theirs = ratio_in(other, &check.metric, [storage, against])?;
        let location = format!(
            "{} {} beside {} {}",
            quantity::ratio(ratio.value),
            row.label(),
            quantity::ratio(theirs.value),
            other.label(),
        );
        Some(CheckRatio { ratio: effect_to_effect(&ratio, &theirs), at: location })
    })
    .collect()
}

fn ratio_in(
    row: &ComparisonRow,
    metric: &PublishedMetric,
    [storage, against]: [usize; 2],
) -> Option<EstimateRatio> {
    let figure = |index: usize| reference::ours(row.cells.get(index)?.as_ref()?, metric);
    EstimateRatio::new(&figure(storage)?, &figure(against)?)
}

fn describe_row(row: &ComparisonRow, comparison: &RunComparison) -> String {
    let has_rates = comparison.rows.iter().any(|row| row.cell.rate_per_s().is_some());
    match row.cell.rate_per_s() {
        _ if !has_rates => row.label().to_owned(),
        Some(_) => format!("at {}", crate::comparison::rates::offered(row.cell)),
        None if row.cell.rate_within().is_some() => row.label().to_owned(),
        None => crate::comparison::rates::UNTHROTTLED.to_owned(),
    }
}

/// One effect to another in the other's direction: below 1 where it is the smaller one. Both are distances from 1 on
/// the logarithm's scale, so that half and double are effects of one size.
fn effect_to_effect(ours: &EstimateRatio, theirs: &EstimateRatio) -> EstimateRatio {
    let direction = theirs.value.ln().signum();
    let value = (direction * (ours.value.ln() - theirs.value.ln())).exp();
    let half = |ratio: &EstimateRatio| ratio.interval.map(|one| (one.high / one.low).ln() / 2.0);
    let interval = half(ours).zip(half(theirs)).map(|(a, b)| {
        let half = (a * a + b * b).sqrt();
        ConfidenceInterval { low: value * (-half).exp(), high: value * half.exp() }
    });
    EstimateRatio { value, interval }
}

/// The storages' relative costs, at the first prices of the reference.
fn costs(
    check: &ClaimCheck,
    table: &ReferenceTable,
    comparison: &RunComparison,
    [storage, against]: [usize; 2],
) -> Vec<CheckRatio> {
    let lists = prices::lists(Some(table), comparison);
    let records = storage_records(comparison);
    let price = |index: usize| lists.first()?.price_storage(records.get(comparison.storages[index])?);
    let (Some(ours), Some(theirs)) = (price(storage), price(against)) else { return Vec::new() };
    if check.metric == PublishedMetric::UsdPerTb {
        let ratio = ours.usd_per_tb().zip(theirs.usd_per_tb()).map(|(ours, theirs)| ours / theirs);
        // Prices are exact.
        let exact =
            |value| EstimateRatio { value, interval: Some(ConfidenceInterval { low: value, high: value }) };
        return ratio
            .map(|value| CheckRatio { ratio: exact(value), at: String::new() })
            .into_iter()
            .collect();
    }
    let rows = comparison.rows.iter().filter(|row| concerns(check, row));
    rows.filter_map(|row| {
        let performance = prices::performance(row, storage, against)?;
        let per_performance = prices::usd_per_performance(&ours, &performance);
        let relative = |usd: f64| usd / theirs.price.usd;
        let ratio = EstimateRatio {
            value: relative(per_performance.value),
            interval: per_performance
                .interval
                .map(|one| ConfidenceInterval { low: relative(one.low), high: relative(one.high) }),
        };
        Some(CheckRatio { ratio, at: describe_row(row, comparison) })
    })
    .collect()
}

/// None of a job.
fn threads(cell: &Cell) -> Option<u32> {
    cell.requests().map(|requests| requests.threads)
}

fn concerns(check: &ClaimCheck, row: &ComparisonRow) -> bool {
    let cell = row.cell;
    if check.mix.as_ref().is_some_and(|mix| !mix.eq_ignore_ascii_case(cell.mix_or_job())) {
        return false;
    }
    if check.threads.is_some() && check.threads != threads(cell) {
        return false;
    }
    if cell.compacts_at().is_some() && check.metric != PublishedMetric::CompactionSlowdown {
        return false;
    }
    match cell.rate_per_s() {
        // A rate that changes is at no step.
        _ if !cell.rate_parts().is_empty() => false,
        // An unthrottled load lies above every step; jobs and benchmarks have no rate.
        None => check.unthrottled && cell.is_unthrottled() || !row.is_operations(),
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

fn holds(expect: ClaimExpectation, ratio: &EstimateRatio) -> RatioVerdict {
    let difference = ratio.difference();
    let is_close = ratio.value.ln().abs() <= SAME.ln();
    // The true ratio is close to 1 in any case.
    let is_surely_close =
        ratio.interval.is_some_and(|interval| interval.low >= 1.0 / SAME && interval.high <= SAME);
    match expect {
        ClaimExpectation::Same if is_surely_close => RatioVerdict::Yes,
        ClaimExpectation::Same if difference == RatioDifference::Unknown && is_close => RatioVerdict::Likely,
        ClaimExpectation::Same if difference == RatioDifference::Unknown => RatioVerdict::Unlikely,
        ClaimExpectation::Same if is_close || difference == RatioDifference::NoneSeen => {
            RatioVerdict::Unclear
        }
        ClaimExpectation::Same => RatioVerdict::No,
        ClaimExpectation::More | ClaimExpectation::Less => match (difference, expect) {
            (RatioDifference::More, ClaimExpectation::More)
            | (RatioDifference::Less, ClaimExpectation::Less) => RatioVerdict::Yes,
            (RatioDifference::More | RatioDifference::Less, _) => RatioVerdict::No,
            (RatioDifference::NoneSeen, _) if is_surely_close => RatioVerdict::No,
            (RatioDifference::NoneSeen, _) => RatioVerdict::Unclear,
            (RatioDifference::Unknown, ClaimExpectation::More) if ratio.value > NO_DIFFERENCE => {
                RatioVerdict::Likely
            }
            (RatioDifference::Unknown, ClaimExpectation::Less) if ratio.value < 1.0 / NO_DIFFERENCE => {
                RatioVerdict::Likely
            }
            (RatioDifference::Unknown, _) => RatioVerdict::Unlikely,
        },
    }
}

/// `remote : local, mean read latency: 1.02x (0.98–1.06) at 60,000/s, 1.31x unthrottled; expected about the same`
fn describe_check(check: &ClaimCheck, each: &[CheckRatio]) -> String {
    let ratios: Vec<String> = each
        .iter()
        .map(|one| {
            // Of two effects the two ratios say more than how they compare.
            if check.than_mix.is_some() {
                return one.at.clone();
            }
            let is_exact = |interval: &ConfidenceInterval| interval.low == interval.high;
            let interval = one
                .ratio
                .interval
                .filter(|interval| !is_exact(interval))
                .map_or(String::new(), |interval| format!(" ({})", quantity::ratio_interval(interval)));
            format!("{}{interval} {}", quantity::ratio(one.ratio.value), one.at).trim_end().to_owned()
        })
        .collect();
    let expected = match (check.expect, &check.than_mix) {
        (ClaimExpectation::Same, _) => "about the same",
        (ClaimExpectation::More, None) => "more",
        (ClaimExpectation::Less, None) => "less",
        (ClaimExpectation::More, Some(_)) => "a larger effect",
        (ClaimExpectation::Less, Some(_)) => "a smaller effect",
    };
    format!(
        "{} : {}, {}: {}; expected {expected}{}",
        check.storage,
        check.against,
        plain_metric(&check.metric),
        ratios.join(", "),
        published_in_words(check, each),
    )
}

/// The published value beside our most extreme one, or beside the mean where it is no bound: `; published up to 40 %
/// less, here at most 19 % less (shuffle)`.
fn published_in_words(check: &ClaimCheck, each: &[CheckRatio]) -> String {
    let (Some(published), Some(furthest), Some(mean)) = (check.published, furthest(each), mean(each)) else {
        return String::new();
    };
    let (bound, ours) = match (check.up_to, each.len()) {
        (true, 1) => ("up to ", change(mean.value)),
        (true, _) => ("up to ", format!("at most {} ({})", change(furthest.ratio.value), furthest.at)),
        (false, 1) => ("", change(mean.value)),
        (false, _) => {
            let intervals: Vec<ConfidenceInterval> =
                each.iter().filter_map(|one| one.ratio.interval).collect();
            let all = envelope(&intervals).filter(|_| intervals.len() == each.len());
            let all = all
                .map_or(String::new(), |all| format!(" (all intervals: {})", quantity::ratio_interval(all)));
            ("", format!("{} on average{all}", change(mean.value)))
        }
    };
    format!("; published {bound}{}, here {ours}", change(published))
}

/// A ratio as people say it: `40 % less`, `2.00x`, `the same`.
fn change(ratio: f64) -> String {
    match ratio {
        less if less < 0.995 => format!("{} less", quantity::percent(1.0 - less)),
        same if same < 1.005 => "the same".to_owned(),
        more if more < 1.5 => format!("{} more", quantity::percent(more - 1.0)),
        more => quantity::ratio(more),
    }
}

fn plain_metric(metric: &PublishedMetric) -> String {
    metric.describe().split(',').next().unwrap_or_default().to_owned()
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
        ClaimExpectation::Same => ratio.ln().abs() > SAME.ln(),
        ClaimExpectation::More => ratio <= 1.0,
        ClaimExpectation::Less => ratio >= 1.0,
    };
    let unit = check.metric.describe();
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
    fn ratio(value: f64, low: f64, high: f64) -> EstimateRatio {
        EstimateRatio { value, interval: Some(ConfidenceInterval { low, high }) }
    }

    #[test]
    fn expectations_are_held_against_intervals() {
        use ClaimExpectation::{Less, More, Same};
        let table = [
            (Same, ratio(1.01, 0.95, 1.07), RatioVerdict::Yes),
            // A difference that is surely too small to matter.
            (Same, ratio(1.08, 1.02, 1.14), RatioVerdict::Yes),
            (Same, ratio(1.1, 0.5, 2.4), RatioVerdict::Unclear),
            (Same, ratio(1.6, 1.4, 1.8), RatioVerdict::No),
            (More, ratio(1.6, 1.4, 1.8), RatioVerdict::Yes),
            (Less, ratio(1.6, 1.4, 1.8), RatioVerdict::No),
            (Less, ratio(0.9, 0.85, 0.95), RatioVerdict::Yes),
            (More, ratio(1.0, 0.97, 1.03), RatioVerdict::No),
            (More, ratio(1.3, 0.8, 2.1), RatioVerdict::Unclear),
            (More, EstimateRatio { value: 1.3, interval: None }, RatioVerdict::Likely),
            (Less, EstimateRatio { value: 0.99, interval: None }, RatioVerdict::Unlikely),
            (Same, EstimateRatio { value: 1.1, interval: None }, RatioVerdict::Likely),
            (Same, EstimateRatio { value: 3.0, interval: None }, RatioVerdict::Unlikely),
        ];
        for (expect, ratio, expected) in table {
            assert_eq!(holds(expect, &ratio), expected, "{expect:?} of {ratio:?}");
        }
    }
    #[test]
    fn effects_are_compared_in_direction_of_the_other() {
        // 2 % shorter against 40 % shorter, and the same upside down.
        for invert in [false, true] {
            let turned = |one: EstimateRatio| match (invert, one.interval) {
                (true, Some(i)) => ratio(1.0 / one.value, 1.0 / i.high, 1.0 / i.low),
                _ => one,
            };
            let small = turned(ratio(0.98, 0.95, 1.01));
            let large = turned(ratio(0.6, 0.57, 0.63));
            let found = effect_to_effect(&small, &large);
            assert!(found.interval.unwrap().high < 1.0, "{found:?}");
            assert_eq!(holds(ClaimExpectation::Less, &found), RatioVerdict::Yes);
            assert_eq!(holds(ClaimExpectation::Less, &effect_to_effect(&large, &small)), RatioVerdict::No);
        }
        // Longer where the other is shorter is less of an effect, not more.
        let found = effect_to_effect(&ratio(1.4, 1.35, 1.45), &ratio(0.6, 0.57, 0.63));
        assert_eq!(holds(ClaimExpectation::Less, &found), RatioVerdict::Yes);
    }

    #[test]
    fn changes_are_said_as_people_say_them() {
        let words = [0.6, 0.999, 1.3, 2.0].map(change);
        assert_eq!(words, ["40 % less", "the same", "30 % more", "2.00x"]);
    }
}
