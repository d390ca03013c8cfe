//! A store that gives no answer and carries out later what it was asked for.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use underlay_gateway::config::{StoreConsistency, WriteMode};
use underlay_gateway::engine::{CopyRequest, GatewayEngine, WriteConditions};
use underlay_gateway::errors::GatewayError;
use underlay_gateway::store::BackendKind;

use crate::own_s3::OwnS3;
use crate::program::Program;
use crate::rig::{BUCKET, Ground, content, delete, get, in_memory, put};
use crate::signed::ask;

/// Longer than any test.
const LONG: Duration = Duration::from_secs(3600);
/// In which a flusher that is allowed to would have sent what is pending many times.
const A_WHILE: Duration = Duration::from_millis(700);

fn ground(landing: Duration) -> Ground {
    let mut ground = Ground::new(in_memory(), BackendKind::S3);
    ground.landing = landing;
    ground
}

async fn wait_until(condition: &str, is_so: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < Duration::from_secs(60), "{condition}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// Has the store keep the next change of this name to itself, and waits until it has one.
async fn lose(ground: &Ground, count: impl Fn() -> u64, change: impl Future<Output = ()>) {
    let before = count();
    ground.mood.lands_late.store(true, Ordering::Relaxed);
    change.await;
    wait_until("nothing was sent", || count() > before).await;
    // The gateway has seen the failure when it tries again.
    wait_until("it was not tried again", || count() > before + 1).await;
}

async fn clean(engine: &Arc<GatewayEngine>) {
    wait_until("it is not flushed", || engine.is_clean()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn newer_version_waits_while_older_may_land() {
    let directory = tempfile::tempdir().unwrap();
    let ground = ground(LONG);
    let engine = ground.open(directory.path()).await;
    let (older, newer) = (content(1, 1000), content(2, 1000));
    let puts = || ground.mood.puts.load(Ordering::Relaxed);
    let writing = async { drop(put(&engine, "a", &older, WriteConditions::default()).await.unwrap()) };
    lose(&ground, puts, writing).await;
    ground.mood.lands_late.store(false, Ordering::Relaxed);
    // The same again succeeds at once.
    clean(&engine).await;
    assert_eq!(ground.stored().await, [("a".to_owned(), older.clone())]);
    let before = puts();
    put(&engine, "a", &newer, WriteConditions::default()).await.unwrap();
    tokio::time::sleep(A_WHILE).await;
    assert_eq!((puts(), engine.pending().0), (before, 1), "the newer one was sent");
    assert_eq!(get(&engine, "a", None).await.unwrap(), newer);
    // As does a deletion.
    delete(&engine, "a").await.unwrap();
    tokio::time::sleep(A_WHILE).await;
    assert_eq!((ground.mood.deletes.load(Ordering::Relaxed), engine.pending().0), (0, 1));
    // Now it lands, and harms nothing.
    assert!(ground.mood.land(&ground.store).await > 0);
    assert_eq!(get(&engine, "a", None).await, Err(GatewayError::NoSuchKey));
    // Other names are not concerned.
    put(&engine, "b", &newer, WriteConditions::default()).await.unwrap();
    wait_until("another name waits as well", || engine.pending().0 == 1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn start_recalls_unanswered_requests_of_former_process() {
    let directory = tempfile::tempdir().unwrap();
    let ground = ground(LONG);
    let engine = ground.open(directory.path()).await;
    let puts = || ground.mood.puts.load(Ordering::Relaxed);
    let writing =
        async { drop(put(&engine, "a", &content(1, 1000), WriteConditions::default()).await.unwrap()) };
    lose(&ground, puts, writing).await;
    ground.mood.lands_late.store(false, Ordering::Relaxed);
    clean(&engine).await;
    engine.close().await;
    drop(engine);
    let engine = ground.open(directory.path()).await;
    let before = puts();
    put(&engine, "a", &content(2, 1000), WriteConditions::default()).await.unwrap();
    tokio::time::sleep(A_WHILE).await;
    assert_eq!((puts(), engine.pending().0), (before, 1), "the newer one was sent");
    ground.mood.land(&ground.store).await;
    assert_eq!(get(&engine, "a", None).await.unwrap(), content(2, 1000));
}

/// As a kill leaves it: the directory of a gateway that is still there.
fn copy_all(from: &std::path::Path, to: &std::path::Path) {
    std::fs::create_dir_all(to).unwrap();
    std::fs::set_permissions(to, std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let (path, to) = (entry.as_ref().unwrap().path(), to.join(entry.unwrap().file_name()));
        match path.is_dir() {
            true => copy_all(&path, &to),
            false => drop(std::fs::copy(&path, &to).unwrap()),
        }
    }
}

/// Also requests sent a moment before, which the metadata don't have yet.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn start_after_kill_recalls_sent_requests() {
    let directory = tempfile::tempdir().unwrap();
    let (killed, next) = (directory.path().join("killed"), directory.path().join("next"));
    let mut ground = ground(LONG);
    ground.journal_bytes = 16 << 20;
    let engine = ground.open(&killed).await;
    let puts = || ground.mood.puts.load(Ordering::Relaxed);
    ground.mood.holds_puts.store(true, Ordering::Relaxed);
    put(&engine, "a", &content(1, 1000), WriteConditions::default()).await.unwrap();
    wait_until("nothing was sent", || puts() > 0).await;
    copy_all(&killed, &next);
    engine.close().await;
    drop(engine);
    ground.mood.holds_puts.store(false, Ordering::Relaxed);
    // The second start learns it from the metadata.
    for round in 0..2 {
        let engine = ground.open(&next).await;
        let newer = content(2 + round, 1000);
        put(&engine, "b", &newer, WriteConditions::default()).await.unwrap();
        put(&engine, "a", &newer, WriteConditions::default()).await.unwrap();
        wait_until("another name waits as well", || engine.pending().0 == 1).await;
        let before = puts();
        tokio::time::sleep(A_WHILE).await;
        assert_eq!((puts(), engine.pending().0), (before, 1), "the newer one was sent");
        assert_eq!(get(&engine, "a", None).await.unwrap(), newer);
        engine.close().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn start_recalls_in_flight_requests_of_stopped_process() {
    let directory = tempfile::tempdir().unwrap();
    let ground = ground(LONG);
    let engine = ground.open(directory.path()).await;
    let puts = || ground.mood.puts.load(Ordering::Relaxed);
    ground.mood.holds_puts.store(true, Ordering::Relaxed);
    put(&engine, "a", &content(1, 1000), WriteConditions::default()).await.unwrap();
    wait_until("nothing was sent", || puts() > 0).await;
    engine.close().await;
    drop(engine);
    ground.mood.holds_puts.store(false, Ordering::Relaxed);
    let engine = ground.open(directory.path()).await;
    let newer = content(2, 1000);
    put(&engine, "b", &newer, WriteConditions::default()).await.unwrap();
    clean(&engine).await;
    let before = puts();
    put(&engine, "a", &newer, WriteConditions::default()).await.unwrap();
    tokio::time::sleep(A_WHILE).await;
    assert_eq!((puts(), engine.pending().0), (before, 1), "the newer one was sent");
    assert_eq!(get(&engine, "a", None).await.unwrap(), newer);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn newer_version_follows_after_late_window() {
    let directory = tempfile::tempdir().unwrap();
    let ground = ground(Duration::from_secs(5));
    let engine = ground.open(directory.path()).await;
    let newer = content(2, 1000);
    let puts = || ground.mood.puts.load(Ordering::Relaxed);
    let writing =
        async { drop(put(&engine, "a", &content(1, 1000), WriteConditions::default()).await.unwrap()) };
    lose(&ground, puts, writing).await;
    ground.mood.lands_late.store(false, Ordering::Relaxed);
    put(&engine, "a", &newer, WriteConditions::default()).await.unwrap();
    ground.mood.land(&ground.store).await;
    ground.drain(&engine).await;
    assert_eq!(ground.stored().await, [("a".to_owned(), newer.clone())]);
    assert_eq!(get(&engine, "a", None).await.unwrap(), newer);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn object_is_not_sent_while_deletion_may_land() {
    let directory = tempfile::tempdir().unwrap();
    let ground = ground(LONG);
    let engine = ground.open(directory.path()).await;
    put(&engine, "a", &content(1, 1000), WriteConditions::default()).await.unwrap();
    clean(&engine).await;
    let deletes = || ground.mood.deletes.load(Ordering::Relaxed);
    lose(&ground, deletes, async { delete(&engine, "a").await.unwrap() }).await;
    ground.mood.lands_late.store(false, Ordering::Relaxed);
    clean(&engine).await;
    let before = ground.mood.puts.load(Ordering::Relaxed);
    put(&engine, "a", &content(2, 1000), WriteConditions::default()).await.unwrap();
    tokio::time::sleep(A_WHILE).await;
    assert_eq!((ground.mood.puts.load(Ordering::Relaxed), engine.pending().0), (before, 1));
    ground.mood.land(&ground.store).await;
    assert_eq!(get(&engine, "a", None).await.unwrap(), content(2, 1000));
}

/// A copy that lands late is one of what its source has then.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn copy_possibly_landing_keeps_its_source() {
    let directory = tempfile::tempdir().unwrap();
    let ground = ground(LONG);
    let engine = ground.open(directory.path()).await;
    let first = content(1, 1000);
    put(&engine, "a", &first, WriteConditions::default()).await.unwrap();
    clean(&engine).await;
    ground.mood.lands_late.store(true, Ordering::Relaxed);
    let request = CopyRequest {
        from: (BUCKET.to_owned(), "a".to_owned()),
        to: (BUCKET.to_owned(), "b".to_owned()),
        ..CopyRequest::default()
    };
    engine.copy(request).await.unwrap();
    let copies = || ground.mood.copies.load(Ordering::Relaxed);
    wait_until("nothing was copied", || copies() == 1).await;
    ground.mood.lands_late.store(false, Ordering::Relaxed);
    put(&engine, "a", &content(2, 1000), WriteConditions::default()).await.unwrap();
    tokio::time::sleep(A_WHILE).await;
    // Neither is it repeated, nor is its source overwritten.
    assert_eq!((copies(), ground.stored().await), (1, vec![("a".to_owned(), first.clone())]));
    ground.mood.land(&ground.store).await;
    assert_eq!(ground.stored().await, [("a".to_owned(), first.clone()), ("b".to_owned(), first.clone())]);
    assert_eq!(get(&engine, "a", None).await.unwrap(), content(2, 1000));
    assert_eq!(get(&engine, "b", None).await.unwrap(), first);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shared_write_behind_late_request_asks_client_to_retry() {
    let directory = tempfile::tempdir().unwrap();
    let mut ground = ground(LONG);
    (ground.write, ground.consistency) = (WriteMode::Through, StoreConsistency::Revalidate);
    let engine = ground.open(directory.path()).await;
    let (older, newer) = (content(1, 1000), content(2, 1000));
    ground.mood.lands_late.store(true, Ordering::Relaxed);
    let lost = put(&engine, "a", &older, WriteConditions::default()).await;
    assert!(matches!(lost, Err(GatewayError::Store(_) | GatewayError::StoreAway(_))), "{lost:?}");
    ground.mood.lands_late.store(false, Ordering::Relaxed);
    for round in 0..2 {
        let refused = put(&engine, "a", &newer, WriteConditions::default()).await;
        assert!(matches!(refused, Err(GatewayError::Busy(_))), "{round}: {refused:?}");
        let refused = delete(&engine, "a").await;
        assert!(matches!(refused, Err(GatewayError::Busy(_))), "{round}: {refused:?}");
        // The same again is no newer one.
        put(&engine, "a", &older, WriteConditions::default()).await.unwrap();
    }
    put(&engine, "b", &newer, WriteConditions::default()).await.unwrap();
}

/// What a store says of itself when it fails has its address, its paths and its keys in it.
#[test]
fn store_errors_are_not_sent_to_clients() {
    let directory = tempfile::tempdir().unwrap();
    let store = OwnS3::start(0);
    store.may_list(usize::MAX);
    store.refuse_puts(true);
    let of_bucket = "write = \"through\"";
    let program = Program::start(directory.path(), &store.sections(directory.path(), of_bucket));
    let refused = ask(program.address, "PUT", "/lake/a", &[], b"bytes").unwrap();
    let (text, id) = (refused.text(), refused.header("x-amz-request-id").unwrap().to_owned());
    assert!(refused.status == 503 && refused.tag("Code").unwrap() == "ServiceUnavailable", "{text}");
    for inside in ["company", "AccessDenied", "127.0.0.1", "http:"] {
        assert!(!text.contains(inside), "{inside}: {text}");
    }
    // The log has what the store answered, by the number of the request.
    store.refuse_puts(false);
    let (_, log) = program.stop();
    let line = log.lines().find(|line| line.contains(&id)).unwrap_or_else(|| panic!("{log}"));
    assert!(line.contains("the store answered AccessDenied"), "{line}");
}

/// SDKs try again where the answer is 503.
#[test]
fn lasting_refusal_of_store_has_its_own_code() {
    let directory = tempfile::tempdir().unwrap();
    let store = OwnS3::start(0);
    store.may_list(usize::MAX);
    let of_bucket = "consistency = \"revalidate\"";
    let program = Program::start(directory.path(), &store.sections(directory.path(), of_bucket));
    for (status, code, expected) in [
        ("413 Content Too Large", "EntityTooLarge", (400, "EntityTooLarge")),
        ("501 Not Implemented", "NotImplemented", (501, "NotImplemented")),
        ("405 Method Not Allowed", "MethodNotAllowed", (501, "NotImplemented")),
        ("400 Bad Request", "InvalidArgument", (400, "InvalidRequest")),
        ("400 Bad Request", "KeyTooLongError", (400, "InvalidRequest")),
        // Somebody can give the gateway its permission.
        ("403 Forbidden", "AccessDenied", (503, "ServiceUnavailable")),
    ] {
        store.refuse_writes_with(status, code);
        let refused = ask(program.address, "PUT", "/lake/a", &[], b"bytes").unwrap();
        assert_eq!((refused.status, refused.code().as_str()), expected, "{status} {code}: {refused:?}");
        assert!(!refused.text().contains("company"), "{refused:?}");
    }
    assert_eq!(store.object("a"), None);
}

#[test]
fn failed_deletions_of_request_are_one_log_line() {
    const KEYS: usize = 30;
    let directory = tempfile::tempdir().unwrap();
    let store = OwnS3::start(KEYS);
    store.may_list(usize::MAX);
    store.refuse_writes_with("501 Not Implemented", "NotImplemented");
    let of_bucket = "consistency = \"revalidate\"";
    let program = Program::start(directory.path(), &store.sections(directory.path(), of_bucket));
    let keys: String =
        (0..KEYS).map(|index| format!("<Object><Key>there/{index:03}</Key></Object>")).collect();
    let document = format!("<Delete>{keys}</Delete>");
    let reply = ask(program.address, "POST", "/lake?delete=", &[], document.as_bytes()).unwrap();
    assert_eq!(reply.status, 200, "{reply:?}");
    assert_eq!(crate::signed::tags(&reply.text(), "Code"), vec!["NotImplemented"; KEYS], "{reply:?}");
    let id = reply.header("x-amz-request-id").unwrap().to_owned();
    let (_, log) = program.stop();
    let lines: Vec<&str> = log.lines().filter(|line| line.contains(&id) && line.contains("WARN")).collect();
    let [line] = lines.as_slice() else { panic!("{log}") };
    assert!(line.contains(&format!("the first of {KEYS} failures")), "{line}");
}
