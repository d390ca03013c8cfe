//! The answer for a system of batch jobs: how many times as fast each storage does them.

use super::{Effect, effect_of, highest};
use crate::comparison::{Comparison, Row, system_title};
use crate::quantity;

pub(super) fn about_system(comparison: &Comparison, system: &str) -> String {
    let title = system_title(system);
    let rows: Vec<&Row> = comparison.jobs().filter(|row| row.system == system).collect();
    let Some(baseline_index) = comparison.baseline_index() else {
        return format!(
            "On {title}, the baseline {} was not run, so nothing is compared.",
            comparison.baseline
        );
    };
    let mut effects: Vec<Effect> = comparison
        .storages
        .iter()
        .enumerate()
        .filter(|(index, _)| *index != baseline_index)
        .map(|(index, storage)| {
            let ratios = rows.iter().filter_map(|row| row.job(index)?.performance);
            effect_of(ratios, storage, index)
        })
        .filter(|effect| !effect.ratios.is_empty() || effect.no_difference > 0)
        .collect();
    if effects.is_empty() {
        return match rows.iter().any(|row| row.job(baseline_index).is_some()) {
            true => format!(
                "On {title}, jobs completed on {} alone, so there is nothing to compare.",
                comparison.baseline
            ),
            false => format!(
                "On {title}, no job completed on {}, so there is nothing to compare with.",
                comparison.baseline
            ),
        };
    }
    effects.sort_by(|a, b| highest(b).total_cmp(&highest(a)));
    let (different, same): (Vec<&Effect>, Vec<&Effect>) =
        effects.iter().partition(|one| !one.ratios.is_empty());
    let mut clauses = Vec::new();
    if !different.is_empty() {
        let parts: Vec<String> = different
            .iter()
            .enumerate()
            .map(|(index, effect)| clause(effect, comparison.baseline, index == 0))
            .collect();
        clauses.push(quantity::list(&parts, usize::MAX));
        if different.iter().any(|effect| effect.no_difference > 0) {
            clauses.push("in the others no difference was seen".to_owned());
        }
    }
    if !same.is_empty() {
        let names: Vec<String> = same.iter().map(|effect| effect.storage.to_owned()).collect();
        let names = quantity::list(&names, usize::MAX);
        clauses.push(format!("no difference was seen between {names} and {}", comparison.baseline));
    }
    clauses.extend(most_changed(&rows, baseline_index, different.first().copied()));
    let certainty = match effects.iter().all(|effect| !effect.is_certain) {
        true => " Each job ran once, so the certainty of these ratios is unknown.",
        false => "",
    };
    format!("On {title}, {}.{certainty}", clauses.join("; "))
}

/// `ssd does 4 of 7 jobs 1.1 to 1.6 times as fast as hdd-11`, and shorter after the first.
fn clause(effect: &Effect, baseline: &str, is_first: bool) -> String {
    let low = effect.ratios.iter().copied().fold(f64::INFINITY, f64::min);
    let high = effect.ratios.iter().copied().fold(0.0, f64::max);
    let (low, high) = (quantity::number(low, 2), quantity::number(high, 2));
    let range = if low == high { low } else { format!("{low} to {high}") };
    let (found, all) = (effect.ratios.len(), effect.ratios.len() + effect.no_difference);
    let jobs = match found == all {
        true if all == 1 => "its job".to_owned(),
        true => quantity::plural(all, "job"),
        false => format!("{found} of {}", quantity::plural(all, "job")),
    };
    if is_first {
        format!("{} does {jobs} {range} times as fast as {baseline}", effect.storage)
    } else if found == all {
        format!("{} {range} times", effect.storage)
    } else {
        format!("{} {found} of them {range} times", effect.storage)
    }
}

/// The job that changes most on the storage that changes most, in its durations.
fn most_changed(rows: &[&Row], baseline_index: usize, effect: Option<&Effect>) -> Option<String> {
    let effect = effect?;
    let change = |row: &Row| {
        let ratio = row.job(effect.index)?.performance?;
        Some(ratio.value.ln().abs())
    };
    let row = rows
        .iter()
        .filter(|row| change(row).is_some())
        .max_by(|a, b| change(a).unwrap_or(0.0).total_cmp(&change(b).unwrap_or(0.0)))?;
    let seconds = |index| row.job(index).map(|job| quantity::duration(job.duration_s.value));
    let (from, to) = (seconds(baseline_index)?, seconds(effect.index)?);
    Some(format!("{} takes {to} instead of {from} on {}", row.label(), effect.storage))
}
