//! The program as its users meet it: what it prints, and by which code it ends.

use std::process::{Command, Output};

fn simulate(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_underlay-gateway-simulate")).args(arguments).output().unwrap()
}

#[track_caller]
fn check(arguments: &[&str], code: i32, words: &str) -> String {
    let output = simulate(arguments);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let printed = text(&output.stdout) + &text(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{printed}");
    assert!(printed.contains(words), "{printed}");
    text(&output.stdout)
}

#[test]
fn seeds_pass() {
    check(&["run", "--seeds", "6", "--minutes", "20", "--jobs", "2"], 0, "6 seeds, ");
}

#[test]
fn planted_bug_is_found() {
    let arguments = ["run", "--seeds", "20", "--scene", "odd-headers", "--bug", "HeaderPanicsFlusher"];
    check(&arguments, 1, "--scene odd-headers --bug HeaderPanicsFlusher -o script.json makes it short");
}

#[test]
fn script_replay_is_deterministic() {
    let script = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(script.path(), check(&["show", "3", "--scene", "renames"], 0, "\"seed\": 3")).unwrap();
    let path = script.path().to_str().unwrap();
    let report = check(&["play", path], 0, "\"failure\": null");
    assert!(report.contains("\"trace\": "), "{report}");
    assert_eq!(check(&["play", path], 0, "\"failure\": null"), report);
}

/// Each of a failure that was found and mended.
#[test]
fn kept_scripts_pass() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scripts");
    for entry in folder.read_dir().unwrap() {
        check(&["play", entry.unwrap().path().to_str().unwrap()], 0, "\"failure\": null");
    }
}

#[test]
fn mistakes_are_told() {
    check(&["run", "--seeds", "0"], 2, "--seeds");
    check(&["run", "--scene", "none"], 2, "there is no such scene; there are odd-headers, ");
    check(&["prove", "--bug", "None"], 2, "there is no such bug; there are ");
    check(&["play", "/nowhere/script.json"], 2, "/nowhere/script.json: cannot be read");
    let script = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(script.path(), "{\"seed\": 1}").unwrap();
    check(&["play", script.path().to_str().unwrap()], 2, "it is not a script: missing field `setup`");
}
