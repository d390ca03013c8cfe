//! The nodes of a system of several: what each is at a moment, and which one is meant.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A node's role among the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum NodeRole {
    /// Takes the writes of its shard.
    Master,
    /// Follows the master of its shard.
    Replica,
    /// One among equals, such as a node of a ring.
    Peer,
    TabletServer,
    DataNode,
    /// Stores the objects of a Ceph cluster.
    Osd,
    /// Runs the executors of a Spark cluster.
    Worker,
}

impl NodeRole {
    pub const ALL: [NodeRole; 7] = [
        NodeRole::Master,
        NodeRole::Replica,
        NodeRole::Peer,
        NodeRole::TabletServer,
        NodeRole::DataNode,
        NodeRole::Osd,
        NodeRole::Worker,
    ];

    /// As people write it: `tablet server`.
    pub fn word(self) -> &'static str {
        match self {
            NodeRole::Master => "master",
            NodeRole::Replica => "replica",
            NodeRole::Peer => "peer",
            NodeRole::TabletServer => "tablet server",
            NodeRole::DataNode => "datanode",
            NodeRole::Osd => "osd",
            NodeRole::Worker => "worker",
        }
    }
}

impl fmt::Display for NodeRole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

/// How a node is at a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum NodeCondition {
    /// It does its part.
    Serving,
    /// Its process runs, or is about to, and it does not do its part yet, or not now.
    Starting,
    /// It is to go away, and its process still runs.
    Stopping,
    /// It was stopped or killed on command, and its process has ended.
    Away,
    /// It has ended by itself.
    Ended,
}

impl fmt::Display for NodeCondition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            NodeCondition::Serving => "serving",
            NodeCondition::Starting => "starting",
            NodeCondition::Stopping => "stopping",
            NodeCondition::Away => "away",
            NodeCondition::Ended => "has ended",
        })
    }
}

/// A node as it is now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct NodeState {
    /// Unique in its system, without spaces: `shard1-node2`.
    pub name: String,
    /// Absent while nobody knows, as of a member of a group that does not run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<NodeRole>,
    /// The parts of the data that it has copies of; empty where data are not divided into such parts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub shards: Vec<NodeShard>,
    pub condition: NodeCondition,
    /// The id of its process; absent while it has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process: Option<u32>,
}

impl NodeState {
    /// Its role among the copies of a shard, as far as known.
    pub fn role_in(&self, shard: u32) -> Option<NodeRole> {
        self.shards.iter().find(|own| own.shard == shard)?.role
    }

    /// The shard that it has a copy of, where that is a single one.
    pub fn only_shard(&self) -> Option<u32> {
        match self.shards[..] {
            [NodeShard { shard, .. }] => Some(shard),
            _ => None,
        }
    }
}

/// The copy of a shard that a node has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct NodeShard {
    /// From 1.
    pub shard: u32,
    /// The node's role among the copies of it; absent while unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<NodeRole>,
}

impl NodeShard {
    /// `shard 1`, or `master of shard 1` where a node has copies of several.
    fn describe(self, is_only: bool) -> String {
        match self.role.filter(|_| !is_only) {
            Some(role) => format!("{role} of shard {}", self.shard),
            None => format!("shard {}", self.shard),
        }
    }

    /// Those of a node, whose role stands beside them.
    pub fn all_in_words(shards: &[NodeShard]) -> String {
        let words: Vec<String> = shards.iter().map(|shard| shard.describe(shards.len() == 1)).collect();
        words.join(", ")
    }
}

/// How a node goes away.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum NodeExit {
    /// As an operator shuts it down.
    Stop,
    /// At once (SIGKILL), as a crash does.
    #[default]
    Kill,
}

/// Which node is meant: one by its name, or one that is known only when the system runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum NodeChoice {
    Named(String),
    /// The first in the system's list that serves and is this.
    First {
        /// Absent where any will do.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        role: Option<NodeRole>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        shard: Option<u32>,
    },
}

/// A choice of a node that can't be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "expected the name of a node, 'any node', 'any ROLE' or 'ROLE of shard NUMBER', with a role of {}",
    roles()
)]
pub struct NotANode;

fn roles() -> String {
    NodeRole::ALL.map(NodeRole::word).join(", ")
}

impl NodeChoice {
    /// Reads `shard1-node2`, `any node`, `any replica`, `master of shard 1`, `any replica of shard 2`.
    ///
    /// # Errors
    /// Where it is none of these.
    pub fn parse(text: &str) -> Result<NodeChoice, NotANode> {
        let words: Vec<&str> = text.split_whitespace().collect();
        if let [name] = words[..]
            && name != "any"
            && NodeRole::ALL.iter().all(|role| role.word() != name)
        {
            return Ok(NodeChoice::Named(name.to_owned()));
        }
        let (is_any, rest) = match words.split_first() {
            Some((&"any", rest)) => (true, rest),
            _ => (false, &words[..]),
        };
        let (role, shard) = match rest {
            [role @ .., "of", "shard", number] => match number.parse() {
                Ok(shard @ 1..) => (role, Some(shard)),
                _ => return Err(NotANode),
            },
            role => (role, None),
        };
        let role = match role.join(" ").as_str() {
            "node" if is_any || shard.is_some() => None,
            word => Some(NodeRole::ALL.into_iter().find(|role| role.word() == word).ok_or(NotANode)?),
        };
        Ok(NodeChoice::First { role, shard })
    }

    /// Whether it may be this one. One that has copies of several shards may be the master of one and a replica of
    /// another.
    pub fn allows(&self, name: &str, role: Option<NodeRole>, shards: &[NodeShard]) -> bool {
        match self {
            NodeChoice::Named(wanted) => wanted == name,
            NodeChoice::First { role: wanted, shard: None } => {
                wanted.is_none_or(|wanted| role == Some(wanted))
            }
            NodeChoice::First { role: wanted, shard: Some(wanted_shard) } => shards
                .iter()
                .any(|own| own.shard == *wanted_shard && wanted.is_none_or(|role| own.role == Some(role))),
        }
    }
}

/// As it is written in a study.
impl fmt::Display for NodeChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NodeChoice::Named(name) => f.write_str(name),
            NodeChoice::First { role, shard } => {
                let word = role.map_or("node", NodeRole::word);
                match shard {
                    Some(shard) => write!(f, "{word} of shard {shard}"),
                    None => write!(f, "any {word}"),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn node_choice_reads_back() {
        let first = |role, shard| NodeChoice::First { role, shard };
        for (text, expected) in [
            ("shard1-node2", NodeChoice::Named("shard1-node2".to_owned())),
            ("any node", first(None, None)),
            ("any replica", first(Some(NodeRole::Replica), None)),
            ("any tablet server", first(Some(NodeRole::TabletServer), None)),
            ("master of shard 1", first(Some(NodeRole::Master), Some(1))),
            ("node of shard 12", first(None, Some(12))),
        ] {
            assert_eq!(NodeChoice::parse(text), Ok(expected.clone()), "{text}");
            assert_eq!(NodeChoice::parse(&expected.to_string()), Ok(expected), "{text}");
        }
        assert_eq!(NodeChoice::parse("any replica of shard 2"), Ok(first(Some(NodeRole::Replica), Some(2))));
        assert_eq!(NodeChoice::parse("master"), Ok(first(Some(NodeRole::Master), None)));
        for wrong in ["", "any", "any lord", "master of shard 0", "master of shard", "a b", "of shard 1"] {
            assert_eq!(NodeChoice::parse(wrong), Err(NotANode), "{wrong}");
        }
    }

    #[test]
    fn role_selects_its_nodes() {
        let master = NodeChoice::parse("master of shard 2").unwrap();
        let is_master = |shards: &[(u32, Option<NodeRole>)]| {
            let shards: Vec<NodeShard> =
                shards.iter().map(|&(shard, role)| NodeShard { shard, role }).collect();
            let role = shards.iter().find_map(|own| own.role);
            master.allows("node1", role, &shards)
        };
        use NodeRole::{Master, Replica};
        assert!(is_master(&[(2, Some(Master))]));
        assert!(!is_master(&[(1, Some(Master))]));
        assert!(!is_master(&[(2, Some(Replica))]));
        assert!(!is_master(&[(2, None)]) && !is_master(&[]));
        // A machine with copies of two shards.
        assert!(is_master(&[(1, Some(Replica)), (2, Some(Master))]));
        assert!(!is_master(&[(1, Some(Master)), (2, Some(Replica))]));
        let any = NodeChoice::parse("node of shard 2").unwrap();
        assert!(any.allows("sn1", Some(Master), &[NodeShard { shard: 2, role: None }]));
        assert!(!any.allows("sn1", Some(Master), &[NodeShard { shard: 1, role: None }]));
    }

    #[test]
    fn copies_are_listed_with_roles_if_several() {
        let one = NodeShard { shard: 1, role: Some(NodeRole::Master) };
        let other = NodeShard { shard: 2, role: Some(NodeRole::Replica) };
        assert_eq!(NodeShard::all_in_words(&[]), "");
        assert_eq!(NodeShard::all_in_words(&[one]), "shard 1");
        assert_eq!(NodeShard::all_in_words(&[one, other]), "master of shard 1, replica of shard 2");
    }
}
