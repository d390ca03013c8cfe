//! How the memory budget is divided among the servers and the tasks. The rule is in `docs.md`.

use crate::hdfs::ServerHeaps;
use crate::memory_plan::ProcessMemory;

pub(super) const MIB: u64 = 1 << 20;

/// The memory of a Java process of YARN besides its heap for code, classes and threads. Measured: 90 to 102 MiB for the
/// ResourceManager and the NodeManager, 70 to 85 MiB for a task.
const SERVER_OWN_BYTES: u64 = 108 * MIB;
const TASK_OWN_BYTES: u64 = 88 * MIB;
const SERVER_HEAP_BYTES: u64 = 80 * MIB;
const MASTER_HEAP_BYTES: u64 = 80 * MIB;
/// Direct buffers for serving map outputs.
pub(super) const NODE_DIRECT_BYTES: u64 = 32 * MIB;
const MIN_TASK_HEAP_BYTES: u64 = 112 * MIB;
const MAX_TASK_HEAP_BYTES: u64 = 2048 * MIB;
const MIN_PAGE_CACHE_BYTES: u64 = 128 * MIB;
/// The share of a task's heap for sorting map output. The rest holds buffers for files and the network.
const SORT_SHARE: f64 = 0.4;
const MAX_SORT_BYTES: u64 = 1024 * MIB;
/// Tasks get one over this of what the servers leave; the rest is page cache.
const TASK_SHARE: u64 = 2;

/// The memory demand on the budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HadoopMemoryDemand {
    pub budget_bytes: u64,
    pub datanodes: u64,
    /// Tasks that run at once.
    pub containers: u64,
    /// The sort buffer of a map task, if the study sets it.
    pub sort_buffer_bytes: Option<u64>,
}

impl HadoopMemoryDemand {
    /// The smallest budget that is enough.
    pub(crate) fn min_bytes(self) -> u64 {
        let smallest = HadoopMemoryLayout::from_demand(HadoopMemoryDemand { budget_bytes: 0, ..self });
        smallest.servers_bytes() + smallest.containers * smallest.task_bytes() + MIN_PAGE_CACHE_BYTES
    }
}

/// The sizes of everything that is started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct HadoopMemoryLayout {
    pub hdfs: ServerHeaps,
    /// Of the ResourceManager and of the NodeManager.
    pub server_heap_bytes: u64,
    /// Of a job's application master.
    pub master_heap_bytes: u64,
    pub task_heap_bytes: u64,
    pub sort_buffer_bytes: u64,
    pub containers: u64,
    datanodes: u64,
}

impl HadoopMemoryLayout {
    /// Divides a budget. The parts' sum may exceed a budget that is too small.
    pub(crate) fn from_demand(demand: HadoopMemoryDemand) -> HadoopMemoryLayout {
        let mut division = HadoopMemoryLayout {
            hdfs: ServerHeaps::from_budget(0),
            server_heap_bytes: SERVER_HEAP_BYTES,
            master_heap_bytes: MASTER_HEAP_BYTES,
            task_heap_bytes: 0,
            sort_buffer_bytes: 0,
            containers: demand.containers,
            datanodes: demand.datanodes,
        };
        let generous = HadoopMemoryLayout { hdfs: ServerHeaps::from_budget(demand.budget_bytes), ..division };
        let least_tasks = demand.containers * (MIN_TASK_HEAP_BYTES + TASK_OWN_BYTES);
        let comfortable = generous.servers_bytes() + 2 * least_tasks + MIN_PAGE_CACHE_BYTES;
        if comfortable <= demand.budget_bytes {
            division = generous;
        }
        let left = demand.budget_bytes.saturating_sub(division.servers_bytes());
        let task = (left / TASK_SHARE / demand.containers.max(1)).saturating_sub(TASK_OWN_BYTES);
        division.task_heap_bytes = task.clamp(MIN_TASK_HEAP_BYTES, MAX_TASK_HEAP_BYTES) / MIB * MIB;
        let sort = ((division.task_heap_bytes as f64 * SORT_SHARE) as u64).min(MAX_SORT_BYTES);
        division.sort_buffer_bytes = demand.sort_buffer_bytes.unwrap_or(sort / MIB * MIB);
        division
    }

    /// HDFS, YARN and the master of one job.
    fn servers_bytes(&self) -> u64 {
        let yarn = 2 * (self.server_heap_bytes + SERVER_OWN_BYTES) + NODE_DIRECT_BYTES;
        self.hdfs.resident_bytes(self.datanodes) + yarn + self.master_bytes()
    }

    /// Everything that runs at once, kind by kind: HDFS, YARN, and a job.
    pub(super) fn processes(&self) -> Vec<ProcessMemory> {
        let java = |kind, count, heap_bytes, own_bytes| ProcessMemory {
            what: kind,
            count,
            heap_bytes,
            own_bytes,
            ..ProcessMemory::default()
        };
        let node_manager = java("NodeManager", 1, self.server_heap_bytes, SERVER_OWN_BYTES);
        let mut processes = self.hdfs.processes(self.datanodes);
        processes.extend([
            java("ResourceManager", 1, self.server_heap_bytes, SERVER_OWN_BYTES),
            ProcessMemory { direct_bytes: NODE_DIRECT_BYTES, ..node_manager },
            java("application master", 1, self.master_heap_bytes, TASK_OWN_BYTES),
            java("task", self.containers, self.task_heap_bytes, TASK_OWN_BYTES),
        ]);
        processes
    }

    /// The memory of an application master as YARN counts it.
    pub(super) fn master_bytes(&self) -> u64 {
        self.master_heap_bytes + TASK_OWN_BYTES
    }

    /// The memory of a task as YARN counts it.
    pub(super) fn task_bytes(&self) -> u64 {
        self.task_heap_bytes + TASK_OWN_BYTES
    }

    /// The bytes that the NodeManager may allocate: one master and the tasks. Since a master is smaller than a task, no
    /// further task fits beside a single master.
    pub(super) fn node_bytes(&self) -> u64 {
        self.master_bytes() + self.containers * self.task_bytes()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use crate::hadoop::INSTALLED;
    use crate::memory_plan::{ClientLoad, MemoryPlan};
    use crate::system::System as _;

    use super::*;

    #[test]
    fn memory_layout_fits_budget_and_leaves_page_cache() {
        for containers in [1, 2, 8] {
            for datanodes in [1, 3, 20] {
                let demand =
                    HadoopMemoryDemand { budget_bytes: 0, datanodes, containers, sort_buffer_bytes: None };
                let mut budget_bytes = demand.min_bytes();
                while budget_bytes < 1 << 40 {
                    let division =
                        HadoopMemoryLayout::from_demand(HadoopMemoryDemand { budget_bytes, ..demand });
                    let used = division.servers_bytes() + containers * division.task_bytes();
                    assert!(used + MIN_PAGE_CACHE_BYTES <= budget_bytes, "{used} of {budget_bytes}");
                    let total: u64 = division.processes().iter().map(|one| one.count * one.bytes()).sum();
                    assert_eq!(total, used);
                    assert!(division.sort_buffer_bytes * 2 < division.task_heap_bytes);
                    assert!(division.master_bytes() < division.task_bytes());
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
        let settings = [("datanodes", "4"), ("containers", "6"), ("replication", "3")];
        let plan = plan(&settings, 16 << 30).unwrap().unwrap();
        for (kind, expected) in
            [("NameNode", 1), ("DataNode", 4), ("ResourceManager", 1), ("NodeManager", 1), ("task", 6)]
        {
            let count: u64 = plan.processes.iter().filter(|one| one.what == kind).map(|one| one.count).sum();
            assert_eq!(count, expected, "{kind} of {plan:?}");
        }
        assert!(plan.process_bytes() < 16 << 30 && plan.page_cache_bytes() >= 128 << 20, "{plan:?}");
    }

    #[test]
    fn memory_is_planned_before_start_unless_cluster_runs_already() {
        let refused = plan(&[], 1 << 30).unwrap().unwrap_err();
        assert!(refused.contains("is too small: expected at least"), "{refused}");
        assert!(plan(&[], 64 << 30).unwrap().is_ok());
        assert!(plan(&[("configuration", "/etc/hadoop/conf")], 16 << 30).is_none());
    }
}
