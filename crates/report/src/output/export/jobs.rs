//! Batch jobs and prices in the export.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Serialize;
use underlay_record::{CacheUse, ReferenceTable, StageRecord};

use crate::cell::jobs::JobFigures;
use crate::comparison::prices;
use crate::comparison::{RunComparison, storage_records};
use crate::statistics::{ConfidenceInterval, IntervalEstimate};

/// A batch job over its repetitions. Bytes are those of this machine and of one repetition, on average.
#[derive(Debug, Serialize, JsonSchema)]
pub struct JobExport {
    pub duration_s: f64,
    /// Null where it ran once.
    pub duration_interval_s: Option<ConfidenceInterval>,
    /// From the first task that entered a phase to the last that left it.
    pub phases_s: BTreeMap<String, f64>,
    pub tasks: BTreeMap<String, u64>,
    /// Over all repetitions.
    pub lost_tasks: u64,
    pub input_bytes: f64,
    pub output_bytes: f64,
    pub shuffled_bytes: f64,
    /// Mean bytes of a request that reached a device.
    pub io_bytes: Option<f64>,
    pub read_io_bytes: Option<f64>,
    pub write_io_bytes: Option<f64>,
    pub directories: Vec<DirectoryExport>,
    pub counters: BTreeMap<String, f64>,
    /// Where the time went in the first completed repetition; absent for a system without stages.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub stages: Vec<StageRecord>,
    /// `magic`, `file-v1`; absent where nothing was written, or nothing tells.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub committer: Option<String>,
    /// The first completed repetition's use of a cache in front of the store; absent without one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cache: Option<CacheUse>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct DirectoryExport {
    pub role: String,
    pub directory: u32,
    pub device: Option<String>,
    pub medium: Option<String>,
    pub files: f64,
    pub write_bytes: f64,
    pub write_bytes_per_s: f64,
}

pub(super) fn job(figures: &JobFigures) -> JobExport {
    let value = |one: Option<IntervalEstimate>| one.map(|one| one.value);
    JobExport {
        duration_s: figures.duration_s.value,
        duration_interval_s: figures.duration_s.interval,
        phases_s: figures.phases_s.iter().map(|(name, one)| (name.clone(), one.value)).collect(),
        tasks: figures.tasks.clone(),
        lost_tasks: figures.lost_tasks,
        input_bytes: figures.input_bytes,
        output_bytes: figures.output_bytes,
        shuffled_bytes: figures.shuffled_bytes,
        io_bytes: value(figures.io_bytes),
        read_io_bytes: value(figures.read_io_bytes),
        write_io_bytes: value(figures.write_io_bytes),
        directories: figures
            .directories
            .iter()
            .map(|one| DirectoryExport {
                role: one.role.clone(),
                directory: one.directory,
                device: one.device.as_ref().map(ToString::to_string),
                medium: one.kind.clone(),
                files: one.files,
                write_bytes: one.write_bytes,
                write_bytes_per_s: one.write_bytes_per_s,
            })
            .collect(),
        counters: figures.counters.clone(),
        stages: figures.stages.clone(),
        committer: figures.committer.clone(),
        cache: figures.cache.clone(),
    }
}

/// The prices of one time, and what they make of the run.
#[derive(Debug, Serialize, JsonSchema)]
pub struct PricesExport {
    /// `2013`, `catalogue`, `list price`.
    pub when: String,
    pub storages: Vec<StoragePriceExport>,
    pub break_even: Vec<BreakEvenExport>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct StoragePriceExport {
    pub storage: String,
    /// For the bandwidth of the devices that were measured.
    pub usd: f64,
    /// The part of `usd` that is three years' rent.
    pub rent_usd: f64,
    pub capacity_bytes: f64,
    pub usd_per_tb: Option<f64>,
    /// By workload: dollars for the baseline's performance.
    pub usd_per_performance: BTreeMap<String, f64>,
}

/// The price of one device at which performance costs as much on two storages.
#[derive(Debug, Serialize, JsonSchema)]
pub struct BreakEvenExport {
    pub storage: String,
    pub against: String,
    pub medium: String,
    pub workload: String,
    pub performance: f64,
    /// Not above zero where even a device for nothing would not pay.
    pub usd: f64,
    pub usd_interval: Option<ConfidenceInterval>,
}

pub(super) fn prices(table: Option<&ReferenceTable>, comparison: &RunComparison) -> Vec<PricesExport> {
    if comparison.jobs().next().is_none() {
        return Vec::new();
    }
    let lists = prices::lists(table, comparison);
    let pairs = prices::break_evens(&lists, table, comparison);
    let records = storage_records(comparison);
    let baseline = comparison.baseline_index();
    let storage = |list: &prices::PriceList, index: usize, name: &str| {
        // A storage with a medium that the list lacks is left out: a part of its price would look cheap.
        let price = list.price_storage(records.get(name)?)?;
        let performance = comparison.rows.iter().filter_map(|row| {
            let ratio = prices::performance(row, index, baseline?)?;
            Some((row.label().to_owned(), prices::usd_per_performance(&price, &ratio).value))
        });
        Some(StoragePriceExport {
            storage: name.to_owned(),
            usd: price.price.usd,
            rent_usd: price.price.rent_usd,
            capacity_bytes: price.capacity_bytes,
            usd_per_tb: price.usd_per_tb(),
            usd_per_performance: performance.collect(),
        })
    };
    let break_even = |position: usize| {
        let mut all = Vec::new();
        for pair in &pairs {
            for (row, ratio, lists) in &pair.rows {
                // The pairs are the same in all lists, but a list need not have a price for each.
                let Some(price) = lists.get(position).copied().flatten() else { continue };
                all.push(BreakEvenExport {
                    storage: comparison.storages[pair.storage].to_owned(),
                    against: comparison.storages[pair.against].to_owned(),
                    medium: pair.medium.to_owned(),
                    workload: comparison.rows[*row].label().to_owned(),
                    performance: ratio.value,
                    usd: price.usd,
                    usd_interval: price.interval,
                });
            }
        }
        all
    };
    let each = lists.iter().enumerate().map(|(position, list)| PricesExport {
        when: list.when.clone(),
        storages: comparison
            .storages
            .iter()
            .enumerate()
            .filter_map(|(index, name)| storage(list, index, name))
            .collect(),
        break_even: break_even(position),
    });
    each.collect()
}
