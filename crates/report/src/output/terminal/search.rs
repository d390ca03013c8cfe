//! Rates that were looked for, with what bounds them.

use super::{TableLayout, TablePaint, wrap};
use crate::comparison::RunComparison;
use crate::comparison::search;
use crate::quantity::{self, ABSENT};

/// A table for each latency that rates were to keep to; empty where none was looked for.
pub(super) fn text(comparison: &RunComparison, width: usize, paint: TablePaint) -> String {
    let rows = search::rows(comparison);
    let mut out = String::new();
    let mut bounds: Vec<&str> = Vec::new();
    for bound in rows.iter().filter_map(|row| row.cell.rate_within()) {
        if !bounds.contains(&bound) {
            bounds.push(bound);
        }
    }
    for bound in bounds {
        let several = rows.iter().filter(|row| row.cell.rate_within() == Some(bound)).count() > 1;
        let header = ["workload", "storage", "repetition", "holds", "fails", "steps", "confirmed"];
        // Of a single workload a column of its name would say nothing.
        let header = if several { &header[..] } else { &header[1..] };
        let mut layout = TableLayout::new(&header.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>());
        for row in rows.iter().filter(|row| row.cell.rate_within() == Some(bound)) {
            let mut name = match comparison.systems.len() {
                0 | 1 => search::label(row),
                _ => format!("{}, {}", comparison.system_title(row.system), search::label(row)),
            };
            for result in row.cells.iter().flatten() {
                let mut storage = result.cell.storage.clone();
                for (repetition, record) in search::list_searches(result) {
                    let per_s = |rate: f64| format!("{}/s", quantity::rate(rate));
                    let fields = [
                        std::mem::take(&mut name),
                        std::mem::take(&mut storage),
                        repetition.to_string(),
                        record.holds_per_s.map_or("none".to_owned(), per_s),
                        record.fails_per_s.map_or(ABSENT.to_owned(), per_s),
                        record.steps.len().to_string(),
                        match record.holds_per_s {
                            Some(_) => format!("{} of {}", record.confirmed, record.confirmations),
                            None => ABSENT.to_owned(),
                        },
                    ];
                    layout.table.add_row(if several { fields.to_vec() } else { fields[1..].to_vec() });
                }
            }
        }
        if layout.table.row_count() == 0 {
            continue;
        }
        layout.finish(if several { &[0, 1] } else { &[0] });
        out.push('\n');
        for line in wrap(&format!("Highest rates with {bound}"), width, "") {
            out += &format!("{}\n", paint.bold(&line));
        }
        out += &layout.render(width, paint);
    }
    out
}
