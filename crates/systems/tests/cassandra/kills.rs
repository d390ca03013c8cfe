//! A node is killed under YCSB's workload A, and comes back with every write that it acknowledged.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rustix::process::Signal;
use tempfile::TempDir;
use underlay_systems::system::Running;
use underlay_workload::{Control, Mix, Properties, RunError, RunSpec, Workload, run};

use crate::ledger::{Ledger, Noted};
use crate::{FIELDS, NODE_BYTES, SETTLE_LIMIT, own_memory_bytes, signal, start};

const RECORDS: usize = 500;
const THREADS: u32 = 8;
/// In each life, before it is killed.
const OPERATIONS: u64 = 4000;
/// Neither loading nor the way to the kill takes so long.
const LONGEST: Duration = Duration::from_secs(600);

fn workload() -> Arc<Workload> {
    let mut properties = Properties::new();
    let arguments = [
        format!("recordcount={RECORDS}"),
        format!("fieldcount={FIELDS}"),
        "fieldlength=200".to_owned(),
        "dataintegrity=true".to_owned(),
    ];
    arguments.iter().for_each(|argument| properties.add_argument(argument).unwrap());
    Arc::new(properties.workload().unwrap())
}

fn spec(mix: &str) -> RunSpec {
    RunSpec { threads: THREADS, duration: LONGEST, ..RunSpec::new(workload(), Mix::parse(mix).unwrap()) }
}

/// Runs workload A until the node is killed under it.
fn kill_under_load(running: &dyn Running, ledger: &Arc<Ledger>) {
    let control = Control::new();
    let connect = |_| {
        let client = running.connect().map_err(|error| panic!("{error}"))?;
        Ok(Box::new(Noted { client, ledger: Arc::clone(ledger) }) as _)
    };
    std::thread::scope(|scope| {
        let load = scope.spawn(|| run(&spec("a"), &connect, &control));
        while control.progress().operations < OPERATIONS {
            assert!(!load.is_finished(), "{:?}", load.join());
            std::thread::sleep(Duration::from_millis(5));
        }
        let own_bytes = own_memory_bytes(running.processes()[0]);
        assert!(own_bytes < NODE_BYTES, "{own_bytes} bytes of its own leave no page cache");
        signal(running, 0, Signal::KILL);
        while running.health().is_ok() {
            std::thread::sleep(Duration::from_millis(5));
        }
        control.stop.store(true, Ordering::Relaxed);
        let outcome = load.join().unwrap();
        assert!(matches!(outcome, Err(RunError::Stopped | RunError::AllLost { .. })), "{outcome:?}");
    });
    assert_eq!(control.aftermath().integrity_mismatches, 0);
    let error = running.health().unwrap_err().to_string();
    assert!(error.contains("SIGKILL") && error.contains("last words"), "{error}");
    assert!(running.processes().is_empty());
}

#[test]
fn what_a_killed_node_acknowledged_is_there_again() {
    let (directory, ledger) = (TempDir::new().unwrap(), Arc::<Ledger>::default());
    let with = |sync| [("commitlog_sync", sync), ("table_layout", "ycsb-usertable"), ("settle", "major")];

    let running = start(directory.path(), &with("batch"), 1.0).unwrap();
    let connect = |_| {
        let client = running.connect().map_err(|error| panic!("{error}"))?;
        Ok(Box::new(Noted { client, ledger: Arc::clone(&ledger) }) as _)
    };
    let loaded = run(&spec("load"), &connect, &Control::new()).unwrap();
    assert_eq!((loaded.errors, ledger.records()), (0, RECORDS));
    kill_under_load(running.as_ref(), &ledger);
    drop(running);

    let running = start(directory.path(), &with("group"), 1.0).unwrap();
    assert_eq!(ledger.losses(running.as_ref()), [""; 0]);
    kill_under_load(running.as_ref(), &ledger);
    drop(running);

    // A node that lost its commit log has lost something, and the ledger knows.
    let forgetful = TempDir::new().unwrap();
    copy(directory.path(), forgetful.path());
    std::fs::remove_dir_all(forgetful.path().join("log/cassandra/commitlog")).unwrap();
    let running = start(forgetful.path(), &with("group"), 1.0).unwrap();
    assert_ne!(ledger.losses(running.as_ref()).len(), 0);
    drop(running);

    let running = start(directory.path(), &with("group"), 1.0).unwrap();
    assert_eq!(ledger.losses(running.as_ref()), [""; 0]);
    running.settle(SETTLE_LIMIT).unwrap();
    // Two data directories, each compacted to one file at most.
    let figures = running.figures().unwrap();
    assert!((1.0..=2.0).contains(&figures["current_sstables"]), "{figures:?}");
    assert_eq!(ledger.losses(running.as_ref()), [""; 0]);
    running.stop().unwrap();
}

/// Of what is stored only: configuration and logs are written anew.
fn copy(from: &Path, to: &Path) {
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
