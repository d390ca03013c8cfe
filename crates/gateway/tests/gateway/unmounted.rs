//! A store in a directory that is not mounted, for a while or at the start: what is in its place is another one.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use underlay_gateway::engine::Conditions;
use underlay_gateway::errors::Error;
use underlay_gateway::store::Kind;

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
            // Whoever has it open keeps a plain `umount` from it.
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

fn wait_for(what: &str, is_so: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < Duration::from_secs(60), "{what}");
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
fn nothing_is_stored_in_the_place_of_a_directory_that_is_away() {
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
            metrics(&program).contains("_away_stores 1\n") && ready.contains("bucket lake is not there")
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
async fn what_was_stored_when_it_went_is_confirmed_where_it_is() {
    let directory = tempfile::tempdir().unwrap();
    let (disk, local) = (Disk::new(directory.path(), false), directory.path().join("local"));
    let mut ground = Ground::new(in_directory(&disk.objects), Kind::Directory);
    ground.root = Some(disk.objects.clone());
    let engine = ground.open(&local).await;
    let bytes = content(1, 70_000);
    let (puts, gets) = (&ground.mood.puts, &ground.mood.gets);
    ground.mood.holds_puts.store(true, Ordering::Relaxed);
    put(&engine, "a", &bytes, Conditions::default()).await.unwrap();
    while puts.load(Ordering::Relaxed) == 0 {
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
    let begun = Instant::now();
    while !engine.last_failure().is_some_and(|(_, why)| why.contains("is it mounted?")) {
        assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", engine.last_failure());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!((engine.pending().0, get(&engine, "a", None).await.as_ref()), (1, Ok(&bytes)));
    engine.close().await;
    drop(engine);
    let refused = |tried: Result<_, String>| tried.map(drop).unwrap_err();
    let mut why = refused(ground.try_open(&local).await);
    for _ in 0..400 {
        // The engine before may still be letting go.
        if why.contains("is it mounted?") {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
        why = refused(ground.try_open(&local).await);
    }
    assert!(why.contains("1 objects are recorded in") && why.contains("is empty"), "{why}");
    assert_eq!((Disk::files(&disk.objects), Disk::files(&disk.away)), (Vec::new(), vec!["a".to_owned()]));

    disk.bring_back();
    let engine = ground.open(&local).await;
    ground.drain(&engine).await;
    assert_eq!(get(&engine, "a", None).await.as_ref(), Ok(&bytes));
    assert_eq!(ground.stored().await, [("a".to_owned(), bytes)]);
    // And where a deletion is under way.
    ground.mood.holds_answers.store(true, Ordering::Relaxed);
    let before = gets.load(Ordering::Relaxed);
    delete(&engine, "a").await.unwrap();
    while gets.load(Ordering::Relaxed) == before {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    disk.take_away();
    ground.mood.holds_answers.store(false, Ordering::Relaxed);
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!((engine.pending().0, get(&engine, "a", None).await), (1, Err(Error::NoSuchKey)));
    disk.bring_back();
    ground.drain(&engine).await;
    assert!(ground.stored().await.is_empty());
    engine.close().await;
}

#[test]
fn a_start_over_a_directory_without_what_was_stored_there_is_refused() {
    for is_mounted in ways() {
        let directory = tempfile::tempdir().unwrap();
        let disk = Disk::new(directory.path(), is_mounted);
        let mut program =
            Program::start(directory.path(), &sections(&disk, "write = \"back\"\nflush_after = \"0 s\""));
        for key in ["a", "b"] {
            assert_eq!(
                ask(program.address, "PUT", &format!("/lake/{key}"), &[], b"kept").unwrap().status,
                200
            );
        }
        wait_for("they are not stored", || metrics(&program).contains("_pending_objects 0\n"));
        program.kill();
        disk.take_away();
        let log = program.start_in_vain();
        assert!(
            log.contains("2 objects are recorded in")
                && log.contains("the directory is empty: is it mounted?"),
            "{log}"
        );
        assert!(log.contains("what to do: mount it"), "{log}");
        // Something else that lies there makes it no other case.
        std::fs::write(disk.objects.join("README"), "the disk is mounted here").unwrap();
        let log = program.start_in_vain();
        assert!(log.contains("the directory has none of them: is it mounted?"), "{log}");
        std::fs::remove_file(disk.objects.join("README")).unwrap();

        disk.bring_back();
        program.start_again();
        for key in ["a", "b"] {
            is_readable(&program, key, "kept");
        }
        // All of it is to be deleted, and that would come to nothing where nothing is.
        let config = std::fs::read_to_string(program.config()).unwrap();
        program.kill();
        std::fs::write(program.config(), config.replace("\"0 s\"", "\"1 h\"")).unwrap();
        program.start_again();
        for key in ["a", "b"] {
            assert_eq!(
                ask(program.address, "DELETE", &format!("/lake/{key}"), &[], b"").unwrap().status,
                204
            );
        }
        assert_eq!(ask(program.address, "PUT", "/lake/c", &[], b"new").unwrap().status, 200);
        program.kill();
        disk.take_away();
        let log = program.start_in_vain();
        assert_eq!(log.matches("2 objects are recorded in").count(), 3, "{log}");
        disk.bring_back();
        program.start_again();
        let (status, log) = program.stop();
        assert!(status.success(), "{log}");
        assert_eq!(Disk::files(&disk.objects), ["c"]);
    }
}

/// Nothing tells of that at the first start; at the next one it shows.
#[test]
fn what_an_empty_directory_is_exchanged_for_is_listed() {
    let directory = tempfile::tempdir().unwrap();
    let disk = Disk::new(directory.path(), false);
    for key in ["a", "b"] {
        std::fs::write(disk.objects.join(key), "there").unwrap();
    }
    disk.take_away();
    let mut program =
        Program::start(directory.path(), &sections(&disk, "write = \"back\"\nflush_after = \"1 h\""));
    assert_eq!(ask(program.address, "PUT", "/lake/b", &[], b"new").unwrap().status, 200);
    program.kill();
    disk.bring_back();
    program.start_again();
    is_readable(&program, "a", "there");
    is_readable(&program, "b", "new");
    // And from then on it is the one that is expected.
    program.kill();
    disk.take_away();
    let log = program.start_in_vain();
    assert!(log.contains("1 objects are recorded in"), "{log}");
}

/// What is lost for good keeps nobody from what is in the journal.
#[test]
fn a_drain_into_an_empty_directory_stores_what_is_left() {
    let directory = tempfile::tempdir().unwrap();
    let disk = Disk::new(directory.path(), false);
    let mut program =
        Program::start(directory.path(), &sections(&disk, "write = \"back\"\nflush_after = \"0 s\""));
    assert_eq!(ask(program.address, "PUT", "/lake/lost", &[], b"kept").unwrap().status, 200);
    wait_for("it is not stored", || metrics(&program).contains("_pending_objects 0\n"));
    program.kill();
    let config = std::fs::read_to_string(program.config()).unwrap();
    std::fs::write(program.config(), config.replace("\"0 s\"", "\"1 h\"")).unwrap();
    program.start_again();
    assert_eq!(ask(program.address, "PUT", "/lake/left", &[], b"new").unwrap().status, 200);
    program.kill();
    disk.take_away();
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
    let (code, said) = drain(&[]);
    assert!(code == Some(4) && said.contains("is it mounted?"), "{code:?} {said}");
    assert_eq!(Disk::files(&disk.objects), [""; 0]);
    let (code, said) = drain(&["--into-empty"]);
    assert!(code == Some(0) && said.contains("1 objects are recorded in"), "{code:?} {said}");
    assert_eq!(Disk::files(&disk.objects), ["left"]);
    // With a local directory that knows nothing of the lost one, it is not there.
    std::fs::rename(directory.path().join("local"), directory.path().join("former")).unwrap();
    program.start_again();
    is_readable(&program, "left", "new");
    assert_eq!(ask(program.address, "GET", "/lake/lost", &[], b"").unwrap().status, 404);
}

/// Below the gateway, while it is stopped: the same files on another disk, as a backup brings them back, and single ones that are lost.
#[test]
fn files_on_another_disk_are_the_same_and_lost_ones_stay_known() {
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
