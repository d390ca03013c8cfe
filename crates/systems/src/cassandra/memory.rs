//! How a node's part of the memory budget is divided. The rule is in `docs.md`.

use crate::memory_plan::ClientLoad;

pub(super) const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// With less, nothing is left for the page cache besides Java itself.
pub(super) const MIN_NODE_BYTES: u64 = 512 * MIB;
/// Java's memory besides its heap and direct memory for code, classes, threads and the collector.
pub(super) const JAVA_OWN_BYTES: u64 = 192 * MIB;
const MIN_HEAP_BYTES: u64 = 160 * MIB;
/// Cassandra's own heap besides memtables: schema, metrics, the key cache and current requests. Measured after full
/// collections, with 85 clients writing and during compactions: 75 to 80 MiB.
const CASSANDRA_HEAP_BYTES: u64 = 80 * MIB;
/// One over this of the heap is reserved for what compactions and bursts of requests need temporarily. Without it, the
/// old generation of a small heap would be full when the memtables are, and the node would end with an
/// OutOfMemoryError.
const RESERVE_PARTS: u64 = 10;
/// Java's compressed pointers end at 32 GiB: a somewhat larger heap holds less.
const MAX_HEAP_BYTES: u64 = 31 * GIB;
/// The limit of Cassandra's own rule, unless the study sets a share.
const MAX_DEFAULT_HEAP_BYTES: u64 = 8 * GIB;
pub(crate) const DEFAULT_HEAP_SHARE: f64 = 0.25;
const MIN_DIRECT_BYTES: u64 = 64 * MIB;
const MAX_DIRECT_BYTES: u64 = 2 * GIB;
const MAX_FILE_BUFFER_BYTES: u64 = 512 * MIB;
const MAX_COMMITLOG_BYTES: u64 = 8 * GIB;
/// From this heap size on, a concurrent collector (G1) is worth its overhead.
const CONCURRENT_COLLECTOR_BYTES: u64 = GIB;
/// From this heap size on, scans of compressed tables read ahead: a thread that scans or compacts keeps 256 KiB for
/// each SSTable. Some dozens of SSTables ended nodes of 160 and 190 MiB with an OutOfMemoryError.
const READ_AHEAD_HEAP_BYTES: u64 = GIB;

/// The heap that the threads for one processor may need: 48 of them ended a node of 160 MiB with an OutOfMemoryError
/// while it settled.
const HEAP_OF_A_PROCESSOR_BYTES: u64 = 16 * MIB;

/// As a frame of the protocol, as values, as a mutation for the memtable or a row that was read, and as the answer or
/// the commit log's buffer.
const COPIES_OF_A_REQUEST: u64 = 4;

/// The sizes of one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CassandraMemoryLayout {
    pub heap_bytes: u64,
    /// The young generation, where objects are allocated.
    pub young_bytes: u64,
    /// For buffers outside the heap, including the next two.
    pub direct_bytes: u64,
    pub file_buffer_bytes: u64,
    pub network_cache_bytes: u64,
    pub memtable_bytes: u64,
    pub commitlog_segment_bytes: u64,
    pub commitlog_bytes: u64,
    pub concurrent_collector: bool,
    pub scans_read_ahead: bool,
}

impl CassandraMemoryLayout {
    /// Divides a node's memory; `heap_share` of it is for the heap.
    pub(super) fn new(node_bytes: u64, heap_share: f64) -> CassandraMemoryLayout {
        let direct_bytes = (node_bytes / 8).clamp(MIN_DIRECT_BYTES, MAX_DIRECT_BYTES);
        let most = match heap_share == DEFAULT_HEAP_SHARE {
            true => MAX_DEFAULT_HEAP_BYTES,
            false => MAX_HEAP_BYTES,
        };
        // If the heap didn't fit into the budget, the kernel would kill the node.
        let room = node_bytes.saturating_sub(direct_bytes + JAVA_OWN_BYTES).max(MIN_HEAP_BYTES);
        let heap_bytes = ((node_bytes as f64 * heap_share) as u64).clamp(MIN_HEAP_BYTES, most).min(room);
        let heap_bytes = heap_bytes / MIB * MIB;
        let young_bytes = heap_bytes / 4 / MIB * MIB;
        // Memtables outlive the young generation: they must fit into the old one together with everything else that
        // stays.
        let held_bytes = young_bytes + CASSANDRA_HEAP_BYTES + heap_bytes / RESERVE_PARTS;
        let memtable_bytes = (heap_bytes / 4).min(heap_bytes.saturating_sub(held_bytes)) / MIB * MIB;
        let commitlog_segment_bytes =
            (node_bytes / 64).clamp(4 * MIB, 32 * MIB).next_power_of_two().min(32 * MIB);
        CassandraMemoryLayout {
            heap_bytes,
            young_bytes,
            direct_bytes: direct_bytes / MIB * MIB,
            file_buffer_bytes: (direct_bytes / 2).min(MAX_FILE_BUFFER_BYTES) / MIB * MIB,
            network_cache_bytes: (direct_bytes / 8) / MIB * MIB,
            memtable_bytes,
            commitlog_segment_bytes,
            commitlog_bytes: node_bytes.clamp(4 * commitlog_segment_bytes, MAX_COMMITLOG_BYTES) / MIB * MIB,
            concurrent_collector: heap_bytes >= CONCURRENT_COLLECTOR_BYTES,
            scans_read_ahead: heap_bytes >= READ_AHEAD_HEAP_BYTES,
        }
    }

    /// The heap of requests in flight on a node: each client has one, any node may have all of them, and each is there
    /// some [`COPIES_OF_A_REQUEST`] times over.
    pub(super) fn request_bytes(&self, load: ClientLoad) -> u64 {
        u64::from(load.threads).saturating_mul(load.record_bytes).saturating_mul(COPIES_OF_A_REQUEST)
    }

    /// A heap's room for that: its reserve, and the young generation, where they begin.
    pub(super) fn room_for_requests(&self) -> u64 {
        self.young_bytes + self.heap_bytes / RESERVE_PARTS
    }

    /// So many processors may a node count.
    pub(super) fn most_processors(&self) -> u32 {
        u32::try_from(self.heap_bytes / HEAP_OF_A_PROCESSOR_BYTES).unwrap_or(u32::MAX).max(1)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use crate::cassandra::INSTALLED;
    use crate::memory_plan::ClientLoad;
    use crate::system::System as _;

    use super::*;
    use crate::system::SystemResources;

    #[test]
    fn memory_layout_fits_budget() {
        let mut node_bytes = MIN_NODE_BYTES;
        while node_bytes < 1 << 40 {
            for share in [0.05, 0.25, 0.5, 0.8] {
                let division = CassandraMemoryLayout::new(node_bytes, share);
                let used = division.heap_bytes + division.direct_bytes + JAVA_OWN_BYTES;
                assert!(used <= node_bytes, "{used} of {node_bytes} at {share}");
                assert!(division.file_buffer_bytes + division.network_cache_bytes < division.direct_bytes);
                let used_bytes = division.memtable_bytes + division.young_bytes + CASSANDRA_HEAP_BYTES;
                assert!(
                    used_bytes + division.heap_bytes / RESERVE_PARTS <= division.heap_bytes,
                    "{division:?}"
                );
                assert!(division.memtable_bytes >= 24 * MIB, "{division:?}");
                assert!(division.commitlog_segment_bytes * 4 <= division.commitlog_bytes);
                assert!(division.heap_bytes >= MIN_HEAP_BYTES && division.heap_bytes <= MAX_HEAP_BYTES);
            }
            node_bytes *= 2;
        }
    }

    #[test]
    fn only_small_heaps_have_memtables_below_default() {
        let memtable =
            |mib: u64| CassandraMemoryLayout::new(mib * MIB, DEFAULT_HEAP_SHARE).memtable_bytes / MIB;
        assert_eq!([512, 640, 768, 832, 1024, 4096].map(memtable), [24, 24, 44, 52, 64, 256]);
    }

    #[test]
    fn small_heap_limits_processors() {
        let most = |mib: u64| CassandraMemoryLayout::new(mib * MIB, DEFAULT_HEAP_SHARE).most_processors();
        assert_eq!([512, 1024, 4096, 1 << 20].map(most), [10, 16, 64, 512]);
        let resources = SystemResources { modelled_cores: Some(48), ..SystemResources::unlimited() };
        assert_eq!(resources.with_cores_up_to(10).modelled_cores, Some(10));
        assert_eq!(resources.with_cores_up_to(64).modelled_cores, Some(48));
        // This host's count, where no machine is modelled.
        assert_eq!(SystemResources::unlimited().with_cores_up_to(u32::MAX).modelled_cores, None);
        let here = std::thread::available_parallelism().unwrap().get();
        assert_eq!(SystemResources::unlimited().with_cores_up_to(1).modelled_cores, (here > 1).then_some(1));
    }

    #[test]
    fn default_leaves_page_cache() {
        for mib in [512, 1024, 4096, 65536] {
            let division = CassandraMemoryLayout::new(mib * MIB, DEFAULT_HEAP_SHARE);
            let used = division.heap_bytes + division.direct_bytes + JAVA_OWN_BYTES;
            assert!(mib * MIB - used >= 96 * MIB, "{mib} MiB: {used}");
        }
    }
    #[test]
    fn many_large_requests_need_large_heap() {
        let plan = |budget_bytes: u64, record_bytes: u64| {
            let load = ClientLoad { threads: 85, record_bytes };
            INSTALLED.memory(&BTreeMap::new(), budget_bytes, load).unwrap()
        };
        assert!(plan(512 * MIB, 1024).is_ok());
        let error = plan(512 * MIB, 1 << 20).unwrap_err();
        assert!(error.contains("85 clients") && error.contains("heap"), "{error}");
        assert!(plan(16 << 30, 1 << 20).is_ok());
    }
}
