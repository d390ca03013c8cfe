//! Buckets that clients make and remove, while clients go away and the store fails.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use bytes::Bytes;
use underlay_gateway::config::{StoreConsistency, WriteMode};
use underlay_gateway::engine::{GatewayEngine, PutRequest, WriteConditions, WriteReceipt};
use underlay_gateway::errors::GatewayError;
use underlay_gateway::model::ObjectHeaders;
use underlay_gateway::store::BackendKind;

use crate::rig::{BUCKET, Ground, body_of, content, in_memory};

const MADE: &str = "made";
/// Longer than any test.
const LONG: Duration = Duration::from_secs(3600);
/// In which a flusher that is allowed to would have sent what is pending many times.
const A_WHILE: Duration = Duration::from_millis(700);

fn ground() -> Ground {
    let mut ground = Ground::new(in_memory(), BackendKind::S3);
    ground.takes_buckets = true;
    ground
}

async fn put(engine: &Arc<GatewayEngine>, key: &str, bytes: &Bytes) -> Result<WriteReceipt, GatewayError> {
    let request = PutRequest { size_bytes: bytes.len() as u64, ..PutRequest::default() };
    engine.put(MADE, key, request, body_of(bytes), Box::new(|_, _| Ok(()))).await
}

async fn get(engine: &Arc<GatewayEngine>, key: &str) -> Result<Bytes, GatewayError> {
    use futures_util::StreamExt as _;
    let resolved = engine.resolve(MADE, key).await?;
    let size_bytes = resolved.record.size_bytes;
    let pieces: Vec<Result<Bytes, GatewayError>> =
        engine.body(MADE, key, resolved, 0..size_bytes).collect().await;
    let pieces: Result<Vec<Bytes>, GatewayError> = pieces.into_iter().collect();
    Ok(Bytes::from(pieces?.concat()))
}

async fn delete(engine: &Arc<GatewayEngine>, key: &str) {
    let keys = vec![(key.to_owned(), WriteConditions::default())];
    engine.delete(MADE, keys).await.unwrap().remove(0).unwrap();
}

async fn wait_until(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let begun = Instant::now();
    while !is_so().await {
        assert!(begun.elapsed() < Duration::from_secs(60), "{what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Asks until the answer can be seen by others, and goes away without having heard it.
async fn go_away_once<T>(asking: impl Future<Output = T>, is_done: impl Fn() -> bool) {
    let mut asking = Box::pin(asking);
    while !is_done() {
        assert!(futures_util::poll!(&mut asking).is_pending(), "the answer came first");
        // What is left to do needs no client.
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bucket_of_client_gone_at_commit_is_whole() {
    let directory = tempfile::tempdir().unwrap();
    let ground = ground();
    let engine = ground.open(directory.path()).await;
    for _ in 0..3 {
        go_away_once(engine.create_bucket(MADE), || engine.check_bucket(MADE).is_ok()).await;
        assert_eq!(engine.create_bucket(MADE).await, Err(GatewayError::BucketExists));
        let is_free = || engine.check_bucket(MADE) == Err(GatewayError::NoSuchBucket);
        go_away_once(engine.delete_bucket(MADE), is_free).await;
        // Its name comes free as well.
        wait_until("the name stays taken", async || engine.create_bucket(MADE).await.is_ok()).await;
        put(&engine, "a", &content(1, 10)).await.unwrap();
        delete(&engine, "a").await;
        engine.delete_bucket(MADE).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bucket_made_anew_waits_for_late_deletion() {
    for is_started_anew in [false, true] {
        let directory = tempfile::tempdir().unwrap();
        let mut ground = ground();
        ground.landing = LONG;
        let mut engine = ground.open(directory.path()).await;
        engine.create_bucket(MADE).await.unwrap();
        put(&engine, "a", &content(1, 1000)).await.unwrap();
        wait_until("it is not flushed", async || engine.is_clean()).await;
        // The first deletion gets no answer, and the second one does what it was to do.
        let deletes = || ground.mood.deletes.load(Ordering::Relaxed);
        ground.mood.lands_late.store(true, Ordering::Relaxed);
        delete(&engine, "a").await;
        wait_until("it is not tried again", async || deletes() > 1).await;
        ground.mood.lands_late.store(false, Ordering::Relaxed);
        wait_until("it is not deleted", async || engine.is_clean()).await;
        engine.delete_bucket(MADE).await.unwrap();
        if is_started_anew {
            engine.close().await;
            drop(engine);
            engine = ground.open(directory.path()).await;
        }
        engine.create_bucket(MADE).await.unwrap();
        let before = ground.mood.puts.load(Ordering::Relaxed);
        put(&engine, "a", &content(2, 1000)).await.unwrap();
        tokio::time::sleep(A_WHILE).await;
        assert_eq!((ground.mood.puts.load(Ordering::Relaxed), engine.pending().0), (before, 1));
        assert!(ground.mood.land(&ground.store).await > 0);
        assert_eq!(get(&engine, "a").await.unwrap(), content(2, 1000));
    }
}

/// The uploads have ended, so the bucket goes, even if its store fails, and after a restart.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bucket_with_failing_store_is_gone_for_clients() {
    let directory = tempfile::tempdir().unwrap();
    let mut ground = ground();
    ground.journal_bytes = 16 << 20;
    ground.patience = Duration::from_secs(60);
    let engine = ground.open(directory.path()).await;
    engine.create_bucket(MADE).await.unwrap();
    let upload = engine.create_upload(MADE, "a", ObjectHeaders::default(), Vec::new(), None).await.unwrap();
    for number in 1..=3 {
        let (bytes, verify) = (content(u64::from(number), 5 << 20), Box::new(|_: &_, _: &_| Ok(())));
        let body = body_of(&bytes);
        engine.upload_part(MADE, "a", &upload, number, 5 << 20, &[], body, verify).await.unwrap();
    }
    wait_until("no part has gone to the store", async || !ground.stored().await.is_empty()).await;
    ground.mood.failing.store(1000, Ordering::Relaxed);
    engine.delete_bucket(MADE).await.unwrap();
    let is_gone = async |engine: &Arc<GatewayEngine>| {
        assert_eq!(engine.check_bucket(MADE), Err(GatewayError::NoSuchBucket));
        assert!(engine.list_buckets().iter().all(|(name, _)| name != MADE));
        assert_eq!(put(engine, "b", &content(1, 10)).await, Err(GatewayError::NoSuchBucket));
        assert!(matches!(engine.create_bucket(MADE).await, Err(GatewayError::Busy(_))));
    };
    is_gone(&engine).await;
    engine.close().await;
    drop(engine);
    // Nor may the configuration take its name, perhaps for another store.
    ground.bucket = MADE;
    let refused = |result: Result<_, String>| result.err().filter(|error| !error.contains("[new_buckets]"));
    let begun = Instant::now();
    while let Some(error) = refused(ground.try_open(directory.path()).await) {
        // The engine before it may still be letting go of the directory.
        assert!(begun.elapsed() < Duration::from_secs(20), "{error}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    ground.bucket = BUCKET;
    let engine = ground.open(directory.path()).await;
    is_gone(&engine).await;
    ground.mood.be_good();
    wait_until("its name stays taken", async || engine.create_bucket(MADE).await.is_ok()).await;
    assert!(ground.stored().await.is_empty());
    assert_eq!(engine.upload(MADE, "a", &upload), Err(GatewayError::NoSuchUpload));
}

/// Where others write too, no row of the metadata keeps the bucket.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bucket_written_through_to_stays_until_write_ends() {
    let directory = tempfile::tempdir().unwrap();
    let mut ground = ground();
    (ground.write, ground.consistency) = (WriteMode::Through, StoreConsistency::Revalidate);
    let engine = ground.open(directory.path()).await;
    engine.create_bucket(MADE).await.unwrap();
    ground.mood.holds_puts.store(true, Ordering::Relaxed);
    let writing = {
        let engine = Arc::clone(&engine);
        tokio::spawn(async move { put(&engine, "a", &content(1, 10)).await })
    };
    wait_until("nothing is sent", async || ground.mood.puts.load(Ordering::Relaxed) > 0).await;
    let removing = {
        let engine = Arc::clone(&engine);
        tokio::spawn(async move { engine.delete_bucket(MADE).await })
    };
    tokio::time::sleep(A_WHILE).await;
    assert!(!removing.is_finished() && engine.check_bucket(MADE).is_ok());
    ground.mood.holds_puts.store(false, Ordering::Relaxed);
    writing.await.unwrap().unwrap();
    assert_eq!(removing.await.unwrap(), Err(GatewayError::BucketNotEmpty));
    assert_eq!(get(&engine, "a").await.unwrap(), content(1, 10));
    delete(&engine, "a").await;
    engine.delete_bucket(MADE).await.unwrap();
    assert_eq!(put(&engine, "a", &content(1, 10)).await, Err(GatewayError::NoSuchBucket));
}

/// Of two clients that remove a bucket, the later one must not meet the bucket that a third one makes between them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn late_removal_leaves_bucket_that_was_made_anew() {
    let directory = tempfile::tempdir().unwrap();
    let ground = ground();
    let engine = ground.open(directory.path()).await;
    engine.create_bucket(MADE).await.unwrap();
    put(&engine, "a", &content(1, 1000)).await.unwrap();
    wait_until("it is not flushed", async || engine.is_clean()).await;
    ground.mood.holds_deletes.store(true, Ordering::Relaxed);
    delete(&engine, "a").await;
    // It has found the deletion pending, and waits to look again.
    let mut late = Box::pin(engine.delete_bucket(MADE));
    for _ in 0..20 {
        assert!(futures_util::poll!(&mut late).is_pending());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    ground.mood.holds_deletes.store(false, Ordering::Relaxed);
    engine.delete_bucket(MADE).await.unwrap();
    engine.create_bucket(MADE).await.unwrap();
    assert_eq!(late.await, Err(GatewayError::NoSuchBucket));
    put(&engine, "b", &content(2, 1000)).await.unwrap();
    wait_until("it is not flushed", async || engine.is_clean()).await;
    engine.close().await;
    drop(engine);
    let engine = ground.open(directory.path()).await;
    assert_eq!(get(&engine, "b").await.unwrap(), content(2, 1000));
    assert_eq!(engine.delete_bucket(MADE).await, Err(GatewayError::BucketNotEmpty));
}
