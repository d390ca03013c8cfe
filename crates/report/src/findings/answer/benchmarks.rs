//! The answer for a system that is measured by benchmarks of the user's: how many times as good each storage is by
//! their first figure.

use underlay_record::BetterDirection;

use super::{RatioSubject, StorageEffect, left_out_by_hand, throughput_clauses};
use crate::cell::benchmark::NamedFigure;
use crate::comparison::{ComparisonRow, RunComparison};
use crate::quantity;
use crate::statistics::ratio::RatioDifference;

/// Of these rows of the system, those that are benchmarks.
pub(super) fn about_system(comparison: &RunComparison, system: &str, rows: &[&ComparisonRow]) -> String {
    let title = comparison.system_title(system);
    let rows: Vec<&ComparisonRow> = rows.iter().copied().filter(|row| row.is_benchmark()).collect();
    let baseline = comparison.baseline;
    let Some(baseline_index) = comparison.baseline_index() else {
        return format!("On {title}, the baseline {baseline} was not run, so nothing is compared.");
    };
    let mut effects: Vec<StorageEffect> = comparison
        .storages
        .iter()
        .enumerate()
        .filter(|(index, _)| *index != baseline_index)
        .map(|(index, storage)| {
            let ratios = rows.iter().filter_map(|row| row.benchmark(index)?.first()?.performance);
            StorageEffect::new(ratios, storage, index)
        })
        .filter(|effect| effect.count() > 0)
        .collect();
    if effects.is_empty() {
        let has_baseline = rows.iter().any(|row| row.benchmark(baseline_index).is_some());
        if let Some(reason) = left_out_by_hand(comparison, &rows, baseline_index, has_baseline) {
            return format!("On {title}, {reason}.");
        }
        return match has_baseline {
            true => format!("On {title}, only {baseline} was measured, so there is nothing to compare."),
            false => format!("On {title}, {baseline} was not measured, so there is nothing to compare with."),
        };
    }
    effects.sort_by(|a, b| b.highest().total_cmp(&a.highest()));
    // Only of one figure that all have, and of which more is better, "gives" can be said.
    let [verb, object] = match throughput_of(&rows) {
        Some(figure) => ["gives", &format!("the {figure} of {baseline}")],
        None => ["is", &format!("as good as {baseline}")],
    };
    let words = [[verb, object], ["no difference was seen", baseline]];
    let mut clauses = throughput_clauses(&effects, RatioSubject::Benchmark, words);
    clauses.extend(latency_clause(&rows, baseline_index, &effects));
    let certainty = match effects.iter().all(|effect| effect.differs() && !effect.has_intervals()) {
        true => " Each benchmark ran once, so the certainty of these ratios is unknown.",
        false => "",
    };
    format!("On {title}, {}.{certainty}", clauses.join("; "))
}

/// The name of the figure that all benchmarks are compared by, where more of it is better.
fn throughput_of<'r>(rows: &[&'r ComparisonRow]) -> Option<&'r str> {
    let mut firsts = rows
        .iter()
        .flat_map(|row| row.cells.iter().flatten())
        .filter_map(|result| result.benchmark()?.first());
    let first = firsts.next()?;
    let is_same = |one: &NamedFigure| one.name == first.name && one.better == BetterDirection::Higher;
    (is_same(first) && firsts.all(is_same)).then_some(first.name.as_str())
}

/// How the p99, or else the last figure that is better when lower, changes where storages differ most.
fn latency_clause(
    rows: &[&ComparisonRow],
    baseline_index: usize,
    effects: &[StorageEffect],
) -> Option<String> {
    let effect = effects.first()?;
    let change = |row: &&&ComparisonRow| {
        let ratio = row.benchmark(effect.index)?.first()?.performance?;
        Some(ratio.value.ln().abs())
    };
    let row = rows
        .iter()
        .filter(|row| change(row).is_some())
        .max_by(|a, b| change(a).unwrap_or(0.0).total_cmp(&change(b).unwrap_or(0.0)))?;
    let ours = row.benchmark(effect.index)?;
    let is_cost = |one: &&NamedFigure| one.better == BetterDirection::Lower && one.performance.is_some();
    let costs = || ours.figures.iter().filter(is_cost).filter(|one| ours.first() != Some(one));
    let figure = costs().find(|one| one.name.ends_with("p99")).or_else(|| costs().next_back())?;
    let base = row.benchmark(baseline_index)?.named(&figure.name)?;
    let words = |one: &NamedFigure| quantity::format_with_unit(one.value.value, &one.unit);
    let verb = match figure.performance?.difference() {
        RatioDifference::NoneSeen => {
            let (name, label) = (figure.title(), row.label());
            return Some(format!("no difference in {name} ({label}) was seen on {}", effect.storage));
        }
        _ if figure.value.value < base.value.value => "falls",
        _ => "rises",
    };
    Some(format!(
        "{} ({}) {verb} from {} to {} on {}",
        figure.title(),
        row.label(),
        words(base),
        words(figure),
        effect.storage
    ))
}
