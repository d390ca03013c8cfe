//! An instance of two tablet servers over two DataNodes: clients, authorisations, filters; then a tablet server is
//! killed under YCSB's workload A, then everything; what was acknowledged is there.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use tempfile::TempDir;
use underlay_record::NodeCondition;
use underlay_systems::accumulo::Accumulo;
use underlay_systems::connect_allowlist::{self, MayConnect};
use underlay_systems::system::{
    RunningSystem, StoragePaths, System, SystemResources, SystemSettings, Visibility,
};
use underlay_workload::client::{Client, FieldSelection, FieldValues, FoundRecords, OperationOutcome};

use crate::ledger::{Ledger, Load};
use crate::{
    FIELDS, KEEP, MIB, SETTLE_LIMIT, is_process, kill, own_memory_bytes, process, record, settings, start,
};

const BUDGET_BYTES: u64 = 1536 * MIB;
const PAIRS: &[(&str, &str)] = &[
    ("nodes", "2"),
    ("replication", "2"),
    ("tablets", "6"),
    ("block_mib", "8"),
    // How long the dead one's tablets wait.
    ("session_timeout_s", "6"),
    ("settle", "major"),
];
pub(crate) const LOAD: Load = Load { records: 300, fields: FIELDS, operations: 2000 };

fn with_visibility(unauthorized_share: f64) -> SystemSettings {
    SystemSettings {
        visibility: Some(Visibility {
            expression: "secret&(a|b)".to_owned(),
            authorizations: vec!["secret".to_owned(), "b".to_owned()],
            unauthorized_share,
        }),
        ..settings(PAIRS)
    }
}

fn read(
    client: &mut dyn Client,
    key: &[u8],
    fields: FieldSelection,
) -> (OperationOutcome, BTreeMap<u32, String>) {
    let mut values = FieldValues::default();
    let outcome = client.read(key, fields, &mut values).unwrap();
    let text = |value: &[u8]| String::from_utf8(value.to_vec()).unwrap();
    (outcome, values.iter().map(|(field, value)| (field, text(value))).collect())
}

/// What every client must do, and what one without authorisations must not.
fn clients_find_what_they_may(running: &dyn RunningSystem) {
    let mut reader = running.connect().unwrap();
    let mut stranger = running.connect().unwrap();
    for (key, first) in
        [(&b"user10"[..], "keep me"), (b"user20", "drop me"), (b"user30", "keep"), (b"user95", "x")]
    {
        let record = record(&[(0, first), (1, "one"), (2, "two")]);
        // Who may not read may write.
        assert_eq!(stranger.insert(key, &record).unwrap(), OperationOutcome::Found);
    }
    let (outcome, found) = read(reader.as_mut(), b"user10", FieldSelection::All);
    assert_eq!(outcome, OperationOutcome::Found);
    let expected = [(0, "keep me"), (1, "one"), (2, "two")].map(|(field, value)| (field, value.to_owned()));
    assert_eq!(found, BTreeMap::from(expected));
    let (_, found) = read(reader.as_mut(), b"user10", FieldSelection::One(1));
    assert_eq!(found, BTreeMap::from([(1, "one".to_owned())]));
    reader.update(b"user10", &record(&[(1, "another")])).unwrap();
    let (_, found) = read(reader.as_mut(), b"user10", FieldSelection::All);
    assert_eq!((found[&0].as_str(), found[&1].as_str()), ("keep me", "another"));
    assert_eq!(read(reader.as_mut(), b"user11", FieldSelection::All).0, OperationOutcome::Missing);

    // The filter leaves 2 of the 4; the tablets lie on two servers.
    assert_eq!(reader.scan(b"user", 10, FieldSelection::All).unwrap(), (OperationOutcome::Found, 2));
    assert_eq!(reader.scan(b"user", 1, FieldSelection::All).unwrap(), (OperationOutcome::Found, 1));
    assert_eq!(reader.scan(b"user2", 10, FieldSelection::One(0)).unwrap(), (OperationOutcome::Found, 1));
    let mut records = FoundRecords::default();
    assert_eq!(
        reader.scan_records(b"user", 10, FieldSelection::All, &mut records).unwrap(),
        (OperationOutcome::Found, 2)
    );
    for (key, values) in records.iter() {
        // The filter leaves out fields too.
        let (_, whole) = read(reader.as_mut(), key, FieldSelection::All);
        assert!(values.iter().all(|(field, value)| whole[&field].as_bytes() == value) && !values.is_empty());
    }

    for key in [&b"user10"[..], b"user20", b"user30", b"user95"] {
        assert_eq!(
            read(stranger.as_mut(), key, FieldSelection::All),
            (OperationOutcome::Missing, BTreeMap::new())
        );
    }
    assert_eq!(stranger.scan(b"user", 10, FieldSelection::All).unwrap().1, 0);
    assert_eq!(reader.delete(b"user10").unwrap(), OperationOutcome::Found);
    assert_eq!(read(reader.as_mut(), b"user10", FieldSelection::All).0, OperationOutcome::Missing);
}

/// Nothing of it can be reached from the host, or reach anything.
fn it_is_contained(running: &dyn RunningSystem) {
    let own = std::fs::read_link("/proc/self/ns/net").unwrap();
    let processes = running.processes();
    assert_eq!(processes.len(), 8, "ZooKeeper, NameNode, 2 DataNodes, manager, 2 tablet servers, collector");
    for process in processes {
        assert_ne!(std::fs::read_link(format!("/proc/{process}/ns/net")).unwrap(), own);
        let devices = std::fs::read_to_string(format!("/proc/{process}/net/dev")).unwrap();
        let names: Vec<_> = devices.lines().filter_map(|line| line.split_once(':')).collect();
        assert!(names.len() == 1 && names[0].0.trim() == "lo", "{devices}");
    }
}

#[test]
fn instance_of_two_tablet_servers() {
    let directory = TempDir::new().unwrap();
    let filtered = SystemSettings { scan_filter: Some(format!("^{KEEP}")), ..with_visibility(0.5) };
    let running = start(directory.path(), &[], BUDGET_BYTES, &filtered).unwrap();
    running.health().unwrap();
    clients_find_what_they_may(running.as_ref());
    it_is_contained(running.as_ref());
    let applied = running.applied_settings();
    assert_eq!((applied["datanodes"].as_str(), applied["native_maps"].as_str()), ("2", "none"));
    let before = running.processes();
    running.stop().unwrap();
    assert!(!before.into_iter().any(is_process), "something is left");

    let (authorized, ledger) = (with_visibility(0.0), Arc::<Ledger>::default());
    let running = start(directory.path(), &[], BUDGET_BYTES, &authorized).unwrap();
    let mut reader = running.connect().unwrap();
    assert_eq!(
        read(reader.as_mut(), b"user30", FieldSelection::All).0,
        OperationOutcome::Found,
        "from before"
    );
    LOAD.load(running.as_ref(), &ledger);
    let victim = process(running.as_ref(), "tablet-server-1");
    LOAD.until_harmed(running.as_ref(), &ledger, &|| {
        let own_bytes: u64 = running.processes().into_iter().map(own_memory_bytes).sum();
        assert!(own_bytes < BUDGET_BYTES, "{own_bytes} bytes of their own leave no page cache");
        kill(victim);
    });
    let error = running.health().unwrap_err().to_string();
    assert!(error.contains("tablet server 1") && error.contains("SIGKILL"), "{error}");
    // The other one has taken over and read the log.
    assert_eq!(ledger.losses(running.as_ref()), [""; 0]);
    let before = running.processes();
    assert_eq!(before.len(), 7);
    // Everything else is killed too.
    drop(running);
    assert!(!before.into_iter().any(is_process), "something is left");

    let running = start(directory.path(), &[], BUDGET_BYTES, &authorized).unwrap();
    assert_eq!(ledger.losses(running.as_ref()), [""; 0]);
    running.settle(SETTLE_LIMIT).unwrap();
    let figures = running.figures().unwrap();
    for (name, least) in [
        ("current_tablets", 6.0),
        ("current_tablet_servers", 2.0),
        ("current_hdfs_live_datanodes", 2.0),
        ("current_files", 1.0),
        ("current_wal_files", 1.0),
        ("current_resident_bytes", 1e8),
        ("lookups", 1.0),
        ("client_calls", 1.0),
        // Without short-circuit reads.
        ("hdfs_blocks_read", 1.0),
    ] {
        assert!(figures.get(name).is_some_and(|&figure| figure >= least), "{name}: {figures:#?}");
    }
    let gauges = running.gauges().unwrap();
    assert_eq!(gauges.get("current_major_compactions_running"), Some(&0.0), "{gauges:?}");
    assert!(gauges.keys().all(|name| figures.contains_key(name)), "{gauges:?}");
    assert!(figures["current_files"] <= 6.0, "one a tablet: {figures:#?}");
    assert_eq!(
        figures["current_major_compactions"] + figures["current_minor_compactions"],
        0.0,
        "{figures:#?}"
    );
    assert_eq!(ledger.losses(running.as_ref()), [""; 0]);
    a_tablet_server_goes_and_comes_back(running.as_ref(), &ledger);
    a_compaction_rewrites_tablets_of_one_file(running.as_ref());
    it_can_be_joined(running.as_ref(), directory.path(), &ledger);
    running.stop().unwrap();
}

/// On command: the instance is healthy without it.
fn a_tablet_server_goes_and_comes_back(running: &dyn RunningSystem, ledger: &Ledger) {
    let nodes = running.nodes().unwrap();
    let all = nodes.list().unwrap();
    let names: Vec<&str> = all.iter().map(|node| node.name.as_str()).collect();
    assert_eq!(names, ["tserver1", "tserver2", "datanode1", "datanode2"]);
    let before = running.figures().unwrap();
    nodes.kill("tserver2").unwrap();
    running.health().unwrap();
    let figures = running.figures().unwrap();
    assert!(figures["lookups"] >= before["lookups"], "{before:#?} {figures:#?}");
    assert!(!figures.keys().any(|name| name.contains("9997")), "{figures:#?}");
    assert!(nodes.stop("tserver2").unwrap_err().to_string().contains("tserver2 does not run"));
    let runs = AtomicBool::new(false);
    nodes.start("tserver2", &|| runs.store(true, Ordering::SeqCst)).unwrap();
    assert!(runs.load(Ordering::SeqCst));
    assert!(nodes.list().unwrap().iter().all(|node| node.condition == NodeCondition::Serving));
    running.health().unwrap();
    assert_eq!(ledger.losses(running), [""; 0]);
}

/// Also where nothing would be due.
fn a_compaction_rewrites_tablets_of_one_file(running: &dyn RunningSystem) {
    let rewritten = || {
        let figures = running.figures().unwrap();
        figures["major_compactions"] + figures["current_major_compactions_running"]
    };
    let before = rewritten();
    running.compact(SETTLE_LIMIT).unwrap();
    let started = Instant::now();
    while rewritten() < before + 1.0 {
        assert!(started.elapsed() < SETTLE_LIMIT, "nothing is compacted: {:#?}", running.figures());
        std::thread::sleep(Duration::from_millis(50));
    }
}

static PASSWORD: OnceLock<String> = OnceLock::new();

fn variable(name: &str) -> Option<String> {
    match name {
        "ACCUMULO_USERNAME" => Some("root".to_owned()),
        _ => PASSWORD.get().cloned(),
    }
}

/// As an instance that somebody else started, from inside its network.
fn it_can_be_joined(running: &dyn RunningSystem, directory: &Path, ledger: &Ledger) {
    let identity = std::fs::read_to_string(directory.join("data-1/accumulo/metadata/instance")).unwrap();
    let password = identity.lines().find_map(|line| line.strip_prefix("password=")).unwrap();
    PASSWORD.set(password.to_owned()).unwrap();
    let settings = SystemSettings {
        values: [("zookeepers", "127.0.0.1:2181"), ("instance", "underlay"), ("durability", "flush")]
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .into(),
        ..with_visibility(0.0)
    };
    let network = File::open(format!("/proc/{}/ns/net", running.processes()[0])).unwrap();
    let paths = StoragePaths { scratch: directory.join("joined"), ..StoragePaths::default() };
    // Its servers are named by ZooKeeper, and listen at other ports and at another address.
    let listed = |list: &str| {
        let may_connect = MayConnect::Listed(connect_allowlist::parse(list).unwrap());
        SystemSettings { may_connect, ..settings.clone() }
    };
    let join = || {
        move_into_link_name_space(network.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
        let system = Accumulo::with_variables(variable);
        let resources = SystemResources::with_budget(0);
        let refused = system.start(&paths, &resources, &listed("127.0.0.1:2181")).err().unwrap().to_string();
        assert!(refused.contains("--may-connect 127.0.0."), "{refused}");
        let joined = system.start(&paths, &resources, &listed("127.0.0.1,127.0.0.2")).unwrap();
        joined.health().unwrap();
        assert!(joined.processes().is_empty());
        assert_eq!(ledger.losses(joined.as_ref()), [""; 0]);
        assert_eq!(joined.figures().unwrap()["current_tablet_servers"], 2.0);
        joined.stop().unwrap();
    };
    std::thread::scope(|scope| scope.spawn(join).join()).unwrap();
    running.health().unwrap();
}
