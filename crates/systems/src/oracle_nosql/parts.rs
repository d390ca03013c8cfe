//! A store's parts: storage nodes, each with a directory for every replication node that it has room for.

use super::config::NosqlConfig;
use super::places::{name, volume};
use crate::parts::SystemPart;
use crate::system::StoragePaths;

pub(super) fn parts(paths: &StoragePaths, config: &NosqlConfig) -> Vec<SystemPart> {
    if config.existing().is_some() {
        return Vec::new();
    }
    let part = |number: u64| {
        let volumes =
            (0..config.capacity).filter_map(|before| volume(paths, config.nodes, number, before).ok());
        SystemPart::new(name(number), "storage node").keeping_in("data", volumes)
    };
    (1..=config.nodes).map(part).collect()
}
