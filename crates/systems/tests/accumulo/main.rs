//! The real Accumulo with everything below it, started from its Maven artifacts: what every system must do, who may
//! read what, kills, starting again. What it needs must be there: `scripts/install-packages test`; and root.

#[path = "../cassandra/ledger.rs"]
mod ledger;
mod logs;
#[path = "../parts/mod.rs"]
mod parts;
mod refusals;
mod two_servers;

use std::path::Path;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use underlay_systems::accumulo::INSTALLED;
use underlay_systems::system::{
    RunningSystem, StoragePaths, System, SystemError, SystemResources, SystemSettings,
};
use underlay_workload::client::FieldValues;

pub const MIB: u64 = 1 << 20;
pub const FIELDS: u32 = 3;
pub const SETTLE_LIMIT: Duration = Duration::from_secs(120);
pub const KEEP: &str = "keep";

pub fn settings(pairs: &[(&str, &str)]) -> SystemSettings {
    SystemSettings {
        values: pairs.iter().map(|&(key, value)| (key.to_owned(), value.to_owned())).collect(),
        fields: FIELDS,
        field_bytes: 10,
        timeout: Duration::from_secs(60),
        ..SystemSettings::default()
    }
}

/// Starts on directories below `directory`: two for data, and one for each role of `roles`.
pub fn start(
    directory: &Path,
    roles: &[&str],
    budget_bytes: u64,
    settings: &SystemSettings,
) -> Result<Box<dyn RunningSystem>, SystemError> {
    let own = |name: &str| {
        let folder = directory.join(name);
        std::fs::create_dir_all(&folder).unwrap();
        folder
    };
    let paths = StoragePaths {
        data: vec![own("data-1"), own("data-2")],
        roles: roles.iter().map(|&role| (role.to_owned(), own(role))).collect(),
        scratch: directory.join("scratch"),
        ..StoragePaths::default()
    };
    let resources = SystemResources::with_budget(budget_bytes);
    let running = INSTALLED.start(&paths, &resources, settings)?;
    parts::hold(&INSTALLED.parts(&paths, &settings.values), running.as_ref());
    Ok(running)
}

/// The process of that name: `tablet-server-1`.
pub fn process(running: &dyn RunningSystem, name: &str) -> u32 {
    let is_it = |process: &u32| {
        let line = std::fs::read(format!("/proc/{process}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&line).contains(&format!("/{name}.arguments"))
    };
    running.processes().into_iter().find(is_it).unwrap_or_else(|| panic!("no {name}"))
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

pub fn record(fields: &[(u32, &str)]) -> FieldValues {
    let mut values = FieldValues::default();
    fields.iter().for_each(|(field, value)| values.push(*field, value.as_bytes()));
    values
}

pub fn is_process(pid: u32) -> bool {
    Path::new(&format!("/proc/{pid}")).exists()
}
