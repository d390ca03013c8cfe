//! The figures of the servers, read from their management beans.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

use serde_json::Value;

use super::plan::DataDirectory;
use crate::network_namespace::NetworkNamespace;
use crate::web::get_json;

pub(super) type DataNodeMetrics = BTreeMap<String, f64>;

/// A DataNode's data in one of its directories.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeUse {
    /// Counted from 0, as the directories are.
    pub datanode: u32,
    pub directory: u32,
    pub path: PathBuf,
    pub blocks: u64,
    /// The size of the blocks and their checksums.
    pub bytes: u64,
    /// The free space of the directory's file system.
    pub free_bytes: u64,
}

/// Whether the file system can be used yet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct NamespaceState {
    /// `Operational`, or the name of its safe mode.
    pub name: String,
    pub live_datanodes: u64,
    /// Blocks with fewer copies than wanted.
    pub under_replicated_blocks: u64,
    /// Copies that are on their way: what is being copied no longer counts among those with too few.
    pub pending_copies: u64,
    pub pending_deletions: u64,
}

impl NamespaceState {
    pub(super) fn is_operational(&self) -> bool {
        self.name == "Operational"
    }
}

/// Running totals of the NameNode: the attribute and our name for it.
const NAMENODE_TOTALS: &[(&str, &str)] = &[
    ("TransactionsNumOps", "hdfs_namenode_transactions"),
    ("SyncsNumOps", "hdfs_namenode_syncs"),
    ("FilesCreated", "hdfs_files_created"),
    ("FilesDeleted", "hdfs_files_deleted"),
    ("AddBlockOps", "hdfs_blocks_allocated"),
    ("GetBlockLocations", "hdfs_block_lookups"),
    ("SuccessfulReReplications", "hdfs_blocks_replicated_again"),
];
const NAMENODE_STATES: &[(&str, &str)] = &[
    ("FilesTotal", "current_hdfs_files"),
    ("BlocksTotal", "current_hdfs_blocks"),
    ("CapacityUsed", "current_hdfs_used_bytes"),
    ("UnderReplicatedBlocks", "current_hdfs_under_replicated_blocks"),
    ("NumLiveDataNodes", "current_hdfs_live_datanodes"),
    ("NumDeadDataNodes", "current_hdfs_dead_datanodes"),
    ("VolumeFailuresTotal", "current_hdfs_failed_directories"),
];
/// Totals over all DataNodes.
const DATANODE_TOTALS: &[(&str, &str)] = &[
    ("BytesWritten", "hdfs_written_bytes"),
    ("BytesRead", "hdfs_read_bytes"),
    ("BlocksWritten", "hdfs_blocks_written"),
    ("BlocksRead", "hdfs_blocks_read"),
    ("BlocksRemoved", "hdfs_blocks_removed"),
    ("FsyncCount", "hdfs_fsyncs"),
    ("PacketsReceived", "hdfs_packets_received"),
    ("TotalWriteTime", "hdfs_write_time_ms"),
    ("TotalReadTime", "hdfs_read_time_ms"),
];
/// Operations on the files in one directory of one DataNode.
const DIRECTORY_TOTALS: &[(&str, &str)] = &[
    ("WriteIoRateNumOps", "writes"),
    ("ReadIoRateNumOps", "reads"),
    ("TransferIoRateNumOps", "transfers"),
    ("SyncIoRateNumOps", "syncs"),
    ("TotalMetadataOperations", "metadata_operations"),
];

/// The beans of the server at `address` whose names match `pattern`.
fn beans(namespace: &NetworkNamespace, address: SocketAddr, pattern: &str) -> io::Result<Vec<Value>> {
    match get_json(namespace, address, &format!("/jmx?qry=Hadoop:service={pattern}"))? {
        Value::Object(mut answer) => match answer.remove("beans") {
            Some(Value::Array(beans)) => Ok(beans),
            _ => Err(strange(address, "no beans")),
        },
        _ => Err(strange(address, "no object")),
    }
}

fn strange(address: SocketAddr, problem: &str) -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        format!("{address} returns its figures in an unknown format: {problem}"),
    )
}

pub(super) fn namespace_state(
    namespace: &NetworkNamespace,
    namenode: SocketAddr,
) -> io::Result<NamespaceState> {
    let beans = beans(namespace, namenode, "NameNode,name=FSNamesystemState")?;
    let bean = beans.first().ok_or_else(|| strange(namenode, "no FSNamesystemState"))?;
    let count = |name: &str| bean.get(name).and_then(Value::as_u64).unwrap_or_default();
    let name = bean.get("FSState").and_then(Value::as_str).unwrap_or("state unknown");
    Ok(NamespaceState {
        name: name.to_owned(),
        live_datanodes: count("NumLiveDataNodes"),
        under_replicated_blocks: count("UnderReplicatedBlocks"),
        pending_copies: count("PendingReconstructionBlocks"),
        pending_deletions: count("PendingDeletionBlocks"),
    })
}

/// Whether the DataNode at `address` is a part of the file system: it has registered and sends heartbeats.
pub(super) fn is_registered(namespace: &NetworkNamespace, address: SocketAddr) -> io::Result<bool> {
    let beans = beans(namespace, address, "DataNode,name=DataNodeInfo")?;
    Ok(beans.iter().any(has_registered))
}

/// The attribute `BPServiceActorInfo` is JSON in a string: an object for each NameNode.
fn has_registered(bean: &Value) -> bool {
    let text = bean.get("BPServiceActorInfo").and_then(Value::as_str);
    let actors: Vec<Value> = text.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
    actors.iter().any(|actor| actor.get("ActorState").and_then(Value::as_str) == Some("RUNNING"))
}

pub(super) fn namenode_figures(
    namespace: &NetworkNamespace,
    namenode: SocketAddr,
) -> io::Result<DataNodeMetrics> {
    let mut figures = DataNodeMetrics::new();
    for (bean, names) in [
        ("NameNode,name=NameNodeActivity", NAMENODE_TOTALS),
        ("NameNode,name=FSNamesystemState", NAMENODE_STATES),
    ] {
        for bean in beans(namespace, namenode, bean)? {
            add(&mut figures, &bean, names, "");
        }
    }
    Ok(figures)
}

/// The figures of a DataNode, counted from 0, that are summed over all of them, and those of its directories.
pub(super) fn datanode_figures(
    namespace: &NetworkNamespace,
    address: SocketAddr,
    number: usize,
    directories: &[DataDirectory],
) -> io::Result<DataNodeMetrics> {
    let all = beans(namespace, address, "DataNode,name=DataNode*")?;
    let mut figures = DataNodeMetrics::new();
    for bean in &all {
        let Some(name) = bean.get("name").and_then(Value::as_str) else { continue };
        let Some((_, name)) = name.split_once("name=") else { continue };
        if name.starts_with("DataNodeActivity") {
            add(&mut figures, bean, DATANODE_TOTALS, "");
        } else if let Some(path) = name.strip_prefix("DataNodeVolume-") {
            let of_path = |directory: &DataDirectory| directory.path.to_str() == Some(path);
            if let Some(directory) = directories.iter().position(of_path) {
                let prefix = format!("hdfs_datanode_{}_directory_{directory}_", number + 1);
                add(&mut figures, bean, DIRECTORY_TOTALS, &prefix);
            }
        }
    }
    for volume in volumes_in(&all, number, directories) {
        let prefix = format!("current_hdfs_datanode_{}_directory_{}", volume.datanode + 1, volume.directory);
        figures.insert(format!("{prefix}_blocks"), volume.blocks as f64);
        figures.insert(format!("{prefix}_bytes"), volume.bytes as f64);
    }
    Ok(figures)
}

fn add(figures: &mut DataNodeMetrics, bean: &Value, names: &[(&str, &str)], prefix: &str) {
    for (attribute, name) in names {
        if let Some(figure) = bean.get(attribute).and_then(Value::as_f64) {
            *figures.entry(format!("{prefix}{name}")).or_default() += figure;
        }
    }
}

/// The DataNode's data in each of its directories, in order.
pub(super) fn volumes(
    namespace: &NetworkNamespace,
    address: SocketAddr,
    number: usize,
    directories: &[DataDirectory],
) -> io::Result<Vec<VolumeUse>> {
    let beans = beans(namespace, address, "DataNode,name=DataNodeInfo")?;
    let volumes = volumes_in(&beans, number, directories);
    match volumes.len() == directories.len() {
        true => Ok(volumes),
        false => {
            Err(strange(address, &format!("{} of its {} directories", volumes.len(), directories.len())))
        }
    }
}

/// The attribute `VolumeInfo` is JSON in a string: an object by directory.
fn volumes_in(beans: &[Value], number: usize, directories: &[DataDirectory]) -> Vec<VolumeUse> {
    let text = beans.iter().find_map(|bean| bean.get("VolumeInfo")?.as_str());
    let by_path: BTreeMap<PathBuf, Value> =
        text.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
    let volume = |(index, directory): (usize, &DataDirectory)| {
        let volume = by_path.get(&directory.path)?;
        let count = |name: &str| volume.get(name)?.as_u64();
        Some(VolumeUse {
            datanode: u32::try_from(number).ok()?,
            directory: u32::try_from(index).ok()?,
            path: directory.path.clone(),
            blocks: count("numBlocks")?,
            bytes: count("usedSpace")?,
            free_bytes: count("freeSpace")?,
        })
    };
    directories.iter().enumerate().filter_map(volume).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::plan::StorageType;
    use super::*;

    #[test]
    fn directories_are_found_by_their_paths() {
        let directory = |path: &str| DataDirectory { path: path.into(), storage_type: StorageType::Disk };
        let directories = [directory("/b"), directory("/a"), directory("/gone")];
        let info = json!({
            "/a": { "numBlocks": 3, "usedSpace": 100, "freeSpace": 7, "storageType": "DISK" },
            "/b": { "numBlocks": 4, "usedSpace": 200, "freeSpace": 8 },
            "/other": { "numBlocks": 9, "usedSpace": 900, "freeSpace": 8 },
        });
        let beans = [json!({ "name": "x" }), json!({ "VolumeInfo": info.to_string() })];
        let volumes = volumes_in(&beans, 2, &directories);
        let found: Vec<_> =
            volumes.iter().map(|volume| (volume.datanode, volume.directory, volume.blocks)).collect();
        assert_eq!(found, [(2, 0, 4), (2, 1, 3)]);
        for strange in [json!({ "VolumeInfo": "{" }), json!({ "VolumeInfo": 3 }), json!(null)] {
            assert!(volumes_in(&[strange], 0, &directories).is_empty());
        }
    }

    #[test]
    fn datanode_is_present_once_registered() {
        let bean =
            |state: &str| json!({ "BPServiceActorInfo": json!([{ "ActorState": state }]).to_string() });
        assert!(has_registered(&bean("RUNNING")));
        assert!(!has_registered(&bean("CONNECTING")));
        for strange in [json!({ "BPServiceActorInfo": "{" }), json!({ "BPServiceActorInfo": 3 }), json!(null)]
        {
            assert!(!has_registered(&strange));
        }
    }

    #[test]
    fn totals_are_added_up() {
        let mut figures = DataNodeMetrics::new();
        for bean in [json!({ "BytesWritten": 3 }), json!({ "BytesWritten": 4, "BytesRead": "x" })] {
            add(&mut figures, &bean, DATANODE_TOTALS, "");
        }
        assert_eq!(figures, DataNodeMetrics::from([("hdfs_written_bytes".to_owned(), 7.0)]));
    }
}
