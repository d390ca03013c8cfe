//! A directory of many objects that S3A renames through the gateway before the store has any of them. The store is a
//! second gateway, over a directory, which writes down what it is asked for.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;
use underlay_systems::java::Java;
use underlay_systems::spark::s3a_class_path;

use crate::spark_jobs::gateway;

const KEY: &str = "TESTKEY";
const SECRET: &str = "a-secret-of-the-test-only";
const POLL: Duration = Duration::from_millis(20);
/// It only tells a stuck program from a slow one.
const LIMIT: Duration = Duration::from_secs(300);

/// A gateway that serves the bucket `lake`. It is killed with the test.
struct Gateway {
    child: Child,
    address: SocketAddr,
    folder: PathBuf,
    marks: AtomicU32,
}

impl Gateway {
    /// Starts one in a folder of its own, with these sections behind those that both have.
    fn start(folder: PathBuf, sections: &str) -> Gateway {
        std::fs::create_dir_all(&folder).unwrap();
        let [address, admin] = [(); 2].map(|()| {
            let free = TcpListener::bind("127.0.0.1:0").unwrap();
            free.local_addr().unwrap()
        });
        let (file, here) = (folder.join("gateway.toml"), folder.display());
        let text = format!(
            "listen = \"{address}\"\naccess_log = \"{here}/requests\"\n\
             [local]\ndirectory = \"{here}/local\"\njournal = \"1 GiB\"\nmemory = \"64 MiB\"\n\
             [key.test]\nid = \"{KEY}\"\nsecret_env = \"GATEWAY_SECRET\"\nallow = [{{ bucket = \"lake\", may = [\"read\", \"write\"] }}]\n\
             [limits]\nflushes = 16\ndrain = \"{} s\"\n[admin]\nlisten = \"{admin}\"\n{sections}",
            LIMIT.as_secs()
        );
        std::fs::write(&file, text).unwrap();
        let log = std::fs::File::create(folder.join("log")).unwrap();
        let mut command = Command::new(gateway());
        command.arg("serve").arg(&file).env("GATEWAY_SECRET", SECRET);
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn().unwrap();
        let mut started = Gateway { child, address, folder, marks: AtomicU32::new(0) };
        let began = Instant::now();
        while !ask(admin, "/health/ready").is_some_and(|answer| answer.starts_with("HTTP/1.1 200")) {
            let ended = started.child.try_wait().unwrap();
            assert!(ended.is_none() && began.elapsed() < LIMIT, "{}", started.log());
            std::thread::sleep(POLL);
        }
        started
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.folder.join("log")).unwrap_or_default()
    }

    /// What it was asked for so far: methods, paths and operations.
    fn requests(&self) -> Vec<(String, String, String)> {
        // Lines are written late, but one after the other: a request of our own is behind all that were answered
        // before.
        let mark = format!("/mark-{}", self.marks.fetch_add(1, Ordering::Relaxed));
        ask(self.address, &mark).expect("it answers");
        let began = Instant::now();
        loop {
            let text = std::fs::read_to_string(self.folder.join("requests")).unwrap();
            let whole = text.rfind('\n').map_or("", |end| &text[..end]);
            let lines: Vec<Value> = whole.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
            let text_of = |line: &Value, name: &str| line[name].as_str().unwrap().to_owned();
            if lines.iter().any(|line| line["path"] == mark.as_str()) {
                assert!(lines.iter().all(|line| line["left_out"] == 0), "the log has not all of them");
                let logged = lines
                    .iter()
                    .map(|line| (text_of(line, "method"), text_of(line, "path"), text_of(line, "operation")));
                return logged.filter(|(_, path, _)| !path.starts_with("/mark-")).collect();
            }
            assert!(began.elapsed() < LIMIT, "{mark} is not in its log");
            std::thread::sleep(POLL);
        }
    }

    /// SIGTERM: it ends once the store has everything.
    fn stop(mut self) {
        kill_process(Pid::from_child(&self.child), Signal::TERM).unwrap();
        let status = self.child.wait().unwrap();
        assert!(status.success() && self.log().contains("the stores have everything"), "{}", self.log());
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The answer to a request that nobody has signed.
fn ask(address: SocketAddr, path: &str) -> Option<String> {
    let mut stream = TcpStream::connect(address).ok()?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n").ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    Some(answer)
}

/// Writes so many objects by the S3A of this version of Spark and renames their directory. The store gets nothing until
/// the gateway flushes, and then each object once, under its new name.
pub(crate) fn rename_a_directory(version: &str, objects: usize) {
    let folder = TempDir::new().unwrap();
    let stored = folder.path().join("stored");
    std::fs::create_dir(&stored).unwrap();
    let store = Gateway::start(
        folder.path().join("store"),
        &format!("[bucket.lake]\nstore = \"{}\"\n", stored.display()),
    );
    let between = Gateway::start(
        folder.path().join("between"),
        &format!(
            "[s3]\nendpoint = \"http://{}\"\nkey_id = \"{KEY}\"\nsecret_env = \"GATEWAY_SECRET\"\n\
             [bucket.lake]\nstore = \"s3://lake\"\nwrite = \"back\"\nflush_after = \"10 h\"\n",
            store.address
        ),
    );
    write_and_rename(version, objects, between.address, folder.path());

    // S3A renames by copies and deletions, and the gateway had all of them.
    let renamed = between.requests().iter().filter(|(.., operation)| operation == "CopyObject").count();
    assert_eq!(renamed, objects);
    let changes = || {
        let all = store.requests().into_iter();
        all.filter(|(method, ..)| method != "GET" && method != "HEAD").collect::<Vec<_>>()
    };
    assert_eq!(changes(), [], "the store was asked for something before the flush");

    between.stop();
    let changes = changes();
    let other: Vec<_> =
        changes.iter().filter(|(method, _, done)| method != "PUT" || done != "PutObject").collect();
    assert!(other.is_empty(), "{other:?}");
    let name = |number: usize| format!("/lake/work/new/part-{number}");
    let uploaded: BTreeSet<String> = changes.iter().map(|(_, path, _)| path.clone()).collect();
    assert_eq!(uploaded, (0..objects).map(name).collect(), "the store got others");
    assert_eq!(changes.len(), objects, "the store got some more than once");
    assert_eq!(std::fs::read_dir(stored.join("work/new")).unwrap().count(), objects);
    assert!(!stored.join("work/old").exists());
}

fn write_and_rename(version: &str, objects: usize, gateway: SocketAddr, folder: &Path) {
    let java = Java::find("test").unwrap();
    let jars = s3a_class_path(version).unwrap();
    let class_path: Vec<String> = jars.iter().map(|folder| format!("{}/*", folder.display())).collect();
    let settings = [
        ("endpoint", format!("http://{gateway}")),
        ("endpoint.region", "us-east-1".to_owned()),
        ("path.style.access", "true".to_owned()),
        ("connection.ssl.enabled", "false".to_owned()),
        ("connection.maximum", "64".to_owned()),
    ];
    let mut settings: Vec<String> =
        settings.into_iter().map(|(name, value)| format!("fs.s3a.{name}={value}")).collect();
    if version == "3.5" {
        // Amazon's first SDK signs as jobs have it do.
        settings.push("fs.s3a.signing-algorithm=AWSS3V4SignerType".to_owned());
    }
    settings.push(format!("hadoop.tmp.dir={}", folder.display()));
    let mut command = Command::new(java.program);
    command.args(["-Xmx512m", "-XX:-UsePerfData", "-cp", &class_path.join(":")]);
    command.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/s3a/RenamesADirectory.java"));
    command.arg(objects.to_string()).args(settings).current_dir(folder);
    command
        .env("AWS_ACCESS_KEY_ID", KEY)
        .env("AWS_SECRET_ACCESS_KEY", SECRET)
        .env_remove("AWS_SESSION_TOKEN");
    let log = folder.join("java.log");
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(File::create(&log).unwrap());
    let (mut child, began) = (command.spawn().unwrap(), Instant::now());
    let ended = loop {
        match child.try_wait().unwrap() {
            Some(status) => break Some(status),
            None if began.elapsed() > LIMIT => break None,
            None => std::thread::sleep(POLL),
        }
    };
    // Killed again, it is as it was.
    let _ = child.kill();
    let _ = child.wait();
    let log_text = std::fs::read_to_string(&log).unwrap();
    assert!(ended.is_some_and(|status| status.success()), "{ended:?}: {log_text}");
}
