//! Uploads in parts that are larger than the journal, several at once, left behind, given up, and broken off.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use bytes::Bytes;
use underlay_gateway::config::{StoreConsistency, WriteMode};
use underlay_gateway::engine::{
    CompletedPart, GatewayEngine, ListRequest, SourceConditions, WriteConditions,
};
use underlay_gateway::errors::GatewayError;
use underlay_gateway::model::{ObjectChecksums, ObjectHeaders};
use underlay_gateway::store::BackendKind;

use crate::program::{Program, command};
use crate::rig::{BUCKET, Ground, body_of, content, get, in_directory, in_memory, put};
use crate::signed::ask;

/// S3's least, for every part but the last.
const PART_BYTES: usize = 5 << 20;
/// What the journal has room for, three parts at most.
const JOURNAL_BYTES: u64 = 16 << 20;
/// Where the store keeps parts.
const FOLDER: &str = "%underlay-parts/";

fn ground(kind: BackendKind, directory: &std::path::Path) -> Ground {
    let store = match kind {
        BackendKind::S3 => in_memory(),
        BackendKind::Directory => in_directory(&directory.join("objects")),
    };
    let mut ground = Ground::new(store, kind);
    ground.journal_bytes = JOURNAL_BYTES;
    ground.patience = Duration::from_secs(60);
    ground
}

async fn begin(engine: &GatewayEngine, key: &str) -> String {
    engine.create_upload(BUCKET, key, ObjectHeaders::default(), Vec::new(), None).await.unwrap()
}

/// The bytes of a part: each has others.
fn part_of(seed: u64, number: u16) -> Bytes {
    content(seed * 1000 + u64::from(number), PART_BYTES)
}

async fn send(
    engine: &GatewayEngine,
    (key, upload): (&str, &str),
    number: u16,
    bytes: &Bytes,
) -> Result<CompletedPart, GatewayError> {
    let (size, verify) = (bytes.len() as u64, Box::new(|_: &_, _: &_| Ok(())));
    let part = engine.upload_part(BUCKET, key, upload, number, size, &[], body_of(bytes), verify).await?;
    Ok(CompletedPart { number, etag: part.etag, checksums: ObjectChecksums::default() })
}

async fn complete(
    engine: &Arc<GatewayEngine>,
    (key, upload): (&str, &str),
    parts: Vec<CompletedPart>,
) -> String {
    let (conditions, none) = (WriteConditions::default(), ObjectChecksums::default());
    engine.complete_upload(BUCKET, key, upload, parts, conditions, none, None).await.unwrap().etag
}

/// An upload of so many parts, from its beginning to its end. Returns what the object has to be.
async fn upload(engine: &Arc<GatewayEngine>, key: &str, seed: u64, parts: u16) -> Vec<u8> {
    let begun = begin(engine, key).await;
    let (mut listed, mut whole) = (Vec::new(), Vec::new());
    for number in 1..=parts {
        let bytes = part_of(seed, number);
        listed.push(send(engine, (key, &begun), number, &bytes).await.unwrap());
        whole.extend_from_slice(&bytes);
    }
    let etag = complete(engine, (key, &begun), listed).await;
    assert!(etag.ends_with(&format!("-{parts}")), "{etag}");
    whole
}

/// Names in the store's folder of parts.
async fn staged(ground: &Ground) -> usize {
    ground.stored().await.iter().filter(|(key, _)| key.starts_with(FOLDER)).count()
}

async fn wait_until(condition: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let begun = Instant::now();
    while !is_so().await {
        assert!(begun.elapsed() < Duration::from_secs(60), "{condition}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn upload_larger_than_journal_becomes_an_object() {
    for kind in [BackendKind::S3, BackendKind::Directory] {
        let directory = tempfile::tempdir().unwrap();
        let (ground, local) = (ground(kind, directory.path()), directory.path().join("local"));
        let engine = ground.open(&local).await;
        let whole = upload(&engine, "dir/a", 1, 8).await;
        // Whether or not it has been flushed by now.
        assert!(get(&engine, "dir/a", None).await.unwrap() == whole, "{kind:?}");
        ground.drain(&engine).await;
        // One object, and nothing of its parts.
        let stored = ground.stored().await;
        assert_eq!(stored.len(), 1, "{kind:?}");
        assert!(stored[0].0 == "dir/a" && stored[0].1 == whole, "{kind:?}");
        assert!(get(&engine, "dir/a", None).await.unwrap() == whole, "{kind:?}");
        assert_eq!(engine.unfinished_uploads().unwrap(), (0, 0, None));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_uploads_above_journal_size_both_complete() {
    let directory = tempfile::tempdir().unwrap();
    let ground = ground(BackendKind::S3, directory.path());
    let engine = ground.open(&directory.path().join("local")).await;
    let (one, other) = tokio::join!(upload(&engine, "one", 1, 4), upload(&engine, "other", 2, 4));
    ground.drain(&engine).await;
    assert!(get(&engine, "one", None).await.unwrap() == one);
    assert!(get(&engine, "other", None).await.unwrap() == other);
    assert_eq!(ground.stored().await.len(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn abandoned_upload_blocks_nobody() {
    let directory = tempfile::tempdir().unwrap();
    let ground = ground(BackendKind::S3, directory.path());
    let engine = ground.open(&directory.path().join("local")).await;
    let left = begin(&engine, "left").await;
    for number in 1..=4 {
        send(&engine, ("left", &left), number, &part_of(1, number)).await.unwrap();
    }
    let (count, bytes, oldest_ms) = engine.unfinished_uploads().unwrap();
    assert!(count == 1 && bytes <= JOURNAL_BYTES && oldest_ms.is_some());
    // Neither other uploads nor whole objects of nearly the journal's size.
    let whole = upload(&engine, "a", 2, 4).await;
    let object = content(3, 14 << 20);
    put(&engine, "b", &object, WriteConditions::default()).await.unwrap();
    ground.drain(&engine).await;
    assert!(
        get(&engine, "a", None).await.unwrap() == whole && get(&engine, "b", None).await.unwrap() == object
    );
    // It can still be completed.
    let parts: Vec<CompletedPart> = engine
        .list_parts(BUCKET, "left", &left, 0, 1000)
        .unwrap()
        .0
        .into_iter()
        .map(|part| CompletedPart {
            number: part.number,
            etag: part.etag,
            checksums: ObjectChecksums::default(),
        })
        .collect();
    complete(&engine, ("left", &left), parts).await;
    let expected: Vec<u8> = (1..=4).flat_map(|number| part_of(1, number)).collect();
    assert!(get(&engine, "left", None).await.unwrap() == expected);
    ground.drain(&engine).await;
    assert_eq!(ground.stored().await.len(), 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn spilled_parts_are_hidden_and_removed_with_upload() {
    for kind in [BackendKind::S3, BackendKind::Directory] {
        let directory = tempfile::tempdir().unwrap();
        let (mut ground, local) = (ground(kind, directory.path()), directory.path().join("local"));
        let engine = ground.open(&local).await;
        let given_up = begin(&engine, "a").await;
        let expires = begin(&engine, "b").await;
        for number in 1..=3 {
            send(&engine, ("a", &given_up), number, &part_of(1, number)).await.unwrap();
            send(&engine, ("b", &expires), number, &part_of(2, number)).await.unwrap();
        }
        wait_until("no part has gone to the store", async || staged(&ground).await >= 3).await;
        let listing =
            engine.list(BUCKET, &ListRequest { most: 1000, ..ListRequest::default() }).await.unwrap();
        assert!(listing.entries.is_empty(), "{kind:?}");
        let stored = ground.stored().await;
        let path = &stored.iter().find(|(key, _)| key.starts_with(FOLDER)).unwrap().0;
        // Neither by their path nor by a name with a zero byte can a client get at them.
        let number = path.strip_prefix(FOLDER).unwrap();
        for key in [path.clone(), format!("\0{number}a"), format!("\0{number}b"), format!("\0{number}")] {
            assert_eq!(get(&engine, &key, None).await, Err(GatewayError::NoSuchKey), "{key:?}");
            if key.starts_with('\0') {
                let refused = put(&engine, &key, &content(1, 10), WriteConditions::default()).await;
                assert!(matches!(refused, Err(GatewayError::InvalidArgument(_))), "{refused:?}");
            }
        }
        engine.abort_upload(BUCKET, "a", &given_up).await.unwrap();
        engine.close().await;
        drop(engine);
        // The other one expires, also where the gateway has been away meanwhile.
        ground.uploads_expire = Duration::from_millis(200);
        let engine = ground.open(&local).await;
        wait_until("something of the parts is left", async || {
            engine.is_clean() && ground.stored().await.is_empty()
        })
        .await;
        assert_eq!(engine.upload(BUCKET, "b", &expires), Err(GatewayError::NoSuchUpload));
    }
}

/// The store has the part, its answer is lost, and the gateway is killed: nothing but the metadata knows that something
/// may be there.
#[test]
fn part_in_flight_at_kill_leaves_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let (ground, local) = (ground(BackendKind::S3, directory.path()), directory.path().join("local"));
    let runtime =
        || tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let killed = runtime();
    let begun = killed.block_on(async {
        let engine = ground.open(&local).await;
        ground.mood.loses_answers.store(true, Ordering::Relaxed);
        let begun = begin(&engine, "a").await;
        for number in 1..=2 {
            send(&engine, ("a", &begun), number, &part_of(1, number)).await.unwrap();
        }
        wait_until("no part goes to the store", async || ground.mood.puts.load(Ordering::Relaxed) > 0).await;
        begun
    });
    // Its tasks do nothing more.
    drop(killed);
    ground.mood.loses_answers.store(false, Ordering::Relaxed);
    runtime().block_on(async {
        let engine = ground.open(&local).await;
        // Its parts are all there.
        let mut listed = Vec::new();
        for part in engine.list_parts(BUCKET, "a", &begun, 0, 1000).unwrap().0 {
            listed.push(CompletedPart {
                number: part.number,
                etag: part.etag,
                checksums: ObjectChecksums::default(),
            });
        }
        assert_eq!(listed.len(), 2);
        complete(&engine, ("a", &begun), listed).await;
        let expected: Vec<u8> = (1..=2).flat_map(|number| part_of(1, number)).collect();
        assert!(get(&engine, "a", None).await.unwrap() == expected);
        ground.drain(&engine).await;
        let stored = ground.stored().await;
        assert!(stored.len() == 1 && stored[0].0 == "a" && stored[0].1 == expected);
    });
}

/// Through restarts, a store that fails now and then, parts that are replaced, and copies of what is made of them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn parts_survive_restarts_and_a_store_that_fails() {
    let directory = tempfile::tempdir().unwrap();
    let (mut ground, local) = (ground(BackendKind::S3, directory.path()), directory.path().join("local"));
    // Nothing is flushed before the end.
    ground.write = WriteMode::Back { after: Duration::from_secs(3600) };
    ground.mood.failing.store(100, Ordering::Relaxed);
    let begun = begin(&*ground.open(&local).await, "a").await;
    let mut listed = Vec::new();
    for number in 1..=6 {
        let engine = ground.open(&local).await;
        // The first one of each number is replaced.
        send(&engine, ("a", &begun), number, &part_of(9, number)).await.unwrap();
        listed.push(send(&engine, ("a", &begun), number, &part_of(1, number)).await.unwrap());
        engine.close().await;
    }
    let engine = ground.open(&local).await;
    let mut expected: Vec<u8> = (1..=6).flat_map(|number| part_of(1, number)).collect();
    complete(&engine, ("a", &begun), listed).await;
    // A part of another upload that is a range of it.
    let other = begin(&engine, "b").await;
    let range = Some(1000..expected.len() as u64);
    let part = engine
        .upload_part_copy(BUCKET, "b", &other, 1, (BUCKET, "a"), SourceConditions::default(), range)
        .await
        .unwrap();
    crate::rig::delete(&engine, "a").await.unwrap();
    let part = CompletedPart { number: 1, etag: part.etag, checksums: ObjectChecksums::default() };
    complete(&engine, ("b", &other), vec![part]).await;
    let tail = expected.split_off(1000);
    ground.mood.be_good();
    assert!(get(&engine, "b", None).await.unwrap() == tail);
    ground.drain(&engine).await;
    let stored = ground.stored().await;
    let names: Vec<&String> = stored.iter().map(|(key, _)| key).collect();
    assert!(names == ["b"] && stored[0].1 == tail, "{names:?}");
}

/// Where others write, the end of an upload sends the object at once, from wherever its parts are.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_shared_upload_is_sent_from_its_parts() {
    let directory = tempfile::tempdir().unwrap();
    let mut ground = ground(BackendKind::S3, directory.path());
    (ground.write, ground.consistency) = (WriteMode::Through, StoreConsistency::Revalidate);
    let engine = ground.open(&directory.path().join("local")).await;
    let begun = begin(&engine, "a").await;
    let mut listed = Vec::new();
    for number in 1..=6 {
        listed.push(send(&engine, ("a", &begun), number, &part_of(1, number)).await.unwrap());
    }
    complete(&engine, ("a", &begun), listed).await;
    let expected: Vec<u8> = (1..=6).flat_map(|number| part_of(1, number)).collect();
    assert!(get(&engine, "a", None).await.unwrap() == expected);
    wait_until("something of the parts is left", async || {
        engine.is_clean() && ground.stored().await.len() == 1
    })
    .await;
}

/// Sends a part, and goes away once the metadata have it and nobody has heard of that yet.
async fn send_and_go_away(engine: &GatewayEngine, (key, upload): (&str, &str), number: u16, bytes: &Bytes) {
    let is_there = || {
        let listed = engine.list_parts(BUCKET, key, upload, number - 1, 1).unwrap().0;
        listed.iter().any(|part| part.number == number)
    };
    let mut sending = Box::pin(send(engine, (key, upload), number, bytes));
    while !is_there() {
        assert!(futures_util::poll!(&mut sending).is_pending(), "the answer came first");
        // The commit needs no client.
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn part_of_client_gone_at_commit_reaches_store() {
    let directory = tempfile::tempdir().unwrap();
    let ground = ground(BackendKind::S3, directory.path());
    let engine = ground.open(&directory.path().join("local")).await;
    let begun = begin(&engine, "a").await;
    let mut whole = Vec::new();
    for number in 1..=4 {
        let bytes = part_of(1, number);
        send_and_go_away(&engine, ("a", &begun), number, &bytes).await;
        whole.extend_from_slice(&bytes);
    }
    wait_until("no part has gone to the store", async || staged(&ground).await >= 2).await;
    // They count as parts for as long as they are in the journal, and for no longer.
    assert!(engine.unfinished_uploads().unwrap().1 <= 2 * PART_BYTES as u64);
    let parts = engine.list_parts(BUCKET, "a", &begun, 0, 1000).unwrap().0;
    let listed = parts.into_iter().map(|part| CompletedPart {
        number: part.number,
        etag: part.etag,
        checksums: ObjectChecksums::default(),
    });
    complete(&engine, ("a", &begun), listed.collect()).await;
    ground.drain(&engine).await;
    assert!(get(&engine, "a", None).await.unwrap() == whole);
    assert_eq!(engine.unfinished_uploads().unwrap(), (0, 0, None));
}

/// A part that could never be taken is refused before it is sent.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn part_larger_than_journal_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let ground = ground(BackendKind::S3, directory.path());
    let engine = ground.open(&directory.path().join("local")).await;
    let begun = begin(&engine, "a").await;
    let refused = send(&engine, ("a", &begun), 1, &content(1, 15 << 20)).await;
    assert!(matches!(refused, Err(GatewayError::TooLarge(_))), "{refused:?}");
}

#[test]
fn unfinished_uploads_are_counted() {
    let directory = tempfile::tempdir().unwrap();
    let objects = directory.path().join("objects");
    std::fs::create_dir_all(&objects).unwrap();
    let sections = format!("[bucket.lake]\nstore = \"{}\"\n", objects.display());
    let program = Program::start(directory.path(), &sections);
    let header = format!("Authorization: Bearer {}\r\n", program.token());
    let assert_counts = |count: u64, bytes: u64| {
        let metrics = program.ask("/metrics", &header).unwrap();
        for line in [
            format!("underlay_gateway_unfinished_uploads {count}\n"),
            format!("underlay_gateway_unfinished_upload_journal_bytes {bytes}\n"),
        ] {
            assert!(metrics.contains(&line), "{line}: {metrics}");
        }
        assert!(metrics.contains("underlay_gateway_oldest_upload_seconds "), "{metrics}");
        let top = command().args(["top", "--once"]).arg(program.config()).output().unwrap();
        let shown = String::from_utf8_lossy(&top.stdout).into_owned();
        assert_eq!(shown.contains(&format!("uploads   {count} unfinished")), count > 0, "{shown}");
    };
    assert_counts(0, 0);
    let begun = ask(program.address, "POST", "/lake/a?uploads=", &[], b"").unwrap();
    let upload = begun.tag("UploadId").unwrap();
    assert_counts(1, 0);
    let part = format!("/lake/a?partNumber=1&uploadId={upload}");
    assert_eq!(ask(program.address, "PUT", &part, &[], &[7; 1000]).unwrap().status, 200);
    assert_counts(1, 1000);
    let given_up = ask(program.address, "DELETE", &format!("/lake/a?uploadId={upload}"), &[], b"").unwrap();
    assert_eq!(given_up.status, 204);
    assert_counts(0, 0);
}
