//! The real Cassandra, started from its Maven artifacts: what every system must do and what a cluster with passwords
//! and encryption asks, kills, a ring of two. What Cassandra needs must be there: `scripts/install-packages test`.

mod cluster_of_two;
mod kills;
mod ledger;
mod one_node;
#[path = "../parts/mod.rs"]
mod parts;
mod secured;

use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::AsFd as _;
use std::path::Path;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use scylla::client::session_builder::SessionBuilder;
use underlay_systems::cassandra::INSTALLED;
use underlay_systems::system::{
    NodePaths, RunningSystem, StoragePaths, System, SystemError, SystemResources, SystemSettings,
};
use underlay_workload::client::FieldValues;

pub const NODE_BYTES: u64 = 512 << 20;
pub const FIELDS: u32 = 3;
pub const SETTLE_LIMIT: Duration = Duration::from_secs(120);
/// What a node keeps beside its data, with the directory that it gets here.
pub const ROLES: [(&str, &str); 3] = [("commitlog", "log"), ("hints", "hints"), ("saved_caches", "caches")];

pub fn settings(pairs: &[(&str, &str)]) -> SystemSettings {
    SystemSettings {
        values: pairs.iter().map(|&(key, value)| (key.to_owned(), value.to_owned())).collect(),
        fields: FIELDS,
        field_bytes: 10,
        timeout: Duration::from_secs(30),
        ..SystemSettings::default()
    }
}

/// Starts on directories below `directory`: two for data, and one for each role. Of several nodes, each has a storage
/// of its own for data, and the first one the roles.
pub fn start(
    directory: &Path,
    pairs: &[(&str, &str)],
    slow_motion: f64,
) -> Result<Box<dyn RunningSystem>, SystemError> {
    let own = |name: &str| {
        let folder = directory.join(name);
        std::fs::create_dir_all(&folder).unwrap();
        folder
    };
    let settings = SystemSettings { slow_motion, ..settings(pairs) };
    let nodes: u64 = settings.values.get("nodes").map_or(1, |nodes| nodes.parse().unwrap());
    let of_node = |node: u64| NodePaths { data: vec![own(&format!("data-{node}"))], ..NodePaths::default() };
    let paths = StoragePaths {
        data: if nodes > 1 { of_node(1).data } else { vec![own("data-1"), own("data-2")] },
        roles: ROLES.map(|(role, name)| (role.to_owned(), own(name))).into(),
        further_nodes: (2..=nodes).map(of_node).collect(),
        scratch: directory.join("scratch"),
    };
    let resources = SystemResources::with_budget(nodes * NODE_BYTES);
    let running = INSTALLED.start(&paths, &resources, &settings)?;
    parts::hold(&INSTALLED.parts(&paths, &settings.values), running.as_ref());
    Ok(running)
}

/// Joins the cluster with a node at `address`.
pub fn join(address: &str, pairs: &[(&str, &str)]) -> Result<Box<dyn RunningSystem>, SystemError> {
    join_by(&INSTALLED, address, pairs)
}

pub fn join_by(
    system: &dyn System,
    address: &str,
    pairs: &[(&str, &str)],
) -> Result<Box<dyn RunningSystem>, SystemError> {
    let mut all = vec![("endpoints", address)];
    all.extend(pairs);
    // Storage and memory of such a cluster are not ours to give.
    let resources = SystemResources::with_budget(0);
    system.start(&StoragePaths::default(), &resources, &settings(&all))
}

/// Does `work` in the network that the cluster is in.
pub fn run_in_network<T: Send>(running: &dyn RunningSystem, work: impl FnOnce() -> T + Send) -> T {
    let is_own = has_own_network(running);
    let link = File::open(format!("/proc/{}/ns/net", running.processes()[0])).unwrap();
    std::thread::scope(|scope| {
        let thread = scope.spawn(move || {
            if is_own {
                move_into_link_name_space(link.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
            }
            work()
        });
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

pub fn has_own_network(running: &dyn RunningSystem) -> bool {
    running.applied_settings()["network"].contains("namespace of its own")
}

/// Every setting that a node says is in force.
pub fn settings_in_force(address: &str) -> BTreeMap<String, String> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let session = SessionBuilder::new().known_node(address).build().await.unwrap();
        let answer = session.query_unpaged("SELECT name, value FROM system_views.settings", &[]).await;
        let rows = answer.unwrap().into_rows_result().unwrap();
        let rows = rows.rows::<(String, Option<String>)>().unwrap().map(Result::unwrap);
        rows.map(|(name, value)| (name, value.unwrap_or_default())).collect()
    })
}

pub fn signal(running: &dyn RunningSystem, node: usize, signal: Signal) {
    let process = i32::try_from(running.processes()[node]).unwrap();
    kill_process(Pid::from_raw(process).unwrap(), signal).unwrap();
}

/// What a process has in memory that is no file.
pub fn own_memory_bytes(process: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    line.trim().strip_suffix(" kB").unwrap().parse::<u64>().unwrap() << 10
}

/// How many files there are in a directory and all below it.
pub fn files_in(directory: &Path) -> usize {
    let entries = std::fs::read_dir(directory).unwrap().map(Result::unwrap);
    entries.map(|entry| if entry.path().is_dir() { files_in(&entry.path()) } else { 1 }).sum()
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
