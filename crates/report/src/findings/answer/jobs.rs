//! The answer for a system of batch jobs: how many times as fast each storage does them.

use super::{RatioSubject, StorageEffect, left_out_by_hand, throughput_clauses};
use crate::comparison::{ComparisonRow, RunComparison};
use crate::quantity;
use crate::statistics::ratio::RatioDifference;

/// Of these rows of the system, those that are jobs.
pub(super) fn about_system(comparison: &RunComparison, system: &str, rows: &[&ComparisonRow]) -> String {
    let title = comparison.system_title(system);
    let rows: Vec<&ComparisonRow> = rows.iter().copied().filter(|row| row.is_job()).collect();
    let Some(baseline_index) = comparison.baseline_index() else {
        return format!(
            "On {title}, the baseline {} was not run, so nothing is compared.",
            comparison.baseline
        );
    };
    let mut effects: Vec<StorageEffect> = comparison
        .storages
        .iter()
        .enumerate()
        .filter(|(index, _)| *index != baseline_index)
        .map(|(index, storage)| {
            let ratios = rows.iter().filter_map(|row| row.job(index)?.performance);
            StorageEffect::new(ratios, storage, index)
        })
        .filter(|effect| effect.count() > 0)
        .collect();
    if effects.is_empty() {
        let has_baseline = rows.iter().any(|row| row.job(baseline_index).is_some());
        if let Some(reason) = left_out_by_hand(comparison, &rows, baseline_index, has_baseline) {
            return format!("On {title}, {reason}.");
        }
        return match has_baseline {
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
    effects.sort_by(|a, b| b.highest().total_cmp(&a.highest()));
    let words = [
        ["is", &format!("as fast as {}", comparison.baseline)],
        ["no difference was seen", comparison.baseline],
    ];
    let mut clauses = throughput_clauses(&effects, RatioSubject::Job, words);
    // Of the storage that the sentence begins with, not of one that makes no difference.
    clauses.extend(most_changed(&rows, baseline_index, effects.iter().find(|one| one.differs())));
    let certainty = match effects.iter().all(|effect| effect.differs() && !effect.has_intervals()) {
        true => " Each job ran once, so the certainty of these ratios is unknown.",
        false => "",
    };
    format!("On {title}, {}.{certainty}", clauses.join("; "))
}

/// The job that changes most on the storage that changes most, in its durations.
fn most_changed(
    rows: &[&ComparisonRow],
    baseline_index: usize,
    effect: Option<&StorageEffect>,
) -> Option<String> {
    let effect = effect?;
    let change = |row: &ComparisonRow| {
        let ratio = row.job(effect.index)?.performance?;
        // A change that may be chance is not mentioned.
        (ratio.difference() != RatioDifference::NoneSeen).then(|| ratio.value.ln().abs())
    };
    let row = rows
        .iter()
        .filter(|row| change(row).is_some())
        .max_by(|a, b| change(a).unwrap_or(0.0).total_cmp(&change(b).unwrap_or(0.0)))?;
    let seconds = |index| row.job(index).map(|job| quantity::duration(job.duration_s.value));
    let (from, to) = (seconds(baseline_index)?, seconds(effect.index)?);
    Some(format!("{} takes {to} instead of {from} on {}", row.label(), effect.storage))
}
