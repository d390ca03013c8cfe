//! Encryption of the local disk: nothing of an object lies there in clear, and another key is refused.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use underlay_gateway::at_rest::AtRest;
use underlay_gateway::config::WriteMode;
use underlay_gateway::engine::WriteConditions;
use underlay_gateway::store::BackendKind;

use crate::rig::{Ground, get, in_memory, put};

const SECRET: &[u8] = b"a text that is nowhere else";

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

fn key(digit: char) -> Option<Arc<AtRest>> {
    Some(Arc::new(AtRest::parse(&digit.to_string().repeat(64)).unwrap()))
}

/// Whether a file below the directory has the secret in it.
fn has_secret(directory: &Path) -> bool {
    std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap()).any(|entry| {
        match entry.file_type().unwrap().is_dir() {
            true => has_secret(&entry.path()),
            false => {
                std::fs::read(entry.path()).unwrap().windows(SECRET.len()).any(|window| window == SECRET)
            }
        }
    })
}

fn object() -> bytes::Bytes {
    SECRET.iter().copied().cycle().take(3 << 20).collect::<Vec<u8>>().into()
}

#[test]
fn journal_is_encrypted_and_bound_to_its_key() {
    let directory = tempfile::tempdir().unwrap();
    let local = directory.path().join("local");
    let mut ground = Ground::new(in_memory(), BackendKind::S3);
    ground.write = WriteMode::Back { after: Duration::from_secs(3600) };
    ground.at_rest = key('1');
    let open_and_close = |ground: &Ground, check: bool| {
        let runtime = runtime();
        runtime.block_on(async {
            let engine = ground.open(&local).await;
            match check {
                true => assert_eq!(get(&engine, "a", None).await.unwrap(), object()),
                false => drop(put(&engine, "a", &object(), WriteConditions::default()).await.unwrap()),
            }
            assert_eq!(
                get(&engine, "a", Some(70_000..70_100)).await.unwrap(),
                object().slice(70_000..70_100)
            );
            engine.close().await;
        });
    };
    open_and_close(&ground, false);
    assert!(!has_secret(&local.join("journal")));
    open_and_close(&ground, true);
    let refused = |ground: &Ground, wanted: &str| {
        let mut message = String::new();
        for _ in 0..200 {
            message = runtime().block_on(async { ground.try_open(&local).await.map(drop) }).unwrap_err();
            // The engine before may still be letting go.
            if message.contains("journal in") {
                break;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        assert!(message.contains(wanted) && message.contains("what to do"), "{message}");
    };
    ground.at_rest = key('2');
    refused(&ground, "another key");
    ground.at_rest = None;
    refused(&ground, "has no key");
    ground.at_rest = key('1');
    let runtime_of_drain = runtime();
    runtime_of_drain.block_on(async {
        let engine = ground.open(&local).await;
        ground.drain(&engine).await;
        engine.close().await;
    });
    drop(runtime_of_drain);
    // With nothing in it, it may have another key, and none.
    for at_rest in [key('2'), None] {
        ground.at_rest = at_rest;
        open_and_close(&ground, true);
    }
    assert_eq!(runtime().block_on(ground.stored()), [("a".to_owned(), object())]);
}

#[test]
fn flash_cache_is_encrypted_and_survives_restart() {
    let directory = tempfile::tempdir().unwrap();
    let local = directory.path().join("local");
    for at_rest in [key('1'), None] {
        let mut ground = Ground::new(in_memory(), BackendKind::S3);
        ground.flash_bytes = 64 << 20;
        ground.at_rest = at_rest.clone();
        let local = local.join(if at_rest.is_some() { "sealed" } else { "open" });
        std::fs::create_dir_all(local.parent().unwrap()).unwrap();
        let runtime_before = runtime();
        runtime_before.block_on(async {
            let engine = ground.open(&local).await;
            put(&engine, "a", &object(), WriteConditions::default()).await.unwrap();
            ground.drain(&engine).await;
            assert_eq!(get(&engine, "a", None).await.unwrap(), object());
            engine.close().await;
        });
        drop(runtime_before);
        assert_eq!(
            has_secret(&local.join("cache")),
            at_rest.is_none(),
            "what is not encrypted shows that the test would see it"
        );
        runtime().block_on(async {
            let engine = ground.open(&local).await;
            let before = ground.mood.gets.load(std::sync::atomic::Ordering::Relaxed);
            assert_eq!(get(&engine, "a", None).await.unwrap(), object());
            let fetched = ground.mood.gets.load(std::sync::atomic::Ordering::Relaxed) - before;
            assert_eq!(fetched, 0, "flash had it all");
            engine.close().await;
        });
    }
}

#[test]
fn clear_data_is_removed_when_encryption_is_enabled() {
    let directory = tempfile::tempdir().unwrap();
    let local = directory.path().join("local");
    let mut ground = Ground::new(in_memory(), BackendKind::S3);
    ground.flash_bytes = 64 << 20;
    let before = runtime();
    before.block_on(async {
        let engine = ground.open(&local).await;
        put(&engine, "a", &object(), WriteConditions::default()).await.unwrap();
        ground.drain(&engine).await;
        assert_eq!(get(&engine, "a", None).await.unwrap(), object());
        engine.close().await;
    });
    drop(before);
    assert!(has_secret(&local.join("cache")));
    ground.at_rest = key('1');
    runtime().block_on(async {
        let engine = ground.open(&local).await;
        assert!(!has_secret(&local));
        assert_eq!(get(&engine, "a", None).await.unwrap(), object());
        engine.close().await;
    });
}
