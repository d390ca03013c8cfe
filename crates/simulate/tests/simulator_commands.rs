//! The commands as a user meets them: what they refuse, how they end, and that nothing is left behind.

use std::fs::{File, OpenOptions};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

fn command(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_underlay-simulate"));
    command.args(arguments).env("TMPDIR", folder).stdin(Stdio::null());
    command
}

fn run(arguments: &[&str]) -> Output {
    let folder = TempDir::new().unwrap();
    let output = command(folder.path(), arguments).output().unwrap();
    assert_empty(folder.path());
    output
}

fn code(output: &Output) -> i32 {
    output.status.code().expect("it ended by itself")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[track_caller]
fn assert_empty(folder: &Path) {
    let left: Vec<_> = folder.read_dir().unwrap().map(|entry| entry.unwrap().path()).collect();
    assert!(left.is_empty(), "left behind: {left:?}");
}

#[track_caller]
fn assert_mistake(arguments: &[&str], words: &str) {
    let output = run(arguments);
    let message = text(&output.stderr);
    assert_eq!(code(&output), 2, "{arguments:?}: {message}");
    assert!(message.contains(words), "{arguments:?}: {message}");
}

#[test]
fn arguments_out_of_bounds_are_mistakes() {
    for jobs in ["0", "257", "18446744073709551615"] {
        assert_mistake(&["run", "--seeds", "1", "--jobs", jobs], "--jobs");
    }
    for minutes in ["nan", "inf", "-1", "0", "1e300", "soon"] {
        assert_mistake(&["run", &format!("--minutes={minutes}")], "a number above 0 and up to");
    }
    assert_mistake(&["run", "--first-seed", "18446744073709551615", "--seeds", "3"], "beyond the last seed");
    assert_mistake(&["run", "--seeds", "0"], "--seeds");
    assert_mistake(&["prove", "--seeds", "0"], "--seeds");
}

#[test]
fn unknown_bug_is_refused_with_all_names() {
    for arguments in [["run", "--bug", "nothing"], ["prove", "--bug", "nothing"]] {
        assert_mistake(&arguments, "CommitNotForced");
    }
    assert_mistake(&["play", "x.json", "--bug", "nothing"], "CommitNotForced");
    assert_mistake(&["shrink", "1", "--bug", "nothing"], "CommitNotForced");
    assert!(text(&run(&["prove", "--help"]).stdout).contains("CommitNotForced"));
}

#[test]
fn last_seed_can_be_played() {
    let output = run(&["run", "--first-seed", "18446744073709551615", "--subject", "layers"]);
    assert_eq!(code(&output), 0, "{}", text(&output.stderr));
    assert!(text(&output.stdout).starts_with("1 seed, "), "{}", text(&output.stdout));
}

#[test]
fn pipe_is_refused_as_script() {
    let folder = TempDir::new().unwrap();
    let pipe = folder.path().join("pipe");
    let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, mode, 0).unwrap();
    assert_mistake(&["play", pipe.to_str().unwrap()], "expected a regular file");
}

#[test]
fn script_unfit_for_disks_is_no_stack_failure() {
    let folder = TempDir::new().unwrap();
    let script = folder.path().join("script.json");
    let setup =
        r#"{"subject": "layers", "tree": "disk", "blocks": 16384, "disk_kib": 512, "yield_every": 0}"#;
    std::fs::write(&script, format!(r#"{{"seed": 1, "setup": {setup}, "steps": []}}"#)).unwrap();
    assert_mistake(&["play", script.to_str().unwrap()], "raise setup.disk_kib");
}

#[test]
fn unwritable_output_is_reported_unlike_closed_pipe() {
    let folder = TempDir::new().unwrap();
    let full = || OpenOptions::new().write(true).open("/dev/full").unwrap();
    for arguments in [&["show", "1"][..], &["run", "--seeds", "1", "--subject", "layers"]] {
        let output = command(folder.path(), arguments).stdout(full()).output().unwrap();
        assert_eq!(code(&output), 4, "{}", text(&output.stderr));
        assert!(text(&output.stderr).contains("the output can't be written"));
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = command(folder.path(), arguments).stdout(writer).output().unwrap();
        assert_eq!((code(&output), text(&output.stderr)), (4, String::new()));
    }
    assert_empty(folder.path());
}

#[test]
fn missing_folder_stops_before_playing() {
    let arguments = ["run", "--seeds", "2"];
    let output = command(Path::new("/nonexistent"), &arguments).output().unwrap();
    assert_eq!((code(&output), text(&output.stdout)), (3, String::new()));
    assert!(text(&output.stderr).contains("set TMPDIR"), "{}", text(&output.stderr));
}

#[test]
fn failures_are_reported_at_once_and_at_interrupt() {
    let folder = TempDir::new().unwrap();
    let mut command =
        command(folder.path(), &["run", "--keep-going", "--subject", "journal", "--bug", "CommitNotForced"]);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(child.stdout.take().unwrap()));
    let first = lines.next().unwrap().unwrap();
    let seed = first.strip_prefix("seed ").and_then(|rest| rest.split(' ').next()).expect(&first).to_owned();
    assert!(first.contains(" fails: "), "{first}");
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    let rest: Vec<String> = lines.map(Result::unwrap).collect();
    assert!(rest.iter().any(|line| line.contains(" of them failed: ") && line.contains(&seed)), "{rest:?}");
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert_empty(folder.path());
}

#[test]
fn stopped_shrink_leaves_shortest_script() {
    let folder = TempDir::new().unwrap();
    let scripts = TempDir::new().unwrap();
    let path = scripts.path().join("short.json");
    let bug = ["--subject", "journal", "--bug", "CommitNotForced"];
    let found = text(&run(&[&["run"], &bug[..]].concat()).stdout);
    let seed = found.strip_prefix("seed ").and_then(|rest| rest.split(' ').next()).expect(&found);
    let arguments = [&["shrink", seed], &bug[..], &["-o"]].concat();
    let mut command = command(folder.path(), &arguments);
    let mut child = command.arg(&path).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(child.stderr.take().unwrap()));
    let first = lines.next().unwrap().unwrap();
    assert!(first.contains(" fails: "), "{first}");
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    lines.for_each(drop);
    assert_eq!(child.wait().unwrap().code(), Some(130));
    let script: Result<underlay_simulate::script::FaultScript, _> =
        serde_json::from_reader(File::open(&path).unwrap());
    assert!(script.is_ok(), "{script:?}");
    assert_empty(folder.path());
}

#[test]
fn unwritable_script_path_is_refused_before_work() {
    let folder = TempDir::new().unwrap();
    for (output, words) in [
        (folder.path().to_owned(), "already exists"),
        (folder.path().join("no/x"), "a file can't be created"),
    ] {
        assert_mistake(&["shrink", "1", "-o", output.to_str().unwrap()], words);
    }
}

#[test]
fn passing_seed_is_reported_as_passed() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("x.json");
    let output = run(&["shrink", "1", "--subject", "layers", "-o", path.to_str().unwrap()]);
    assert_eq!(code(&output), 0);
    assert!(text(&output.stderr).trim_end().ends_with(" passes"), "{}", text(&output.stderr));
    assert_empty(folder.path());
}

/// A player that was killed removes nothing itself.
#[test]
fn dying_player_leaves_no_folder() {
    let folder = TempDir::new().unwrap();
    let mut command =
        command(folder.path(), &["run", "--seeds", "1000000", "--jobs", "1", "--subject", "pool"]);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let is_under_way = || {
        let mut folders = folder.path().read_dir().unwrap().filter_map(Result::ok);
        folders.any(|inner| inner.path().read_dir().is_ok_and(|mut entries| entries.next().is_some()))
    };
    while !is_under_way() && child.try_wait().unwrap().is_none() {
        std::thread::sleep(Duration::from_millis(1));
    }
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(code(&output), 130, "{}", text(&output.stdout));
    assert!(text(&output.stdout).contains(" of virtual time"));
    assert_empty(folder.path());
}
