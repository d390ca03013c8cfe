//! A store's parts: members. A machine may have several.

use super::places::storage;
use super::topology::GroupMember;
use crate::parts::SystemPart;
use crate::system::StoragePaths;

pub(super) fn parts(paths: &StoragePaths, nodes: u64, members: &[GroupMember]) -> Vec<SystemPart> {
    let part = |member: &GroupMember| {
        let part = SystemPart::new(member.name(), "member").on_machine(format!("node{}", member.node));
        match storage(paths, nodes, member) {
            Ok(directory) => part.keeping("environment", directory),
            Err(_) => part,
        }
    };
    members.iter().map(part).collect()
}
