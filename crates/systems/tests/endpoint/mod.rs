//! The S3 store of one cluster, as a store elsewhere for another one: what it needs, what it leaves, and what is said
//! of stores that can't be used.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;

use underlay_systems::spark::{Spark, SparkCluster};
use underlay_systems::system::{JobRequest, RunningSystem, StoragePaths, SystemResources, SystemSettings};

/// What the environment would have.
static KEYS: OnceLock<[String; 2]> = OnceLock::new();
const WRONG: &str = "AKIAWRONG";

fn variable(name: &str) -> Option<String> {
    let keys = KEYS.get()?;
    match name {
        "S3_ACCESS" => Some(keys[0].clone()),
        "S3_SECRET" => Some(keys[1].clone()),
        "S3_WRONG" => Some(WRONG.to_owned()),
        _ => None,
    }
}

static SPARK: Spark = Spark::with_variables(variable);

const BUSY: &str =
    "HTTP/1.1 503 Slow Down\r\nContent-Length: 40\r\n\r\n<Error><Code>SlowDown</Code> ...</Error>";

/// What a relay does with further connections.
const PASSING: u8 = 0;
/// 503 to every request.
const BUSILY: u8 = 1;
/// It answers nothing.
const SILENTLY: u8 = 2;

/// Passes connections at a port of this host on to the gateway of a cluster, which has no way out itself.
struct Relay {
    port: u16,
    manner: Arc<AtomicU8>,
    ended: Arc<AtomicBool>,
    open: Arc<Mutex<Vec<TcpStream>>>,
    thread: Option<JoinHandle<()>>,
}

impl Relay {
    fn start(cluster: &SparkCluster, port: u16) -> Relay {
        let listener = TcpListener::bind(("127.0.0.1", port)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let (namespace, ended) = (Arc::clone(cluster.namespace().unwrap()), Arc::new(AtomicBool::new(false)));
        let over = Arc::clone(&ended);
        let manner = Arc::new(AtomicU8::new(PASSING));
        let chosen = Arc::clone(&manner);
        let open = Arc::new(Mutex::new(Vec::new()));
        let shared_streams = Arc::clone(&open);
        let thread = std::thread::spawn(move || {
            while let Ok((near, _)) = listener.accept() {
                if over.load(Ordering::Relaxed) {
                    break;
                }
                match chosen.load(Ordering::Relaxed) {
                    PASSING => {}
                    BUSILY => {
                        answer(near, BUSY);
                        continue;
                    }
                    _ => {
                        shared_streams.lock().unwrap().push(near);
                        continue;
                    }
                }
                let far = namespace.within(|| TcpStream::connect("127.0.0.1:7480")).unwrap().unwrap();
                for (mut from, mut to) in [(&near, &far), (&far, &near)].map(|(from, to)| {
                    shared_streams.lock().unwrap().push(from.try_clone().unwrap());
                    (from.try_clone().unwrap(), to.try_clone().unwrap())
                }) {
                    std::thread::spawn(move || {
                        let _ = std::io::copy(&mut from, &mut to);
                        let _ = to.shutdown(Shutdown::Write);
                    });
                }
            }
        });
        Relay { port, manner, ended, open, thread: Some(thread) }
    }

    fn close_all(&self) {
        self.open.lock().unwrap().drain(..).for_each(|end| drop(end.shutdown(Shutdown::Both)));
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
        let _ = TcpStream::connect(("127.0.0.1", self.port));
        self.thread.take().unwrap().join().unwrap();
        self.close_all();
    }
}

/// Answers with this text once it has got something.
fn answer(mut stream: TcpStream, text: &str) {
    let _ = stream.read(&mut [0; 4096]);
    let _ = stream.write_all(text.as_bytes());
}

/// Answers every connection with this text once it has got something, or closes it, or does nothing.
fn stub(text: Option<&'static str>) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        let mut streams = Vec::new();
        for stream in listener.incoming() {
            let stream = stream.unwrap();
            match text {
                Some("") => {}
                Some(text) => answer(stream, text),
                None => streams.push(stream),
            }
        }
    });
    port
}

fn settings(port: u16, pairs: &[(&str, &str)]) -> SystemSettings {
    let endpoint = format!("http://127.0.0.1:{port}");
    let mut values = [
        ("store", "s3a"),
        ("committer", "magic"),
        ("executors", "1"),
        ("endpoint", endpoint.as_str()),
        ("bucket", "underlay"),
        // As that version of Ceph needs it over plain HTTP.
        ("signatures", "v2"),
        ("access_key_variable", "S3_ACCESS"),
        ("secret_key_variable", "S3_SECRET"),
    ]
    .map(|(key, value)| (key.to_owned(), value.to_owned()))
    .into_iter()
    .collect::<std::collections::BTreeMap<_, _>>();
    values.extend(pairs.iter().map(|&(key, value)| (key.to_owned(), value.to_owned())));
    SystemSettings { values, ..SystemSettings::default() }
}

/// What is in the bucket below the prefixes that runs use. It signs as most stores want it.
fn left_in_the_bucket(port: u16) -> serde_json::Value {
    let keys = KEYS.get().unwrap();
    let request = serde_json::json!({
        "do": "clear", "prefix": "underlay-", "bucket": "underlay", "region": "us-east-1", "https": false, "host": "127.0.0.1",
        "port": port, "address": "127.0.0.1", "path_style": true, "signatures": "v4", "access": keys[0], "secret": keys[1], "token": "",
    });
    let program = concat!(env!("CARGO_MANIFEST_DIR"), "/../../spark/store.py");
    let mut python = Command::new("python3");
    let mut python =
        python.args(["-I", program]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    python.stdin.take().unwrap().write_all(request.to_string().as_bytes()).unwrap();
    serde_json::from_slice(&python.wait_with_output().unwrap().stdout).unwrap()
}

/// Uses the store of `cluster`, whose private files are in `scratch`.
pub(crate) fn hold(cluster: &SparkCluster, scratch: &Path, job: &JobRequest) {
    let configuration =
        std::fs::read_to_string(scratch.join("spark/configuration/spark-defaults.conf")).unwrap();
    let key = |name: &str| {
        let name = format!("spark.hadoop.fs.s3a.{name}.key ");
        configuration.lines().find_map(|line| line.strip_prefix(&name)).unwrap().to_owned()
    };
    KEYS.set([key("access"), key("secret")]).unwrap();
    let relay = Relay::start(cluster, 0);
    let folder = tempfile::TempDir::new().unwrap();
    let data = folder.path().join("data");
    std::fs::create_dir(&data).unwrap();
    let paths =
        StoragePaths { data: vec![data], scratch: folder.path().join("scratch"), ..StoragePaths::default() };
    let start = |settings: &SystemSettings| {
        SPARK.start_cluster(&paths, &SystemResources::with_budget(4 << 30), settings)
    };

    // Unusable addresses are reported before anything starts.
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    for (settings, expected) in [
        (settings(free, &[]), "can't be reached: Connection refused"),
        (settings(stub(None), &[]), "it has not answered within 10 s"),
        (settings(stub(Some("")), &[]), "it closes connections without an answer"),
        (settings(stub(Some(BUSY)), &[]), "answers 503 SlowDown: it is overloaded"),
        (
            settings(relay.port, &[("secret_key_variable", "S3_WRONG")]),
            "refuses the key of S3_ACCESS and S3_WRONG",
        ),
        (
            settings(relay.port, &[("bucket", "no-such-bucket")]),
            "has no bucket 'no-such-bucket' (404 NoSuchBucket)",
        ),
        (settings(relay.port, &[("access_key_variable", "S3_NONE")]), "the environment variable S3_NONE"),
        (SystemSettings { slow_motion: 2.0, ..settings(relay.port, &[]) }, "set `time = 1` in [scale]"),
    ] {
        let error = start(&settings).map(drop).unwrap_err().to_string();
        assert!(error.contains(expected), "{expected}: {error}");
        assert!(
            !error.contains(WRONG) && KEYS.get().unwrap().iter().all(|key| !error.contains(key)),
            "{error}"
        );
    }

    let other = start(&settings(relay.port, &[])).unwrap_or_else(|error| panic!("{error}"));
    super::parts::hold(&other_parts(&paths, relay.port), &other);
    let file = paths.scratch.join("spark/configuration/spark-defaults.conf");
    let text = std::fs::read_to_string(file).unwrap();
    assert!(
        text.contains("spark.master") && KEYS.get().unwrap().iter().all(|key| !text.contains(key.as_str()))
    );
    let record = super::run(&other, job, &|_| true);
    assert_eq!((record.committer.as_deref(), record.output_bytes), (Some("magic"), job.data_bytes));
    assert!(record.stages.iter().all(|stage| stage.requests.is_empty()), "only the store could count them");
    assert!(other.figures().unwrap()["link_to_store_bytes"] > job.data_bytes as f64);
    assert!(!format!("{:?}", other.applied_settings()).contains(&key("secret")));

    // It goes away under a job, and comes back for the end.
    let port = relay.port;
    drop(relay);
    let failure = other.run_job(job, &|_| true).unwrap().unwrap_err().to_string();
    assert!(failure.contains("can't be reached any more: Connection refused"), "{failure}");
    let relay = Relay::start(cluster, port);
    let namespace = Arc::clone(other.namespace().unwrap());
    Box::new(other).stop().unwrap();
    assert!(namespace.listeners().unwrap().is_empty());
    assert_eq!(left_in_the_bucket(port), serde_json::json!({ "deleted": 0, "aborted": 0 }));

    // It answers under a job, and not what it should. S3A tries again and again, until the job's limit.
    for (manner, expected) in
        [(BUSILY, "answers 503 SlowDown: it is overloaded"), (SILENTLY, "it has not answered within 10 s")]
    {
        let other = start(&settings(relay.port, &[])).unwrap_or_else(|error| panic!("{error}"));
        other.prepare_job(job, &|_| true).unwrap();
        relay.manner.store(manner, Ordering::Relaxed);
        relay.close_all();
        let impatient = JobRequest { limit: Duration::from_secs(15), ..job.clone() };
        let failure = other.run_job(&impatient, &|_| true).unwrap().unwrap_err().to_string();
        assert!(failure.contains("longer than its limit of 15 s") && failure.contains(expected), "{failure}");
        relay.manner.store(PASSING, Ordering::Relaxed);
        let namespace = Arc::clone(other.namespace().unwrap());
        Box::new(other).stop().unwrap();
        assert!(namespace.listeners().unwrap().is_empty());
        assert_eq!(left_in_the_bucket(port), serde_json::json!({ "deleted": 0, "aborted": 0 }));
    }
    drop(relay);
}

fn other_parts(paths: &StoragePaths, port: u16) -> Vec<underlay_systems::parts::SystemPart> {
    use underlay_systems::system::System as _;
    SPARK.parts(paths, &settings(port, &[]).values)
}
