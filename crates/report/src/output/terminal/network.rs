//! The cost of the network between servers and volumes.

use super::{TableLayout, TablePaint, wrap};
use crate::comparison::network::{self, NetworkPath, VolumePair};
use crate::comparison::{ComparisonRow, RunComparison};
use crate::quantity::{self, ABSENT};
use crate::statistics::ratio::{EstimateRatio, RatioDifference};

/// A table of the ways to volumes, and one of volumes against each other; empty where there are none.
pub(super) fn text(comparison: &RunComparison, width: usize, paint: TablePaint) -> String {
    let ways = network::ways(comparison);
    let Some(first) = ways.first() else { return String::new() };
    let heading =
        format!("What the network added: {}, by {}", first.record.transport, network::initiators(&ways));
    let mut out = heading_lines(&heading, width, paint);
    let tables =
        [NetworkColumns::All, NetworkColumns::Few].map(|columns| ways_table(comparison, &ways, columns));
    out += &widest(tables, width).render(width, paint);
    let pairs = network::pairs(comparison);
    if let Some(pair) = pairs.first() {
        let heading = format!("Volumes against {}", comparison.storages[pair.first]);
        out += &heading_lines(&heading, width, paint);
        let tables = [NetworkColumns::All, NetworkColumns::Few]
            .map(|columns| pairs_table(comparison, &pairs, columns));
        out += &widest(tables, width).render(width, paint);
    }
    out
}

/// The columns of a table: all, or those that fit a narrow terminal.
#[derive(Clone, Copy, PartialEq, Eq)]
enum NetworkColumns {
    All,
    Few,
}

/// The first table that fits, or else the last.
fn widest([all, few]: [TableLayout; 2], width: usize) -> TableLayout {
    if all.width() <= width { all } else { few }
}

fn heading_lines(heading: &str, width: usize, paint: TablePaint) -> String {
    let lines = wrap(heading, width, "").into_iter().map(|line| format!("{}\n", paint.bold(&line)));
    format!("\n{}", lines.collect::<String>())
}

fn ways_table(comparison: &RunComparison, ways: &[NetworkPath], columns: NetworkColumns) -> TableLayout {
    let mut header = vec!["workload", "storage", "request", "device", "empty", "link", "server cores"];
    if columns == NetworkColumns::All {
        header.insert(3, "request p99");
    }
    let mut layout = TableLayout::new(&header.into_iter().map(str::to_owned).collect::<Vec<_>>());
    let mut workloads = RepeatedNames::default();
    for way in ways {
        let record = way.record;
        let us = |value: Option<f64>| value.map_or(ABSENT.to_owned(), quantity::latency);
        let mut fields = vec![
            workloads.name(way.row),
            comparison.storages[way.storage].to_owned(),
            quantity::latency(record.request_mean_us),
            quantity::latency(record.device_mean_us),
            us(record.round_trip_p50_us),
            us(record.link_us),
            quantity::number(record.server_cpu_cores, 2),
        ];
        if columns == NetworkColumns::All {
            fields.insert(3, quantity::latency(record.request_p99_us));
        }
        layout.table.add_row(fields);
    }
    layout.finish(&[0, 1]);
    layout
}

fn pairs_table(comparison: &RunComparison, pairs: &[VolumePair], columns: NetworkColumns) -> TableLayout {
    let shown = |name: &str| columns == NetworkColumns::All || !name.ends_with("mean");
    let names: Vec<&String> =
        pairs[0].ratios.iter().map(|(name, _)| name).filter(|name| shown(name)).collect();
    let header = ["workload", "storage"].into_iter().chain(names.iter().map(|name| name.as_str()));
    let mut layout = TableLayout::new(&header.map(str::to_owned).collect::<Vec<_>>());
    let mut workloads = RepeatedNames::default();
    for pair in pairs {
        let mut fields = vec![workloads.name(pair.row), comparison.storages[pair.storage].to_owned()];
        for name in &names {
            let ratio = pair.ratios.iter().find(|(other, _)| other == *name).and_then(|(_, ratio)| *ratio);
            fields.push(ratio.map_or(ABSENT.to_owned(), short));
        }
        layout.table.add_row(fields);
    }
    layout.finish(&[0, 1]);
    layout
}

/// Names of workloads; equal ones in a row are written once.
#[derive(Default)]
struct RepeatedNames {
    last: String,
}

impl RepeatedNames {
    fn name(&mut self, row: &ComparisonRow) -> String {
        if self.last == row.label() {
            return String::new();
        }
        self.last = row.label().to_owned();
        self.last.clone()
    }
}

/// A ratio in a narrow column: `1.24x`, `none seen` where the interval holds 1, `1.24x?` where there is none.
fn short(ratio: EstimateRatio) -> String {
    match ratio.difference() {
        RatioDifference::NoneSeen => "none seen".to_owned(),
        RatioDifference::Unknown => format!("{}?", quantity::ratio(ratio.value)),
        RatioDifference::More | RatioDifference::Less => quantity::ratio(ratio.value),
    }
}
