//! What a store consists of: storage nodes, each with a directory for every replication node that it has room for.

use super::config::Config;
use super::places::{name, volume};
use crate::parts::Part;
use crate::system::StoragePaths;

pub(super) fn parts(paths: &StoragePaths, config: &Config) -> Vec<Part> {
    if config.existing().is_some() {
        return Vec::new();
    }
    let part = |number: u64| {
        let volumes =
            (0..config.capacity).filter_map(|before| volume(paths, config.nodes, number, before).ok());
        Part::new(name(number), "storage node").keeping_in("data", volumes)
    };
    (1..=config.nodes).map(part).collect()
}
