//! How a system will use the memory that it is given, as far as that is known before it starts.

/// The concurrent load of clients.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClientLoad {
    /// Clients of one server or cluster, each with a request under way.
    pub threads: u32,
    pub record_bytes: u64,
}

/// Processes of one kind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProcessMemory {
    /// Such as `node` or `tablet server`.
    pub what: &'static str,
    pub count: u64,
    /// Of each: a JVM's heap, with the caches in it.
    pub heap_bytes: u64,
    /// Of each: buffers outside of the heap.
    pub direct_bytes: u64,
    /// Of each: code, classes, stacks of its threads.
    pub own_bytes: u64,
    /// Of each: what holds records that were read, within the parts above.
    pub cache_bytes: u64,
}

impl ProcessMemory {
    /// Of each of them.
    pub fn bytes(&self) -> u64 {
        self.heap_bytes + self.direct_bytes + self.own_bytes
    }
}

/// The parts of one server's budget.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemoryPlan {
    pub budget_bytes: u64,
    pub processes: Vec<ProcessMemory>,
}

impl MemoryPlan {
    /// The memory limit of all processes.
    pub fn process_bytes(&self) -> u64 {
        self.processes.iter().map(|one| one.count.saturating_mul(one.bytes())).fold(0, u64::saturating_add)
    }

    /// The rest for pages of files.
    pub fn page_cache_bytes(&self) -> u64 {
        self.budget_bytes.saturating_sub(self.process_bytes())
    }

    /// All that can hold records: the processes' own caches and pages of files.
    pub fn cache_bytes(&self) -> u64 {
        let own = self.processes.iter().map(|one| one.count.saturating_mul(one.cache_bytes));
        own.fold(self.page_cache_bytes(), u64::saturating_add)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    const GIB: u64 = 1 << 30;

    fn plan(
        system: &str,
        settings: &[(&str, &str)],
        budget_bytes: u64,
        load: ClientLoad,
    ) -> Result<MemoryPlan, String> {
        let settings: BTreeMap<String, String> =
            settings.iter().map(|&(key, value)| (key.to_owned(), value.to_owned())).collect();
        crate::find(system).unwrap().memory(&settings, budget_bytes, load).expect("it tells")
    }

    #[test]
    fn memory_too_small_for_batch_systems_is_reported_early() {
        for name in ["hadoop", "spark"] {
            let system = crate::find(name).unwrap();
            let plan_for =
                |budget_bytes| system.memory(&BTreeMap::new(), budget_bytes, ClientLoad::default());
            let refused = plan_for(GIB).unwrap().unwrap_err();
            assert!(refused.contains("is too small: expected at least"), "{refused}");
            assert!(plan_for(64 * GIB).unwrap().is_ok());
        }
    }

    #[test]
    fn batch_systems_tell_what_runs_at_once() {
        let count = |plan: &MemoryPlan, kind: &str| {
            plan.processes.iter().filter(|one| one.what == kind).map(|one| one.count).sum::<u64>()
        };
        let none = ClientLoad::default();
        let hadoop =
            plan("hadoop", &[("datanodes", "4"), ("containers", "6"), ("replication", "3")], 16 * GIB, none)
                .unwrap();
        for (kind, expected) in
            [("NameNode", 1), ("DataNode", 4), ("ResourceManager", 1), ("NodeManager", 1), ("task", 6)]
        {
            assert_eq!(count(&hadoop, kind), expected, "{kind} of {hadoop:?}");
        }
        let spark = plan("spark", &[("executors", "3")], 16 * GIB, none).unwrap();
        for (kind, expected) in [("Spark worker", 1), ("driver", 1), ("executor", 3), ("DataNode", 3)] {
            assert_eq!(count(&spark, kind), expected, "{kind} of {spark:?}");
        }
        let store = plan("spark", &[("store", "s3a"), ("osds", "3")], 16 * GIB, none).unwrap();
        assert_eq!((count(&store, "OSD"), count(&store, "DataNode")), (3, 0));
        assert!(store.cache_bytes() > store.page_cache_bytes(), "OSDs have caches of their own: {store:?}");
        for one in [hadoop, spark, store] {
            assert!(one.process_bytes() < 16 * GIB && one.page_cache_bytes() >= 128 << 20, "{one:?}");
        }
    }

    #[test]
    fn memory_decided_by_storage_or_cluster_is_not_planned() {
        let plan_for = |system: &str, settings: &[(&str, &str)]| {
            let settings: BTreeMap<String, String> =
                settings.iter().map(|&(key, value)| (key.to_owned(), value.to_owned())).collect();
            crate::find(system).unwrap().memory(&settings, 16 * GIB, ClientLoad::default())
        };
        assert!(plan_for("spark", &[("store", "s3a")]).is_none(), "as many OSDs as it has directories");
        assert!(plan_for("hadoop", &[("configuration", "/etc/hadoop/conf")]).is_none());
        assert!(plan_for("command", &[("start", "sleep 1")]).is_none(), "all is for its program and pages");
    }

    #[test]
    fn parts_are_never_more_than_the_budget() {
        for (system, settings) in [
            ("cassandra", &[("nodes", "3")][..]),
            ("accumulo", &[("nodes", "2")]),
            ("je", &[]),
            ("je-ha", &[("nodes", "3")]),
            ("oracle-nosql", &[("nodes", "3"), ("capacity", "2")]),
            ("rocksdb", &[]),
            ("hadoop", &[]),
            ("spark", &[]),
        ] {
            for budget in [4 * GIB, 16 * GIB, 200 * GIB] {
                let found =
                    plan(system, settings, budget, ClientLoad { threads: 85, record_bytes: 1024 }).unwrap();
                assert_eq!(found.budget_bytes, budget);
                assert!(found.process_bytes() <= budget, "{system}: {found:?}");
                assert!(found.page_cache_bytes() > 0, "{system}: {found:?}");
                assert!(found.cache_bytes() >= found.page_cache_bytes() && found.cache_bytes() < budget);
            }
        }
    }

    #[test]
    fn memory_too_small_to_run_is_refused() {
        let load = ClientLoad { threads: 85, record_bytes: 1024 };
        for (system, settings) in [
            ("cassandra", &[("nodes", "3")][..]),
            ("accumulo", &[("nodes", "2")]),
            ("je", &[]),
            ("je-ha", &[("nodes", "3")]),
            ("oracle-nosql", &[("nodes", "3"), ("capacity", "2")]),
            ("rocksdb", &[]),
        ] {
            let error = plan(system, settings, 20 << 20, load).unwrap_err();
            assert!(error.contains("too small") && error.contains("MiB"), "{system}: {error}");
        }
        // Room for the process, and none for so many large requests in a small heap.
        assert!(plan("cassandra", &[], GIB / 2, load).is_ok());
        let large = ClientLoad { threads: 85, record_bytes: 1 << 20 };
        let error = plan("cassandra", &[], GIB / 2, large).unwrap_err();
        assert!(error.contains("85 clients") && error.contains("heap"), "{error}");
        assert!(plan("cassandra", &[], 16 * GIB, large).is_ok());
    }
}
