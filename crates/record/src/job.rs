//! A batch job's record.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::cache::CacheUse;
use crate::devices::DeviceId;

/// A job of a batch system, from its submission to its success, in modelled time.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct JobRecord {
    /// `terasort`
    pub name: String,
    pub duration_s: f64,
    pub wall_s: f64,
    /// From the first task that entered a phase to the last that left it: `map`, `shuffle`, `reduce`. Phases overlap.
    pub phases_s: BTreeMap<String, f64>,
    /// Attempts that ended well, by kind: `map`, `reduce`.
    pub tasks: BTreeMap<String, u64>,
    /// Attempts that failed or were killed, and were made again.
    pub lost_tasks: u64,
    pub input_bytes: u64,
    pub output_bytes: u64,
    /// Map output that reducers fetched, as it went over the wire.
    pub shuffled_bytes: u64,
    /// The system's own counters: `FileSystemCounter.HDFS_BYTES_READ`.
    pub counters: BTreeMap<String, f64>,
    /// How the system spread what it wrote.
    pub directories: Vec<DirectoryUse>,
    /// Where the time went, stage by stage in the order in which they began; empty for a system that has no stages.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stages: Vec<StageRecord>,
    /// How the output came to be visible, as the output itself tells: `magic`, `directory`, `file-v1`. Absent where
    /// nothing was written, or nothing tells.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub committer: Option<String>,
    /// Absent where there is no cache between the system and its store.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache: Option<CacheUse>,
}

/// A stage of a job: tasks that do the same to parts of the data. The time before the first task, between stages and
/// behind the last one is a stage without tasks: `driver`, and `commit` behind the last one that wrote.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct StageRecord {
    /// `read, shuffle out`, `shuffle in, write`, `commit`
    pub name: String,
    /// Since the job's beginning.
    pub began_s: f64,
    pub duration_s: f64,
    pub tasks: u64,
    /// Over all tasks that ended well: what their threads did, in seconds of a task.
    pub time: TaskTime,
    pub input_bytes: u64,
    pub output_bytes: u64,
    pub shuffle_read_bytes: u64,
    pub shuffle_write_bytes: u64,
    /// Requests to the object store that came while it ran, by type: `get`, `put`, `copy`, `list`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub requests: BTreeMap<String, StoreRequests>,
}

/// The time of tasks, divided. The parts add up to all of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TaskTime {
    /// On a CPU, collecting garbage, and unpacking the task itself.
    pub compute_s: f64,
    /// Waiting for what is read from the store.
    pub input_wait_s: f64,
    /// Writing for, and waiting for, other tasks.
    pub shuffle_s: f64,
    /// Waiting for what is written to the store.
    pub output_s: f64,
    /// Making that visible.
    pub commit_s: f64,
}

impl TaskTime {
    pub fn total_s(&self) -> f64 {
        self.compute_s + self.input_wait_s + self.shuffle_s + self.output_s + self.commit_s
    }
}

/// Requests of one type to an object store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct StoreRequests {
    pub requests: u64,
    /// Answered with an error, a missing object included.
    pub failed: u64,
    /// The bytes that the store sent and received, without headers.
    pub sent_bytes: u64,
    pub received_bytes: u64,
}

/// The bytes that a job left in, or put through, one directory.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct DirectoryUse {
    /// Its purpose: `hdfs`, `local`.
    pub role: String,
    /// Which of the storage's directories, from 0.
    pub directory: u32,
    /// The device below it, one of the record's devices; absent where several are.
    pub device: Option<DeviceId>,
    /// Blocks or map outputs that were written there.
    pub files: u64,
    pub write_bytes: u64,
}
