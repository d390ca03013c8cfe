//! Whole runs of the real program: results, interruption, resumption, and nothing left behind.

#[allow(dead_code)]
#[path = "support/small_file_system.rs"]
mod small_file_system;
mod support;

use std::path::Path;
use std::time::Duration;

use small_file_system::SmallFileSystem;
use support::{Playground, TINY_STUDY, can_mount, records, stderr, stdout, wait_for};
use underlay_record::{CellStatus, RunHeader, RunRecord};

fn recorded(run: &Path) -> usize {
    std::fs::read_dir(run.join("cells"))
        .map(|entries| {
            entries
                .flatten()
                .filter(|entry| entry.path().extension().is_some_and(|ext| ext == "json"))
                .count()
        })
        .unwrap_or(0)
}

/// The kernel lets what it can't refuse go a few pages beyond a limit that has been reached.
fn assert_kept_to_budget(record: &RunRecord, budget_mib: u64) {
    let peak_bytes = record.memory.peak_bytes.unwrap();
    assert!(peak_bytes <= (budget_mib + 1) << 20, "{peak_bytes} bytes at most, of {budget_mib} MiB");
}

/// Loaded once and cloned for its cell, which is a Java process in a budget.
#[test]
fn study_runs_on_java_engine() {
    if !can_mount() {
        return;
    }
    let playground = Playground::new();
    let study = TINY_STUDY
        .replace("[system.rocksdb]\nmemory = \"64 MiB\"", "[system.je]\nmemory = \"200 MiB\"")
        .replace("[storage.hdd]\ndevices = [{ medium = \"hdd-7200-sata\", capacity = \"1 GiB\" }]\n", "")
        .replace("\"hdd\"", "\"flash\"")
        .replace("mixes = [\"a\", \"c\"]", "mixes = [\"a\"]")
        // A data set that fits in memory is read four times over before it is measured.
        .replace("records = 100_000", "records = 50_000");
    playground.write("tiny.toml", &study);
    let output = playground.output(&["run", "tiny.toml", "--out", "out"]);
    assert!(output.status.success(), "{}\n{}", stderr(&output), stdout(&output));
    assert!(stdout(&output).contains("Berkeley DB JE"), "{}", stdout(&output));
    let records = records(&playground.path("out"));
    let [record] = records.as_slice() else { panic!("{} records", records.len()) };
    assert_eq!(record.status, CellStatus::Completed);
    let measured = record.measured.as_ref().unwrap();
    assert_eq!(measured.errors, 0, "{:?}", measured.error_samples);
    assert!(measured.operations > 0);
    assert_kept_to_budget(record, 200);
    assert!(record.devices.iter().any(|device| device.totals.writes > 0 && device.totals.reads > 0));
    assert!(record.system_series.iter().all(|sample| sample.figures.contains_key("current_log_bytes")));
    assert_eq!(playground.left_behind(), [""; 0]);
}

/// The tiny study under way in `out`, with one cell finished and more to come.
fn run_to_the_first_record(playground: &Playground) -> std::process::Child {
    playground.write("tiny.toml", TINY_STUDY);
    let child = playground
        .underlay(&["run", "tiny.toml", "--out", "out"])
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    wait_for("the first record", Duration::from_secs(120), || recorded(&playground.path("out")) >= 1);
    child
}

#[test]
fn study_runs_from_file_to_report() {
    if !can_mount() {
        return;
    }
    let playground = Playground::new();
    playground.write("tiny.toml", TINY_STUDY);
    let output = playground.output(&["run", "tiny.toml", "--out", "out"]);
    assert!(output.status.success(), "{}\n{}", stderr(&output), stdout(&output));
    let table = stdout(&output);
    for word in ["hdd", "flash", "p99.9", "$/TB", "report.html"] {
        assert!(table.contains(word), "'{word}' is not in the comparison:\n{table}");
    }

    let run = playground.path("out");
    let records = records(&run);
    assert_eq!(records.len(), 4);
    for record in &records {
        assert_eq!(record.status, CellStatus::Completed, "{}", record.cell.id);
        let measured = record.measured.as_ref().unwrap();
        assert_eq!(measured.errors, 0, "{:?}", measured.error_samples);
        assert!(measured.operations > 0);
        let counted: u64 = measured.by_operation.values().map(|stats| stats.count).sum();
        assert!(counted >= measured.operations, "operations that finished late are counted in the latency");
        assert_eq!(record.memory.budget_bytes, 64 << 20);
        assert_ne!(record.memory.enforced_by, "none");
        assert_kept_to_budget(record, 64);
        let devices = if record.cell.storage == "hdd" { 1 } else { 2 };
        assert_eq!(record.devices.len(), devices);
        assert!(record.devices.iter().all(|device| device.modelled.is_some() && !device.series.is_empty()));
        assert!(record.devices.iter().any(|device| device.totals.reads > 0), "{}", record.cell.id);
        assert!(record.certificate.is_some());
        let gauges = ["current_compactions_running", "current_writes_delayed", "current_writes_stopped"];
        assert!(!record.system_series.is_empty(), "{}", record.cell.id);
        assert!(record.system_series.iter().all(|sample| sample.figures.keys().eq(gauges)));
    }
    let run_json: RunHeader =
        serde_json::from_str(&std::fs::read_to_string(run.join("run.json")).unwrap()).unwrap();
    assert_eq!(run_json.plan.len(), 4);
    assert!(!run.join("work").exists(), "images are removed at the end");

    let json = playground.output(&["report", "out", "--json"]);
    support::schemas::keeps_to("report", &stdout(&json));
    let exported: serde_json::Value = serde_json::from_str(&stdout(&json)).unwrap();
    let cells = exported["cells"].as_array().unwrap();
    assert_eq!(cells.len(), 4);
    for cell in cells {
        for key in ["system", "storage", "workload", "throughput_per_s"] {
            assert!(!cell[key].is_null(), "{key} is missing in {cell}");
        }
        assert!(cell["latency_us"]["p50"].is_number());
        assert!(cell["certificate"]["verdict"].is_string());
    }
    let against_itself = playground.output(&["report", "out", "out", "--json"]);
    support::schemas::keeps_to("comparison", &stdout(&against_itself));
    let compared: serde_json::Value = serde_json::from_slice(&against_itself.stdout).unwrap();
    assert_eq!(compared["cells"].as_array().unwrap().len(), 4);
    assert!(
        stdout(&playground.output(&["report", "out", "out"])).contains("A and B are one and the same run")
    );
    assert!(run.join("against.html").exists());
    let lines = stdout(&playground.output(&["report", "out", "out", "--csv"]));
    let lines: Vec<&str> = lines.lines().collect();
    assert!(
        lines[0].starts_with("system,storage,workload,") && lines[0].ends_with(",change"),
        "{}",
        lines[0]
    );
    assert!(lines.len() > 4 && lines.iter().all(|line| line.split(',').count() == 18), "{lines:?}");
    let csv = stdout(&playground.output(&["report", "out", "--csv"]));
    assert_eq!(csv.lines().count(), 5);
    assert!(csv.starts_with("run,started_at,system,"), "{csv}");
    let page = std::fs::read_to_string(run.join("report.html")).unwrap();
    assert!(!page.contains("src=\"http") && !page.contains("href=\"http"), "the page must work offline");
    assert_eq!(playground.left_behind(), [""; 0]);
}

#[test]
fn ctrl_c_keeps_finished_cells_and_resume_continues() {
    if !can_mount() {
        return;
    }
    let playground = Playground::new();
    let run = playground.path("out");
    let mut child = run_to_the_first_record(&playground);
    // SAFETY: the child has not been waited for, so its id is still its own.
    unsafe { libc::kill(child.id() as i32, libc::SIGINT) };
    let status = child.wait().unwrap();
    assert_eq!(status.code(), Some(130));
    assert_eq!(playground.left_behind(), [""; 0]);
    let record_count = recorded(&run);
    assert!((1..4).contains(&record_count), "{record_count} of 4 cells were recorded");
    let before: Vec<String> = records(&run).iter().map(|record| record.started_at.clone()).collect();

    // Without a value it is the newest run below runs/.
    std::fs::create_dir(playground.path("runs")).unwrap();
    std::fs::rename(&run, playground.path("runs/tiny")).unwrap();
    let run = playground.path("runs/tiny");
    let output = playground.output(&["run", "--resume"]);
    assert!(output.status.success(), "{}", stderr(&output));
    let after = records(&run);
    assert_eq!(after.len(), 4);
    assert_eq!(
        before[..],
        after.iter().map(|record| record.started_at.clone()).collect::<Vec<_>>()[..record_count]
    );
    assert_eq!(playground.left_behind(), [""; 0]);
}

#[test]
fn run_stops_at_any_moment() {
    if !can_mount() {
        return;
    }
    let playground = Playground::new();
    playground.write("tiny.toml", TINY_STUDY);
    // While it measures the overhead, loads, copies, attaches, fills caches.
    for (number, delay_ms) in [500, 1000, 1600, 2400, 3600].into_iter().enumerate() {
        let out = format!("out-{number}");
        let mut child = playground
            .underlay(&["run", "tiny.toml", "--out", &out, "--quiet"])
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::null())
            .spawn()
            .unwrap();
        std::thread::sleep(Duration::from_millis(delay_ms));
        // SAFETY: the child has not been waited for, so its id is still its own.
        // Twice, as timeout(1) does: that is one wish to end in order.
        unsafe {
            libc::kill(child.id() as i32, libc::SIGTERM);
            libc::kill(child.id() as i32, libc::SIGTERM);
        }
        assert_eq!(child.wait().unwrap().code(), Some(130), "after {delay_ms} ms");
        assert_eq!(playground.left_behind(), [""; 0], "after {delay_ms} ms");
        assert!(!playground.path(&out).join("work").exists(), "after {delay_ms} ms");
    }
}

#[test]
fn clean_removes_what_a_killed_run_left() {
    if !can_mount() {
        return;
    }
    let playground = Playground::new();
    let run = playground.path("out");
    let mut child = run_to_the_first_record(&playground);
    // Killed in the middle of a cell: mounted, with a system running on it.
    wait_for("the next mount", Duration::from_secs(60), || {
        playground.left_behind().iter().any(|line| line.contains("/mnt/"))
    });
    child.kill().unwrap();
    child.wait().unwrap();
    assert_ne!(playground.left_behind(), [""; 0], "a SIGKILL leaves a mount behind");

    let output = playground.output(&["clean"]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(!stdout(&output).is_empty());
    assert_eq!(playground.left_behind(), [""; 0]);
    assert!(!run.join("work").exists());
    assert!(stdout(&playground.output(&["clean"])).contains("nothing was left"));
    let output = playground.output(&["run", "--resume", "out"]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(records(&run).len(), 4);
}

#[test]
fn failed_cell_is_recorded_with_reason() {
    if !can_mount() {
        return;
    }
    let playground = Playground::new();
    // Only its system finds out that a disk has no room for its files; the other storage goes on.
    let disk = SmallFileSystem::mount(playground.path("disk"), "nr_inodes=3");
    let study = TINY_STUDY
        .replace(
            "devices = [{ medium = \"ssd-sata\", count = 2, capacity = \"512 MiB\" }]\nlayout = \"stripe\"",
            &format!("paths = [\"{}\"]", playground.path("disk").display()),
        )
        .replace("time = 2", "time = 1");
    playground.write("tiny.toml", &study);
    let output = playground.output(&["run", "tiny.toml", "--out", "out"]);
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    let records = records(&playground.path("out"));
    assert_eq!(records.len(), 4);
    for record in records {
        match (record.cell.storage.as_str(), &record.status) {
            ("hdd", CellStatus::Completed) => {}
            ("flash", CellStatus::Failed { reason }) => assert!(reason.contains("No space left"), "{reason}"),
            other => panic!("unexpected: {other:?}"),
        }
    }
    assert!(stdout(&output).contains("No space left"), "{}", stdout(&output));
    assert_eq!(std::fs::read_dir(playground.path("disk")).unwrap().count(), 0);
    drop(disk);
    assert_eq!(playground.left_behind(), [""; 0]);
}

/// Before anything is measured or loaded, and without a trace.
#[test]
fn unusable_setting_is_found_before_run() {
    let playground = Playground::new();
    let run_on = |disk: &str| {
        let study = support::NULL_STUDY.replace("paths = [\"disk\"]", &format!("paths = [\"{disk}\"]"));
        assert!(study.contains(disk), "{study}");
        playground.write("null.toml", &(study + "[machine]\ncores = 1\n"));
    };
    run_on("/nowhere/disk");
    let refused = playground.output(&["run", "null.toml", "--out", "out"]);
    assert_eq!(refused.status.code(), Some(2), "{}", stderr(&refused));
    assert!(stderr(&refused).contains("/nowhere/disk"), "{}", stderr(&refused));
    assert!(!stderr(&refused).contains("measuring"), "{}", stderr(&refused));
    assert!(!playground.path("out").exists());

    std::fs::create_dir(playground.path("disk")).unwrap();
    playground.write("file", "mine");
    run_on(&playground.path("disk").display().to_string());
    let refused = playground.output(&["run", "null.toml", "--out", "out", "--work", "file"]);
    assert_eq!(refused.status.code(), Some(2), "{}", stderr(&refused));
    assert!(!stderr(&refused).contains("measuring"), "{}", stderr(&refused));
    assert!(stderr(&refused).contains("--work file"), "{}", stderr(&refused));
    assert!(!playground.path("out").exists());
    assert_eq!(std::fs::read_dir(playground.path("disk")).unwrap().count(), 0);

    // A run that goes on is as it was where it is refused.
    let begun = ["run", "null.toml", "--out", "out", "--only", "mix=a,threads=1", "--work", "new/for/it"];
    let begun = playground.output(&begun);
    assert!(begun.status.success(), "{}", stderr(&begun));
    assert!(!playground.path("new").exists());
    let head = || std::fs::read(playground.path("out/run.json")).unwrap();
    let before = head();
    std::fs::remove_dir(playground.path("disk")).unwrap();
    let refused = playground.output(&["run", "--resume", "out", "--work", "new/for/it"]);
    assert_eq!(refused.status.code(), Some(2), "{}", stderr(&refused));
    assert!(stderr(&refused).contains("/disk"), "{}", stderr(&refused));
    assert!(!stderr(&refused).contains("measuring"), "{}", stderr(&refused));
    assert_eq!(head(), before);
    assert!(!playground.path("out/lock").exists() && !playground.path("new").exists());
    // What is done needs no disk any more.
    let done = playground.output(&["run", "--resume", "out", "--only", "mix=a,threads=1"]);
    assert!(done.status.success(), "{}", stderr(&done));
    assert!(stderr(&done).contains("nothing left to run"), "{}", stderr(&done));
    assert_eq!(playground.left_behind(), [""; 0]);
}

/// Without FUSE or privileges every cell is recorded as one that cannot run here, with the remedy.
#[test]
fn host_without_capabilities_gets_explanation() {
    if !can_mount() {
        return;
    }
    let playground = Playground::new();
    // A directory would do without root.
    playground.write("tiny.toml", &TINY_STUDY.replace("seed = 7", "seed = 7\nattachment = \"fuse+loop\""));
    std::fs::set_permissions(playground.folder.path(), std::os::unix::fs::PermissionsExt::from_mode(0o777))
        .unwrap();
    // The build may lie where others have no access.
    let program = playground.path("underlay");
    std::fs::copy(env!("CARGO_BIN_EXE_underlay"), &program).unwrap();
    let mut command = std::process::Command::new(&program);
    command.args(["run", "tiny.toml", "--out", "out"]);
    command.current_dir(playground.folder.path()).env("UNDERLAY_RUNTIME_DIR", playground.path("runtime"));
    // nobody: may start programs and write here, and nothing else.
    let output = std::os::unix::process::CommandExt::gid(
        std::os::unix::process::CommandExt::uid(&mut command, 65_534),
        65_534,
    )
    .output()
    .unwrap();
    assert_eq!(output.status.code(), Some(3), "{}", stderr(&output));
    let records = records(&playground.path("out"));
    assert_eq!(records.len(), 4);
    for record in records {
        let CellStatus::Unavailable { missing, remedy } = &record.status else {
            panic!("{:?}", record.status)
        };
        assert!(!missing.is_empty() && remedy.contains("sudo"), "{missing}: {remedy}");
    }
    assert_eq!(playground.left_behind(), [""; 0]);
}

#[test]
fn real_paths_are_used_in_own_folder() {
    let playground = Playground::new();
    std::fs::create_dir(playground.path("disk")).unwrap();
    std::fs::write(playground.path("disk/mine"), "untouched").unwrap();
    let disk = playground.path("disk");
    let study = TINY_STUDY
        .replace("[storage.flash]\ndevices = [{ medium = \"ssd-sata\", count = 2, capacity = \"512 MiB\" }]\nlayout = \"stripe\"\n", "")
        .replace("devices = [{ medium = \"hdd-7200-sata\", capacity = \"1 GiB\" }]", &format!("paths = [\"{}\"]", disk.display()))
        .replace("time = 2", "time = 1");
    playground.write("tiny.toml", &(study + "[machine]\ncores = 1\n"));
    let output = playground.output(&["run", "tiny.toml", "--out", "out"]);
    assert!(output.status.success(), "{}\n{}", stderr(&output), stdout(&output));
    for record in records(&playground.path("out")) {
        // Real storage goes its own pace, and the system has its cores all the same.
        let cpu = record.cpu.as_ref().unwrap();
        assert_eq!((record.scale.time, cpu.modelled_cores), (1.0, 1), "{cpu:?}");
        let is_held = cpu.enforced_by != "none" && cpu.held_to_cpus <= 1.0;
        assert!(is_held || !can_mount(), "{cpu:?}");
    }
    let slower = playground.output(&["run", "tiny.toml", "--out", "slow", "--time", "2"]);
    assert_eq!(slower.status.code(), Some(2), "{}", stderr(&slower));
    assert!(stderr(&slower).contains("which --time 2 can't slow down"), "{}", stderr(&slower));
    assert!(!playground.path("slow").exists(), "what is refused leaves nothing");
    let left: Vec<_> = std::fs::read_dir(&disk).unwrap().flatten().map(|entry| entry.file_name()).collect();
    assert_eq!(left, ["mine"]);
    assert!(records(&playground.path("out")).iter().all(|record| record.storage.attachment == "directory"));
}

#[test]
fn run_limited_to_one_cell_is_completed_by_resume() {
    let playground = Playground::new();
    playground.write("null.toml", support::NULL_STUDY);
    std::fs::create_dir_all(playground.path("disk")).unwrap();
    let part = ["--only", "mix=c,threads=2", "--set", "workload.w.records=2_000", "--repetitions", "1"];
    let output_with = |arguments: &[&'static str]| playground.output(&[arguments, &part[..]].concat());
    let checked = output_with(&["check", "null.toml"]);
    assert!(stdout(&checked).contains("1 cell, 1 repetition each"), "{}", stdout(&checked));
    let output = output_with(&["run", "null.toml", "--out", "out"]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(recorded(&playground.path("out")), 1);
    let again = playground.output(&["run", "--resume", "out", "--only", "mix=c"]);
    assert!(again.status.success(), "{}", stderr(&again));
    assert!(stderr(&again).contains("mix=c,threads=2, 1 repetition"), "{}", stderr(&again));
    assert_eq!(recorded(&playground.path("out")), 2);
    assert!(playground.output(&["run", "--resume", "out"]).status.success());
    let records = records(&playground.path("out"));
    assert_eq!(records.len(), 4);
    assert!(records.iter().all(|record| record.cell.requests().unwrap().records == 2_000));
    let run: RunHeader =
        serde_json::from_str(&std::fs::read_to_string(playground.path("out/run.json")).unwrap()).unwrap();
    assert_eq!((run.plan.len(), run.limits.len(), run.overrides.len()), (4, 0, 1));

    let refused = playground.output(&["check", "null.toml", "--set", "scale.dat=2"]);
    assert!(!refused.status.success() && stderr(&refused).contains("--set:1:7"), "{}", stderr(&refused));
    let refused = playground.output(&["run", "null.toml", "--only", "storage=her", "--out", "none"]);
    assert!(stderr(&refused).contains("did you mean `here`?"), "{}", stderr(&refused));
    assert!(!playground.path("none").exists());
}
