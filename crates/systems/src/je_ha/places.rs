//! Where each member keeps its environment.

use std::path::{Path, PathBuf};

use super::topology::GroupMember;
use super::{NAME, formed};
use crate::system::{NodePaths, StoragePaths, SystemError, first_data_directory, make_on};

/// The directory of each member, made on `paths`, which must have no data of another topology. Nodes with storages of
/// their own use the directories of theirs in turn. Where all share one storage, the first member of each node comes
/// first: as many directories as nodes are one for each node.
pub(super) fn directories(
    paths: &StoragePaths,
    nodes: u64,
    members: &[GroupMember],
) -> Result<Vec<PathBuf>, SystemError> {
    let apart = 1 + paths.further_nodes.len() as u64;
    if apart > 1 && apart != nodes {
        return Err(SystemError::starting(NAME, format!("{nodes} nodes can't use the storage of {apart}")));
    }
    first_data_directory(NAME, &paths.data)?;
    let storages = members.iter().map(|member| storage(paths, nodes, member));
    let storages = storages.collect::<Result<Vec<_>, _>>()?;
    let places = members.iter().zip(&storages);
    let places = places.map(|(member, storage)| (member.clone(), storage.join(folder(member))));
    let present: Vec<&PathBuf> = paths.data_of_all().collect();
    formed::check(&present, &places.collect::<Vec<_>>())?;
    members.iter().zip(storages).map(|(member, storage)| make_on(NAME, storage, &folder(member))).collect()
}

fn folder(member: &GroupMember) -> PathBuf {
    Path::new(NAME).join(member.name())
}

pub(super) fn storage<'a>(
    paths: &'a StoragePaths,
    nodes: u64,
    member: &GroupMember,
) -> Result<&'a PathBuf, SystemError> {
    let further = |node: u64| paths.further_nodes.get(usize::try_from(node).ok()?.checked_sub(2)?);
    let (data, position) = match further(member.node) {
        Some(NodePaths { data, .. }) => (data, member.before_on_node),
        None if paths.further_nodes.is_empty() => {
            (&paths.data, member.before_on_node * nodes + member.node - 1)
        }
        None => (&paths.data, member.before_on_node),
    };
    let count = data.len().max(1) as u64;
    let storage = data.get(usize::try_from(position % count).unwrap_or(0));
    storage.ok_or_else(|| {
        SystemError::starting(NAME, format!("there is no data directory for node {}", member.node))
    })
}

#[cfg(test)]
mod tests {
    use super::super::topology::members;
    use super::*;

    #[test]
    fn members_have_own_directories() {
        let folder = tempfile::TempDir::new().unwrap();
        let storages = ["a", "b", "c", "d", "e", "f"].map(|name| folder.path().join(name));
        storages.iter().for_each(|storage| std::fs::create_dir(storage).unwrap());
        let shared =
            |count: usize| StoragePaths { data: storages[..count].to_vec(), ..StoragePaths::default() };
        let all = members(3, 2, 3);
        // Leaders first: shard 1 is led by node 1, shard 2 by node 2.
        let used = |paths: &StoragePaths| -> Vec<String> {
            let made = directories(paths, 3, &all).unwrap();
            made.iter().map(|path| path.strip_prefix(folder.path()).unwrap().display().to_string()).collect()
        };
        assert_eq!(
            used(&shared(3))[..3],
            ["a/je-ha/shard1-node1", "b/je-ha/shard1-node2", "c/je-ha/shard1-node3"]
        );
        assert_eq!(used(&shared(3))[3], "b/je-ha/shard2-node2");
        let mut devices: Vec<String> = used(&shared(6)).iter().map(|path| path[..1].to_owned()).collect();
        devices.sort();
        assert_eq!(devices, ["a", "b", "c", "d", "e", "f"]);
        let of_node =
            |from: usize| NodePaths { data: storages[from..from + 2].to_vec(), ..NodePaths::default() };
        let apart = StoragePaths { further_nodes: vec![of_node(2), of_node(4)], ..shared(2) };
        assert_eq!(
            used(&apart)[3..],
            ["d/je-ha/shard2-node2", "b/je-ha/shard2-node1", "f/je-ha/shard2-node3"]
        );
        let error = directories(&apart, 4, &all).unwrap_err().to_string();
        assert!(error.contains("4 nodes can't use the storage of 3"), "{error}");
        assert!(directories(&StoragePaths::default(), 3, &all).is_err());
    }
}
