//! The directories that a system is given.

use std::collections::BTreeMap;
use std::path::PathBuf;

/// Where a system may keep its data: one directory per volume of the cell's storage.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoragePaths {
    pub data: Vec<PathBuf>,
    /// Separate directories for parts of what it stores, by the role's name in
    /// [`SystemCapabilities::roles`](crate::system::SystemCapabilities::roles). A role that is missing here goes to the
    /// first data directory.
    pub roles: BTreeMap<String, PathBuf>,
    /// The storage of the second and each later node, for a system of several nodes. Empty: the nodes share `data` and
    /// `roles`, with a directory each.
    pub further_nodes: Vec<NodePaths>,
    /// For everything that isn't data, such as logs, sockets and configuration. Not on the storage under test.
    pub scratch: PathBuf,
}

/// The storage of one node among several: see [`StoragePaths`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodePaths {
    pub data: Vec<PathBuf>,
    pub roles: BTreeMap<String, PathBuf>,
}

impl StoragePaths {
    /// The data directories of all nodes, in the order in which a record numbers them.
    pub(crate) fn data_of_all(&self) -> impl Iterator<Item = &PathBuf> {
        self.data.iter().chain(self.further_nodes.iter().flat_map(|node| &node.data))
    }

    /// The storage of the node with this number, from 0: its own, or the shared one.
    pub(crate) fn node_paths(&self, number: usize) -> NodePaths {
        match number.checked_sub(1).and_then(|further| self.further_nodes.get(further)) {
            Some(own) => own.clone(),
            None => NodePaths { data: self.data.clone(), roles: self.roles.clone() },
        }
    }
}
