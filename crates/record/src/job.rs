//! What a batch job did.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

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
}

/// What a job left in, or put through, one directory.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct DirectoryUse {
    /// What it is for: `hdfs`, `local`.
    pub role: String,
    /// Which of the storage's directories, from 0.
    pub directory: u32,
    /// The device below it, one of the record's devices; absent where several are.
    pub device: Option<DeviceId>,
    /// Blocks or map outputs that were written there.
    pub files: u64,
    pub write_bytes: u64,
}
