//! Each storage at a glance: what it gives against the baseline, and what it costs.

use super::{TableLayout, TablePaint, wrap};
use crate::cell::cost::StorageCost;
use crate::comparison::{RowMetrics, RunComparison, storage_records};
use crate::findings::effect::StorageEffect;
use crate::quantity::{self, ABSENT};

/// The columns of a table of them, from all to those that fit a narrow terminal.
const DETAILS: [&[CardColumn]; 4] = [
    &[CardColumn::Throughput, CardColumn::P99, CardColumn::Price],
    &[CardColumn::Throughput, CardColumn::Price],
    &[CardColumn::Price],
    &[],
];

#[derive(Clone, Copy, PartialEq, Eq)]
enum CardColumn {
    Throughput,
    P99,
    Price,
}

/// Empty where there is nothing to compare, and where the report's first table says as much.
pub(super) fn text(comparison: &RunComparison, width: usize, paint: TablePaint) -> String {
    let is_measured = comparison.cells().any(|result| result.is_measured());
    // Jobs have a table of their own for it.
    let has_jobs = comparison.jobs().next().is_some();
    if !is_measured || has_jobs || comparison.storages.len() < 2 || comparison.rows.len() < 2 {
        return String::new();
    }
    let tables = DETAILS.map(|columns| table(comparison, columns));
    let fitting = tables.iter().find(|table| table.width() <= width).or(tables.last());
    let has_operations = comparison.unthrottled().next().is_some();
    let note = match has_operations {
        true => {
            "At a glance: ratios by their 95 % intervals, figures from the lowest to the highest workload"
        }
        false => "At a glance: ratios by their 95 % intervals",
    };
    let mut out = String::from("\n");
    for line in wrap(note, width, "") {
        out += &format!("{}\n", paint.bold(&line));
    }
    out + &fitting.map_or(String::new(), |table| table.render(width, paint))
}

fn table(comparison: &RunComparison, columns: &[CardColumn]) -> TableLayout {
    let has_operations = comparison.unthrottled().next().is_some();
    let columns: Vec<CardColumn> =
        columns.iter().copied().filter(|column| has_operations || *column == CardColumn::Price).collect();
    let mut header = vec!["storage".to_owned(), format!("against {}", comparison.baseline)];
    header.extend(columns.iter().map(|column| match column {
        CardColumn::Throughput => "ops/s".to_owned(),
        CardColumn::P99 => "p99".to_owned(),
        CardColumn::Price => "price".to_owned(),
    }));
    let mut layout = TableLayout::new(&header);
    let records = storage_records(comparison);
    for (index, name) in comparison.storages.iter().enumerate() {
        let figures: Vec<&RowMetrics> =
            comparison.unthrottled().filter_map(|row| row.figures(index)).collect();
        let range = |pick: fn(&RowMetrics) -> Option<f64>, write: fn(f64) -> String| {
            let values: Vec<f64> = figures.iter().filter_map(|one| pick(one)).collect();
            quantity::range(&values, write).unwrap_or_else(|| ABSENT.to_owned())
        };
        let mut fields = vec![(*name).to_owned(), against(comparison, index)];
        fields.extend(columns.iter().map(|column| match column {
            CardColumn::Throughput => range(|one| Some(one.throughput_per_s.value), quantity::rate),
            CardColumn::P99 => range(|one| one.p99_us.map(|p99| p99.value), quantity::latency),
            CardColumn::Price => {
                let cost = records.get(name).and_then(|storage| StorageCost::from_storage(storage));
                cost.map_or("unknown".to_owned(), |cost| quantity::price(&cost.price))
            }
        }));
        layout.table.add_row(fields);
    }
    layout.finish(&[0, 1]);
    layout
}

/// `17.5–19.2x`, `8.0–9.6x in 1 of 2`, `no difference`
fn against(comparison: &RunComparison, index: usize) -> String {
    if Some(index) == comparison.baseline_index() {
        return "baseline".to_owned();
    }
    let effect = StorageEffect::from_comparison(comparison, index);
    let parts = effect.parts();
    if parts.is_empty() {
        return if effect.count() > 0 { "no difference".to_owned() } else { ABSENT.to_owned() };
    }
    let all = effect.count();
    let each = parts.iter().map(|part| {
        let mark = if part.has_interval { "" } else { "?" };
        match part.count == all {
            true => format!("{}{mark}", part.abbreviate()),
            false => format!("{}{mark} in {} of {all}", part.abbreviate(), part.count),
        }
    });
    each.collect::<Vec<_>>().join(", ")
}
