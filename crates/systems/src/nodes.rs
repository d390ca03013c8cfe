//! Nodes of a running system that go away and come back, one by one, while clients continue.

mod roster;

use underlay_record::{NodeRole, NodeState};

pub(crate) use roster::{NodeProcess, Roster};

use crate::system::SystemError;

/// The nodes of a running system. Every call may come from any thread, at any time, also while another one is under
/// way.
pub trait SystemNodes: Send + Sync {
    /// All of them in an order that stays the same, with those that are away.
    ///
    /// # Errors
    /// When the system can't be asked.
    fn list(&self) -> Result<Vec<NodeState>, SystemError>;

    /// Shuts a node down as an operator would. From now on the system is healthy without it.
    ///
    /// # Errors
    /// When there is no such node, it is away already, or it had to be killed.
    fn stop(&self, name: &str) -> Result<(), SystemError>;

    /// Kills a node (SIGKILL), also one that is being started or stopped: who started it gets an error. From now on the
    /// system is healthy without it.
    ///
    /// # Errors
    /// When there is no such node, or it is away already.
    fn kill(&self, name: &str) -> Result<(), SystemError>;

    /// Starts a node again on its own storage, and returns when it does its part: it is a member again and has what the
    /// others have, as far as the system can tell. Calls `process_back` as soon as its process runs.
    ///
    /// # Errors
    /// When there is no such node, it runs, it does not come up, or it was stopped or killed meanwhile.
    fn start(&self, name: &str, process_back: &(dyn Fn() + Sync)) -> Result<(), SystemError>;
}

/// A node that a system will have, known before it runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedNode {
    /// As [`NodeState::name`].
    pub name: String,
    /// Its possible roles while it runs.
    pub roles: &'static [NodeRole],
    /// Those that it may have a copy of, as in [`NodeState::shards`].
    pub shards: Vec<u32>,
}

/// The share of the data that the fullest of `nodes` stores, where whole copies of `shards` are placed: one node may
/// have one more than another.
pub(crate) fn share_by_whole_shards(shards: u64, copies: u64, nodes: u64) -> f64 {
    let (shards, nodes) = (shards.max(1), nodes.max(1));
    shards.saturating_mul(copies.clamp(1, nodes)).div_ceil(nodes) as f64 / shards as f64
}

/// That there is no node of this name, with those that there are.
pub fn unknown<'a>(
    system: &'static str,
    during: &'static str,
    name: &str,
    names: impl IntoIterator<Item = &'a str>,
) -> SystemError {
    let names: Vec<&str> = names.into_iter().collect();
    let problem = format!("there is no node '{name}': expected one of {}", names.join(", "));
    SystemError::failed(system, during, problem)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fullest_node_has_whole_shards() {
        for (shards, copies, nodes, expected) in
            [(1, 3, 3, 1.0), (2, 3, 6, 0.5), (4, 3, 4, 0.75), (3, 3, 4, 1.0), (0, 0, 0, 1.0)]
        {
            assert_eq!(share_by_whole_shards(shards, copies, nodes), expected, "{shards} {copies} {nodes}");
        }
    }
}
