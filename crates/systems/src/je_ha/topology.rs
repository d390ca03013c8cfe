//! The nodes of each shard's members, and where each listens.

use std::net::Ipv4Addr;

/// JE's own port of a node's member of the first shard; that of the second is one more.
const REPLICATION_PORTS: u64 = 5000;
/// The same for clients.
const SERVICE_PORTS: u64 = 6000;

/// A member of a shard's replication group. Shards and nodes are counted from 1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct GroupMember {
    pub shard: u64,
    pub node: u64,
    /// It is the first of its group, and the master whenever the store has just started.
    pub leads: bool,
    /// How many members its node has beside it for earlier shards.
    pub before_on_node: u64,
}

impl GroupMember {
    /// Unique in the store; also JE's name for it.
    pub(super) fn name(&self) -> String {
        format!("shard{}-node{}", self.shard, self.node)
    }

    pub(super) fn group(&self) -> String {
        format!("shard{}", self.shard)
    }

    /// Each node has its own address, as if on its own machine.
    fn address(&self) -> Ipv4Addr {
        Ipv4Addr::new(127, 0, 0, u8::try_from(self.node).unwrap_or(u8::MAX))
    }

    /// The address for other members. JE keeps it in the data of its group, so it must be the same at every start.
    pub(super) fn replication_endpoint(&self) -> String {
        format!("{}:{}", self.address(), REPLICATION_PORTS + self.shard)
    }

    /// The address for clients.
    pub(super) fn service_endpoint(&self) -> String {
        format!("{}:{}", self.address(), SERVICE_PORTS + self.shard)
    }
}

/// All members, shard by shard, the leader of each first. Those of one shard are on different nodes, and members and
/// leaders are spread evenly over the nodes. `replication` must not exceed `nodes`.
pub(super) fn members(nodes: u64, shards: u64, replication: u64) -> Vec<GroupMember> {
    let mut members: Vec<GroupMember> = Vec::new();
    for shard in 1..=shards {
        let on_node = |node: u64| members.iter().filter(|member| member.node == node).count() as u64;
        let leading = |node: &u64| {
            let leads = members.iter().filter(|member| member.node == *node && member.leads).count();
            (leads, *node)
        };
        let own = (0..replication).map(|number| ((shard - 1) * replication + number) % nodes + 1);
        let own: Vec<u64> = own.collect();
        let leader = own.iter().copied().min_by_key(leading);
        let member_of = |node: u64| GroupMember {
            shard,
            node,
            leads: Some(node) == leader,
            before_on_node: on_node(node),
        };
        let mut group: Vec<GroupMember> = own.into_iter().map(member_of).collect();
        group.sort_by_key(|member| (!member.leads, member.node));
        members.extend(group);
    }
    members
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_and_leaders_are_spread_over_the_nodes() {
        for (nodes, shards, replication) in
            [(1, 1, 1), (3, 1, 3), (3, 2, 3), (3, 3, 3), (6, 2, 3), (4, 4, 3), (3, 3, 2), (5, 7, 1)]
        {
            let all = members(nodes, shards, replication);
            assert_eq!(all.len() as u64, shards * replication);
            let mut names: Vec<String> = all.iter().map(GroupMember::name).collect();
            names.dedup();
            assert_eq!(names.len(), all.len(), "two of one shard are on one node");
            let count = |node: u64, leads: bool| {
                all.iter().filter(|member| member.node == node && (member.leads || !leads)).count() as u64
            };
            for node in 1..=nodes {
                assert!(count(node, false) <= (shards * replication).div_ceil(nodes), "{all:?}");
                assert!(count(node, true) <= shards.div_ceil(nodes) + 1, "{all:?}");
            }
            for group in all.chunks(usize::try_from(replication).unwrap()) {
                assert_eq!(group.iter().filter(|member| member.leads).count(), 1);
                assert!(group[0].leads && group.iter().all(|member| member.shard == group[0].shard));
            }
        }
        let two = members(3, 2, 3);
        assert_eq!((two[0].name(), two[3].name()), ("shard1-node1".into(), "shard2-node2".into()));
        assert_eq!(two[3].before_on_node, 1);
        assert_eq!(two[3].replication_endpoint(), "127.0.0.2:5002");
    }
}
