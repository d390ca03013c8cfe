//! Three storage nodes with two shards; some are killed under load.

use std::cell::Cell;
use std::net::TcpListener;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use underlay_record::{NodeChoice, NodeCondition, NodeRole, NodeState};
use underlay_systems::system::{RunningSystem, SystemError};
use underlay_workload::RunError;
use underlay_workload::client::{FieldSelection, FieldValues, OperationOutcome};

use crate::ledger::{Ledger, Load};
use crate::{FIELDS, MIB, SETTLE_LIMIT, is_installed, kills, operations, try_start, whole_record};

const BUDGET_BYTES: u64 = 1600 * MIB;
const LOAD: Load = Load { records: 1000, fields: FIELDS, operations: 2000 };
/// Until a shard has another master, on a busy machine.
const FAILOVER_LIMIT: Duration = Duration::from_secs(120);
/// Enough that some are of each shard.
const WRITES_AFTER: u32 = 50;
/// How many storage nodes of each kind are killed, one after the other: 1, or what `make oracle-nosql-kills` says.
const KILLS_VARIABLE: &str = "UNDERLAY_ORACLE_NOSQL_KILLS";
const SHAPE: [(&str, &str); 4] =
    [("nodes", "3"), ("capacity", "2"), ("checkpointer_bytes_mib", "4"), ("reserved_mib", "16")];

fn start(directory: &Path, more: &[(&str, &str)]) -> Result<Box<dyn RunningSystem>, SystemError> {
    try_start(directory, &[&SHAPE[..], more].concat(), BUDGET_BYTES)
}

fn started(directory: &Path, more: &[(&str, &str)]) -> Box<dyn RunningSystem> {
    start(directory, more).unwrap_or_else(|error| panic!("{error}"))
}

/// A storage node that has a master, or one that has replicas alone.
fn node(store: &dyn RunningSystem, role: NodeRole) -> Option<NodeState> {
    store.nodes().unwrap().list().unwrap().into_iter().find(|node| node.role == Some(role))
}

/// Kills it under load and starts it again; nothing that was acknowledged may be lost meanwhile. How long it took until
/// both shards took writes without it.
fn one_kill(store: &dyn RunningSystem, ledger: &Arc<Ledger>, victim: &NodeState) -> Duration {
    let duration = Cell::new(Duration::ZERO);
    let harm = || {
        signal(victim.process.unwrap(), Signal::KILL);
        duration.set(write_to_all_shards(store, &victim.name));
    };
    let outcome = LOAD.until_harmed(store, ledger, &harm);
    assert!(matches!(outcome, Some(RunError::Stopped)), "{outcome:?}");
    let error = store.health().unwrap_err().to_string();
    assert!(error.contains("storage node ") && error.contains("SIGKILL"), "{error}");
    assert_eq!(ledger.losses(store), [""; 0]);
    store.nodes().unwrap().start(&victim.name, &|| {}).unwrap();
    store.health().unwrap();
    assert_eq!(ledger.losses(store), [""; 0]);
    duration.get()
}

fn write_to_all_shards(store: &dyn RunningSystem, absent: &str) -> Duration {
    let (mut client, killed) = (store.connect().unwrap(), Instant::now());
    for number in 0..WRITES_AFTER {
        let key = format!("after {number}");
        // One that was in flight fails, since nobody knows whether it was done.
        while client.insert(key.as_bytes(), &whole_record(&key)) != Ok(OperationOutcome::Found) {
            assert!(killed.elapsed() < FAILOVER_LIMIT, "no writes without {absent}");
        }
    }
    killed.elapsed()
}

#[test]
fn storage_nodes_killed_under_load_lose_nothing_acknowledged() {
    if !is_installed() {
        return;
    }
    let (directory, moved) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let ledger = Arc::<Ledger>::default();
    let chosen = kills::chosen_durability();
    // Somebody else's programs have its ports on this host, which the store's own network does not know of. Where the
    // port is taken already, so much the better.
    let occupied = ["127.0.0.1:5000", "127.0.0.1:5001", "127.0.0.2:5200"].map(TcpListener::bind);
    let store = started(directory.path(), &kills::settings(&chosen));
    drop(occupied);
    what_was_deployed_is_told(store.as_ref(), directory.path());
    operations::mean_what_they_mean_in_a_map(store.as_ref(), false);
    LOAD.load(store.as_ref(), &ledger);

    let number = std::env::var(KILLS_VARIABLE).map_or(1, |kills| kills.parse().unwrap());
    let mut times = kills::Times::default();
    for _ in 0..number {
        for role in [NodeRole::Replica, NodeRole::Master] {
            // Where each storage node has a master of some shard, none has replicas alone.
            let Some(victim) = node(store.as_ref(), role) else { continue };
            times.add(role, one_kill(store.as_ref(), &ledger, &victim));
        }
    }
    println!("oracle-nosql, {chosen}: {}", times.describe());
    nodes_go_and_come_back(store.as_ref());
    store.settle(SETTLE_LIMIT).unwrap();
    let figures = store.figures().unwrap();
    for name in ["log_fsyncs", "log_written_bytes", "record_fetches", "current_cache_bytes", "client_calls"] {
        assert!(figures[name] > 0.0, "{name}: {figures:#?}");
    }
    let gauges = store.gauges().unwrap();
    assert!(gauges.keys().all(|name| figures.contains_key(name)), "{gauges:#?}");
    assert!((1.0..=3.0).contains(&gauges["current_master_of_shard_2"]), "{gauges:#?}");

    // As if the directories were the images of a study, of machines that all crash at this moment. What settled is on
    // the devices, regardless of the durability.
    let processes = store.processes();
    processes.iter().for_each(|process| signal(*process, Signal::STOP));
    copy(directory.path(), moved.path());
    // As Ctrl-C does while somebody settles: nothing is left to wait for.
    store.abort();
    assert!(processes.iter().all(|process| has_ended(*process)), "{processes:?}");
    store.settle(Duration::MAX).unwrap_err();
    drop(store);
    assert!(processes.iter().all(|process| has_ended(*process)), "{processes:?}");
    again_from_copies(moved.path(), &ledger);
}

/// Gone, or a zombie: some containers have a first process that collects none.
fn has_ended(process: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{process}/status"));
    status.map_or(true, |status| status.lines().any(|line| line.starts_with("State:\tZ")))
}

fn what_was_deployed_is_told(store: &dyn RunningSystem, directory: &Path) {
    store.health().unwrap();
    let applied = store.applied_settings();
    assert_eq!((&*applied["shards"], &*applied["partitions"]), ("2", "40"));
    let topology = store.topology().unwrap();
    assert_eq!(topology.shards.iter().map(|shard| shard.shard).collect::<Vec<_>>(), [1, 2]);
    assert_eq!(topology.shards.iter().filter_map(|shard| shard.partitions).sum::<u64>(), 40);
    for shard in &topology.shards {
        let roles: Vec<_> = shard.copies.iter().filter_map(|copy| copy.role).collect();
        assert_eq!(roles, [NodeRole::Master, NodeRole::Replica, NodeRole::Replica], "{topology:#?}");
        for node in 1..=3 {
            let own = shard.copies.iter().find(|copy| copy.node == format!("sn{node}")).unwrap();
            assert_eq!(own.directory, Some(node - 1));
            let folder = directory.join(format!("data-{node}/oracle-nosql/sn{node}"));
            let storages = ["storage1", "storage2"].map(|storage| folder.join(storage).join(&own.name));
            assert!(storages.iter().any(|storage| storage.is_dir()), "{own:?}");
        }
    }
    assert!(topology.findings.iter().any(|finding| finding.contains("Admins")), "{topology:#?}");
    let processes = store.processes();
    assert_eq!(processes.len(), 10, "three agents, an administration and six replication nodes");
}

fn nodes_go_and_come_back(store: &dyn RunningSystem) {
    let nodes = store.nodes().unwrap();
    let names: Vec<String> = nodes.list().unwrap().into_iter().map(|node| node.name).collect();
    assert_eq!(names, ["sn1", "sn2", "sn3"]);
    // Every storage node has a copy of both shards, and each shard has one master among them.
    for node in nodes.list().unwrap() {
        assert_eq!(node.shards.iter().map(|copy| copy.shard).collect::<Vec<_>>(), [1, 2], "{node:?}");
    }
    for shard in [1, 2] {
        let list = nodes.list().unwrap();
        let roles: Vec<_> = list.iter().filter_map(|node| node.role_in(shard)).collect();
        assert_eq!(roles.iter().filter(|role| **role == NodeRole::Master).count(), 1, "{list:?}");
        assert_eq!(roles.len(), 3, "{list:?}");
        let master = NodeChoice::First { role: Some(NodeRole::Master), shard: Some(shard) };
        let chosen: Vec<&str> = list
            .iter()
            .filter(|node| master.allows(&node.name, node.role, &node.shards))
            .map(|node| node.name.as_str())
            .collect();
        let master_number = store.gauges().unwrap()[&format!("current_master_of_shard_{shard}")];
        assert_eq!(chosen, [format!("sn{master_number}")]);
    }
    nodes.stop("sn3").unwrap();
    let away = &nodes.list().unwrap()[2];
    assert_eq!((away.condition, away.role, away.process), (NodeCondition::Away, None, None));
    store.health().unwrap();
    assert!(nodes.kill("sn3").unwrap_err().to_string().contains("does not run"));
    assert!(nodes.stop("sn9").unwrap_err().to_string().contains("expected one of sn1, sn2, sn3"));
    nodes.start("sn3", &|| {}).unwrap();
    assert!(nodes.start("sn3", &|| {}).unwrap_err().to_string().contains("is running"));
    assert_eq!(nodes.list().unwrap()[2].condition, NodeCondition::Serving);
}

fn again_from_copies(moved: &Path, ledger: &Ledger) {
    let other = start(moved, &[("partitions", "60")]).err().unwrap().to_string();
    assert!(other.contains("partitions = 40") && other.contains("partitions = 60"), "{other}");
    let store = started(moved, &[("consistency", "none"), ("log_file_mib", "20")]);
    store.settle(SETTLE_LIMIT).unwrap();
    assert_eq!(ledger.losses(store.as_ref()), [""; 0]);
    let figures = store.figures().unwrap();
    assert!(figures["current_log_bytes"] > 0.0 && figures["current_cache_bytes"] > 0.0, "{figures:#?}");
    let (mut client, mut values) = (store.connect().unwrap(), FieldValues::default());
    let key = format!("after {}", WRITES_AFTER - 1);
    assert_eq!(client.read(key.as_bytes(), FieldSelection::All, &mut values), Ok(OperationOutcome::Found));
    assert_eq!(values, whole_record(&key));
    let processes = store.processes();
    store.stop().unwrap();
    assert!(processes.iter().all(|process| has_ended(*process)), "{processes:?}");
}

fn signal(process: u32, signal: Signal) {
    kill_process(Pid::from_raw(i32::try_from(process).unwrap()).unwrap(), signal).unwrap();
}

/// Of what is stored only: the logs of processes are made anew, and so are links, which a study's copies of directories
/// lack.
fn copy(from: &Path, to: &Path) {
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        let kind = entry.file_type().unwrap();
        if entry.file_name() == "scratch" {
            continue;
        }
        if kind.is_symlink() {
            continue;
        }
        if kind.is_dir() {
            std::fs::create_dir_all(&target).unwrap();
            copy(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}
