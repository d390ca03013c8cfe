//! A store that says what is not so: that it has done what it has not, that it has nothing, or something older, or more
//! or less than it sends.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use bytes::Bytes;
use object_store::{Attribute, Attributes, ObjectStore as _, ObjectStoreExt as _, PutOptions};
use underlay_gateway::engine::{
    CompletedPart, CopyRequest, GatewayEngine, ListRequest, PutRequest, SourceConditions, WriteConditions,
};
use underlay_gateway::errors::GatewayError;
use underlay_gateway::model::{ObjectChecksums, ObjectHeaders};
use underlay_gateway::store::BackendKind;

use crate::faulty::{Etags, Lie};
use crate::rig::{BLOCK_BYTES, BUCKET, Ground, body_of, content, delete, get, in_directory, in_memory, put};

/// Longer than what one request takes to the store.
const IN_PARTS: usize = 20 << 20;

/// Stores of both kinds, with ETags of every kind.
fn grounds(directory: &Path) -> Vec<(Ground, std::path::PathBuf)> {
    let mut grounds = Vec::new();
    for etags in [Etags::OfTheStore, Etags::Md5, Etags::LikeMd5] {
        let ground = Ground::new(in_memory(), BackendKind::S3);
        *ground.mood.etags.lock() = etags;
        grounds.push((ground, directory.join(format!("{etags:?}"))));
    }
    let files = in_directory(&directory.join("store"));
    grounds.push((Ground::new(files, BackendKind::Directory), directory.join("files")));
    grounds
}

async fn stored(engine: &Arc<GatewayEngine>, key: &str, bytes: &Bytes) {
    put(engine, key, bytes, WriteConditions::default()).await.unwrap();
}

async fn copy(engine: &Arc<GatewayEngine>, from: &str, to: &str) {
    let (from, to) = ((BUCKET.to_owned(), from.to_owned()), (BUCKET.to_owned(), to.to_owned()));
    engine.copy(CopyRequest { from, to, ..CopyRequest::default() }).await.unwrap();
}

/// With nothing in its cache.
async fn reopened(ground: &Ground, engine: Arc<GatewayEngine>, local: &Path) -> Arc<GatewayEngine> {
    engine.close().await;
    drop(engine);
    ground.open(local).await
}

async fn names(engine: &GatewayEngine) -> Vec<String> {
    let listing = engine.list(BUCKET, &ListRequest { most: 1000, ..ListRequest::default() }).await.unwrap();
    listing.entries.iter().map(|entry| entry.name().to_owned()).collect()
}

async fn until(condition: &str, is_so: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < Duration::from_secs(60), "{condition}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

fn is_withheld(read: &Result<Bytes, GatewayError>, reason: &str) -> bool {
    matches!(read, Err(GatewayError::StoreAway(text)) if text.contains(reason) && text.contains("stays known"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stored_object_survives_transient_absence_from_store() {
    let directory = tempfile::tempdir().unwrap();
    for (ground, local) in grounds(directory.path()) {
        let engine = ground.open(&local).await;
        let (short, long) = (content(1, 1000), content(2, 300_000));
        stored(&engine, "short", &short).await;
        stored(&engine, "long", &long).await;
        ground.drain(&engine).await;
        copy(&engine, "long", "copy").await;
        ground.drain(&engine).await;
        let engine = reopened(&ground, engine, &local).await;
        ground.mood.tell(&[Lie::NotFound]);
        for _ in 0..2 {
            for key in ["short", "long", "copy"] {
                let read = get(&engine, key, None).await;
                assert!(is_withheld(&read, "has nothing there"), "{key}: {read:?}");
                assert!(engine.resolve(BUCKET, key).await.is_ok());
            }
        }
        assert_eq!(names(&engine).await, ["copy", "long", "short"]);
        let engine = reopened(&ground, engine, &local).await;
        ground.mood.be_good();
        for (key, bytes) in [("short", &short), ("long", &long), ("copy", &long)] {
            assert_eq!(get(&engine, key, None).await.as_ref(), Ok(bytes), "{key}");
        }
        // What is lost for good is given up by a deletion, or replaced.
        for key in ["short", "long"] {
            ground.store.delete(&key.into()).await.unwrap();
        }
        let engine = reopened(&ground, engine, &local).await;
        assert!(is_withheld(&get(&engine, "short", None).await, "has nothing there"));
        delete(&engine, "short").await.unwrap();
        assert_eq!(get(&engine, "short", None).await, Err(GatewayError::NoSuchKey));
        stored(&engine, "long", &short).await;
        ground.drain(&engine).await;
        assert_eq!(ground.stored().await, [("copy".to_owned(), long), ("long".to_owned(), short)]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn older_version_in_store_is_no_foreign_change() {
    let directory = tempfile::tempdir().unwrap();
    for (ground, local) in grounds(directory.path()) {
        let engine = ground.open(&local).await;
        let (older, newer, theirs) = (content(1, 200_000), content(2, 200_000), content(3, 70_000));
        for bytes in [&older, &newer] {
            stored(&engine, "a", bytes).await;
            ground.drain(&engine).await;
            // Times of a store have milliseconds here.
            tokio::time::sleep(Duration::from_millis(3)).await;
        }
        let engine = reopened(&ground, engine, &local).await;
        ground.mood.tell(&[Lie::Older]);
        let read = get(&engine, "a", None).await;
        assert!(is_withheld(&read, "has an older version there"), "{read:?}");
        ground.mood.be_good();
        assert_eq!(get(&engine, "a", None).await, Ok(newer));
        // What somebody has written there since is taken as it is, as ever.
        ground.store.put(&"a".into(), theirs.clone().into()).await.unwrap();
        let engine = reopened(&ground, engine, &local).await;
        assert!(matches!(
            get(&engine, "a", None).await,
            Err(GatewayError::Store(_) | GatewayError::StoreAway(_))
        ));
        assert_eq!(get(&engine, "a", None).await, Ok(theirs));
    }
}

/// Sends an object to a store that tells these lies of it, sees that it is sent again and again and readable all the
/// while, and that it is there as soon as the store does what it says.
async fn is_sent_again(ground: &Ground, local: &Path, lies: &[Lie], before: &Bytes, bytes: &Bytes) {
    let engine = ground.open(local).await;
    stored(&engine, "a", before).await;
    ground.drain(&engine).await;
    ground.mood.tell(lies);
    let puts = || ground.mood.puts.load(Ordering::Relaxed);
    let sent = puts();
    stored(&engine, "a", bytes).await;
    until("it is not sent again", || puts() >= sent + 2).await;
    assert!((engine.pending().0, get(&engine, "a", None).await.as_ref()) == (1, Ok(bytes)), "{lies:?}");
    // The journal has it still, also for the next start.
    let engine = reopened(ground, engine, local).await;
    assert!((engine.pending().0, get(&engine, "a", None).await.as_ref()) == (1, Ok(bytes)), "{lies:?}");
    ground.drain(&engine).await;
    assert!(get(&engine, "a", None).await.as_ref() == Ok(bytes));
    assert!(ground.stored().await == [("a".to_owned(), bytes.clone())], "{lies:?}");
    engine.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn falsely_acknowledged_put_is_sent_again() {
    let directory = tempfile::tempdir().unwrap();
    let short = [content(1, 5000), content(2, 5000)];
    let long = [content(3, IN_PARTS), content(4, IN_PARTS)];
    for (ground, local) in grounds(directory.path()) {
        is_sent_again(&ground, &local, &[Lie::Put], &short[0], &short[1]).await;
        is_sent_again(&ground, &local, &[Lie::Complete], &long[0], &long[1]).await;
    }
}

/// Of the right size, with the ETag that the store told of, and not what was sent: the ETag itself says so.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bytes_that_changed_on_their_way_are_sent_again() {
    let directory = tempfile::tempdir().unwrap();
    for etags in [Etags::Md5, Etags::LikeMd5] {
        let ground = Ground::new(in_memory(), BackendKind::S3);
        *ground.mood.etags.lock() = etags;
        let local = directory.path().join(format!("{etags:?}"));
        let engine = ground.open(&local).await;
        // As long as nothing is known of the ETags, the bytes are looked at.
        ground.mood.tell(&[Lie::OtherBytes]);
        let (bytes, puts) = (content(1, 5000), || ground.mood.puts.load(Ordering::Relaxed));
        stored(&engine, "a", &bytes).await;
        until("it is not sent again", || puts() >= 2).await;
        ground.drain(&engine).await;
        assert_eq!(ground.stored().await, [("a".to_owned(), bytes)]);
        engine.close().await;
    }
    let ground = Ground::new(in_memory(), BackendKind::S3);
    *ground.mood.etags.lock() = Etags::Md5;
    let local = directory.path().join("in parts");
    is_sent_again(&ground, &local, &[Lie::Part], &content(1, 10), &content(2, IN_PARTS)).await;
}

/// One object of each kind is read, which tells that the ETags are no sums; from then on sizes and the store's word
/// have to do.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn checksum_like_etags_are_detected_once() {
    let directory = tempfile::tempdir().unwrap();
    let ground = Ground::new(in_memory(), BackendKind::S3);
    let bodies = || ground.mood.bodies.load(Ordering::Relaxed);
    for (etags, asked) in [(Etags::LikeMd5, 1 + 3), (Etags::Md5, 0), (Etags::OfTheStore, 0)] {
        *ground.mood.etags.lock() = etags;
        let engine = ground.open(&directory.path().join(format!("{etags:?}"))).await;
        let before = bodies();
        for (seed, size) in [(1, 1000), (2, IN_PARTS), (3, 2000), (4, IN_PARTS + 1), (5, 0)] {
            let key = format!("{etags:?}/{seed}");
            stored(&engine, &key, &content(seed, size)).await;
            ground.drain(&engine).await;
        }
        // The store looks for its owner's name, which is a GET as well.
        let looks = 1;
        let reads = bodies() - before;
        assert!(reads >= asked && reads <= asked + looks, "{etags:?}: {reads}");
        engine.close().await;
    }
    assert_eq!(ground.stored().await.len(), 15);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn falsely_acknowledged_deletion_is_repeated() {
    let directory = tempfile::tempdir().unwrap();
    for (ground, local) in grounds(directory.path()) {
        let engine = ground.open(&local).await;
        stored(&engine, "a", &content(1, 1000)).await;
        ground.drain(&engine).await;
        ground.mood.tell(&[Lie::Delete]);
        delete(&engine, "a").await.unwrap();
        until("it is not asked for again", || ground.mood.deletes.load(Ordering::Relaxed) >= 2).await;
        assert_eq!((engine.pending().0, get(&engine, "a", None).await), (1, Err(GatewayError::NoSuchKey)));
        let engine = reopened(&ground, engine, &local).await;
        assert_eq!((engine.pending().0, get(&engine, "a", None).await), (1, Err(GatewayError::NoSuchKey)));
        ground.drain(&engine).await;
        assert!(ground.stored().await.is_empty());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn falsely_acknowledged_copy_is_repeated() {
    let directory = tempfile::tempdir().unwrap();
    for (ground, local) in grounds(directory.path()) {
        for size in [5000, IN_PARTS] {
            let engine = ground.open(&local).await;
            // What is there has the size of what is to be there.
            let (source, target) = (content(1, size), content(2, size));
            stored(&engine, "a", &source).await;
            stored(&engine, "b", &target).await;
            ground.drain(&engine).await;
            ground.mood.tell(&[Lie::Copy]);
            let made = ground.mood.copies.load(Ordering::Relaxed);
            copy(&engine, "a", "b").await;
            until("it is not made again", || ground.mood.copies.load(Ordering::Relaxed) >= made + 2).await;
            assert!((engine.pending().0, get(&engine, "b", None).await.as_ref()) == (1, Ok(&source)));
            ground.drain(&engine).await;
            delete(&engine, "a").await.unwrap();
            ground.drain(&engine).await;
            assert!(get(&engine, "b", None).await.as_ref() == Ok(&source));
            assert!(ground.stored().await == [("b".to_owned(), source)]);
            engine.close().await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn body_of_wrong_length_is_not_served_or_cached() {
    let directory = tempfile::tempdir().unwrap();
    let size = 5 * BLOCK_BYTES as usize + 100;
    for (ground, local) in grounds(directory.path()) {
        let engine = ground.open(&local).await;
        let bytes = content(1, size);
        stored(&engine, "a", &bytes).await;
        stored(&engine, "small", &bytes.slice(..10)).await;
        ground.drain(&engine).await;
        let mut engine = reopened(&ground, engine, &local).await;
        for lie in [Lie::Short, Lie::Long, Lie::Size] {
            ground.mood.tell(&[lie]);
            for range in [None, Some(0..10), Some(size as u64 - 10..size as u64)] {
                let read = get(&engine, "a", range.clone()).await;
                assert!(
                    matches!(read, Err(GatewayError::Store(_) | GatewayError::StoreAway(_))),
                    "{lie:?} {range:?}: {read:?}"
                );
            }
            assert!(
                matches!(
                    get(&engine, "small", None).await,
                    Err(GatewayError::Store(_) | GatewayError::StoreAway(_))
                ),
                "{lie:?}"
            );
            ground.mood.be_good();
            assert!(read_at_last(&engine, "a").await == bytes, "{lie:?}");
            assert!(read_at_last(&engine, "small").await == bytes.slice(..10), "{lie:?}");
            engine = reopened(&ground, engine, &local).await;
        }
    }
}

/// What a reader gets who asks until he does: a request that was in flight may fail still.
async fn read_at_last(engine: &Arc<GatewayEngine>, key: &str) -> Bytes {
    for _ in 0..200 {
        match get(engine, key, None).await {
            Ok(bytes) => return bytes,
            Err(error) => assert!(
                matches!(error, GatewayError::Store(_) | GatewayError::StoreAway(_)),
                "{key}: {error}"
            ),
        }
    }
    panic!("{key} can't be read");
}

/// Parts that fail, answers that are lost, bodies and listings that break off.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn multipart_object_arrives_despite_failures() {
    let directory = tempfile::tempdir().unwrap();
    for (mut ground, local) in grounds(directory.path()) {
        // Who asks again need not have all of it anew.
        ground.memory_bytes = 64 << 20;
        ground.mood.failing.store(150, Ordering::Relaxed);
        let engine = ground.open(&local).await;
        let bytes = content(1, IN_PARTS);
        stored(&engine, "a", &bytes).await;
        let is_there = || {
            // Without the pauses that it would make.
            engine.begin_drain();
            engine.is_clean()
        };
        until("it does not get there", is_there).await;
        let engine = reopened(&ground, engine, &local).await;
        assert!(read_at_last(&engine, "a").await == bytes);
        ground.drain(&engine).await;
        assert!(ground.stored().await == [("a".to_owned(), bytes)]);
    }
}

/// Neither the ETag that its client knows nor the store's says what a copy's is: where the same bytes are there
/// already, only they do.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn multipart_copy_onto_equal_bytes_is_settled() {
    let directory = tempfile::tempdir().unwrap();
    let ground = Ground::new(in_memory(), BackendKind::S3);
    *ground.mood.etags.lock() = Etags::Md5;
    let engine = ground.open(&directory.path().join("local")).await;
    let piece = content(1, 6 << 20);
    stored(&engine, "piece", &piece).await;
    let upload = engine.create_upload(BUCKET, "a", ObjectHeaders::default(), Vec::new(), None).await.unwrap();
    let mut parts = Vec::new();
    for number in [1, 2] {
        let from = (BUCKET, "piece");
        let part =
            engine.upload_part_copy(BUCKET, "a", &upload, number, from, SourceConditions::default(), None);
        let etag = part.await.unwrap().etag;
        parts.push(CompletedPart { number, etag, checksums: ObjectChecksums::default() });
    }
    let (conditions, checksums) = (WriteConditions::default(), ObjectChecksums::default());
    engine.complete_upload(BUCKET, "a", &upload, parts, conditions, checksums, None).await.unwrap();
    ground.drain(&engine).await;
    let whole = [&piece[..], &piece[..]].concat();
    for _ in 0..2 {
        copy(&engine, "a", "b").await;
        ground.drain(&engine).await;
        assert!(get(&engine, "b", None).await.unwrap() == whole);
    }
    engine.close().await;
}

/// An object that is there before the gateway comes.
async fn there(ground: &Ground, key: &str, bytes: &Bytes) {
    let attributes = Attributes::from_iter([
        (Attribute::ContentType, "text/csv"),
        (Attribute::Metadata("origin".into()), "elsewhere"),
    ]);
    let options = PutOptions { attributes, ..PutOptions::default() };
    ground.store.put_opts(&key.into(), bytes.clone().into(), options).await.unwrap();
}

/// A gateway may have put it there and acknowledged it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn listed_object_survives_transient_absence_from_store() {
    let directory = tempfile::tempdir().unwrap();
    let files = in_directory(&directory.path().join("store"));
    for ground in [Ground::new(in_memory(), BackendKind::S3), Ground::new(files, BackendKind::Directory)] {
        let local = directory.path().join(format!("{:?}", ground.kind));
        let (older, newer, theirs) = (content(1, 200_000), content(2, 200_000), content(3, 70_000));
        for (key, bytes) in [("a", &older), ("b", &newer), ("empty", &Bytes::new())] {
            match ground.kind {
                BackendKind::S3 => there(&ground, key, bytes).await,
                BackendKind::Directory => {
                    drop(ground.store.put(&key.into(), bytes.clone().into()).await.unwrap())
                }
            }
        }
        let engine = ground.open(&local).await;
        for _ in 0..2 {
            ground.mood.tell(&[Lie::NotFound]);
            for key in ["a", "b"] {
                let read = get(&engine, key, None).await;
                assert!(is_withheld(&read, "has nothing there"), "{key}: {read:?}");
            }
            // A directory has no headers that it would be asked for.
            let is_asked = ground.kind == BackendKind::S3;
            assert_eq!(engine.resolve(BUCKET, "empty").await.is_err(), is_asked);
            ground.mood.be_good();
        }
        assert_eq!(names(&engine).await, ["a", "b", "empty"]);
        for (key, bytes) in [("a", &older), ("b", &newer), ("empty", &Bytes::new())] {
            assert_eq!(get(&engine, key, None).await.as_ref(), Ok(bytes), "{key}");
        }
        // One answer of another's change is not believed, and two are.
        let engine = reopened(&ground, engine, &local).await;
        let original = engine.resolve(BUCKET, "a").await.unwrap().record;
        tokio::time::sleep(Duration::from_millis(3)).await;
        ground.store.put(&"a".into(), theirs.clone().into()).await.unwrap();
        ground.mood.tell_once(Lie::SizeOfHead);
        // One request: of several, each asks for itself.
        let contradiction = get(&engine, "a", Some(0..10)).await;
        assert!(
            matches!(contradiction, Err(GatewayError::Store(_) | GatewayError::StoreAway(_))),
            "{contradiction:?}"
        );
        assert_eq!(engine.resolve(BUCKET, "a").await.unwrap().record, original);
        assert!(get(&engine, "a", None).await.is_err());
        assert_eq!(get(&engine, "a", None).await, Ok(theirs));
        engine.close().await;
    }
}

/// Else what was deleted before it would be back for good. What somebody has read stays known.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn object_of_stale_listing_is_absent() {
    let directory = tempfile::tempdir().unwrap();
    let (ground, local) = (Ground::new(in_memory(), BackendKind::S3), directory.path().join("local"));
    let bytes = content(1, 70_000);
    for key in ["gone", "read", "unsaid"] {
        there(&ground, key, &bytes).await;
    }
    there(&ground, "empty", &Bytes::new()).await;
    let engine = ground.open(&local).await;
    assert_eq!(get(&engine, "read", None).await.as_ref(), Ok(&bytes));
    let engine = reopened(&ground, engine, &local).await;
    for key in ["gone", "read", "empty"] {
        ground.store.delete(&key.into()).await.unwrap();
    }
    // As long as the store can't be listed it may be anything.
    ground.mood.denies_lists.store(true, Ordering::Relaxed);
    assert!(matches!(
        get(&engine, "gone", None).await,
        Err(GatewayError::Store(_) | GatewayError::StoreAway(_))
    ));
    ground.mood.be_good();
    for key in ["gone", "empty"] {
        assert_eq!(get(&engine, key, None).await, Err(GatewayError::NoSuchKey), "{key}");
    }
    assert!(is_withheld(&get(&engine, "read", None).await, "has nothing there"));
    // The store may be what is behind.
    assert_eq!(names(&engine).await, ["empty", "gone", "read", "unsaid"]);
    there(&ground, "gone", &bytes).await;
    assert_eq!(get(&engine, "gone", None).await.as_ref(), Ok(&bytes));
    delete(&engine, "empty").await.unwrap();
    assert_eq!(names(&engine).await, ["gone", "read", "unsaid"]);
    engine.close().await;
}

/// What an answer lacks was not taken away: headers that are known stay, and those that are not are asked for twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answer_without_headers_keeps_known_headers() {
    let directory = tempfile::tempdir().unwrap();
    let ground = Ground::new(in_memory(), BackendKind::S3);
    let bytes = content(1, 70_000);
    for key in ["head", "get"] {
        there(&ground, key, &bytes).await;
    }
    ground.store.put(&"none".into(), bytes.clone().into()).await.unwrap();
    let engine = ground.open(directory.path()).await;
    let headers = ObjectHeaders {
        content_type: Some("text/html".to_owned()),
        user: vec![("origin".to_owned(), "here".to_owned())],
        ..ObjectHeaders::default()
    };
    let request =
        PutRequest { size_bytes: bytes.len() as u64, headers: headers.clone(), ..PutRequest::default() };
    engine.put(BUCKET, "ours", request, body_of(&bytes), Box::new(|_, _| Ok(()))).await.unwrap();
    ground.drain(&engine).await;
    let engine = reopened(&ground, engine, directory.path()).await;

    let type_of = async |engine: &Arc<GatewayEngine>, key: &str| {
        let record = engine.resolve(BUCKET, key).await.unwrap().record;
        record.headers.content_type.clone().map(|kind| (kind, record.headers.user.len()))
    };
    let csv = Some(("text/csv".to_owned(), 1));
    ground.mood.tell_once(Lie::Bare);
    assert_eq!(type_of(&engine, "head").await, csv);
    ground.mood.tell_once(Lie::Bare);
    let read = engine.resolve_to_read(BUCKET, "get", |_| 0).await.unwrap().record;
    assert_eq!(read.headers.content_type.as_deref(), Some("text/csv"));
    assert_eq!(type_of(&engine, "get").await, csv);
    // From now on none has any: what was written here, or asked for before, does not depend on it.
    ground.mood.tell(&[Lie::Bare]);
    for _ in 0..2 {
        assert_eq!(get(&engine, "ours", None).await.as_ref(), Ok(&bytes));
        assert_eq!(engine.resolve(BUCKET, "ours").await.unwrap().record.headers, headers);
        assert_eq!(type_of(&engine, "head").await, csv);
        assert_eq!(get(&engine, "get", None).await.as_ref(), Ok(&bytes));
        assert_eq!(type_of(&engine, "get").await, csv);
    }
    ground.mood.be_good();
    // An object that has none indeed can be read all the same.
    assert_eq!(type_of(&engine, "none").await, None);
    assert_eq!(get(&engine, "none", None).await.as_ref(), Ok(&bytes));
    engine.close().await;
}

/// S3 answers 403 for a missing object if the client may not list the bucket: neither a deletion nor an absence follows
/// from it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn denied_object_is_neither_present_nor_absent() {
    let directory = tempfile::tempdir().unwrap();
    let ground = Ground::new(in_memory(), BackendKind::S3);
    let bytes = content(1, 70_000);
    there(&ground, "listed", &bytes).await;
    let engine = ground.open(directory.path()).await;
    for key in ["a", "b", "dir/c", "dir/d"] {
        stored(&engine, key, &bytes).await;
    }
    ground.drain(&engine).await;
    let engine = reopened(&ground, engine, directory.path()).await;

    ground.mood.denies_all_reads.store(true, Ordering::Relaxed);
    for key in ["listed", "a"] {
        let read = get(&engine, key, None).await;
        assert!(matches!(&read, Err(GatewayError::Store(why)) if why.contains("s3:ListBucket")), "{read:?}");
    }
    ground.mood.be_good();
    assert_eq!(names(&engine).await, ["a", "b", "dir/c", "dir/d", "listed"]);
    assert_eq!(get(&engine, "listed", None).await.as_ref(), Ok(&bytes));
    assert_eq!(get(&engine, "a", None).await.as_ref(), Ok(&bytes));

    // A deletion that was not carried out: nothing says that it was.
    ground.mood.denies_all_reads.store(true, Ordering::Relaxed);
    ground.mood.tell(&[Lie::Delete]);
    let deletes = || ground.mood.deletes.load(Ordering::Relaxed);
    delete(&engine, "a").await.unwrap();
    until("it is not asked for again", || deletes() >= 2).await;
    assert_eq!(engine.pending().0, 1);
    ground.drain(&engine).await;
    assert!(!ground.stored().await.iter().any(|(key, _)| key == "a"));

    // One that was carried out shows in a listing, where what is not there is denied.
    ground.mood.denies_reads.store(true, Ordering::Relaxed);
    for key in ["b", "dir/d"] {
        delete(&engine, key).await.unwrap();
    }
    until("a listing does not show it", || engine.is_clean()).await;

    // And where that is denied as well, nobody knows.
    ground.mood.denies_lists.store(true, Ordering::Relaxed);
    delete(&engine, "dir/c").await.unwrap();
    until("it is not said why", || {
        engine.last_failure().is_some_and(|(_, reason)| reason.contains("s3:ListBucket"))
    })
    .await;
    assert_eq!(engine.pending().0, 1);
    ground.drain(&engine).await;
    assert_eq!(ground.stored().await, [("listed".to_owned(), bytes)]);
}
