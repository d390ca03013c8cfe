//! A study of batch jobs: a whole run of the real program with the real Hadoop.

mod support;

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::time::{Duration, Instant};

use support::{Mounted, Playground, can_mount, records, stderr, stdout};
use underlay_record::{CellStatus, CheckId};

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

/// The NodeManager's mount namespace begins as a copy of ours, with the disk that somebody else has mounted. How that
/// one ended, and what still is of it.
fn end_while_containers_are_there(playground: &Playground, disk: Mounted) -> (ExitStatus, Vec<String>) {
    let folder = playground.folder.path().to_str().unwrap();
    let ours = std::fs::read_link("/proc/self/ns/mnt").unwrap();
    let copied = |process: &Path| {
        let line = std::fs::read_to_string(process.join("cmdline")).unwrap_or_default();
        line.contains(folder) && std::fs::read_link(process.join("ns/mnt")).is_ok_and(|link| link != ours)
    };
    let deadline = Instant::now() + Duration::from_secs(240);
    while !std::fs::read_dir("/proc").unwrap().flatten().any(|entry| copied(&entry.path())) {
        assert!(Instant::now() < deadline, "no NodeManager was started");
        std::thread::sleep(Duration::from_millis(20));
    }
    let ended = disk.end();
    let disk = playground.path("disk");
    let of_disk = |left: &String| left.contains("/dev/loop") && left.contains(disk.to_str().unwrap());
    (ended, playground.left_behind().into_iter().filter(of_disk).collect())
}

#[test]
fn jobs_run_in_order_on_one_cluster() {
    if !can_mount() {
        return;
    }
    let playground = Playground::new();
    playground.write("study.toml", STUDY);
    let disk = Mounted::start(&playground, &["mount", "ssd-sata", "disk", "--size", "320 MiB"]);
    let run = playground
        .underlay(&["run", "study.toml", "--out", "out"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let (ended, still) = end_while_containers_are_there(&playground, disk);
    let output = run.wait_with_output().unwrap();
    assert_eq!((ended.code(), still), (Some(130), Vec::new()));
    assert!(output.status.success(), "{}\n{}", stderr(&output), stdout(&output));
    let parts = &support::parts(&playground.path("out"))[0];
    let names: Vec<&str> = parts.servers.iter().map(|server| server.name.as_str()).collect();
    assert_eq!(names, ["resourcemanager", "nodemanager", "namenode", "datanode1"]);
    // The SSD is two directories.
    let below: Vec<&str> =
        parts.directories.iter().map(|directory| directory.devices[0].name.as_str()).collect();
    assert_eq!(below, ["hdd-mapreduce.0", "ssd-mapreduce.1", "ssd-mapreduce.1"]);
    assert_eq!(parts.servers[3].keeps.len(), 3, "{parts:?}");
    let mut records = records(&playground.path("out"));
    records.sort_by_key(|record| record.position);
    let jobs: Vec<&str> = records.iter().map(|record| record.cell.mix_or_job()).collect();
    assert_eq!(jobs, ["teragen", "shuffle"], "in the system's order, not in the study's");
    for record in &records {
        let id = &record.cell.id;
        assert_eq!(record.status, CellStatus::Completed, "{id}");
        assert!(record.cell.is_job() && record.measured.is_none(), "{id}");
        let job = record.job.as_ref().unwrap();
        assert_eq!(job.name, record.cell.mix_or_job());
        // Slow motion is divided out of everything but what is said to be of this machine's clock.
        assert!(
            (job.wall_s / job.duration_s - 2.0).abs() < 1e-6,
            "{id}: {} s, {} s here",
            job.duration_s,
            job.wall_s
        );
        assert!(job.wall_s < record.wall_s && job.tasks["map"] == 2, "{id}");
        let devices: BTreeSet<&str> =
            record.devices.iter().map(|device| device.description.id.name.as_str()).collect();
        assert_eq!(devices, BTreeSet::from(["hdd-mapreduce.0", "ssd-mapreduce.1"]), "{id}");
        for device in &record.devices {
            // The devices were watched over the job and nothing else.
            assert!(device.duration_s >= job.duration_s * 0.9, "{id}: {} s", device.duration_s);
            assert!(device.duration_s < record.wall_s / 2.0 + 1.0, "{id}: {} s", device.duration_s);
        }
        let certificate = record.certificate.as_ref().unwrap();
        assert!(certificate.checks.iter().any(|check| check.id == Some(CheckId::MemoryBudget)), "{id}");
        for directory in &job.directories {
            let device = directory.device.as_ref().unwrap();
            let expected = if directory.directory == 0 { "hdd-mapreduce.0" } else { "ssd-mapreduce.1" };
            assert_eq!(device.name, expected, "{id}: directory {}", directory.directory);
        }
    }
    let teragen = records[0].job.as_ref().unwrap();
    let blocks: Vec<u64> = [0, 1, 2]
        .map(|index| {
            let uses = teragen.directories.iter().filter(|one| one.role == "hdfs" && one.directory == index);
            uses.map(|one| one.files).sum()
        })
        .into();
    // 48 MB in blocks of 8 MiB, each directory in its turn.
    assert!(blocks.iter().sum::<u64>() >= 6 && blocks.iter().all(|count| *count >= 2), "{blocks:?}");
    assert!(teragen.output_bytes >= 47_000_000, "{}", teragen.output_bytes);
    assert!(records[1].job.as_ref().unwrap().shuffled_bytes > 0);
    let page = std::fs::read_to_string(playground.path("out/report.html")).unwrap();
    assert!(page.contains("teragen"));
}
