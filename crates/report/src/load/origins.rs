//! With which programs, and on which machines, the records of a run were made.

use std::collections::{BTreeMap, BTreeSet};

use underlay_record::{CellStatus, MachineRecord};

use super::LoadedRun;

/// Each with the number of cells that have a completed repetition of it: a cell may count for several.
pub(crate) struct RunOrigins<'a> {
    /// The versions of each program.
    pub versions: BTreeMap<&'a str, Vec<(&'a str, usize)>>,
    pub machines: Vec<(String, usize)>,
}

impl<'a> RunOrigins<'a> {
    /// Of a run without any completed repetition, what its head says, of no cell.
    pub(crate) fn from_loaded(loaded: &'a LoadedRun) -> RunOrigins<'a> {
        let mut versions: BTreeMap<&str, BTreeMap<&str, BTreeSet<&str>>> = BTreeMap::new();
        let mut machines: BTreeMap<String, BTreeSet<&str>> = BTreeMap::new();
        for record in loaded.records.iter().filter(|record| record.status == CellStatus::Completed) {
            let cell = record.cell.id.as_str();
            let system = ("operating system", &record.machine.distribution);
            let programs = record.versions.iter().map(|(name, version)| (name.as_str(), version));
            for (program, version) in programs.chain([system]) {
                versions.entry(program).or_default().entry(version).or_default().insert(cell);
            }
            machines.entry(describe_machine(&record.machine)).or_default().insert(cell);
        }
        if versions.is_empty() {
            let run = &loaded.run;
            for (program, version) in &run.versions {
                versions.entry(program).or_default().entry(version).or_default();
            }
            machines.entry(describe_machine(&run.machine)).or_default();
        }
        RunOrigins {
            versions: versions.into_iter().map(|(program, found)| (program, counted(found))).collect(),
            machines: counted(machines),
        }
    }
}

fn counted<K>(found: BTreeMap<K, BTreeSet<&str>>) -> Vec<(K, usize)> {
    found.into_iter().map(|(name, cells)| (name, cells.len())).collect()
}

/// The description that tells machines apart. The memory of one is not the same to the byte after every boot.
fn describe_machine(machine: &MachineRecord) -> String {
    let gib = (machine.memory_bytes as f64 / GIB).round();
    format!("{} ({} cores, {}, {gib} GiB)", machine.hostname, machine.cores, machine.cpu)
}

const GIB: f64 = 1_073_741_824.0;
