//! The real HDFS, YARN and MapReduce, started once from their Maven artifacts, and every job on them. What Hadoop needs
//! must be there: `scripts/install-packages test`.

mod parts;

use std::collections::BTreeSet;
use std::net::TcpListener;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use tempfile::TempDir;
use underlay_record::JobRecord;
use underlay_systems::hadoop::{HadoopCluster, INSTALLED};
use underlay_systems::system::{
    JobProgress, JobRequest, RunningSystem, StoragePaths, System, SystemError, SystemResources,
    SystemSettings,
};

const BUDGET_BYTES: u64 = 2 << 30;
const DATA_BYTES: u64 = 40_000_000;
const LIMIT: Duration = Duration::from_secs(300);
/// As many as the machine of these tests has.
const DATANODES: usize = 3;

fn settings(pairs: &[(&str, &str)]) -> SystemSettings {
    SystemSettings {
        values: pairs.iter().map(|&(key, value)| (key.to_owned(), value.to_owned())).collect(),
        ..SystemSettings::default()
    }
}

fn resources() -> SystemResources {
    SystemResources::with_budget(BUDGET_BYTES)
}

fn job(name: &str) -> JobRequest {
    JobRequest {
        name: name.to_owned(),
        data_bytes: DATA_BYTES,
        maps: Some(2),
        reduces: Some(2),
        compressibility: 0.8,
        seed: 1,
        limit: LIMIT,
    }
}

fn run(
    cluster: &dyn RunningSystem,
    job: &JobRequest,
    watch: &(dyn Fn(&JobProgress) -> bool + Sync),
) -> JobRecord {
    let record = cluster.run_job(job, watch).unwrap().unwrap_or_else(|error| panic!("{}: {error}", job.name));
    assert_eq!(record.name, job.name);
    assert!(record.duration_s > 0.5, "{record:?}");
    assert!(record.phases_s["map"] <= record.duration_s, "{record:?}");
    record
}

/// One that has ended has no program, though its parent may not have asked for it yet.
fn is_process(id: u32) -> bool {
    std::fs::read_link(format!("/proc/{id}/exe")).is_ok()
}

/// What a process has in memory that is no file; of one that has ended, nothing.
fn own_memory_bytes(id: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{id}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<u64>().ok()).unwrap_or_default() << 10
}

/// Those that are there in each of a few looks: servers also run commands that end at once, `df` and `du` among them.
fn lasting_processes(cluster: &HadoopCluster) -> Vec<u32> {
    let mut lasting = cluster.processes();
    for _ in 0..10 {
        std::thread::sleep(Duration::from_millis(100));
        let running = cluster.processes();
        lasting.retain(|process| running.contains(process));
    }
    lasting
}

#[test]
fn cluster_runs_every_job() {
    let directory = TempDir::new().unwrap();
    let own = |name: &str| {
        let folder = directory.path().join(name);
        std::fs::create_dir_all(&folder).unwrap();
        folder
    };
    let paths = StoragePaths {
        data: vec![own("disk-1"), own("disk-2")],
        roles: [("namenode".to_owned(), own("metadata"))].into(),
        scratch: own("scratch"),
        ..StoragePaths::default()
    };
    let settings = settings(&[("block_size", "4 MiB"), ("sorted_replication", "2")]);
    let cluster = INSTALLED.start_cluster(&paths, &resources(), &settings).unwrap();
    cluster.health().unwrap();
    parts::hold(&INSTALLED.parts(&paths, &settings.values), &cluster);
    assert!(own("metadata").join("hdfs/namenode/current").is_dir());
    assert!(cluster.connect().err().unwrap().to_string().contains("has no clients"));
    let servers = lasting_processes(&cluster).len();

    teragen_fills_directories_in_turn(&cluster);
    a_sort_survives_a_datanode(&cluster, servers);
    its_output_is_in_order(&cluster);
    words_are_counted(&cluster);
    a_shuffle_only_shuffles(&cluster);
    a_job_is_ended_when_its_watch_says_so(&cluster);
    a_job_that_fails_is_told_with_the_words_of_its_task(&cluster, directory.path());
    nothing_listens_outside(&cluster);

    // The master of a job of the cluster that was only joined goes by itself.
    let mut processes = lasting_processes(&cluster);
    while processes.len() >= servers {
        cluster.health().unwrap();
        processes = lasting_processes(&cluster);
    }
    assert_eq!(processes.len(), servers - 1, "all servers but the DataNode that was killed");
    Box::new(cluster).stop().unwrap();
    assert_eq!(processes.iter().filter(|&&process| is_process(process)).count(), 0);
}

fn teragen_fills_directories_in_turn(cluster: &HadoopCluster) {
    let record = run(cluster, &job("teragen"), &|_| true);
    assert_eq!(record.output_bytes, DATA_BYTES);
    assert_eq!((record.tasks["map"], record.tasks["reduce"], record.lost_tasks), (2, 0, 0));
    assert_eq!(record.counters["TaskCounter.MAP_OUTPUT_RECORDS"], DATA_BYTES as f64 / 100.0);
    let hdfs: Vec<_> = record.directories.iter().filter(|use_| use_.role == "hdfs").collect();
    assert_eq!(hdfs.len(), 2, "{hdfs:?}");
    let bytes: u64 = hdfs.iter().map(|use_| use_.write_bytes).sum();
    let copies = DATA_BYTES * DATANODES as u64;
    assert!((copies..copies + copies / 20).contains(&bytes), "three copies and their checksums: {bytes}");
    // Each DataNode takes one directory after the other.
    assert!(hdfs[0].files.abs_diff(hdfs[1].files) <= DATANODES as u64 + 2, "{hdfs:?}");
    assert!(hdfs.iter().all(|use_| use_.files >= 12), "{hdfs:?}");
}

fn a_sort_survives_a_datanode(cluster: &HadoopCluster, servers: usize) {
    let (killed, most_processes) = (AtomicBool::new(false), AtomicUsize::new(0));
    let most_bytes = AtomicU64::new(0);
    let record = run(cluster, &job("terasort"), &|progress| {
        let processes = cluster.processes();
        most_processes.fetch_max(processes.len(), Ordering::Relaxed);
        most_bytes.fetch_max(processes.into_iter().map(own_memory_bytes).sum(), Ordering::Relaxed);
        if progress.done > 0.1 && !killed.swap(true, Ordering::Relaxed) {
            cluster.hdfs().unwrap().kill_datanode(0);
        }
        true
    });
    assert!(killed.load(Ordering::Relaxed));
    let most_bytes = most_bytes.into_inner();
    assert!(most_bytes < BUDGET_BYTES - (128 << 20), "{most_bytes} bytes leave no page cache");
    assert!(
        most_processes.load(Ordering::Relaxed) > servers,
        "its master and its tasks are processes of the cluster"
    );
    assert_eq!((record.input_bytes, record.output_bytes), (DATA_BYTES, DATA_BYTES));
    assert!(record.shuffled_bytes > DATA_BYTES, "{record:?}");
    for phase in ["startup", "map", "shuffle", "merge", "reduce"] {
        assert!(record.phases_s[phase] >= 0.0, "{phase}");
    }
    let local: Vec<_> = record.directories.iter().filter(|use_| use_.role == "local").collect();
    assert_eq!(local.len(), 2);
    let bytes: u64 = local.iter().map(|use_| use_.write_bytes).sum();
    assert!(bytes >= record.shuffled_bytes, "map outputs at least: {local:?}");
    assert!(local.iter().map(|use_| use_.files).sum::<u64>() >= 2, "{local:?}");
}

fn its_output_is_in_order(cluster: &HadoopCluster) {
    // What it reads is there: nothing is made again.
    let before = cluster.figures().unwrap()["hdfs_files_created"];
    cluster.prepare_job(&job("teravalidate"), &|_| true).unwrap();
    assert_eq!(cluster.figures().unwrap()["hdfs_files_created"], before);
    let record = run(cluster, &job("teravalidate"), &|_| true);
    // It fails where a row is out of order, or the rows are not those that teragen wrote.
    assert_eq!(record.input_bytes, DATA_BYTES);
    assert_eq!(record.tasks["reduce"], 1);
}

fn words_are_counted(cluster: &HadoopCluster) {
    let job = JobRequest { data_bytes: 2_000_000, ..job("wordcount") };
    cluster.prepare_job(&job, &|_| true).unwrap();
    let record = run(cluster, &job, &|_| true);
    assert!(record.input_bytes >= job.data_bytes, "{record:?}");
    assert!(
        record.counters["TaskCounter.MAP_OUTPUT_RECORDS"]
            > 10.0 * record.counters["TaskCounter.REDUCE_INPUT_GROUPS"]
    );
}

fn a_shuffle_only_shuffles(cluster: &HadoopCluster) {
    let [plain, compressed] =
        ["shuffle", "shuffle-compressed"].map(|name| run(cluster, &job(name), &|_| true));
    assert!((DATA_BYTES..DATA_BYTES * 21 / 20).contains(&plain.shuffled_bytes), "{plain:?}");
    assert_eq!((plain.input_bytes, plain.output_bytes), (0, 0));
    // Four fifths of each value repeat.
    assert!(compressed.shuffled_bytes < plain.shuffled_bytes * 2 / 5, "{compressed:?}");
    assert_eq!(plain.counters["TaskCounter.REDUCE_INPUT_RECORDS"], DATA_BYTES as f64 / 1000.0);
}

fn a_job_is_ended_when_its_watch_says_so(cluster: &HadoopCluster) {
    let endless = JobRequest { data_bytes: 1 << 40, ..job("shuffle") };
    let error = cluster.run_job(&endless, &|progress| progress.done == 0.0).unwrap().unwrap_err().to_string();
    assert!(error.contains("running shuffle") && error.contains("stopped"), "{error}");
    let short = JobRequest { limit: Duration::from_secs(1), ..endless };
    let error = cluster.run_job(&short, &|_| true).unwrap().unwrap_err().to_string();
    assert!(error.contains("longer than its limit of 1 s"), "{error}");
    let unknown = cluster.run_job(&job("sort"), &|_| true).unwrap().unwrap_err().to_string();
    assert!(unknown.contains("teravalidate"), "{unknown}");
}

/// The same cluster, reached by a configuration of its own in which tasks can't start.
fn a_job_that_fails_is_told_with_the_words_of_its_task(cluster: &HadoopCluster, directory: &Path) {
    let broken = directory.join("broken");
    std::fs::create_dir(&broken).unwrap();
    for entry in std::fs::read_dir(cluster.hdfs().unwrap().configuration_directory()).unwrap() {
        let path = entry.unwrap().path();
        if path.is_file() {
            let text = std::fs::read_to_string(&path).unwrap();
            let text = text.replace("-XX:+UseSerialGC", "-XX:+UseNoSuchCollector");
            let text = text.replace("<name>yarn.app.mapreduce.am.command-opts</name>", "<name>unused</name>");
            let once =
                "<property><name>mapreduce.map.maxattempts</name><value>1</value></property></configuration>";
            let text = text.replace("</configuration>", once);
            std::fs::write(broken.join(path.file_name().unwrap()), text).unwrap();
        }
    }
    let paths = StoragePaths { scratch: directory.join("joined"), ..StoragePaths::default() };
    std::fs::create_dir(&paths.scratch).unwrap();
    let values = settings(&[("configuration", broken.to_str().unwrap())]);
    let no_memory = SystemResources::with_budget(0);
    let joined =
        cluster.namespace().unwrap().within(|| INSTALLED.start(&paths, &no_memory, &values)).unwrap();
    let joined = joined.unwrap();
    joined.health().unwrap();
    assert!(joined.processes().is_empty() && joined.figures().unwrap().is_empty());
    assert_eq!(joined.applied_settings()["configuration"], broken.to_str().unwrap());
    let error = joined.run_job(&job("shuffle"), &|_| true).unwrap().unwrap_err();
    assert!(matches!(error, SystemError::Failed { during: "running shuffle", .. }), "{error}");
    let error = error.to_string();
    assert!(error.contains("FAILED") && error.contains("attempt_"), "{error}");
    joined.stop().unwrap();
    cluster.health().unwrap();
}

fn nothing_listens_outside(cluster: &HadoopCluster) {
    let namespace = cluster.namespace().unwrap();
    assert_eq!(namespace.devices().unwrap(), ["lo"]);
    let listeners = namespace.listeners().unwrap();
    let ports: BTreeSet<u16> = listeners.iter().map(|address| address.port()).collect();
    // The NameNode, the ResourceManager, the shuffle handler, which takes any address.
    for port in [8020, 8032, 13562] {
        assert!(ports.contains(&port), "{listeners:?}");
        TcpListener::bind(("0.0.0.0", port))
            .unwrap_or_else(|error| panic!("{port} is taken outside: {error}"));
    }
}

#[test]
fn mistakes_are_found_before_anything_is_started() {
    let directory = TempDir::new().unwrap();
    let start = |data: &Path, budget_bytes: u64, pairs: &[(&str, &str)]| {
        let paths = StoragePaths {
            data: vec![data.to_owned()],
            scratch: directory.path().join("scratch"),
            ..StoragePaths::default()
        };
        let resources = SystemResources::with_budget(budget_bytes);
        INSTALLED.start(&paths, &resources, &settings(pairs)).err().unwrap().to_string()
    };
    let error = start(directory.path(), 1 << 30, &[]);
    assert!(
        error.contains("memory") && error.contains("1024.0 MiB is too small: expected at least"),
        "{error}"
    );
    let error = start(&directory.path().join("no"), BUDGET_BYTES, &[]);
    assert!(error.contains("no is missing"), "{error}");
    let error = start(directory.path(), BUDGET_BYTES, &[("configuration", "/no/such")]);
    assert!(error.contains("no core-site.xml in /no/such"), "{error}");
    let error = start(directory.path(), BUDGET_BYTES, &[("storage_types", "disk, ssd")]);
    assert!(error.contains("storage_types"), "{error}");
    assert_eq!(INSTALLED.check_settings(&settings(&[("codec", "lzo")]).values).len(), 1);
    let names: Vec<&str> = INSTALLED.capabilities().jobs.iter().map(|(name, _)| *name).collect();
    let expected =
        ["teragen", "terasort", "teravalidate", "hdfs-write", "wordcount", "shuffle", "shuffle-compressed"];
    assert_eq!(names, expected);
    assert!(INSTALLED.versions()["hadoop"].starts_with("3.4."));
}
