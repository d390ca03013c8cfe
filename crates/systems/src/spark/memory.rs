//! How the memory budget is divided among Spark and the store below it. The rule is in `docs.md`.

use crate::ceph;
use crate::hdfs::Heaps;

pub(super) const MIB: u64 = 1 << 20;
/// The smallest heap that Spark starts with: it keeps 300 MiB to itself.
pub(super) const MIN_HEAP_BYTES: u64 = 512 * MIB;

/// Of the master and of each worker, which only talk.
pub(super) const SERVER_HEAP_BYTES: u64 = 96 * MIB;
const SERVER_OWN_BYTES: u64 = 108 * MIB;
/// Of YARN's two servers, and of what the application has there besides executors.
pub(super) const YARN_HEAP_BYTES: u64 = 80 * MIB;
const YARN_DIRECT_BYTES: u64 = 32 * MIB;
pub(super) const APPLICATION_MASTER_HEAP_BYTES: u64 = 256 * MIB;
pub(super) const APPLICATION_MASTER_BYTES: u64 = APPLICATION_MASTER_HEAP_BYTES + 128 * MIB;
/// The driver plans queries, and collects small results.
pub(super) const DRIVER_HEAP_BYTES: u64 = 640 * MIB;
/// Java's own part of the driver, and the Python program that it serves.
const DRIVER_OWN_BYTES: u64 = 288 * MIB;
/// What an executor has outside of its heap: code, threads, network buffers, and a Python worker. Measured: 180 to 230 MiB.
pub(super) const EXECUTOR_OWN_BYTES: u64 = 256 * MIB;
const MAX_EXECUTOR_HEAP_BYTES: u64 = 24 * 1024 * MIB;
const MIN_PAGE_CACHE_BYTES: u64 = 128 * MIB;
/// Executors' heaps get one over this of what the servers leave, and a store with a cache of its own one over the other.
const EXECUTOR_SHARE: u64 = 2;
const CACHE_SHARE: u64 = 4;

/// What starts executors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ManagerKind {
    /// Spark's own master and workers.
    Standalone,
    /// A ResourceManager and a NodeManager.
    Yarn,
}

/// What jobs read from and write to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StoreKind {
    Hdfs,
    S3a,
    /// S3 at an endpoint: nothing is started.
    Elsewhere,
    /// What a cluster that runs already has.
    Given,
}

/// What the budget has to cover.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Demand {
    pub budget_bytes: u64,
    pub manager: ManagerKind,
    pub workers: u64,
    pub executors: u64,
    /// If the study sets it.
    pub executor_bytes: Option<u64>,
    pub store: StoreKind,
    pub store_nodes: u64,
    pub store_cache_bytes: Option<u64>,
}

/// The sizes of everything that is started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Division {
    pub executor_heap_bytes: u64,
    pub hdfs: Heaps,
    pub ceph: ceph::Memory,
}

impl Demand {
    /// The smallest budget that is enough.
    pub(super) fn min_bytes(self) -> u64 {
        let heap = self.executor_bytes.unwrap_or(MIN_HEAP_BYTES);
        let cache = self.store_cache_bytes.map_or(0, |bytes| (bytes - 64 * MIB) * self.store_nodes);
        self.fixed_bytes() + self.executors * heap + cache + MIN_PAGE_CACHE_BYTES
    }

    /// Without executors' heaps, caches and pages.
    fn fixed_bytes(self) -> u64 {
        let manager = match self.manager {
            ManagerKind::Standalone => (1 + self.workers) * (SERVER_HEAP_BYTES + SERVER_OWN_BYTES),
            ManagerKind::Yarn => {
                2 * (YARN_HEAP_BYTES + SERVER_OWN_BYTES) + YARN_DIRECT_BYTES + APPLICATION_MASTER_BYTES
            }
        };
        let spark = manager + DRIVER_HEAP_BYTES + DRIVER_OWN_BYTES + self.executors * EXECUTOR_OWN_BYTES;
        let store = match self.store {
            StoreKind::Hdfs => Heaps::of(0).resident_bytes(self.store_nodes),
            StoreKind::S3a => ceph::Memory::min_bytes(self.store_nodes),
            StoreKind::Elsewhere | StoreKind::Given => 0,
        };
        spark + store
    }
}

impl Division {
    pub(super) fn of(demand: Demand) -> Division {
        let left = demand.budget_bytes.saturating_sub(demand.fixed_bytes());
        let share = left / EXECUTOR_SHARE / demand.executors.max(1) / MIB * MIB;
        let executor_heap_bytes =
            demand.executor_bytes.unwrap_or(share.clamp(MIN_HEAP_BYTES, MAX_EXECUTOR_HEAP_BYTES));
        let left = left.saturating_sub(demand.executors * executor_heap_bytes + MIN_PAGE_CACHE_BYTES);
        let minimum = ceph::Memory::min_bytes(demand.store_nodes);
        let ceph = match demand.store_cache_bytes {
            Some(cache_bytes) => ceph::Memory { cache_bytes },
            None => ceph::Memory::of(minimum.saturating_add(left / CACHE_SHARE), demand.store_nodes),
        };
        Division { executor_heap_bytes, hdfs: Heaps::of(0), ceph }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_divided_fits_into_the_budget() {
        for store in [StoreKind::Hdfs, StoreKind::S3a, StoreKind::Elsewhere] {
            for (workers, executors, store_nodes) in [(1, 1, 1), (2, 4, 3), (1, 8, 7)] {
                let demand = Demand {
                    budget_bytes: 0,
                    manager: if workers == 2 { ManagerKind::Yarn } else { ManagerKind::Standalone },
                    workers,
                    executors,
                    executor_bytes: None,
                    store,
                    store_nodes,
                    store_cache_bytes: None,
                };
                let mut budget_bytes = demand.min_bytes();
                while budget_bytes < 1 << 40 {
                    let demand = Demand { budget_bytes, ..demand };
                    let division = Division::of(demand);
                    let caches = match store {
                        StoreKind::Hdfs | StoreKind::Elsewhere | StoreKind::Given => 0,
                        StoreKind::S3a => (division.ceph.cache_bytes - 64 * MIB) * store_nodes,
                    };
                    let used = demand.fixed_bytes() + executors * division.executor_heap_bytes + caches;
                    assert!(used + MIN_PAGE_CACHE_BYTES <= budget_bytes, "{used} of {budget_bytes}");
                    assert!(division.executor_heap_bytes >= MIN_HEAP_BYTES);
                    budget_bytes += budget_bytes / 3;
                }
            }
        }
    }
}
