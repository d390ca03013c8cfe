//! The real Spark on a real Ceph, started once, with each committer and the gateway in between; and on HDFS. What they
//! need must be there: `scripts/install-packages test`.

mod ending;
mod endpoint;
mod parts;
mod s3a;
mod spark_jobs;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use self::ending::Ending;
use self::spark_jobs::{
    BACK, DATA_BYTES, LIMIT, ON_CEPH, ROWS, SPARK, job, kill_all, put, run, settings, sort_through, start,
};
use tempfile::TempDir;
use underlay_record::{JobRecord, NodeCondition};
use underlay_systems::spark::{OutputCommitter, Spark, SparkCluster};
use underlay_systems::system::{
    JobProgress, JobRequest, RunningSystem, StoragePaths, System as _, SystemError, SystemResources,
};

fn requests(record: &JobRecord, kind: &str) -> u64 {
    record.stages.iter().filter_map(|stage| stage.requests.get(kind)).map(|sum| sum.requests).sum()
}

#[test]
fn committers_sort_on_ceph_and_name_themselves() {
    let folder = TempDir::new().unwrap();
    let mut cluster = start(&SPARK, folder.path(), 8 << 30, &[&ON_CEPH[..], &BACK].concat());
    cluster.health().unwrap();
    let on_host = |port: u16| std::net::TcpStream::connect(("127.0.0.1", port)).is_ok();
    assert!(!on_host(7480), "the gateway can be reached from outside");
    assert!(cluster.namespace().unwrap().listeners().unwrap().iter().any(|address| address.port() == 7480));
    let quiet = |_: &JobProgress| true;

    // It was started with the gateway.
    let used = sort_through(&mut cluster, OutputCommitter::FileV1);
    assert_eq!((used.kind.as_str(), used.write.as_str()), ("gateway", "back"));
    assert!(used.avoided_uploads > Some(0), "what was renamed away was uploaded: {used:#?}");

    cluster.set_committer(OutputCommitter::Magic);
    let teragen = run(&cluster, &job("teragen"), &quiet);
    assert_eq!((teragen.counters["output_records"], teragen.committer.as_deref()), (ROWS, Some("magic")));
    for committer in [
        OutputCommitter::FileV1,
        OutputCommitter::FileV2,
        OutputCommitter::Directory,
        OutputCommitter::Iceberg,
        OutputCommitter::Magic,
    ] {
        cluster.set_committer(committer);
        let record = run(&cluster, &job("terasort"), &quiet);
        assert_eq!(record.committer, Some(committer.name()));
        assert_eq!(record.counters["output_records"], ROWS);
        if committer == OutputCommitter::Iceberg {
            // Columns, and the table tells of itself.
            assert!(record.output_bytes > DATA_BYTES / 2, "{record:#?}");
            assert_eq!(record.counters["committed_records"], ROWS);
            run(&cluster, &job("teravalidate"), &quiet);
        } else {
            assert_eq!(record.output_bytes, DATA_BYTES);
        }
        assert!(record.shuffled_bytes > 0 && record.input_bytes >= DATA_BYTES, "{record:#?}");
        // The rename of a file is a copy of an object, which the store reads and writes again.
        let renames = matches!(committer, OutputCommitter::FileV1 | OutputCommitter::FileV2);
        assert_eq!(requests(&record, "copy") > 0, renames, "{record:#?}");
        if committer == OutputCommitter::FileV1 {
            let commit = record.stages.iter().find(|stage| stage.name == "commit").unwrap();
            assert!(commit.requests.contains_key("copy"), "{record:#?}");
        }
        assert!(requests(&record, "put") > 0 && requests(&record, "get") > 0, "{record:#?}");
        let write = record.stages.iter().find(|stage| stage.name.ends_with("write")).unwrap();
        assert!(write.time.total_s() > 0.0, "{write:?}");
        // Iceberg measures none of its own.
        assert!(write.time.commit_s > 0.0 || committer == OutputCommitter::Iceberg, "{write:?}");
    }
    // What it left is not the sorted rows of another seed.
    let other = JobRequest { seed: 2, ..job("terasort") };
    let error = cluster.verify_job(&other, &quiet).unwrap_err().to_string();
    assert!(error.contains("40000 rows with the checksum"), "{error}");
    run(&cluster, &job("teravalidate"), &quiet);
    let kmeans = run(&cluster, &job("kmeans"), &quiet);
    assert!(kmeans.committer.is_none() && kmeans.input_bytes > 0, "{kmeans:#?}");

    nodes_go_and_come_back(&cluster);

    endpoint::hold(&cluster, &folder.path().join("scratch"), &job("terasort"));

    // A job that is stopped fails, and the next one runs.
    let stopped = cluster.run_job(&job("terasort"), &|_| false).unwrap().unwrap_err().to_string();
    assert!(stopped.contains("it was stopped"), "{stopped}");
    run(&cluster, &job("terasort"), &quiet);

    let gauges = cluster.gauges().unwrap();
    assert!(gauges["current_compute_resident_bytes"] > 1e8 && gauges["current_store_resident_bytes"] > 1e8);
    let figures = cluster.figures().unwrap();
    assert!(figures["osd_write_bytes"] > DATA_BYTES as f64, "{figures:?}");
    assert_eq!(cluster.applied_settings()["committer"], "magic");
    the_death_of_its_cache_ends_a_job(&mut cluster);
    let namespace = std::sync::Arc::clone(cluster.namespace().unwrap());
    Box::new(cluster).stop().unwrap();
    assert!(namespace.listeners().unwrap().is_empty());
}

#[test]
fn s3a_directory_rename_uploads_each_object() {
    s3a::rename_a_directory("3.5", 1_000);
}

/// S3A would try for minutes to reach a gateway that has died, and so would the driver.
fn the_death_of_its_cache_ends_a_job(cluster: &mut SparkCluster) {
    put(cluster, &[("cache", "gateway"), ("cache_flush_after", "1 s")]);
    cluster.prepare_job(&job("terasort"), &|_| true).unwrap();
    let killed = AtomicBool::new(false);
    let failure = cluster.run_job(&job("terasort"), &|_| {
        if !killed.swap(true, Ordering::Relaxed) {
            kill_all(cluster, b"gateway.toml");
        }
        true
    });
    let failure = failure.unwrap().unwrap_err().to_string();
    assert!(failure.contains("the S3 gateway") && failure.contains("was killed"), "{failure}");
    cluster.abandon_cache();
}

/// A worker is killed and an OSD is stopped while a job runs: its output is right. Both come back.
fn nodes_go_and_come_back(cluster: &SparkCluster) {
    let nodes = cluster.nodes().unwrap();
    let names: Vec<String> = nodes.list().unwrap().into_iter().map(|node| node.name).collect();
    assert_eq!(names, ["worker1", "worker2", "osd0", "osd1"]);
    let begun = AtomicBool::new(false);
    let larger = JobRequest { data_bytes: 10 * DATA_BYTES, reduces: Some(8), ..job("terasort") };
    cluster.prepare_job(&larger, &|_| true).unwrap();
    std::thread::scope(|scope| {
        let killer = scope.spawn(|| {
            while !begun.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(20));
            }
            nodes.kill("worker2").unwrap();
            nodes.stop("osd1").unwrap();
        });
        let ended = Ending(&begun);
        let record = run(cluster, &larger, &|progress| {
            if progress.done > 0.0 {
                begun.store(true, Ordering::Relaxed);
            }
            true
        });
        drop(ended);
        killer.join().unwrap();
        assert_eq!(record.counters["output_records"], 10.0 * ROWS);
    });
    cluster.health().unwrap();
    for name in ["worker2", "osd1"] {
        nodes.start(name, &|| {}).unwrap();
    }
    // What was written meanwhile has one copy.
    cluster.settle(LIMIT).unwrap();
    // One that is killed is still up in Ceph's map when it starts again: it serves once the map has the new one.
    nodes.kill("osd0").unwrap();
    nodes.start("osd0", &|| {}).unwrap();
    cluster.settle(LIMIT).unwrap();
    assert!(nodes.list().unwrap().iter().all(|node| node.condition == NodeCondition::Serving));
}

/// Spark would wait for another one forever.
fn the_death_of_the_only_worker_ends_a_job(cluster: &SparkCluster) {
    let killed = AtomicBool::new(false);
    let failure = cluster.run_job(&job("terasort"), &|_| {
        if !killed.swap(true, Ordering::Relaxed) {
            kill_all(cluster, b"worker-1.arguments");
        }
        true
    });
    let failure = failure.unwrap().unwrap_err().to_string();
    assert!(failure.contains("Worker 1") && failure.contains("was killed"), "{failure}");
}

#[test]
fn jobs_run_on_hdfs_over_link() {
    let folder = TempDir::new().unwrap();
    let refused = |budget_bytes: u64, pairs: &[(&str, &str)], data: Vec<std::path::PathBuf>| {
        let paths = StoragePaths { data, scratch: folder.path().join("none"), ..StoragePaths::default() };
        let started = SPARK.start(&paths, &SystemResources::with_budget(budget_bytes), &settings(pairs));
        started.map(drop).unwrap_err()
    };
    let small = refused(1 << 30, &[], vec![folder.path().to_owned()]);
    assert!(matches!(&small, SystemError::Setting { key, .. } if key == "memory"), "{small}");
    let missing = refused(8 << 30, &[], vec![folder.path().join("missing")]).to_string();
    assert!(missing.contains("is the storage attached?"), "{missing}");
    assert!(!folder.path().join("missing").exists());
    let without_gateway = Spark::with_variables(|_| Some("/no/such/underlay-gateway".to_owned()));
    let paths = StoragePaths {
        data: vec![folder.path().to_owned()],
        scratch: folder.path().join("none"),
        ..StoragePaths::default()
    };
    let cached = settings(&[("store", "s3a"), ("cache", "gateway")]);
    let missing = without_gateway
        .start(&paths, &SystemResources::with_budget(8 << 30), &cached)
        .map(drop)
        .unwrap_err()
        .to_string();
    assert!(missing.contains("/no/such/underlay-gateway") && missing.contains("make gateway"), "{missing}");

    let pairs = [
        ("datanodes", "1"),
        ("executors", "1"),
        ("committer", "file-v2"),
        ("link_bandwidth", "2 Gbit/s"),
        ("link_latency", "100 us"),
    ];
    let cluster = start(&SPARK, folder.path(), 4 << 30, &pairs);
    let record = run(&cluster, &job("terasort"), &|_| true);
    assert_eq!((record.committer.as_deref(), record.output_bytes), (Some("file-v2"), DATA_BYTES));
    assert!(record.stages.iter().all(|stage| stage.requests.is_empty()));
    // HDFS is on a machine of its own, and all that is read and written goes over the link.
    let at_store = cluster.store_namespace().unwrap().listeners().unwrap();
    let listeners = cluster.namespace().unwrap().listeners().unwrap();
    assert!(
        !at_store.is_empty() && at_store.iter().all(|address| !listeners.contains(address)),
        "{at_store:?}"
    );
    let figures = cluster.figures().unwrap();
    for way in ["link_to_store_bytes", "link_from_store_bytes"] {
        assert!(figures[way] > DATA_BYTES as f64, "{figures:?}");
    }
    // Its check holds each answer against DuckDB's.
    let queries = JobRequest { data_bytes: 20_000_000, ..job("tpcds-few") };
    let record = run(&cluster, &queries, &|_| true);
    assert!(
        record.counters["q62_wall_ms"] > 0.0 && record.counters["queries_without_rows"] == 0.0,
        "{record:#?}"
    );
    the_death_of_the_only_worker_ends_a_job(&cluster);

    let namespace = std::sync::Arc::clone(cluster.namespace().unwrap());
    // Without a clean end nothing stays either.
    cluster.abort();
    drop(cluster);
    // What was killed may be a moment in going, on a busy machine.
    let began = Instant::now();
    while !namespace.listeners().unwrap().is_empty() {
        assert!(began.elapsed() < LIMIT, "{:?}", namespace.listeners());
        std::thread::sleep(Duration::from_millis(20));
    }
}
