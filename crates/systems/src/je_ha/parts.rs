//! What a store consists of: members, of which a machine may have several.

use super::places::storage;
use super::topology::Member;
use crate::parts::Part;
use crate::system::StoragePaths;

pub(super) fn parts(paths: &StoragePaths, nodes: u64, members: &[Member]) -> Vec<Part> {
    let part = |member: &Member| {
        let part = Part::new(member.name(), "member").on_machine(format!("node{}", member.node));
        match storage(paths, nodes, member) {
            Ok(directory) => part.keeping("environment", directory),
            Err(_) => part,
        }
    };
    members.iter().map(part).collect()
}
