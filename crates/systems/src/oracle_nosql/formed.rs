//! The mark that the home of each storage node gets when the store has been deployed: what the data there belong to.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::NAME;
use super::config::Config;
use super::places::Place;
use crate::private_file::write_private;
use crate::system::SystemError;

const MARK: &str = "deployed.json";
const MOST_BYTES: u64 = 64 << 10;

/// What must stay the same as long as the data do: where a record is depends on all of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Shape {
    nodes: u64,
    capacity: u64,
    replication: u64,
    partitions: u64,
    fields: String,
    node: u64,
}

#[derive(Debug, Serialize, Deserialize)]
struct Mark {
    shape: Shape,
    /// The parameters of replication nodes that are in force.
    parameters: BTreeMap<String, String>,
}

impl Shape {
    fn of(config: &Config, place: &Place) -> Shape {
        Shape {
            nodes: config.nodes,
            capacity: config.capacity,
            replication: config.replication(),
            partitions: config.partitions(),
            fields: config.fields.word().to_owned(),
            node: place.number,
        }
    }
}

impl std::fmt::Display for Shape {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Shape { nodes, capacity, replication, partitions, fields, node } = self;
        write!(
            out,
            "storage node {node} of {nodes} (capacity = {capacity}, replication = {replication}, partitions = {partitions}, fields = {fields})"
        )
    }
}

/// What is known of a store that was deployed on its places before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Former {
    pub parameters: BTreeMap<String, String>,
}

/// Notes that the store has been deployed with these parameters.
pub(super) fn note(
    config: &Config,
    places: &[Place],
    parameters: &BTreeMap<String, String>,
) -> Result<(), SystemError> {
    places.iter().try_for_each(|place| {
        let mark = Mark { shape: Shape::of(config, place), parameters: parameters.clone() };
        let path = place.home.join(MARK);
        let text = serde_json::to_string(&mark).map_err(io::Error::from);
        text.and_then(|text| write_private(&path, &text))
            .map_err(|error| SystemError::starting(NAME, format!("can't write {}: {error}", path.display())))
    })
}

/// The store that these places have; `None` if they are empty.
///
/// # Errors
/// When they have a part of a store, or one of another shape.
pub(super) fn read(config: &Config, places: &[Place]) -> Result<Option<Former>, SystemError> {
    let marks = places.iter().map(|place| mark(&place.home)).collect::<Result<Vec<_>, _>>()?;
    let mut former = None;
    for (place, mark) in places.iter().zip(marks) {
        let home = place.home.display();
        match mark {
            Some(Mark { shape, parameters }) => {
                let expected = Shape::of(config, place);
                if shape != expected {
                    let problem = format!(
                        "{home} has the data of {shape}, but the settings put {expected} there: use the settings and the storages that \
                         the data were loaded with, or load anew into empty storages"
                    );
                    return Err(SystemError::starting(NAME, problem));
                }
                former.get_or_insert(Former { parameters });
            }
            None if former.is_some() || !is_empty(&place.home)? => {
                let problem = format!(
                    "{home} has no store that was deployed to the end: a first start was interrupted, or this storage is not the one that \
                     belongs to the others. Empty all storages and start again"
                );
                return Err(SystemError::starting(NAME, problem));
            }
            None => {}
        }
    }
    // The first places of a store that has more of them now would otherwise look new.
    let complete = former.is_some() && mark(&places[0].home)?.is_none();
    match complete {
        true => Err(SystemError::starting(
            NAME,
            format!("{} is empty, and other storages are not: empty all of them", places[0].home.display()),
        )),
        false => Ok(former),
    }
}

fn is_empty(directory: &Path) -> Result<bool, SystemError> {
    let listed = std::fs::read_dir(directory).map(|mut entries| entries.next().is_none());
    listed
        .map_err(|error| SystemError::starting(NAME, format!("can't list {}: {error}", directory.display())))
}

fn mark(home: &Path) -> Result<Option<Mark>, SystemError> {
    let path = home.join(MARK);
    let failed = |problem: String| {
        let path = path.display();
        SystemError::starting(
            NAME,
            format!("can't read {path}, which says whose data are beside it: {problem}"),
        )
    };
    let text =
        underlay_files::plain_file::read(&path, MOST_BYTES).map_err(|error| failed(error.to_string()))?;
    let parsed = text.map(|text| serde_json::from_slice(&text)).transpose();
    parsed.map_err(|error| failed(format!("{error}; load the data anew into empty storages")))
}

#[cfg(test)]
mod tests {
    use super::super::places::places;
    use super::*;
    use crate::system::StoragePaths;

    #[test]
    fn data_of_another_shape_and_parts_of_stores_are_refused() {
        let folder = tempfile::TempDir::new().unwrap();
        let data = ["a", "b", "c"].map(|name| folder.path().join(name));
        data.iter().for_each(|volume| std::fs::create_dir(volume).unwrap());
        let paths = StoragePaths { data: data.to_vec(), ..StoragePaths::default() };
        let config = Config { nodes: 3, ..Config::default() };
        let own = places(&paths, &config).unwrap();
        assert_eq!(read(&config, &own).unwrap(), None);
        let parameters = BTreeMap::from([("cacheSize".to_owned(), "1".to_owned())]);
        note(&config, &own, &parameters).unwrap();
        assert_eq!(read(&config, &own).unwrap(), Some(Former { parameters }));
        let refused = |config: &Config, places: &[Place]| read(config, places).unwrap_err().to_string();
        let other = Config { given_replication: Some(1), ..config.clone() };
        let error = refused(&other, &own);
        assert!(
            error.contains("(capacity = 1, replication = 3, partitions = 20, fields = value)"),
            "{error}"
        );
        assert!(error.contains("put storage node 1 of 3 (capacity = 1, replication = 1"), "{error}");
        std::fs::remove_file(own[1].home.join(MARK)).unwrap();
        assert!(refused(&config, &own).contains("Empty all storages"));
        std::fs::remove_file(own[0].home.join(MARK)).unwrap();
        assert!(refused(&config, &own).contains("is empty, and other storages are not"));
        std::fs::write(own[0].home.join("config.xml"), "").unwrap();
        assert!(refused(&config, &own).contains("a first start was interrupted"));
        std::fs::write(own[0].home.join(MARK), "{").unwrap();
        assert!(refused(&config, &own).contains("load the data anew"));
    }
}
