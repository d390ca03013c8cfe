//! How the memory budget is divided among Spark and the store below it. The rule is in `docs.md`.

use crate::hdfs::ServerHeaps;
use crate::memory_plan::{MemoryPlan, ProcessMemory};
use crate::{alluxio, ceph, gateway};

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
const APPLICATION_MASTER_OWN_BYTES: u64 = 128 * MIB;
pub(super) const APPLICATION_MASTER_BYTES: u64 = APPLICATION_MASTER_HEAP_BYTES + APPLICATION_MASTER_OWN_BYTES;
/// The driver plans queries, collects small results, and builds what joins hand to all executors: three of the queries
/// do so with a table of 1.9 million rows at any scale, for which 768 MiB are too few.
pub(super) const DRIVER_HEAP_BYTES: u64 = 1024 * MIB;
/// Java's own part of the driver, and the Python program that it serves.
const DRIVER_OWN_BYTES: u64 = 288 * MIB;
/// An executor's memory outside of its heap: code, threads, network buffers, and a Python worker. Measured: 180 to 230
/// MiB.
pub(super) const EXECUTOR_OWN_BYTES: u64 = 256 * MIB;
const MAX_EXECUTOR_HEAP_BYTES: u64 = 24 * 1024 * MIB;
const MIN_PAGE_CACHE_BYTES: u64 = 128 * MIB;
/// Executors' heaps get one over this of what the servers leave, and a store with a cache of its own one over the
/// other.
const EXECUTOR_SHARE: u64 = 2;
const CACHE_SHARE: u64 = 4;
/// A cache in between gets one over this before them.
const BETWEEN_SHARE: u64 = 3;
const MIN_BETWEEN_BYTES: u64 = 64 * MIB;

/// The manager of executors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ManagerKind {
    /// Spark's own master and workers.
    Standalone,
    /// A ResourceManager and a NodeManager.
    Yarn,
}

/// The jobs' store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StoreKind {
    Hdfs,
    S3a,
    /// S3 at an endpoint: nothing is started.
    Elsewhere,
    /// The store of an external cluster.
    Given,
}

/// The cache between jobs and an object store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CacheKind {
    /// Underlay's own S3 gateway.
    Gateway,
    Alluxio,
}

impl CacheKind {
    /// As studies name it.
    pub(super) fn name(self) -> &'static str {
        match self {
            CacheKind::Gateway => "gateway",
            CacheKind::Alluxio => "alluxio",
        }
    }

    /// Its memory besides its memory tier, for so many executors as its clients.
    fn own_bytes(self, executors: u64) -> u64 {
        match self {
            CacheKind::Gateway => gateway::OWN_BYTES,
            CacheKind::Alluxio => alluxio::OWN_BYTES + executors * alluxio::CLIENT_BYTES,
        }
    }
}

/// The memory demand on the budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SparkMemoryDemand {
    pub budget_bytes: u64,
    pub manager: ManagerKind,
    pub workers: u64,
    pub executors: u64,
    /// If the study sets it.
    pub executor_bytes: Option<u64>,
    pub store: StoreKind,
    pub store_nodes: u64,
    pub store_cache_bytes: Option<u64>,
    pub cache: Option<CacheKind>,
    /// Its memory tier, if the study sets it.
    pub cache_bytes: Option<u64>,
}

/// The sizes of everything that is started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SparkMemoryLayout {
    pub executor_heap_bytes: u64,
    pub hdfs: ServerHeaps,
    pub ceph: ceph::CephMemory,
    /// The memory tier of the cache in between; 0 without one.
    pub cache_bytes: u64,
}

impl SparkMemoryDemand {
    /// The smallest budget that is enough.
    pub(super) fn min_bytes(self) -> u64 {
        let between = self.cache.map_or(0, |_| self.cache_bytes.unwrap_or(MIN_BETWEEN_BYTES));
        self.fixed_bytes() + self.without_between_bytes() + between
    }

    /// The least that executors, the store's caches and pages must have.
    fn without_between_bytes(self) -> u64 {
        let heap = self.executor_bytes.unwrap_or(MIN_HEAP_BYTES);
        let cache = self.store_cache_bytes.map_or(0, |bytes| (bytes - 64 * MIB) * self.store_nodes);
        self.executors * heap + cache + MIN_PAGE_CACHE_BYTES
    }

    /// How the budget is used.
    pub(super) fn plan(self) -> MemoryPlan {
        MemoryPlan {
            budget_bytes: self.budget_bytes,
            processes: self.processes(&SparkMemoryLayout::from_demand(self)),
        }
    }

    /// The processes with these sizes, kind by kind.
    fn processes(self, division: &SparkMemoryLayout) -> Vec<ProcessMemory> {
        let process = |kind, count, heap_bytes, own_bytes| ProcessMemory {
            what: kind,
            count,
            heap_bytes,
            own_bytes,
            ..ProcessMemory::default()
        };
        let mut processes = match self.manager {
            ManagerKind::Standalone => vec![
                process("Spark master", 1, SERVER_HEAP_BYTES, SERVER_OWN_BYTES),
                process("Spark worker", self.workers, SERVER_HEAP_BYTES, SERVER_OWN_BYTES),
            ],
            ManagerKind::Yarn => vec![
                process("ResourceManager", 1, YARN_HEAP_BYTES, SERVER_OWN_BYTES),
                ProcessMemory {
                    direct_bytes: YARN_DIRECT_BYTES,
                    ..process("NodeManager", 1, YARN_HEAP_BYTES, SERVER_OWN_BYTES)
                },
                process("application master", 1, APPLICATION_MASTER_HEAP_BYTES, APPLICATION_MASTER_OWN_BYTES),
            ],
        };
        processes.push(process("driver", 1, DRIVER_HEAP_BYTES, DRIVER_OWN_BYTES));
        processes.push(process("executor", self.executors, division.executor_heap_bytes, EXECUTOR_OWN_BYTES));
        match self.store {
            StoreKind::Hdfs => processes.extend(division.hdfs.processes(self.store_nodes)),
            StoreKind::S3a => processes.extend(division.ceph.processes(self.store_nodes)),
            StoreKind::Elsewhere | StoreKind::Given => {}
        }
        processes.extend(self.cache.map(|cache| ProcessMemory {
            what: cache.name(),
            count: 1,
            own_bytes: cache.own_bytes(self.executors) + division.cache_bytes,
            cache_bytes: division.cache_bytes,
            ..ProcessMemory::default()
        }));
        processes
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
            StoreKind::Hdfs => ServerHeaps::from_budget(0).resident_bytes(self.store_nodes),
            StoreKind::S3a => ceph::CephMemory::min_bytes(self.store_nodes),
            StoreKind::Elsewhere | StoreKind::Given => 0,
        };
        spark + store + self.cache.map_or(0, |cache| cache.own_bytes(self.executors))
    }
}

impl SparkMemoryLayout {
    pub(super) fn from_demand(demand: SparkMemoryDemand) -> SparkMemoryLayout {
        let left = demand.budget_bytes.saturating_sub(demand.fixed_bytes());
        let spare = left.saturating_sub(demand.without_between_bytes());
        let share = (left / BETWEEN_SHARE).min(spare).max(MIN_BETWEEN_BYTES) / MIB * MIB;
        let cache_bytes = demand.cache.map_or(0, |_| demand.cache_bytes.unwrap_or(share));
        let left = left.saturating_sub(cache_bytes);
        let share = left / EXECUTOR_SHARE / demand.executors.max(1) / MIB * MIB;
        let executor_heap_bytes =
            demand.executor_bytes.unwrap_or(share.clamp(MIN_HEAP_BYTES, MAX_EXECUTOR_HEAP_BYTES));
        let left = left.saturating_sub(demand.executors * executor_heap_bytes + MIN_PAGE_CACHE_BYTES);
        let minimum = ceph::CephMemory::min_bytes(demand.store_nodes);
        let ceph = match demand.store_cache_bytes {
            Some(cache_bytes) => ceph::CephMemory { cache_bytes },
            None => ceph::CephMemory::new(minimum.saturating_add(left / CACHE_SHARE), demand.store_nodes),
        };
        SparkMemoryLayout { executor_heap_bytes, hdfs: ServerHeaps::from_budget(0), ceph, cache_bytes }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use crate::memory_plan::{ClientLoad, MemoryPlan};
    use crate::spark::INSTALLED;
    use crate::system::System as _;

    use super::*;

    #[test]
    fn memory_layout_fits_budget() {
        let stores = [
            (StoreKind::Hdfs, None),
            (StoreKind::S3a, None),
            (StoreKind::S3a, Some(CacheKind::Gateway)),
            (StoreKind::S3a, Some(CacheKind::Alluxio)),
            (StoreKind::Elsewhere, None),
        ];
        for (store, cache) in stores {
            for (workers, executors, store_nodes) in [(1, 1, 1), (2, 4, 3), (1, 8, 7)] {
                let demand = SparkMemoryDemand {
                    budget_bytes: 0,
                    manager: if workers == 2 { ManagerKind::Yarn } else { ManagerKind::Standalone },
                    workers,
                    executors,
                    executor_bytes: None,
                    store,
                    store_nodes,
                    store_cache_bytes: None,
                    cache,
                    cache_bytes: None,
                };
                let mut budget_bytes = demand.min_bytes();
                while budget_bytes < 1 << 40 {
                    let demand = SparkMemoryDemand { budget_bytes, ..demand };
                    let division = SparkMemoryLayout::from_demand(demand);
                    let caches = match store {
                        StoreKind::Hdfs | StoreKind::Elsewhere | StoreKind::Given => 0,
                        StoreKind::S3a => (division.ceph.cache_bytes - 64 * MIB) * store_nodes,
                    };
                    let used = demand.fixed_bytes()
                        + executors * division.executor_heap_bytes
                        + caches
                        + division.cache_bytes;
                    assert!(used + MIN_PAGE_CACHE_BYTES <= budget_bytes, "{used} of {budget_bytes}");
                    let total: u64 =
                        demand.processes(&division).iter().map(|one| one.count * one.bytes()).sum();
                    assert_eq!(total, used, "{demand:?}");
                    assert!(division.executor_heap_bytes >= MIN_HEAP_BYTES);
                    assert_eq!(division.cache_bytes >= MIN_BETWEEN_BYTES, cache.is_some());
                    // By a third each, so that every order of size up to 1 TiB is met.
                    budget_bytes += budget_bytes / 3;
                }
            }
        }
    }
    fn plan(settings: &[(&str, &str)], budget_bytes: u64) -> Option<Result<MemoryPlan, String>> {
        let settings: BTreeMap<String, String> =
            settings.iter().map(|&(key, value)| (key.to_owned(), value.to_owned())).collect();
        INSTALLED.memory(&settings, budget_bytes, ClientLoad::default())
    }

    #[test]
    fn plan_tells_what_runs_at_once() {
        let count = |plan: &MemoryPlan, kind: &str| {
            plan.processes.iter().filter(|one| one.what == kind).map(|one| one.count).sum::<u64>()
        };
        let on_hdfs = plan(&[("executors", "3")], 16 << 30).unwrap().unwrap();
        for (kind, expected) in [("Spark worker", 1), ("driver", 1), ("executor", 3), ("DataNode", 3)] {
            assert_eq!(count(&on_hdfs, kind), expected, "{kind} of {on_hdfs:?}");
        }
        let on_store = plan(&[("store", "s3a"), ("osds", "3")], 16 << 30).unwrap().unwrap();
        assert_eq!((count(&on_store, "OSD"), count(&on_store, "DataNode")), (3, 0));
        assert!(on_store.cache_bytes() > on_store.page_cache_bytes(), "OSDs have own caches: {on_store:?}");
        for one in [on_hdfs, on_store] {
            assert!(one.process_bytes() < 16 << 30 && one.page_cache_bytes() >= 128 << 20, "{one:?}");
        }
    }

    #[test]
    fn memory_is_planned_before_start_unless_storage_decides() {
        let refused = plan(&[], 1 << 30).unwrap().unwrap_err();
        assert!(refused.contains("is too small: expected at least"), "{refused}");
        assert!(plan(&[], 64 << 30).unwrap().is_ok());
        assert!(plan(&[("store", "s3a")], 16 << 30).is_none(), "as many OSDs as it has directories");
    }
}
