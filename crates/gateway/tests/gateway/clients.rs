//! Real clients: boto3 over everything it can do, the AWS CLI, rclone, DuckDB, and `object_store`, through which one
//! gateway stands behind another.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use crate::program::{KEY, Program, SECRET};
use crate::signed;

const BOTO3: &str = "boto3==1.40.61";
/// Of the same botocore.
const AWS_CLI: &str = "awscli==1.42.61";

const S3CMD: &str = "s3cmd==2.4.0";
const MINIO: &str = "minio==7.2.20";

const DUCKDB: &str = "duckdb==1.5.5";
/// DuckDB's reader of S3, of the same version: DuckDB itself would fetch it from a server of its own.
const DUCKDB_HTTPFS: &str = "duckdb-extension-httpfs==1.5.5";

/// A Python with boto3, the AWS CLI, DuckDB, s3cmd and minio-py, made once below `target/`. The tests of a process run
/// at the same time, and so may those of two processes: the first one makes it and the others wait.
pub(crate) fn python() -> &'static Path {
    static PYTHON: OnceLock<PathBuf> = OnceLock::new();
    PYTHON.get_or_init(make_python)
}

fn make_python() -> PathBuf {
    let name = [BOTO3, AWS_CLI, DUCKDB, S3CMD, MINIO].map(|package| package.replace("==", "-")).join("-");
    let home = make_once(&name, |home| {
        let run = |command: &mut Command| {
            let output = command.output().expect("python3 and its venv module (on Debian: python3-venv)");
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        };
        run(Command::new("python3").args(["-m", "venv"]).arg(home));
        run(Command::new(home.join("bin/python"))
            .args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"])
            .args([BOTO3, AWS_CLI, DUCKDB, DUCKDB_HTTPFS, S3CMD, MINIO]));
    });
    home.join("bin/python")
}

/// A directory of this name below `target/`, which `make` fills unless an earlier run has done so. Others wait
/// meanwhile.
pub(crate) fn make_once(name: &str, make: impl FnOnce(&Path)) -> PathBuf {
    let home = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let lock = std::fs::File::create(home.with_extension("lock")).unwrap();
    lock.lock().unwrap();
    if !home.join("complete").exists() {
        // What an earlier attempt left half-made is in the way.
        let _ = std::fs::remove_dir_all(&home);
        std::fs::create_dir_all(&home).unwrap();
        make(&home);
        std::fs::write(home.join("complete"), "").unwrap();
    }
    home
}

/// What any client of AWS's reads.
const KEYS: [(&str, &str); 4] = [
    ("AWS_ACCESS_KEY_ID", KEY),
    ("AWS_SECRET_ACCESS_KEY", SECRET),
    ("AWS_DEFAULT_REGION", "us-east-1"),
    ("AWS_EC2_METADATA_DISABLED", "true"),
];

fn assert_succeeded(program: &Program, label: &str, output: &Output) {
    assert!(
        output.status.success(),
        "{label}\n{}{}\n{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
        std::fs::read_to_string(program.directory.join("gateway.toml.log")).unwrap_or_default()
    );
}

fn run_script(program: &Program, bucket: &str, mode: &str) {
    run_script_at(program, &format!("http://{}", program.address), None, bucket, mode);
}

fn run_script_at(program: &Program, endpoint: &str, authority: Option<&Path>, bucket: &str, mode: &str) {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/gateway/boto3_client.py");
    let output = Command::new(python())
        .arg(script)
        .args([endpoint, bucket, mode])
        .envs(authority.map(|file| ("AWS_CA_BUNDLE", file)))
        .envs(KEYS)
        .output()
        .unwrap();
    assert_succeeded(program, mode, &output);
}

/// Runs a client's program with the keys, and returns what it printed.
pub(crate) fn ask(program: &Program, directory: &Path, command: &mut Command) -> String {
    let output = command
        .current_dir(directory)
        // The settings of the user who runs the test must not count.
        .env("HOME", directory)
        // rclone refuses any.
        .env_remove("AWS_CA_BUNDLE")
        .envs(KEYS)
        .output()
        .unwrap_or_else(|error| panic!("{command:?}: {error} (scripts/install-packages test)"));
    assert_succeeded(program, &format!("{command:?}"), &output);
    String::from_utf8(output.stdout).unwrap()
}

/// A directory with a small file, one of several parts, and one further down.
pub(crate) fn some_files(directory: &Path) -> PathBuf {
    let files = directory.join("files");
    std::fs::create_dir_all(files.join("further/down")).unwrap();
    std::fs::write(files.join("small"), "a few bytes").unwrap();
    std::fs::write(files.join("long"), crate::rig::content(7, 20 << 20)).unwrap();
    std::fs::write(files.join("further/down/a name with spaces, + and %"), "more").unwrap();
    files
}

pub(crate) fn assert_same(one: &Path, other: &Path) {
    let output = Command::new("diff").arg("-r").args([one, other]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}

/// The AWS CLI: a tree there, renamed by the store, listed, back again, and gone.
fn aws_cli(program: &Program, directory: &Path) {
    let aws = python().with_file_name("aws");
    let endpoint = format!("http://{}", program.address);
    let run = |arguments: &[&str]| {
        let mut command = Command::new(&aws);
        command.args(["--endpoint-url", &endpoint]).args(arguments);
        ask(program, directory, &mut command)
    };
    let files = some_files(directory);
    run(&["s3", "sync", "files", "s3://lake/aws/"]);
    run(&["s3", "mv", "--recursive", "s3://lake/aws/", "s3://lake/aws-moved/"]);
    let listed = run(&["s3", "ls", "--recursive", "s3://lake/aws-moved/"]);
    assert_eq!(listed.lines().count(), 3, "{listed}");
    run(&["s3", "sync", "s3://lake/aws-moved/", "back"]);
    assert_same(&files, &directory.join("back"));
    let head = run(&["s3api", "head-object", "--bucket", "lake", "--key", "aws-moved/long"]);
    assert!(head.contains("20971520"), "{head}");
    run(&["s3", "rm", "--recursive", "s3://lake/aws-moved/"]);
    let left = run(&["s3api", "list-objects-v2", "--bucket", "lake", "--prefix", "aws"]);
    assert!(!left.contains("\"Key\""), "{left}");
}

/// rclone, which compares what it copied by MD5.
fn rclone(program: &Program, directory: &Path) {
    let endpoint = format!("http://{}", program.address);
    let run = |arguments: &[&str]| {
        let mut command = Command::new("rclone");
        command.args(["--config", "", "--s3-provider", "Other", "--s3-env-auth", "--s3-endpoint"]);
        // Several parts of the long file.
        command.args([&endpoint, "--s3-upload-cutoff", "8M", "--retries", "1"]).args(arguments);
        ask(program, directory, &mut command)
    };
    let files = some_files(directory);
    run(&["copy", "files", ":s3:lake/rclone"]);
    run(&["check", "files", ":s3:lake/rclone"]);
    run(&["moveto", ":s3:lake/rclone", ":s3:lake/rclone-moved"]);
    run(&["copy", ":s3:lake/rclone-moved", "back"]);
    assert_same(&files, &directory.join("back"));
    run(&["purge", ":s3:lake/rclone-moved"]);
    assert_eq!(run(&["lsf", "-R", "--files-only", "--include", "rclone*/**", ":s3:lake"]), "");
}

/// DuckDB, which writes Parquet in parts and reads it by ranges.
fn duckdb(program: &Program, directory: &Path) {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/gateway/duckdb_client.py");
    let mut command = Command::new(python());
    command.arg(script).args([&program.address.to_string(), "lake"]);
    ask(program, directory, &mut command);
}

/// Behind the first is a directory, behind the second the first. The second's flushes, reads and copies go through
/// `object_store`'s client with signatures, so each is a client's test of the other.
#[test]
fn boto3_and_object_store_work_unchanged() {
    let directory = tempfile::tempdir().unwrap();
    let subdirectory = |name: &str| {
        let path = directory.path().join(name);
        std::fs::create_dir_all(&path).unwrap();
        path
    };
    let sections = format!(
        "[bucket.lake]\nstore = \"{}\"\nwrite = \"back\"\nflush_after = \"10 ms\"\n[new_buckets]\nstore = \"{}\"\nwrite = \"back\"\n",
        subdirectory("objects").display(),
        subdirectory("new").display()
    );
    // Where a client will want a bucket is something already.
    std::fs::write(subdirectory("new/not-empty").join("a"), "there before").unwrap();
    let mut inner = Program::start(&subdirectory("inner"), &sections);
    run_script(&inner, "lake", "everything");
    aws_cli(&inner, &subdirectory("aws"));
    rclone(&inner, &subdirectory("rclone"));
    duckdb(&inner, &subdirectory("duckdb"));
    run_script(&inner, "lake", "leave");
    inner.kill_and_start();
    run_script(&inner, "lake", "find");

    let secret = directory.path().join("secret");
    std::fs::write(&secret, SECRET).unwrap();
    std::fs::set_permissions(&secret, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let sections = format!(
        "[s3]\nendpoint = \"http://{}\"\nkey_id = \"{KEY}\"\nsecret_file = \"{}\"\n\
         [bucket.lake]\nstore = \"s3://lake/behind\"\nwrite = \"back\"\nflush_after = \"10 ms\"\n\
         [bucket.through]\nstore = \"s3://lake/through\"\nwrite = \"through\"\n\
         [bucket.shared]\nstore = \"s3://lake/shared\"\nconsistency = \"revalidate\"\n",
        inner.address,
        secret.display()
    );
    let outer = Program::start(&subdirectory("outer"), &sections);
    run_script(&outer, "lake", "objects");
    run_script(&outer, "through", "objects");
    run_script(&outer, "shared", "shared");
    run_script(&outer, "lake", "leave");
    let (status, log) = outer.stop();
    assert!(status.success() && log.contains("the stores have everything"), "{log}");
    // All its objects are in the inner one by now, under the same names.
    run_script(&inner, "lake", "find-behind");
    let (status, log) = inner.stop();
    assert!(status.success(), "{log}");
}

/// A certificate for loopback that signs itself, and its key, as files of this user.
pub(crate) fn certificate(directory: &Path) -> (PathBuf, PathBuf) {
    use openssl::asn1::Asn1Time;
    use openssl::hash::MessageDigest;
    use openssl::x509::extension::{BasicConstraints, SubjectAlternativeName};
    use openssl::x509::{X509, X509NameBuilder};
    let curve = openssl::ec::EcGroup::from_curve_name(openssl::nid::Nid::X9_62_PRIME256V1).unwrap();
    let key = openssl::pkey::PKey::from_ec_key(openssl::ec::EcKey::generate(&curve).unwrap()).unwrap();
    let mut name = X509NameBuilder::new().unwrap();
    name.append_entry_by_text("CN", "gateway").unwrap();
    let name = name.build();
    let mut builder = X509::builder().unwrap();
    builder.set_version(2).unwrap();
    builder.set_serial_number(&openssl::bn::BigNum::from_u32(7).unwrap().to_asn1_integer().unwrap()).unwrap();
    builder.set_subject_name(&name).unwrap();
    builder.set_issuer_name(&name).unwrap();
    builder.set_pubkey(&key).unwrap();
    builder.set_not_before(&Asn1Time::days_from_now(0).unwrap()).unwrap();
    builder.set_not_after(&Asn1Time::days_from_now(2).unwrap()).unwrap();
    builder.append_extension(BasicConstraints::new().critical().ca().build().unwrap()).unwrap();
    let names =
        SubjectAlternativeName::new().ip("127.0.0.1").build(&builder.x509v3_context(None, None)).unwrap();
    builder.append_extension(names).unwrap();
    builder.sign(&key, MessageDigest::sha256()).unwrap();
    let (certificate_file, key_file) = (directory.join("gateway.pem"), directory.join("gateway.key"));
    std::fs::write(&certificate_file, builder.build().to_pem().unwrap()).unwrap();
    std::fs::write(&key_file, key.private_key_to_pem_pkcs8().unwrap()).unwrap();
    std::fs::set_permissions(&key_file, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    (certificate_file, key_file)
}

#[test]
fn tls_in_front() {
    let directory = tempfile::tempdir().unwrap();
    let objects = directory.path().join("objects");
    std::fs::create_dir_all(&objects).unwrap();
    let (certificate, key) = certificate(directory.path());
    let sections = format!(
        "[tls]\ncertificate = \"{}\"\nkey = \"{}\"\n[bucket.lake]\nstore = \"{}\"\nwrite = \"back\"\n",
        certificate.display(),
        key.display(),
        objects.display()
    );
    let program = Program::start(directory.path(), &sections);
    let endpoint = format!("https://{}", program.address);
    run_script_at(&program, &endpoint, Some(&certificate), "lake", "leave");
    run_script_at(&program, &endpoint, Some(&certificate), "lake", "find");
    let (status, log) = program.stop();
    assert!(status.success(), "{log}");
}

/// The store is another gateway. Its certificate is no authority's that this machine knows.
#[test]
fn tls_store_must_present_trusted_certificate() {
    let [inner, outer, other] = [(); 3].map(|()| tempfile::tempdir().unwrap());
    let objects = inner.path().join("objects");
    std::fs::create_dir_all(&objects).unwrap();
    let (own, key) = certificate(inner.path());
    let store = Program::start(
        inner.path(),
        &format!(
            "[tls]\ncertificate = \"{}\"\nkey = \"{}\"\n[bucket.lake]\nstore = \"{}\"\n",
            own.display(),
            key.display(),
            objects.display()
        ),
    );
    let secret = outer.path().join("store-secret");
    std::fs::write(&secret, SECRET).unwrap();
    std::fs::set_permissions(&secret, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let sections = |authority: &str| {
        format!(
            "[s3]\nendpoint = \"https://{}\"\nkey_id = \"{KEY}\"\nsecret_file = \"{}\"\n{authority}[bucket.lake]\nstore = \"s3://lake\"\n",
            store.address,
            secret.display()
        )
    };
    let naming = |file: &Path| format!("authority = \"{}\"\n", file.display());
    let invalid = other.path().join("nothing.pem");
    std::fs::write(&invalid, "no certificate\n").unwrap();
    for (authority, expected) in [
        (String::new(), "certificate verify failed"),
        (naming(&certificate(other.path()).0), "certificate verify failed"),
        (naming(&invalid), "nothing.pem: it has no certificate"),
        (naming(&other.path().join("missing.pem")), "missing.pem"),
    ] {
        let mut refused = Program::start_without_waiting(outer.path(), "", &sections(&authority));
        let (status, log) = refused.wait_end();
        assert!(!status.success() && log.contains(expected), "{authority}: {log}");
        std::fs::remove_file(outer.path().join("gateway.toml.log")).unwrap();
    }
    let front = Program::start(outer.path(), &sections(&naming(&own)));
    assert_eq!(signed::ask(front.address, "PUT", "/lake/a", &[], b"bytes").unwrap().status, 200);
    assert_eq!(std::fs::read(objects.join("a")).unwrap(), b"bytes");
    assert_eq!(signed::ask(front.address, "GET", "/lake/a", &[], b"").unwrap().body, b"bytes");
}
