//! A ring's parts: each node keeps all its data on its own storage.

use super::config::CassandraConfig;
use super::ring::name_of;
use crate::parts::SystemPart;
use crate::system::StoragePaths;

pub(super) fn parts(paths: &StoragePaths, config: &CassandraConfig) -> Vec<SystemPart> {
    if !config.endpoints.is_empty() {
        return Vec::new();
    }
    let node = |number: u64| {
        let own = paths.node_paths(usize::try_from(number).unwrap_or(usize::MAX));
        SystemPart::new(name_of(number), "node").keeping_all(&own)
    };
    (0..config.nodes).map(node).collect()
}
