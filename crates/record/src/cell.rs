//! One cell of a study's matrix and what came of running it once.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::certificate::Certificate;
use crate::devices::{DeviceActivity, DeviceDescription, LayerActivity};
use crate::job::JobRecord;
use crate::measured::{Measured, SystemSample};
use crate::network::NetworkRecord;
use crate::run::Machine;
use crate::search::SearchRecord;

/// A point of the matrix: one system on one storage under one workload.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Cell {
    /// Unique in a run but for the repetition: `rocksdb/hdd/ycsb-a-uniform-8t`.
    pub id: String,
    pub system: String,
    pub storage: String,
    /// How the workload is called in tables: the parts that vary in this study, `a` or `a, zipfian, 256 GB`.
    pub workload: String,
    /// `load`, `a` to `f`, `delete`; the name of a batch job.
    pub mix: String,
    /// Empty for a batch job, which has no threads and no records either.
    pub distribution: String,
    pub threads: u32,
    /// Stand-alone servers that share data, threads and rate.
    #[serde(default = "one")]
    pub servers: u32,
    /// Offered operations per second; absent for a closed loop (`rate = "max"`), and where the rate is looked for. The mean of
    /// the measured time where `rate_parts` says how it changes.
    pub rate_per_s: Option<f64>,
    /// Offered rates that follow one another from the begin of the measured time on; empty where the rate is one, or none.
    /// After the last part its last rate goes on.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rate_parts: Vec<RatePart>,
    /// What the highest rate that is looked for keeps to, `p99 within 10 ms`; absent where none is looked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub find_rate: Option<String>,
    pub records: u64,
    /// What the records hold, keys included, or what a batch job is asked for, unscaled: the size that the study speaks of.
    pub data_bytes: u64,
    /// The share of the measured time after which the system was told to write out and compact everything; absent where it
    /// compacts by itself alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compacts_at: Option<f64>,
}

/// A part of an offered rate, over which it is one or changes evenly.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RatePart {
    pub from_per_s: f64,
    pub to_per_s: f64,
    /// In modelled time.
    pub length_s: f64,
}

impl Cell {
    /// Whether it is a batch job, and so has a `job` in its record and nothing `measured`.
    pub fn is_job(&self) -> bool {
        self.threads == 0 && self.records == 0
    }

    /// Whether nothing holds it back: a closed loop, whose throughput is what the storage gives.
    pub fn is_unthrottled(&self) -> bool {
        self.rate_per_s.is_none() && self.find_rate.is_none() && !self.is_job()
    }
}

fn one() -> u32 {
    1
}

/// The factors by which this machine stands for the modelled one.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Scale {
    /// Slow motion: one modelled second takes this many here.
    pub time: f64,
    /// Sizes: one byte here stands for this many.
    pub data: f64,
}

impl Default for Scale {
    fn default() -> Self {
        Scale { time: 1.0, data: 1.0 }
    }
}

/// What became of a cell. A cell that could not be measured is kept, with its reason.
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
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct MemoryRecord {
    /// One server's budget on this machine (after `scale.data`, `fixed_memory` included): heap and page cache together.
    pub budget_bytes: u64,
    /// What keeps the system to it: `cgroup v1`, `cgroup v2` or `none`.
    pub enforced_by: String,
    /// One server's stored data on this machine, by the records' size.
    pub data_bytes: u64,
    /// `data_bytes : budget_bytes`.
    pub data_to_memory: f64,
    /// The highest use of the budget that the kernel reported.
    pub peak_bytes: Option<u64>,
    /// What the study's `dirty_limit` came to on each storage of a server; empty where it has none, and the limit of this
    /// machine's kernel held.
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

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct StorageRecord {
    /// How the program saw it: `fuse+loop`, `directory`.
    pub attachment: String,
    pub filesystem: Option<String>,
    /// `stripe`, `jbod`, `single`, `paths`.
    pub layout: String,
    pub devices: Vec<DeviceDescription>,
    /// What a user can store, of the devices as they are sold: copies on mirrors and caches are not counted.
    /// Absent where it isn't known, or is their sum.
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
    pub wall_s: f64,
    pub scale: Scale,
    pub machine: Machine,
    /// Program versions by name: `underlay`, `rocksdb`, `kernel` ...
    pub versions: BTreeMap<String, String>,
    /// The system's settings as they were applied.
    pub settings: BTreeMap<String, String>,
    pub seed: u64,
    pub memory: MemoryRecord,
    pub storage: StorageRecord,
    /// Absent when the cell did not complete, and where it was a batch job.
    pub measured: Option<Measured>,
    /// How the rate was found that it was measured at; absent where none was looked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub search: Option<SearchRecord>,
    /// Absent when the cell did not complete, and where it was no batch job.
    #[serde(default)]
    pub job: Option<JobRecord>,
    pub devices: Vec<DeviceActivity>,
    #[serde(default)]
    pub layers: Vec<LayerActivity>,
    /// Absent where the storage was no volume of a pool.
    #[serde(default)]
    pub network: Option<NetworkRecord>,
    /// The system's own figures over the measured time: `block_cache_hits`, `compaction_write_bytes` ...
    pub system_figures: BTreeMap<String, f64>,
    /// Its gauges over the measured time; empty where it has none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub system_series: Vec<SystemSample>,
    pub certificate: Option<Certificate>,
    /// What a reader must know of this measurement, each with what to try.
    pub warnings: Vec<String>,
}
