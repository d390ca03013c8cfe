//! One cell of a study's matrix, and the outcome of running it once.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::benchmark::BenchmarkRecord;
use crate::certificate::Certificate;
use crate::cpu::CpuRecord;
use crate::devices::{DeviceActivity, DeviceDescription, LayerActivity};
use crate::inputs::InputCertificate;
use crate::job::JobRecord;
use crate::machine::MachineRecord;
use crate::measured::{MeasuredWindow, SystemSample};
use crate::network::NetworkRecord;
use crate::node_event::NodeEventRecord;
use crate::path::PathRecord;
use crate::pauses::PauseRecord;
use crate::read_back::ReadBackRecord;
use crate::search::SearchRecord;
use crate::topology::TopologyRecord;
use crate::wall::WallParts;

/// A point of the matrix: one system on one storage under one workload.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Cell {
    /// Unique in a run but for the repetition: `rocksdb/hdd/ycsb-a-uniform-8t`.
    pub id: String,
    pub system: String,
    pub storage: String,
    /// As the study names it: `ycsb`.
    pub workload: String,
    /// Stand-alone servers that share data, threads and rate.
    pub servers: u32,
    /// The records' bytes, keys included, or a batch job's data, unscaled: the size in the study.
    pub data_bytes: u64,
    /// That size as the study writes it, `256 GB`; absent where it gives a number of records, and for a batch job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<String>,
    pub work: RecordedWork,
    /// Labels of tables besides the mix or the job.
    #[serde(default)]
    pub named: CellLabels,
}

/// A cell's work for its system.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum RecordedWork {
    /// Its record has `measured`.
    Requests(RequestWork),
    /// A batch job: its record has a `job`, and nothing `measured`.
    Job(JobWork),
    /// A command of the user's: its record has a `benchmark`, and nothing `measured`.
    Benchmark(BenchmarkWork),
}

/// Requests over a data set.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RequestWork {
    /// `load`, `a` to `f`, `delete`.
    pub mix: String,
    pub distribution: String,
    pub threads: u32,
    pub records: u64,
    pub rate: OfferedRate,
    /// The share of the measured time after which Underlay asked the system to write out and compact everything; absent
    /// where it only compacts by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compacts_at: Option<f64>,
}

/// A command of the user's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct BenchmarkWork {
    /// As the study names its workload.
    pub name: String,
    /// The study's command, before placeholders are filled in: runs of different commands are not compared.
    pub command: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct JobWork {
    /// `terasort`
    pub name: String,
}

/// How many operations per second are offered.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum OfferedRate {
    /// A closed loop (`rate = "max"`), whose throughput is what the storage gives.
    Unthrottled,
    Steady {
        per_s: f64,
    },
    Changing {
        /// Of the measured time.
        mean_per_s: f64,
        /// They follow one another from the begin of the measured time on. After the last part its last rate goes on.
        parts: Vec<RatePart>,
        /// How long a ramp, or each step, takes on this machine's clock, where the study says so.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        wall_s: Option<f64>,
    },
    /// The highest that keeps to a latency is looked for.
    Highest {
        /// Its limit: `p99 within 10 ms`.
        within: String,
    },
}

/// A part of an offered rate, over which it is one or changes evenly.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RatePart {
    pub from_per_s: f64,
    pub to_per_s: f64,
    /// In modelled time.
    pub length_s: f64,
}

/// The properties by which tables tell a study's cells apart: those that take more than one value in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct CellLabels {
    pub workload: bool,
    pub distribution: bool,
    pub data: bool,
    pub threads: bool,
    pub rate: bool,
}

impl Cell {
    /// Whether it is a batch job, and so has a `job` in its record and nothing `measured`.
    pub fn is_job(&self) -> bool {
        matches!(self.work, RecordedWork::Job(_))
    }

    /// Whether it is a benchmark of the user's, and so has a `benchmark` in its record and nothing `measured`.
    pub fn is_benchmark(&self) -> bool {
        matches!(self.work, RecordedWork::Benchmark(_))
    }

    /// Its requests, where it has any.
    pub fn requests(&self) -> Option<&RequestWork> {
        match &self.work {
            RecordedWork::Requests(requests) => Some(requests),
            RecordedWork::Job(_) | RecordedWork::Benchmark(_) => None,
        }
    }

    /// Its mix, its job or its benchmark.
    pub fn mix_or_job(&self) -> &str {
        match &self.work {
            RecordedWork::Requests(requests) => &requests.mix,
            RecordedWork::Job(job) => &job.name,
            RecordedWork::Benchmark(benchmark) => &benchmark.name,
        }
    }

    /// Whether every record is inserted, or deleted, once.
    pub fn visits_every_record(&self) -> bool {
        self.requests().is_some_and(|requests| matches!(requests.mix.as_str(), "load" | "delete"))
    }

    /// Whether nothing holds it back: a closed loop, whose throughput is what the storage gives.
    pub fn is_unthrottled(&self) -> bool {
        self.requests().is_some_and(|requests| requests.rate == OfferedRate::Unthrottled)
    }

    /// Offered operations per second, their mean where the rate changes; absent where nothing is, and where the rate is
    /// looked for.
    pub fn rate_per_s(&self) -> Option<f64> {
        match self.requests()?.rate {
            OfferedRate::Steady { per_s } => Some(per_s),
            OfferedRate::Changing { mean_per_s, .. } => Some(mean_per_s),
            OfferedRate::Unthrottled | OfferedRate::Highest { .. } => None,
        }
    }

    /// The parts of a rate that changes; none of any other.
    pub fn rate_parts(&self) -> &[RatePart] {
        match self.requests().map(|requests| &requests.rate) {
            Some(OfferedRate::Changing { parts, .. }) => parts,
            _ => &[],
        }
    }

    /// The limit of the search for the highest rate; absent without a search.
    pub fn rate_within(&self) -> Option<&str> {
        match &self.requests()?.rate {
            OfferedRate::Highest { within: latency_limit } => Some(latency_limit),
            _ => None,
        }
    }

    /// When a compaction is forced, as a share of the measured time.
    pub fn compacts_at(&self) -> Option<f64> {
        self.requests()?.compacts_at
    }
}

/// The factors by which this machine stands for the modelled one.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ScaleFactors {
    /// Slow motion: one modelled second takes this many here.
    pub time: f64,
    /// Sizes: one byte here stands for this many.
    pub data: f64,
}

impl ScaleFactors {
    /// Beyond these, a factor is a slip.
    pub const MAX_TIME: f64 = 1e4;
    pub const MAX_DATA: f64 = 1e6;
}

impl Default for ScaleFactors {
    fn default() -> Self {
        ScaleFactors { time: 1.0, data: 1.0 }
    }
}

/// How a cell ended. A cell that could not be measured is kept, with its reason.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "state", rename_all = "kebab-case")]
pub enum CellStatus {
    Completed,
    /// The system or the storage failed while it ran.
    Failed {
        reason: String,
    },
    /// It cannot run on this host: what is missing, and how to supply it.
    Unavailable {
        missing: String,
        remedy: String,
    },
    /// The user skipped it. `underlay run --resume` measures it.
    Skipped {
        /// An earlier failure, if there was one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        failure: Option<String>,
    },
}

/// The words for a skipped cell in all texts for people.
pub const SKIPPED_ON_COMMAND: &str = "skipped on command";

impl CellStatus {
    /// Why the cell has no figures, in words; nothing where it has some.
    pub fn reason(&self) -> Option<String> {
        match self {
            CellStatus::Completed => None,
            CellStatus::Failed { reason } => Some(reason.clone()),
            CellStatus::Unavailable { missing, remedy } => Some(format!("{missing}; {remedy}")),
            CellStatus::Skipped { failure: None } => Some(SKIPPED_ON_COMMAND.to_owned()),
            CellStatus::Skipped { failure: Some(message) } => {
                Some(format!("{SKIPPED_ON_COMMAND}, after it had failed: {message}"))
            }
        }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct MemoryRecord {
    /// One server's budget on this machine (after `scale.data`, `fixed_memory` included): heap and page cache together.
    pub budget_bytes: u64,
    /// The mechanism that enforces it: `cgroup v1`, `cgroup v2` or `none`.
    pub enforced_by: String,
    /// One server's stored data on this machine, by the records' size.
    pub data_bytes: u64,
    /// `data_bytes : budget_bytes`.
    pub data_to_memory: f64,
    /// The part of the budget that can hold records: the system's own caches, and the rest for pages of files. Memory
    /// that the processes need however small the data is holds none. Absent in records of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache_bytes: Option<u64>,
    /// The highest use of the budget that the kernel reported.
    pub peak_bytes: Option<u64>,
    /// The effective `dirty_limit` of the study on each storage of a server; empty where it has none, and the limit of
    /// this machine's kernel held.
    #[serde(default)]
    pub dirty_limits: Vec<DirtyLimitRecord>,
}

/// How much of what was written to a storage could wait in memory for its devices before writers were held back.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct DirtyLimitRecord {
    /// Its name in the study.
    pub storage: String,
    /// Of each block device that the kernel saw, on this machine (after `scale.data`); absent where none was set.
    pub device_bytes: Option<u64>,
    /// Devices of a server with this limit each.
    pub devices: u32,
    /// Why there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// How the devices of a storage are put together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum DeviceArrangement {
    /// One device.
    Single,
    Stripe,
    Mirror,
    /// Each device has directories of its own.
    Jbod,
    /// One volume, striped where there are several devices, shown as several directories.
    Split,
    /// A pool, with a volume for each server.
    Pool,
    /// Real directories, on any device.
    Paths,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct StorageRecord {
    /// How the program saw it: `fuse+loop`, `directory`.
    pub attachment: String,
    pub filesystem: Option<String>,
    /// How its devices are put together; absent where that isn't known, as of a cluster that runs already.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub arrangement: Option<DeviceArrangement>,
    /// The same in words, with the layers between the devices and the program: `jbod`, `mirror, write-back cache of 64
    /// GB, zstd`.
    pub layout: String,
    pub devices: Vec<DeviceDescription>,
    /// The bytes that a user can store, of the devices as sold: copies on mirrors and caches are not counted. Absent
    /// where it isn't known, or is their sum.
    #[serde(default)]
    pub usable_bytes: Option<u64>,
}

/// Everything that is known of one repetition of one cell.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RunRecord {
    pub schema: u32,
    pub cell: Cell,
    /// From 1.
    pub repetition: u32,
    /// Where in the randomised order it ran, from 0.
    pub position: u32,
    pub status: CellStatus,
    /// RFC 3339, UTC.
    pub started_at: String,
    /// 0 of a cell that was skipped before it began.
    pub wall_s: f64,
    /// All that was done for it on this machine's clock: `wall_s` is a part of that, which leaves out what served other
    /// cells too. Absent in records of versions that did not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wall: Option<WallParts>,
    pub scale: ScaleFactors,
    pub machine: MachineRecord,
    /// Program versions by name: `underlay`, `rocksdb`, `kernel` ...
    pub versions: BTreeMap<String, String>,
    /// The system's settings as they were applied.
    pub settings: BTreeMap<String, String>,
    pub seed: u64,
    pub memory: MemoryRecord,
    /// Absent where the study names no cores, and when the cell did not complete.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<CpuRecord>,
    pub storage: StorageRecord,
    /// Absent when the cell did not complete, and where it was a batch job or a benchmark of the user's.
    pub measured: Option<MeasuredWindow>,
    /// How the rate was found that it was measured at; absent where none was looked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub search: Option<SearchRecord>,
    /// Absent when the cell did not complete, and where it was no batch job.
    #[serde(default)]
    pub job: Option<JobRecord>,
    /// Absent when the cell did not complete, and where it was no benchmark of the user's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub benchmark: Option<BenchmarkRecord>,
    pub devices: Vec<DeviceActivity>,
    #[serde(default)]
    pub layers: Vec<LayerActivity>,
    /// Absent where the storage was no volume of a pool.
    #[serde(default)]
    pub network: Option<NetworkRecord>,
    /// Programs' waits on the way to each volume of each server; empty in older records, and where there is no block
    /// device of ours.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub paths: Vec<PathRecord>,
    /// Who stood still while it was measured. Absent in older records.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pauses: Option<PauseRecord>,
    /// The system's own figures over the measured time: `block_cache_hits`, `compaction_write_bytes` ...
    pub system_figures: BTreeMap<String, f64>,
    /// Its gauges over the measured time; empty where it has none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub system_series: Vec<SystemSample>,
    /// Nodes that went away while it was measured, in the order of their going.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub node_events: Vec<NodeEventRecord>,
    /// Whether what was acknowledged is there; absent where the study has no event for this cell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read_back: Option<ReadBackRecord>,
    /// Where the system had its copies of the data; absent where it does not tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub topology: Option<TopologyRecord>,
    pub certificate: Option<Certificate>,
    /// How far what is known of the devices' media carries the figures; absent without modelled devices.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inputs: Option<InputCertificate>,
    /// Warnings about this measurement, each with a remedy.
    pub warnings: Vec<String>,
}
