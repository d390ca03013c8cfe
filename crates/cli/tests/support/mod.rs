//! Runs the real program in its own folder, and looks for what it leaves.

#![allow(dead_code, reason = "each test binary uses a part")]

pub(crate) mod schemas;

use std::io::Read as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

use underlay_record::live::{FEED_FILE, feed_line};
use underlay_record::{FeedEntry, PartsRecord, RunRecord};

pub(crate) struct Playground {
    pub folder: tempfile::TempDir,
}

/// A study that runs in some seconds: tiny, in slow motion, one real system on modelled storages.
pub(crate) const TINY_STUDY: &str = r#"
name = "tiny"
baseline = "hdd"

[system.rocksdb]
memory = "64 MiB"

[storage.hdd]
devices = [{ medium = "hdd-7200-sata", capacity = "1 GiB" }]

[storage.flash]
devices = [{ medium = "ssd-sata", count = 2, capacity = "512 MiB" }]
layout = "stripe"

[workload.ycsb]
records = 100_000
record = { fields = 10, bytes = 100 }
mixes = ["a", "c"]
distribution = "uniform"
threads = 4

[run]
warmup = "200 ms"
duration = "1 s"
repetitions = 1
seed = 7

[scale]
time = 2
"#;

impl Playground {
    pub(crate) fn new() -> Self {
        Playground { folder: tempfile::Builder::new().prefix("underlay-test-").tempdir().unwrap() }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path(name);
        std::fs::write(&path, text).unwrap();
        path
    }

    /// The program, with its own registry so that tests do not remove each other's things.
    pub(crate) fn underlay(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_underlay"));
        command
            .args(arguments)
            .current_dir(self.folder.path())
            .env("UNDERLAY_RUNTIME_DIR", self.path("runtime"))
            .env("NO_COLOR", "1")
            .stdin(Stdio::null());
        command
    }

    pub(crate) fn output(&self, arguments: &[&str]) -> Output {
        self.underlay(arguments).output().unwrap()
    }

    /// Mounts, loop devices and processes that have to do with this playground.
    pub(crate) fn left_behind(&self) -> Vec<String> {
        let folder = self.folder.path().to_str().unwrap();
        let mut found = Vec::new();
        let mounts = std::fs::read_to_string("/proc/mounts").unwrap();
        found.extend(mounts.lines().filter(|line| line.contains(folder)).map(str::to_owned));
        for entry in std::fs::read_dir("/sys/block").unwrap().flatten() {
            let backing = std::fs::read_to_string(entry.path().join("loop/backing_file")).unwrap_or_default();
            if backing.contains(folder) {
                found.push(format!("{} on {}", entry.file_name().to_string_lossy(), backing.trim()));
            }
        }
        for entry in std::fs::read_dir("/proc").unwrap().flatten() {
            let line = std::fs::read_to_string(entry.path().join("cmdline")).unwrap_or_default();
            if line.contains(folder) {
                found.push(format!(
                    "process {}: {}",
                    entry.file_name().to_string_lossy(),
                    line.replace('\0', " ")
                ));
            }
        }
        found
    }
}

/// A run of four cells that is done, without a system or a modelled disk.
pub(crate) fn finished_run(playground: &Playground) {
    playground.write("null.toml", NULL_STUDY);
    std::fs::create_dir_all(playground.path("disk")).unwrap();
    let output = playground.output(&["run", "null.toml", "--out", "out"]);
    assert!(output.status.success(), "{}", stderr(&output));
}

/// Needs no root, no separate file system and hardly any time.
pub(crate) const NULL_STUDY: &str = r#"
name = "null"
title = "A study whose title is longer than a line of a narrow terminal"
baseline = "here"
[system.null]
[storage.here]
paths = ["disk"]
[workload.w]
records = 1_000
record = { fields = 1, bytes = 100 }
mixes = ["a", "c"]
threads = [1, 2]
[run]
warmup = "0 s"
duration = "300 ms"
repetitions = 1
"#;

/// `underlay mount`, ended in order when it is dropped.
pub(crate) struct Mounted(Child);

impl Mounted {
    pub(crate) fn start(playground: &Playground, arguments: &[&str]) -> Mounted {
        Mounted::start_with(playground, arguments, |_| {})
    }

    pub(crate) fn start_with(
        playground: &Playground,
        arguments: &[&str],
        prepare: impl FnOnce(&mut Command),
    ) -> Mounted {
        let mut command = playground.underlay(arguments);
        prepare(&mut command);
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut buffer = [0; 400];
        // It speaks once the disk is there; at its end there is nothing more to read.
        let count = child.stdout.as_mut().unwrap().read(&mut buffer).unwrap();
        let words = String::from_utf8_lossy(&buffer[..count]).into_owned();
        let mounted = Mounted(child);
        assert!(words.contains("is mounted on"), "{words}");
        mounted
    }

    /// Ends it in order.
    pub(crate) fn end(mut self) -> ExitStatus {
        self.ask_to_end()
    }

    fn ask_to_end(&mut self) -> ExitStatus {
        let pid = libc::pid_t::try_from(self.0.id()).unwrap();
        // A child that has been waited for is not asked again: its id may be another's by now.
        if self.0.try_wait().unwrap().is_none() {
            // SAFETY: the child has not been waited for, so its id is still its own.
            unsafe { libc::kill(pid, libc::SIGTERM) };
        }
        self.0.wait().unwrap()
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = self.ask_to_end();
    }
}

/// Modelled storage needs root, FUSE and loop devices. In CI that is a failure, elsewhere it is said.
pub(crate) fn can_mount() -> bool {
    let able = rustix_is_root() && Path::new("/dev/fuse").exists() && Path::new("/dev/loop-control").exists();
    assert!(
        able || std::env::var_os("CI").is_none(),
        "CI must run these tests as root with FUSE and loop devices"
    );
    if !able {
        eprintln!(
            "NOT RUN: this test mounts modelled storage, which needs root, /dev/fuse and /dev/loop-control"
        );
    }
    able
}

fn rustix_is_root() -> bool {
    // SAFETY: geteuid cannot fail and touches no memory.
    unsafe { libc::geteuid() == 0 }
}

pub(crate) fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

pub(crate) fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Every record of a run, in the order that they were made in.
pub(crate) fn records(run: &Path) -> Vec<RunRecord> {
    let paths = std::fs::read_dir(run.join("cells")).unwrap().map(|entry| entry.unwrap().path());
    // Beside them are logs.
    let mut records: Vec<RunRecord> = paths
        .filter(|path| path.extension().is_some_and(|ending| ending == "json"))
        .map(|path| serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap())
        .collect();
    records.sort_by_key(|record| record.position);
    records
}

/// What the systems of a run consisted of, as its feed tells it, cell by cell.
pub(crate) fn parts(run: &Path) -> Vec<PartsRecord> {
    let feed = std::fs::read_to_string(run.join(FEED_FILE)).unwrap();
    let grounds = feed.lines().filter_map(feed_line).filter_map(|line| match line.entry {
        FeedEntry::Ground { parts, .. } => parts,
        _ => None,
    });
    grounds.collect()
}

pub(crate) fn wait_for(condition: &str, limit: Duration, mut happened: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !happened() {
        assert!(begun.elapsed() < limit, "waited {limit:?} for {condition} in vain");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// A file for this user alone.
pub(crate) fn secret(playground: &Playground, name: &str, text: &str) {
    let path = playground.write(name, text);
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).unwrap();
}

/// A program instead of ssh that runs the command right here.
pub(crate) fn fake_ssh(playground: &Playground, script: &str) -> String {
    let folder = playground.path("bin");
    std::fs::create_dir_all(&folder).unwrap();
    let program = folder.join("ssh");
    std::fs::write(&program, format!("#!/bin/sh\n{script}\n")).unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    format!("{}:{}", folder.display(), std::env::var("PATH").unwrap())
}
