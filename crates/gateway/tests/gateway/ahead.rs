//! Reading ahead: the store is asked less often than the client asks.

use std::sync::atomic::Ordering;
use std::time::Duration;

use object_store::{Attribute, Attributes, ObjectStore as _, ObjectStoreExt as _, PutOptions, PutPayload};
use underlay_gateway::errors::GatewayError;
use underlay_gateway::store::BackendKind;

use crate::rig::{BLOCK_BYTES, BUCKET, Ground, content, get, get_short, in_memory};

/// S3 gives every object a content type.
fn text() -> Attributes {
    Attributes::from_iter([(Attribute::ContentType, "text/plain")])
}

#[test]
fn range_scan_and_footer_are_read_ahead() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let directory = tempfile::tempdir().unwrap();
        let store = in_memory();
        let (size, blocks) = (4 << 20, (4 << 20) / BLOCK_BYTES);
        for key in ["scan", "short", "footer", "jumps"] {
            let options = PutOptions { attributes: text(), ..PutOptions::default() };
            store.put_opts(&key.into(), PutPayload::from_bytes(content(1, size)), options).await.unwrap();
        }
        let ground = Ground::new(store, BackendKind::S3);
        let engine = ground.open(&directory.path().join("local")).await;
        let gets = || ground.mood.gets.load(Ordering::Relaxed);
        let settled = async || {
            // On a busy machine one that is about to be sent may take a while.
            let (mut last, mut quiet) = (gets(), 0);
            while quiet < 5 {
                tokio::time::sleep(Duration::from_millis(50)).await;
                quiet = if std::mem::replace(&mut last, gets()) == last { quiet + 1 } else { 0 };
            }
            last
        };
        let before = gets();
        let step = BLOCK_BYTES / 2;
        for index in 0..size as u64 / step {
            let range = index * step..(index + 1) * step;
            assert_eq!(
                get(&engine, "scan", Some(range.clone())).await.unwrap(),
                content(1, size).slice(range.start as usize..range.end as usize)
            );
            // Who reads something does something with it.
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        let asked = settled().await - before;
        assert!(asked < blocks / 2, "{asked} requests for {blocks} blocks");

        // And as the front does it where a range is no longer than a block. With an empty cache: in a full one of 8
        // MiB, what was fetched ahead is gone before it is read.
        engine.close().await;
        drop(engine);
        let engine = ground.open(&directory.path().join("again")).await;
        let before = gets();
        for index in 0..size as u64 / step {
            let range = index * step..(index + 1) * step;
            let resolved = engine.resolve(BUCKET, "short").await.unwrap();
            assert!(engine.is_short(&range));
            let bytes = get_short(&engine, "short", resolved, range.clone()).await.unwrap();
            assert_eq!(bytes, content(1, size).slice(range.start as usize..range.end as usize));
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        let asked = settled().await - before;
        assert!(asked < blocks / 2, "{asked} requests for {blocks} blocks");

        // Parquet: the last eight bytes, then the footer that they tell of, which is in several blocks before.
        let end = size as u64;
        get(&engine, "footer", Some(end - 8..end)).await.unwrap();
        let before = settled().await;
        get(&engine, "footer", Some(end - 300_000..end - 8)).await.unwrap();
        assert_eq!(settled().await, before, "the footer was here");

        let before = gets();
        for index in [30, 3, 50, 12] {
            get(&engine, "jumps", Some(index * BLOCK_BYTES..index * BLOCK_BYTES + 100)).await.unwrap();
        }
        // One for the headers, and one each.
        assert!(settled().await - before <= 5, "{}", gets() - before);
    });
}

/// Of an object that only a listing has told of, headers and bytes come by one request.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn first_read_of_listed_object_has_headers_and_bytes() {
    let directory = tempfile::tempdir().unwrap();
    let store = in_memory();
    let size = 3 * BLOCK_BYTES as usize;
    for key in ["a", "b", "c"] {
        let options = PutOptions { attributes: text(), ..PutOptions::default() };
        store.put_opts(&key.into(), PutPayload::from_bytes(content(1, size)), options).await.unwrap();
    }
    let ground = Ground::new(std::sync::Arc::clone(&store), BackendKind::S3);
    let engine = ground.open(&directory.path().join("local")).await;
    let gets = || ground.mood.gets.load(Ordering::Relaxed);
    for round in 0..2 {
        for from in [BLOCK_BYTES + 5, 0, u64::MAX] {
            let before = gets();
            let resolved = engine.resolve_to_read(BUCKET, "a", |_| from).await.unwrap();
            assert_eq!(resolved.record.headers.content_type.as_deref(), Some("text/plain"), "round {round}");
            let range = BLOCK_BYTES..2 * BLOCK_BYTES;
            let read = get_short(&engine, "a", resolved, range.clone()).await.unwrap();
            assert_eq!(read, content(1, size).slice(range.start as usize..range.end as usize));
            if round == 0 && from > 0 && from < u64::MAX {
                assert_eq!(gets() - before, 1, "headers and bytes");
            }
        }
    }
    // Somebody has replaced one behind the gateway's back, and deleted another that nobody has ever read here.
    tokio::time::sleep(Duration::from_millis(3)).await;
    store.put(&"b".into(), PutPayload::from_bytes(content(2, 100))).await.unwrap();
    store.delete(&"c".into()).await.unwrap();
    let resolved = engine.resolve_to_read(BUCKET, "b", |_| 0).await.unwrap();
    assert_eq!(get_short(&engine, "b", resolved, 0..100).await.unwrap(), content(2, 100));
    let missing = engine.resolve_to_read(BUCKET, "c", |_| 0).await.map(drop);
    assert_eq!(missing, Err(GatewayError::NoSuchKey));
}
