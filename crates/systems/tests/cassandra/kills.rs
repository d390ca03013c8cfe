//! A node is killed under YCSB's workload A, and comes back with every write that it acknowledged.

use std::path::Path;
use std::sync::Arc;

use rustix::process::Signal;
use tempfile::TempDir;
use underlay_systems::system::RunningSystem;
use underlay_workload::RunError;

use crate::ledger::{Ledger, Load};
use crate::{FIELDS, NODE_BYTES, SETTLE_LIMIT, own_memory_bytes, signal, start};

/// In each life so many operations, before it is killed.
const LOAD: Load = Load { records: 500, fields: FIELDS, operations: 4000 };

/// Runs workload A until the node is killed under it.
fn kill_under_load(running: &dyn RunningSystem, ledger: &Arc<Ledger>) {
    let outcome = LOAD.until_harmed(running, ledger, &|| {
        let own_bytes = own_memory_bytes(running.processes()[0]);
        assert!(own_bytes < NODE_BYTES, "{own_bytes} bytes of its own leave no page cache");
        signal(running, 0, Signal::KILL);
    });
    assert!(matches!(outcome, Some(RunError::Stopped | RunError::AllLost { .. })), "{outcome:?}");
    let error = running.health().unwrap_err().to_string();
    assert!(error.contains("SIGKILL") && error.contains("last words"), "{error}");
    assert!(running.processes().is_empty());
}

#[test]
fn killed_node_keeps_acknowledged_writes() {
    let (directory, ledger) = (TempDir::new().unwrap(), Arc::<Ledger>::default());
    let settings_with =
        |sync| [("commitlog_sync", sync), ("table_layout", "ycsb-usertable"), ("settle", "major")];

    let running = start(directory.path(), &settings_with("batch"), 1.0).unwrap();
    LOAD.load(running.as_ref(), &ledger);
    kill_under_load(running.as_ref(), &ledger);
    drop(running);

    let running = start(directory.path(), &settings_with("group"), 1.0).unwrap();
    assert_eq!(ledger.losses(running.as_ref()), [""; 0]);
    kill_under_load(running.as_ref(), &ledger);
    drop(running);

    // A node that lost its commit log has lost something, and the ledger knows.
    let forgetful = TempDir::new().unwrap();
    copy(directory.path(), forgetful.path());
    std::fs::remove_dir_all(forgetful.path().join("log/cassandra/commitlog")).unwrap();
    let running = start(forgetful.path(), &settings_with("group"), 1.0).unwrap();
    assert_ne!(ledger.losses(running.as_ref()).len(), 0);
    drop(running);

    let running = start(directory.path(), &settings_with("group"), 1.0).unwrap();
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
