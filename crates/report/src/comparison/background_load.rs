//! The background load: a writer of a fixed rate beside readers.

use underlay_record::{BesideMeasured, Histogram};

use crate::comparison::{CellResult, ComparisonRow, RunComparison};

/// Over all completed repetitions of a cell.
#[derive(Clone, Debug, PartialEq)]
pub struct BackgroundLoad {
    /// YCSB's, or shares of one's own: `update100`.
    pub mix: String,
    pub threads: u32,
    /// The requested rate; absent for as many as the system answers.
    pub rate_per_s: Option<f64>,
    /// The mean over repetitions.
    pub throughput_per_s: f64,
    pub errors: u64,
    /// Of its operations, from their intended start.
    pub mean_us: f64,
    pub p99_us: f64,
}

/// Answering less than this share of what was asked for is worth a word.
const KEPT: f64 = 0.98;

impl BackgroundLoad {
    /// None where nothing went on.
    pub fn from_result(result: &CellResult) -> Option<BackgroundLoad> {
        let found: Vec<&BesideMeasured> = result
            .completed()
            .filter_map(|record| record.measured.as_ref().and_then(|measured| measured.beside.as_ref()))
            .collect();
        let first = found.first()?;
        let mut latency = Histogram::default();
        for stats in found.iter().flat_map(|one| one.by_operation.values()) {
            latency.merge(&stats.latency.histogram);
        }
        Some(BackgroundLoad {
            mix: first.mix.clone(),
            threads: first.threads,
            rate_per_s: first.rate_per_s,
            throughput_per_s: found.iter().map(|one| one.throughput_per_s).sum::<f64>() / found.len() as f64,
            errors: found.iter().map(|one| one.errors).sum(),
            mean_us: latency.mean_us(),
            p99_us: latency.quantile_us(0.99),
        })
    }

    /// Whether it did what was asked for.
    pub fn kept_its_rate(&self) -> bool {
        self.rate_per_s.is_none_or(|rate| self.throughput_per_s >= KEPT * rate)
    }

    /// The rows with something beside them, by storage.
    pub fn group_by_row<'c, 'a>(
        comparison: &'c RunComparison<'a>,
    ) -> Vec<(&'c ComparisonRow<'a>, Vec<(usize, BackgroundLoad)>)> {
        let loads_of = |row: &ComparisonRow<'a>| -> Vec<(usize, BackgroundLoad)> {
            let cells = row.cells.iter().enumerate();
            cells
                .filter_map(|(storage, result)| {
                    Some((storage, BackgroundLoad::from_result(result.as_ref()?)?))
                })
                .collect()
        };
        let rows = comparison.operations().map(|row| (row, loads_of(row)));
        rows.filter(|(_, found)| !found.is_empty()).collect()
    }
}
