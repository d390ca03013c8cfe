//! Any program as a system: whole runs of studies whose systems and benchmarks are commands.

mod support;

use support::{Playground, can_mount, records, stderr, stdout};
use underlay_record::{CellStatus, CheckId};

/// The study in the documentation that works when pasted.
fn documented() -> String {
    let page = include_str!("../../../docs/any-system.md");
    let study = page.split("```toml\n").nth(1).and_then(|rest| rest.split("```").next());
    study.expect("the page begins with a whole study").to_owned()
}

#[test]
fn documented_study_runs_compares_and_resumes() {
    if !can_mount() {
        return;
    }
    let playground = Playground::new();
    playground.write("words.toml", &documented());
    let limited = ["--only", "storage=ssd", "--repetitions", "1"];
    // A host that is busy with other tests would choose a much larger one.
    let part = [&["run", "words.toml", "--out", "out", "--time", "8"][..], &limited].concat();
    let output = playground.output(&part);
    assert!(output.status.success(), "{}\n{}", stderr(&output), stdout(&output));
    assert_eq!(records(&playground.path("out")).len(), 1);
    // Drawings show a program as one server with all of its directories.
    let parts = support::parts(&playground.path("out")).pop().unwrap();
    let [server] = parts.servers.as_slice() else { panic!("{parts:?}") };
    assert_eq!((server.what.as_str(), server.keeps.len()), ("server", parts.directories.len()));
    assert!(parts.directories.iter().all(|directory| !directory.devices.is_empty()), "{parts:?}");
    let output = playground.output(&["run", "--resume", "out"]);
    assert!(output.status.success(), "{}\n{}", stderr(&output), stdout(&output));
    let all = records(&playground.path("out"));
    assert_eq!(all.len(), 6);
    for record in &all {
        let benchmark = record.benchmark.as_ref().unwrap();
        let [figure] = benchmark.figures.as_slice() else { panic!("{:?}", benchmark.figures) };
        assert_eq!((figure.name.as_str(), figure.unit.as_str()), ("duration", "s"));
        assert!((figure.wall_value / figure.value - 8.0).abs() < 1e-9, "slow motion is divided out");
        let read: u64 = record.devices.iter().map(|device| device.totals.read_bytes).sum();
        assert!(read >= 95 << 20, "the devices served {read} bytes");
        assert!(record.certificate.is_some());
    }
    let text = stdout(&output);
    assert!(text.contains("as good as disk") && text.contains("duration, lower is better"), "{text}");
    let log = std::fs::read_to_string(playground.path("out/cells/files.ssd.scan.r1.log")).unwrap();
    assert!(log.contains("copied"), "{log}");
    let output = playground.output(&["report", "out", "out"]);
    assert!(output.status.success() && stdout(&output).contains("no difference seen"), "{}", stdout(&output));
    assert_eq!(playground.left_behind(), [""; 0]);
}

/// A study of one cell on a small disk.
fn study(system: &str, workload: &str) -> String {
    format!(
        r#"
name = "hostile"
[system.program]
kind = "command"
memory = "64 MiB"
{system}
[storage.flash]
devices = [{{ medium = "ssd-sata", capacity = "100 MiB" }}]
filesystem = "ext4"
[workload.w]
kind = "command"
limit = "20 s"
{workload}
[workload.w.figures.speed]
unit = "tps"
better = "higher"
pattern = 'speed ([0-9]+)'
[run]
duration = "1 s"
repetitions = 1
[scale]
time = 1
"#
    )
}

/// Each goes wrong in its own way; the message has the end of its log, and nothing stays.
#[test]
fn failing_program_is_reported_and_cleaned_up() {
    if !can_mount() {
        return;
    }
    let cases = [
        ("fails", "", "run = \"echo it broke; exit 3\"", "it broke"),
        ("prints no figure", "", "run = \"echo speed unknown\"", "speed unknown"),
        ("prints half a number", "", "run = \"echo speed 12.5\"", "part of a number"),
        ("fills the disk", "", "run = \"dd if=/dev/zero of={data}/full bs=1M\"", "no room left"),
        ("hangs", "limit = \"2 s\"\nload = \"sleep 1000\"", "run = \"echo speed 1\"", "not done after 2 s"),
        (
            "is killed in part",
            "",
            "run = \"head -c 300M /dev/zero | tail > /dev/null; echo speed 1\"",
            "the kernel killed a process of the system while the benchmark ran",
        ),
        ("dies", "start = \"sleep 1\"\nready = \"true\"", "run = \"sleep 3; echo speed 1\"", "command"),
        (
            "moves away",
            "",
            "run = \"setsid sh -c 'cd {data}; exec sleep 1000' > /dev/null 2>&1 & sleep 0.5; echo speed 1\"",
            "left processes behind",
        ),
    ];
    for (name, system, workload, expected) in cases {
        let playground = Playground::new();
        playground.write("hostile.toml", &study(system, workload));
        let output = playground.output(&["run", "hostile.toml", "--out", "out"]);
        assert!(!output.status.success(), "{name}: {}", stdout(&output));
        let all = records(&playground.path("out"));
        let [record] = all.as_slice() else { panic!("{name}: {} records; {}", all.len(), stderr(&output)) };
        let CellStatus::Failed { reason } = &record.status else { panic!("{name}: {:?}", record.status) };
        assert!(reason.contains(expected), "{name}: {reason}");
        assert_eq!(playground.left_behind(), [""; 0], "{name}");
    }
}

/// Their errors quote the last lines only.
#[test]
fn program_failing_before_benchmark_keeps_its_logs() {
    if !can_mount() {
        return;
    }
    let much = "echo the first word; seq 100000; exit 3";
    let cases = [
        ("prepare", format!("prepare = \"{much}\""), "prepare.log"),
        ("load", format!("load = \"{much}\""), "load.log"),
        ("settle", format!("load = \"true\"\nsettle = \"{much}\""), "settle.log"),
        ("start", format!("start = \"echo hello > {{logs}}/own.log; {much}\"\nready = \"false\""), "own.log"),
        ("stop", format!("start = \"sleep 1000\"\nready = \"true\"\nstop = \"{much}\""), "stop.log"),
    ];
    for (verb, system, file) in cases {
        let playground = Playground::new();
        playground.write("hostile.toml", &study(&system, "run = \"echo speed 1\""));
        let output = playground.output(&["run", "hostile.toml", "--out", "out"]);
        assert!(!output.status.success(), "{verb}: {}", stdout(&output));
        let all = records(&playground.path("out"));
        let [record] = all.as_slice() else { panic!("{verb}: {} records; {}", all.len(), stderr(&output)) };
        let CellStatus::Failed { reason } = &record.status else { panic!("{verb}: {:?}", record.status) };
        assert!(reason.contains("100000") && !reason.contains("the first word"), "{verb}: {reason}");
        let log = std::fs::read_to_string(playground.path("out/cells/program.flash.w.r1.log")).unwrap();
        // Of each log the last 256 KiB are kept: it begins in the middle.
        assert!(log.contains(file) && log.contains("\n60000\n"), "{verb}: {} bytes", log.len());
        assert_eq!(playground.left_behind(), [""; 0], "{verb}");
    }
}

/// What is read is what was printed, and faults happen when they should.
#[test]
fn benchmark_has_its_faults_and_whole_output() {
    if !can_mount() {
        return;
    }
    let playground = Playground::new();
    let run = "run = \"sleep 1; dd if=/dev/zero of={data}/f bs=64k count=100 oflag=direct; echo speed 12; echo speed 345678 > /dev/stdout; echo x\"";
    let fault = "\n[fault.slow]\nat = \"100 ms\"\nslow = 10\n";
    playground.write("faulty.toml", &(study("", run) + fault));
    let output = playground.output(&["run", "faulty.toml", "--out", "out"]);
    assert!(output.status.success(), "{}\n{}", stderr(&output), stdout(&output));
    let all = records(&playground.path("out"));
    assert_eq!(all[0].benchmark.as_ref().unwrap().figures[0].value, 345_678.0);
    assert!(!all[0].devices[0].faults.is_empty(), "{:?}", all[0].devices[0].faults);
    // Programs such as fio would write to what is before the colon.
    playground.write("plain.toml", &study("", "run = \"echo speed 1\""));
    let output = playground.output(&["run", "plain.toml", "--out", "a:b"]);
    assert!(!output.status.success(), "{}", stdout(&output));
    let status = &records(&playground.path("a:b"))[0].status;
    assert!(matches!(status, CellStatus::Failed { reason } if reason.contains("colon")), "{status:?}");
    // The certificate notes a program that sends no device a request.
    let output = playground.output(&["run", "plain.toml", "--out", "idle"]);
    assert!(output.status.success(), "{}", stderr(&output));
    let all = records(&playground.path("idle"));
    let certificate = all[0].certificate.as_ref().unwrap();
    assert!(certificate.failed().any(|check| check.id == Some(CheckId::StorageUsed)), "{certificate:?}");
    assert_eq!(playground.left_behind(), [""; 0]);
}

/// Nobody waits for a command that is not done.
#[test]
fn ctrl_c_is_heard_while_a_program_prepares() {
    if !can_mount() {
        return;
    }
    let playground = Playground::new();
    let begun = playground.path("begun");
    let prepare = format!("prepare = \"touch '{}'; sleep 1000\"", begun.display());
    playground.write("slow.toml", &study(&prepare, "run = \"echo speed 1\""));
    let mut child = playground.underlay(&["run", "slow.toml", "--out", "out"]).spawn().unwrap();
    while !begun.exists() {
        assert!(child.try_wait().unwrap().is_none(), "it ended before it began");
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    // SAFETY: the child has not been waited for, so its id is still its own.
    unsafe { libc::kill(child.id() as i32, libc::SIGINT) };
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert_eq!(playground.left_behind(), [""; 0]);
}

/// Without a file system the program has the device.
#[test]
fn program_gets_a_bare_device() {
    if !can_mount() {
        return;
    }
    let playground = Playground::new();
    let text = study(
        "load = \"yes underlay | head -c 8192 > {device}\"",
        "run = \"head -c 8 {device}; test -b {device}; echo; echo speed 1\"",
    );
    let bare = text.replace("filesystem = \"ext4\"", "filesystem = \"none\"");
    playground.write("bare.toml", &bare);
    let output = playground.output(&["run", "bare.toml", "--out", "out"]);
    assert!(output.status.success(), "{}\n{}", stderr(&output), stdout(&output));
    let all = records(&playground.path("out"));
    assert!(all[0].benchmark.as_ref().unwrap().output_tail.starts_with("underlay"), "{all:?}");
    assert_eq!(all[0].storage.filesystem, None);
    assert_eq!(playground.left_behind(), [""; 0]);
    // Each has its own placeholder.
    for wrong in [bare.replace("{device}", "{data}/x"), text] {
        playground.write("wrong.toml", &wrong);
        let output = playground.output(&["check", "wrong.toml"]);
        assert_eq!(output.status.code(), Some(2), "{}", stdout(&output));
        assert!(stderr(&output).contains("{device}"), "{}", stderr(&output));
    }
}
