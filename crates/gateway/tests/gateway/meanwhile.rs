//! Bytes that lie in the store while something else goes on there.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::StreamExt as _;
use object_store::ObjectStoreExt as _;
use underlay_gateway::config::{PrefixRule, StoreConsistency, WriteMode};
use underlay_gateway::engine::{CompletedPart, CopyRequest, SourceConditions, WriteConditions};
use underlay_gateway::model::{ObjectChecksums, ObjectHeaders};
use underlay_gateway::store::BackendKind;

use crate::rig::{BUCKET, Ground, content, get, in_memory, put};

/// New headers take the bytes to the store anew. Where its answer to that is lost and the gateway ends, it has the
/// bytes still.
#[test]
fn new_headers_whose_answer_is_lost_cost_no_bytes() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let directory = tempfile::tempdir().unwrap();
        let ground = Ground::new(in_memory(), BackendKind::S3);
        let local = directory.path().join("local");
        let engine = ground.open(&local).await;
        put(&engine, "a", &content(1, 200_000), WriteConditions::default()).await.unwrap();
        ground.drain(&engine).await;
        let before = ground.mood.puts.load(Ordering::Relaxed);
        ground.mood.loses_answers.store(true, Ordering::Relaxed);
        let headers = ObjectHeaders { content_type: Some("text/new".to_owned()), ..ObjectHeaders::default() };
        let request = CopyRequest {
            from: (BUCKET.to_owned(), "a".to_owned()),
            to: (BUCKET.to_owned(), "a".to_owned()),
            headers: Some(headers.clone()),
            ..CopyRequest::default()
        };
        engine.copy(request).await.unwrap();
        while ground.mood.puts.load(Ordering::Relaxed) == before {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        engine.close().await;
        drop(engine);
        let engine = ground.open(&local).await;
        assert_eq!(get(&engine, "a", None).await.unwrap(), content(1, 200_000));
        ground.mood.loses_answers.store(false, Ordering::Relaxed);
        ground.drain(&engine).await;
        assert_eq!(get(&engine, "a", None).await.unwrap(), content(1, 200_000));
        assert_eq!(engine.resolve(BUCKET, "a").await.unwrap().record.headers, headers);
        assert_eq!(ground.stored().await, [("a".to_owned(), content(1, 200_000))]);
    });
}

/// Readers of what is overwritten, again and again and flushed at once, see one version each, from its first byte to
/// its last.
#[test]
fn readers_of_what_is_overwritten_are_waited_for() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let directory = tempfile::tempdir().unwrap();
        let engine = Ground::new(in_memory(), BackendKind::S3).open(&directory.path().join("local")).await;
        let size = 300_000;
        put(&engine, "a", &content(0, size), WriteConditions::default()).await.unwrap();
        let is_over = Arc::new(std::sync::atomic::AtomicBool::new(false));
        let readers: Vec<_> = (0..4)
            .map(|_| {
                let (engine, is_over) = (Arc::clone(&engine), Arc::clone(&is_over));
                tokio::spawn(async move {
                    let mut count = 0;
                    while !is_over.load(Ordering::Relaxed) {
                        let read = get(&engine, "a", None).await.unwrap();
                        assert!((0..300).any(|seed| content(seed, 64) == read[..64]));
                        let seed = (0..300).find(|seed| content(*seed, 64) == read[..64]).unwrap();
                        assert!(read == content(seed, size), "bytes of several versions");
                        count += 1;
                        // What is in the cache is there at once: without a pause readers would keep the runtime's two
                        // threads from all else.
                        tokio::time::sleep(Duration::from_millis(1)).await;
                    }
                    count
                })
            })
            .collect();
        for round in 1..150 {
            match round % 3 {
                // Only its headers are new.
                0 => {
                    let from = (BUCKET.to_owned(), "a".to_owned());
                    let text = format!("text/{round}");
                    let headers = ObjectHeaders { content_type: Some(text), ..ObjectHeaders::default() };
                    let (to, headers) = (from.clone(), Some(headers));
                    engine.copy(CopyRequest { from, to, headers, ..CopyRequest::default() }).await.unwrap();
                }
                _ => {
                    put(&engine, "a", &content(round, size), WriteConditions::default()).await.unwrap();
                }
            }
            tokio::time::sleep(Duration::from_millis(round % 12)).await;
        }
        is_over.store(true, Ordering::Relaxed);
        for reader in readers {
            assert!(reader.await.unwrap() > 0);
        }
    });
}

/// A reader that stops half-way, of an object that no cache holds all of, still gets the rest of what it began.
#[test]
fn paused_reader_gets_rest_of_overwritten_object() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let directory = tempfile::tempdir().unwrap();
        let ground = Ground::new(in_memory(), BackendKind::S3);
        // Four times what the memory for blocks holds.
        let before = content(1, 32 << 20);
        let engine = ground.open(&directory.path().join("first")).await;
        put(&engine, "a", &before, WriteConditions::default()).await.unwrap();
        ground.drain(&engine).await;
        let resolved = engine.resolve(BUCKET, "a").await.unwrap();
        let mut body = engine.body(BUCKET, "a", resolved, 0..before.len() as u64);
        let mut read = body.next().await.unwrap().unwrap().to_vec();
        let flushed = ground.mood.puts.load(Ordering::Relaxed);
        put(&engine, "a", &content(2, 1000), WriteConditions::default()).await.unwrap();
        // Flushes are due after 5 ms.
        tokio::time::sleep(Duration::from_millis(300)).await;
        while let Some(piece) = body.next().await {
            read.extend_from_slice(&piece.unwrap());
        }
        assert!(before == read);
        drop(body);
        while ground.mood.puts.load(Ordering::Relaxed) == flushed {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        ground.drain(&engine).await;
        assert_eq!(get(&engine, "a", None).await.unwrap(), content(2, 1000));
    });
}

/// Objects whose bytes a copy elsewhere consists of are not handed to others.
#[test]
fn prefix_needed_by_copies_stays_exclusive() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let directory = tempfile::tempdir().unwrap();
        let local = directory.path().join("local");
        let mut ground = Ground::new(in_memory(), BackendKind::S3);
        let engine = ground.open(&local).await;
        put(&engine, "a/x", &content(1, 200_000), WriteConditions::default()).await.unwrap();
        ground.drain(&engine).await;
        engine.close().await;
        drop(engine);
        ground.write = WriteMode::Back { after: Duration::from_secs(3600) };
        let engine = ground.open(&local).await;
        let request = CopyRequest {
            from: (BUCKET.to_owned(), "a/x".to_owned()),
            to: (BUCKET.to_owned(), "b/y".to_owned()),
            ..CopyRequest::default()
        };
        engine.copy(request).await.unwrap();
        engine.close().await;
        drop(engine);
        let (write, consistency) = (WriteMode::Through, StoreConsistency::Revalidate);
        ground.rules = vec![PrefixRule { prefix: "a/".to_owned(), write, consistency }];
        let mut message = String::new();
        for _ in 0..400 {
            message = ground.try_open(&local).await.map(drop).unwrap_err();
            // The engine before may still be letting go.
            if message.contains("no longer exclusive") {
                break;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert!(message.contains("copies") && message.contains("drain"), "{message}");
        let rules = std::mem::take(&mut ground.rules);
        let engine = ground.open(&local).await;
        ground.drain(&engine).await;
        engine.close().await;
        drop(engine);
        ground.rules = rules;
        let engine = ground.open(&local).await;
        put(&engine, "a/x", &content(2, 100), WriteConditions::default()).await.unwrap();
        assert_eq!(get(&engine, "b/y", None).await.unwrap(), content(1, 200_000));
    });
}

/// What the store said before a write of our own is not kept beyond it, however late its answer comes.
#[test]
fn late_answer_is_not_cached() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let directory = tempfile::tempdir().unwrap();
        let mut ground = Ground::new(in_memory(), BackendKind::S3);
        (ground.write, ground.consistency) =
            (WriteMode::Through, StoreConsistency::Ttl(Duration::from_secs(3600)));
        let engine = ground.open(&directory.path().join("local")).await;
        put(&engine, "a", &content(1, 1000), WriteConditions::default()).await.unwrap();
        let before = ground.mood.gets.load(Ordering::Relaxed);
        ground.mood.holds_answers.store(true, Ordering::Relaxed);
        let asking = Arc::clone(&engine);
        let late = tokio::spawn(async move { asking.resolve(BUCKET, "a").await.unwrap().record.size_bytes });
        while ground.mood.gets.load(Ordering::Relaxed) == before {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        put(&engine, "a", &content(2, 2000), WriteConditions::default()).await.unwrap();
        ground.mood.holds_answers.store(false, Ordering::Relaxed);
        assert_eq!(late.await.unwrap(), 1000);
        assert_eq!(get(&engine, "a", None).await.unwrap(), content(2, 2000));
    });
}

/// S3 answers 403 for a missing object if the client may not list the whole bucket. The owner of the store shows all
/// the same.
#[test]
fn store_denying_absent_keys_reveals_its_owner() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let directory = tempfile::tempdir().unwrap();
        let ground = Ground::new(in_memory(), BackendKind::S3);
        ground.mood.denies_reads.store(true, Ordering::Relaxed);
        let engine = ground.open(&directory.path().join("local")).await;
        put(&engine, "a", &content(1, 1000), WriteConditions::default()).await.unwrap();
        ground.drain(&engine).await;
        let marker = object_store::path::Path::parse("%underlay-cluster").unwrap();
        ground.store.put(&marker, "cluster 1\n".into()).await.unwrap();
        let refused = ground.try_open(&directory.path().join("other")).await.map(drop);
        assert!(
            refused.as_ref().is_err_and(|why| why.contains("belongs to several gateways")),
            "{refused:?}"
        );
    });
}

/// Below a prefix that others write to as well: what has been sent to the store comes to its end before the next one
/// writes there, even when its sender has gone.
#[test]
fn dropped_write_keeps_name_lock_until_store_answers() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let directory = tempfile::tempdir().unwrap();
        let mut ground = Ground::new(in_memory(), BackendKind::S3);
        ground.consistency = StoreConsistency::Revalidate;
        let engine = ground.open(&directory.path().join("local")).await;
        let puts = || ground.mood.puts.load(Ordering::Relaxed);
        let (older, newer) = (content(1, 1_000), content(2, 1_000));
        ground.mood.holds_puts.store(true, Ordering::Relaxed);
        let write = |bytes: &bytes::Bytes| {
            let (engine, bytes) = (Arc::clone(&engine), bytes.clone());
            tokio::spawn(async move { put(&engine, "a", &bytes, WriteConditions::default()).await })
        };
        let first = write(&older);
        while puts() == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        first.abort();
        assert!(first.await.unwrap_err().is_cancelled());
        let second = write(&newer);
        // Long enough for it to get there.
        tokio::time::sleep(Duration::from_millis(200)).await;
        assert_eq!(puts(), 1, "the second one did not wait for the first");
        ground.mood.holds_puts.store(false, Ordering::Relaxed);
        second.await.unwrap().unwrap();
        assert_eq!((puts(), ground.stored().await), (2, vec![("a".to_owned(), newer)]));
    });
}

/// A request of a thousand keys must not take a thousand times as long as one, nor all that the store has to give.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shared_deletions_are_sent_several_at_once() {
    let directory = tempfile::tempdir().unwrap();
    let mut ground = Ground::new(in_memory(), BackendKind::S3);
    (ground.write, ground.consistency) = (WriteMode::Through, StoreConsistency::Revalidate);
    let engine = ground.open(directory.path()).await;
    let keys: Vec<String> = (0..60).map(|number| format!("{number:02}")).collect();
    for key in &keys {
        put(&engine, key, &content(1, 10), WriteConditions::default()).await.unwrap();
    }
    ground.mood.holds_deletes.store(true, Ordering::Relaxed);
    let deleting = {
        let (engine, keys) = (Arc::clone(&engine), keys.clone());
        let keys = keys.into_iter().map(|key| (key, WriteConditions::default())).collect();
        tokio::spawn(async move { engine.delete(BUCKET, keys).await })
    };
    let deletes = || ground.mood.deletes.load(Ordering::Relaxed);
    while deletes() < 16 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(deletes(), 16);
    ground.mood.holds_deletes.store(false, Ordering::Relaxed);
    assert_eq!(deleting.await.unwrap().unwrap(), vec![Ok(()); 60]);
    assert!(ground.stored().await.is_empty());
}

/// Others that could be flushed are no reason to let a client wait: what an upload needs of the old object is fetched.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn awaited_overwrite_of_copied_bytes_is_stored() {
    let directory = tempfile::tempdir().unwrap();
    let mut ground = Ground::new(in_memory(), BackendKind::S3);
    ground.write = WriteMode::Back { after: Duration::from_secs(3600) };
    let (write, consistency) = (WriteMode::Through, StoreConsistency::Exclusive);
    ground.rules = vec![PrefixRule { prefix: "through/".to_owned(), write, consistency }];
    let engine = ground.open(directory.path()).await;
    let (older, newer) = (content(1, 200_000), content(2, 1000));
    put(&engine, "through/a", &older, WriteConditions::default()).await.unwrap();
    let upload = engine.create_upload(BUCKET, "b", ObjectHeaders::default(), Vec::new(), None).await.unwrap();
    let (from, conditions) = ((BUCKET, "through/a"), SourceConditions::default());
    let part = engine.upload_part_copy(BUCKET, "b", &upload, 1, from, conditions, None).await.unwrap();
    put(&engine, "c", &newer, WriteConditions::default()).await.unwrap();
    put(&engine, "through/a", &newer, WriteConditions::default()).await.unwrap();
    assert_eq!(ground.stored().await, [("through/a".to_owned(), newer)]);
    let part = CompletedPart { number: 1, etag: part.etag, checksums: ObjectChecksums::default() };
    let (conditions, none) = (WriteConditions::default(), ObjectChecksums::default());
    engine.complete_upload(BUCKET, "b", &upload, vec![part], conditions, none, None).await.unwrap();
    assert_eq!(get(&engine, "b", None).await.unwrap(), older);
}
