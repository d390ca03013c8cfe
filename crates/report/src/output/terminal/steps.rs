//! Offered rates, step by step.

use std::collections::BTreeSet;

use super::{TableLayout, TablePaint, wrap};
use crate::comparison::RunComparison;
use crate::comparison::rates::{self, RateSeries};
use crate::quantity::{self, ABSENT};
use crate::statistics::IntervalEstimate;
use crate::statistics::operation::SHOWN;

/// A table for each series of rates; empty where nothing was offered at several.
pub(super) fn text(comparison: &RunComparison, width: usize, paint: TablePaint) -> String {
    let mut out = String::new();
    for series in rates::series(comparison) {
        let operations: BTreeSet<&str> = series
            .steps
            .iter()
            .flat_map(|row| row.cells.iter().flatten())
            .filter_map(|one| one.figures())
            .flat_map(|figures| figures.operations.keys().map(String::as_str))
            .collect();
        if operations.is_empty() {
            continue;
        }
        let operations: Vec<&str> = operations.into_iter().collect();
        // A table that is too wide is cut into one for each kind of operation.
        let whole = table(comparison, &series, &operations);
        let tables: Vec<TableLayout> = if whole.width() <= width {
            vec![whole]
        } else {
            operations.iter().map(|operation| table(comparison, &series, &[*operation])).collect()
        };
        let system = match comparison.systems.len() {
            0 | 1 => String::new(),
            _ => format!("{}, ", comparison.system_title(series.system)),
        };
        for line in wrap(&format!("Over offered rates: {system}{}", series.label), width, "") {
            out += &format!("\n{}\n", paint.bold(&line));
        }
        for layout in tables {
            out += &layout.render(width, paint);
        }
    }
    out
}

fn table(comparison: &RunComparison, series: &RateSeries, operations: &[&str]) -> TableLayout {
    let mut header: Vec<String> = ["offered", "storage", "reached"].map(str::to_owned).to_vec();
    for operation in operations {
        header.extend(SHOWN.map(|(statistic, _)| format!("{operation} {statistic}")));
    }
    let mut layout = TableLayout::new(&header);
    for row in &series.steps {
        let mut offered = rates::offered(row.cell);
        for (index, storage) in comparison.storages.iter().enumerate() {
            let Some(figures) = row.figures(index) else { continue };
            let mut fields = vec![
                std::mem::take(&mut offered),
                (*storage).to_owned(),
                quantity::rate(figures.throughput_per_s.value),
            ];
            let latency = |one: Option<IntervalEstimate>| {
                one.map_or(ABSENT.to_owned(), |one| quantity::latency(one.value))
            };
            for operation in operations {
                let one = figures.operations.get(*operation);
                fields.extend(SHOWN.map(|(_, pick)| latency(one.and_then(pick))));
            }
            layout.table.add_row(fields);
        }
    }
    layout.finish(&[0, 1]);
    layout
}
