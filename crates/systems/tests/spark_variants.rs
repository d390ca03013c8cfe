//! The real Spark in other forms than its own master and workers of version 3.5. They are the external shuffle service,
//! an external cluster, YARN, version 4.1 on Ceph and behind the gateway, and each cache in each of its modes. All
//! queries run too, and S3A renames a large directory. Install their packages first: `scripts/install-packages test`.
//! They take a quarter of an hour, and have their own `make` target.

mod ending;
mod parts;
mod s3a;
mod spark_jobs;

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use self::ending::Ending;
use self::spark_jobs::{
    BACK, DATA_BYTES, LIMIT, ON_CEPH, ROWS, SPARK, job, kill_all, put, run, settings, sort_through, start,
};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use underlay_record::JobRecord;
use underlay_systems::spark::{INSTALLED, OutputCommitter, SparkCluster};
use underlay_systems::system::{JobProgress, JobRequest, RunningSystem, StoragePaths, SystemResources};

const POLL: Duration = Duration::from_millis(20);

fn requests(record: &JobRecord, kind: &str, stage: &dyn Fn(&str) -> bool) -> u64 {
    let stages = record.stages.iter().filter(|stage_record| stage(&stage_record.name));
    stages.filter_map(|stage| stage.requests.get(kind)).map(|sum| sum.requests).sum()
}

fn gone(cluster: SparkCluster) {
    let namespace = cluster.namespace().map(std::sync::Arc::clone);
    Box::new(cluster).stop().unwrap();
    assert!(namespace.unwrap().listeners().unwrap().is_empty());
}

/// The processes of `cluster` that have this word among theirs.
fn with_word(cluster: &SparkCluster, word: &str) -> Vec<u32> {
    let has_it = |process: &u32| {
        let words = std::fs::read(format!("/proc/{process}/cmdline")).unwrap_or_default();
        words.split(|&byte| byte == 0).any(|each| each == word.as_bytes())
    };
    cluster.processes().into_iter().filter(has_it).collect()
}

fn kill(process: u32) {
    kill_process(Pid::from_raw(i32::try_from(process).unwrap()).unwrap(), Signal::KILL).unwrap();
}

/// The event log of the session in `scratch`, as far as it is written.
fn events(scratch: &Path) -> String {
    let folder = scratch.join("spark/events");
    let file = std::fs::read_dir(folder).unwrap().flatten().map(|entry| entry.path()).min().unwrap();
    std::fs::read_to_string(file).unwrap()
}

#[test]
#[ignore = "minutes: `make spark-variants` runs it"]
fn shuffle_files_outlive_executor_and_external_cluster_runs_jobs() {
    let folder = TempDir::new().unwrap();
    let scratch = folder.path().join("scratch");
    let pairs =
        [("datanodes", "1"), ("executors", "2"), ("shuffle_service", "true"), ("committer", "file-v2")];
    let cluster = start(&INSTALLED, folder.path(), 5 << 30, &pairs);
    let larger =
        JobRequest { data_bytes: 10 * DATA_BYTES, maps: Some(4), reduces: Some(16), ..job("terasort") };
    cluster.prepare_job(&larger, &|_| true).unwrap();

    // An executor goes as soon as all maps are done, while reduces fetch.
    let (before, over) = (events(&scratch).len(), AtomicBool::new(false));
    let record = std::thread::scope(|scope| {
        let killer = scope.spawn(|| {
            let is_end_of_maps = |line: &str| {
                line.contains("SparkListenerStageCompleted") && line.contains("shuffle.write.bytesWritten")
            };
            while !events(&scratch)[before..].lines().any(is_end_of_maps) {
                assert!(!over.load(Ordering::Relaxed), "the job was over before its maps");
                std::thread::sleep(POLL);
            }
            let executors = with_word(&cluster, "org.apache.spark.executor.CoarseGrainedExecutorBackend");
            assert_eq!(executors.len(), 2, "{executors:?}");
            kill(executors[0]);
        });
        let job = Ending(&over);
        let record = run(&cluster, &larger, &|_| true);
        drop(job);
        killer.join().unwrap();
        record
    });
    assert!(events(&scratch)[before..].contains("SparkListenerExecutorRemoved"));
    assert_eq!(record.counters["output_records"], 10.0 * ROWS);
    // Half of the blocks are another executor's, and none was lost with its executor: no map ran again.
    let maps = record.stages.iter().filter(|stage| stage.name.ends_with("shuffle out")).count();
    assert_eq!(maps, 1, "{record:#?}");
    let served = record.counters["shuffle_service_bytes"];
    assert!(served > 0.2 * record.shuffled_bytes as f64, "{served} of {}", record.shuffled_bytes);
    assert_eq!(cluster.applied_settings()["shuffle_service"], "true");

    on_a_cluster_that_runs_already(&scratch, &folder.path().join("other"));
    gone(cluster);
}

/// A program that was started here.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        // It ends its executors then.
        let _ = kill_process(Pid::from_child(&self.0), Signal::TERM);
        let began = Instant::now();
        while self.0.try_wait().unwrap().is_none() {
            if began.elapsed() > Duration::from_secs(20) {
                let _ = self.0.kill();
            }
            std::thread::sleep(POLL);
        }
    }
}

/// A master and a worker in the network of this host, started as those in `scratch` were, are a user's own.
fn on_a_cluster_that_runs_already(scratch: &Path, folder: &Path) {
    let free = || TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port().to_string();
    let (port, old) = (free(), scratch.join("spark"));
    let arguments = |server: &str| {
        let text = std::fs::read_to_string(old.join(server).join(format!("{server}.arguments"))).unwrap();
        let ports = ["8080", "7101", "8101", "7337"].iter().fold(text.replace("7077", &port), |text, old| {
            text.replace(&format!("\"{old}\""), &format!("\"{}\"", free()))
        });
        ports.replace("-Dspark.shuffle.service.enabled=true", "-Dspark.shuffle.service.enabled=false")
    };
    let jars = arguments("master")
        .lines()
        .find(|line| line.ends_with("/jars/*\""))
        .unwrap()
        .trim_matches('"')
        .to_owned();
    let spark_home = Path::new(&jars).parent().and_then(Path::parent).unwrap().to_owned();
    let python = spark_home.ancestors().nth(4).unwrap().join("bin/python");
    let shared = folder.join("shared");
    std::fs::create_dir_all(&shared).unwrap();
    let server = |name: &str| {
        let file: PathBuf = folder.join(format!("{name}.arguments"));
        std::fs::write(&file, arguments(name)).unwrap();
        let mut command = Command::new("java");
        command.arg(format!("@{}", file.display())).current_dir(folder);
        command
            .env("SPARK_HOME", &spark_home)
            .env("SPARK_SCALA_VERSION", "2.12")
            .env("SPARK_LOCAL_IP", "127.0.0.1");
        command.env("SPARK_LOCAL_DIRS", folder);
        let log = std::fs::File::create(folder.join(format!("{name}.log"))).unwrap();
        command.stderr(log.try_clone().unwrap()).stdout(log);
        Server(command.spawn().unwrap())
    };
    let master = server("master");
    let began = Instant::now();
    while std::net::TcpStream::connect(format!("127.0.0.1:{port}")).is_err() {
        assert!(began.elapsed() < LIMIT, "{}", std::fs::read_to_string(folder.join("master.log")).unwrap());
        std::thread::sleep(POLL);
    }
    let worker = server("worker-1");
    let (url, directory) = (format!("spark://127.0.0.1:{port}"), format!("file://{}", shared.display()));
    let pairs = [
        ("master", url.as_str()),
        ("work_directory", directory.as_str()),
        ("without_secret", "true"),
        ("executors", "1"),
        ("executor_memory", "512 MiB"),
        ("executor_python", python.to_str().unwrap()),
    ];
    let paths = StoragePaths { scratch: folder.join("scratch"), ..StoragePaths::default() };
    let start = || INSTALLED.start_cluster(&paths, &SystemResources::unlimited(), &settings(&pairs));
    let cluster = start().unwrap_or_else(|error| panic!("{error}"));
    assert!(cluster.namespace().is_none() && cluster.processes().is_empty());
    let record = run(&cluster, &job("terasort"), &|_| true);
    assert_eq!((record.committer.as_deref(), record.output_bytes), (Some("file-v1"), DATA_BYTES));
    assert!(
        record.shuffled_bytes > 0 && record.stages.iter().any(|stage| stage.time.total_s() > 0.0),
        "{record:#?}"
    );
    // Its executors run a part of the jobs' own Python, which came with the session.
    run(&cluster, &job("teravalidate"), &|_| true);
    let applied = cluster.applied_settings();
    assert_eq!((&applied["master"], applied.contains_key("datanodes")), (&url, false));
    assert_eq!(std::fs::read_dir(&shared).unwrap().count(), 1);
    Box::new(cluster).stop().unwrap();
    assert_eq!(std::fs::read_dir(&shared).unwrap().count(), 0, "the jobs' files are left");
    drop(worker);
    drop(master);
    let error = start().map(drop).unwrap_err().to_string();
    assert!(error.contains("can't be reached") && error.contains("check `master`"), "{error}");
}

/// Each answer is held against DuckDB's.
#[test]
#[ignore = "minutes: `make spark-variants` runs it"]
fn tpcds_queries_are_all_answered() {
    let folder = TempDir::new().unwrap();
    let pairs = [("datanodes", "1"), ("replication", "1"), ("executors", "2")];
    let cluster = start(&INSTALLED, folder.path(), 6 << 30, &pairs);
    let queries = JobRequest { data_bytes: 100_000_000, limit: 3 * LIMIT, ..job("tpcds") };
    let record = run(&cluster, &queries, &|_| true);
    let answered = record.counters.keys().filter(|name| name.starts_with('q') && name.ends_with("_wall_ms"));
    assert_eq!(answered.count(), 54, "{:?}", record.counters);
    // Little data has nothing for some.
    assert!(record.counters["queries_without_rows"] < 10.0, "{:?}", record.counters);
    gone(cluster);
}

#[test]
#[ignore = "minutes: `make spark-variants` runs it"]
fn yarn_gives_executors() {
    let folder = TempDir::new().unwrap();
    let pairs = [("manager", "yarn"), ("datanodes", "1"), ("executors", "2"), ("committer", "file-v2")];
    let cluster = start(&INSTALLED, folder.path(), 5 << 30, &pairs);
    let on_host = |port: u16| std::net::TcpStream::connect(("127.0.0.1", port)).is_ok();
    assert!(!on_host(8032), "the ResourceManager can be reached from outside");
    let executors = with_word(&cluster, "org.apache.spark.executor.YarnCoarseGrainedExecutorBackend");
    // Each is a shell of the NodeManager and a Java program.
    assert!(executors.len() >= 2, "{executors:?}");
    let record = run(&cluster, &job("terasort"), &|_| true);
    assert_eq!((record.committer.as_deref(), record.output_bytes), (Some("file-v2"), DATA_BYTES));
    assert_eq!(record.counters["output_records"], ROWS);
    run(&cluster, &job("teravalidate"), &|_| true);
    let nodes: Vec<String> =
        cluster.nodes().unwrap().list().unwrap().into_iter().map(|node| node.name).collect();
    assert_eq!(nodes, ["datanode1"]);
    // Without a NodeManager there will be no executors.
    let node_managers: Vec<u32> = cluster
        .processes()
        .into_iter()
        .filter(|process| {
            let words = std::fs::read(format!("/proc/{process}/cmdline")).unwrap_or_default();
            let name = b"nodemanager.arguments";
            words.windows(name.len()).any(|part| part == name)
        })
        .collect();
    let killed = AtomicBool::new(false);
    let failure = cluster.run_job(&job("terasort"), &|_| {
        if !killed.swap(true, Ordering::Relaxed) {
            assert!(!node_managers.is_empty());
            node_managers.iter().for_each(|&process| kill(process));
        }
        true
    });
    let failure = failure.unwrap().unwrap_err().to_string();
    assert!(failure.contains("NodeManager") && failure.contains("was killed"), "{failure}");
    let namespace = std::sync::Arc::clone(cluster.namespace().unwrap());
    cluster.abort();
    drop(cluster);
    assert!(namespace.listeners().unwrap().is_empty());
}

#[test]
#[ignore = "minutes: `make spark-variants` runs it"]
fn version_4_1_commits_to_ceph_over_tls() {
    let folder = TempDir::new().unwrap();
    let pairs = [
        ("version", "4.1"),
        ("store", "s3a"),
        ("committer", "magic"),
        ("executors", "1"),
        ("osds", "1"),
        ("replication", "1"),
        ("link_bandwidth", "2 Gbit/s"),
        ("link_latency", "50 us"),
    ];
    let cluster = start(&INSTALLED, folder.path(), 5 << 30, &pairs);
    assert!(cluster.applied_settings()["version"].starts_with("4.1."));
    let is_write = |name: &str| name.ends_with("write");
    let anywhere = |_: &str| true;
    let mut inside = Vec::new();
    for committer in [OutputCommitter::Magic, OutputCommitter::FileV1] {
        cluster.set_committer(committer);
        let record = run(&cluster, &job("terasort"), &|_| true);
        assert_eq!((&record.committer, record.output_bytes), (&Some(committer.name()), DATA_BYTES));
        assert_eq!(record.counters["output_records"], ROWS);
        assert!(requests(&record, "put", &anywhere) > 0, "{:#?}", record.stages);
        let renames = committer == OutputCommitter::FileV1;
        assert_eq!(requests(&record, "copy", &anywhere) > 0, renames, "{:#?}", record.stages);
        let write = record.stages.iter().find(|stage| is_write(&stage.name)).unwrap();
        assert!(write.time.total_s() > 0.0 && write.time.commit_s > 0.0, "{write:?}");
        // Tasks commit in the stage that writes, and the job behind it.
        let output = |name: &str| is_write(name) || name == "commit";
        assert_eq!(
            requests(&record, "copy", &output),
            requests(&record, "copy", &anywhere),
            "{:#?}",
            record.stages
        );
        inside.push(record.counters["store_network_bytes"]);
    }
    // A rename has the store read what it has written, and write it again: once for each task, and once for the job.
    // With the magic committer nothing is read in the stage that writes.
    let (magic, file) = (inside[0], inside[1]);
    assert!(file > magic + 3.0 * DATA_BYTES as f64, "{file} bytes within the store, and with magic {magic}");
    assert!(cluster.figures().unwrap()["link_from_store_bytes"] > DATA_BYTES as f64);
    // The first look tells no rate.
    cluster.gauges().unwrap();
    run(&cluster, &job("teravalidate"), &|_| true);
    let gauges = cluster.gauges().unwrap();
    for side in ["compute", "store"] {
        assert!(gauges[&format!("current_{side}_network_bytes_per_s")] > 0.0, "{gauges:?}");
        assert!(gauges[&format!("current_{side}_resident_bytes")] > 1e8, "{gauges:?}");
    }
    let kmeans = run(&cluster, &job("kmeans"), &|_| true);
    assert!(kmeans.input_bytes > 0, "{kmeans:#?}");
    gone(cluster);
}

#[test]
#[ignore = "minutes: `make spark-variants` runs it"]
fn version_4_1_writes_through_the_gateway_over_tls() {
    let folder = TempDir::new().unwrap();
    let pairs = [
        ("version", "4.1"),
        ("store", "s3a"),
        ("executors", "1"),
        ("osds", "1"),
        ("replication", "1"),
        ("link_bandwidth", "2 Gbit/s"),
        ("link_latency", "50 us"),
    ];
    let mut cluster = start(&SPARK, folder.path(), 6 << 30, &[&pairs[..], &BACK].concat());
    nothing_is_shown_to_others(&cluster, &folder.path().join("scratch/spark/cache/gateway"));
    let used = sort_through(&mut cluster, OutputCommitter::FileV1);
    assert_eq!((used.kind.as_str(), used.write.as_str()), ("gateway", "back"));
    assert!(used.avoided_uploads > Some(0), "what was renamed away was uploaded: {used:#?}");

    // By the same session, whose settings and certificates were there from the beginning.
    put(&mut cluster, &[("cache", "gateway"), ("cache_write", "through")]);
    let used = sort_through(&mut cluster, OutputCommitter::Magic);
    assert_eq!((used.write.as_str(), used.dirty_objects), ("through", 0), "{used:#?}");

    put(&mut cluster, &BACK);
    the_gateway_is_killed_with_what_ceph_lacks(&mut cluster, &BACK);
    gone(cluster);
}

/// The gateway speaks TLS alone both ways, its key is nobody else's to read, and no secret is on a command line.
fn nothing_is_shown_to_others(cluster: &SparkCluster, scratch: &Path) {
    let settings = std::fs::read_to_string(scratch.join("gateway.toml")).unwrap();
    assert!(settings.contains("endpoint = \"https://") && settings.contains("\nauthority = "), "{settings}");
    let plain = cluster.namespace().unwrap().within(|| {
        let mut stream = std::net::TcpStream::connect("127.0.0.1:9000").unwrap();
        stream.write_all(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").unwrap();
        let mut answer = Vec::new();
        // It may hang up at once.
        let _ = stream.read_to_end(&mut answer);
        answer
    });
    assert!(!plain.unwrap().starts_with(b"HTTP"), "it answers plain HTTP");
    let mode = |name: &str| std::fs::metadata(scratch.join(name)).unwrap().mode() & 0o777;
    let secrets = ["gateway.key", "key.secret", "store.secret", "admin.token"];
    assert_eq!(secrets.map(mode), [0o600; 4]);
    for name in &secrets[1..] {
        let secret = std::fs::read_to_string(scratch.join(name)).unwrap();
        assert!(secret.len() >= 16);
        for process in cluster.processes() {
            let words = std::fs::read(format!("/proc/{process}/cmdline")).unwrap_or_default();
            assert!(
                !words.windows(secret.len()).any(|part| part == secret.as_bytes()),
                "{name} of {process}"
            );
        }
    }
}

#[test]
#[ignore = "minutes: `make spark-variants` runs it"]
fn large_s3a_directory_rename_uploads_each_object() {
    for version in ["3.5", "4.1"] {
        s3a::rename_a_directory(version, 10_000);
    }
}

#[test]
#[ignore = "minutes: `make spark-variants` runs it"]
fn caches_store_what_they_acknowledged() {
    let folder = TempDir::new().unwrap();
    let alluxio = [("cache", "alluxio"), ("cache_memory", "256 MiB")];
    let mut cluster = start(&SPARK, folder.path(), 8 << 30, &[&ON_CEPH[..], &alluxio].concat());

    // It was started with Alluxio.
    a_table_is_checked_in_ceph(&cluster);
    let used = sort_through(&mut cluster, OutputCommitter::FileV1);
    assert_eq!((used.kind.as_str(), used.write.as_str(), used.hits), ("alluxio", "back", None));
    // Its input was just written. What checks its output in Ceph is not the cache's doing.
    assert!(used.hit_share() > Some(0.5), "{used:#?}");

    // The table that was written through Alluxio is out of reach.
    put(&mut cluster, &BACK);
    a_table_is_checked_in_ceph(&cluster);
    put(&mut cluster, &[]);
    a_table_is_checked_in_ceph(&cluster);

    put(&mut cluster, &[("cache", "gateway"), ("cache_write", "through"), ("cache_flash", "128 MiB")]);
    let used = sort_through(&mut cluster, OutputCommitter::Magic);
    assert_eq!((used.write.as_str(), used.dirty_objects), ("through", 0), "{used:#?}");

    put(&mut cluster, &BACK);
    the_gateway_is_killed_with_what_ceph_lacks(&mut cluster, &BACK);
    put(&mut cluster, &[]);
    gone(cluster);
}

/// Sorts into a table through the cache that there is, if there is one, and has the table checked past it.
fn a_table_is_checked_in_ceph(cluster: &SparkCluster) {
    let (sort, quiet) = (job("terasort"), |_: &JobProgress| true);
    cluster.set_committer(OutputCommitter::Iceberg);
    let record = run(cluster, &sort, &quiet);
    assert_eq!((record.committer.as_deref(), record.counters["committed_records"]), (Some("iceberg"), ROWS));
    assert!(!record.counters.contains_key("job_commit_wall_ms"), "{record:#?}");
    let read_bytes = || cluster.figures().unwrap().get("cache_read_bytes").copied();
    let Some(before) = read_bytes() else { return };
    cluster.verify_job(&sort, &quiet).unwrap_or_else(|error| panic!("past the cache: {error}"));
    // Clients of Alluxio tell a second later. The table's metadata are read through the cache, and they are small.
    std::thread::sleep(Duration::from_secs(3));
    let through = read_bytes().unwrap() - before;
    assert!(through < DATA_BYTES as f64 / 4.0, "{through} bytes of a check came from the cache");
}

/// What it had acknowledged is in its journal, and gets to Ceph once it is started again.
fn the_gateway_is_killed_with_what_ceph_lacks(cluster: &mut SparkCluster, settings: &[(&str, &str)]) {
    let (sort, quiet) = (job("terasort"), |_: &JobProgress| true);
    cluster.set_committer(OutputCommitter::FileV2);
    cluster.prepare_job(&sort, &quiet).unwrap();
    cluster.run_job(&sort, &quiet).unwrap().unwrap_or_else(|error| panic!("{error}"));
    assert!(cluster.gauges().unwrap()["current_cache_unstored_objects"] > 0.0);
    kill_all(cluster, b"gateway.toml");
    let began = Instant::now();
    let message = loop {
        match cluster.health() {
            Err(error) => break error.to_string(),
            Ok(()) => assert!(began.elapsed() < LIMIT, "nobody notices"),
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    assert!(message.contains("the S3 gateway") && message.contains("was killed"), "{message}");
    cluster.abandon_cache();
    put(cluster, settings);
    cluster.verify_job(&sort, &quiet).unwrap_or_else(|error| panic!("past the cache: {error}"));
}
