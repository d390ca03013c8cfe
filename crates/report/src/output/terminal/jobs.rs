//! Batch jobs: durations and performance, devices, directories.

use super::{
    CellStyle, TableDetail, TableLayout, TablePaint, caches, certificate_mark, reason_not_measured, state_of,
    wrap,
};
use crate::cell::activity;
use crate::cell::directories::{self, DirectoryFigures};
use crate::cell::jobs::JobFigures;
use crate::comparison::{CellOutcome, CellResult, ComparisonRow, RunComparison};
use crate::findings::warnings;
use crate::quantity::{self, ABSENT};
use crate::statistics::IntervalEstimate;
use crate::statistics::ratio::{EstimateRatio, RatioDifference};

/// Everything about jobs; empty where there are none.
pub(super) fn text(comparison: &RunComparison, width: usize, paint: TablePaint) -> String {
    let mut out = String::new();
    for system in &comparison.systems {
        let rows: Vec<&ComparisonRow> = comparison.jobs().filter(|row| row.system == *system).collect();
        if rows.is_empty() {
            continue;
        }
        let suffix = match comparison.systems.len() {
            0 | 1 => String::new(),
            _ => format!(", {}", comparison.system_title(system)),
        };
        out += &heading(
            &format!(
                "Jobs{suffix}: how many times as fast as on {}{}",
                comparison.baseline,
                words_on_intervals(&rows)
            ),
            width,
            paint,
        );
        out += &overview(comparison, &rows).render(width, paint);
        out += &heading(
            &format!("Duration{suffix}, and performance against {}", comparison.baseline),
            width,
            paint,
        );
        for line in wrap(&words_on_repetitions(&rows), width, "") {
            out += &format!("{}\n", paint.dim(&line));
        }
        let tables = [TableDetail::Everything, TableDetail::NoIntervals, TableDetail::Narrow];
        out +=
            &fitting(tables.map(|detail| durations(comparison, &rows, detail)), width).render(width, paint);
        for result in rows.iter().flat_map(|row| row.cells.iter().flatten()) {
            // The tables say what is still to come.
            let is_pending = matches!(result.outcome, CellOutcome::Pending);
            if let Some(reason) = reason_not_measured(result).filter(|_| !is_pending) {
                let text = format!("{}: {reason}", warnings::cell_name(comparison, result));
                for line in wrap(&text, width - 2, "  ") {
                    out += &format!("  {line}\n");
                }
            }
        }
        out += &caches::text(&rows, width, paint);
        out += &devices(comparison, &rows, &suffix, width, paint);
        out += &directory_text(comparison, &rows, &suffix, width, paint);
    }
    out
}

/// Ratios of single runs have no intervals.
fn words_on_intervals(rows: &[&ComparisonRow]) -> &'static str {
    let mut jobs = rows.iter().flat_map(|row| row.cells.iter().flatten()).filter_map(|result| result.job());
    let has_interval = |job: &JobFigures| job.performance.is_some_and(|ratio| ratio.interval.is_some());
    if jobs.any(has_interval) { ", 95 % intervals" } else { ", single runs" }
}

fn heading(text: &str, width: usize, paint: TablePaint) -> String {
    let lines = wrap(text, width, "").into_iter().map(|line| format!("{}\n", paint.bold(&line)));
    format!("\n{}", lines.collect::<String>())
}

/// The first table that fits, or else the last.
fn fitting<const N: usize>(tables: [TableLayout; N], width: usize) -> TableLayout {
    let mut last = None;
    for table in tables {
        if table.width() <= width {
            return table;
        }
        last = Some(table);
    }
    last.expect("there is one at least")
}

/// How sure durations are, in words.
pub(crate) fn words_on_repetitions(rows: &[&ComparisonRow]) -> String {
    let counts: Vec<usize> = rows
        .iter()
        .flat_map(|row| row.cells.iter().flatten())
        .filter_map(|result| result.job())
        .map(|job| job.repetitions)
        .collect();
    let (low, high) = (counts.iter().min().copied().unwrap_or(0), counts.iter().max().copied().unwrap_or(0));
    match (low, high) {
        (_, 0) => "No job has completed.".to_owned(),
        (_, 1) => {
            "Each job ran once, so there are no intervals: how far a second run would differ is unknown."
                .to_owned()
        }
        (1, high) => format!(
            "Of up to {high} runs each; a job that ran once has no interval: how far a second run would differ is unknown."
        ),
        (low, high) if low == high => {
            format!("Means of {low} runs each, with 95 % intervals from their spread.")
        }
        (low, high) => format!("Means of {low} to {high} runs each, with 95 % intervals from their spread."),
    }
}

/// Jobs down, storages across: the performance of each.
fn overview(comparison: &RunComparison, rows: &[&ComparisonRow]) -> TableLayout {
    let mut header = vec!["job".to_owned()];
    header.extend(comparison.storages.iter().map(|name| (*name).to_owned()));
    let mut layout = TableLayout::new(&header);
    for row in rows {
        let mut fields = vec![row.label().to_owned()];
        for (index, result) in row.cells.iter().enumerate() {
            let field = match result {
                Some(result) => match (result.job(), &result.outcome) {
                    (Some(job), _) if Some(index) == comparison.baseline_index() => {
                        quantity::duration(job.duration_s.value)
                    }
                    (Some(job), _) => job.performance.map_or(ABSENT.to_owned(), short),
                    (None, outcome) => state_of(outcome).to_owned(),
                },
                None => ABSENT.to_owned(),
            };
            fields.push(field);
        }
        layout.table.add_row(fields);
    }
    layout.finish(&[0]);
    layout
}

/// A ratio in a narrow column: its interval, `1.19–1.28x`, `none seen` where that holds 1, `1.24x?` where there is
/// none.
fn short(ratio: EstimateRatio) -> String {
    match ratio.difference() {
        RatioDifference::NoneSeen => "none seen".to_owned(),
        RatioDifference::Unknown => format!("{}?", quantity::ratio(ratio.value)),
        RatioDifference::More | RatioDifference::Less => match ratio.interval.map(quantity::times) {
            Some([low, high]) if low != high => format!("{low}–{high}x"),
            _ => quantity::ratio(ratio.value),
        },
    }
}

/// `12 min 4 s ±3 %`
pub(crate) fn duration_field(estimate: &IntervalEstimate) -> String {
    match estimate.relative_half_width() {
        Some(share) => format!("{} ±{}", quantity::duration(estimate.value), quantity::percent(share)),
        None => quantity::duration(estimate.value),
    }
}

fn durations(comparison: &RunComparison, rows: &[&ComparisonRow], detail: TableDetail) -> TableLayout {
    let phases = crate::cell::jobs::phases(
        rows.iter().flat_map(|row| row.cells.iter().flatten()).filter_map(|result| result.job()),
    );
    let mut header: Vec<String> = ["job", "storage", "duration", "performance"].map(str::to_owned).to_vec();
    if detail != TableDetail::Narrow {
        header.extend(phases.iter().map(|name| (*name).to_owned()));
        header.push("shuffled".to_owned());
    }
    header.push("verdict".to_owned());
    let mut layout = TableLayout::new(&header);
    let mut line = 0;
    for row in rows {
        let mut name = row.label().to_owned();
        for result in row.cells.iter().flatten() {
            // Only a job's first line has its name.
            let mut fields = vec![std::mem::take(&mut name), result.cell.storage.clone()];
            match result.job() {
                Some(job) => {
                    fields.push(duration_field(&job.duration_s));
                    let is_baseline = result.cell.storage == comparison.baseline;
                    let ratio = performance_field(job, is_baseline, detail);
                    if job.performance.is_some_and(|ratio| ratio.difference() == RatioDifference::NoneSeen) {
                        layout.paints.push((line, ratio.clone(), CellStyle::Dim));
                    }
                    fields.push(ratio);
                    // Phases are the first to go where the terminal is narrow.
                    if detail != TableDetail::Narrow {
                        fields.extend(phases.iter().map(|name| {
                            job.phases_s
                                .get(*name)
                                .map_or(ABSENT.to_owned(), |one| quantity::duration(one.value))
                        }));
                        fields.push(quantity::bytes(job.shuffled_bytes));
                    }
                    let mark = certificate_mark(result);
                    if result.is_doubtful() || result.can_turn {
                        layout.paints.push((line, mark.clone(), CellStyle::Alarm));
                    }
                    fields.push(mark);
                }
                None => {
                    let state = state_of(&result.outcome);
                    fields.push(state.to_owned());
                    layout.paints.push((line, state.to_owned(), CellStyle::Dim));
                    fields.resize(header.len(), ABSENT.to_owned());
                }
            }
            layout.table.add_row(fields);
            line += 1;
        }
    }
    layout.finish(&[0, 1, header.len() - 1]);
    layout
}

fn performance_field(job: &JobFigures, is_baseline: bool, detail: TableDetail) -> String {
    match (&job.performance, is_baseline) {
        (_, true) => "baseline".to_owned(),
        (None, _) => ABSENT.to_owned(),
        (Some(ratio), _) => match (ratio.difference(), ratio.interval) {
            (RatioDifference::NoneSeen, _) if detail == TableDetail::Narrow => "none seen".to_owned(),
            (_, Some(interval)) if detail == TableDetail::Everything => {
                format!("{} ({})", ratio.verdict(), quantity::ratio_interval(interval))
            }
            (RatioDifference::Unknown, _) => quantity::ratio(ratio.value),
            _ => ratio.verdict(),
        },
    }
}

/// The requests to each kind of device over all jobs of a storage: their sizes, and rates.
fn devices(
    comparison: &RunComparison,
    rows: &[&ComparisonRow],
    suffix: &str,
    width: usize,
    paint: TablePaint,
) -> String {
    let header = ["storage", "devices", "a read", "a write", "read", "written", "busy"].map(str::to_owned);
    let mut layout = TableLayout::new(&header);
    for (storage, name) in comparison.storages.iter().enumerate() {
        let results = rows.iter().filter_map(|row| row.cells[storage].as_ref());
        let mut name = (*name).to_owned();
        let records: Vec<_> = results.flat_map(CellResult::completed).collect();
        for (kind, one) in activity::group_by_kind(&records) {
            let bytes = |value: Option<f64>| value.map_or(ABSENT.to_owned(), quantity::memory);
            layout.table.add_row(vec![
                std::mem::take(&mut name),
                counted(one.devices, kind),
                bytes(one.read_bytes),
                bytes(one.write_bytes),
                format!("{}/s", quantity::bytes(one.read_bytes_per_s)),
                format!("{}/s", quantity::bytes(one.write_bytes_per_s)),
                quantity::percent(one.busy),
            ]);
        }
    }
    if layout.table.row_count() == 0 {
        return String::new();
    }
    layout.finish(&[0, 1]);
    let title = format!("Devices{suffix}: bytes of a request, and bytes moved, over all of a storage's jobs");
    heading(&title, width, paint) + &layout.render(width, paint)
}

/// `6 x hdd-7200-sata`
pub(crate) fn counted(count: usize, kind: &str) -> String {
    if count == 1 { kind.to_owned() } else { format!("{count} x {kind}") }
}

/// Where files went, over all jobs of a storage.
fn directory_text(
    comparison: &RunComparison,
    rows: &[&ComparisonRow],
    suffix: &str,
    width: usize,
    paint: TablePaint,
) -> String {
    let per_storage: Vec<OfStorage> = over_all_jobs(comparison, rows);
    if per_storage.is_empty() {
        return String::new();
    }
    let header =
        ["storage", "for", "directories", "files in each", "of files", "of bytes", "written into each"];
    let mut layout = TableLayout::new(&header.map(str::to_owned));
    let mut words = Vec::new();
    for (storage, all) in &per_storage {
        let mut name = comparison.storages[*storage].to_owned();
        let groups = directories::groups(all);
        for group in &groups {
            // Directories of one role may lie on devices of several kinds.
            let kind = group.kind.as_deref().unwrap_or("several devices");
            layout.table.add_row(vec![
                // Only a storage's first line has its name.
                std::mem::take(&mut name),
                group.role.clone(),
                format!("{} on {}", group.directories, counted(group.devices, kind)),
                range(group.files_low, group.files_high),
                quantity::percent(group.share_of_files),
                quantity::percent(group.share_of_bytes),
                format!("{}/s", quantity::bytes(group.write_bytes_per_s)),
            ]);
        }
        for role in roles(&groups) {
            if let Some(text) = directories::describe(&groups, &role) {
                words.push(format!("{}, {role}: {text}", comparison.storages[*storage]));
            }
        }
    }
    layout.finish(&[0, 1, 2]);
    let title = format!("Directories{suffix}: where jobs wrote, over all of a storage's jobs");
    let mut out = heading(&title, width, paint) + &layout.render(width, paint);
    for line in words.iter().flat_map(|text| wrap(text, width - 2, "  ")) {
        out += &format!("  {}\n", paint.dim(&line));
    }
    out
}

/// A storage, by its place in the comparison, with its directories.
pub(crate) type OfStorage = (usize, Vec<DirectoryFigures>);

/// The directories of each storage that has some on record, with what all of its jobs wrote there.
pub(crate) fn over_all_jobs(comparison: &RunComparison, rows: &[&ComparisonRow]) -> Vec<OfStorage> {
    (0..comparison.storages.len())
        .filter_map(|storage| {
            let jobs: Vec<(&[DirectoryFigures], f64)> = rows
                .iter()
                .filter_map(|row| row.job(storage))
                .map(|job| (job.directories.as_slice(), job.duration_s.value))
                .collect();
            let all = directories::added(&jobs);
            (!all.is_empty()).then_some((storage, all))
        })
        .collect()
}

pub(crate) fn roles(groups: &[directories::DirectoryGroup]) -> Vec<String> {
    let mut roles: Vec<String> = groups.iter().map(|group| group.role.clone()).collect();
    roles.dedup();
    roles
}

/// `16–18`, or `17`.
pub(crate) fn range(low: f64, high: f64) -> String {
    let (low, high) = (quantity::number(low.round(), 1), quantity::number(high.round(), 1));
    if low == high { low } else { format!("{low}–{high}") }
}
