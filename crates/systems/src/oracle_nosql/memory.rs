//! How a budget is divided among the processes of a store, their heaps and the page cache.

use std::collections::BTreeMap;

use crate::memory_plan::ProcessMemory;

pub(crate) const MIB: u64 = 1 << 20;

/// Heaps with which these processes deployed every store of the tests, with version 25.3. Their usual ones are 256 and
/// 128 MiB.
pub(super) const AGENT_HEAP_BYTES: u64 = 32 * MIB;
pub(super) const ADMIN_HEAP_BYTES: u64 = 64 * MIB;
/// Their whole memory, heap included. Measured: 86 to 94 MiB, and 160 MiB.
const AGENT_BYTES: u64 = 100 * MIB;
const ADMIN_BYTES: u64 = 170 * MIB;
/// A replication node's memory besides its heap. Measured: 85 to 110 MiB.
const NODE_OWN_BYTES: u64 = 112 * MIB;
/// Oracle NoSQL Database refuses less.
const MIN_HEAP_BYTES: u64 = 48 * MIB;
pub(super) const MIN_CACHE_BYTES: u64 = 33 * MIB;
/// With a larger heap, measurements would mostly show pauses of the serial collector. The remainder is page cache.
const MAX_HEAP_BYTES: u64 = 8 << 30;
/// For the page cache of each replication node, without which hardly anything would ever be read from memory.
const MIN_PAGE_CACHE_BYTES: u64 = 8 * MIB;

pub(crate) const DEFAULT_HEAP_SHARE: f64 = 0.6;
/// That of Oracle NoSQL Database.
pub(crate) const DEFAULT_CACHE_SHARE: f64 = 0.7;

/// The smallest budget of so many storage nodes, the administration and so many replication nodes.
pub(super) fn min_bytes(nodes: u64, replication_nodes: u64) -> u64 {
    let of_replication_node = NODE_OWN_BYTES + MIN_HEAP_BYTES + MIN_PAGE_CACHE_BYTES;
    nodes * AGENT_BYTES + ADMIN_BYTES + replication_nodes * of_replication_node
}

/// The sizes of one replication node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NosqlMemoryLayout {
    pub heap_bytes: u64,
    /// JE's cache, in the heap.
    pub cache_bytes: u64,
    pub page_cache_bytes: u64,
}

impl NosqlMemoryLayout {
    /// Divides a budget of at least [`min_bytes`]: of what is left beside Java, `heap_share` is heap, and `cache_share`
    /// of that is JE's cache.
    pub(crate) fn new(
        budget_bytes: u64,
        nodes: u64,
        replication_nodes: u64,
        (heap_share, cache_share): (f64, f64),
    ) -> NosqlMemoryLayout {
        let own_bytes = nodes * AGENT_BYTES + ADMIN_BYTES + replication_nodes * NODE_OWN_BYTES;
        let left = budget_bytes.saturating_sub(own_bytes) / replication_nodes.max(1);
        let heap = ((left as f64 * heap_share) as u64).clamp(MIN_HEAP_BYTES, MAX_HEAP_BYTES) / MIB * MIB;
        let cache = (heap as f64 * cache_share) as u64;
        NosqlMemoryLayout {
            heap_bytes: heap,
            cache_bytes: cache.max(MIN_CACHE_BYTES),
            page_cache_bytes: left.saturating_sub(heap),
        }
    }

    /// The memory that one storage node with so many replication nodes gets as its own.
    pub(super) fn storage_node_mib(&self, replication_nodes: u64) -> u64 {
        (AGENT_BYTES + replication_nodes * (NODE_OWN_BYTES + self.heap_bytes + self.page_cache_bytes)) / MIB
    }

    /// Java's options for a replication node. The cache lives long: by Java's own rule the old generation would be two
    /// thirds of the heap, and a larger cache would keep the collector busy without end.
    pub(super) fn java_options(&self) -> String {
        let (heap_mib, young) = (self.heap_bytes / MIB, (self.heap_bytes - self.cache_bytes) / 2);
        format!("-Xms{heap_mib}m -Xmx{heap_mib}m -Xmn{}k", young >> 10)
    }

    /// Everything that runs in the budget.
    pub(super) fn processes(&self, nodes: u64, replication_nodes: u64) -> Vec<ProcessMemory> {
        let other = |kind, count, bytes, heap_bytes| ProcessMemory {
            what: kind,
            count,
            heap_bytes,
            own_bytes: bytes - heap_bytes,
            ..ProcessMemory::default()
        };
        let replication_node = ProcessMemory {
            what: "replication node",
            count: replication_nodes,
            heap_bytes: self.heap_bytes,
            own_bytes: NODE_OWN_BYTES,
            cache_bytes: self.cache_bytes,
            ..ProcessMemory::default()
        };
        vec![
            other("agent", nodes, AGENT_BYTES, AGENT_HEAP_BYTES),
            other("administration", 1, ADMIN_BYTES, ADMIN_HEAP_BYTES),
            replication_node,
        ]
    }

    /// For the record.
    pub(crate) fn applied(&self) -> BTreeMap<String, String> {
        let sizes = [
            ("heap_bytes", self.heap_bytes),
            ("cache_bytes", self.cache_bytes),
            ("page_cache_bytes", self.page_cache_bytes),
        ];
        sizes.map(|(name, bytes)| (name.to_owned(), bytes.to_string())).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_layout_fits_budget() {
        for (nodes, replication_nodes) in [(1, 1), (3, 3), (3, 6), (3, 9), (5, 3)] {
            let least = min_bytes(nodes, replication_nodes);
            for bytes in [least, 2 * least, 100 * least] {
                for shares in [(0.1, 0.1), (0.6, 0.7), (0.9, 0.8)] {
                    let division = NosqlMemoryLayout::new(bytes, nodes, replication_nodes, shares);
                    let each = NODE_OWN_BYTES + division.heap_bytes + division.page_cache_bytes;
                    let all = nodes * AGENT_BYTES + ADMIN_BYTES + replication_nodes * each;
                    assert!(all <= bytes, "{division:?}: {all} of {bytes}");
                    assert!(division.cache_bytes >= MIN_CACHE_BYTES);
                    assert!(division.cache_bytes < division.heap_bytes * 9 / 10, "{division:?}");
                    assert!(division.page_cache_bytes > 0);
                }
            }
        }
        let division = NosqlMemoryLayout::new(min_bytes(3, 3), 3, 3, (0.6, 0.7));
        assert_eq!((division.heap_bytes, division.page_cache_bytes), (48 * MIB, 8 * MIB));
        assert_eq!(division.java_options(), "-Xms48m -Xmx48m -Xmn7372k");
    }
}
