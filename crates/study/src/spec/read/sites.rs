//! The sections of a study that could be read, each with the positions that later checks need.

use std::collections::BTreeSet;

use underlay_config::Spanned;
use underlay_record::ReferenceTable;

use super::event::EventSite;
use super::execution::{RunSite, ScaleSite};
use super::fault::FaultSite;
use super::storage_site::StorageSite;
use super::system::SystemSite;
use super::workload::WorkloadSite;
use crate::spec::model::MachineSpec;

/// The sections of a study that could be read, with their positions.
#[derive(Clone)]
pub(in crate::spec) struct SectionSites {
    pub baseline: Option<Spanned<String>>,
    pub machine: Option<Spanned<MachineSpec>>,
    pub scale: ScaleSite,
    pub run: RunSite,
    pub reference: Option<Spanned<ReferenceTable>>,
    /// All of them, including those that could not be read.
    pub system_names: Vec<String>,
    pub systems: Vec<SystemSite>,
    /// The storage configurations in which systems keep a part of their data.
    pub role_storages: BTreeSet<String>,
    /// All of them, including those that could not be read.
    pub storage_names: Vec<String>,
    pub storages: Vec<StorageSite>,
    /// One of each; parts that could not be read may be missing.
    pub workloads: Vec<WorkloadSite>,
    /// Whether all of them could be read.
    pub has_all_of_workloads: bool,
    pub faults: Vec<FaultSite>,
    pub events: Vec<EventSite>,
}

impl SectionSites {
    /// The baseline, which is optional in a study with a single storage configuration.
    pub(crate) fn baseline_name(&self) -> Option<String> {
        match (&self.baseline, self.storage_names.as_slice()) {
            (Some(baseline), _) => Some(baseline.value.clone()),
            (None, [only]) => Some(only.clone()),
            (None, _) => None,
        }
    }

    /// Whether the host that runs the study chooses the slow-motion factor. Real storage can't be slowed down, so there
    /// is nothing to choose.
    pub(crate) fn leaves_time_open(&self) -> bool {
        self.machine.is_some()
            && !self.scale.time_is_given
            && self.storages.iter().all(|storage| storage.spec.is_modelled())
    }

    /// Whether a system keeps a part of its data there, so that it is not compared.
    pub(crate) fn is_for_a_role(&self, storage: &StorageSite) -> bool {
        self.role_storages.contains(&storage.spec.name)
    }

    /// Whether each system could be read, so that a key that none of them has is not in the text either.
    pub(crate) fn has_all_systems(&self) -> bool {
        self.systems.len() == self.system_names.len()
    }

    /// The same for storage configurations.
    pub(crate) fn has_all_storages(&self) -> bool {
        self.storages.len() == self.storage_names.len()
    }
}
