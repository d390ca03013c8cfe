//! The answer for a system that is measured by benchmarks of the user's: how many times as good each storage is by their first figure.

use underlay_record::Better;

use super::{Effect, effect_of, highest};
use crate::cell::benchmark::NamedFigure;
use crate::comparison::{Comparison, Row, system_title};
use crate::quantity;

pub(super) fn about_system(comparison: &Comparison, system: &str) -> String {
    let title = system_title(system);
    let rows: Vec<&Row> = comparison.benchmarks().filter(|row| row.system == system).collect();
    let baseline = comparison.baseline;
    let Some(baseline_index) = comparison.baseline_index() else {
        return format!("On {title}, the baseline {baseline} was not run, so nothing is compared.");
    };
    let mut effects: Vec<Effect> = comparison
        .storages
        .iter()
        .enumerate()
        .filter(|(index, _)| *index != baseline_index)
        .map(|(index, storage)| {
            let ratios = rows.iter().filter_map(|row| row.benchmark(index)?.first()?.performance);
            effect_of(ratios, storage, index)
        })
        .filter(|effect| !effect.ratios.is_empty() || effect.no_difference > 0)
        .collect();
    if effects.is_empty() {
        return match rows.iter().any(|row| row.benchmark(baseline_index).is_some()) {
            true => format!("On {title}, only {baseline} was measured, so there is nothing to compare."),
            false => format!("On {title}, {baseline} was not measured, so there is nothing to compare with."),
        };
    }
    effects.sort_by(|a, b| highest(b).total_cmp(&highest(a)));
    let (different, same): (Vec<&Effect>, Vec<&Effect>) =
        effects.iter().partition(|one| !one.ratios.is_empty());
    let what = throughput_of(&rows);
    let mut clauses = Vec::new();
    if !different.is_empty() {
        let parts: Vec<String> = different
            .iter()
            .enumerate()
            .map(|(index, effect)| clause(effect, baseline, what, index == 0))
            .collect();
        clauses.push(quantity::list(&parts, usize::MAX));
    }
    if !same.is_empty() {
        let names: Vec<String> = same.iter().map(|effect| effect.storage.to_owned()).collect();
        let names = quantity::list(&names, usize::MAX);
        clauses.push(format!("no difference was seen between {names} and {baseline}"));
    }
    clauses.extend(latency_clause(&rows, baseline_index, &effects));
    let certainty = match effects.iter().all(|effect| !effect.is_certain) {
        true => " Each benchmark ran once, so the certainty of these ratios is unknown.",
        false => "",
    };
    format!("On {title}, {}.{certainty}", clauses.join("; "))
}

/// The name of the figure that all benchmarks are compared by, where more of it is better.
fn throughput_of<'r>(rows: &[&'r Row]) -> Option<&'r str> {
    let mut firsts = rows
        .iter()
        .flat_map(|row| row.cells.iter().flatten())
        .filter_map(|result| result.benchmark()?.first());
    let first = firsts.next()?;
    let is_same = |one: &NamedFigure| one.name == first.name && one.better == Better::Higher;
    (is_same(first) && firsts.all(is_same)).then_some(first.name.as_str())
}

/// `nvme gives 11 to 24 times the transactions of hdd`, and shorter after the first.
fn clause(effect: &Effect, baseline: &str, what: Option<&str>, is_first: bool) -> String {
    let low = effect.ratios.iter().copied().fold(f64::INFINITY, f64::min);
    let high = effect.ratios.iter().copied().fold(0.0, f64::max);
    let (low, high) = (quantity::number(low, 2), quantity::number(high, 2));
    let range = if low == high { low } else { format!("{low} to {high}") };
    let mut text = match (is_first, what) {
        (true, Some(what)) => format!("{} gives {range} times the {what} of {baseline}", effect.storage),
        (true, None) => format!("{} is {range} times as good as {baseline}", effect.storage),
        (false, _) => format!("{} {range} times", effect.storage),
    };
    if effect.no_difference > 0 {
        let all = effect.ratios.len() + effect.no_difference;
        text += &format!(" (no difference seen in {} of {all} benchmarks)", effect.no_difference);
    }
    text
}

/// What becomes of the p99, or else of the last figure of which less is better, where storages differ most.
fn latency_clause(rows: &[&Row], baseline_index: usize, effects: &[Effect]) -> Option<String> {
    let effect = effects.first()?;
    let change = |row: &&&Row| {
        let ratio = row.benchmark(effect.index)?.first()?.performance?;
        Some(ratio.value.ln().abs())
    };
    let row = rows
        .iter()
        .filter(|row| change(row).is_some())
        .max_by(|a, b| change(a).unwrap_or(0.0).total_cmp(&change(b).unwrap_or(0.0)))?;
    let ours = row.benchmark(effect.index)?;
    let is_cost = |one: &&NamedFigure| one.better == Better::Lower && one.performance.is_some();
    let costs = || ours.figures.iter().filter(is_cost).filter(|one| ours.first() != Some(one));
    let figure = costs().find(|one| one.name.ends_with("p99")).or_else(|| costs().next_back())?;
    let base = row.benchmark(baseline_index)?.named(&figure.name)?;
    let words = |one: &NamedFigure| quantity::of_unit(one.value.value, &one.unit);
    let verb = if figure.value.value < base.value.value { "falls" } else { "rises" };
    Some(format!(
        "{} ({}) {verb} from {} to {} on {}",
        figure.name,
        row.label(),
        words(base),
        words(figure),
        effect.storage
    ))
}
