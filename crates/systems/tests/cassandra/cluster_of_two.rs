//! Two nodes that hold each record twice.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use tempfile::TempDir;
use underlay_record::NodeCondition;
use underlay_systems::cassandra::Cassandra;
use underlay_systems::connect_allowlist::{self, MayConnect};
use underlay_systems::system::{
    RunningSystem, StoragePaths, System as _, SystemError, SystemResources, SystemSettings,
};
use underlay_workload::client::{ClientError, FieldSelection, FieldValues, OperationOutcome};

use crate::{files_in, is_process, join, run_in_network, settings, signal, start, whole_record};

const NO_USER: Cassandra = Cassandra::with_variables(|_| None);
const RECORDS: u32 = 40;
/// Written while only one of the nodes is there.
const FURTHER_RECORDS: u32 = 20;
/// Until the survivor has seen that the other is gone.
const DETECTION_LIMIT: Duration = Duration::from_secs(90);
const SETTINGS: [(&str, &str); 4] =
    [("nodes", "2"), ("replication_factor", "2"), ("consistency", "ALL"), ("commitlog_sync", "group")];

#[test]
fn ring_of_two_survives_one_loss_and_restart() {
    let directory = TempDir::new().unwrap();
    let running = start(directory.path(), &SETTINGS, 1.0).unwrap();
    let processes = running.processes();
    assert_eq!(processes.len(), 2);
    write(running.as_ref(), 0..RECORDS);
    let figures = running.figures().unwrap();
    assert_eq!(figures["current_nodes"], 2.0);
    assert_eq!(figures["writes"], f64::from(2 * RECORDS), "each node has a copy of each record");
    for (own, other) in [(1, 2), (2, 1)] {
        let storage = directory.path().join(format!("data-{own}/cassandra"));
        assert!(
            files_in(&storage.join(format!("node{own}/data"))) > 0,
            "its data are not on node {own}'s storage"
        );
        assert!(!storage.join(format!("node{other}")).exists(), "node {other} is on node {own}'s storage");
    }

    let addresses = running.applied_settings()["addresses"].clone();
    run_in_network(running.as_ref(), || only_nodes_on_the_list_are_connected_to(&addresses));
    signal(running.as_ref(), 1, Signal::KILL);
    // At ALL, writes must fail now, each with a reason.
    let mut client = running.connect().unwrap();
    let killed = Instant::now();
    loop {
        match client.insert(b"user0", &whole_record("user0")) {
            Err(ClientError::System(reason)) if reason.contains("Not enough nodes are alive") => break,
            Err(ClientError::System(_) | ClientError::Timeout(_)) => {}
            other => panic!("{other:?}"),
        }
        assert!(killed.elapsed() < DETECTION_LIMIT, "the dead node is still taken for alive");
        std::thread::sleep(Duration::from_millis(100));
    }
    assert!(running.health().is_err());

    // The survivor alone has everything, and takes more.
    let survivor = addresses.split(", ").next().unwrap();
    let joined = run_in_network(running.as_ref(), || join(survivor, &[("consistency", "ONE")]).unwrap());
    assert_all_there(joined.as_ref(), RECORDS);
    write(joined.as_ref(), RECORDS..RECORDS + FURTHER_RECORDS);
    joined.stop().unwrap();
    let hints = directory.path().join("hints/cassandra/node1/hints");
    let written = Instant::now();
    while files_in(&hints) == 0 {
        assert!(written.elapsed() < DETECTION_LIMIT, "nothing is kept for the node that is down");
        std::thread::sleep(Duration::from_millis(200));
    }
    drop(running);
    assert!(processes.iter().all(|&process| !is_process(process)));

    let running = loop {
        match start(directory.path(), &SETTINGS, 1.0) {
            // Another test's cluster took them meanwhile.
            Err(error) if error.to_string().contains("addresses that are in use") => {
                std::thread::sleep(Duration::from_secs(1));
            }
            started => break started.unwrap(),
        }
    };
    assert_eq!(running.applied_settings()["addresses"], addresses);
    assert_all_there(running.as_ref(), RECORDS + FURTHER_RECORDS);
    write(running.as_ref(), 0..RECORDS);
    a_node_goes_and_comes_back(running.as_ref());
    running.stop().unwrap();
}

/// On command: the ring is healthy without it, and its counts go on.
fn a_node_goes_and_comes_back(running: &dyn RunningSystem) {
    let nodes = running.nodes().unwrap();
    let conditions = || nodes.list().unwrap().into_iter().map(|node| node.condition).collect::<Vec<_>>();
    assert_eq!(conditions(), [NodeCondition::Serving; 2]);
    let before = running.figures().unwrap();
    nodes.kill("node2").unwrap();
    assert_eq!(conditions(), [NodeCondition::Serving, NodeCondition::Away]);
    running.health().unwrap();
    let figures = running.figures().unwrap();
    assert_eq!((figures["current_nodes"], running.processes().len()), (1.0, 1));
    assert!(figures["writes"] >= before["writes"], "{before:?} {figures:?}");
    running.gauges().unwrap();
    let problem = |outcome: Result<(), SystemError>| outcome.unwrap_err().to_string();
    assert!(problem(nodes.stop("node2")).contains("node2 does not run"));
    assert!(problem(nodes.kill("node3")).contains("expected one of node1, node2"));
    assert!(problem(nodes.start("node1", &|| {})).contains("node1 is running"));
    let runs = AtomicBool::new(false);
    nodes.start("node2", &|| runs.store(true, Ordering::SeqCst)).unwrap();
    assert!(runs.load(Ordering::SeqCst));
    assert_eq!(conditions(), [NodeCondition::Serving; 2]);
    running.health().unwrap();
    let killed = Instant::now();
    let mut client = running.connect().unwrap();
    // The driver connects to it again after a while.
    while client.insert(b"user0", &whole_record("user0")) != Ok(OperationOutcome::Found) {
        assert!(killed.elapsed() < DETECTION_LIMIT, "the node that came back is still taken for dead");
        std::thread::sleep(Duration::from_millis(100));
    }
    assert_all_there(running, RECORDS);
}

/// The first node tells of the other.
fn only_nodes_on_the_list_are_connected_to(addresses: &str) {
    let (first, other) = addresses.split_once(", ").unwrap();
    let join_with = |list: &str| {
        let may_connect = MayConnect::Listed(connect_allowlist::parse(list).unwrap());
        let settings =
            SystemSettings { may_connect, ..settings(&[("endpoints", first), ("consistency", "ONE")]) };
        let resources = SystemResources::with_budget(0);
        NO_USER.start(&StoragePaths::default(), &resources, &settings)
    };
    let error = join_with(first).err().unwrap().to_string();
    assert!(
        error.contains("the cluster has other nodes") && error.contains(&format!("--may-connect {other}")),
        "{error}"
    );
    join_with(&format!("{first},{other}")).unwrap().stop().unwrap();
}

fn key_of(number: u32) -> String {
    format!("user{number}")
}

fn write(running: &dyn RunningSystem, numbers: std::ops::Range<u32>) {
    let mut client = running.connect().unwrap();
    for key in numbers.map(key_of) {
        assert_eq!(client.insert(key.as_bytes(), &whole_record(&key)), Ok(OperationOutcome::Found));
    }
}

fn assert_all_there(running: &dyn RunningSystem, records: u32) {
    let (mut client, mut values) = (running.connect().unwrap(), FieldValues::default());
    for key in (0..records).map(key_of) {
        assert_eq!(
            client.read(key.as_bytes(), FieldSelection::All, &mut values),
            Ok(OperationOutcome::Found),
            "{key}"
        );
        assert_eq!(values, whole_record(&key));
    }
}
