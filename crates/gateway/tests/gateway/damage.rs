//! Local disks that are full, and files that are not what was written.

use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::Ordering;
use std::time::Duration;

use underlay_gateway::config::Write;
use underlay_gateway::engine::Conditions;
use underlay_gateway::errors::Error;
use underlay_gateway::store::Kind;

use crate::program::{Program, command};
use crate::rig::{Ground, content, delete, get, in_memory, put};
use crate::signed::ask;

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

/// A store that takes nothing before the test says so.
fn waiting() -> Ground {
    let mut ground = Ground::new(in_memory(), Kind::S3);
    ground.write = Write::Back { after: Duration::from_secs(3600) };
    ground
}

fn segments(local: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(local.join("journal")).unwrap();
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "segment"));
    paths.sort();
    paths
}

/// `check` or `repair`, and whether everything is in order afterwards.
fn offline(directory: &Path, arguments: &[&str]) -> (bool, String) {
    let config = directory.join("gateway.toml");
    let text = format!(
        "listen = \"127.0.0.1:0\"\n[local]\ndirectory = \"{}\"\n[bucket.lake]\nstore = \"/nowhere\"\n\
         [key.a]\nid = \"KEY\"\nsecret_env = \"NONE\"\nallow = [{{ bucket = \"*\", may = [\"read\"] }}]\n",
        directory.join("local").display()
    );
    std::fs::write(&config, text).unwrap();
    let mut said = String::new();
    // The engine that was open before may still be letting go.
    for _ in 0..100 {
        let output = command().args(arguments).arg(&config).output().unwrap();
        said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        if !said.contains("another gateway is using") && !said.contains("already open") {
            let is_refused = said.contains("older than the journal");
            assert!(is_refused || matches!(output.status.code(), Some(0 | 1)), "{said}");
            return (output.status.success(), said);
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    panic!("{said}");
}

#[test]
fn a_torn_tail_is_cut_off_and_a_wrong_byte_is_found() {
    let directory = tempfile::tempdir().unwrap();
    let local = directory.path().join("local");
    let ground = waiting();
    let runtime_before = runtime();
    runtime_before.block_on(async {
        let engine = ground.open(&local).await;
        for key in 0..3_u64 {
            put(&engine, &format!("key{key}"), &content(key, 200_000), Conditions::default()).await.unwrap();
        }
        engine.close().await;
    });
    drop(runtime_before);
    // What a crash leaves of a write that no commit speaks of.
    let segment = segments(&local).remove(0);
    let whole = std::fs::metadata(&segment).unwrap().len();
    let file = std::fs::OpenOptions::new().read(true).write(true).open(&segment).unwrap();
    file.write_all_at(&[0xaa; 100_000], whole).unwrap();
    std::fs::write(local.join("journal/00000000000000ff.segment"), b"half of something").unwrap();
    let (is_sound, said) = offline(directory.path(), &["check"]);
    assert!(is_sound && said.contains("3 objects"), "{said}");
    // Looking changes nothing.
    assert_eq!(std::fs::metadata(&segment).unwrap().len(), whole + 100_000);
    assert_eq!(segments(&local).len(), 2);
    let runtime_of_start = runtime();
    runtime_of_start.block_on(async { ground.open(&local).await.close().await });
    drop(runtime_of_start);
    assert_eq!(std::fs::metadata(&segment).unwrap().len(), whole);
    assert_eq!(segments(&local).len(), 1);

    let mut byte = [0];
    file.read_exact_at(&mut byte, 250_000).unwrap();
    file.write_all_at(&[byte[0] ^ 1], 250_000).unwrap();
    let (is_sound, said) = offline(directory.path(), &["check"]);
    assert!(
        !is_sound && said.contains("damaged: object lake/key1") && said.contains("wrong checksum"),
        "{said}"
    );
    let runtime_between = runtime();
    runtime_between.block_on(async {
        let engine = ground.open(&local).await;
        // It is told, and never served.
        assert!(matches!(get(&engine, "key1", None).await, Err(Error::Local(_))));
        assert_eq!(get(&engine, "key2", None).await.unwrap(), content(2, 200_000));
        engine.close().await;
    });
    drop(runtime_between);
    let (is_sound, said) = offline(directory.path(), &["repair"]);
    assert!(!is_sound && said.contains("--drop-damaged"), "{said}");
    let (is_sound, said) = offline(directory.path(), &["repair", "--drop-damaged"]);
    assert!(is_sound && said.contains("gave up object lake/key1"), "{said}");
    runtime().block_on(async {
        let engine = ground.open(&local).await;
        assert!(matches!(get(&engine, "key1", None).await, Err(Error::NoSuchKey)));
        ground.drain(&engine).await;
        let keys: Vec<String> = ground.stored().await.into_iter().map(|(key, _)| key).collect();
        assert_eq!(keys, ["key0", "key2"]);
    });
}

/// Metadata that are gone, empty or of yesterday know nothing of what was acknowledged since: going by them would remove it.
#[test]
fn metadata_that_do_not_fit_the_journal_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let local = directory.path().join("local");
    let (metadata, kept) = (local.join("metadata.redb"), directory.path().join("kept"));
    let ground = waiting();
    for (key, copy) in [(0, directory.path().join("yesterday")), (1, kept.clone())] {
        let runtime = runtime();
        runtime.block_on(async {
            let engine = ground.open(&local).await;
            put(&engine, &format!("key{key}"), &content(key, 200_000), Conditions::default()).await.unwrap();
            engine.close().await;
        });
        drop(runtime);
        std::fs::copy(&metadata, copy).unwrap();
    }
    let before = segments(&local);
    let refused = || {
        // Also when it is tried again and again.
        for _ in 0..3 {
            let tried = runtime().block_on(async { ground.try_open(&local).await.map(drop) });
            let why = tried.unwrap_err();
            assert!(why.contains("metadata.redb") && why.contains("what to do"), "{why}");
            assert_eq!(segments(&local), before);
        }
    };
    std::fs::remove_file(&metadata).unwrap();
    refused();
    std::fs::write(&metadata, b"").unwrap();
    refused();
    std::fs::copy(directory.path().join("yesterday"), &metadata).unwrap();
    refused();
    let (_, said) = offline(directory.path(), &["check"]);
    assert!(said.contains("older than the journal"), "{said}");
    std::fs::copy(&kept, &metadata).unwrap();
    runtime().block_on(async {
        let engine = ground.open(&local).await;
        for key in 0..2 {
            assert_eq!(get(&engine, &format!("key{key}"), None).await.unwrap(), content(key, 200_000));
        }
    });
}

/// A small disk of memory, which is gone with the test.
struct SmallDisk(PathBuf);

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).status();
    }
}

#[test]
fn a_full_disk_refuses_and_loses_nothing() {
    if !rustix::process::geteuid().is_root() {
        // `scripts/test` runs this as root.
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let mounted = Command::new("mount")
        .args(["-t", "tmpfs", "-o", "size=96m,mode=700", "underlay-gateway-test"])
        .arg(directory.path())
        .status()
        .unwrap();
    assert!(mounted.success());
    let _disk = SmallDisk(directory.path().to_owned());
    runtime().block_on(async {
        let ground = waiting();
        let engine = ground.open(&directory.path().join("local")).await;
        let mut kept = 0_u64;
        let refused = loop {
            match put(&engine, &format!("key{kept:03}"), &content(kept, 1 << 20), Conditions::default()).await
            {
                Ok(_) => kept += 1,
                Err(error) => break error,
            }
            assert!(kept < 200);
        };
        assert!(matches!(refused, Error::Busy(_)), "{refused}");
        assert!(kept > 5, "{kept}");
        // What takes no room goes on.
        delete(&engine, "key000").await.unwrap();
        put(&engine, "empty", &content(0, 0), Conditions::default()).await.unwrap();
        for key in 1..kept {
            assert_eq!(get(&engine, &format!("key{key:03}"), None).await.unwrap(), content(key, 1 << 20));
        }
        ground.drain(&engine).await;
        put(&engine, "again", &content(7, 1 << 20), Conditions::default()).await.unwrap();
        ground.drain(&engine).await;
        assert_eq!(ground.stored().await.len() as u64, kept - 1 + 2);
        assert_eq!(ground.mood.puts.load(Ordering::Relaxed), kept - 1 + 2);
        engine.close().await;
    });
}

/// Whatever supervises it is to start it again: it could neither store nor take anything more.
#[test]
fn a_gateway_whose_metadata_cannot_be_written_ends_and_the_next_start_goes_on() {
    let directory = tempfile::tempdir().unwrap();
    let sections = format!(
        "[bucket.lake]\nstore = \"{}\"\nwrite = \"back\"\nflush_after = \"1 h\"\n",
        directory.path().join("objects").display()
    );
    std::fs::create_dir(directory.path().join("objects")).unwrap();
    let mut program = Program::start(directory.path(), &sections);
    let put = |key: usize| ask(program.address, "PUT", &format!("/lake/key{key:03}"), &[], b"kept");
    let mut acknowledged = Vec::new();
    for key in 0..20 {
        assert_eq!(put(key).unwrap().status, 200);
        acknowledged.push(key);
    }
    // The log needs some of it.
    program.limit_files(16 << 10);
    for key in 20..200 {
        let reply = put(key).unwrap();
        if reply.status != 200 {
            assert!(reply.status >= 500, "{reply:?}");
            break;
        }
        acknowledged.push(key);
    }
    let (status, log) = program.wait_end();
    assert_eq!(status.code(), Some(4), "{log}");
    assert!(log.contains("the metadata can't be written any more") && log.contains("what to do"), "{log}");
    program.start_again();
    for key in acknowledged {
        let reply = ask(program.address, "GET", &format!("/lake/key{key:03}"), &[], b"").unwrap();
        assert_eq!((reply.status, reply.text().as_str()), (200, "kept"), "key {key}");
    }
}

/// Whoever puts a file beside the segments, under a name that looks almost like one, keeps no gateway from starting.
#[test]
fn a_file_that_is_no_segment_is_left_alone() {
    runtime().block_on(async {
        let directory = tempfile::tempdir().unwrap();
        let local = directory.path().join("local");
        let ground = waiting();
        let engine = ground.open(&local).await;
        put(&engine, "a", &content(1, 1000), Conditions::default()).await.unwrap();
        engine.close().await;
        drop(engine);
        let names = ["7.segment", "000000000000000A.segment", "ffffffffffffffff.segment"];
        for name in names {
            std::fs::write(local.join("journal").join(name), "not ours").unwrap();
        }
        let engine = ground.open(&local).await;
        put(&engine, "b", &content(2, 1000), Conditions::default()).await.unwrap();
        for (key, seed) in [("a", 1), ("b", 2)] {
            assert_eq!(get(&engine, key, None).await.unwrap(), content(seed, 1000));
        }
        for name in names {
            assert_eq!(std::fs::read(local.join("journal").join(name)).unwrap(), b"not ours");
        }
    });
}
