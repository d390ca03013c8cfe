//! More clients, each with the settings that it has unless it is told otherwise, but for the endpoint and the keys.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use crate::clients::{ask, assert_same, python, some_files};
use crate::program::{KEY, Program, SECRET};

/// The name that clients in virtual-hosted style use.
const HOST: &str = "gateway.example";
const JAVASCRIPT: [&str; 3] = ["@aws-sdk/client-s3@3.1169.0", "@aws-sdk/lib-storage@3.1169.0", "minio@8.0.7"];

/// A directory with the JavaScript clients, made once below `target/`, as Python's is.
fn modules() -> &'static Path {
    static MODULES: OnceLock<PathBuf> = OnceLock::new();
    MODULES.get_or_init(|| {
        let versions = JAVASCRIPT.map(|package| package.replace(['@', '/'], "-")).join("-");
        let home = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("javascript{versions}"));
        let lock = std::fs::File::create(home.with_extension("lock")).unwrap();
        lock.lock().unwrap();
        if home.join("complete").exists() {
            return home;
        }
        let _ = std::fs::remove_dir_all(&home);
        std::fs::create_dir_all(&home).unwrap();
        std::fs::write(home.join("package.json"), "{\"private\": true}\n").unwrap();
        let output = Command::new("npm")
            .args(["install", "--silent", "--no-audit", "--no-fund", "--ignore-scripts"])
            .args(JAVASCRIPT)
            .current_dir(&home)
            .output()
            .expect("npm (scripts/install-packages test)");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        std::fs::write(home.join("complete"), "").unwrap();
        home
    })
}

fn start(directory: &Path) -> Program {
    Program::start_over_directory(directory, &format!("hosts = [\"{HOST}\"]\n"))
}

fn here(script: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/gateway").join(script)
}

/// Its default region is `US`, which no signature may have: it goes on with the one that the answer names.
#[test]
fn s3cmd_works_with_its_default_region() {
    let directory = tempfile::tempdir().unwrap();
    let program = start(directory.path());
    let settings = format!(
        "[default]\naccess_key = {KEY}\nsecret_key = {SECRET}\nhost_base = {address}\nhost_bucket = {address}\nuse_https = False\nbucket_location = US\n",
        address = program.address
    );
    std::fs::write(directory.path().join(".s3cfg"), settings).unwrap();
    let s3cmd = python().with_file_name("s3cmd");
    let run = |arguments: &[&str]| {
        let mut command = Command::new(python());
        // The home is the test's, so the settings are found.
        command.arg(&s3cmd).arg("--no-progress").args(arguments);
        ask(&program, directory.path(), &mut command)
    };
    let files = some_files(directory.path());
    assert!(run(&["ls"]).contains("s3://lake"));
    run(&["put", "--recursive", "--multipart-chunk-size-mb=5", "files/", "s3://lake/s3cmd/"]);
    run(&["mv", "--recursive", "s3://lake/s3cmd/", "s3://lake/s3cmd-moved/"]);
    let listed = run(&["ls", "--recursive", "s3://lake/s3cmd-moved/"]);
    assert_eq!(listed.lines().count(), 3, "{listed}");
    std::fs::create_dir(directory.path().join("back")).unwrap();
    run(&["sync", "s3://lake/s3cmd-moved/", "back/"]);
    assert_same(&files, &directory.path().join("back"));
    run(&["del", "--recursive", "--force", "s3://lake/s3cmd-moved/"]);
    assert_eq!(run(&["ls", "--recursive", "s3://lake"]), "");
}

#[test]
fn minio_py_works_unchanged() {
    let directory = tempfile::tempdir().unwrap();
    let program = start(directory.path());
    let mut command = Command::new(python());
    command.arg(here("minio_client.py")).args([&program.address.to_string(), "lake", KEY, SECRET]);
    ask(&program, directory.path(), &mut command);
}

#[test]
fn javascript_clients_work_unchanged() {
    let directory = tempfile::tempdir().unwrap();
    let program = start(directory.path());
    let mut command = Command::new("node");
    command.arg(here("js_clients.cjs")).arg(modules()).args([
        HOST,
        &program.address.port().to_string(),
        "lake",
    ]);
    ask(&program, directory.path(), &mut command);
}
