//! A store in a directory that is not mounted, for a while or at the start: what is in its place is another one.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use underlay_gateway::engine::{GatewayEngine, WriteConditions};
use underlay_gateway::errors::GatewayError;
use underlay_gateway::store::BackendKind;

use crate::program::{Program, SECRET, command};
use crate::rig::{Ground, content, delete, get, in_directory, put};
use crate::signed::ask;

/// A directory that can be taken away and brought back, and leaves an empty one in its place.
struct Disk {
    objects: PathBuf,
    away: PathBuf,
    /// By mounting, and not only by its name.
    is_mounted: bool,
}

impl Disk {
    fn new(directory: &Path, is_mounted: bool) -> Disk {
        let disk = Disk { objects: directory.join("objects"), away: directory.join("disk"), is_mounted };
        for path in [&disk.objects, &disk.away] {
            std::fs::create_dir(path).unwrap();
        }
        disk.bring_back();
        disk
    }

    fn bring_back(&self) {
        if self.is_mounted {
            let mount = Command::new("mount").arg("--bind").args([&self.away, &self.objects]).status();
            return assert!(mount.unwrap().success());
        }
        std::fs::remove_dir(&self.objects).unwrap();
        std::fs::rename(&self.away, &self.objects).unwrap();
    }

    fn take_away(&self) {
        if self.is_mounted {
            // A process that has it open makes a plain `umount` fail.
            let umount = Command::new("umount").arg("--lazy").arg(&self.objects).status();
            return assert!(umount.unwrap().success());
        }
        std::fs::rename(&self.objects, &self.away).unwrap();
        std::fs::create_dir(&self.objects).unwrap();
    }

    fn files(directory: &Path) -> Vec<String> {
        let entries = std::fs::read_dir(directory).unwrap();
        let mut names: Vec<String> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        if self.is_mounted {
            let _ = Command::new("umount").arg("--lazy").arg(&self.objects).status();
        }
    }
}

/// By its name alone, and for root, as whom `scripts/test` runs this, by a real mount.
fn ways() -> Vec<bool> {
    if rustix::process::geteuid().is_root() { vec![false, true] } else { vec![false] }
}

fn sections(disk: &Disk, write: &str) -> String {
    format!("[bucket.lake]\nstore = \"{}\"\n{write}\n", disk.objects.display())
}

fn wait_for(condition: &str, is_so: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < Duration::from_secs(60), "{condition}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn metrics(program: &Program) -> String {
    program.ask("/metrics", &format!("Authorization: Bearer {}\r\n", program.token())).unwrap()
}

fn is_readable(program: &Program, key: &str, text: &str) {
    let reply = ask(program.address, "GET", &format!("/lake/{key}"), &[], b"").unwrap();
    assert_eq!((reply.status, reply.text().as_str()), (200, text), "{key}");
}

#[test]
fn away_directory_gets_no_objects_in_its_place() {
    for is_mounted in ways() {
        let directory = tempfile::tempdir().unwrap();
        let disk = Disk::new(directory.path(), is_mounted);
        let mut program =
            Program::start(directory.path(), &sections(&disk, "write = \"back\"\nflush_after = \"0 s\""));
        let stores = |key: &str| {
            assert_eq!(
                ask(program.address, "PUT", &format!("/lake/{key}"), &[], b"kept").unwrap().status,
                200
            );
        };
        for key in ["a", "b", "c"] {
            stores(key);
        }
        wait_for("they are not stored", || metrics(&program).contains("_pending_objects 0\n"));
        // The cache has them: the next start has not.
        program.kill_and_start();
        if is_mounted {
            let plain = Command::new("umount").arg(&disk.objects).output().unwrap();
            assert!(!plain.status.success(), "it can be unmounted by mistake");
        }
        disk.take_away();
        let stores = |key: &str| {
            assert_eq!(
                ask(program.address, "PUT", &format!("/lake/{key}"), &[], b"new").unwrap().status,
                200
            );
        };
        ["b", "d"].into_iter().for_each(stores);
        assert_eq!(ask(program.address, "DELETE", "/lake/c", &[], b"").unwrap().status, 204);
        wait_for("it does not say so", || {
            let ready = program.ask("/health/ready", "").unwrap();
            // Anybody may ask, so it names no bucket.
            metrics(&program).contains("_away_stores 1\n")
                && ready.starts_with("HTTP/1.1 200")
                && ready.contains("1 stores are directories that are not there")
                && !ready.contains("lake")
        });
        wait_for("nothing is tried", || !metrics(&program).contains("_flush_failures_total 0\n"));
        for _ in 0..2 {
            let reply = ask(program.address, "GET", "/lake/a", &[], b"").unwrap();
            assert!(reply.status == 503 && reply.text().contains("is it mounted?"), "{reply:?}");
        }
        assert_eq!(ask(program.address, "HEAD", "/lake/a", &[], b"").unwrap().status, 200);
        is_readable(&program, "d", "new");
        let listed = ask(program.address, "GET", "/lake?list-type=2", &[], b"").unwrap();
        assert_eq!(crate::signed::tags(&listed.text(), "Key"), ["a", "b", "d"]);
        assert_eq!(Disk::files(&disk.objects), [""; 0]);
        assert_eq!(Disk::files(&disk.away), ["a", "b", "c"]);

        disk.bring_back();
        wait_for("it does not go on", || metrics(&program).contains("_pending_objects 0\n"));
        let after = metrics(&program);
        assert!(after.contains("_away_stores 0\n"), "{after}");
        // Nobody else has changed anything.
        assert!(after.contains("_changed_by_others_total 0\n"), "{after}");
        assert_eq!(Disk::files(&disk.objects), ["a", "b", "d"]);
        for (key, text) in [("a", "kept"), ("b", "new"), ("d", "new")] {
            is_readable(&program, key, text);
            assert_eq!(std::fs::read_to_string(disk.objects.join(key)).unwrap(), text);
        }
        let (status, log) = program.stop();
        assert!(status.success() && log.matches("is there again").count() == 1, "{log}");
    }
}

/// Two faults: it goes while an object is being stored there, and the gateway starts again before it is back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn objects_stored_before_unmount_are_confirmed_after_mount() {
    let directory = tempfile::tempdir().unwrap();
    let (disk, local) = (Disk::new(directory.path(), false), directory.path().join("local"));
    let mut ground = Ground::new(in_directory(&disk.objects), BackendKind::Directory);
    ground.root = Some(disk.objects.clone());
    let engine = ground.open(&local).await;
    let bytes = content(1, 70_000);
    // What is stored there tells it from any other.
    put(&engine, "z", &bytes, WriteConditions::default()).await.unwrap();
    while !engine.is_clean() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let (puts, gets) = (&ground.mood.puts, &ground.mood.gets);
    ground.mood.holds_puts.store(true, Ordering::Relaxed);
    let before = puts.load(Ordering::Relaxed);
    put(&engine, "a", &bytes, WriteConditions::default()).await.unwrap();
    while puts.load(Ordering::Relaxed) == before {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    // The store has it, and the answer to whether it has is on its way.
    let before = gets.load(Ordering::Relaxed);
    ground.mood.holds_answers.store(true, Ordering::Relaxed);
    ground.mood.holds_puts.store(false, Ordering::Relaxed);
    while gets.load(Ordering::Relaxed) == before {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    disk.take_away();
    ground.mood.holds_answers.store(false, Ordering::Relaxed);
    until_it_says(&engine, "is it mounted?").await;
    assert_eq!((engine.pending().0, get(&engine, "a", None).await.as_ref()), (1, Ok(&bytes)));
    engine.close().await;
    drop(engine);
    // A start over what is in its place sends it nothing, and goes on once it is back.
    let engine = ground.open(&local).await;
    until_it_says(&engine, "is it mounted?").await;
    assert_eq!((engine.pending().0, get(&engine, "a", None).await.as_ref()), (1, Ok(&bytes)));
    engine.close().await;
    drop(engine);
    assert_eq!(
        (Disk::files(&disk.objects), Disk::files(&disk.away)),
        (Vec::new(), vec!["a".to_owned(), "z".to_owned()])
    );

    disk.bring_back();
    let engine = ground.open(&local).await;
    ground.drain(&engine).await;
    assert_eq!(get(&engine, "a", None).await.as_ref(), Ok(&bytes));
    assert_eq!(ground.stored().await, [("a".to_owned(), bytes.clone()), ("z".to_owned(), bytes.clone())]);
    // And where a deletion is in progress.
    ground.mood.holds_answers.store(true, Ordering::Relaxed);
    let before = gets.load(Ordering::Relaxed);
    delete(&engine, "a").await.unwrap();
    while gets.load(Ordering::Relaxed) == before {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    disk.take_away();
    ground.mood.holds_answers.store(false, Ordering::Relaxed);
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!((engine.pending().0, get(&engine, "a", None).await), (1, Err(GatewayError::NoSuchKey)));
    disk.bring_back();
    ground.drain(&engine).await;
    assert_eq!(ground.stored().await, [("z".to_owned(), bytes)]);
    engine.close().await;
}

async fn until_it_says(engine: &GatewayEngine, message: &str) {
    let begun = Instant::now();
    while !engine.last_failure().is_some_and(|(_, reason)| reason.contains(message)) {
        assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", engine.last_failure());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

fn write(program: &Program, method: &str, path: &str, body: &[u8]) {
    let reply = ask(program.address, method, path, &[], body).unwrap();
    assert!(reply.status == 200 || reply.status == 204, "{method} {path}: {reply:?}");
}

fn is_stored(program: &Program) {
    wait_for("it is not stored", || metrics(program).contains("_pending_objects 0\n"));
}

/// Another delay of writes, from the next start on.
fn flush_after(program: &Program, from: &str, to: &str) {
    let config = std::fs::read_to_string(program.config()).unwrap();
    assert!(config.contains(from));
    std::fs::write(program.config(), config.replace(from, to)).unwrap();
}

#[test]
fn bucket_away_at_start_returns_after_mount() {
    for is_mounted in ways() {
        let directory = tempfile::tempdir().unwrap();
        let disk = Disk::new(directory.path(), is_mounted);
        let other = directory.path().join("other");
        std::fs::create_dir(&other).unwrap();
        let sections = format!(
            "{}[bucket.other]\nstore = \"{}\"\nwrite = \"through\"\n",
            sections(&disk, "write = \"back\"\nflush_after = \"0 s\""),
            other.display()
        );
        let mut program = Program::start(directory.path(), &sections);
        for key in ["a", "b", "c"] {
            write(&program, "PUT", &format!("/lake/{key}"), b"kept");
        }
        is_stored(&program);
        program.kill();
        disk.take_away();
        // Something else that lies there makes it no other case.
        for readme in [false, true] {
            if readme {
                std::fs::write(disk.objects.join("README"), "the disk is mounted here").unwrap();
            }
            program.start_again();
            assert!(metrics(&program).contains("_away_stores 1\n"));
            let reply = ask(program.address, "GET", "/lake/a", &[], b"").unwrap();
            assert!(reply.status == 503 && reply.text().contains("is it mounted?"), "{reply:?}");
            write(&program, "PUT", "/lake/d", b"new");
            is_readable(&program, "d", "new");
            // The others are none the worse for it.
            write(&program, "PUT", "/other/x", b"y");
            assert_eq!(Disk::files(&other), ["x"]);
            if !readme {
                program.kill();
            }
        }
        write(&program, "DELETE", "/lake/c", b"");
        wait_for("nothing is tried", || !metrics(&program).contains("_flush_failures_total 0\n"));
        assert_eq!(Disk::files(&disk.objects), ["README"]);
        assert_eq!(Disk::files(&disk.away), ["a", "b", "c"]);
        std::fs::remove_file(disk.objects.join("README")).unwrap();

        disk.bring_back();
        is_stored(&program);
        assert!(metrics(&program).contains("_away_stores 0\n"));
        assert_eq!(Disk::files(&disk.objects), ["a", "b", "d"]);
        for (key, text) in [("a", "kept"), ("b", "kept"), ("d", "new")] {
            is_readable(&program, key, text);
        }
        // And the next start knows it at once.
        program.kill_and_start();
        assert!(metrics(&program).contains("_away_stores 0\n"));
        let (_, log) = program.stop();
        for message in
            ["lake/a is recorded in", "the directory is empty: is it mounted?", "what to do: mount it"]
        {
            assert!(log.contains(message), "{message} is not in {log}");
        }
        assert!(log.contains("has none of the objects that were stored there: is it mounted?"), "{log}");
    }
}

/// What others delete is withheld one by one; it is no reason to take the directory for another one.
#[test]
fn directory_emptied_by_others_is_still_accepted() {
    let directory = tempfile::tempdir().unwrap();
    let disk = Disk::new(directory.path(), false);
    let mut program =
        Program::start(directory.path(), &sections(&disk, "write = \"back\"\nflush_after = \"0 s\""));
    write(&program, "PUT", "/lake/a", b"kept");
    is_stored(&program);
    program.kill();
    std::fs::remove_file(disk.objects.join("a")).unwrap();
    program.start_again();
    assert!(metrics(&program).contains("_away_stores 0\n"));
    write(&program, "PUT", "/lake/b", b"new");
    is_stored(&program);
    assert_eq!(Disk::files(&disk.objects), ["b"]);
    let reply = ask(program.address, "GET", "/lake/a", &[], b"").unwrap();
    assert!(reply.status == 503 && reply.text().contains("it stays known"), "{reply:?}");
}

/// Nothing tells of that at the first start; at the next one it shows. What was done before counts more, and gets
/// there: a deletion as well.
#[test]
fn replacement_of_empty_directory_is_listed() {
    let directory = tempfile::tempdir().unwrap();
    let disk = Disk::new(directory.path(), false);
    for key in ["a", "b", "c"] {
        std::fs::write(disk.objects.join(key), "there").unwrap();
    }
    disk.take_away();
    let mut program =
        Program::start(directory.path(), &sections(&disk, "write = \"back\"\nflush_after = \"1 h\""));
    for key in ["b", "c"] {
        write(&program, "PUT", &format!("/lake/{key}"), b"new");
    }
    program.kill();
    disk.bring_back();
    program.start_again();
    assert!(metrics(&program).contains("_away_stores 0\n"));
    is_readable(&program, "a", "there");
    is_readable(&program, "b", "new");
    write(&program, "DELETE", "/lake/c", b"");
    program.kill();
    flush_after(&program, "\"1 h\"", "\"0 s\"");
    program.start_again();
    is_stored(&program);
    assert_eq!(Disk::files(&disk.objects), ["a", "b"]);
    assert_eq!(std::fs::read_to_string(disk.objects.join("b")).unwrap(), "new");
    // And from then on it is the one that is expected.
    program.kill();
    disk.take_away();
    program.start_again();
    assert!(metrics(&program).contains("_away_stores 1\n"));
}

/// A name alone makes no other directory the one that is recorded: what it has besides would never be known.
#[test]
fn directory_with_different_file_of_recorded_name_is_listed() {
    let directory = tempfile::tempdir().unwrap();
    let disk = Disk::new(directory.path(), false);
    let mut program =
        Program::start(directory.path(), &sections(&disk, "write = \"back\"\nflush_after = \"0 s\""));
    write(&program, "PUT", "/lake/a", b"kept");
    is_stored(&program);
    program.kill();
    disk.take_away();
    for (key, text) in [("a", "another one"), ("z", "there")] {
        std::fs::write(disk.objects.join(key), text).unwrap();
    }
    program.start_again();
    assert!(metrics(&program).contains("_away_stores 0\n"));
    is_readable(&program, "z", "there");
}

/// What is lost for good keeps nobody from what is in the journal, and from going on with the directory as it is.
#[test]
fn drain_into_empty_directory_accepts_it() {
    let directory = tempfile::tempdir().unwrap();
    let (disk, second) = (Disk::new(directory.path(), false), directory.path().join("second"));
    std::fs::create_dir(&second).unwrap();
    // One that is only not mounted.
    let other = Disk::new(&second, false);
    let back = "write = \"back\"\nflush_after = \"0 s\"";
    let both = sections(&disk, back) + &sections(&other, back).replace("lake", "pond");
    let mut program = Program::start(directory.path(), &both);
    for bucket in ["lake", "pond"] {
        write(&program, "PUT", &format!("/{bucket}/lost"), b"kept");
    }
    is_stored(&program);
    program.kill();
    flush_after(&program, "\"0 s\"", "\"1 h\"");
    program.start_again();
    for bucket in ["lake", "pond"] {
        write(&program, "PUT", &format!("/{bucket}/left"), b"new");
    }
    program.kill();
    disk.take_away();
    other.take_away();
    let drain = |arguments: &[&str]| {
        let output = command()
            .arg("drain")
            .args(arguments)
            .arg(program.config())
            .env("GATEWAY_SECRET", SECRET)
            .output();
        let output = output.unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (code, printed) = drain(&["--timeout", "5"]);
    assert!(code == Some(1) && printed.contains("is it mounted?"), "{code:?} {printed}");
    assert_eq!(Disk::files(&disk.objects), [""; 0]);
    let (code, printed) = drain(&["--into-empty", "sea"]);
    assert!(code == Some(2) && printed.contains("there is no [bucket.sea]"), "{code:?} {printed}");
    let (code, printed) = drain(&["--timeout", "5", "--into-empty", "lake"]);
    assert!(code == Some(1) && printed.contains("lake/lost is recorded in"), "{code:?} {printed}");
    assert_eq!(Disk::files(&disk.objects), ["left"]);
    assert_eq!(Disk::files(&other.objects), [""; 0]);
    std::fs::remove_dir(&other.objects).unwrap();
    std::fs::rename(&other.away, &other.objects).unwrap();
    let (code, printed) = drain(&[]);
    assert!(code == Some(0), "{code:?} {printed}");
    assert_eq!(Disk::files(&other.objects), ["left", "lost"]);
    program.start_again();
    assert!(metrics(&program).contains("_away_stores 0\n"));
    is_readable(&program, "left", "new");
    let reply = ask(program.address, "GET", "/lake/lost", &[], b"").unwrap();
    assert!(reply.status == 503 && reply.text().contains("it stays known"), "{reply:?}");
    write(&program, "DELETE", "/lake/lost", b"");
    assert_eq!(ask(program.address, "GET", "/lake/lost", &[], b"").unwrap().status, 404);
}

/// It would be made on what lies below.
#[test]
fn bucket_creation_under_away_directory_is_refused() {
    for is_mounted in ways() {
        let directory = tempfile::tempdir().unwrap();
        let disk = Disk::new(directory.path(), is_mounted);
        let program = Program::start(
            directory.path(),
            &format!("[new_buckets]\nstore = \"{}\"\nwrite = \"back\"\n", disk.objects.display()),
        );
        write(&program, "PUT", "/first", b"");
        disk.take_away();
        let reply = ask(program.address, "PUT", "/second", &[], b"").unwrap();
        assert!(reply.status == 503 && reply.text().contains("is it mounted?"), "{reply:?}");
        assert_eq!(Disk::files(&disk.objects), [""; 0]);
        // Nor is one made that is not there at all.
        std::fs::remove_dir(&disk.objects).unwrap();
        assert_eq!(ask(program.address, "PUT", "/second", &[], b"").unwrap().status, 503);
        assert!(!disk.objects.exists());
        std::fs::create_dir(&disk.objects).unwrap();
        disk.bring_back();
        write(&program, "PUT", "/second", b"");
        assert_eq!(Disk::files(&disk.objects), ["first", "second"]);
    }
}

/// Below the gateway, while it is stopped: the same files on another disk, as a backup brings them back, and single
/// ones that are lost.
#[test]
fn files_moved_to_another_disk_stay_known() {
    let directory = tempfile::tempdir().unwrap();
    let disk = Disk::new(directory.path(), false);
    let mut program = Program::start(directory.path(), &sections(&disk, "write = \"through\""));
    for key in ["a", "b", "c"] {
        assert_eq!(ask(program.address, "PUT", &format!("/lake/{key}"), &[], b"kept").unwrap().status, 200);
    }
    program.kill();
    std::fs::rename(&disk.objects, &disk.away).unwrap();
    let copied = Command::new("cp").arg("-a").args([&disk.away, &disk.objects]).status().unwrap();
    assert!(copied.success());
    std::fs::remove_file(disk.objects.join("c")).unwrap();
    program.start_again();
    for key in ["a", "b"] {
        let read = || ask(program.address, "GET", &format!("/lake/{key}"), &[], b"").unwrap();
        // The first one finds it out.
        let reply = Some(read()).filter(|reply| reply.status == 200).unwrap_or_else(read);
        assert_eq!((reply.status, reply.text().as_str()), (200, "kept"));
    }
    for _ in 0..2 {
        let reply = ask(program.address, "GET", "/lake/c", &[], b"").unwrap();
        assert!(reply.status == 503 && reply.text().contains("it stays known"), "{reply:?}");
    }
    assert_eq!(ask(program.address, "HEAD", "/lake/c", &[], b"").unwrap().status, 200);
    let metrics = metrics(&program);
    assert!(metrics.contains("\nunderlay_gateway_withheld_by_store_total 2\n"), "{metrics}");
    let (_, log) = program.stop();
    assert_eq!(log.matches("what to do: see that the store is the right one").count(), 1, "{log}");
}
