//! Small jobs of a Spark that a test starts.

use std::path::Path;
use std::time::Duration;

use underlay_record::JobRecord;
use underlay_systems::spark::{Cluster, Spark};
use underlay_systems::system::{
    JobProgress, JobRequest, Resources, Running as _, Settings, StoragePaths, System as _,
};

use crate::parts;

pub(crate) const DATA_BYTES: u64 = 4_000_000;
pub(crate) const ROWS: f64 = 40_000.0;
pub(crate) const LIMIT: Duration = Duration::from_secs(300);

pub(crate) fn settings(pairs: &[(&str, &str)]) -> Settings {
    let values = pairs.iter().map(|&(key, value)| (key.to_owned(), value.to_owned())).collect();
    Settings { values, ..Settings::default() }
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

pub(crate) fn start(spark: &Spark, folder: &Path, budget_bytes: u64, pairs: &[(&str, &str)]) -> Cluster {
    let data = folder.join("data");
    std::fs::create_dir_all(&data).unwrap();
    let paths = StoragePaths { data: vec![data], scratch: folder.join("scratch"), ..StoragePaths::default() };
    let settings = settings(pairs);
    let cluster = spark
        .start_cluster(&paths, &Resources::of(budget_bytes), &settings)
        .unwrap_or_else(|error| panic!("{error}"));
    parts::hold(&spark.parts(&paths, &settings.values), &cluster);
    cluster
}

/// Runs a job and checks what it left.
pub(crate) fn run(
    cluster: &Cluster,
    job: &JobRequest,
    watch: &(dyn Fn(&JobProgress) -> bool + Sync),
) -> JobRecord {
    cluster.prepare_job(job, watch).unwrap_or_else(|error| panic!("before {}: {error}", job.name));
    let record = cluster.run_job(job, watch).unwrap().unwrap_or_else(|error| panic!("{}: {error}", job.name));
    cluster.verify_job(job, watch).unwrap_or_else(|error| panic!("after {}: {error}", job.name));
    assert_eq!(record.name, job.name);
    let stages: f64 = record.stages.iter().map(|stage| stage.duration_s).sum();
    assert!(stages > 0.5 * record.duration_s, "{record:#?}");
    record
}
