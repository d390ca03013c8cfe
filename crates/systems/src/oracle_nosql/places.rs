//! Where each storage node keeps what it has: a home for its configuration and the administration, and a directory for
//! each of its replication nodes.

use std::path::{Path, PathBuf};

use super::NAME;
use super::config::NosqlConfig;
use crate::system::{NodePaths, StoragePaths, SystemError, first_data_directory, make_on};

/// The directories of one storage node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct StorageNodePlace {
    /// From 1, in the order in which they are deployed, which is their number in the store as well.
    pub number: u64,
    pub home: PathBuf,
    /// As many as its capacity.
    pub storages: Vec<ReplicationDirectory>,
}

/// A directory for one replication node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ReplicationDirectory {
    pub directory: PathBuf,
    /// Which of all directories that the store was given it is in, node by node where each has its own, from 0.
    pub volume: Option<u32>,
    /// How many replication nodes share the volume that it is on.
    pub sharing: u64,
}

impl StorageNodePlace {
    /// `sn2`
    pub(super) fn name(&self) -> String {
        name(self.number)
    }

    /// Where a replication node of this name has its data, if it is one of this storage node.
    pub(super) fn storage_of(&self, replication_node: &str) -> Option<&ReplicationDirectory> {
        self.storages.iter().find(|storage| storage.directory.join(replication_node).is_dir())
    }
}

/// As the store names its storage nodes.
pub(super) fn name(number: u64) -> String {
    format!("sn{number}")
}

/// The directories of all storage nodes, made on `paths`. Nodes with storages of their own use the directories of
/// theirs in turn. Where all share one storage, the first replication node of each comes first: as many directories as
/// nodes are one for each node.
pub(super) fn places(
    paths: &StoragePaths,
    config: &NosqlConfig,
) -> Result<Vec<StorageNodePlace>, SystemError> {
    let apart = 1 + paths.further_nodes.len() as u64;
    if apart > 1 && apart != config.nodes {
        let problem = format!("{} storage nodes can't use the storage of {apart}", config.nodes);
        return Err(SystemError::starting(NAME, problem));
    }
    first_data_directory(NAME, &paths.data)?;
    let chosen = |number: u64| (0..config.capacity).map(move |before| (number, before));
    let all: Vec<(u64, u64)> = (1..=config.nodes).flat_map(chosen).collect();
    let volumes = all.iter().map(|&(number, before)| volume(paths, config.nodes, number, before));
    let volumes: Vec<&PathBuf> = volumes.collect::<Result<_, _>>()?;
    let mut places: Vec<StorageNodePlace> = Vec::new();
    for (&(number, before), &root) in all.iter().zip(&volumes) {
        let folder = Path::new(NAME).join(name(number));
        if before == 0 {
            places.push(StorageNodePlace {
                number,
                home: make_on(NAME, root, &folder.join("home"))?,
                storages: Vec::new(),
            });
        }
        let directory = make_on(NAME, root, &folder.join(format!("storage{}", before + 1)))?;
        let sharing = volumes.iter().filter(|other| **other == root).count() as u64;
        let volume = paths.data_of_all().position(|volume| volume == root);
        let volume = volume.and_then(|volume| u32::try_from(volume).ok());
        if let Some(place) = places.last_mut() {
            place.storages.push(ReplicationDirectory { directory, volume, sharing });
        }
    }
    Ok(places)
}

/// The volume of a replication node with so many before it on its storage node.
pub(super) fn volume(
    paths: &StoragePaths,
    nodes: u64,
    number: u64,
    before: u64,
) -> Result<&PathBuf, SystemError> {
    let further = |number: u64| paths.further_nodes.get(usize::try_from(number).ok()?.checked_sub(2)?);
    let (data, position) = match further(number) {
        Some(NodePaths { data, .. }) => (data, before),
        None if paths.further_nodes.is_empty() => (&paths.data, before * nodes + number - 1),
        None => (&paths.data, before),
    };
    let count = data.len().max(1) as u64;
    data.get(usize::try_from(position % count).unwrap_or(0)).ok_or_else(|| {
        SystemError::starting(NAME, format!("there is no data directory for storage node {number}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replication_nodes_have_own_directories() {
        let folder = tempfile::TempDir::new().unwrap();
        let volumes = ["a", "b", "c", "d", "e", "f"].map(|name| folder.path().join(name));
        volumes.iter().for_each(|volume| std::fs::create_dir(volume).unwrap());
        let shared =
            |count: usize| StoragePaths { data: volumes[..count].to_vec(), ..StoragePaths::default() };
        let of_two = NosqlConfig { nodes: 3, capacity: 2, ..NosqlConfig::default() };
        let used = |paths: &StoragePaths, config: &NosqlConfig| -> Vec<String> {
            let places = places(paths, config).unwrap();
            let all = places.iter().flat_map(|place| &place.storages);
            let names = all.map(|storage| storage.directory.strip_prefix(folder.path()).unwrap());
            names.map(|name| name.display().to_string()).collect()
        };
        let on_three = used(&shared(3), &of_two);
        assert_eq!(on_three[..2], ["a/oracle-nosql/sn1/storage1", "a/oracle-nosql/sn1/storage2"]);
        assert_eq!(on_three[5], "c/oracle-nosql/sn3/storage2");
        let mut devices: Vec<String> =
            used(&shared(6), &of_two).iter().map(|path| path[..1].to_owned()).collect();
        devices.sort();
        assert_eq!(devices, ["a", "b", "c", "d", "e", "f"]);
        assert!(places(&shared(6), &of_two).unwrap().iter().all(|place| place.storages[0].sharing == 1));
        assert_eq!(places(&shared(1), &of_two).unwrap()[2].storages[1].sharing, 6);
        let of_node =
            |from: usize| NodePaths { data: volumes[from..from + 2].to_vec(), ..NodePaths::default() };
        let apart = StoragePaths { further_nodes: vec![of_node(2), of_node(4)], ..shared(2) };
        assert_eq!(
            used(&apart, &of_two)[2..4],
            ["c/oracle-nosql/sn2/storage1", "d/oracle-nosql/sn2/storage2"]
        );
        let four = NosqlConfig { nodes: 4, ..of_two.clone() };
        let error = places(&apart, &four).unwrap_err().to_string();
        assert!(error.contains("4 storage nodes can't use the storage of 3"), "{error}");
        assert!(places(&StoragePaths::default(), &of_two).is_err());

        // A store that is there has decided which node is where: its directories say so.
        let place = &places(&shared(3), &of_two).unwrap()[1];
        std::fs::create_dir(place.storages[1].directory.join("rg2-rn2")).unwrap();
        assert_eq!(place.storage_of("rg2-rn2"), Some(&place.storages[1]));
        assert_eq!((place.storages[1].volume, place.storage_of("rg1-rn1")), (Some(1), None));
        assert_eq!(place.name(), "sn2");
    }
}
