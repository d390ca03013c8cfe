//! A study of batch jobs: a whole run of the real program with the real Hadoop.

mod support;

use std::collections::BTreeSet;

use support::{Playground, can_mount, records, stderr, stdout};
use underlay_record::CellStatus;

/// A disk, and an SSD that counts for two.
const STUDY: &str = r#"
name = "jobs"
baseline = "hybrid"

[system.hadoop]
memory = "34 GB"
datanodes = 1
replication = 1
block_size = "8 MiB"

[storage.hybrid]
devices = [
    { medium = "hdd-mapreduce", capacity = "20 GB" },
    { medium = "ssd-mapreduce", capacity = "20 GB", directories = 2 },
]
layout = "jbod"

[workload.mapreduce]
kind = "jobs"
jobs = ["shuffle", "teragen"]
data = { others = "960 MB", shuffle = "320 MB" }
maps = 2
reduces = 1
limit = "5 min"

[run]
repetitions = 1
cache = "cold"

[scale]
time = 2
data = 20
"#;

#[test]
fn jobs_run_in_order_on_one_cluster_and_leave_a_record_each() {
    if !can_mount() {
        return;
    }
    let playground = Playground::new();
    playground.write("study.toml", STUDY);
    let output = playground.output(&["run", "study.toml", "--out", "out"]);
    assert!(output.status.success(), "{}\n{}", stderr(&output), stdout(&output));
    let mut records = records(&playground.path("out"));
    records.sort_by_key(|record| record.position);
    let jobs: Vec<&str> = records.iter().map(|record| record.cell.mix.as_str()).collect();
    assert_eq!(jobs, ["teragen", "shuffle"], "in the system's order, not in the study's");
    for record in &records {
        let id = &record.cell.id;
        assert_eq!(record.status, CellStatus::Completed, "{id}");
        assert!(record.cell.is_job() && record.measured.is_none(), "{id}");
        let job = record.job.as_ref().unwrap();
        assert_eq!(job.name, record.cell.mix);
        // Slow motion is divided out of everything but what is said to be of this machine's clock.
        assert!(
            (job.wall_s / job.duration_s - 2.0).abs() < 1e-6,
            "{id}: {} s, {} s here",
            job.duration_s,
            job.wall_s
        );
        assert!(job.wall_s < record.wall_s && job.tasks["map"] == 2, "{id}");
        let devices: BTreeSet<&str> =
            record.devices.iter().map(|device| device.description.name.as_str()).collect();
        assert_eq!(devices, BTreeSet::from(["hdd-mapreduce.0", "ssd-mapreduce.1"]), "{id}");
        for device in &record.devices {
            // The devices were watched over the job and nothing else.
            assert!(device.duration_s >= job.duration_s * 0.9, "{id}: {} s", device.duration_s);
            assert!(device.duration_s < record.wall_s / 2.0 + 1.0, "{id}: {} s", device.duration_s);
        }
        let certificate = record.certificate.as_ref().unwrap();
        assert!(certificate.checks.iter().any(|check| check.name == "memory budget"), "{id}");
        for directory in &job.directories {
            let device = directory.device.as_deref().unwrap();
            let expected = if directory.directory == 0 { "hdd-mapreduce.0" } else { "ssd-mapreduce.1" };
            assert_eq!(device, expected, "{id}: directory {}", directory.directory);
        }
    }
    let teragen = records[0].job.as_ref().unwrap();
    let blocks: Vec<u64> = [0, 1, 2]
        .map(|index| {
            let of = teragen.directories.iter().filter(|one| one.role == "hdfs" && one.directory == index);
            of.map(|one| one.files).sum()
        })
        .into();
    // 48 MB in blocks of 8 MiB, each directory in its turn.
    assert!(blocks.iter().sum::<u64>() >= 6 && blocks.iter().all(|count| *count >= 2), "{blocks:?}");
    assert!(teragen.output_bytes >= 47_000_000, "{}", teragen.output_bytes);
    assert!(records[1].job.as_ref().unwrap().shuffled_bytes > 0);
    let page = std::fs::read_to_string(playground.path("out/report.html")).unwrap();
    assert!(page.contains("teragen"));
}
