//! Small jobs of a Spark that a test starts, and caches between them and Ceph.

use std::path::{Path, PathBuf};
use std::time::Duration;

use underlay_record::{CacheUse, JobRecord};
use underlay_systems::spark::{OutputCommitter, Spark, SparkCluster};
use underlay_systems::system::{
    JobProgress, JobRequest, RunningSystem as _, StoragePaths, System as _, SystemResources, SystemSettings,
};

use crate::parts;

/// The gateway that this workspace builds: `scripts/test` sees to it.
pub(crate) fn gateway() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    test.parent().and_then(Path::parent).unwrap().join("underlay-gateway")
}

/// The system, with this gateway.
pub(crate) static SPARK: Spark = Spark::with_variables(|name| match name {
    "UNDERLAY_GATEWAY" => Some(gateway().display().to_string()),
    other => std::env::var(other).ok(),
});

pub(crate) const DATA_BYTES: u64 = 4_000_000;
pub(crate) const ROWS: f64 = 40_000.0;
pub(crate) const LIMIT: Duration = Duration::from_secs(300);

/// Two workers, and two OSDs with a copy each.
pub(crate) const ON_CEPH: [(&str, &str); 5] =
    [("store", "s3a"), ("committer", "iceberg"), ("workers", "2"), ("osds", "2"), ("replication", "2")];
/// The gateway that writes back, late enough for what is renamed away to be never stored.
pub(crate) const BACK: [(&str, &str); 3] =
    [("cache", "gateway"), ("cache_memory", "128 MiB"), ("cache_flush_after", "10 s")];

pub(crate) fn settings(pairs: &[(&str, &str)]) -> SystemSettings {
    let values = pairs.iter().map(|&(key, value)| (key.to_owned(), value.to_owned())).collect();
    SystemSettings { values, ..SystemSettings::default() }
}

pub(crate) fn job(name: &str) -> JobRequest {
    JobRequest {
        name: name.to_owned(),
        data_bytes: DATA_BYTES,
        maps: Some(2),
        reduces: Some(2),
        compressibility: 0.5,
        seed: 1,
        limit: LIMIT,
    }
}

pub(crate) fn start(spark: &Spark, folder: &Path, budget_bytes: u64, pairs: &[(&str, &str)]) -> SparkCluster {
    let data = folder.join("data");
    std::fs::create_dir_all(&data).unwrap();
    let paths = StoragePaths { data: vec![data], scratch: folder.join("scratch"), ..StoragePaths::default() };
    let settings = settings(pairs);
    let cluster = spark
        .start_cluster(&paths, &SystemResources::with_budget(budget_bytes), &settings)
        .unwrap_or_else(|error| panic!("{error}"));
    parts::hold(&spark.parts(&paths, &settings.values), &cluster);
    cluster
}

/// Runs a job and checks what it left.
pub(crate) fn run(
    cluster: &SparkCluster,
    job: &JobRequest,
    watch: &(dyn Fn(&JobProgress) -> bool + Sync),
) -> JobRecord {
    cluster.prepare_job(job, watch).unwrap_or_else(|error| panic!("before {}: {error}", job.name));
    let ran = cluster.run_job(job, watch).unwrap();
    let mut record = ran.unwrap_or_else(|error| panic!("{}: {error}", job.name));
    cluster.complete_job(&mut record);
    cluster.verify_job(job, watch).unwrap_or_else(|error| panic!("after {}: {error}", job.name));
    assert_eq!(record.name, job.name);
    let stages: f64 = record.stages.iter().map(|stage| stage.duration_s).sum();
    assert!(stages > 0.5 * record.duration_s, "{record:#?}");
    record
}

/// Puts another cache between, by its settings; none without.
pub(crate) fn put(cluster: &mut SparkCluster, pairs: &[(&str, &str)]) {
    let changed = cluster.set_cache(&settings(pairs).values, &SystemResources::with_budget(8 << 30), LIMIT);
    changed.unwrap_or_else(|error| panic!("{pairs:?}: {error}"));
}

/// Sorts through a cache, waits until Ceph has the output, and checks it there without the cache.
pub(crate) fn sort_through(cluster: &mut SparkCluster, committer: OutputCommitter) -> CacheUse {
    let quiet = |_: &JobProgress| true;
    cluster.set_committer(committer);
    let sort = job("terasort");
    let record = run(cluster, &sort, &quiet);
    assert_eq!((record.committer, record.output_bytes), (Some(committer.name()), DATA_BYTES));
    let used = cluster.drain_job(&sort, &quiet).unwrap().expect("it is drained once");
    assert!(cluster.drain_job(&sort, &quiet).unwrap().is_none());
    assert!(used.drain_s >= 0.0 && used.read_bytes >= DATA_BYTES, "{used:#?}");
    assert!(used.stored_bytes >= DATA_BYTES && used.written_bytes >= DATA_BYTES, "{used:#?}");
    put(cluster, &[]);
    cluster.verify_job(&sort, &quiet).unwrap_or_else(|error| panic!("past the cache: {error}"));
    used
}

/// Kills the processes of a cluster that have this among their arguments.
pub(crate) fn kill_all(cluster: &SparkCluster, word: &[u8]) {
    let is_it = |process: &u32| {
        let words = std::fs::read(format!("/proc/{process}/cmdline")).unwrap_or_default();
        words.windows(word.len()).any(|part| part == word)
    };
    let found: Vec<u32> = cluster.processes().into_iter().filter(is_it).collect();
    assert!(!found.is_empty());
    for process in found {
        let process = rustix::process::Pid::from_raw(i32::try_from(process).unwrap()).unwrap();
        rustix::process::kill_process(process, rustix::process::Signal::KILL).unwrap();
    }
}
