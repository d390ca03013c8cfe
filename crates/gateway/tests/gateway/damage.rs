//! Local disks that are full, and files that are not what was written.

use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::Ordering;
use std::time::Duration;

use underlay_gateway::config::WriteMode;
use underlay_gateway::engine::WriteConditions;
use underlay_gateway::errors::GatewayError;
use underlay_gateway::store::BackendKind;

use crate::program::{Program, command};
use crate::rig::{Ground, content, delete, get, in_memory, put};
use crate::signed::ask;

/// Also where the gateway that had it open still writes its last note there.
fn remove_all(directory: &Path) {
    let is_removed = (0..100).any(|_| {
        std::fs::remove_dir_all(directory).is_ok() || {
            std::thread::sleep(Duration::from_millis(20));
            false
        }
    });
    assert!(is_removed, "{} can't be removed", directory.display());
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

/// A store that takes nothing before the test says so.
fn waiting() -> Ground {
    let mut ground = Ground::new(in_memory(), BackendKind::S3);
    ground.write = WriteMode::Back { after: Duration::from_secs(3600) };
    ground
}

fn segments(local: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(local.join("journal")).unwrap();
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "segment"));
    paths.sort();
    paths
}

/// `check` or `repair`: the exit code, and what was said.
fn offline_code(directory: &Path, arguments: &[&str]) -> (Option<i32>, String) {
    let config = directory.join("gateway.toml");
    let text = format!(
        "listen = \"127.0.0.1:0\"\n[local]\ndirectory = \"{}\"\n[bucket.lake]\nstore = \"/nowhere\"\n\
         [key.a]\nid = \"KEY\"\nsecret_env = \"NONE\"\nallow = [{{ bucket = \"*\", may = [\"read\"] }}]\n",
        directory.join("local").display()
    );
    std::fs::write(&config, text).unwrap();
    let mut printed = String::new();
    // The engine that was open before may still be letting go.
    for _ in 0..100 {
        let output = command().args(arguments).arg(&config).output().unwrap();
        printed = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        if !printed.contains("another gateway is using") && !printed.contains("already open") {
            return (output.status.code(), printed);
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    panic!("{printed}");
}

/// `check` or `repair`, and whether everything is in order afterwards.
fn offline(directory: &Path, arguments: &[&str]) -> (bool, String) {
    let (code, printed) = offline_code(directory, arguments);
    assert!(printed.contains("older than the journal") || matches!(code, Some(0 | 1)), "{printed}");
    (code == Some(0), printed)
}

#[test]
fn torn_tail_is_cut_and_wrong_byte_found() {
    let directory = tempfile::tempdir().unwrap();
    let local = directory.path().join("local");
    let ground = waiting();
    let runtime_before = runtime();
    runtime_before.block_on(async {
        let engine = ground.open(&local).await;
        for key in 0..3_u64 {
            put(&engine, &format!("key{key}"), &content(key, 200_000), WriteConditions::default())
                .await
                .unwrap();
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
    let (is_sound, printed) = offline(directory.path(), &["check"]);
    assert!(is_sound && printed.contains("3 objects"), "{printed}");
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
    let (is_sound, printed) = offline(directory.path(), &["check"]);
    assert!(
        !is_sound && printed.contains("damaged: object lake/key1") && printed.contains("wrong checksum"),
        "{printed}"
    );
    let runtime_between = runtime();
    runtime_between.block_on(async {
        let engine = ground.open(&local).await;
        // A read fails, and never returns the damaged bytes.
        assert!(matches!(get(&engine, "key1", None).await, Err(GatewayError::Local(_))));
        assert_eq!(get(&engine, "key2", None).await.unwrap(), content(2, 200_000));
        engine.close().await;
    });
    drop(runtime_between);
    let (is_sound, printed) = offline(directory.path(), &["repair"]);
    assert!(!is_sound && printed.contains("--drop-damaged"), "{printed}");
    let (is_sound, printed) = offline(directory.path(), &["repair", "--drop-damaged"]);
    assert!(is_sound && printed.contains("gave up object lake/key1"), "{printed}");
    runtime().block_on(async {
        let engine = ground.open(&local).await;
        assert!(matches!(get(&engine, "key1", None).await, Err(GatewayError::NoSuchKey)));
        ground.drain(&engine).await;
        let keys: Vec<String> = ground.stored().await.into_iter().map(|(key, _)| key).collect();
        assert_eq!(keys, ["key0", "key2"]);
    });
}

/// Metadata that are gone, empty or of yesterday know nothing of what was acknowledged since: going by them would
/// remove it.
#[test]
fn metadata_that_do_not_fit_the_journal_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let local = directory.path().join("local");
    let (metadata, backup) = (local.join("metadata.redb"), directory.path().join("kept"));
    let ground = waiting();
    for (key, copy) in [(0, directory.path().join("yesterday")), (1, backup.clone())] {
        let runtime = runtime();
        runtime.block_on(async {
            let engine = ground.open(&local).await;
            put(&engine, &format!("key{key}"), &content(key, 200_000), WriteConditions::default())
                .await
                .unwrap();
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
            let error = tried.unwrap_err();
            assert!(error.contains("metadata.redb") && error.contains("what to do"), "{error}");
            assert_eq!(segments(&local), before);
        }
    };
    std::fs::remove_file(&metadata).unwrap();
    refused();
    std::fs::write(&metadata, b"").unwrap();
    refused();
    std::fs::copy(directory.path().join("yesterday"), &metadata).unwrap();
    refused();
    let (_, printed) = offline(directory.path(), &["check"]);
    assert!(printed.contains("older than the journal"), "{printed}");
    std::fs::copy(&backup, &metadata).unwrap();
    runtime().block_on(async {
        let engine = ground.open(&local).await;
        for key in 0..2 {
            assert_eq!(get(&engine, &format!("key{key}"), None).await.unwrap(), content(key, 200_000));
        }
    });
}

/// The damage to a file on a disk that fails.
#[derive(Clone, Copy, Debug)]
enum Harm {
    CutAt(u64),
    /// A page of it has nothing but zeros.
    Zeroed(u64),
    /// One bit of this byte.
    Flipped(u64),
}

const PAGE_BYTES: u64 = 4096;

impl Harm {
    fn do_to(self, path: &Path) {
        let file = std::fs::OpenOptions::new().read(true).write(true).open(path).unwrap();
        match self {
            Harm::CutAt(length) => file.set_len(length).unwrap(),
            Harm::Zeroed(page) => file.write_all_at(&[0; PAGE_BYTES as usize], page * PAGE_BYTES).unwrap(),
            Harm::Flipped(offset) => {
                let mut byte = [0];
                file.read_exact_at(&mut byte, offset).unwrap();
                file.write_all_at(&[byte[0] ^ 0x10], offset).unwrap();
            }
        }
    }

    /// Of everything that the file is made of: its head closely, every page with something in it, and its end.
    fn of(path: &Path) -> Vec<Harm> {
        let bytes = std::fs::read(path).unwrap();
        let length = bytes.len() as u64;
        let mut harms: Vec<Harm> =
            [1, PAGE_BYTES - 1, PAGE_BYTES, length / 2, length - PAGE_BYTES, length - 1]
                .map(Harm::CutAt)
                .into();
        harms.extend((0..320).step_by(7).map(Harm::Flipped));
        for (page, bytes) in bytes.chunks(PAGE_BYTES as usize).enumerate() {
            let begin = page as u64 * PAGE_BYTES;
            let used: Vec<u64> =
                (begin..).zip(bytes).filter(|(_, byte)| **byte != 0).map(|(offset, _)| offset).collect();
            if !used.is_empty() {
                harms.push(Harm::Zeroed(page as u64));
                harms.extend([0, used.len() / 2, used.len() - 1].map(|index| Harm::Flipped(used[index])));
            }
        }
        harms
    }
}

/// With any damage, also beside a torn journal: a message says what to do, or everything is there.
#[test]
fn metadata_that_were_altered_are_refused_or_harmless() {
    const OBJECTS: u64 = 24;
    let directory = tempfile::tempdir().unwrap();
    let local = directory.path().join("local");
    let copy = |from: &Path, to: &Path| {
        assert!(Command::new("cp").arg("-a").args([from, to]).status().unwrap().success());
    };
    let ground = waiting();
    // As a stop leaves it, and as a kill does.
    let (stopped, killed) = (directory.path().join("stopped"), directory.path().join("killed"));
    let runtime_before = runtime();
    runtime_before.block_on(async {
        let engine = ground.open(&local).await;
        for key in 0..OBJECTS {
            put(&engine, &format!("key{key}"), &content(key, 3_000), WriteConditions::default())
                .await
                .unwrap();
        }
        copy(&local, &killed);
        engine.close().await;
    });
    drop(runtime_before);
    // Who has it open has let it go once it can be looked at; that changes nothing of this copy.
    offline(directory.path(), &["check"]);
    copy(&local, &stopped);

    let (mut refused, mut harmless) = (0, 0);
    for (is_killed, whole) in [(false, &stopped), (true, &killed)] {
        for (index, harm) in Harm::of(&whole.join("metadata.redb")).into_iter().enumerate() {
            remove_all(&local);
            copy(whole, &local);
            harm.do_to(&local.join("metadata.redb"));
            let is_torn = index % 4 == 3;
            let before = segments(&local);
            if is_torn {
                let length = std::fs::metadata(&before[0]).unwrap().len();
                Harm::CutAt(length / 2).do_to(&before[0]);
            }
            let (code, printed) = offline_code(directory.path(), &["check"]);
            let context = format!("{harm:?}, killed: {is_killed}, torn: {is_torn}: {code:?} {printed}");
            let tried = runtime().block_on(async {
                let engine = ground.try_open(&local).await?;
                let mut lost = 0;
                for key in 0..OBJECTS {
                    match get(&engine, &format!("key{key}"), None).await {
                        Ok(bytes) => assert!(bytes == content(key, 3_000), "other bytes: {context}"),
                        Err(GatewayError::Local(_)) if is_torn => lost += 1,
                        Err(error) => panic!("{key}: {error}; {context}"),
                    }
                }
                engine.close().await;
                Ok::<u64, String>(lost)
            });
            match tried {
                Err(reason) => {
                    assert!(
                        reason.contains("metadata.redb") && reason.contains("what to do"),
                        "{reason}; {context}"
                    );
                    assert!(code == Some(4) && printed.contains("what to do"), "{context}");
                    assert_eq!(segments(&local), before, "{context}");
                    refused += 1;
                }
                Ok(lost) => {
                    assert_eq!(code, Some(i32::from(is_torn)), "{context}");
                    assert_eq!(printed.matches("damaged: object lake/key").count() as u64, lost, "{context}");
                    assert_eq!(lost > 0, is_torn, "{context}");
                    harmless += 1;
                }
            }
        }
    }
    assert!(refused > 50 && harmless > 5, "{refused} were refused, and {harmless} harmless");
}

/// Also one of the same start, and one whose end the disk has altered, so that it looks as a power cut would leave it.
#[test]
fn metadata_without_the_last_commit_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let (local, backup) = (directory.path().join("local"), directory.path().join("kept"));
    let ground = waiting();
    let runtime_before = runtime();
    runtime_before.block_on(async {
        let engine = ground.open(&local).await;
        put(&engine, "first", &content(1, 1000), WriteConditions::default()).await.unwrap();
        std::fs::copy(local.join("metadata.redb"), &backup).unwrap();
        put(&engine, "last", &content(2, 1000), WriteConditions::default()).await.unwrap();
        engine.close().await;
    });
    drop(runtime_before);
    offline(directory.path(), &["check"]);
    std::fs::copy(&backup, local.join("metadata.redb")).unwrap();
    for _ in 0..2 {
        let (code, printed) = offline_code(directory.path(), &["check"]);
        assert!(code == Some(4) && printed.contains("lacks 1 acknowledged commits"), "{code:?} {printed}");
        let error = runtime().block_on(async { ground.try_open(&local).await.map(drop) }).unwrap_err();
        assert!(
            error.contains("lacks 1 acknowledged commits") && error.contains("remove the file `commits`"),
            "{error}"
        );
    }
    std::fs::remove_file(local.join("journal/commits")).unwrap();
    runtime().block_on(async {
        let engine = ground.open(&local).await;
        assert_eq!(get(&engine, "first", None).await.unwrap(), content(1, 1000));
        assert_eq!(get(&engine, "last", None).await, Err(GatewayError::NoSuchKey));
        put(&engine, "last", &content(2, 1000), WriteConditions::default()).await.unwrap();
        engine.close().await;
    });
}

/// As it ends where something is wrong.
#[test]
fn gateway_with_altered_metadata_exits_with_advice() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::create_dir(directory.path().join("objects")).unwrap();
    let sections = format!(
        "[bucket.lake]\nstore = \"{}\"\nwrite = \"back\"\nflush_after = \"1 h\"\n",
        directory.path().join("objects").display()
    );
    let mut program = Program::start(directory.path(), &sections);
    assert_eq!(ask(program.address, "PUT", "/lake/a", &[], b"kept").unwrap().status, 200);
    program.kill();
    let (metadata, backup) = (directory.path().join("local/metadata.redb"), directory.path().join("kept"));
    std::fs::copy(&metadata, &backup).unwrap();
    for harm in [Harm::CutAt(PAGE_BYTES * 2), Harm::Zeroed(0), Harm::Flipped(3)] {
        std::fs::copy(&backup, &metadata).unwrap();
        harm.do_to(&metadata);
        // Also when a supervisor tries again.
        for _ in 0..2 {
            let log = program.start_in_vain();
            let last = log.lines().rev().take(3).collect::<Vec<_>>().join("\n");
            assert!(
                last.contains("metadata.redb") && last.contains("what to do: bring back"),
                "{harm:?}: {log}"
            );
        }
    }
    std::fs::copy(&backup, &metadata).unwrap();
    program.start_again();
    assert_eq!(ask(program.address, "GET", "/lake/a", &[], b"").unwrap().text(), "kept");
}

/// A small disk of memory, which is gone with the test.
struct SmallDisk(PathBuf);

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).status();
    }
}

#[test]
fn full_disk_refuses_writes_and_loses_nothing() {
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
        let mut count = 0_u64;
        let refused = loop {
            match put(
                &engine,
                &format!("key{count:03}"),
                &content(count, 1 << 20),
                WriteConditions::default(),
            )
            .await
            {
                Ok(_) => count += 1,
                Err(error) => break error,
            }
            assert!(count < 200);
        };
        assert!(matches!(refused, GatewayError::Busy(_)), "{refused}");
        assert!(count > 5, "{count}");
        // What takes no room goes on.
        delete(&engine, "key000").await.unwrap();
        put(&engine, "empty", &content(0, 0), WriteConditions::default()).await.unwrap();
        for key in 1..count {
            assert_eq!(get(&engine, &format!("key{key:03}"), None).await.unwrap(), content(key, 1 << 20));
        }
        ground.drain(&engine).await;
        put(&engine, "again", &content(7, 1 << 20), WriteConditions::default()).await.unwrap();
        ground.drain(&engine).await;
        assert_eq!(ground.stored().await.len() as u64, count - 1 + 2);
        assert_eq!(ground.mood.puts.load(Ordering::Relaxed), count - 1 + 2);
        engine.close().await;
    });
}

/// Its supervisor has to start it again: it could neither store nor take anything more.
#[test]
fn gateway_with_unwritable_metadata_exits_and_restarts() {
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

/// A file beside the segments, under a name that looks almost like one of theirs, keeps no gateway from starting.
#[test]
fn foreign_file_in_journal_is_untouched() {
    runtime().block_on(async {
        let directory = tempfile::tempdir().unwrap();
        let local = directory.path().join("local");
        let ground = waiting();
        let engine = ground.open(&local).await;
        put(&engine, "a", &content(1, 1000), WriteConditions::default()).await.unwrap();
        engine.close().await;
        drop(engine);
        let names = ["7.segment", "000000000000000A.segment", "ffffffffffffffff.segment"];
        for name in names {
            std::fs::write(local.join("journal").join(name), "not ours").unwrap();
        }
        let engine = ground.open(&local).await;
        put(&engine, "b", &content(2, 1000), WriteConditions::default()).await.unwrap();
        for (key, seed) in [("a", 1), ("b", 2)] {
            assert_eq!(get(&engine, key, None).await.unwrap(), content(seed, 1000));
        }
        for name in names {
            assert_eq!(std::fs::read(local.join("journal").join(name)).unwrap(), b"not ours");
        }
    });
}
