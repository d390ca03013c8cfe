//! What takes room or memory without sending many bytes: references, names, parts, readers. There is a limit for each,
//! and others go on beside it.

use std::time::Duration;

use futures_util::StreamExt as _;
use underlay_gateway::config::WriteMode;
use underlay_gateway::engine::{CompletedPart, ListEntry, ListRequest, SourceConditions, WriteConditions};
use underlay_gateway::errors::GatewayError;
use underlay_gateway::model::{ObjectChecksums, ObjectHeaders};
use underlay_gateway::store::BackendKind;

use crate::rig::{BUCKET, Ground, body_of, content, delete, get, in_memory, put};

const MIB: usize = 1 << 20;

/// Copies a range of an object as the only part of a new upload. Returns the upload and the part's ETag.
async fn refer(
    engine: &std::sync::Arc<underlay_gateway::engine::GatewayEngine>,
    key: &str,
    from: &str,
    range: Option<std::ops::Range<u64>>,
) -> (String, String) {
    let upload = engine.create_upload(BUCKET, key, ObjectHeaders::default(), Vec::new(), None).await.unwrap();
    let source = (BUCKET, from);
    let part = engine
        .upload_part_copy(BUCKET, key, &upload, 1, source, SourceConditions::default(), range)
        .await
        .unwrap();
    (upload, part.etag)
}

async fn complete(
    engine: &std::sync::Arc<underlay_gateway::engine::GatewayEngine>,
    key: &str,
    (upload, etag): (String, String),
) {
    let part = CompletedPart { number: 1, etag, checksums: ObjectChecksums::default() };
    let (conditions, checksums) = (WriteConditions::default(), ObjectChecksums::default());
    engine.complete_upload(BUCKET, key, &upload, vec![part], conditions, checksums, None).await.unwrap();
}

/// Of an object that others need a byte of, a byte is fetched; and what has to be fetched whole takes nothing from
/// writes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bytes_that_others_refer_to_leave_room_for_writes() {
    let directory = tempfile::tempdir().unwrap();
    let mut ground = Ground::new(in_memory(), BackendKind::S3);
    ground.journal_bytes = 40 << 20;
    ground.patience = Duration::from_secs(20);
    let mut engine = ground.open(directory.path()).await;
    let sources: Vec<_> = (0..3).map(|seed| content(seed, 20 * MIB)).collect();
    for (index, bytes) in sources.iter().enumerate() {
        put(&engine, &format!("source{index}"), bytes, WriteConditions::default()).await.unwrap();
        ground.drain(&engine).await;
    }
    let of_byte = refer(&engine, "byte", "source0", Some(7_000_000..7_000_001)).await;
    let of_end = refer(&engine, "end", "source0", Some(18_000_000..20 * MIB as u64)).await;
    let of_whole = refer(&engine, "whole", "source1", None).await;
    // An object refers to it as well, and is not stored yet.
    let of_copy = refer(&engine, "copy", "source2", Some(0..6_000_000)).await;
    complete(&engine, "copy", of_copy).await;
    for index in 0..3 {
        delete(&engine, &format!("source{index}")).await.unwrap();
    }
    ground.drain(&engine).await;
    let keys: Vec<String> = ground.stored().await.into_iter().map(|(key, _)| key).collect();
    assert_eq!(keys, ["copy"], "what nobody needs is gone from the store");
    // Beside some 22 MiB that were fetched. It is known after a start as well whose they are.
    let large = content(9, 36 * MIB);
    for round in 0..2 {
        put(&engine, "large", &large, WriteConditions::default()).await.unwrap();
        ground.drain(&engine).await;
        if round == 0 {
            engine.close().await;
            drop(engine);
            engine = ground.open(directory.path()).await;
        }
    }
    complete(&engine, "byte", of_byte).await;
    complete(&engine, "end", of_end).await;
    complete(&engine, "whole", of_whole).await;
    let expected = [
        ("byte", sources[0].slice(7_000_000..7_000_001)),
        ("copy", sources[2].slice(..6_000_000)),
        ("end", sources[0].slice(18_000_000..)),
        ("whole", sources[1].clone()),
    ];
    for (key, bytes) in &expected {
        assert!(get(&engine, key, None).await.unwrap() == *bytes, "{key}");
    }
    ground.drain(&engine).await;
    for (key, bytes) in &expected {
        assert!(get(&engine, key, None).await.unwrap() == *bytes, "{key}");
    }
}

/// As many bytes are fetched as the journal may have; then those of parts that nobody completes go to the store, and
/// others follow.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn abandoned_uploads_hold_no_fetched_bytes() {
    let directory = tempfile::tempdir().unwrap();
    let mut ground = Ground::new(in_memory(), BackendKind::S3);
    ground.journal_bytes = 16 << 20;
    ground.patience = Duration::from_secs(60);
    let engine = ground.open(directory.path()).await;
    let is_clean = async || {
        let begun = std::time::Instant::now();
        while !engine.is_clean() {
            assert!(begun.elapsed() < Duration::from_secs(100), "{:?}", engine.last_failure());
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let mut left = Vec::new();
    for seed in 0..4 {
        let bytes = content(seed, 7 * MIB);
        let (source, key) = (format!("source{seed}"), format!("left{seed}"));
        put(&engine, &source, &bytes, WriteConditions::default()).await.unwrap();
        is_clean().await;
        left.push((key.clone(), refer(&engine, &key, &source, None).await, bytes));
        delete(&engine, &source).await.unwrap();
    }
    // Two of them find room, and the others once the first two have gone.
    is_clean().await;
    for (key, upload, bytes) in left {
        complete(&engine, &key, upload).await;
        assert!(get(&engine, &key, None).await.unwrap() == bytes, "{key}");
    }
}

/// A drain does not wait for parts, which are safe here, but for the room that they keep from what it waits for.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn drain_with_fetched_parts_finishes() {
    let directory = tempfile::tempdir().unwrap();
    let mut ground = Ground::new(in_memory(), BackendKind::S3);
    ground.journal_bytes = 16 << 20;
    ground.patience = Duration::from_secs(60);
    ground.write = WriteMode::Through;
    let engine = ground.open(directory.path()).await;
    let sources: Vec<_> = (0..4).map(|seed| content(seed, 7 * MIB)).collect();
    let mut left = Vec::new();
    for (seed, bytes) in sources.iter().enumerate() {
        let (source, key) = (format!("source{seed}"), format!("left{seed}"));
        put(&engine, &source, bytes, WriteConditions::default()).await.unwrap();
        left.push((key.clone(), refer(&engine, &key, &source, None).await));
    }
    engine.begin_drain();
    for seed in 0..sources.len() {
        let deleting = engine.clone();
        // As of a request that was in flight when the drain began.
        tokio::spawn(async move { delete(&deleting, &format!("source{seed}")).await });
    }
    let begun = std::time::Instant::now();
    let is_done =
        async || engine.is_clean() && ground.stored().await.iter().all(|(key, _)| !key.starts_with("source"));
    while !is_done().await {
        assert!(begun.elapsed() < Duration::from_secs(100), "{:?}", engine.last_failure());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    for ((key, upload), bytes) in left.into_iter().zip(sources) {
        complete(&engine, &key, upload).await;
        assert!(get(&engine, &key, None).await.unwrap() == bytes, "{key}");
    }
}

/// Empty objects take no room in the journal, and each is a name that the gateway keeps in mind.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unstored_names_are_limited_by_memory() {
    const MAX_NAMES: usize = 16 << 10;
    let directory = tempfile::tempdir().unwrap();
    let mut ground = Ground::new(in_memory(), BackendKind::S3);
    ground.write = WriteMode::Back { after: Duration::from_secs(3600) };
    ground.patience = Duration::from_secs(2);
    let engine = ground.open(directory.path()).await;
    let empty = content(0, 0);
    let put_many = |from: usize, to: usize| {
        let (engine, empty) = (&engine, &empty);
        futures_util::stream::iter(from..to)
            .map(move |index| async move {
                put(engine, &format!("{index}"), empty, WriteConditions::default()).await.map(drop)
            })
            .buffer_unordered(512)
            .collect::<Vec<_>>()
    };
    assert!(put_many(0, MAX_NAMES).await.iter().all(Result::is_ok));
    let refused = put(&engine, "more", &empty, WriteConditions::default()).await;
    assert!(matches!(refused, Err(GatewayError::Busy(_))), "{refused:?}");
    // What is pending already can change, and what was never stored can go.
    put(&engine, "7", &content(1, 10), WriteConditions::default()).await.unwrap();
    delete(&engine, "8").await.unwrap();
    put(&engine, "more", &empty, WriteConditions::default()).await.unwrap();
    assert!(matches!(
        put(&engine, "8", &empty, WriteConditions::default()).await,
        Err(GatewayError::Busy(_))
    ));
    assert_eq!(engine.pending().0, MAX_NAMES);
}

/// A page of a listing has no room for what makes records long.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn listings_keep_no_lists_of_parts() {
    let directory = tempfile::tempdir().unwrap();
    let mut ground = Ground::new(in_memory(), BackendKind::S3);
    ground.write = WriteMode::Back { after: Duration::from_secs(3600) };
    let engine = ground.open(directory.path()).await;
    let upload = engine.create_upload(BUCKET, "a", ObjectHeaders::default(), Vec::new(), None).await.unwrap();
    let mut parts = Vec::new();
    for number in 1..=3 {
        let bytes = content(u64::from(number), 5 * MIB);
        let (body, size) = (body_of(&bytes), bytes.len() as u64);
        let verify = Box::new(|_: &[u8; 16], _: &ObjectChecksums| Ok::<(), GatewayError>(()));
        let part = engine.upload_part(BUCKET, "a", &upload, number, size, &[], body, verify).await.unwrap();
        parts.push(CompletedPart { number, etag: part.etag, checksums: ObjectChecksums::default() });
    }
    let (conditions, checksums) = (WriteConditions::default(), ObjectChecksums::default());
    engine.complete_upload(BUCKET, "a", &upload, parts, conditions, checksums, None).await.unwrap();
    assert_eq!(engine.resolve(BUCKET, "a").await.unwrap().record.part_sizes_bytes.len(), 3);
    let page = engine.list(BUCKET, &ListRequest { most: 10, ..ListRequest::default() }).await.unwrap();
    let [ListEntry::Object(_, record)] = page.entries.as_slice() else { panic!("{:?}", page.entries) };
    assert!(record.extents.is_empty() && record.part_sizes_bytes.is_empty());
    assert_eq!(record.size_bytes, 15 * MIB as u64);
}

/// Those who stand still have what there is to be read ahead into. Others get theirs in short pieces.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readers_that_stand_still_keep_nobody_from_reading() {
    let directory = tempfile::tempdir().unwrap();
    let ground = Ground::new(in_memory(), BackendKind::S3);
    let engine = ground.open(directory.path()).await;
    let bytes = content(5, 12 * MIB);
    put(&engine, "a", &bytes, WriteConditions::default()).await.unwrap();
    for is_stored in [false, true] {
        if is_stored {
            ground.drain(&engine).await;
        }
        let mut stalled = Vec::new();
        for _ in 0..100 {
            let resolved = engine.resolve(BUCKET, "a").await.unwrap();
            let mut body = engine.body(BUCKET, "a", resolved, 0..bytes.len() as u64);
            let first = body.next().await.unwrap().unwrap();
            stalled.push((body, first));
        }
        assert!(get(&engine, "a", None).await.unwrap() == bytes);
        assert!(get(&engine, "a", Some(1_234_567..9_876_543)).await.unwrap() == bytes[1_234_567..9_876_543]);
        // And so do they, when they go on.
        for (body, first) in stalled {
            let mut whole = first.to_vec();
            let rest: Vec<_> = body.collect().await;
            rest.into_iter().for_each(|piece| whole.extend_from_slice(&piece.unwrap()));
            assert!(whole == bytes);
        }
    }
}
