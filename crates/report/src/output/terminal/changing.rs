//! Rates that change while they are measured, stretch by stretch.

use super::{CellStyle, TableLayout, TablePaint, wrap};
use crate::comparison::RunComparison;
use crate::comparison::changing;
use crate::quantity::{self, ABSENT};

/// A table for each workload whose rate changes; empty where none does.
pub(super) fn text(comparison: &RunComparison, width: usize, paint: TablePaint) -> String {
    let mut out = String::new();
    for row in changing::rows(comparison) {
        let header = ["storage", "seconds", "offered", "reached", "mean", "max"].map(str::to_owned);
        let mut layout = TableLayout::new(&header);
        let mut line = 0;
        for result in row.cells.iter().flatten() {
            let mut storage = result.cell.storage.clone();
            for stretch in changing::stretches(result.cell, &result.measured()) {
                let latency = |us: Option<f64>| us.map_or(ABSENT.to_owned(), quantity::latency);
                let reached = quantity::rate(stretch.reached_per_s);
                if !stretch.is_reached() {
                    layout.paints.push((line, reached.clone(), CellStyle::Alarm));
                }
                layout.table.add_row(vec![
                    // Only a storage's first line has its name.
                    std::mem::take(&mut storage),
                    seconds(stretch.from_s, stretch.to_s),
                    stretch.offered(),
                    reached,
                    latency(stretch.mean_us),
                    latency(stretch.max_us),
                ]);
                line += 1;
            }
        }
        if layout.table.row_count() == 0 {
            continue;
        }
        layout.finish(&[0, 2]);
        let name = match comparison.systems.len() {
            0 | 1 => row.label().to_owned(),
            _ => format!("{}, {}", comparison.system_title(row.system), row.label()),
        };
        out.push('\n');
        for line in wrap(&format!("While the rate changes: {name}"), width, "") {
            out += &format!("{}\n", paint.bold(&line));
        }
        out += &layout.render(width, paint);
    }
    out
}

/// `0–7.5`
pub(crate) fn seconds(from_s: f64, to_s: f64) -> String {
    let number = |value: f64| quantity::without_last_zeros(&quantity::number(value, 3));
    format!("{}–{}", number(from_s), number(to_s))
}
