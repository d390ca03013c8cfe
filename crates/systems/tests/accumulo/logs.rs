//! Write-ahead logs on a storage of their own: they are flushed there, read after a crash, and may lie elsewhere at the
//! next start, as those of a copied storage do.

use std::sync::Arc;

use tempfile::TempDir;

use crate::ledger::Ledger;
use crate::two_servers::LOAD;
use crate::{MIB, kill, process, settings, start};

#[test]
fn logs_on_own_storage_are_read_after_crash() {
    let (directory, moved) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let budget_bytes = 1280 * MIB;
    let settings = settings(&[
        ("tablets", "2"),
        ("session_timeout_s", "6"),
        ("durability", "flush"),
        ("short_circuit_reads", "true"),
        ("data_block_kib", "32"),
    ]);
    let (roles, ledger) = (["wal", "metadata"], Arc::<Ledger>::default());
    let running = start(directory.path(), &roles, budget_bytes, &settings).unwrap();
    LOAD.load(running.as_ref(), &ledger);
    let figures = running.figures().unwrap();
    assert!(figures["current_wal_bytes"] > 100_000.0, "{figures:#?}");
    let victim = process(running.as_ref(), "tablet-server-1");
    LOAD.until_harmed(running.as_ref(), &ledger, &|| kill(victim));
    drop(running);

    let running = start(directory.path(), &roles, budget_bytes, &settings).unwrap();
    assert_eq!(ledger.losses(running.as_ref()), [""; 0]);
    running.stop().unwrap();

    let moved_storage = moved.path().join("storage");
    std::fs::rename(directory.path(), &moved_storage).unwrap();
    let running = start(&moved_storage, &roles, budget_bytes, &settings).unwrap();
    assert_eq!(ledger.losses(running.as_ref()), [""; 0]);
    let figures = running.figures().unwrap();
    assert!(figures["current_files"] >= 1.0 && figures["lookups"] >= 1.0, "{figures:#?}");
    assert_eq!(figures["hdfs_blocks_read"], 0.0, "the tablet server reads the files itself: {figures:#?}");
    running.stop().unwrap();
    std::fs::create_dir(directory.path()).unwrap();
}
