//! The background load.

use super::{TableLayout, TablePaint, wrap};
use crate::comparison::RunComparison;
use crate::comparison::background_load::BackgroundLoad;
use crate::quantity;

/// A table; empty where nothing went on.
pub(super) fn text(comparison: &RunComparison, width: usize, paint: TablePaint) -> String {
    let rows = BackgroundLoad::group_by_row(comparison);
    if rows.is_empty() {
        return String::new();
    }
    let header = ["workload", "storage", "beside", "asked for", "ops/s", "mean", "p99", "errors"];
    let mut layout = TableLayout::new(&header.map(str::to_owned));
    for (row, found) in &rows {
        let mut name = match comparison.systems.len() {
            0 | 1 => row.label().to_owned(),
            _ => format!("{}, {}", comparison.system_title(row.system), row.label()),
        };
        for (storage, one) in found {
            layout.table.add_row(vec![
                std::mem::take(&mut name),
                comparison.storages[*storage].to_owned(),
                describe(one),
                asked(one),
                answered(one),
                quantity::latency(one.mean_us),
                quantity::latency(one.p99_us),
                quantity::number(one.errors as f64, 3),
            ]);
        }
    }
    layout.finish(&[0, 1, 2]);
    let mut out = String::from("\n");
    for line in wrap("What went on beside, which is in none of the figures above", width, "") {
        out += &format!("{}\n", paint.bold(&line));
    }
    out + &layout.render(width, paint)
}

/// `update100, 1 thread`
pub(crate) fn describe(one: &BackgroundLoad) -> String {
    format!("{}, {}", one.mix, quantity::plural(one.threads as usize, "thread"))
}

pub(crate) fn asked(one: &BackgroundLoad) -> String {
    one.rate_per_s.map_or_else(|| "all it answers".to_owned(), quantity::rate)
}

/// With a mark where that is less than was asked for.
pub(crate) fn answered(one: &BackgroundLoad) -> String {
    let mark = if one.kept_its_rate() { "" } else { " ⚠" };
    format!("{}{mark}", quantity::rate(one.throughput_per_s))
}
