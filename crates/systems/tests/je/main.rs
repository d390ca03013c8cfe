//! Berkeley DB JE, started from its Maven artifact: what a kill takes, memory, cleaning. What every system must do is
//! in `conformance.rs`. What it needs must be there: `scripts/install-packages test`.

mod embedded;
mod group;
mod kills;
#[path = "../cassandra/ledger.rs"]
mod ledger;
mod operations;
#[path = "../parts/mod.rs"]
mod parts;

use std::path::Path;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use underlay_systems::system::SystemSettings;
use underlay_workload::client::FieldValues;

pub const MIB: u64 = 1 << 20;
pub const FIELDS: u32 = 3;
pub const SETTLE_LIMIT: Duration = Duration::from_secs(120);

pub fn settings(pairs: &[(&str, &str)]) -> SystemSettings {
    SystemSettings {
        values: pairs.iter().map(|&(key, value)| (key.to_owned(), value.to_owned())).collect(),
        fields: FIELDS,
        field_bytes: 200,
        timeout: Duration::from_secs(30),
        ..SystemSettings::default()
    }
}

pub fn kill(process: u32) {
    let pid = Pid::from_raw(i32::try_from(process).unwrap()).unwrap();
    kill_process(pid, Signal::KILL).unwrap();
}

/// What a process has in memory that is no file.
pub fn own_memory_bytes(process: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    line.trim().strip_suffix(" kB").unwrap().parse::<u64>().unwrap() << 10
}

pub fn whole_record(text: &str) -> FieldValues {
    let mut values = FieldValues::default();
    (0..FIELDS).for_each(|field| values.push(field, format!("{text}{field}").as_bytes()));
    values
}

/// Of what is stored only: the socket and the logs of a process are made anew.
pub fn copy(from: &Path, to: &Path) {
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_name() == "scratch" {
            continue;
        }
        match entry.file_type().unwrap().is_dir() {
            true => {
                std::fs::create_dir_all(&target).unwrap();
                copy(&entry.path(), &target);
            }
            false => drop(std::fs::copy(entry.path(), target).unwrap()),
        }
    }
}
