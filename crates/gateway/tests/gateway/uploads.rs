//! Uploads beside what else happens to their objects.

use std::sync::Arc;

use underlay_gateway::config::{StoreConsistency, WriteMode};
use underlay_gateway::engine::{CompletedPart, GatewayEngine, SourceConditions, WriteConditions};
use underlay_gateway::errors::GatewayError;
use underlay_gateway::model::{ObjectChecksums, ObjectHeaders};
use underlay_gateway::store::BackendKind;

use crate::rig::{BUCKET, Ground, content, get, in_memory, put};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn part_copied_from_overwritten_object_is_consistent() {
    let directory = tempfile::tempdir().unwrap();
    let engine = Ground::new(in_memory(), BackendKind::S3).open(directory.path()).await;
    let (short, long) = (content(1, 1000), content(2, 3000));
    for round in 0..30 {
        put(&engine, "source", &short, WriteConditions::default()).await.unwrap();
        let upload =
            engine.create_upload(BUCKET, "target", ObjectHeaders::default(), Vec::new(), None).await.unwrap();
        let (stored, part) = tokio::join!(
            put(&engine, "source", &long, WriteConditions::default()),
            engine.upload_part_copy(
                BUCKET,
                "target",
                &upload,
                1,
                (BUCKET, "source"),
                SourceConditions::default(),
                None
            )
        );
        stored.unwrap();
        let part =
            CompletedPart { number: 1, etag: part.unwrap().etag, checksums: ObjectChecksums::default() };
        engine
            .complete_upload(
                BUCKET,
                "target",
                &upload,
                vec![part],
                WriteConditions::default(),
                ObjectChecksums::default(),
                None,
            )
            .await
            .unwrap();
        let copied = get(&engine, "target", None).await.unwrap();
        assert!(copied == short || copied == long, "round {round}: {} bytes of neither", copied.len());
    }
}

/// An object with its own end behind it, again and again: each piece by reference would make a list that doubles for a
/// few bytes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn object_copied_from_its_pieces_stays_compact() {
    let directory = tempfile::tempdir().unwrap();
    let mut ground = Ground::new(in_memory(), BackendKind::S3);
    // A flush would put the pieces together.
    ground.write = WriteMode::Back { after: std::time::Duration::from_secs(600) };
    let engine = ground.open(directory.path()).await;
    let mut expected = content(3, 5 << 20).to_vec();
    put(&engine, "a", &expected.clone().into(), WriteConditions::default()).await.unwrap();
    for round in 0..14 {
        let upload =
            engine.create_upload(BUCKET, "a", ObjectHeaders::default(), Vec::new(), None).await.unwrap();
        // Twice as many pieces as in the round before, were they all by reference.
        let tail = expected.len() as u64 - (1 << round)..expected.len() as u64;
        let mut parts = Vec::new();
        for (number, range) in [(1, None), (2, Some(tail.clone()))] {
            let conditions = SourceConditions::default();
            let part = engine
                .upload_part_copy(BUCKET, "a", &upload, number, (BUCKET, "a"), conditions, range)
                .await
                .unwrap();
            parts.push(CompletedPart { number, etag: part.etag, checksums: ObjectChecksums::default() });
        }
        engine
            .complete_upload(
                BUCKET,
                "a",
                &upload,
                parts,
                WriteConditions::default(),
                ObjectChecksums::default(),
                None,
            )
            .await
            .unwrap();
        expected.extend_from_within(tail.start as usize..);
    }
    let resolved = engine.resolve(BUCKET, "a").await.unwrap();
    assert!(resolved.record.extents.len() < 200, "{} pieces", resolved.record.extents.len());
    assert!(get(&engine, "a", None).await.unwrap() == expected);
}

/// A directory can't check an ETag as it writes: the gateway does, for one client at a time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_conditional_replacements_in_shared_prefix_have_a_winner() {
    let directory = tempfile::tempdir().unwrap();
    let mut ground = Ground::new(in_memory(), BackendKind::Directory);
    (ground.write, ground.consistency) = (WriteMode::Through, StoreConsistency::Revalidate);
    let engine = ground.open(directory.path()).await;
    for round in 0..20 {
        let first = put(&engine, "a", &content(round, 100), WriteConditions::default()).await.unwrap();
        let rivals = (0..8).map(|rival| {
            let (engine, etag) = (std::sync::Arc::clone(&engine), first.etag.clone());
            tokio::spawn(async move {
                let conditions =
                    WriteConditions { if_match: Some(etag.into()), ..WriteConditions::default() };
                put(&engine, "a", &content(1000 + rival, 100), conditions).await
            })
        });
        let mut won = 0;
        for outcome in futures_util::future::join_all(rivals).await {
            match outcome.unwrap() {
                Ok(_) => won += 1,
                Err(error) => assert_eq!(error, GatewayError::PreconditionFailed),
            }
        }
        assert_eq!(won, 1, "round {round}");
    }
}

/// Where the store takes nothing: parts may never be completed, so they leave room for whole objects; and what nobody
/// goes on with ends by itself.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unfinished_uploads_leave_room_and_expire() {
    let directory = tempfile::tempdir().unwrap();
    let mut ground = Ground::new(in_memory(), BackendKind::S3);
    ground.journal_bytes = 16 << 20;
    ground.patience = std::time::Duration::from_millis(50);
    let part = content(5, 3 << 20);
    let begin = async |engine: &std::sync::Arc<underlay_gateway::engine::GatewayEngine>| {
        engine.create_upload(BUCKET, "a", ObjectHeaders::default(), Vec::new(), None).await.unwrap()
    };
    let send =
        async |engine: &std::sync::Arc<underlay_gateway::engine::GatewayEngine>, upload: &str, number| {
            let body = crate::rig::body_of(&part);
            let size = part.len() as u64;
            let verify = Box::new(|_: &_, _: &_| Ok(()));
            engine.upload_part(BUCKET, "a", upload, number, size, &[], body, verify).await
        };
    let engine = ground.open(directory.path()).await;
    ground.mood.failing.store(1000, std::sync::atomic::Ordering::Relaxed);
    let upload = begin(&engine).await;
    for number in 1..=4 {
        send(&engine, &upload, number).await.unwrap();
    }
    assert!(matches!(send(&engine, &upload, 5).await, Err(GatewayError::Busy(_))));
    put(&engine, "b", &content(6, 3 << 20), WriteConditions::default()).await.unwrap();
    assert_eq!(get(&engine, "b", None).await.unwrap(), content(6, 3 << 20));
    engine.close().await;
    drop(engine);
    ground.mood.be_good();
    ground.uploads_expire = std::time::Duration::from_millis(300);
    let engine = ground.open(directory.path()).await;
    let begun = std::time::Instant::now();
    while engine.upload(BUCKET, "a", &upload).is_ok() {
        assert!(begun.elapsed() < std::time::Duration::from_secs(60), "it does not expire");
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    assert_eq!(engine.upload(BUCKET, "a", &upload), Err(GatewayError::NoSuchUpload));
    let upload = begin(&engine).await;
    send(&engine, &upload, 1).await.unwrap();
}

/// The answer to a completion may be lost; the client asks again then.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn completed_upload_can_be_completed_again() {
    for consistency in [StoreConsistency::Exclusive, StoreConsistency::Revalidate] {
        completes_again(consistency).await;
    }
}

async fn completes_again(consistency: StoreConsistency) {
    let directory = tempfile::tempdir().unwrap();
    let mut ground = Ground::new(in_memory(), BackendKind::S3);
    (ground.write, ground.consistency) = (WriteMode::Through, consistency);
    let engine = ground.open(directory.path()).await;
    let bytes = content(9, 5000);
    let upload = engine.create_upload(BUCKET, "a", ObjectHeaders::default(), Vec::new(), None).await.unwrap();
    let body = crate::rig::body_of(&bytes);
    let verify = Box::new(|_: &_, _: &_| Ok(()));
    let part = engine.upload_part(BUCKET, "a", &upload, 1, 5000, &[], body, verify).await.unwrap();
    let complete_as = async |upload: &str, parts: Vec<CompletedPart>| {
        let (conditions, none) = (WriteConditions::default(), ObjectChecksums::default());
        engine.complete_upload(BUCKET, "a", upload, parts, conditions, none, None).await
    };
    let complete = async |parts: Vec<CompletedPart>| complete_as(&upload, parts).await;
    let listed = |etag: &str| {
        vec![CompletedPart { number: 1, etag: etag.to_owned(), checksums: ObjectChecksums::default() }]
    };
    // A client that did not wait for the first answer asks twice at once.
    let (first, second) = tokio::join!(complete(listed(&part.etag)), complete(listed(&part.etag)));
    let first = first.unwrap();
    assert_eq!(second.unwrap(), first);
    assert_eq!(complete(listed(&part.etag)).await.unwrap(), first);
    assert_eq!(complete(listed("00000000000000000000000000000000")).await, Err(GatewayError::NoSuchUpload));
    assert_eq!(complete(Vec::new()).await, Err(GatewayError::NoSuchUpload));
    // Another upload has not made it, whether there was one or not.
    let other = engine.create_upload(BUCKET, "a", ObjectHeaders::default(), Vec::new(), None).await.unwrap();
    engine.abort_upload(BUCKET, "a", &other).await.unwrap();
    for upload in ["zz", "", &other] {
        assert_eq!(
            complete_as(upload, listed(&part.etag)).await,
            Err(GatewayError::NoSuchUpload),
            "{upload}"
        );
    }
    put(&engine, "a", &bytes, WriteConditions::default()).await.unwrap();
    assert_eq!(complete(listed(&part.etag)).await, Err(GatewayError::NoSuchUpload));
}

/// Where the prefix is ours alone, whatever becomes of the gateway and of the object's headers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn upload_is_known_while_its_object_stays() {
    let directory = tempfile::tempdir().unwrap();
    let ground = Ground::new(in_memory(), BackendKind::S3);
    let mut engine = ground.open(directory.path()).await;
    let complete = async |engine: &Arc<GatewayEngine>, upload: &str, etag: &str| {
        let (conditions, none) = (WriteConditions::default(), ObjectChecksums::default());
        let parts = vec![CompletedPart { number: 1, etag: etag.to_owned(), checksums: none.clone() }];
        engine.complete_upload(BUCKET, "a", upload, parts, conditions, none, None).await
    };
    let mut uploads = Vec::new();
    for _ in 0..2 {
        let headers = ObjectHeaders::default();
        let upload = engine.create_upload(BUCKET, "a", headers, Vec::new(), None).await.unwrap();
        let (body, verify) = (crate::rig::body_of(&content(9, 5000)), Box::new(|_: &_, _: &_| Ok(())));
        let part = engine.upload_part(BUCKET, "a", &upload, 1, 5000, &[], body, verify).await.unwrap();
        let stored = complete(&engine, &upload, &part.etag).await.unwrap();
        uploads.push((upload, part.etag, stored));
    }
    // Both have made the same bytes, and the object is the second one's.
    let [(first, etag, _), (second, _, stored)] = uploads.as_slice() else { panic!("there are two") };
    engine.set_tags(BUCKET, "a", vec![("a".to_owned(), "b".to_owned())]).await.unwrap();
    ground.drain(&engine).await;
    for _ in 0..2 {
        assert_eq!(complete(&engine, first, etag).await, Err(GatewayError::NoSuchUpload));
        assert_eq!(complete(&engine, second, etag).await.as_ref(), Ok(stored));
        engine.close().await;
        drop(engine);
        engine = ground.open(directory.path()).await;
    }
    crate::rig::delete(&engine, "a").await.unwrap();
    assert_eq!(complete(&engine, second, etag).await, Err(GatewayError::NoSuchUpload));
}
