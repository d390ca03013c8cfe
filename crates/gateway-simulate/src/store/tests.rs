//! Requests to the store in virtual time.

use std::future::Future;

use futures_util::{FutureExt as _, StreamExt as _};
use object_store::path::Path as StorePath;
use object_store::{ObjectStoreExt as _, PutPayload};

use super::*;
use crate::script::StoreKind;

fn stores() -> SimulatedStores {
    let setup = StoreSetup {
        kind: StoreKind::S3,
        most_copy_bytes: None,
        has_etags_of_its_own: false,
        page: 2,
        before: Vec::new(),
    };
    SimulatedStores::new(SimulatedWorld::new(7, false), &setup)
}

fn lives() -> Arc<AtomicBool> {
    Arc::new(AtomicBool::new(true))
}

/// Lets time go on until the future is done, or for so long.
fn run<T>(stores: &SimulatedStores, limit: Duration, work: impl Future<Output = T>) -> Option<T> {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    let mut work = Box::pin(work);
    let deadline = stores.world.now() + limit;
    while stores.world.now() < deadline {
        if let Some(outcome) = runtime.block_on(async { work.as_mut().now_or_never() }) {
            return Some(outcome);
        }
        // Outside of every process, as in a run.
        stores.world.advance(Duration::from_millis(1));
        runtime.block_on(async { tokio::time::sleep(Duration::from_millis(1)).await });
    }
    None
}

fn wait(stores: &SimulatedStores, time: Duration) {
    for _ in 0..time.as_millis() {
        stores.world.advance(Duration::from_millis(1));
    }
}

const SECOND: Duration = Duration::from_secs(1);

async fn put(store: &dyn ObjectStore, key: &str, text: &'static str) -> Result<()> {
    let path = StorePath::parse(key).unwrap();
    store.put(&path, PutPayload::from_static(text.as_bytes())).await.map(drop)
}

fn has(stores: &SimulatedStores, key: &str) -> Option<Bytes> {
    stores.contents("lake").get(key).map(|object| object.bytes.clone())
}

#[test]
fn put_object_is_found_by_etag_and_listing() {
    let stores = stores();
    let store = stores.open("lake", 0, lives());
    for key in ["a/b", "a/c", "a/%underlay-empty"] {
        run(&stores, SECOND, put(&*store, key, "text")).unwrap().unwrap();
    }
    assert_eq!(has(&stores, "a/").unwrap(), "text");
    let listed = run(&stores, SECOND, async {
        store
            .list(Some(&StorePath::parse("a").unwrap()))
            .map(|meta| meta.unwrap().location.to_string())
            .collect()
            .await
    });
    let listed: Vec<String> = listed.unwrap();
    assert_eq!(listed, ["a/%underlay-empty", "a/b", "a/c"]);
    let path = StorePath::parse("a/b").unwrap();
    let found =
        run(&stores, SECOND, async { store.get(&path).await.unwrap().bytes().await }).unwrap().unwrap();
    assert_eq!(found, "text");
}

#[test]
fn late_change_lands_after_its_failure() {
    let stores = stores();
    let store = stores.open("lake", 0, lives());
    stores.set_faults(StoreFaults { landing_late: 1000, late_ms: 60_000, ..StoreFaults::default() });
    assert!(run(&stores, SECOND, put(&*store, "a", "old")).unwrap().is_err());
    assert_eq!(has(&stores, "a"), None);
    wait(&stores, 61 * SECOND);
    assert_eq!(has(&stores, "a").unwrap(), "old");
}

#[test]
fn request_of_dead_gateway_is_decided_at_once() {
    let mut landed = 0;
    for seed in 0..20 {
        let stores = stores();
        stores.world.with_random(|random| *random = crate::world::SplitMix64::new(seed));
        let store = stores.open("lake", 0, lives());
        assert!(run(&stores, Duration::from_millis(1), put(&*store, "a", "old")).is_none());
        stores.gateway_died(0);
        let is_there = has(&stores, "a").is_some();
        landed += usize::from(is_there);
        wait(&stores, 200 * SECOND);
        assert_eq!(has(&stores, "a").is_some(), is_there);
    }
    assert!((1..20).contains(&landed));
}

#[test]
fn hanging_request_lands_soon_or_never() {
    let stores = stores();
    let store = stores.open("lake", 0, lives());
    stores.set_faults(StoreFaults { hanging: 1000, ..StoreFaults::default() });
    assert!(run(&stores, 120 * SECOND, put(&*store, "a", "old")).is_none());
    wait(&stores, LANDS_WITHIN);
    let then = has(&stores, "a");
    wait(&stores, 600 * SECOND);
    assert_eq!(has(&stores, "a"), then);
}

#[test]
fn dead_gateway_begins_no_request() {
    let stores = stores();
    let lives = lives();
    let store = stores.open("lake", 0, Arc::clone(&lives));
    lives.store(false, Ordering::Relaxed);
    assert!(run(&stores, SECOND, put(&*store, "a", "text")).is_none());
    assert_eq!(has(&stores, "a"), None);
}

#[test]
fn bytes_on_their_way_are_counted() {
    let stores = stores();
    let store = stores.open("lake", 0, lives());
    stores.limit_held_bytes(5);
    run(&stores, SECOND, put(&*store, "a", "1234")).unwrap().unwrap();
    run(&stores, SECOND, put(&*store, "a", "5678")).unwrap().unwrap();
    assert_eq!((stores.failure(), stores.most_held_bytes()), (None, 4));
    let both = async { futures_util::join!(put(&*store, "a", "1234"), put(&*store, "b", "5678")) };
    run(&stores, SECOND, both).unwrap().0.unwrap();
    assert!(stores.failure().unwrap().contains("8 bytes"));
}

#[test]
fn abandoned_upload_counts_unless_its_gateway_died() {
    let stores = stores();
    let store = stores.open("lake", 0, lives());
    let path = StorePath::parse("a").unwrap();
    drop(run(&stores, SECOND, store.put_multipart(&path)).unwrap().unwrap());
    assert_eq!(stores.left_uploads("lake"), ["a"]);
    stores.gateway_died(0);
    assert!(stores.left_uploads("lake").is_empty());
}

#[test]
fn directory_keeps_files_and_repeated_links_leave_one() {
    let directory = tempfile::tempdir().unwrap();
    let stores = stores();
    stores.use_directory(directory.path()).unwrap();
    let store = stores.open("lake", 0, lives());
    run(&stores, SECOND, put(&*store, "a", "text")).unwrap().unwrap();
    let (from, to) = (StorePath::parse("a").unwrap(), StorePath::parse("b").unwrap());
    run(&stores, SECOND, store.copy(&from, &to)).unwrap().unwrap();
    assert_eq!(has(&stores, "b").unwrap(), "text");
    assert!(stores.unfinished_files().is_empty());
    run(&stores, SECOND, store.copy(&from, &to)).unwrap().unwrap();
    assert_eq!(stores.unfinished_files().len(), 1);
}
