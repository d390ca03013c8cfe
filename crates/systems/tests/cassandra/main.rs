//! The real Cassandra, started from its Maven artifacts: what every system must do, in one start; kills; a ring of two.
//! Without Java or without a way to its artifacts there is nothing to test, which is an error in CI only.

mod kills;
mod one_node;
mod ring;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use underlay_systems::cassandra::INSTALLED;
use underlay_systems::system::{Memory, Running, Settings, StoragePaths, System, SystemError};
use underlay_workload::client::FieldValues;

pub const NODE_BYTES: u64 = 512 << 20;
pub const FIELDS: u32 = 3;
pub const SETTLE_LIMIT: Duration = Duration::from_secs(120);

/// One cluster at a time: two would crowd a small machine.
pub fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether Cassandra can be had here.
pub fn available() -> bool {
    match INSTALLED.prepare(&|_| {}) {
        Ok(()) => true,
        Err(missing @ SystemError::Missing { .. }) => {
            assert!(std::env::var_os("CI").is_none(), "{missing}");
            eprintln!("nothing tested: {missing}");
            false
        }
        Err(other) => panic!("{other}"),
    }
}

pub fn settings(pairs: &[(&str, &str)]) -> Settings {
    Settings {
        values: pairs.iter().map(|&(key, value)| (key.to_owned(), value.to_owned())).collect(),
        fields: FIELDS,
        field_bytes: 10,
        timeout: Duration::from_secs(30),
        ..Settings::default()
    }
}

/// Starts on directories below `directory`, with the commit log on one of its own.
pub fn start(directory: &Path, pairs: &[(&str, &str)]) -> Result<Box<dyn Running>, SystemError> {
    let [one, two, log] = ["data-1", "data-2", "log"].map(|name| directory.join(name));
    for folder in [&one, &two, &log] {
        std::fs::create_dir_all(folder).unwrap();
    }
    let settings = settings(pairs);
    let nodes: u64 = settings.values.get("nodes").map_or(1, |nodes| nodes.parse().unwrap());
    let paths = StoragePaths {
        data: vec![one, two],
        roles: BTreeMap::from([("commitlog".to_owned(), log)]),
        scratch: directory.join("scratch"),
        ..StoragePaths::default()
    };
    let memory = Memory { budget_bytes: nodes * NODE_BYTES, cgroup_procs: Vec::new() };
    INSTALLED.start(&paths, &memory, &settings)
}

pub fn record(fields: &[(u32, Vec<u8>)]) -> FieldValues {
    let mut values = FieldValues::default();
    fields.iter().for_each(|(field, value)| values.push(*field, value));
    values
}

pub fn whole_record(text: &str) -> FieldValues {
    record(&(0..FIELDS).map(|field| (field, format!("{text}{field}").into_bytes())).collect::<Vec<_>>())
}

pub fn is_process(pid: u32) -> bool {
    Path::new(&format!("/proc/{pid}")).exists()
}
