//! What public comparisons ask for, in whole runs: the study says it, and the cell has it.

mod support;

use std::fs;

use support::{Playground, can_mount, records, stderr, stdout};
use underlay_record::{RecordedWork, RunHeader};

/// The command prints what the kernel has set for the device that its directory is on, and which one that is.
const READ_AHEAD: &str = r#"
name = "read-ahead"
[system.program]
kind = "command"
memory = "64 MiB"
[storage.flash]
devices = [{ medium = "ssd-sata", capacity = "100 MiB" }]
filesystem = "ext4"
read_ahead = "16 KiB"
[workload.w]
kind = "command"
limit = "20 s"
run = "b=$(stat -c %Hd:%Ld {data}); echo device $b ahead $(cat /sys/class/bdi/$b/read_ahead_kb)"
[workload.w.figures.ahead]
unit = "KiB"
better = "lower"
pattern = 'ahead ([0-9]+)'
[run]
duration = "1 s"
repetitions = 1
[scale]
time = 1
"#;

#[test]
fn cell_sets_read_ahead_and_restores_it() {
    if !can_mount() {
        return;
    }
    let playground = Playground::new();
    playground.write("study.toml", READ_AHEAD);
    let output = playground.output(&["run", "study.toml", "--out", "out"]);
    assert!(output.status.success(), "{}\n{}", stderr(&output), stdout(&output));
    let [record] = &records(&playground.path("out"))[..] else { panic!("one cell") };
    assert!(record.storage.layout.contains("read-ahead of 16 KiB"), "{}", record.storage.layout);
    let benchmark = record.benchmark.as_ref().unwrap();
    assert_eq!(benchmark.figures[0].wall_value, 16.0, "{}", benchmark.output_tail);
    let device = benchmark.output_tail.split_whitespace().nth(1).unwrap();
    // Where the kernel keeps the device, it is as any other that nobody has set up.
    if let Ok(now) = fs::read_to_string(format!("/sys/class/bdi/{device}/read_ahead_kb")) {
        assert_ne!(now.trim(), "16", "{device}");
    }
    assert_eq!(playground.left_behind(), [""; 0]);
}

/// Four reads to an update, a writer of a given rate beside them, on a volume with one figure changed.
const PROPORTIONS: &str = r#"
name = "theirs"
[system.rocksdb]
memory = "64 MiB"
[storage.cloud]
devices = [{ medium = "ebs-io2", capacity = "20 GB", instance_iops = 18_750 }]
[workload.w]
mixes = [{ read = 80, update = 20 }]
records = 50_000
record = { fields = 10, bytes = 100 }
distribution = "uniform"
threads = 4
beside = { mix = { update = 1.0 }, rate = 200 }
[run]
warmup = "200 ms"
duration = "1 s"
repetitions = 1
[scale]
time = 2
"#;

#[test]
fn proportions_background_writer_and_changed_figure_are_measured() {
    if !can_mount() {
        return;
    }
    let playground = Playground::new();
    playground.write("study.toml", PROPORTIONS);
    let output = playground.output(&["run", "study.toml", "--out", "out"]);
    assert!(output.status.success(), "{}\n{}", stderr(&output), stdout(&output));
    let [record] = &records(&playground.path("out"))[..] else { panic!("one cell") };
    let RecordedWork::Requests(requests) = &record.cell.work else { panic!("{:?}", record.cell.work) };
    assert_eq!(requests.mix, "read80-update20");
    let measured = record.measured.as_ref().unwrap();
    let share = measured.by_operation["read"].count as f64 / measured.operations as f64;
    assert!((0.7..0.9).contains(&share), "{share} of {} operations", measured.operations);
    let background = measured.beside.as_ref().unwrap();
    assert_eq!(
        (background.mix.as_str(), background.threads, background.rate_per_s),
        ("update100", 1, Some(200.0))
    );
    assert!(background.operations > 0 && !background.by_operation.contains_key("read"), "{background:?}");
    let medium = record.storage.devices[0].medium.as_deref();
    assert_eq!(medium, Some("ebs-io2-20-gb-instance-iops-18750"));

    // What it took is on record by parts, beside what was expected.
    let parts = record.wall.unwrap();
    assert!(
        (0.99..=1.0).contains(&parts.measure_s) && parts.load_s > 0.0 && parts.start_s > 0.0,
        "{parts:?}"
    );
    let run = || -> RunHeader {
        serde_json::from_str(&fs::read_to_string(playground.path("out/run.json")).unwrap()).unwrap()
    };
    let [wall] = &run().walls[..] else { panic!("one go") };
    assert_eq!((wall.cells, wall.estimated.measure_s, wall.given_up_s), (1, 1.0, 0.0));
    assert!(wall.took.total_s() >= parts.total_s() && wall.took.measure_s == parts.measure_s, "{wall:?}");
    let message = stderr(&output);
    assert!(message.contains("\ntook ") && message.contains(", estimated "), "{message}");
    // Nothing is left, and nothing is said of how long that took.
    let output = playground.output(&["run", "--resume", "out"]);
    assert!(output.status.success() && !stderr(&output).contains("took "), "{}", stderr(&output));
    assert_eq!(run().walls.len(), 1);
}

/// A load in fast-forward waits for this host alone, and the output says so.
#[test]
fn fast_forward_mount_reports_host_time() {
    if !can_mount() {
        return;
    }
    let playground = Playground::new();
    let load = "dd if=/dev/zero of=mnt/file bs=1M count=16 conv=fsync";
    let output = playground.output(&[
        "mount",
        "hdd-7200-sata",
        "mnt",
        "--size",
        "512 MiB",
        "--immediate",
        "--",
        "sh",
        "-c",
        load,
    ]);
    assert!(output.status.success(), "{}", stderr(&output));
    let message = stderr(&output);
    assert!(message.contains("flushes, each answered by this host in "), "{message}");
    assert!(!message.contains("modelled and"), "{message}");
    assert_eq!(playground.left_behind(), [""; 0]);
}
