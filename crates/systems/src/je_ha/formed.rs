//! The mark that each member's directory gets when its group has been complete once: what the data there belong to.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::NAME;
use super::topology::GroupMember;
use crate::private_file::write_private;
use crate::system::SystemError;

const MARK: &str = "formed";
const MAX_BYTES: u64 = 4 << 10;

/// Settings that must stay the same as long as the data do: a record's place depends on all of them.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct JeHaMark {
    shards: u64,
    replication: u64,
    shard: u64,
    node: u64,
}

impl JeHaMark {
    fn new(member: &GroupMember, all: &[GroupMember]) -> JeHaMark {
        let shards = all.iter().map(|other| other.shard).max().unwrap_or(0);
        let replication = all.iter().filter(|other| other.shard == member.shard).count() as u64;
        JeHaMark { shards, replication, shard: member.shard, node: member.node }
    }
}

impl fmt::Display for JeHaMark {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let JeHaMark { shards, replication, shard, node } = self;
        write!(out, "shard {shard} on node {node} (shards = {shards}, replication = {replication})")
    }
}

pub(super) fn is_in(directory: &Path) -> bool {
    directory.join(MARK).exists()
}

/// Notes that the groups of all members are there. A first start that was interrupted before is simply made again.
pub(super) fn note(places: &[(GroupMember, PathBuf)]) -> Result<(), SystemError> {
    let all: Vec<GroupMember> = places.iter().map(|(member, _)| member.clone()).collect();
    places.iter().try_for_each(|(member, directory)| {
        let mark = directory.join(MARK);
        let text = serde_json::to_string(&JeHaMark::new(member, &all)).map_err(io::Error::from);
        text.and_then(|text| write_private(&mark, &text))
            .map_err(|error| SystemError::starting(NAME, format!("can't write {}: {error}", mark.display())))
    })
}

/// Refuses `storages` with data of another topology than that of `places`.
pub(super) fn check(storages: &[&PathBuf], places: &[(GroupMember, PathBuf)]) -> Result<(), SystemError> {
    let all: Vec<GroupMember> = places.iter().map(|(member, _)| member.clone()).collect();
    for directory in directories(storages)? {
        let Some(found) = read(&directory)? else { continue };
        let own = places.iter().find(|(_, place)| *place == directory);
        let expected = own.map(|(member, _)| JeHaMark::new(member, &all));
        if expected.as_ref() != Some(&found) {
            let settings = match (expected, all.first()) {
                (Some(expected), _) => format!("the settings put {expected} there"),
                (None, Some(first)) => {
                    let JeHaMark { shards, replication, .. } = JeHaMark::new(first, &all);
                    format!(
                        "shards = {shards} and replication = {replication} on these nodes put no member there"
                    )
                }
                (None, None) => "there are no members".to_owned(),
            };
            let problem = format!(
                "{} has the data of {found}, but {settings}: use the settings and the storages that the data were loaded \
                 with, or load anew into empty storages",
                directory.display()
            );
            return Err(SystemError::starting(NAME, problem));
        }
    }
    Ok(())
}

/// The directories of members, in any topology.
fn directories(storages: &[&PathBuf]) -> Result<Vec<PathBuf>, SystemError> {
    let mut found = Vec::new();
    for folder in storages.iter().map(|storage| storage.join(NAME)) {
        let listed = || folder.read_dir()?.map(|entry| Ok(entry?.path())).collect::<io::Result<Vec<_>>>();
        match listed() {
            Ok(directories) => found.extend(directories),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => {
                let problem = format!("can't list {}: {error}", folder.display());
                return Err(SystemError::starting(NAME, problem));
            }
        }
    }
    found.sort();
    Ok(found)
}

/// `None` where there is none.
fn read(directory: &Path) -> Result<Option<JeHaMark>, SystemError> {
    let mark = directory.join(MARK);
    let failed = |problem: String| {
        let path = mark.display();
        SystemError::starting(
            NAME,
            format!("can't read {path}, which says whose data are beside it: {problem}"),
        )
    };
    match underlay_files::plain_file::read(&mark, MAX_BYTES) {
        Ok(text) => {
            let parsed = text.map(|text| serde_json::from_slice(&text)).transpose();
            parsed.map_err(|error| failed(format!("{error}; load the data anew into empty storages")))
        }
        // Something beside the directories of members.
        Err(error) if error.kind() == io::ErrorKind::NotADirectory => Ok(None),
        Err(error) => Err(failed(error.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use super::super::topology::members;
    use super::*;

    #[test]
    fn data_of_another_topology_are_refused() {
        let folder = tempfile::TempDir::new().unwrap();
        let storages = ["a", "b", "c"].map(|name| folder.path().join(name));
        let storages: Vec<&PathBuf> = storages.iter().collect();
        // Node N has the Nth storage.
        let places = |nodes: u64, shards: u64, replication: u64| -> Vec<(GroupMember, PathBuf)> {
            let place = |member: GroupMember| {
                let storage = storages[usize::try_from(member.node - 1).unwrap() % 3];
                let directory = storage.join(NAME).join(member.name());
                (member, directory)
            };
            members(nodes, shards, replication).into_iter().map(place).collect()
        };
        let own = places(3, 2, 2);
        own.iter().for_each(|(_, directory)| std::fs::create_dir_all(directory).unwrap());
        std::fs::write(folder.path().join("a").join(NAME).join("notes"), "of somebody").unwrap();
        check(&storages, &places(3, 1, 3)).unwrap();
        note(&own).unwrap();
        assert!(own.iter().all(|(_, directory)| is_in(directory)));
        check(&storages, &own).unwrap();
        let refused = |places: &[(GroupMember, PathBuf)]| check(&storages, places).unwrap_err().to_string();
        let error = refused(&places(3, 1, 2));
        assert!(error.contains("(shards = 2, replication = 2)"), "{error}");
        assert!(
            error.contains("the settings put shard 1 on node 1 (shards = 1, replication = 2)"),
            "{error}"
        );
        let error = refused(&places(3, 2, 3));
        assert!(error.contains("replication = 2") && error.contains("replication = 3"), "{error}");
        // Two shards of two on four nodes: what was on node 1 would be on node 4.
        let error = refused(&places(4, 2, 2));
        assert!(error.contains("shard 2 on node 1") && error.contains("no member there"), "{error}");
        // A storage that was replaced has no mark, and one that was renamed has another's.
        std::fs::remove_dir_all(folder.path().join("b")).unwrap();
        check(&storages, &own).unwrap();
        std::fs::write(own[0].1.join(MARK), r#"{"shards":2,"replication":2,"shard":1,"node":9}"#).unwrap();
        let error = refused(&own);
        assert!(error.contains("shard 1 on node 9") && error.contains("shard 1 on node 1"), "{error}");
        std::fs::write(own[0].1.join(MARK), "").unwrap();
        assert!(refused(&own).contains("load the data anew"));
    }
}
