//! Measured cells: their parameters, their measurements, and the demand of their operations.

mod job;

use std::collections::BTreeMap;
use std::sync::OnceLock;

use underlay_record::{LatencySummary, RunRecord, soundness};
use underlay_storage::stack::VolumeSpec;

use crate::demand::{BackgroundDemand, MixDemand, OperationClass};
use crate::layers::{self, FanOut, VolumeDemand};
use crate::outcome::SimulationOutcome;
use crate::refusal::PredictionRefusal;
use crate::simulation::{self, OperationArrivals, SimulationScenario};

pub use job::{DeviceJob, PAST_MEMORY};

/// Everything that an answer depends on. Sizes are those on the measuring machine, after `scale.data`; times are
/// modelled times.
#[derive(Clone, Debug, PartialEq)]
pub struct CellPoint {
    /// Its readable name: `rocksdb/nvme/ycsb-a-uniform-20t`.
    pub id: String,
    /// The system's own name.
    pub system: String,
    /// As in the study, with everything else that changes an operation.
    pub settings: BTreeMap<String, String>,
    pub nodes: u32,
    pub servers: u32,
    pub mix: String,
    pub distribution: String,
    pub threads: u32,
    pub arrivals: OperationArrivals,
    pub records: f64,
    pub record_bytes: f64,
    /// For all servers together, as are the cores.
    pub memory_bytes: f64,
    pub cores: Option<u32>,
    /// The name of its storage configuration in the study.
    pub storage: String,
    /// The volumes of all servers.
    pub volumes: Vec<VolumeSpec>,
    /// Devices of the same name are one device, which the volumes share: those of a pool.
    pub shares_devices: bool,
    /// Operations that fill a cache device before anything is measured; as many as needed when absent.
    pub filled_by: Option<f64>,
    /// The unmodelled part, for a storage configuration that can't be simulated.
    pub not_modelled: Option<String>,
    /// A sentence about what an answer about it leaves out.
    pub assumed: Option<String>,
}

impl CellPoint {
    pub fn data_bytes(&self) -> f64 {
        self.records * self.record_bytes
    }

    /// Bytes of data per byte of memory.
    pub fn data_to_memory(&self) -> f64 {
        self.data_bytes() / self.memory_bytes.max(1.0)
    }

    /// The data's space on the devices: about a fifth more than its records.
    pub(crate) fn footprint_bytes(&self) -> u64 {
        (SPACE_AMPLIFICATION * self.data_bytes()).clamp(1.0, 1e18) as u64
    }

    /// A cache device answers the share `cached` of the reads that clients wait for.
    pub(crate) fn scenario<'a>(
        &'a self,
        demand: &'a MixDemand,
        cores_at_once: Option<u32>,
        cached: f64,
    ) -> SimulationScenario<'a> {
        SimulationScenario {
            demand,
            volumes: &self.volumes,
            shares_devices: self.shares_devices,
            cached,
            footprint_bytes: self.footprint_bytes(),
            device_speed: 1.0,
            cores: self.cores,
            cores_at_once,
            threads: self.threads,
            arrivals: self.arrivals,
            operations: OPERATIONS,
            seed: SEED,
        }
    }
}

const SPACE_AMPLIFICATION: f64 = 1.2;
const SEED: u64 = 24;
/// With this many measured operations, a p99 is known within some ten percent.
pub const OPERATIONS: usize = 6_000;

/// A value over the repetitions of a cell.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CellMetric {
    /// The geometric mean.
    pub value: f64,
    /// The standard deviation of the logarithm of one repetition; absent with a single repetition.
    pub spread: Option<f64>,
}

impl CellMetric {
    fn from_values(values: &[f64]) -> CellMetric {
        let logs: Vec<f64> = values.iter().map(|value| value.max(1e-9).ln()).collect();
        let count = logs.len() as f64;
        let mean = logs.iter().sum::<f64>() / count;
        let spread = (logs.len() > 1)
            .then(|| (logs.iter().map(|log| (log - mean).powi(2)).sum::<f64>() / (count - 1.0)).sqrt());
        CellMetric { value: mean.exp(), spread }
    }
}

/// A cell's measurements.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CellMetrics {
    pub throughput_per_s: CellMetric,
    pub mean_us: CellMetric,
    pub p50_us: CellMetric,
    pub p99_us: CellMetric,
}

/// A measured cell, with all its repetitions together.
#[derive(Debug)]
pub struct MeasuredCell {
    pub point: CellPoint,
    pub repetitions: usize,
    /// Measured operations of all repetitions.
    pub operations: f64,
    pub figures: CellMetrics,
    /// For the busiest device, 0 to 1.
    pub device_busy: f64,
    pub demand: MixDemand,
    /// Device reads by all operations together, including background work.
    pub all_reads: f64,
    /// How many of the modelled cores ran at a time during the measurement: the number of host CPUs that it was due.
    pub cores_at_once: Option<u32>,
    /// The share of the reads that its clients waited for which a cache device answered, 0 to 1.
    pub cached: f64,
    /// The cell simulated with its own demand; computed once, since it is often needed.
    own: OnceLock<Result<SimulationOutcome, PredictionRefusal>>,
}

/// The relevant part of a repetition: each value per operation.
#[derive(Clone, Debug)]
struct RawRepetition {
    operations: f64,
    throughput_per_s: f64,
    latency: LatencySummary,
    /// (name, share, median latency in microseconds)
    classes: Vec<(String, f64, f64)>,
    cpu_us: f64,
    reads: f64,
    /// Reads that a cache device answered alone.
    cached_reads: f64,
    read_bytes: f64,
    writes: f64,
    write_bytes: f64,
    flushes: f64,
    compaction_read_bytes: Option<f64>,
    busy: f64,
    due_cpus: Option<f64>,
}

impl MeasuredCell {
    /// A cell from the records of its repetitions. Failed ones are left out, and so are those that were disturbed by
    /// hand if others were not.
    ///
    /// # Errors
    /// When none of them has metrics, they are not [sound](soundness) enough to use, or one has impossible metrics.
    pub fn new(
        point: CellPoint,
        records: &[&RunRecord],
        block_bytes: Option<f64>,
    ) -> Result<MeasuredCell, PredictionRefusal> {
        let fronts = layers::cache_devices(&point.volumes);
        // Behind a cache, these are already the requests to the volumes.
        let fan = if fronts.is_empty() {
            FanOut::from_volumes(&point.volumes)
        } else {
            FanOut { copies: 1.0, flushed: 1.0 }
        };
        let raws: Vec<RawRepetition> = sound(records)?
            .into_iter()
            .map(|record| RawRepetition::from_record(record, &fronts).map(|raw| raw.seen_by_devices(fan)))
            .collect::<Result<_, _>>()?;
        if raws.is_empty() {
            return Err(PredictionRefusal::Record {
                what: format!("{} has no repetition that was measured", point.id),
            });
        }
        let figure = |value_of: fn(&RawRepetition) -> f64| {
            CellMetric::from_values(&raws.iter().map(value_of).collect::<Vec<_>>())
        };
        let mean =
            |value_of: fn(&RawRepetition) -> f64| raws.iter().map(value_of).sum::<f64>() / raws.len() as f64;
        let demand = demand(&raws, &point, block_bytes);
        let waited = demand.reads();
        let answered = mean(|raw| raw.cached_reads);
        Ok(MeasuredCell {
            cached: if waited > 0.0 { (answered / waited).clamp(0.0, 1.0) } else { 0.0 },
            repetitions: raws.len(),
            operations: raws.iter().map(|raw| raw.operations).sum(),
            figures: CellMetrics {
                throughput_per_s: figure(|raw| raw.throughput_per_s),
                mean_us: figure(|raw| raw.latency.mean),
                p50_us: figure(|raw| raw.latency.p50),
                p99_us: figure(|raw| raw.latency.p99),
            },
            device_busy: mean(|raw| raw.busy),
            all_reads: mean(|raw| raw.reads),
            cores_at_once: raws[0].due_cpus.map(|cpus| {
                // Slow motion may be slightly rounded.
                ((cpus - 0.01).ceil().clamp(1.0, 4096.0) as u32).saturating_mul(point.servers.max(1))
            }),
            demand,
            point,
            own: OnceLock::new(),
        })
    }

    /// The cell simulated with its own demand on its own storage.
    ///
    /// # Errors
    /// When its storage configuration can't be simulated.
    pub fn simulated(&self) -> Result<&SimulationOutcome, PredictionRefusal> {
        let simulate = || match &self.point.not_modelled {
            Some(layer) => Err(PredictionRefusal::Layer { what: layer.clone() }),
            None => {
                let scenario = self.point.scenario(&self.demand, self.cores_at_once, self.cached);
                simulation::simulate(scenario)
            }
        };
        self.own.get_or_init(simulate).as_ref().map_err(Clone::clone)
    }
}

/// The usable repetitions of a cell.
fn sound<'a>(records: &[&'a RunRecord]) -> Result<Vec<&'a RunRecord>, PredictionRefusal> {
    soundness::select_sound(records).map_err(|unsound| PredictionRefusal::Unsound { unsound })
}

/// The mean read length of cells that only read: the system's read size. `None` if there is no such cell.
pub fn read_bytes_of(records: &[&RunRecord]) -> Option<f64> {
    let lengths: Vec<f64> = records
        .iter()
        // A cache divides them.
        .filter(|record| record.layers.is_empty())
        .filter_map(|record| RawRepetition::from_record(record, &[]).ok())
        .filter(|raw| raw.reads > 0.05 && raw.classes.iter().all(|(name, ..)| !writes(name)))
        .map(|raw| raw.read_bytes / raw.reads)
        .collect();
    (!lengths.is_empty()).then(|| lengths.iter().sum::<f64>() / lengths.len() as f64)
}

fn writes(operation: &str) -> bool {
    matches!(operation, "update" | "insert" | "delete" | "read-modify-write")
}

fn reads(operation: &str) -> bool {
    matches!(operation, "read" | "scan" | "read-modify-write")
}

impl RawRepetition {
    /// The requests to the volumes, if the values are those of devices.
    fn seen_by_devices(self, fan: FanOut) -> RawRepetition {
        RawRepetition {
            writes: self.writes / fan.copies,
            write_bytes: self.write_bytes / fan.copies,
            flushes: self.flushes / fan.flushed,
            ..self
        }
    }

    /// `fronts` are the names of cache devices: their requests are the cache's own, and not the system's.
    fn from_record(record: &RunRecord, fronts: &[&str]) -> Result<RawRepetition, PredictionRefusal> {
        let refused =
            |problem: String| PredictionRefusal::Record { what: format!("{}: {problem}", record.cell.id) };
        let Some(measured) = &record.measured else {
            return Err(refused("it has no measured operations".to_owned()));
        };
        let operations: u64 =
            measured.by_operation.values().fold(0, |sum, stats| sum.saturating_add(stats.count));
        if operations == 0 || measured.operations == 0 {
            return Err(refused("it has no measured operations".to_owned()));
        }
        let each = |count: u64| count as f64 / measured.operations as f64;
        // A cache makes its own requests, so the devices' counts are not the system's requests.
        let asked = match fronts.is_empty() {
            true => VolumeDemand::from_devices(record),
            false => VolumeDemand::from_volumes(record, fronts)?,
        };
        let cpu_us = record.cpu.as_ref().map_or(0.0, |cpu| {
            cpu.used_at_reference_cpus() * measured.wall_s * 1e6 / measured.operations as f64
        });
        let busy = record
            .devices
            .iter()
            .map(|device| device.totals.busy_us / 1e6 / device.duration_s.max(1e-9))
            .fold(0.0, f64::max);
        let raw = RawRepetition {
            operations: measured.operations as f64,
            throughput_per_s: measured.throughput_per_s,
            latency: measured.latency.us,
            classes: measured
                .by_operation
                .iter()
                .filter(|(_, stats)| stats.count > 0)
                .map(|(name, stats)| {
                    (name.clone(), stats.count as f64 / operations as f64, stats.latency.us.p50)
                })
                .collect(),
            cpu_us,
            reads: each(asked.reads),
            cached_reads: each(asked.cached_reads),
            read_bytes: each(asked.read_bytes),
            writes: each(asked.writes),
            write_bytes: each(asked.write_bytes),
            flushes: each(asked.flushes),
            compaction_read_bytes: record
                .system_figures
                .get("compaction_read_bytes")
                .map(|bytes| bytes / measured.operations as f64),
            busy,
            due_cpus: record.cpu.as_ref().map(|cpu| cpu.due_cpus),
        };
        // A record is a file that anyone may have written. NaN is in no range either.
        let bounded = |value: f64, most: f64| (0.0..=most).contains(&value);
        let sound = bounded(raw.throughput_per_s, 1e12)
            && raw.throughput_per_s > 0.0
            && [raw.latency.mean, raw.latency.p50, raw.latency.p99].iter().all(|&us| bounded(us, 3.6e9))
            && raw.latency.mean > 0.0
            && bounded(raw.cpu_us, 1e9)
            && bounded(raw.reads, 1e4)
            && bounded(raw.cached_reads, 1e4)
            && bounded(raw.writes, 1e4)
            && bounded(raw.flushes, 1e4)
            && bounded(raw.read_bytes, 1e11)
            && bounded(raw.write_bytes, 1e11)
            && raw.compaction_read_bytes.is_none_or(|bytes| bounded(bytes, 1e12))
            && raw.due_cpus.is_none_or(|cpus| bounded(cpus, 1e6))
            && bounded(raw.busy, 1e3);
        if sound { Ok(raw) } else { Err(refused("it has figures that no run has".to_owned())) }
    }
}

/// Above this number of flushes per write, times the writes in flight, writes are assumed to wait for them.
const COMMITS: f64 = 0.4;
/// The assumed size of background requests about which nothing else is known.
const BACKGROUND_READ_BYTES: f64 = 131_072.0;

fn demand(raws: &[RawRepetition], point: &CellPoint, block_bytes: Option<f64>) -> MixDemand {
    let mean =
        |value_of: fn(&RawRepetition) -> f64| raws.iter().map(value_of).sum::<f64>() / raws.len() as f64;
    let mut classes: BTreeMap<&str, (f64, f64)> = BTreeMap::new();
    for raw in raws {
        for (name, share, p50_us) in &raw.classes {
            let class = classes.entry(name).or_default();
            class.0 += share / raws.len() as f64;
            class.1 += p50_us / raws.len() as f64;
        }
    }
    let whole: f64 = classes.values().map(|class| class.0).sum();
    let writing: f64 = classes.iter().filter(|(name, _)| writes(name)).map(|(_, class)| class.0).sum();
    let (all_reads, read_bytes) = (mean(|raw| raw.reads), mean(|raw| raw.read_bytes));
    let (all_writes, write_bytes) = (mean(|raw| raw.writes), mean(|raw| raw.write_bytes));
    let flushes = mean(|raw| raw.flushes);
    let each_bytes = if all_reads > 0.0 { read_bytes / all_reads } else { 4096.0 };
    let by_system = mean(|raw| raw.compaction_read_bytes.unwrap_or(f64::INFINITY));
    // Longer reads than the clients' come from background work, unless there are no writes.
    let (reads_waited_for, background_reads, waited_bytes) = match writing > 0.0 {
        false => (all_reads, 0.0, each_bytes),
        true => {
            let short = block_bytes.unwrap_or(5_000.0).min(each_bytes).max(512.0);
            let long = BACKGROUND_READ_BYTES.max(1.5 * each_bytes);
            let background = ((read_bytes - all_reads * short) / (long - short)).clamp(0.0, all_reads);
            let background = background.min(by_system / long);
            (all_reads - background, background, short)
        }
    };
    let reading: f64 = classes.iter().filter(|(name, _)| reads(name)).map(|(_, class)| class.0).sum();
    // A group commit serves at most the writes in progress at that time: rate times latency (Little's law). The median,
    // since stalls make few writes very long.
    let under_way: f64 = classes
        .iter()
        .filter(|(name, _)| writes(name))
        .map(|(_, (share, p50_us))| share * p50_us / 1e6 * mean(|raw| raw.throughput_per_s))
        .sum();
    let most = f64::from(point.threads).max(1.0);
    let commits = writing > 0.0 && flushes / writing > COMMITS / under_way.clamp(1.0, most);
    let commit_bytes = commits.then_some(4096.0);
    let log_bytes = if commits { flushes * 4096.0 } else { 0.0 };
    let left_bytes = (write_bytes - log_bytes).max(0.0);
    let left_writes = if commits { (all_writes - flushes).max(1e-6) } else { all_writes };
    let per_write = |amount: f64| if writing > 0.0 { amount / writing } else { 0.0 };
    let background_bytes = background_reads * BACKGROUND_READ_BYTES.max(1.5 * each_bytes);
    MixDemand {
        classes: classes
            .iter()
            .map(|(name, (share, _))| {
                let is_reading = reading == 0.0 || reads(name);
                OperationClass {
                    name: (*name).to_owned(),
                    share: share / whole,
                    cpu_us: mean(|raw| raw.cpu_us),
                    reads: match is_reading {
                        true => reads_waited_for / if reading > 0.0 { reading } else { 1.0 },
                        false => 0.0,
                    },
                    read_bytes: waited_bytes,
                    is_sequential: false,
                    writes: writes(name),
                    commits: commits && writes(name),
                }
            })
            .collect(),
        background: BackgroundDemand {
            read_bytes: per_write(background_bytes),
            read_request_bytes: BACKGROUND_READ_BYTES.max(1.5 * each_bytes),
            write_bytes: per_write(left_bytes),
            write_request_bytes: if left_writes > 0.0 { left_bytes / left_writes } else { 65_536.0 },
            flushes: if commits { 0.0 } else { per_write(flushes) },
        },
        commit_bytes,
    }
}
