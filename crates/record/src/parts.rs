//! A running system's parts: its servers, their directories with the data in them, and the devices below. For pictures
//! of it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::devices::DeviceId;

/// See the module.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PartsRecord {
    #[serde(default)]
    pub servers: Vec<ServerPart>,
    #[serde(default)]
    pub directories: Vec<DirectoryPart>,
}

/// A process of the system, or a few that do one thing together.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ServerPart {
    /// As [`NodeState::name`](crate::NodeState::name), where it is a node that can go away: `datanode1`.
    pub name: String,
    /// `NameNode`, `tablet server`.
    pub what: String,
    /// The one of several stand-alone servers that it is a part of, from 1; absent where there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server: Option<u32>,
    /// The machine that it stands for together with others that say the same; absent where it stands for one alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine: Option<String>,
    /// No client has to do with it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_background: bool,
    /// The names of those that it sends its own requests to.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub uses: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub keeps: Vec<KeptPart>,
}

/// A server's data in a directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct KeptPart {
    /// `data`, `commitlog`.
    pub what: String,
    /// Its place in [`PartsRecord::directories`].
    pub directory: u32,
}

/// A directory that the system was given, or a block device without a file system.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DirectoryPart {
    /// `data 2`, `node 3: data`, `wal`.
    pub name: String,
    /// As [`ServerPart::server`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server: Option<u32>,
    /// The volume below it, as layers and the volumes of a pool are called; absent on real storage, and below what a
    /// role has for itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub devices: Vec<DeviceId>,
}
