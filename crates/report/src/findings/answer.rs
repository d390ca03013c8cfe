//! The answer in one sentence: what the storage did to the system.

mod benchmarks;
mod jobs;

use underlay_record::{DeviceTotals, DisturbedBy};

use crate::comparison::{
    CellOutcome, CellResult, ComparisonRow, RowMetrics, RunComparison, workload_in_words,
};
use crate::findings::effect::{RatioSubject, StorageEffect, with_what_ranges_are};
use crate::load::LoadedRun;
use crate::quantity;
use crate::statistics::IntervalEstimate;

/// The run's answer, in a sentence a system: how many times the baseline's throughput each storage gives, and how the
/// latency changed. It says so when the run shows no difference, is doubtful or is not complete.
pub fn sentence(loaded: &LoadedRun) -> String {
    summarize(loaded, &RunComparison::from_loaded(loaded))
}

/// [`sentence`] for a comparison that is at hand.
pub fn summarize(loaded: &LoadedRun, comparison: &RunComparison) -> String {
    let caveat = caveat(loaded, comparison);
    let answer = summarize_changes(comparison);
    if caveat.is_empty() { answer } else { format!("{answer} {caveat}") }
}

/// The answer without its caveats.
pub fn summarize_changes(comparison: &RunComparison) -> String {
    let cells = comparison.cells().count();
    let measured = comparison.cells().filter(|result| result.is_measured()).count();
    if measured == 0 {
        let is_by_hand = |result: &CellResult| matches!(result.outcome, CellOutcome::Disturbed { .. });
        if comparison.cells().any(is_by_hand) {
            return "No answer yet: all that was measured was disturbed by hand and is left out.".to_owned();
        }
        return format!("No answer yet: none of {} has been measured.", quantity::plural(cells, "cell"));
    }
    let text: Vec<String> =
        comparison.systems.iter().map(|system| about_system(comparison, system)).collect();
    text.join(" ")
}

/// Why the answer may not hold: doubtful cells, cells still to come. Empty when nothing speaks against it.
pub fn caveat(loaded: &LoadedRun, comparison: &RunComparison) -> String {
    let measured = comparison.cells().filter(|result| result.is_measured()).count();
    let mut text = Vec::new();
    let doubtful = comparison.cells().filter(|result| result.is_doubtful()).count();
    if doubtful > 0 {
        let share =
            if doubtful == measured { "Every cell is".to_owned() } else { some_cells(doubtful, measured) };
        text.push(format!("{share} doubtful: read the warnings before relying on this."));
    }
    // Faults of the study belong to its figures. Those made by hand spoil them, and are left out below.
    let by_study =
        comparison.cells().filter(|result| result.disturbed_by() == Some(DisturbedBy::Study)).count();
    if by_study > 0 {
        let share =
            if by_study == measured { "Every cell is".to_owned() } else { some_cells(by_study, measured) };
        text.push(format!("{share} disturbed by the study: these figures include its faults and events."));
    }
    text.extend(left_out_beside_storage(comparison));
    let by_hand =
        comparison.cells().filter(|result| matches!(result.outcome, CellOutcome::Disturbed { .. })).count();
    if by_hand > 0 {
        let (verb, pronoun) = if by_hand == 1 { ("was", "it") } else { ("were", "them") };
        text.push(format!(
            "{} {verb} disturbed by hand and left out: `underlay run --resume` measures {pronoun} again.",
            quantity::plural(by_hand, "cell")
        ));
    }
    let lost = comparison
        .cells()
        .filter(|result| {
            matches!(result.outcome, CellOutcome::Failed { .. } | CellOutcome::Unavailable { .. })
        })
        .count();
    if lost > 0 {
        text.push(format!("{} could not be measured.", quantity::plural(lost, "cell")));
    }
    let skipped =
        comparison.cells().filter(|result| matches!(result.outcome, CellOutcome::Skipped { .. })).count();
    if skipped > 0 {
        let skipped_verb = if skipped == 1 { "was" } else { "were" };
        text.push(format!("{} {skipped_verb} skipped on command.", quantity::plural(skipped, "cell")));
    }
    if loaded.is_partial() {
        let (finished, planned) = (loaded.finished(), loaded.planned());
        text.push(format!("So far {finished} of {planned} repetitions have been recorded."));
    }
    text.join(" ")
}

fn some_cells(doubtful: usize, measured: usize) -> String {
    let verb = if doubtful == 1 { "is" } else { "are" };
    format!("{doubtful} of {measured} cells {verb}")
}

/// Whether all that was measured came from memory, or from a system that stores nothing.
fn is_device_idle(rows: &[&ComparisonRow]) -> bool {
    let cells =
        rows.iter().flat_map(|row| row.cells.iter().flatten()).filter(|cell| cell.figures().is_some());
    let mut devices = cells.flat_map(|cell| &cell.records).flat_map(|record| &record.devices).peekable();
    devices.peek().is_some()
        && devices.all(|device| {
            let DeviceTotals { reads, writes, flushes, .. } = device.totals;
            reads + writes + flushes == 0
        })
}

/// The rows of a system, those whose workload used the storage under test before those that worked beside it.
fn rows_by_use<'r, 'a>(
    comparison: &'r RunComparison<'a>,
    system: &str,
) -> (Vec<&'r ComparisonRow<'a>>, Vec<&'r ComparisonRow<'a>>) {
    comparison.rows.iter().filter(|row| row.system == system).partition(|row| !row.is_beside_storage())
}

/// Which workloads the answer leaves out for having worked beside the storage, system by system. Where all did, the
/// answer itself says so.
fn left_out_beside_storage(comparison: &RunComparison) -> Option<String> {
    let mut text = Vec::new();
    for system in &comparison.systems {
        let (used, unused) = rows_by_use(comparison, system);
        if used.is_empty() || unused.is_empty() {
            continue;
        }
        let names: Vec<String> = unused.iter().map(|row| row.label().to_owned()).collect();
        let (plural_suffix, auxiliary) = if names.len() == 1 { ("", "is") } else { ("s", "are") };
        text.push(format!(
            "On {}, the workload{plural_suffix} {} did not use the storage under test and {auxiliary} left out.",
            comparison.system_title(system),
            quantity::list(&names, usize::MAX)
        ));
    }
    (!text.is_empty()).then(|| text.join(" "))
}

/// The sentence where cells disturbed by hand leave nothing to compare; `None` in other cases.
fn left_out_by_hand(
    comparison: &RunComparison,
    rows: &[&ComparisonRow],
    baseline_index: usize,
    has_baseline: bool,
) -> Option<String> {
    let baseline = comparison.baseline;
    let is_by_hand = |index: usize| rows.iter().any(|row| row.is_disturbed_by_hand(index));
    if !has_baseline {
        return is_by_hand(baseline_index).then(|| {
            format!(
                "the measurement on {baseline} was disturbed by hand and is left out, so there is nothing to compare with"
            )
        });
    }
    let others = (0..comparison.storages.len()).any(|index| index != baseline_index && is_by_hand(index));
    others.then(|| {
        format!(
            "the measurements beside {baseline} were disturbed by hand and are left out, so there is nothing to compare"
        )
    })
}

fn about_system(comparison: &RunComparison, system: &str) -> String {
    let (rows, unused) = rows_by_use(comparison, system);
    if rows.is_empty() && !unused.is_empty() {
        return format!(
            "On {}, the workload did not use the storage under test, so nothing can be said of any.",
            comparison.system_title(system)
        );
    }
    if rows.iter().any(|row| row.is_job()) {
        return jobs::about_system(comparison, system, &rows);
    }
    if rows.iter().any(|row| row.is_benchmark()) {
        return benchmarks::about_system(comparison, system, &rows);
    }
    let title = comparison.system_title(system);
    let Some(baseline_index) = comparison.baseline_index() else {
        return format!(
            "On {title}, the baseline {} was not run, so nothing is compared.",
            comparison.baseline
        );
    };
    // Before any ratio: without a request to a device it shows nothing but scatter.
    if is_device_idle(&rows) {
        return format!("On {title}, no request reached a device, so the storages can make no difference.");
    }
    let has_closed = rows.iter().any(|row| row.cell.is_unthrottled());
    let telling: Vec<&ComparisonRow> =
        rows.iter().copied().filter(|row| row.tells_throughput(has_closed)).collect();
    let mut effects: Vec<StorageEffect> = comparison
        .storages
        .iter()
        .enumerate()
        .filter(|(index, _)| *index != baseline_index)
        .map(|(index, storage)| effect(&telling, storage, index))
        .filter(|effect| effect.count() > 0)
        .collect();
    if effects.is_empty() {
        // The reader is to learn which of the two sides is missing.
        let has_baseline = rows.iter().any(|row| row.figures(baseline_index).is_some());
        if let Some(reason) = left_out_by_hand(comparison, &rows, baseline_index, has_baseline) {
            return format!("On {title}, {reason}.");
        }
        return if has_baseline {
            format!("On {title}, only {} was measured, so there is nothing to compare.", comparison.baseline)
        } else {
            format!(
                "On {title}, {} was not measured, so there is nothing to compare with.",
                comparison.baseline
            )
        };
    }
    // The answer names the largest effect first.
    effects.sort_by(|a, b| b.highest().total_cmp(&a.highest()));
    let words = [
        ["gives", &format!("the throughput of {}", comparison.baseline)],
        ["no difference in throughput was seen", comparison.baseline],
    ];
    let mut clauses = throughput_clauses(&effects, RatioSubject::Workload, words);
    if let Some(latency) = latency_clause(&rows, baseline_index, &effects) {
        clauses.push(latency);
    }
    let certainty = match effects.iter().any(|effect| effect.differs() && !effect.has_intervals()) {
        true => " Ratios of single runs have no intervals, so their uncertainty is unknown.",
        false => "",
    };
    format!("On {title}, {}.{certainty}", clauses.join("; "))
}

/// The clauses on differences, the largest first, and on storages without one. The words are the verb and the object of
/// the one, and of the other what was not seen and against which storage.
fn throughput_clauses(
    effects: &[StorageEffect],
    subject: RatioSubject,
    [[verb, object], [nothing_seen, baseline]]: [[&str; 2]; 2],
) -> Vec<String> {
    let (different, same): (Vec<&StorageEffect>, Vec<&StorageEffect>) =
        effects.iter().partition(|one| one.differs());
    let mut clauses = Vec::new();
    if !different.is_empty() {
        let parts: Vec<String> = different
            .iter()
            .enumerate()
            .map(|(index, effect)| effect.clause(subject, (index == 0).then_some([verb, object])))
            .collect();
        clauses.push(with_what_ranges_are(quantity::list(&parts, usize::MAX), &different, subject));
    }
    if !same.is_empty() {
        let names: Vec<String> = same.iter().map(|effect| effect.storage.to_owned()).collect();
        let names = quantity::list(&names, usize::MAX);
        clauses.push(format!("{nothing_seen} between {names} and {baseline}"));
    }
    clauses
}

fn effect<'a>(rows: &[&ComparisonRow], storage: &'a str, index: usize) -> StorageEffect<'a> {
    let ratios = rows.iter().filter_map(|row| row.figures(index)).filter_map(|figures| figures.ratio);
    StorageEffect::new(ratios, storage, index)
}

/// Figures whose intervals overlap and that are further apart than this are not called the same.
const ALIKE: f64 = 0.2;

/// One of a cell's latencies.
type AnswerPick = fn(&RowMetrics) -> Option<IntervalEstimate>;

/// How the p99 latency changes on the storage that changes most, under one telling workload; the mean where the run has
/// no p99 of both.
fn latency_clause(
    rows: &[&ComparisonRow],
    baseline_index: usize,
    effects: &[StorageEffect],
) -> Option<String> {
    let effect = effects.first()?;
    // Reads only shows the storage's latency barest; among equals the largest data set does, and then what nothing
    // holds back.
    let preference = |row: &ComparisonRow| match row.cell.mix_or_job() {
        "c" => 0,
        "b" => 1,
        "a" => 2,
        _ => 3,
    };
    let statistics: [(&str, AnswerPick); 2] =
        [("p99", |figures| figures.p99_us), ("mean", |figures| figures.mean_us)];
    let (statistic, row, base, ours) = statistics.into_iter().find_map(|(statistic, pick)| {
        let interval_of = |row: &ComparisonRow, index: usize| row.figures(index).and_then(pick);
        let mut candidates: Vec<&&ComparisonRow> = rows
            .iter()
            // A rate that was found keeps to a latency on every storage.
            .filter(|row| row.cell.rate_within().is_none())
            .filter(|row| {
                interval_of(row, baseline_index).is_some() && interval_of(row, effect.index).is_some()
            })
            .collect();
        candidates.sort_by_key(|row| {
            (preference(row), std::cmp::Reverse(row.cell.data_bytes), row.cell.rate_per_s().is_some())
        });
        let row = candidates.first()?;
        Some((statistic, **row, interval_of(row, baseline_index)?, interval_of(row, effect.index)?))
    })?;
    let (from, to) = (quantity::latency(base.value), quantity::latency(ours.value));
    let (metric_name, workload) = (format!("{statistic} latency"), workload_in_words(row.cell));
    let (a, b) = (base.interval?, ours.interval?);
    if b.high < a.low {
        Some(format!("{metric_name} falls from {from} to {to} on {} under {workload}", effect.storage))
    } else if b.low > a.high {
        Some(format!("{metric_name} rises from {from} to {to} on {} under {workload}", effect.storage))
    } else {
        // Figures that are far apart don't stay what they were: nobody can tell.
        let is_alike = (ours.value / base.value - 1.0).abs() <= ALIKE;
        Some(match is_alike {
            true => format!(
                "no difference in {metric_name} was seen on {}: about {from} under {workload}",
                effect.storage
            ),
            false => format!(
                "{metric_name} is {from}, and {to} on {} under {workload}: these are too few to tell a difference",
                effect.storage
            ),
        })
    }
}
