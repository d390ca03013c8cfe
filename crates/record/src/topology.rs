//! Where a system of several nodes keeps its copies of the data.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::devices::DeviceId;
use crate::node::NodeRole;

/// The shards of a system with all their copies, as it told when it had started.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TopologyRecord {
    pub shards: Vec<ShardRecord>,
    /// The system's own findings of problems with it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub findings: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ShardRecord {
    /// From 1.
    pub shard: u32,
    /// How many of the parts that the keys are divided among it has; absent where there are none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partitions: Option<u64>,
    pub copies: Vec<CopyRecord>,
}

/// A copy of a shard.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CopyRecord {
    /// The process that serves it, as the system calls it: `rg1-rn2`.
    pub name: String,
    /// The node that it is on: `sn2`.
    pub node: String,
    /// Absent where nobody knew.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<NodeRole>,
    /// Which of the storage's directories, from 0; absent where it isn't one of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub directory: Option<u32>,
    /// The device below it, one of the record's devices; absent where several are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<DeviceId>,
}
