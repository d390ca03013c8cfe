//! From a study's text to its sections. Mistakes that a single section shows are reported here.

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

use serde_json::{Value, json};
use underlay_config::keys::{AnyText, KeyRow, KeySection, OwnSchema, name_schema, named_schema};
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

const NAME: KeyRow<OwnSchema> = KeyRow::new(
    "name",
    OwnSchema(name_schema),
    "\"hdd-or-nvme\"",
    "Names the run's directory: lowercase letters, digits and hyphens.",
)
.required();
const TITLE: KeyRow<AnyText> =
    KeyRow::new("title", AnyText("a string"), "\"Disk or flash\"", "The report's heading.");
const BASELINE: KeyRow<AnyText> = KeyRow::new(
    "baseline",
    AnyText("the name of a storage"),
    "\"hdd\"",
    "The storage that others are compared with; needed where there are several.",
);

/// A key that is a section, or contains several.
const fn group(name: &'static str, schema: fn() -> Value, meaning: &'static str) -> KeyRow<OwnSchema> {
    KeyRow::new(name, OwnSchema(schema), "{}", meaning)
}

const SYSTEMS: KeyRow<OwnSchema> =
    group("system", system::schema, "Data systems, one section each: [system.NAME].").required();
const STORAGES: KeyRow<OwnSchema> =
    group("storage", || named_schema(storage::schema()), "What the systems stand on: [storage.NAME].")
        .required();
const POOLS: KeyRow<OwnSchema> = group(
    "pool",
    || named_schema(pool::POOL.schema()),
    "Devices of volume servers, for storages that are volumes: [pool.NAME].",
);
const WORKLOADS: KeyRow<OwnSchema> =
    group("workload", || named_schema(workload::schema()), "What is asked of the systems: [workload.NAME].")
        .required();
const RUN: KeyRow<OwnSchema> = group("run", || execution::RUN.schema(), execution::RUN.meaning);
const MACHINE: KeyRow<OwnSchema> = group("machine", || machine::MACHINE.schema(), machine::MACHINE.meaning);
const SCALE: KeyRow<OwnSchema> = group("scale", || execution::SCALE.schema(), execution::SCALE.meaning);
const FAULTS: KeyRow<OwnSchema> = group(
    "fault",
    || named_schema(fault::schema()),
    "What goes wrong while a cell is measured: [fault.NAME], one fault each.",
);
const EVENTS: KeyRow<OwnSchema> = group(
    "event",
    || named_schema(event::EVENT.schema()),
    "Nodes that go away while a cell is measured: [event.NAME], one node each.",
);
const SHORT: KeyRow<OwnSchema> = group("short", || short::SHORT.schema(), short::SHORT.meaning);
const REFERENCE: KeyRow<OwnSchema> =
    group("reference", || execution::REFERENCE.schema(), execution::REFERENCE.meaning);

/// A study's file.
const STUDY: KeySection = KeySection {
    path: "",
    meaning: "Systems, storages and workloads; each combination is a cell: docs/study.md.",
    keys: &[
        &NAME, &TITLE, &BASELINE, &SYSTEMS, &STORAGES, &POOLS, &WORKLOADS, &RUN, &MACHINE, &SCALE, &FAULTS,
        &EVENTS, &SHORT, &REFERENCE,
    ],
};

/// The keys of a study by section, as read. In addition, systems have their settings, and media their parameters.
pub static STUDY_SECTIONS: &[KeySection] = &[
    STUDY,
    system::SYSTEM,
    storage::STORAGE,
    devices::DEVICE,
    layers::CACHE_DEVICE,
    layers::NETWORK_LINK,
    pool::POOL,
    workload::REQUESTS,
    workload::RECORD_SHAPE,
    mixes::OWN_MIX,
    rate::RATE_RAMP,
    rate::RATE_STEPS,
    find_rate::SEARCH,
    beside::BACKGROUND,
    jobs::BATCH,
    benchmark::COMMAND,
    benchmark::FIGURE,
    benchmark::MARK,
    benchmark::FIO,
    execution::RUN,
    machine::MACHINE,
    execution::SCALE,
    fault::FAULT,
    fault::REQUEST_ERRORS,
    fault::WRONG_BITS,
    fault::LATENCY_SPIKES,
    fault::CUT_DETAILS,
    event::EVENT,
    short::SHORT,
    execution::REFERENCE,
];

/// The JSON Schema of a study's file, for editors: its keys, their values and their meaning. The reader is
/// authoritative, since it knows which keys go together.
pub fn study_schema() -> Value {
    let mut schema = STUDY.schema();
    schema["$schema"] = json!("https://json-schema.org/draft/2020-12/schema");
    schema["title"] = json!("A study of Underlay");
    schema["description"] = json!(STUDY.meaning);
    schema["$defs"] = Value::Object(system::definitions());
    schema
}

/// A study as written, before its parts are compared.
pub(super) struct StudySections {
    /// `None` only after a mistake.
    pub name: Option<String>,
    pub title: Option<String>,
    /// The sections of the full study.
    pub sites: SectionSites,
    pub short: ShortOverrides,
}

/// Reads all sections of a document, despite mistakes in them.
pub(super) fn read(
    root: &mut Section<'_>,
    media: &MediaReader<'_>,
    findings: &mut Diagnostics,
) -> StudySections {
    let name = root.take_key(&NAME, findings).and_then(|field| field.name(findings));
    let title = root.read(&TITLE, findings);
    let baseline = root.read(&BASELINE, findings);
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

#[cfg(test)]
mod tests;
