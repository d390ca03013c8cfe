//! Where the parts of an instance are, on its storage.

use std::path::{Path, PathBuf};

use super::NAME;
use super::config::AccumuloConfig;
use super::site::LogVolume;
use crate::hdfs::{DataDirectory, HdfsPlan, StorageType};
use crate::system::{NodePaths, StoragePaths, SystemError, check_roles, first_data_directory, make_on};

/// Roles with a separate storage.
pub(super) const ROLES: &[(&str, &str)] = &[
    ("metadata", "the NameNode's image and log, ZooKeeper's data"),
    ("wal", "the log that every write goes to first; without a separate storage it is in HDFS"),
];

/// Directories that exist.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct AccumuloDirectories {
    /// The directories of each DataNode.
    pub datanodes: Vec<Vec<DataDirectory>>,
    pub namenode: PathBuf,
    pub zookeeper: PathBuf,
    /// Also holds the identity of the instance.
    pub metadata: PathBuf,
    /// The directories of write-ahead logs. Empty: they are in HDFS.
    pub logs: Vec<PathBuf>,
}

impl AccumuloDirectories {
    /// Creates them on `paths`. The storage's own directories must exist: created here, they would be on the file
    /// system below the missing mount.
    pub(super) fn create(
        paths: &StoragePaths,
        config: &AccumuloConfig,
    ) -> Result<AccumuloDirectories, SystemError> {
        let first = NodePaths { data: paths.data.clone(), roles: paths.roles.clone() };
        let nodes: Vec<&NodePaths> = std::iter::once(&first).chain(&paths.further_nodes).collect();
        let count = config.datanodes();
        if nodes.len() > 1 && nodes.len() as u64 != count {
            return Err(SystemError::starting(
                NAME,
                format!("{count} DataNodes can't use the storage of {}", nodes.len()),
            ));
        }
        check_roles(NAME, ROLES, nodes.iter().flat_map(|node| node.roles.keys()))?;
        let datanodes = datanodes(&nodes, config)?;
        let data = first_data_directory(NAME, &first.data)?;
        let metadata = own(first.roles.get("metadata").unwrap_or(data), "metadata")?;
        let logs = nodes.iter().filter_map(|node| node.roles.get("wal"));
        let logs = logs.map(|directory| log(directory)).collect::<Result<Vec<_>, _>>()?;
        Ok(AccumuloDirectories {
            datanodes,
            namenode: metadata.join("namenode"),
            zookeeper: metadata.join("zookeeper"),
            metadata,
            logs,
        })
    }
}

/// The directories of each DataNode, on the storage that all share or on its own.
pub(super) fn datanodes(
    nodes: &[&NodePaths],
    config: &AccumuloConfig,
) -> Result<Vec<Vec<DataDirectory>>, SystemError> {
    let on_each = |node: &NodePaths, count: u32| {
        let data: Vec<_> = node.data.iter().map(|path| (path.clone(), StorageType::Disk)).collect();
        HdfsPlan::on_each(NAME, &data, count)
    };
    match nodes {
        [only] => on_each(only, u32::try_from(config.datanodes()).unwrap_or(u32::MAX)),
        several => {
            let each = several.iter().map(|node| on_each(node, 1));
            Ok(each.collect::<Result<Vec<_>, _>>()?.into_iter().flatten().collect())
        }
    }
}

fn own(directory: &Path, name: &str) -> Result<PathBuf, SystemError> {
    make_on(NAME, directory, &Path::new(NAME).join(name))
}

fn log(directory: &Path) -> Result<PathBuf, SystemError> {
    let folder = own(directory, "wal")?;
    match LogVolume::uri(&folder) {
        Some(_) => Ok(folder),
        None => Err(SystemError::starting(
            NAME,
            format!(
                "'{}' can't be used for Accumulo's logs: the path must be absolute and consist of letters, digits, '.', '_' and '-'",
                folder.display()
            ),
        )),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn parts_have_own_directories() {
        let directory = tempfile::TempDir::new().unwrap();
        let [a, b, log, meta] = ["a", "b", "log", "meta"].map(|name| directory.path().join(name));
        [&a, &b, &log, &meta].into_iter().for_each(|folder| std::fs::create_dir(folder).unwrap());
        let mut paths = StoragePaths { data: vec![a.clone(), b.clone()], ..StoragePaths::default() };
        let config = |pairs: &[(&str, &str)]| {
            let pairs = pairs.iter().map(|&(key, value)| (key.to_owned(), value.to_owned()));
            AccumuloConfig::resolve(&pairs.collect(), None, |_| 0).unwrap()
        };
        let places = AccumuloDirectories::create(&paths, &config(&[("datanodes", "2")])).unwrap();
        let data: Vec<Vec<PathBuf>> = places
            .datanodes
            .iter()
            .map(|node| node.iter().map(|directory| directory.path.clone()).collect())
            .collect();
        assert_eq!(data[1], [a.join("hdfs/datanode-2"), b.join("hdfs/datanode-2")]);
        assert_eq!(places.zookeeper, a.join("accumulo/metadata/zookeeper"));
        assert_eq!(places.logs, [""; 0].map(PathBuf::from));

        paths.roles =
            BTreeMap::from([("metadata".to_owned(), meta.clone()), ("wal".to_owned(), log.clone())]);
        let places = AccumuloDirectories::create(&paths, &config(&[])).unwrap();
        assert_eq!(places.namenode, meta.join("accumulo/metadata/namenode"));
        assert_eq!(places.logs, [log.join("accumulo/wal")]);

        let apart = StoragePaths {
            data: vec![a],
            further_nodes: vec![NodePaths { data: vec![b.clone()], ..NodePaths::default() }],
            ..StoragePaths::default()
        };
        let places = AccumuloDirectories::create(&apart, &config(&[("nodes", "2")])).unwrap();
        assert_eq!(places.datanodes[1][0].path, b.join("hdfs/datanode-1"));
        assert!(AccumuloDirectories::create(&apart, &config(&[("nodes", "3")])).is_err());
    }

    #[test]
    fn missing_or_unknown_role_is_reported() {
        let directory = tempfile::TempDir::new().unwrap();
        let config = AccumuloConfig::default();
        let paths = |role: &str, folder: &str| StoragePaths {
            data: vec![directory.path().into()],
            roles: BTreeMap::from([(role.to_owned(), directory.path().join(folder))]),
            ..StoragePaths::default()
        };
        for (paths, problem) in [
            (StoragePaths::default(), "no data directory"),
            (paths("logs", ""), "called 'logs'"),
            (paths("wal", "gone"), "gone is missing"),
        ] {
            let error = AccumuloDirectories::create(&paths, &config).unwrap_err().to_string();
            assert!(error.contains(problem), "{error}");
        }
        std::fs::create_dir(directory.path().join("a,b")).unwrap();
        let error = AccumuloDirectories::create(&paths("wal", "a,b"), &config).unwrap_err().to_string();
        assert!(error.contains("a,b"), "{error}");
    }
}
