//! A system's use of its memory.

use underlay_systems::memory_plan::{ClientLoad, MemoryPlan};

use super::{StorageSpec, Study, SystemSpec, WorkloadSpec};

impl SystemSpec {
    /// How one of its servers uses a budget on this storage configuration; `None` where its kind does not know that
    /// before it starts.
    ///
    /// # Errors
    /// Why it would not start or keep running, in a sentence.
    pub(in crate::spec) fn memory_on(
        &self,
        storage: &StorageSpec,
        budget_bytes: u64,
        load: ClientLoad,
    ) -> Option<Result<MemoryPlan, String>> {
        let settings = self.with_nodes(storage.settings_of(self));
        underlay_systems::find(&self.kind)?.memory(&settings, budget_bytes, load)
    }

    /// The workload that puts the highest load on one of its servers at once.
    pub(in crate::spec) fn heaviest(&self, loads: impl Iterator<Item = ClientLoad>) -> ClientLoad {
        let of_each = |load: ClientLoad| ClientLoad { threads: load.threads / self.servers.max(1), ..load };
        let bytes = |load: &ClientLoad| u64::from(load.threads).saturating_mul(load.record_bytes);
        loads.map(of_each).max_by_key(bytes).unwrap_or_default()
    }
}

impl Study {
    /// How one server of each system uses its memory on this machine, on the first storage configuration, as far as
    /// that is known before it starts.
    pub fn memory_here(&self) -> Vec<(&SystemSpec, MemoryPlan)> {
        let Some(storage) = self.storages.first() else { return Vec::new() };
        self.systems.iter().filter_map(|system| Some((system, self.memory_of(system, storage)?))).collect()
    }

    /// The same for one system on this storage configuration.
    pub(crate) fn memory_of(&self, system: &SystemSpec, storage: &StorageSpec) -> Option<MemoryPlan> {
        let load = system.heaviest(self.workloads.iter().map(WorkloadSpec::client_load));
        system.memory_on(storage, self.budget_here(system), load)?.ok()
    }
}

impl WorkloadSpec {
    fn client_load(&self) -> ClientLoad {
        let background = self.beside.as_ref().map_or(0, |background| background.threads);
        let threads = self.threads.iter().copied().max().unwrap_or(0);
        ClientLoad { threads: threads.saturating_add(background), record_bytes: self.record_bytes() }
    }
}
