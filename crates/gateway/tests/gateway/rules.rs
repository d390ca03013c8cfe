//! Rules of prefixes that come and go between two starts.

use std::time::Duration;

use underlay_gateway::config::{PrefixRule, StoreConsistency, WriteMode};
use underlay_gateway::engine::{ListRequest, WriteConditions};
use underlay_gateway::errors::GatewayError;
use underlay_gateway::store::BackendKind;

use crate::rig::{BUCKET, Ground, content, delete, get, in_memory, put};

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

fn rule(prefix: &str, consistency: StoreConsistency) -> PrefixRule {
    PrefixRule { prefix: prefix.to_owned(), write: WriteMode::Through, consistency }
}

/// Written through, with these rules beside the bucket's own.
fn ground_with(rules: &[PrefixRule]) -> Ground {
    let mut ground = Ground::new(in_memory(), BackendKind::S3);
    ground.write = WriteMode::Through;
    ground.rules = rules.to_vec();
    ground
}

async fn keys(engine: &underlay_gateway::engine::GatewayEngine) -> Vec<String> {
    let request = ListRequest { most: 1000, ..ListRequest::default() };
    let listing = engine.list(BUCKET, &request).await.unwrap();
    listing.entries.iter().map(|entry| entry.name().to_owned()).collect()
}

#[test]
fn objects_of_removed_rule_stay_known() {
    // Removed, narrowed, and made the bucket's own.
    for rules in [
        vec![],
        vec![rule("raw/x/", StoreConsistency::Revalidate)],
        vec![rule("raw/", StoreConsistency::Exclusive)],
    ] {
        runtime().block_on(async {
            let directory = tempfile::tempdir().unwrap();
            let local = directory.path().join("local");
            let mut ground = ground_with(&[rule("raw/", StoreConsistency::Revalidate)]);
            let engine = ground.open(&local).await;
            for key in ["raw/a", "raw/b", "raw/x/c", "other"] {
                put(&engine, key, &content(1, 100), WriteConditions::default()).await.unwrap();
            }
            engine.close().await;
            drop(engine);

            ground.rules = rules.clone();
            let engine = ground.open(&local).await;
            assert_eq!(keys(&engine).await, ["other", "raw/a", "raw/b", "raw/x/c"], "{rules:?}");
            assert_eq!(get(&engine, "raw/a", None).await.unwrap(), content(1, 100));
            let only_new = WriteConditions { if_none_match: true, ..WriteConditions::default() };
            let refused = put(&engine, "raw/a", &content(2, 100), only_new).await;
            assert!(matches!(refused, Err(GatewayError::PreconditionFailed)), "{refused:?}");
            delete(&engine, "raw/b").await.unwrap();
            ground.drain(&engine).await;
            let stored: Vec<String> = ground.stored().await.into_iter().map(|(key, _)| key).collect();
            assert_eq!(stored, ["other", "raw/a", "raw/x/c"], "{rules:?}");
            engine.close().await;
        });
    }
}

#[test]
fn exclusive_again_prefix_is_relisted() {
    runtime().block_on(async {
        let directory = tempfile::tempdir().unwrap();
        let local = directory.path().join("local");
        let mut ground = ground_with(&[rule("tmp/", StoreConsistency::Exclusive)]);
        let engine = ground.open(&local).await;
        put(&engine, "tmp/a", &content(1, 100), WriteConditions::default()).await.unwrap();
        engine.close().await;
        drop(engine);
        // The rule goes, and what is left lets others write.
        ground.rules.clear();
        ground.consistency = StoreConsistency::Ttl(Duration::from_secs(1));
        let engine = ground.open(&local).await;
        put(&engine, "tmp/b", &content(2, 100), WriteConditions::default()).await.unwrap();
        engine.close().await;
        drop(engine);
        ground.rules = vec![rule("tmp/", StoreConsistency::Exclusive)];
        ground.consistency = StoreConsistency::Exclusive;
        let engine = ground.open(&local).await;
        assert_eq!(keys(&engine).await, ["tmp/a", "tmp/b"]);
        for (key, seed) in [("tmp/a", 1), ("tmp/b", 2)] {
            assert_eq!(get(&engine, key, None).await.unwrap(), content(seed, 100));
        }
        engine.close().await;
    });
}

/// What is known already costs no listing.
#[test]
fn rule_without_effect_lists_nothing() {
    runtime().block_on(async {
        let directory = tempfile::tempdir().unwrap();
        let local = directory.path().join("local");
        let mut ground = ground_with(&[]);
        ground.open(&local).await.close().await;
        ground.mood.denies_lists.store(true, std::sync::atomic::Ordering::Relaxed);
        for rules in [vec![], vec![rule("raw/", StoreConsistency::Exclusive)], vec![]] {
            ground.rules = rules;
            ground.open(&local).await.close().await;
        }
    });
}
