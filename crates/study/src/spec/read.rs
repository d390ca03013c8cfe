//! From a study's text to its sections: mistakes that one section alone shows are reported here.

mod benchmark;
mod beside;
mod devices;
mod event;
mod execution;
mod fault;
mod find_rate;
mod jobs;
mod layers;
mod machine;
mod media_files;
mod mixes;
mod pool;
mod pool_file;
mod rate;
mod short;
mod sites;
mod storage;
mod storage_site;
mod system;
mod visibility;
mod workload;

use underlay_config::{Diagnostics, Section};

pub(super) use benchmark::fio_finding;
pub(super) use event::EventSite;
pub use execution::{MAX_REPETITIONS, MAX_TIME};
pub(super) use fault::FaultSite;
pub(super) use media_files::{MediaReader, ReadFile};
pub use pool_file::read_pool_file;
pub(super) use short::ShortOverrides;
pub(super) use sites::SectionSites;
pub(super) use storage_site::StorageSite;
pub(super) use system::{SystemSite, check_settings, with_nodes};
pub(super) use workload::{DataAmount, WorkloadSite};

/// A study as it was written, before its parts are held against each other.
pub(super) struct StudySections {
    /// `None` only after a mistake.
    pub name: Option<String>,
    pub title: Option<String>,
    /// Those of the full study.
    pub sites: SectionSites,
    pub short: ShortOverrides,
}

/// Reads all sections of a document, in spite of mistakes in them.
pub(super) fn read(
    root: &mut Section<'_>,
    media: &MediaReader<'_>,
    findings: &mut Diagnostics,
) -> StudySections {
    let name = root.require("name", "name = \"hdd-or-nvme\"", findings);
    let name = name.and_then(|field| field.name(findings));
    let title = root.take("title").and_then(|field| field.text("a string", findings));
    let baseline = root.take("baseline").and_then(|field| field.text("the name of a storage", findings));
    let systems = system::read(root, findings);
    let (storage_names, mut storages) = storage::read(root, media, findings);
    let (workloads, has_all_of_workloads) = findings.attempt(|findings| workload::read(root, findings));
    let faults = fault::read(root, findings);
    let events = event::read(root, findings);
    let run = execution::read_run(root, findings);
    let machine = machine::read(root, findings);
    if let Some(machine) = &machine {
        machine::connect(&mut storages, &machine.value);
        machine::note_elsewhere(&storages, machine, findings);
    }
    let scale = execution::read_scale(root, findings);
    let all_workloads = has_all_of_workloads.then_some(workloads.as_slice());
    let (mut short, is_whole) = findings.attempt(|findings| short::read(root, all_workloads, findings));
    short.is_whole = is_whole;
    let reference = execution::read_reference(root, findings);
    root.finish(findings);
    let sites = SectionSites {
        baseline,
        machine,
        scale,
        run,
        reference,
        system_names: systems.names,
        systems: systems.sites,
        role_storages: systems.role_storages,
        storage_names,
        storages,
        workloads,
        has_all_of_workloads,
        faults,
        events,
    };
    StudySections { name, title: title.map(|title| title.value), sites, short }
}
