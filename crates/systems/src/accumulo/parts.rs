//! An instance's parts: tablet servers and their managers, above HDFS.

use std::path::PathBuf;

use super::config::AccumuloConfig;
use super::places::datanodes;
use super::servers::name_of;
use crate::hdfs;
use crate::parts::SystemPart;
use crate::system::StoragePaths;

pub(super) fn parts(paths: &StoragePaths, config: &AccumuloConfig) -> Vec<SystemPart> {
    let nodes: Vec<_> = (0..=paths.further_nodes.len()).map(|number| paths.node_paths(number)).collect();
    let Some(metadata) = paths.roles.get("metadata").or_else(|| paths.data.first()) else {
        return Vec::new();
    };
    let Ok(datanodes) = datanodes(&nodes.iter().collect::<Vec<_>>(), config) else { return Vec::new() };
    let of_hdfs = hdfs::parts(metadata, &datanodes);
    let logs: Vec<&PathBuf> = nodes.iter().filter_map(|node| node.roles.get("wal")).collect();
    let tablet_server = |number: u64| {
        let part = SystemPart::new(name_of(number), "tablet server").using(&of_hdfs);
        let log = usize::try_from(number).ok().and_then(|number| logs.get(number % logs.len().max(1)));
        match log {
            Some(log) => part.keeping("wal", log),
            None => part,
        }
    };
    let mut parts: Vec<SystemPart> = (0..config.nodes).map(tablet_server).collect();
    parts.push(SystemPart::new("zookeeper", "ZooKeeper").keeping("metadata", metadata));
    let namenode = || of_hdfs.iter().take(1);
    parts.push(SystemPart::new("manager", "manager").background().using(namenode()));
    parts.push(SystemPart::new("gc", "garbage collector").background().using(namenode()));
    parts.extend(of_hdfs);
    parts
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn tablet_server_stands_on_datanodes_with_own_log() {
        let folder = tempfile::TempDir::new().unwrap();
        let [a, b, log] = ["a", "b", "log"].map(|name| folder.path().join(name));
        [&a, &b, &log].into_iter().for_each(|directory| std::fs::create_dir(directory).unwrap());
        let settings =
            [("nodes", "2"), ("datanodes", "3")].map(|(key, value)| (key.to_owned(), value.to_owned()));
        let config = AccumuloConfig::resolve(&BTreeMap::from(settings), None, |_| 0).unwrap();
        let paths = StoragePaths {
            data: vec![a.clone(), b],
            roles: BTreeMap::from([("wal".to_owned(), log.clone())]),
            ..StoragePaths::default()
        };
        let parts = parts(&paths, &config);
        let names: Vec<&str> = parts.iter().map(|part| part.name.as_str()).collect();
        let expected = ["tserver1", "tserver2", "zookeeper", "manager", "gc", "namenode"];
        assert_eq!(names[..6], expected);
        assert_eq!(names[6..], ["datanode1", "datanode2", "datanode3"]);
        assert_eq!(parts[1].uses, ["namenode", "datanode1", "datanode2", "datanode3"]);
        assert_eq!(parts[1].keeps, [("wal".to_owned(), log)]);
        assert_eq!((parts[2].keeps[0].1.as_path(), parts[8].keeps.len()), (a.as_path(), 2));
        assert!(parts[3].is_background && !parts[0].is_background);
    }
}
