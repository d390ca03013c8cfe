//! Volumes over a network: what the way to them took, how they compare with each other, and what they held.

use std::collections::BTreeSet;

use underlay_record::{NetworkRecord, RunRecord};

use crate::comparison::{CellResult, ComparisonRow, RowMetrics, RunComparison};
use crate::statistics::operation::SHOWN;
use crate::statistics::ratio::EstimateRatio;

/// The way to the volumes of one cell, in its first completed repetition.
#[derive(Debug)]
pub(crate) struct NetworkPath<'a, 'c> {
    pub row: &'c ComparisonRow<'a>,
    /// Index of the storage in [`RunComparison::storages`].
    pub storage: usize,
    pub record: &'a NetworkRecord,
    /// The system's mean latency to that on the baseline.
    pub latency: Option<EstimateRatio>,
}

/// The way of every cell on volumes, in the order of the comparison.
pub(crate) fn ways<'a, 'c>(comparison: &'c RunComparison<'a>) -> Vec<NetworkPath<'a, 'c>> {
    let baseline = comparison.baseline_index();
    let of_row = |row: &'c ComparisonRow<'a>| {
        row.cells.iter().enumerate().filter_map(move |(storage, result)| {
            let record = record_of(result.as_ref()?)?.network.as_ref()?;
            let mean = |index: usize| row.figures(index)?.mean_us;
            let latency = baseline
                .filter(|baseline| *baseline != storage)
                .and_then(|baseline| EstimateRatio::new(&mean(storage)?, &mean(baseline)?));
            Some(NetworkPath { row, storage, record, latency })
        })
    };
    comparison.rows.iter().flat_map(of_row).collect()
}

/// Whose initiators connected, in words: `Underlay's own initiator`.
pub(crate) fn initiators(ways: &[NetworkPath]) -> String {
    let all: BTreeSet<&str> = ways.iter().map(|way| way.record.initiator.as_str()).collect();
    let in_words = |name: &str| match name {
        "own initiator" => "Underlay's own initiator".to_owned(),
        other => format!("the {other}"),
    };
    all.into_iter().map(in_words).collect::<Vec<_>>().join(" and ")
}

/// The first repetition that reached volumes over a network.
fn record_of<'a>(result: &CellResult<'a>) -> Option<&'a RunRecord> {
    result.records.iter().copied().find(|record| record.network.is_some())
}

/// One volume's figures against those of the first one under the same workload.
#[derive(Debug)]
pub(crate) struct VolumePair<'a, 'c> {
    pub row: &'c ComparisonRow<'a>,
    pub storage: usize,
    pub first: usize,
    /// By figure: `throughput`, `read mean`, `read p99.9`.
    pub ratios: Vec<(String, Option<EstimateRatio>)>,
}

/// Every volume against the first, where a study has several: what changes when only the volume does, and the network
/// does not.
pub(crate) fn pairs<'a, 'c>(comparison: &'c RunComparison<'a>) -> Vec<VolumePair<'a, 'c>> {
    let ways = ways(comparison);
    let mut storages: Vec<usize> = ways.iter().map(|way| way.storage).collect();
    storages.sort_unstable();
    let Some(&first) = storages.first() else { return Vec::new() };
    ways.iter()
        .filter(|way| way.storage != first)
        .filter_map(|way| {
            let (ours, theirs) = (way.row.figures(way.storage)?, way.row.figures(first)?);
            Some(VolumePair { row: way.row, storage: way.storage, first, ratios: ratios(ours, theirs) })
        })
        .collect()
}

fn ratios(ours: &RowMetrics, theirs: &RowMetrics) -> Vec<(String, Option<EstimateRatio>)> {
    let mut all =
        vec![("throughput".to_owned(), EstimateRatio::new(&ours.throughput_per_s, &theirs.throughput_per_s))];
    for (operation, figures) in &ours.operations {
        let Some(other) = theirs.operations.get(operation) else { continue };
        for (statistic, pick) in SHOWN {
            let ratio =
                pick(figures).zip(pick(other)).and_then(|(ours, theirs)| EstimateRatio::new(&ours, &theirs));
            all.push((format!("{operation} {statistic}"), ratio));
        }
    }
    all
}

/// The data of one storage of a study with volumes when a cell ended, on this machine and over all servers.
#[derive(Debug)]
pub(crate) struct StorageUse<'a> {
    pub storage: usize,
    pub layout: &'a str,
    /// The system's compression ratio, where it reports one.
    pub system_compression: Option<&'a str>,
    /// The records' own bytes.
    pub data_bytes: f64,
    /// The files of the system's tables, where it tells.
    pub files_bytes: Option<f64>,
    /// The bytes written to the volumes and not discarded, and their space in the pool.
    pub volumes: Option<(f64, f64)>,
}

/// Each storage's data under the last workload; nothing where no storage is a volume.
pub(crate) fn held<'a>(comparison: &RunComparison<'a>) -> Vec<StorageUse<'a>> {
    let Some(last) = ways(comparison).last().map(|way| way.row) else { return Vec::new() };
    let results = last.cells.iter().enumerate();
    results
        .filter_map(|(storage, result)| {
            let record = *result.as_ref()?.records.iter().find(|record| record.measured.is_some())?;
            let volumes: Vec<_> = record.layers.iter().filter(|layer| layer.kind == "volume").collect();
            let sum = |name: &str| volumes.iter().filter_map(|volume| volume.figures.get(name)).sum();
            Some(StorageUse {
                storage,
                layout: &record.storage.layout,
                system_compression: record.settings.get("compression").map(String::as_str),
                data_bytes: record.memory.data_bytes as f64 * f64::from(record.cell.servers.max(1)),
                files_bytes: record.system_figures.get("current_table_bytes").copied(),
                volumes: (!volumes.is_empty()).then(|| (sum("used_bytes"), sum("stored_bytes"))),
            })
        })
        .collect()
}
