//! The study's plan of one cell, scaled to this machine.

use std::time::Duration;

use underlay_record::{Cell, PlannedCell, RequestWork, ScaleFactors};
use underlay_systems::system::SystemSettings;
use underlay_workload::{OperationKind, OperationMix};

use super::CellError;
use crate::plan::{self, CellWork};
use crate::spec::{BenchmarkSpec, JobSpec, StorageSpec, Study, SystemSpec, WorkloadSpec};

/// How long a client waits for an answer in modelled time; slow motion stretches it.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(30);

/// A cell with everything that the study says about it, scaled to this machine.
pub(super) struct CellPlan<'a> {
    pub study: &'a Study,
    pub planned: &'a PlannedCell,
    pub position: u32,
    pub system: &'a SystemSpec,
    /// Includes the devices of all nodes where each has its own.
    pub storage: StorageSpec,
    pub workload: &'a WorkloadSpec,
    /// A batch job instead of requests.
    pub job: Option<&'a JobSpec>,
    /// A command of the user's instead of requests.
    pub benchmark: Option<&'a BenchmarkSpec>,
    pub scale: ScaleFactors,
    pub seed: u64,
    /// For one server, like the next two.
    pub records_here: u64,
    pub data_bytes_here: u64,
    pub budget_bytes: u64,
    pub dataset_key: String,
}

impl<'a> CellPlan<'a> {
    /// `None` when the study has no such cell.
    pub(super) fn new(study: &'a Study, planned: &'a PlannedCell, position: u32) -> Option<Self> {
        let entry = plan::entries(study).into_iter().find(|entry| entry.cell.id == planned.cell.id)?;
        let mut benchmark = None;
        let (job, records_here, data_bytes_here) = match entry.asked {
            CellWork::Requests(size) => {
                let records = study.records_here(entry.system.share(size.records));
                (None, records, records * entry.workload.record_bytes())
            }
            CellWork::Job(job) => (Some(job), 0, study.bytes_here(job.data_bytes)),
            CellWork::Benchmark(asked) => {
                benchmark = Some(asked);
                let data_bytes = if asked.data_bytes == 0 { 0 } else { study.bytes_here(asked.data_bytes) };
                (None, 0, data_bytes)
            }
        };
        Some(CellPlan {
            study,
            planned,
            position,
            system: entry.system,
            storage: entry.storage.under(entry.system),
            workload: entry.workload,
            job,
            benchmark,
            scale: study.scale,
            // Every storage configuration gets the same order of requests; each repetition gets its own.
            seed: study.run.seed.wrapping_add(u64::from(planned.repetition)),
            records_here,
            data_bytes_here,
            budget_bytes: study.budget_here(entry.system),
            dataset_key: plan::dataset_key(study, &planned.cell),
        })
    }

    pub(super) fn cell(&self) -> &Cell {
        &self.planned.cell
    }

    /// The part of the budget that can hold records.
    pub(super) fn cache_bytes(&self) -> u64 {
        let memory_plan = self.study.memory_of(self.system, &self.storage);
        memory_plan.map_or_else(
            || self.budget_bytes.saturating_sub(self.system.fixed_memory_bytes),
            |plan| plan.cache_bytes(),
        )
    }

    /// The requests of its clients.
    pub(super) fn requests(&self) -> Result<&RequestWork, CellError> {
        let of_job = || CellError::Failed(format!("{} is a batch job and sends no requests", self.cell().id));
        self.cell().requests().ok_or_else(of_job)
    }

    /// The storage of every server besides the compared one: the system's role and its storage.
    pub(super) fn roles(&self) -> Vec<(&'a str, &'a StorageSpec)> {
        let found = |name: &String| self.study.role_storages.iter().find(|storage| storage.name == *name);
        self.system.roles.iter().filter_map(|(role, name)| Some((role.as_str(), found(name)?))).collect()
    }

    /// Whether some readers must find nothing, because they lack an authorisation.
    pub(super) fn hides_records(&self) -> bool {
        let visibility = self.workload.visibility.as_ref();
        visibility.is_some_and(|visibility| visibility.unauthorized_share > 0.0)
            && OperationMix::parse(self.cell().mix_or_job())
                .is_ok_and(|mix| mix.share(OperationKind::Read) > 0.0)
    }

    /// `load` begins with an empty storage, everything else with the loaded data. A program that prepares and loads
    /// nothing also begins empty.
    pub(super) fn begins_empty(&self) -> bool {
        if self.benchmark.is_some() {
            let settings = self.storage.settings_of(self.system);
            return ["prepare", "load"].iter().all(|verb| !settings.contains_key(*verb));
        }
        self.cell().mix_or_job() == "load"
    }
}

/// The settings that a cell's system is started with.
pub(super) fn settings(plan: &CellPlan<'_>) -> SystemSettings {
    let values = plan.system.with_nodes(plan.storage.settings_of(plan.system));
    SystemSettings {
        values,
        fields: plan.workload.fields,
        field_bytes: plan.workload.field_bytes,
        // Slow motion makes answers take longer by its factor.
        timeout: CLIENT_TIMEOUT.mul_f64(plan.scale.time),
        slow_motion: plan.scale.time,
        visibility: plan.workload.visibility.clone(),
        scan_filter: plan.workload.scan_filter.clone(),
        ..SystemSettings::default()
    }
}
