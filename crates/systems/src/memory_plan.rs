//! How a system will use the memory that it is given, as far as that is known before it starts.

/// The concurrent load of clients.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClientLoad {
    /// Clients of one server or cluster, each with a request in flight.
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
    use crate::system::System;

    const GIB: u64 = 1 << 30;
    const LOAD: ClientLoad = ClientLoad { threads: 85, record_bytes: 1024 };

    /// The plan of a system of three nodes where it can have them; `None` where it does not tell.
    fn plan(system: &dyn System, budget_bytes: u64) -> Option<Result<MemoryPlan, String>> {
        let mut settings = BTreeMap::new();
        if system.capabilities().many_nodes {
            settings.insert("nodes".to_owned(), "3".to_owned());
        }
        system.memory(&settings, budget_bytes, LOAD)
    }

    #[test]
    fn systems_with_processes_of_their_own_tell_their_memory() {
        for system in crate::all() {
            let capabilities = system.capabilities();
            let is_simple = capabilities.by_command || capabilities.keeps_nothing;
            assert_eq!(plan(system, 64 * GIB).is_none(), is_simple, "{}", system.name());
        }
    }

    #[test]
    fn parts_are_never_more_than_the_budget() {
        for system in crate::all() {
            let name = system.name();
            for budget in [4 * GIB, 16 * GIB, 200 * GIB] {
                let Some(found) = plan(system, budget) else { continue };
                let found = found.unwrap();
                assert_eq!(found.budget_bytes, budget);
                assert!(found.process_bytes() <= budget, "{name}: {found:?}");
                assert!(found.page_cache_bytes() > 0, "{name}: {found:?}");
                assert!(found.cache_bytes() >= found.page_cache_bytes() && found.cache_bytes() < budget);
            }
        }
    }

    #[test]
    fn memory_too_small_to_run_is_refused() {
        for system in crate::all() {
            let Some(found) = plan(system, 20 << 20) else { continue };
            let error = found.unwrap_err();
            assert!(error.contains("too small") && error.contains("MiB"), "{}: {error}", system.name());
        }
    }
}
