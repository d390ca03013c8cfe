//! `underlay ycsb`: what it refuses before anything is started, and what a signal leaves behind.

mod support;

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{ExitStatus, Stdio};

use support::{Playground, stderr, stdout};

/// A command that a signal ended, and what it said.
struct Interrupted {
    status: ExitStatus,
    out: String,
    err: String,
}

/// Starts the command with status lines, and sends it a signal as soon as one of them counts operations.
fn interrupted(playground: &Playground, arguments: &[&str]) -> Interrupted {
    let mut child = playground
        .underlay(&[arguments, &["-s", "-p", "status.interval=1"]].concat())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut reader = BufReader::new(child.stderr.take().unwrap());
    let mut err = String::new();
    while !err.lines().any(|line| line.contains(" operations;") && !line.contains(" 0 operations;")) {
        assert_ne!(reader.read_line(&mut err).unwrap(), 0, "it ended by itself: {err}");
    }
    // SAFETY: the child has not been waited for, so its id is still its own.
    unsafe { libc::kill(libc::pid_t::try_from(child.id()).unwrap(), libc::SIGINT) };
    std::io::Read::read_to_string(&mut reader, &mut err).unwrap();
    let output = child.wait_with_output().unwrap();
    Interrupted { status: output.status, out: stdout(&output), err }
}

fn is_written(file: &Path) -> bool {
    file.metadata().is_ok_and(|file| file.len() > 0)
}

#[test]
fn signal_keeps_measured_part() {
    let playground = Playground::new();
    let arguments = ["ycsb", "run", "null", "--mix", "a", "--duration", "3600", "--hlog", "hlog"];
    let export = ["-p", "exportfile=figures", "-p", "measurement.interval=op"];
    let Interrupted { status, err, .. } = interrupted(&playground, &[&arguments[..], &export].concat());
    assert_eq!(status.code(), Some(130), "{err}");
    assert!(err.contains("stopped: the figures are those of the part that was measured by then\n"), "{err}");
    let figures = std::fs::read_to_string(playground.path("figures")).unwrap();
    assert!(figures.contains("[READ], Operations, "), "{figures}");
    assert!(is_written(&playground.path("hlog")));
    // As JSON, and every operation by itself. A rate, for otherwise there would be millions.
    let arguments = [
        "ycsb",
        "run",
        "null",
        "--mix",
        "c",
        "--duration",
        "3600",
        "--rate",
        "1000",
        "--json",
        "--raw",
        "raw",
    ];
    let Interrupted { status, out, err } = interrupted(&playground, &arguments);
    assert_eq!(status.code(), Some(130), "{err}");
    let measured: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert!(measured["operations"].as_u64().unwrap() > 0);
    assert!(is_written(&playground.path("raw")));
}

#[test]
fn signal_keeps_loaded_records() {
    let playground = Playground::new();
    let records = "recordcount=1000000000";
    let load = ["ycsb", "load", "rocksdb", "--dir", "db", "-p", records];
    let Interrupted { status, out, err } = interrupted(&playground, &load);
    assert_eq!(status.code(), Some(130), "{err}");
    assert!(out.contains("[INSERT], Operations, "), "{out}");
    let expected = format!("the records loaded so far are in {}", playground.path("db").display());
    assert!(err.contains(&expected), "{err}");
    let run = ["ycsb", "run", "rocksdb", "--dir", "db", "-p", "recordcount=100", "-p", "operationcount=200"];
    let output = playground.output(&[&run[..], &["-p", "requestdistribution=uniform"]].concat());
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(!stdout(&output).contains("NOT_FOUND"), "{}", stdout(&output));
    // The search ends too, and has nothing to show.
    let search = ["ycsb", "run", "rocksdb", "--dir", "db", "-p", "recordcount=100", "--mix", "c"];
    let mut child = playground
        .underlay(&[&search[..], &["--rate", "100", "--find-rate", "p99=1s", "--step", "1"]].concat())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut first = String::new();
    let mut reader = BufReader::new(child.stderr.take().unwrap());
    reader.read_line(&mut first).unwrap();
    // SAFETY: the child has not been waited for, so its id is still its own.
    unsafe { libc::kill(libc::pid_t::try_from(child.id()).unwrap(), libc::SIGINT) };
    let mut rest = String::new();
    std::io::Read::read_to_string(&mut reader, &mut rest).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130), "{first}{rest}");
    assert!(rest.contains("stopped before the search had found a rate"), "{first}{rest}");
    assert_eq!(playground.left_behind(), [""; 0]);
}

#[test]
fn run_without_data_creates_no_database() {
    let playground = Playground::new();
    std::fs::create_dir(playground.path("empty")).unwrap();
    // What a load leaves that was stopped before it began.
    std::fs::create_dir_all(playground.path("begun/rocksdb")).unwrap();
    for directory in ["absent", "empty", "begun"] {
        let output = playground.output(&["ycsb", "run", "rocksdb", "--dir", directory, "--duration", "1"]);
        assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
        let message = stderr(&output);
        assert!(message.contains(&format!("no rocksdb data in {directory}: load some first")), "{message}");
        assert!(message.contains(&format!("`underlay ycsb load rocksdb --dir {directory}`")), "{message}");
    }
    assert!(!playground.path("absent").exists());
    assert_eq!(std::fs::read_dir(playground.path("empty")).unwrap().count(), 0);
    // Inserts need nothing that is there before.
    let inserts = ["-p", "insertproportion=1", "-p", "readproportion=0", "-p", "updateproportion=0"];
    let run = ["ycsb", "run", "rocksdb", "--dir", "new", "-p", "recordcount=10", "-p", "operationcount=10"];
    let output = playground.output(&[&run[..], &inserts].concat());
    assert!(output.status.success(), "{}", stderr(&output));
}

#[test]
fn impossible_run_is_refused_before_start() {
    let playground = Playground::new();
    let cases: [(&[&str], &str); 6] = [
        (
            &["run", "null", "--duration", "1", "--hlog", "x", "--raw", "x"],
            "x is named for two outputs: name a file for each",
        ),
        (&["run", "hadoop", "--dir", "here"], "hadoop runs jobs, not YCSB workloads: `underlay new my-jobs"),
        (&["load", "hadoop", "--dir", "here"], "`underlay new my-jobs --system hadoop`"),
        (
            &["run", "null", "--duration", "1e300"],
            "--duration is 1e300: expected a number of seconds from 0 to 31536000",
        ),
        (&["run", "null", "--warmup", "1e300"], "--warmup is 1e300: expected"),
        (
            &["run", "null", "--rate", "9", "--find-rate", "p99=1s", "--step", "1e300"],
            "--step is 1e300: expected",
        ),
    ];
    for (arguments, expected) in cases {
        let output = playground.output(&[&["ycsb"], arguments].concat());
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {}", stderr(&output));
        let message = stderr(&output);
        assert!(message.contains(expected) && message.len() < 300, "{arguments:?}: {message}");
    }
    assert!(!playground.path("here").exists());
}
