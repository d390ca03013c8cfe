//! How a node's part of the memory budget is divided. The rule is in `docs.md`.

pub const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// Below this there is nothing left for a page cache beside the Java machine itself.
pub const MIN_NODE_BYTES: u64 = 512 * MIB;
/// What the Java machine takes beside its heap and direct memory: code, classes, threads, its collector.
pub const JAVA_OWN_BYTES: u64 = 192 * MIB;
const MIN_HEAP_BYTES: u64 = 160 * MIB;
/// Beyond it, pointers become longer and a heap of twice the size holds no more.
const MAX_HEAP_BYTES: u64 = 31 * GIB;
/// As Cassandra's own rule does without a study's word.
const MAX_DEFAULT_HEAP_BYTES: u64 = 8 * GIB;
pub(crate) const DEFAULT_HEAP_SHARE: f64 = 0.25;
const MIN_DIRECT_BYTES: u64 = 64 * MIB;
const MAX_DIRECT_BYTES: u64 = 2 * GIB;
const MAX_FILE_BUFFER_BYTES: u64 = 512 * MIB;
const MAX_COMMITLOG_BYTES: u64 = 8 * GIB;
/// A collector that works beside the program pays from here on.
const CONCURRENT_COLLECTOR_BYTES: u64 = GIB;

/// The sizes of one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Division {
    pub heap_bytes: u64,
    /// The part of the heap where objects begin.
    pub young_bytes: u64,
    /// For buffers outside the heap, of which the next two are parts.
    pub direct_bytes: u64,
    pub file_buffer_bytes: u64,
    pub network_cache_bytes: u64,
    pub memtable_bytes: u64,
    pub commitlog_segment_bytes: u64,
    pub commitlog_bytes: u64,
    pub concurrent_collector: bool,
}

impl Division {
    /// The division of a node's memory of which `heap_share` is for the heap.
    pub fn of(node_bytes: u64, heap_share: f64) -> Division {
        let direct_bytes = (node_bytes / 8).clamp(MIN_DIRECT_BYTES, MAX_DIRECT_BYTES);
        let most = match heap_share == DEFAULT_HEAP_SHARE {
            true => MAX_DEFAULT_HEAP_BYTES,
            false => MAX_HEAP_BYTES,
        };
        // A heap that the budget can't hold would have the kernel kill the node.
        let room = node_bytes.saturating_sub(direct_bytes + JAVA_OWN_BYTES).max(MIN_HEAP_BYTES);
        let heap_bytes = ((node_bytes as f64 * heap_share) as u64).clamp(MIN_HEAP_BYTES, most).min(room);
        let heap_bytes = heap_bytes / MIB * MIB;
        let commitlog_segment_bytes =
            (node_bytes / 64).clamp(4 * MIB, 32 * MIB).next_power_of_two().min(32 * MIB);
        Division {
            heap_bytes,
            young_bytes: heap_bytes / 4 / MIB * MIB,
            direct_bytes: direct_bytes / MIB * MIB,
            file_buffer_bytes: (direct_bytes / 2).min(MAX_FILE_BUFFER_BYTES) / MIB * MIB,
            network_cache_bytes: (direct_bytes / 8) / MIB * MIB,
            memtable_bytes: heap_bytes / 4 / MIB * MIB,
            commitlog_segment_bytes,
            commitlog_bytes: node_bytes.clamp(4 * commitlog_segment_bytes, MAX_COMMITLOG_BYTES) / MIB * MIB,
            concurrent_collector: heap_bytes >= CONCURRENT_COLLECTOR_BYTES,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_divided_fits_into_the_budget() {
        let mut node_bytes = MIN_NODE_BYTES;
        while node_bytes < 1 << 40 {
            for share in [0.05, 0.25, 0.5, 0.8] {
                let division = Division::of(node_bytes, share);
                let used = division.heap_bytes + division.direct_bytes + JAVA_OWN_BYTES;
                assert!(used <= node_bytes, "{used} of {node_bytes} at {share}");
                assert!(division.file_buffer_bytes + division.network_cache_bytes < division.direct_bytes);
                assert!(division.memtable_bytes + division.young_bytes < division.heap_bytes);
                assert!(division.commitlog_segment_bytes * 4 <= division.commitlog_bytes);
                assert!(division.heap_bytes >= MIN_HEAP_BYTES && division.heap_bytes <= MAX_HEAP_BYTES);
            }
            node_bytes *= 2;
        }
    }

    #[test]
    fn the_default_leaves_a_page_cache() {
        for mib in [512, 1024, 4096, 65536] {
            let division = Division::of(mib * MIB, DEFAULT_HEAP_SHARE);
            let used = division.heap_bytes + division.direct_bytes + JAVA_OWN_BYTES;
            assert!(mib * MIB - used >= 96 * MIB, "{mib} MiB: {used}");
        }
    }
}
