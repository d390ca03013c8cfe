//! Nodes that went away.

use super::{TableLayout, TablePaint, wrap};
use crate::comparison::RunComparison;
use crate::comparison::node_events::{COLUMNS, LEGEND, figures, group_by_row, node_event_in_words};

/// A table of what happened and what clients noticed; empty where no node went.
pub(super) fn text(comparison: &RunComparison, width: usize, paint: TablePaint) -> String {
    let rows = group_by_row(comparison);
    if rows.is_empty() {
        return String::new();
    }
    let header: Vec<String> =
        ["workload", "storage", "node"].iter().chain(&COLUMNS).map(|&word| word.to_owned()).collect();
    let mut layout = TableLayout::new(&header);
    let mut read_back: Vec<String> = Vec::new();
    for (row, departures) in &rows {
        let mut name = match comparison.systems.len() {
            0 | 1 => row.label().to_owned(),
            _ => format!("{}, {}", comparison.system_title(row.system), row.label()),
        };
        for one in departures {
            let storage = comparison.storages[one.storage].to_owned();
            for record in &one.records {
                for event in &record.node_events {
                    let mut cells =
                        // Only a row's first line has its name.
                        vec![std::mem::take(&mut name), storage.clone(), node_event_in_words(event)];
                    cells.extend(figures(event));
                    layout.table.add_row(cells);
                }
                read_back
                    .extend(record.read_back.as_ref().map(|found| format!("{}: {found}.", record.cell.id)));
            }
        }
    }
    layout.finish(&[0, 1, 2]);
    let mut out = String::from("\n");
    for line in wrap("Nodes that went away", width, "") {
        out += &format!("{}\n", paint.bold(&line));
    }
    out += &layout.render(width, paint);
    for sentence in std::iter::once(LEGEND.to_owned()).chain(read_back) {
        for line in wrap(&sentence, width - 2, "") {
            out += &format!("  {}\n", paint.dim(&line));
        }
    }
    out
}
