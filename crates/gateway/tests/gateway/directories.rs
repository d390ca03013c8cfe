//! Directories that can't be stores, and what writes that were broken off leave in those that can.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::program::{Program, command};
use crate::signed::ask;

fn over(store: &Path) -> String {
    format!("[bucket.lake]\nstore = \"{}\"\n", store.display())
}

/// A link hides from the configuration what the start finds out.
#[test]
fn store_in_local_directory_is_refused_at_start() {
    for to in ["local", "local/journal", "local/store", "."] {
        let directory = tempfile::tempdir().unwrap();
        for name in ["local/journal", "local/store"] {
            std::fs::create_dir_all(directory.path().join(name)).unwrap();
            let private = std::fs::Permissions::from_mode(0o700);
            std::fs::set_permissions(directory.path().join(name), private.clone()).unwrap();
            std::fs::set_permissions(directory.path().join("local"), private).unwrap();
        }
        let link = directory.path().join("store");
        std::os::unix::fs::symlink(directory.path().join(to), &link).unwrap();
        let mut program = Program::start_without_waiting(directory.path(), "", &over(&link));
        let (status, log) = program.wait_end();
        assert_eq!(status.code(), Some(4), "{to}: {log}");
        assert!(log.contains("lie in each other") && log.contains("what to do"), "{to}: {log}");
    }
    // What the configuration shows is said of it, before anything is done.
    let directory = tempfile::tempdir().unwrap();
    let inside = directory.path().join("local/store");
    let mut program = Program::start_without_waiting(directory.path(), "", &over(&inside));
    let (status, log) = program.wait_end();
    assert_eq!(status.code(), Some(2), "{log}");
    assert!(log.contains("lie in each other") && !directory.path().join("local").exists(), "{log}");
}

/// Unmounts it with the test.
struct Mounted(PathBuf);

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).status();
    }
}

fn succeeds(command: &mut Command) -> bool {
    command.output().is_ok_and(|output| output.status.success())
}

/// Where such a file system can be had; what it answers is tried in `store/one_name.rs` everywhere.
#[test]
fn case_folding_directory_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let (image, place) = (directory.path().join("image"), directory.path().join("disk"));
    std::fs::create_dir(&place).unwrap();
    std::fs::File::create(&image).unwrap().set_len(64 << 20).unwrap();
    let is_mounted = rustix::process::geteuid().is_root()
        && succeeds(Command::new("mkfs.ext4").args(["-q", "-F", "-O", "casefold"]).arg(&image))
        && succeeds(Command::new("mount").args(["-o", "loop"]).args([&image, &place]));
    if !is_mounted {
        return;
    }
    let _mounted = Mounted(place.clone());
    let objects = place.join("objects");
    std::fs::create_dir(&objects).unwrap();
    let mut program = Program::start(directory.path(), &over(&objects));
    assert_eq!(
        ask(program.address, "PUT", "/lake/a", &[], b"x").unwrap().status,
        200,
        "it folds nothing yet"
    );
    program.kill();
    let folding = place.join("folding");
    std::fs::create_dir(&folding).unwrap();
    if !succeeds(Command::new("chattr").arg("+F").arg(&folding)) {
        return;
    }
    let other = tempfile::tempdir().unwrap();
    let mut program = Program::start_without_waiting(other.path(), "", &over(&folding));
    let (status, log) = program.wait_end();
    assert_eq!(status.code(), Some(4), "{log}");
    assert!(log.contains("does not tell small letters from capitals") && log.contains("what to do"), "{log}");
    assert_eq!(std::fs::read_dir(&folding).unwrap().count(), 0, "the trial has left something");
}

#[test]
fn leftovers_of_interrupted_writes_are_counted_and_removed() {
    let directory = tempfile::tempdir().unwrap();
    let objects = directory.path().join("objects");
    std::fs::create_dir(&objects).unwrap();
    let mut program = Program::start(directory.path(), &over(&objects));
    assert_eq!(ask(program.address, "PUT", "/lake/a/kept", &[], b"kept").unwrap().status, 200);
    program.kill();
    for name in ["a/kept#1", "gone/k#3"] {
        let path = objects.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, vec![1; 5000]).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    }
    // What is as young as the look might still be written to.
    std::thread::sleep(Duration::from_millis(2100));
    let run = |subcommand: &str| {
        let output = command()
            .arg(subcommand)
            .arg(directory.path().join("gateway.toml"))
            .env("GATEWAY_SECRET", "x")
            .output();
        let output = output.unwrap();
        let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        assert_eq!(output.status.code(), Some(0), "{text}");
        text
    };
    let text = run("check");
    assert!(text.contains("2 files of writes that were broken off"), "{text}");
    assert!(objects.join("a/kept#1").exists(), "`check` changes nothing");
    let text = run("repair");
    assert!(text.contains("removed 2 files") && text.contains("a/kept#1"), "{text}");
    assert!(!objects.join("a/kept#1").exists() && !objects.join("gone").exists());
    assert!(!run("check").contains("broken off"));
    program.start_again();
    assert_eq!(ask(program.address, "GET", "/lake/a/kept", &[], b"").unwrap().text(), "kept");
    // The name of the directory that had nothing else is free.
    assert_eq!(ask(program.address, "PUT", "/lake/gone", &[], b"new").unwrap().status, 200);
}
