//! The effect of compactions on operations.

use super::{TableLayout, TablePaint, wrap};
use crate::comparison::RunComparison;
use crate::comparison::background::CompactionComparison;
use crate::quantity::{self, ABSENT};
use crate::statistics::ratio::{EstimateRatio, RatioDifference};

/// A table of the two windows; empty where no system tells of its compactions.
pub(super) fn text(comparison: &RunComparison, width: usize, paint: TablePaint) -> String {
    let header = ["workload", "storage", "of the time", "without", "with", "slowdown"];
    let mut layout = TableLayout::new(&header.map(str::to_owned));
    let (rows, none_ran) = CompactionComparison::group_by_row(comparison);
    for (row, found) in &rows {
        let mut name = match comparison.systems.len() {
            0 | 1 => row.label().to_owned(),
            _ => format!("{}, {}", comparison.system_title(row.system), row.label()),
        };
        for (storage, one) in found {
            let mean = |window: Option<crate::comparison::background::CompactionWindow>| {
                window.map_or(ABSENT.to_owned(), |window| quantity::latency(window.mean_us.value))
            };
            layout.table.add_row(vec![
                // Only a row's first line has its name.
                std::mem::take(&mut name),
                comparison.storages[*storage].to_owned(),
                quantity::percent(one.share),
                mean(one.without),
                mean(one.during),
                describe(one),
            ]);
        }
    }
    if rows.is_empty() && none_ran.is_empty() {
        return String::new();
    }
    layout.finish(&[0, 1]);
    let mut out = String::from("\n");
    let title = "Mean latency while compactions ran, and while none did";
    for line in wrap(title, width, "") {
        out += &format!("{}\n", paint.bold(&line));
    }
    if !rows.is_empty() {
        out += &layout.render(width, paint);
    }
    if !none_ran.is_empty() {
        for line in wrap(&words_on_none(&none_ran), width - 2, "") {
            out += &format!("  {}\n", paint.dim(&line));
        }
    }
    out
}

/// `None ran under c, 64 threads.`
pub(crate) fn words_on_none(rows: &[&str]) -> String {
    // Names have commas themselves.
    format!("None ran under {}.", rows.join("; "))
}

/// The effect of a compaction on the mean latency: `1.24x (1.20–1.28)`, `none ran`, `no difference seen`.
pub(crate) fn describe(one: &CompactionComparison) -> String {
    match (&one.during, &one.without, one.slowdown) {
        (None, _, _) => "none ran".to_owned(),
        (Some(_), None, _) => "ran all the time".to_owned(),
        (_, _, None) => ABSENT.to_owned(),
        (_, _, Some(ratio)) => ratio_in_words(&ratio),
    }
}

fn ratio_in_words(ratio: &EstimateRatio) -> String {
    match (ratio.difference(), ratio.interval) {
        (RatioDifference::Unknown, _) => format!("{}, certainty unknown", quantity::ratio(ratio.value)),
        (_, Some(interval)) => format!("{} ({})", ratio.verdict(), quantity::ratio_interval(interval)),
        _ => ratio.verdict(),
    }
}
