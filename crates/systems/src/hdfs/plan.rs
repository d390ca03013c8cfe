//! The plan of a file system: its DataNodes, their directories, its blocks and its memory.

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};

use crate::memory_plan::ProcessMemory;
use crate::system::{SystemError, check_attached, first_data_directory};

const MIB: u64 = 1 << 20;
/// A DataNode's ports follow from its number. With this many they stay below the kernel's ephemeral ports.
pub(super) const MAX_DATANODES: usize = 200;
/// The bytes per checksum. A block consists of whole ones.
const CHECKSUM_BYTES: u64 = 512;
/// Smaller blocks cost too much: each is two files, with its checksums, and an entry in the NameNode's memory.
pub(super) const MIN_BLOCK_BYTES: u64 = 64 << 10;

/// A file system to start.
#[derive(Clone, Debug, PartialEq)]
pub struct HdfsPlan {
    /// The system that runs on it, which errors name.
    pub system: &'static str,
    /// The directory of the NameNode's image and edit log. It is formatted if it is empty or missing.
    pub name_directory: PathBuf,
    /// The data directories of each DataNode.
    pub datanodes: Vec<Vec<DataDirectory>>,
    /// The default number of copies of each block.
    pub replication: u32,
    /// The default size of blocks: a multiple of 512 bytes.
    pub block_bytes: u64,
    pub volume_choosing: VolumeChoosing,
    /// Whether a DataNode syncs a block to its device when it is complete. By default it does not.
    pub sync_on_close: bool,
    /// Short-circuit reads: clients open the files of blocks themselves and read this many bytes at once. `None`, the
    /// default: a DataNode reads ahead of the requested range and sends until the client stops receiving.
    pub short_circuit_bytes: Option<u64>,
    /// Where clients find the servers, in their own namespace; web pages stay on loopback. Systems that run on HDFS
    /// write it into their data, so it must never change.
    pub address: Ipv4Addr,
    /// For configuration, logs and temporary files; not on the storage under test. It is created.
    pub scratch: PathBuf,
    pub heaps: ServerHeaps,
    /// How many times slower than its model the storage is. Timeouts are multiplied by it.
    pub slow_motion: f64,
}

/// A directory of a DataNode, with the type of its device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DataDirectory {
    pub path: PathBuf,
    pub storage_type: StorageType,
}

/// The device types that storage policies choose by. Under the default policy, blocks go to `Disk` only.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StorageType {
    #[default]
    Disk,
    Ssd,
    Archive,
}

impl StorageType {
    pub fn name(self) -> &'static str {
        match self {
            StorageType::Disk => "DISK",
            StorageType::Ssd => "SSD",
            StorageType::Archive => "ARCHIVE",
        }
    }
}

/// How a DataNode chooses the directory of a new block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum VolumeChoosing {
    /// In turn, regardless of their type and space. This is the default.
    #[default]
    RoundRobin,
    /// Prefers those with more space if the difference exceeds `threshold_bytes` (10 GiB by default).
    AvailableSpace { threshold_bytes: u64 },
}

/// The heaps of the servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServerHeaps {
    pub namenode_bytes: u64,
    pub datanode_bytes: u64,
}

/// Java's memory besides its heap for code, classes and threads. Measured after writing 3.6 GB: 66 to 72 MiB.
const JAVA_OWN_BYTES: u64 = 88 * MIB;
/// Direct buffers between files and the network.
pub(super) const DATANODE_DIRECT_BYTES: u64 = 32 * MIB;
const MIN_NAMENODE_BYTES: u64 = 64 * MIB;
const MIN_DATANODE_BYTES: u64 = 64 * MIB;
const MAX_NAMENODE_BYTES: u64 = 1024 * MIB;
const MAX_DATANODE_BYTES: u64 = 512 * MIB;
/// The part of a budget that each server's heap may take: one over this.
const HEAP_SHARE: u64 = 24;

impl ServerHeaps {
    /// Heaps for a budget that is shared with other processes: the minimum, unless the budget is large.
    pub fn from_budget(budget_bytes: u64) -> ServerHeaps {
        let share = budget_bytes / HEAP_SHARE / MIB * MIB;
        ServerHeaps {
            namenode_bytes: share.clamp(MIN_NAMENODE_BYTES, MAX_NAMENODE_BYTES),
            datanode_bytes: share.clamp(MIN_DATANODE_BYTES, MAX_DATANODE_BYTES),
        }
    }

    /// The servers' memory, kind by kind.
    pub(crate) fn processes(&self, datanodes: u64) -> Vec<ProcessMemory> {
        let own = ProcessMemory { own_bytes: JAVA_OWN_BYTES, ..ProcessMemory::default() };
        vec![
            ProcessMemory { what: "NameNode", count: 1, heap_bytes: self.namenode_bytes, ..own.clone() },
            ProcessMemory {
                what: "DataNode",
                count: datanodes,
                heap_bytes: self.datanode_bytes,
                direct_bytes: DATANODE_DIRECT_BYTES,
                ..own
            },
        ]
    }

    /// The maximum memory of a NameNode and `datanodes` DataNodes, without the page cache.
    pub fn resident_bytes(&self, datanodes: u64) -> u64 {
        let namenode = self.namenode_bytes + JAVA_OWN_BYTES;
        let datanode = self.datanode_bytes + DATANODE_DIRECT_BYTES + JAVA_OWN_BYTES;
        namenode + datanode * datanodes
    }
}

impl HdfsPlan {
    /// Gives each DataNode a directory on each of `data`, the directories of the attached storage: `hdfs/datanode-1`
    /// and so on. All of them share the devices, as if the machine were the average one of a cluster.
    ///
    /// # Errors
    /// When a directory of `data` is missing: created here, it would be on the file system below the missing mount.
    pub fn on_each(
        system: &'static str,
        data: &[(PathBuf, StorageType)],
        datanodes: u32,
    ) -> Result<Vec<Vec<DataDirectory>>, SystemError> {
        first_data_directory(system, data)?;
        data.iter().try_for_each(|(directory, _)| check_attached(system, directory))?;
        let place = |node: u32, (directory, storage_type): &(PathBuf, StorageType)| DataDirectory {
            path: directory.join("hdfs").join(format!("datanode-{node}")),
            storage_type: *storage_type,
        };
        Ok((1..=datanodes).map(|node| data.iter().map(|each| place(node, each)).collect()).collect())
    }

    /// Checks that HDFS can be started like this.
    ///
    /// # Errors
    /// The mistake, with the setting if there is one.
    pub fn check(&self) -> Result<(), SystemError> {
        let setting = |key: &str, problem: String| {
            Err(SystemError::Setting { system: self.system, key: key.to_owned(), problem })
        };
        let count = self.datanodes.len();
        if count == 0 || count > MAX_DATANODES {
            return setting("datanodes", format!("{count}: expected 1 to {MAX_DATANODES}"));
        }
        if self.replication == 0 || self.replication as usize > count {
            let problem =
                format!("{} copies of a block need as many DataNodes, not {count}", self.replication);
            return setting("replication", problem);
        }
        if self.block_bytes < MIN_BLOCK_BYTES || !self.block_bytes.is_multiple_of(CHECKSUM_BYTES) {
            let problem = format!(
                "{} bytes: expected a multiple of {CHECKSUM_BYTES}, {MIN_BLOCK_BYTES} at least",
                self.block_bytes
            );
            return setting("block_size", problem);
        }
        let directories = self.datanodes.iter().flatten().map(|directory| &directory.path);
        for path in directories.chain([&self.name_directory, &self.scratch]) {
            self.check_path(path)?;
        }
        if self.datanodes.iter().any(Vec::is_empty) {
            return self.failed("a DataNode has no data directory".to_owned());
        }
        Ok(())
    }

    /// Hadoop separates directories by commas and expands `${`.
    fn check_path(&self, path: &Path) -> Result<(), SystemError> {
        let Some(text) = path.to_str() else {
            return self.failed(format!("{} is not UTF-8, which Java needs", path.display()));
        };
        if !path.is_absolute() || text.contains([',', '\n']) || text.contains("${") {
            return self.failed(format!(
                "'{}' can't be used as a directory of Hadoop's: the path must be absolute, without commas and '${{'",
                text.escape_debug()
            ));
        }
        Ok(())
    }

    pub(super) fn failed<T>(&self, problem: String) -> Result<T, SystemError> {
        Err(SystemError::starting(self.system, problem))
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(crate) fn plan() -> HdfsPlan {
        let directory = |node: u32, disk: u32| DataDirectory {
            path: format!("/mnt/disk-{disk}/hdfs/datanode-{node}").into(),
            storage_type: if disk == 1 { StorageType::Ssd } else { StorageType::Disk },
        };
        HdfsPlan {
            system: "test",
            name_directory: "/mnt/disk-0/hdfs/namenode".into(),
            datanodes: (1..=3).map(|node| (0..2).map(|disk| directory(node, disk)).collect()).collect(),
            replication: 3,
            block_bytes: 4 << 20,
            volume_choosing: VolumeChoosing::RoundRobin,
            sync_on_close: false,
            short_circuit_bytes: None,
            address: Ipv4Addr::LOCALHOST,
            scratch: "/run/cell 1".into(),
            heaps: ServerHeaps::from_budget(2 << 30),
            slow_motion: 1.0,
        }
    }

    #[test]
    fn mistakes_are_told() {
        plan().check().unwrap();
        let wrong = |change: fn(&mut HdfsPlan), problem: &str| {
            let mut plan = plan();
            change(&mut plan);
            let error = plan.check().unwrap_err().to_string();
            assert!(error.contains(problem), "{error}");
        };
        wrong(|plan| plan.replication = 4, "not 3");
        wrong(|plan| plan.replication = 0, "replication");
        wrong(|plan| plan.datanodes.clear(), "datanodes");
        wrong(|plan| plan.datanodes = vec![plan.datanodes[0].clone(); 201], "1 to 200");
        wrong(|plan| plan.datanodes[1].clear(), "no data directory");
        wrong(|plan| plan.block_bytes = 4097, "multiple of 512");
        wrong(|plan| plan.block_bytes = 512, "65536 at least");
        wrong(|plan| plan.datanodes[2][0].path = "/mnt/a,b".into(), "a,b");
        wrong(|plan| plan.name_directory = "name".into(), "absolute");
        wrong(|plan| plan.scratch = "/tmp/${x}".into(), "Hadoop's");
    }

    #[test]
    fn datanodes_are_on_all_devices() {
        let storage = tempfile::TempDir::new().unwrap();
        let disks = ["a", "b"].map(|name| storage.path().join(name));
        disks.iter().for_each(|disk| std::fs::create_dir(disk).unwrap());
        let data = [(disks[0].clone(), StorageType::Disk), (disks[1].clone(), StorageType::Ssd)];
        let nodes = HdfsPlan::on_each("test", &data, 3).unwrap();
        assert_eq!(nodes.len(), 3);
        assert_eq!(nodes[2][1].path, disks[1].join("hdfs/datanode-3"));
        assert_eq!(nodes[2][1].storage_type, StorageType::Ssd);
        std::fs::remove_dir(&disks[1]).unwrap();
        let error = HdfsPlan::on_each("test", &data, 3).unwrap_err().to_string();
        assert!(error.contains("/b is missing"), "{error}");
        assert!(HdfsPlan::on_each("test", &[], 1).is_err());
    }

    #[test]
    fn heaps_grow_with_the_budget() {
        let (small, large) = (ServerHeaps::from_budget(0), ServerHeaps::from_budget(1 << 40));
        assert_eq!(small, ServerHeaps { namenode_bytes: 64 * MIB, datanode_bytes: 64 * MIB });
        assert_eq!(large, ServerHeaps { namenode_bytes: 1024 * MIB, datanode_bytes: 512 * MIB });
        assert_eq!(small.resident_bytes(3), (152 + 3 * 184) * MIB);
    }
}
