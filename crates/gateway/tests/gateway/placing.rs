//! Writes that a directory could never take: they are refused before anybody relies on them.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use underlay_gateway::config::{PrefixRule, StoreConsistency, WriteMode};
use underlay_gateway::engine::{CompletedPart, CopyRequest, GatewayEngine, WriteConditions, WriteReceipt};
use underlay_gateway::errors::GatewayError;
use underlay_gateway::model::{ObjectChecksums, ObjectHeaders};
use underlay_gateway::store::BackendKind;

use crate::program::Program;
use crate::rig::{BUCKET, Ground, body_of, content, delete, get, put};
use crate::signed::ask;

/// Over a directory, where others write below these prefixes.
fn ground(objects: &Path, shared: &[&str], write: WriteMode) -> Ground {
    std::fs::create_dir_all(objects).unwrap();
    let files = object_store::local::LocalFileSystem::new_with_prefix(objects).unwrap();
    let mut ground = Ground::new(Arc::new(files.with_fsync(true)), BackendKind::Directory);
    let rule = |prefix: &&str| PrefixRule {
        prefix: (*prefix).to_owned(),
        write: WriteMode::Through,
        consistency: StoreConsistency::Revalidate,
    };
    (ground.write, ground.root) = (write, Some(objects.to_owned()));
    ground.rules = shared.iter().map(rule).collect();
    ground
}

const SOON: WriteMode = WriteMode::Back { after: Duration::from_millis(5) };
const LATE: WriteMode = WriteMode::Back { after: Duration::from_secs(3600) };

/// All ways to make an object.
#[derive(Clone, Copy, Debug)]
enum Way {
    Put,
    Copy,
    Upload,
}

const WAYS: [Way; 3] = [Way::Put, Way::Copy, Way::Upload];

/// Makes an object that way. The source of copies is `source`, and `shared/source` where others write.
async fn make(
    engine: &Arc<GatewayEngine>,
    key: &str,
    way: Way,
    source: &str,
) -> Result<WriteReceipt, GatewayError> {
    let bytes = content(7, 100);
    match way {
        Way::Put => put(engine, key, &bytes, WriteConditions::default()).await,
        Way::Copy => {
            let (from, to) = ((BUCKET.to_owned(), source.to_owned()), (BUCKET.to_owned(), key.to_owned()));
            engine.copy(CopyRequest { from, to, ..CopyRequest::default() }).await
        }
        Way::Upload => {
            let headers = ObjectHeaders::default();
            let upload = engine.create_upload(BUCKET, key, headers, Vec::new(), None).await?;
            let (body, verify) = (body_of(&bytes), Box::new(|_: &_, _: &_| Ok(())));
            let part = engine.upload_part(BUCKET, key, &upload, 1, 100, &[], body, verify).await?;
            let none = ObjectChecksums::default();
            let parts = vec![CompletedPart { number: 1, etag: part.etag, checksums: none.clone() }];
            let conditions = WriteConditions::default();
            engine.complete_upload(BUCKET, key, &upload, parts, conditions, none, None).await
        }
    }
}

async fn put_some(engine: &Arc<GatewayEngine>, keys: &[&str]) {
    for key in keys {
        put(engine, key, &content(1, 50), WriteConditions::default()).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn object_in_place_of_shared_directory_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let ground = ground(&directory.path().join("objects"), &["mix/raw/"], SOON);
    let engine = ground.open(&directory.path().join("local")).await;
    put_some(&engine, &["mix/raw/x", "source"]).await;
    for way in WAYS {
        let made = make(&engine, "mix/raw", way, "source").await;
        assert!(matches!(made, Err(GatewayError::NameTaken(_))), "{way:?}: {made:?}");
    }
    // Others may have put an object where a directory would have to be.
    std::fs::write(directory.path().join("objects/theirs"), "x").unwrap();
    for way in WAYS {
        let made = make(&engine, "theirs/a/b", way, "source").await;
        assert!(matches!(made, Err(GatewayError::NameTaken(_))), "{way:?}: {made:?}");
    }
    // A directory without anything is no object, and goes.
    std::fs::create_dir_all(directory.path().join("objects/empty/inner")).unwrap();
    for way in WAYS {
        make(&engine, "empty", way, "source").await.unwrap();
    }
    ground.drain(&engine).await;
    assert_eq!(get(&engine, "mix/raw", None).await, Err(GatewayError::NoSuchKey));
    // Once it is gone, there is room.
    delete(&engine, "mix/raw/x").await.unwrap();
    put_some(&engine, &["mix/raw"]).await;
    ground.drain(&engine).await;
    assert!(directory.path().join("objects/mix/raw").is_file());
    assert!(directory.path().join("objects/empty").is_file());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shared_write_leaves_acknowledged_objects_storable() {
    let directory = tempfile::tempdir().unwrap();
    let shared = ["mix/solo/", "shared/", "up"];
    let mut ground = ground(&directory.path().join("objects"), &shared, LATE);
    let inner =
        PrefixRule { prefix: "up/in/".to_owned(), write: LATE, consistency: StoreConsistency::Exclusive };
    ground.rules.insert(0, inner);
    let engine = ground.open(&directory.path().join("local")).await;
    // The store has none of the first two yet.
    put_some(&engine, &["mix/solo", "up/in/deep/x", "source", "shared/source"]).await;
    for key in ["mix/solo/x", "mix/solo/y/z", "up/in", "up"] {
        for way in WAYS {
            for source in ["source", "shared/source"] {
                let made = make(&engine, key, way, source).await;
                assert!(matches!(made, Err(GatewayError::NameTaken(_))), "{key} {way:?}: {made:?}");
            }
        }
    }
    // Beside them there is room.
    put_some(&engine, &["up/beside", "up/index", "shared/a/b"]).await;
    ground.drain(&engine).await;
    for key in ["mix/solo", "up/in/deep/x", "up/beside"] {
        assert!(directory.path().join("objects").join(key).is_file(), "{key}");
    }
    delete(&engine, "mix/solo").await.unwrap();
    ground.drain(&engine).await;
    put_some(&engine, &["mix/solo/x"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn write_through_link_or_open_directory_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let (objects, outside) = (directory.path().join("objects"), directory.path().join("outside"));
    let ground = ground(&objects, &[], SOON);
    for folder in [&outside, &objects.join("dir"), &objects.join("dir/open")] {
        std::fs::create_dir_all(folder).unwrap();
    }
    let open = std::fs::Permissions::from_mode(0o777);
    std::fs::set_permissions(objects.join("dir/open"), open).unwrap();
    std::os::unix::fs::symlink(&outside, objects.join("dir/link")).unwrap();
    let engine = ground.open(&directory.path().join("local")).await;
    put_some(&engine, &["source"]).await;
    for key in ["dir/link/x", "dir/link/a/b", "dir/link", "dir/open/x", "dir/open/a/b"] {
        for way in WAYS {
            let made = make(&engine, key, way, "source").await;
            assert!(matches!(made, Err(GatewayError::AccessDenied(_))), "{key} {way:?}: {made:?}");
        }
        let headers = ObjectHeaders::default();
        let begun = engine.create_upload(BUCKET, key, headers, Vec::new(), None).await;
        assert!(matches!(begun, Err(GatewayError::AccessDenied(_))), "{key}: {begun:?}");
    }
    ground.drain(&engine).await;
    assert!(std::fs::read_dir(&outside).unwrap().next().is_none());
}

/// What is only waiting to be deleted from the store is in nobody's way.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn objects_awaiting_deletion_are_in_no_way() {
    let directory = tempfile::tempdir().unwrap();
    let objects = directory.path().join("objects");
    let ground = ground(&objects, &["shared/"], SOON);
    let engine = ground.open(&directory.path().join("local")).await;
    let former = ["a/b/1", "a/b/2", "a/c", "d"];
    put_some(&engine, &former).await;
    let begun = Instant::now();
    while !engine.is_clean() {
        assert!(begun.elapsed() < Duration::from_secs(60), "they are not stored");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    ground.mood.holds_deletes.store(true, Ordering::Relaxed);
    for key in former {
        delete(&engine, key).await.unwrap();
    }
    put_some(&engine, &["a", "d/x"]).await;
    assert!(objects.join("a/c").is_file() && objects.join("d").is_file());
    ground.mood.holds_deletes.store(false, Ordering::Relaxed);
    ground.drain(&engine).await;
    assert!(objects.join("a").is_file() && objects.join("d/x").is_file());
}

/// A kill came between the file's removal and its directories'.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deletion_of_missing_file_removes_its_directories() {
    let directory = tempfile::tempdir().unwrap();
    let objects = directory.path().join("objects");
    let ground = ground(&objects, &["shared/"], SOON);
    let engine = ground.open(&directory.path().join("local")).await;
    put_some(&engine, &["a/b/c", "shared/x/y"]).await;
    ground.drain(&engine).await;
    for key in ["a/b/c", "shared/x/y"] {
        std::fs::remove_file(objects.join(key)).unwrap();
        delete(&engine, key).await.unwrap();
    }
    ground.drain(&engine).await;
    // Others may be about to put something there.
    assert!(!objects.join("a").exists() && objects.join("shared/x").is_dir());
    put_some(&engine, &["a"]).await;
    ground.drain(&engine).await;
    assert!(objects.join("a").is_file());
}

/// A kill came while the file was written, and its deletion was acknowledged.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unfinished_file_of_deleted_object_is_in_no_way() {
    let directory = tempfile::tempdir().unwrap();
    let objects = directory.path().join("objects");
    let ground = ground(&objects, &[], SOON);
    let engine = ground.open(&directory.path().join("local")).await;
    put_some(&engine, &["a/x"]).await;
    ground.drain(&engine).await;
    // The first one became the object, and the second one was there then.
    for number in [0, 2, 3] {
        write_own(&objects.join(format!("a/x#{number}")));
    }
    std::fs::remove_file(objects.join("a/x")).unwrap();
    delete(&engine, "a/x").await.unwrap();
    put_some(&engine, &["a"]).await;
    ground.drain(&engine).await;
    assert!(objects.join("a").is_file());
}

/// As a gateway does, for its user alone.
fn write_own(path: &Path) {
    std::fs::write(path, "half").unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).unwrap();
}

/// They were there before the directory was the gateway's alone, and only look like its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_of_others_beside_deleted_object_stay() {
    let directory = tempfile::tempdir().unwrap();
    let objects = directory.path().join("objects");
    let ground = ground(&objects, &[], SOON);
    let theirs = ["report#0", "report#1"].map(|name| objects.join(name));
    for path in &theirs {
        std::fs::write(path, "theirs").unwrap();
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o644)).unwrap();
    }
    let engine = ground.open(&directory.path().join("local")).await;
    put_some(&engine, &["report"]).await;
    ground.drain(&engine).await;
    delete(&engine, "report").await.unwrap();
    ground.drain(&engine).await;
    assert!(!objects.join("report").exists() && theirs.iter().all(|path| path.exists()));
}

/// An object of its name has the place, once nothing is in it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn directory_kept_for_others_gives_way_to_object() {
    let directory = tempfile::tempdir().unwrap();
    let objects = directory.path().join("objects");
    let ground = ground(&objects, &["out/theirs/"], SOON);
    let engine = ground.open(&directory.path().join("local")).await;
    put_some(&engine, &["out/mine/x"]).await;
    ground.drain(&engine).await;
    delete(&engine, "out/mine/x").await.unwrap();
    ground.drain(&engine).await;
    std::fs::create_dir_all(objects.join("out/theirs/inner")).unwrap();
    put_some(&engine, &["out"]).await;
    ground.drain(&engine).await;
    assert!(objects.join("out").is_file());
}

/// Where others write as well, they may be about to use a directory.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn directories_that_others_use_as_well_stay() {
    let directory = tempfile::tempdir().unwrap();
    let objects = directory.path().join("objects");
    let ground = ground(&objects, &["out/theirs/"], SOON);
    let engine = ground.open(&directory.path().join("local")).await;
    for is_gone_before in [false, true] {
        put_some(&engine, &["out/mine/x"]).await;
        ground.drain(&engine).await;
        if is_gone_before {
            std::fs::remove_file(objects.join("out/mine/x")).unwrap();
        }
        delete(&engine, "out/mine/x").await.unwrap();
        ground.drain(&engine).await;
        assert!(!objects.join("out/mine").exists() && objects.join("out").is_dir(), "{is_gone_before}");
    }
}

/// What is in the way has an hour, and the client of the new object would wait for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn write_brings_removal_in_its_way_forward() {
    let directory = tempfile::tempdir().unwrap();
    let (objects, local) = (directory.path().join("objects"), directory.path().join("local"));
    let mut ground = ground(&objects, &[], SOON);
    let engine = ground.open(&local).await;
    put_some(&engine, &["a/b/1", "a/c", "d", "e"]).await;
    ground.drain(&engine).await;
    engine.close().await;
    drop(engine);
    ground.write = LATE;
    let engine = ground.open(&local).await;
    for key in ["a/b/1", "a/c", "d", "e"] {
        delete(&engine, key).await.unwrap();
    }
    put_some(&engine, &["a", "d/x"]).await;
    let begun = Instant::now();
    while objects.join("a").exists() || objects.join("d").exists() {
        assert!(begun.elapsed() < Duration::from_secs(60), "they stay where they are");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    // This one has its time.
    assert!(objects.join("e").exists());
    ground.drain(&engine).await;
    assert!(objects.join("a").is_file() && objects.join("d/x").is_file());
}

/// As clients see it, and nothing is left that can't be stored.
#[test]
fn impossible_names_in_directory_answer_errors_at_once() {
    let directory = tempfile::tempdir().unwrap();
    let objects = directory.path().join("objects");
    let outside = directory.path().join("outside");
    for folder in [&objects, &outside] {
        std::fs::create_dir(folder).unwrap();
    }
    std::os::unix::fs::symlink(&outside, objects.join("link")).unwrap();
    let sections = format!(
        "[bucket.lake]\nstore = \"{}\"\nwrite = \"back\"\nflush_after = \"1 h\"\n\
         [[bucket.lake.prefix]]\nprefix = \"raw/\"\nconsistency = \"revalidate\"\n\
         [[bucket.lake.prefix]]\nprefix = \"solo/\"\nconsistency = \"revalidate\"\n",
        objects.display()
    );
    let program = Program::start(directory.path(), &sections);
    for (target, status, code) in [
        ("/lake/raw/x", 200, ""),
        ("/lake/raw", 400, "InvalidRequest"),
        ("/lake/solo", 200, ""),
        ("/lake/solo/x", 400, "InvalidRequest"),
        ("/lake/link/x", 403, "AccessDenied"),
    ] {
        let reply = ask(program.address, "PUT", target, &[], b"bytes").unwrap();
        assert_eq!((reply.status, reply.code().as_str()), (status, code), "{target}: {reply:?}");
    }
    let (status, log) = program.stop();
    assert!(status.success() && objects.join("solo").is_file(), "{log}");
}
