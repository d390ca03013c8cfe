//! The mark that each directory of a storage node gets when the store has been deployed: what the data there belong to.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::NAME;
use super::config::NosqlConfig;
use super::places::StorageNodePlace;
use crate::private_file::write_private;
use crate::system::SystemError;

const MARK: &str = "deployed.json";
const MAX_BYTES: u64 = 64 << 10;

/// Settings that must stay the same as long as the data do: a record's place depends on all of them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct StoreShape {
    nodes: u64,
    capacity: u64,
    replication: u64,
    partitions: u64,
    fields: String,
    node: u64,
    /// Which storage of the node, from 1; 0 is its home.
    storage: u64,
}

#[derive(Debug, Serialize, Deserialize)]
struct StoreMark {
    shape: StoreShape,
    /// The parameters of replication nodes that are in force.
    parameters: BTreeMap<String, String>,
}

impl StoreShape {
    fn new(config: &NosqlConfig, node: u64, storage: u64) -> StoreShape {
        StoreShape {
            nodes: config.nodes,
            capacity: config.capacity,
            replication: config.replication(),
            partitions: config.partitions(),
            fields: config.fields.word().to_owned(),
            node,
            storage,
        }
    }
}

impl std::fmt::Display for StoreShape {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let StoreShape { nodes, capacity, replication, partitions, fields, node, storage } = self;
        match storage {
            0 => write!(out, "the home of ")?,
            _ => write!(out, "storage {storage} of ")?,
        }
        write!(
            out,
            "storage node {node} of {nodes} (capacity = {capacity}, replication = {replication}, partitions = {partitions}, fields = {fields})"
        )
    }
}

/// The known state of a store that was deployed on its places before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FormerStore {
    pub parameters: BTreeMap<String, String>,
}

/// Notes that the store has been deployed with these parameters.
pub(super) fn note(
    config: &NosqlConfig,
    places: &[StorageNodePlace],
    parameters: &BTreeMap<String, String>,
) -> Result<(), SystemError> {
    directories(config, places).into_iter().try_for_each(|(shape, directory)| {
        let mark = StoreMark { shape, parameters: parameters.clone() };
        let path = directory.join(MARK);
        let text = serde_json::to_string(&mark).map_err(io::Error::from);
        text.and_then(|text| write_private(&path, &text))
            .map_err(|error| SystemError::starting(NAME, format!("can't write {}: {error}", path.display())))
    })
}

/// All directories of these places, each with what belongs there.
fn directories<'a>(config: &NosqlConfig, places: &'a [StorageNodePlace]) -> Vec<(StoreShape, &'a Path)> {
    let of_place = |place: &'a StorageNodePlace| {
        let storages = place.storages.iter().map(|storage| storage.directory.as_path());
        let all = std::iter::once(place.home.as_path()).chain(storages);
        (0..)
            .zip(all)
            .map(move |(storage, directory)| (StoreShape::new(config, place.number, storage), directory))
    };
    places.iter().flat_map(of_place).collect()
}

/// The store that these places have; `None` if they are empty.
///
/// # Errors
/// When they have a part of a store, or one of another shape.
pub(super) fn read(
    config: &NosqlConfig,
    places: &[StorageNodePlace],
) -> Result<Option<FormerStore>, SystemError> {
    let all = directories(config, places);
    let marks = all.iter().map(|(_, directory)| mark(directory)).collect::<Result<Vec<_>, _>>()?;
    let is_deployed = marks.iter().any(Option::is_some);
    let mut former: Option<FormerStore> = None;
    for ((expected, directory), mark) in all.iter().zip(marks) {
        let place = directory.display();
        let problem = match mark {
            Some(StoreMark { shape, .. }) if shape != *expected => format!(
                "{place} has the data of {shape}, but the settings put {expected} there: use the settings and the storages that the data \
                 were loaded with, or load anew into empty storages"
            ),
            Some(StoreMark { parameters, .. }) => {
                // Where noting them was interrupted, nobody knows which are in force.
                let agrees = former.as_ref().is_none_or(|former| former.parameters == parameters);
                former = Some(FormerStore { parameters: if agrees { parameters } else { BTreeMap::new() } });
                continue;
            }
            None if !is_empty(directory)? => format!(
                "{place} has no store that was deployed to the end: a first start was interrupted, or this storage is not the one that \
                 belongs to the others. Empty all storages and start again"
            ),
            None if is_deployed => format!(
                "{place} is empty, and other storages are not: use the storages that the data were loaded with, or empty all of them"
            ),
            None => continue,
        };
        return Err(SystemError::starting(NAME, problem));
    }
    Ok(former)
}

fn is_empty(directory: &Path) -> Result<bool, SystemError> {
    let listed = std::fs::read_dir(directory).map(|mut entries| entries.next().is_none());
    listed
        .map_err(|error| SystemError::starting(NAME, format!("can't list {}: {error}", directory.display())))
}

fn mark(directory: &Path) -> Result<Option<StoreMark>, SystemError> {
    let path = directory.join(MARK);
    let failed = |problem: String| {
        let path = path.display();
        SystemError::starting(
            NAME,
            format!("can't read {path}, which says whose data are beside it: {problem}"),
        )
    };
    let text =
        underlay_files::plain_file::read(&path, MAX_BYTES).map_err(|error| failed(error.to_string()))?;
    let parsed = text.map(|text| serde_json::from_slice(&text)).transpose();
    parsed.map_err(|error| failed(format!("{error}; load the data anew into empty storages")))
}

#[cfg(test)]
mod tests {
    use super::super::places::places;
    use super::*;
    use crate::system::StoragePaths;

    #[test]
    fn data_of_other_or_partial_stores_are_refused() {
        let folder = tempfile::TempDir::new().unwrap();
        let data = ["a", "b", "c"].map(|name| folder.path().join(name));
        data.iter().for_each(|volume| std::fs::create_dir(volume).unwrap());
        let paths = StoragePaths { data: data.to_vec(), ..StoragePaths::default() };
        let config = NosqlConfig { nodes: 3, ..NosqlConfig::default() };
        let own = places(&paths, &config).unwrap();
        assert_eq!(read(&config, &own).unwrap(), None);
        let parameters = BTreeMap::from([("cacheSize".to_owned(), "1".to_owned())]);
        note(&config, &own, &parameters).unwrap();
        assert_eq!(read(&config, &own).unwrap(), Some(FormerStore { parameters }));
        let refused =
            |config: &NosqlConfig, places: &[StorageNodePlace]| read(config, places).unwrap_err().to_string();
        let other = NosqlConfig { given_replication: Some(1), ..config.clone() };
        let error = refused(&other, &own);
        assert!(
            error.contains("(capacity = 1, replication = 3, partitions = 20, fields = value)"),
            "{error}"
        );
        assert!(
            error.contains("put the home of storage node 1 of 3 (capacity = 1, replication = 1"),
            "{error}"
        );
        // Each of these alone shows that something is missing or in another place.
        for directory in
            [&own[0].home, &own[1].home, &own[0].storages[0].directory, &own[2].storages[0].directory]
        {
            let (mark, data) = (directory.join(MARK), directory.join("00000000.jdb"));
            let text = std::fs::read(&mark).unwrap();
            std::fs::remove_file(&mark).unwrap();
            let error = refused(&config, &own);
            assert!(error.contains(&format!("{} is empty, and other", directory.display())), "{error}");
            std::fs::write(&data, "").unwrap();
            assert!(refused(&config, &own).contains("Empty all storages"));
            std::fs::remove_file(&data).unwrap();
            std::fs::write(&mark, text).unwrap();
        }
        let [first, second] = [0, 1].map(|place| own[place].storages[0].directory.join(MARK));
        let text = std::fs::read(&first).unwrap();
        std::fs::copy(&second, &first).unwrap();
        let error = refused(&config, &own);
        assert!(error.contains("has the data of storage 1 of storage node 2"), "{error}");
        std::fs::write(&first, text).unwrap();
        // Noting other parameters was interrupted: they differ from all, so they are set again.
        note(&config, &own[..1], &BTreeMap::from([("cacheSize".to_owned(), "2".to_owned())])).unwrap();
        assert_eq!(read(&config, &own).unwrap(), Some(FormerStore { parameters: BTreeMap::new() }));

        for (_, directory) in directories(&config, &own) {
            std::fs::remove_file(directory.join(MARK)).unwrap();
        }
        assert_eq!(read(&config, &own).unwrap(), None);
        std::fs::write(own[0].home.join("config.xml"), "").unwrap();
        assert!(refused(&config, &own).contains("a first start was interrupted"));
        std::fs::write(own[0].home.join(MARK), "{").unwrap();
        assert!(refused(&config, &own).contains("load the data anew"));
    }
}
