//! The system `je`.

use std::path::Path;
use std::sync::Arc;

use tempfile::TempDir;
use underlay_systems::je::INSTALLED;
use underlay_systems::system::{RunningSystem, StoragePaths, System as _, SystemResources, SystemSettings};
use underlay_workload::RunError;
use underlay_workload::client::{FieldSelection, FieldValues, OperationOutcome};

use crate::ledger::{Ledger, Load};
use crate::{FIELDS, MIB, SETTLE_LIMIT, copy, kill, own_memory_bytes, settings, whole_record};

const BUDGET_BYTES: u64 = 192 * MIB;
/// More than the cache of this budget holds.
const LOAD: Load = Load { records: 60_000, fields: FIELDS, operations: 4000 };

fn start(directory: &Path, settings: &SystemSettings) -> Box<dyn RunningSystem> {
    let data = directory.join("data");
    std::fs::create_dir_all(&data).unwrap();
    let paths =
        StoragePaths { data: vec![data], scratch: directory.join("scratch"), ..StoragePaths::default() };
    let resources = SystemResources { modelled_cores: Some(3), ..SystemResources::with_budget(BUDGET_BYTES) };
    INSTALLED.start(&paths, &resources, settings).unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn acknowledged_writes_survive_kill_and_copy() {
    let (directory, moved) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let ledger = Arc::<Ledger>::default();
    let settings = settings(&[("durability", "WRITE_NO_SYNC"), ("checkpointer_bytes_mib", "4")]);
    let running = start(directory.path(), &settings);
    assert_eq!(running.applied_settings()["active_processor_count"], "3");
    LOAD.load(running.as_ref(), &ledger);
    let process = running.processes()[0];
    let outcome = LOAD.until_harmed(running.as_ref(), &ledger, &|| {
        let own_bytes = own_memory_bytes(process);
        assert!(own_bytes < BUDGET_BYTES * 9 / 10, "{own_bytes} bytes of its own leave no page cache");
        kill(process);
    });
    assert!(matches!(outcome, Some(RunError::Stopped | RunError::AllLost { .. })), "{outcome:?}");
    let error = running.health().unwrap_err().to_string();
    assert!(error.contains("je (process ") && error.contains("SIGKILL"), "{error}");
    drop(running);

    copy(directory.path(), moved.path());
    let running = start(moved.path(), &settings);
    assert_eq!(ledger.losses(running.as_ref()), [""; 0]);
    let before = running.figures().unwrap();
    assert!(before["record_fetch_misses"] > 0.0 && before["current_cache_bytes"] > 1e6, "{before:#?}");
    running.settle(SETTLE_LIMIT).unwrap();
    let settled = running.figures().unwrap();
    assert!(settled["checkpoints"] > before["checkpoints"], "{settled:#?}");
    assert!(settled["log_fsyncs"] > before["log_fsyncs"], "{settled:#?}");
    assert_eq!(ledger.losses(running.as_ref()), [""; 0]);
    running.stop().unwrap();
}

/// Of two hundred small records, which JE has room for in its buffers.
fn left_after_a_kill(durability: &str) -> usize {
    let directory = TempDir::new().unwrap();
    let settings = settings(&[("durability", durability)]);
    let running = start(directory.path(), &settings);
    let mut client = running.connect().unwrap();
    let keys: Vec<String> = (0..200).map(|number| format!("user{number}")).collect();
    for key in &keys {
        assert_eq!(client.insert(key.as_bytes(), &whole_record(key)), Ok(OperationOutcome::Found));
    }
    kill(running.processes()[0]);
    drop(running);
    let running = start(directory.path(), &settings);
    let (mut client, mut values) = (running.connect().unwrap(), FieldValues::default());
    let is_there = |key: &&String| match client.read(key.as_bytes(), FieldSelection::All, &mut values) {
        Ok(OperationOutcome::Found) => values == whole_record(key),
        other => other != Ok(OperationOutcome::Missing),
    };
    let left = keys.iter().filter(is_there).count();
    running.stop().unwrap();
    left
}

#[test]
fn kill_without_sync_loses_only_last_acknowledged() {
    assert_eq!(left_after_a_kill("SYNC"), 200);
    assert_eq!(left_after_a_kill("WRITE_NO_SYNC"), 200);
    assert!(left_after_a_kill("NO_SYNC") < 200);
}
