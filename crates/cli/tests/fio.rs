//! Jobs of fio in studies: what they may name, what slow motion makes of them, and which figures they have.

mod support;

use support::{Playground, can_mount, records, stderr, stdout};
use underlay_record::{BenchmarkRecord, CellStatus, RunRecord};

/// A study of one cell, whose job has these lines.
fn study(medium: &str, job: &str) -> String {
    format!(
        r#"
name = "f"
[system.file]
kind = "command"
memory = "1 GiB"
load = "fio --name=fill --filename={{data}}/file --size={{data_bytes}} --rw=write --bs=1M --direct=1 --end_fsync=1"
[storage.v]
devices = [{{ medium = "{medium}", capacity = "1 GiB" }}]
[workload.w]
kind = "fio"
data = "64 MB"
job = """
{job}
"""
[run]
warmup = "0 s"
duration = "2 s"
repetitions = 1
"#
    )
}

fn section(lines: &str) -> String {
    format!("[t]\nfilename={{data}}/file\ndirect=1\nbs=4k\n{lines}\ntime_based\nruntime={{duration_s}}")
}

/// The record of the study's only cell.
fn run(medium: &str, job: &str, time: &str) -> RunRecord {
    let playground = Playground::new();
    playground.write("f.toml", &study(medium, job));
    let output = playground.output(&["run", "f.toml", "--time", time, "--out", "out"]);
    let all = records(&playground.path("out"));
    let [record] = all.as_slice() else {
        panic!("{job}: {} records\n{}\n{}", all.len(), stdout(&output), stderr(&output));
    };
    assert_eq!(playground.left_behind(), [""; 0]);
    record.clone()
}

fn measured(record: &RunRecord) -> &BenchmarkRecord {
    assert_eq!(record.status, CellStatus::Completed);
    record.benchmark.as_ref().expect("it was measured")
}

fn names(record: &RunRecord) -> Vec<&str> {
    measured(record).figures.iter().map(|figure| figure.name.as_str()).collect()
}

fn value(record: &RunRecord, name: &str) -> f64 {
    measured(record).figures.iter().find(|figure| figure.name == name).map_or(f64::NAN, |figure| figure.value)
}

fn checked(job: &str) -> (bool, String) {
    let playground = Playground::new();
    playground.write("f.toml", &study("ssd-sata", job));
    let output = playground.output(&["check", "f.toml"]);
    (output.status.success(), stdout(&output) + &stderr(&output))
}

#[test]
fn job_outside_storage_is_refused_before_start() {
    let playground = Playground::new();
    let outside = playground.path("outside.bin");
    let job = format!("[t]\nfilename={}\nsize=16m\nrw=randwrite\nruntime={{duration_s}}", outside.display());
    playground.write("f.toml", &study("ssd-sata", &job));
    for command in [&["check", "f.toml"][..], &["run", "f.toml", "--time", "1", "--out", "out"]] {
        let output = playground.output(command);
        let message = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{message}");
        assert!(
            message.contains("f.toml:14:1") && message.contains("outside.bin") && message.contains("{data}"),
            "{message}"
        );
    }
    assert!(!outside.exists(), "nothing was written");
}

/// Each of its workloads is wrong in its own way.
const WRONG: &str = r#"name = "elsewhere"

[system.file]
kind = "command"
memory = "1 GiB"

[storage.disk]
devices = [{ medium = "hdd-7200-4tb" }]

[workload.host-disk]
kind = "fio"
job = """
[global]
directory={data}
[first]
filename=/dev/sda
[second]
filename=../../etc/passwd
exec_prerun=/bin/true
"""

[workload.no-file]
kind = "fio"
job = "[reads]\nrw=randread\n"

[workload.unknown-option]
kind = "fio"
job = """
[reads]
filename={data}/file
iodept=4
"""

[workload.a-rate-that-is-none]
kind = "fio"
job = """
[reads]
filename={data}/file
rate_iops=many
"""

[workload.a-rate-too-low]
kind = "fio"
job = """
[reads]
filename={data}/file
bssplit=4k/50:8k/50
rate_iops=10
"""

[workload.parts-of-blocks]
kind = "fio"
job = """
[reads]
filename={data}/file
direct=1
bssplit=512/10:4k/90
"""

[workload.elsewhere]
kind = "command"
run = "fio --name=t --filename=/tmp/x --rate_iops=500"
figures.speed = { pattern = '([0-9]+)', unit = "tps", better = "higher" }

[scale]
time = 4
"#;

#[test]
fn mistakes_in_jobs_are_told_at_their_lines() {
    let playground = Playground::new();
    playground.write("f.toml", WRONG);
    let output = playground.output(&["check", "f.toml"]);
    let message = stderr(&output);
    assert_eq!(output.status.code(), Some(2), "{message}");
    let line_of = |text: &str| WRONG.lines().position(|line| line == text).expect("it stands there") + 1;
    for (text, words) in [
        ("filename=/dev/sda", "which is not on the storage"),
        ("filename=../../etc/passwd", "leaves its directory"),
        ("exec_prerun=/bin/true", "runs a program"),
        ("iodept=4", "did you mean `iodepth`?"),
        ("rate_iops=many", "can't convert"),
        ("rate_iops=10", "divided by 4"),
    ] {
        assert!(
            message.contains(&format!("f.toml:{}:1", line_of(text))) && message.contains(words),
            "{text}: {message}"
        );
    }
    assert!(message.contains("line 1 of the job: fio's job [reads] names no file"), "{message}");
    assert!(message.contains("direct requests of 512 bytes"), "{message}");
    // Notes appear once the mistakes are mended.
    let mended: Vec<&str> = WRONG.split("\n[workload.").collect();
    let outside = mended.iter().find(|section| section.starts_with("elsewhere]")).unwrap();
    let text = format!("{}\n[workload.{outside}", mended[0]);
    playground.write("f.toml", &text);
    let output = playground.output(&["check", "f.toml"]);
    let message = stderr(&output);
    assert!(output.status.success(), "{message}");
    assert!(message.contains("`--rate_iops=500`") && message.contains("`--filename=/tmp/x`"), "{message}");
    assert!(message.contains("names {data} or {device}"), "{message}");
}

/// A command that runs fio, whose job has a rate and a file of this host, and a script that hides another rate.
const HIDDEN: &str = r#"name = "hidden"

[system.program]
kind = "command"
memory = "1 GiB"
start = "FIO=/usr/bin/fio; $FIO --rate_iops=70 & exec sleep 1000"
ready = "true"

[storage.disk]
devices = [{ medium = "hdd-7200-4tb" }]

[workload.job]
kind = "command"
run = "X=$(fio --thinktim=5 {job}); sh -c \"fio --rate=1m\" # {data}"
job = """
[reads]
filename=/dev/sda
rate_iops=100
"""
figures.speed = { pattern = '([0-9]+)', unit = "\u03bcs", better = "lower" }

[scale]
time = 4
"#;

#[test]
fn fio_options_are_judged_by_the_table() {
    let playground = Playground::new();
    playground.write("f.toml", HIDDEN);
    let output = playground.output(&["check", "f.toml"]);
    let message = stdout(&output) + &stderr(&output);
    assert!(output.status.success(), "{message}");
    for words in [
        "`filename=/dev/sda` names `/dev/sda`, which is not on the storage",
        "`rate_iops=100` counts by this machine's clock",
        "`--thinktim=5` counts by this machine's clock",
        "`--rate=1m` counts by this machine's clock",
        "can't be judged",
        "in `start` of [system.program], fio",
        "names {data} or {device}",
    ] {
        assert!(message.contains(words), "{words}: {message}");
    }
    let line = HIDDEN.lines().position(|line| line == "rate_iops=100").unwrap() + 1;
    assert!(message.contains(&format!("f.toml:{line}:1")), "{message}");
}

#[test]
fn stonewall_in_single_section_is_accepted() {
    let (is_good, message) = checked(&section("rw=randread\nioengine=libaio\niodepth=4\nstonewall"));
    assert!(is_good, "{message}");
    let (is_good, message) = checked(&section("rw=randread\niodeptth=4"));
    assert!(!is_good && message.contains("did you mean `iodepth`?"), "{message}");
}

/// fio counts its rate by this machine's clock.
#[test]
fn job_rate_is_in_modelled_time() {
    if !can_mount() {
        return;
    }
    let record = run("ssd-sata", &section("rw=randread\nioengine=libaio\niodepth=32\nrate_iops=500"), "4");
    let operations = value(&record, "read operations");
    assert!(
        (450.0..=550.0).contains(&operations),
        "{operations}: 500 were asked for, and 2,000 without conversion"
    );
    // 500 are 41.7 by this machine's clock, which fio takes in bytes.
    let record = run("ssd-sata", &section("rw=randread\nioengine=libaio\niodepth=32\nrate_iops=500"), "12");
    let operations = value(&record, "read operations");
    assert!((450.0..=550.0).contains(&operations), "{operations}");
}

#[test]
fn absent_job_figures_are_left_out() {
    if !can_mount() {
        return;
    }
    let reduced = run(
        "ssd-sata",
        &section("readwrite=randrw\nrwmixread=75\nioengine=libaio\niodepth=16\ngtod_reduce=1"),
        "4",
    );
    assert_eq!(names(&reduced), ["read operations", "read bandwidth", "write operations", "write bandwidth"]);
    assert!(reduced.warnings.iter().any(|warning| warning.contains("gtod_reduce")), "{:?}", reduced.warnings);
    let writes = run("ssd-sata", &section("rw=randrw\nrwmixread=0\nioengine=libaio\niodepth=16"), "4");
    assert!(names(&writes).iter().all(|name| name.starts_with("write ")), "{:?}", names(&writes));
    let only_writer = "[global]\nfilename={data}/file\ndirect=1\nbs=4k\nrw=randread\ntime_based\nruntime={duration_s}\n[only-writer]\nrw=randwrite";
    let global = run("ssd-sata", only_writer, "4");
    assert!(
        names(&global).iter().all(|name| name.starts_with("write "))
            && !global.warnings.iter().any(|warning| warning.contains("made no")),
        "{:?}",
        global.warnings
    );
    let reader = run("ssd-sata", &section("rw=randread\nioengine=psync\nfsync=1"), "4");
    assert!(names(&reader).iter().all(|name| name.starts_with("read ")), "{:?}", names(&reader));
}

#[test]
fn requests_of_512_bytes_work_on_512e_media() {
    if !can_mount() {
        return;
    }
    for medium in ["ssd-sata", "hdd-7200-sata", "nvme-9300-max"] {
        let record =
            run(medium, &section("rw=randrw\nioengine=libaio\niodepth=4\nbssplit=512/10:4k/90"), "4");
        assert!(
            value(&record, "read operations") > 0.0 && value(&record, "write operations") > 0.0,
            "{medium}"
        );
    }
}

#[test]
fn fios_own_error_is_in_the_message() {
    if !can_mount() {
        return;
    }
    let record = run("ssd-sata", &section("rw=trimwrite\nioengine=libaio\niodepth=4"), "1");
    let CellStatus::Failed { reason } = &record.status else { panic!("{:?}", record.status) };
    assert!(reason.contains("Inappropriate ioctl") && reason.contains("{device}"), "{reason}");
}
