//! How the budget is divided among the processes of an instance and the page cache.

use crate::memory_plan::ProcessMemory;

pub(super) const MIB: u64 = 1 << 20;

/// A Java process's memory besides its heap for code, classes and stacks. Measured: 60 to 70 MiB.
pub(super) const JAVA_OWN_BYTES: u64 = 72 * MIB;
/// Tablet servers need more: they use both compilers and have a thread per client.
const SERVER_OWN_BYTES: u64 = 112 * MIB;
/// Buffers for its sockets and HDFS outside of its heap.
pub(super) const SERVER_DIRECT_BYTES: u64 = 32 * MIB;
/// A tablet server's heap besides maps and caches: blocks and packets of compactions, open files and requests.
const SERVER_BASE_BYTES: u64 = 64 * MIB;
/// With a larger heap, measurements would mostly show pauses of the serial collector. The remainder is page cache.
const MAX_HEAP_BYTES: u64 = 8 << 30;
/// With less than this, a tablet server spends its time flushing its maps.
const MIN_DATA_BYTES: u64 = 64 * MIB;

pub(super) const ZOOKEEPER_HEAP_BYTES: u64 = 48 * MIB;
pub(super) const MANAGER_HEAP_BYTES: u64 = 96 * MIB;
pub(super) const GC_HEAP_BYTES: u64 = 56 * MIB;

/// How the memory that is left for data is divided. The rest is page cache.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct DataShares {
    pub map: f64,
    pub data_cache: f64,
    pub index_cache: f64,
}

/// The sizes that follow from a budget. Those of tablet servers are per server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AccumuloMemoryLayout {
    pub heap_bytes: u64,
    /// For new writes, as Accumulo counts them.
    pub map_bytes: u64,
    pub data_cache_bytes: u64,
    pub index_cache_bytes: u64,
    /// Mutations between the network and the log.
    pub queue_bytes: u64,
    /// For sorting logs after a crash.
    pub sort_bytes: u64,
    /// The rest of the whole budget.
    pub page_cache_bytes: u64,
}

/// The memory of the processes that hold no data, without HDFS: ZooKeeper, manager and garbage collector.
fn fixed_bytes() -> u64 {
    ZOOKEEPER_HEAP_BYTES + MANAGER_HEAP_BYTES + GC_HEAP_BYTES + 3 * JAVA_OWN_BYTES
}

fn server_bytes() -> u64 {
    SERVER_OWN_BYTES + SERVER_DIRECT_BYTES + SERVER_BASE_BYTES
}

/// The smallest budget for this many tablet servers on an HDFS that takes `hdfs_bytes`.
pub(super) fn min_bytes(servers: u64, hdfs_bytes: u64) -> u64 {
    hdfs_bytes + fixed_bytes() + servers * (server_bytes() + MIN_DATA_BYTES)
}

/// The processes that hold no data.
pub(super) fn helpers() -> Vec<ProcessMemory> {
    let helper = |kind, heap_bytes| ProcessMemory {
        what: kind,
        count: 1,
        heap_bytes,
        own_bytes: JAVA_OWN_BYTES,
        ..ProcessMemory::default()
    };
    vec![
        helper("ZooKeeper", ZOOKEEPER_HEAP_BYTES),
        helper("manager", MANAGER_HEAP_BYTES),
        helper("garbage collector", GC_HEAP_BYTES),
    ]
}

impl AccumuloMemoryLayout {
    /// Of `count` tablet servers, whose maps may be outside of the heap.
    pub(super) fn tablet_server(&self, count: u64, native_maps: bool) -> ProcessMemory {
        ProcessMemory {
            what: "tablet server",
            count,
            heap_bytes: self.heap_bytes,
            direct_bytes: SERVER_DIRECT_BYTES + if native_maps { self.map_bytes } else { 0 },
            own_bytes: SERVER_OWN_BYTES,
            cache_bytes: self.data_cache_bytes + self.index_cache_bytes,
        }
    }

    /// Divides `budget_bytes`, which must be at least [`min_bytes`]. Maps on the Java heap take about twice what
    /// Accumulo counts.
    pub(super) fn new(
        budget_bytes: u64,
        servers: u64,
        hdfs_bytes: u64,
        shares: DataShares,
        native_maps: bool,
    ) -> AccumuloMemoryLayout {
        let servers = servers.max(1);
        let used_elsewhere = hdfs_bytes + fixed_bytes() + servers * server_bytes();
        let data = (budget_bytes.saturating_sub(used_elsewhere) / servers).max(MIN_DATA_BYTES);
        let part = |share: f64| (data as f64 * share) as u64;
        let (mut map, mut data_cache, mut index_cache) =
            (part(shares.map), part(shares.data_cache), part(shares.index_cache));
        let on_heap = |map: u64, caches: u64| if native_maps { caches } else { map + caches };
        let most = MAX_HEAP_BYTES - SERVER_BASE_BYTES;
        let wanted = on_heap(map, data_cache + index_cache);
        if wanted > most {
            let scaled = |bytes: u64| (bytes as f64 * (most as f64 / wanted as f64)) as u64;
            (map, data_cache, index_cache) =
                (if native_maps { map } else { scaled(map) }, scaled(data_cache), scaled(index_cache));
        }
        let round = |bytes: u64| bytes / MIB * MIB;
        let (data_cache, index_cache) = (round(data_cache), round(index_cache).max(MIB));
        let heap = SERVER_BASE_BYTES + round(on_heap(map, data_cache + index_cache));
        let used = server_bytes() + if native_maps { map } else { 0 } + heap - SERVER_BASE_BYTES;
        AccumuloMemoryLayout {
            heap_bytes: heap,
            map_bytes: round(if native_maps { map } else { map / 2 }).max(2 * MIB),
            data_cache_bytes: data_cache,
            index_cache_bytes: index_cache,
            // A part of the base, however large the caches are.
            queue_bytes: (heap / 20).clamp(2 * MIB, SERVER_BASE_BYTES / 4) / MIB * MIB,
            sort_bytes: (heap / 10).clamp(4 * MIB, 256 * MIB) / MIB * MIB,
            page_cache_bytes: budget_bytes.saturating_sub(hdfs_bytes + fixed_bytes() + servers * used),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SHARES: DataShares = DataShares { map: 0.2, data_cache: 0.25, index_cache: 0.05 };

    proptest! {
        #[test]
        fn memory_layout_fits_budget(
            servers in 1_u64..9,
            hdfs_mib in 250_u64..2000,
            spare_mib in 0_u64..200_000,
            parts in (0.05..0.3, 0.0..0.4, 0.01..0.2),
            native_maps: bool,
        ) {
            let hdfs = hdfs_mib * MIB;
            let budget = min_bytes(servers, hdfs) + spare_mib * MIB;
            let shares = DataShares { map: parts.0, data_cache: parts.1, index_cache: parts.2 };
            let division = AccumuloMemoryLayout::new(budget, servers, hdfs, shares, native_maps);
            let outside = if native_maps { division.map_bytes } else { 0 };
            let server = division.heap_bytes + outside + SERVER_OWN_BYTES + SERVER_DIRECT_BYTES;
            prop_assert!(hdfs + fixed_bytes() + servers * server + division.page_cache_bytes <= budget + servers * 4 * MIB);
            prop_assert!(division.heap_bytes <= MAX_HEAP_BYTES);
            // Accumulo refuses to start otherwise.
            let on_heap = if native_maps { 0 } else { division.map_bytes };
            prop_assert!(
                on_heap + division.data_cache_bytes + division.index_cache_bytes + division.queue_bytes
                    < division.heap_bytes
            );
        }
    }

    #[test]
    fn half_of_the_memory_for_data_stays_page_cache() {
        let hdfs = 300 * MIB;
        let least = min_bytes(2, hdfs);
        let division = AccumuloMemoryLayout::new(least + 1024 * MIB, 2, hdfs, SHARES, false);
        let data = 1024 * MIB + 2 * MIN_DATA_BYTES;
        assert!(division.page_cache_bytes.abs_diff(data / 2) < 4 * MIB, "{division:?}");
    }

    #[test]
    fn caches_and_queue_fit_heap_with_native_maps() {
        let shares = DataShares { map: 0.05, data_cache: 0.058, index_cache: 0.07 };
        let hdfs = 250 * MIB;
        let division = AccumuloMemoryLayout::new(min_bytes(1, hdfs) + 9404 * MIB, 1, hdfs, shares, true);
        let caches = division.data_cache_bytes + division.index_cache_bytes;
        assert!(caches + division.queue_bytes < division.heap_bytes, "{division:?}");
    }

    #[test]
    fn very_large_budget_goes_to_page_cache() {
        let division = AccumuloMemoryLayout::new(200 << 30, 1, 300 * MIB, SHARES, false);
        assert!(
            division.heap_bytes <= MAX_HEAP_BYTES && division.page_cache_bytes > 180 << 30,
            "{division:?}"
        );
    }
}
