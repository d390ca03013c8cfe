//! What a run does when its surroundings fail it: output that nobody reads, disks that are full, records that were cut
//! short, directories that are someone else's.

mod support;

use std::os::fd::OwnedFd;
use std::process::{Command, Stdio};

use support::{NULL_STUDY, Playground, TINY_STUDY, can_mount, finished_run, records, stderr, stdout};

/// A pipe whose reader is gone, as behind `| head -3`.
fn closed_pipe() -> Stdio {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    Stdio::from(OwnedFd::from(writer))
}

/// A device on which there is never room.
fn full() -> Stdio {
    Stdio::from(std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap())
}

#[test]
fn run_continues_without_progress_reader() {
    for unread in [closed_pipe as fn() -> Stdio, full] {
        let playground = Playground::new();
        playground.write("null.toml", NULL_STUDY);
        std::fs::create_dir(playground.path("disk")).unwrap();
        let mut run = playground.underlay(&["run", "null.toml", "--out", "out"]);
        let output = run.stderr(unread()).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{}", stdout(&output));
        assert_eq!(records(&playground.path("out")).len(), 4);
        assert!(stdout(&output).contains("report.html"), "{}", stdout(&output));
    }
}

#[test]
fn mistake_has_exit_code_without_reader() {
    let playground = Playground::new();
    let status = |command: &mut Command| command.stderr(full()).status().unwrap().code();
    assert_eq!(status(&mut playground.underlay(&["check", "absent.toml"])), Some(2));
    assert_eq!(status(&mut playground.underlay(&["--no-such-option"])), Some(2));
}

#[test]
fn unwritable_output_fails_but_closed_reader_does_not() {
    let playground = Playground::new();
    finished_run(&playground);
    for arguments in [
        &["report", "out", "--csv"][..],
        &["report", "out", "--json"],
        &["report", "out"],
        &["media", "list"],
        &["schema"],
        &["--help"],
        &["--version"],
        &["ycsb", "run", "null", "--duration", "0.1"],
    ] {
        let output = playground.underlay(arguments).stdout(full()).output().unwrap();
        assert_eq!(output.status.code(), Some(4), "{arguments:?}: {}", stderr(&output));
        assert!(stderr(&output).contains("cannot write to standard output"), "{}", stderr(&output));
        let output = playground.underlay(arguments).stdout(closed_pipe()).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{arguments:?}: {}", stderr(&output));
    }
}

#[test]
fn run_without_enough_space_does_not_start() {
    let playground = Playground::new();
    let huge = TINY_STUDY.replace("records = 100_000", "data = \"15 TB\"");
    let huge = huge
        .replace("\"hdd-7200-sata\", capacity = \"1 GiB\"", "\"hdd-24tb\", capacity = \"17 TB\", count = 2");
    let huge = huge.replace("\"ssd-sata\", count = 2, capacity = \"512 MiB\"", "\"ssd-sata\", count = 32");
    playground.write("huge.toml", &huge);
    let output = playground.output(&["run", "huge.toml", "--out", "out"]);
    assert_eq!(output.status.code(), Some(3), "{}", stderr(&output));
    for words in ["room for disk images", "at least 60 TB", "free at out", "--work"] {
        assert!(stderr(&output).contains(words), "'{words}' is not in {}", stderr(&output));
    }
    assert!(!playground.path("out").exists(), "nothing is left of what was refused");
}

#[test]
fn disk_that_can_outgrow_host_is_reported() {
    if !can_mount() {
        return;
    }
    let playground = Playground::new();
    let mount = |size: &str| playground.output(&["mount", "hdd-24tb", "here", "--size", size, "--", "true"]);
    let output = mount("10 TB");
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(stderr(&output).contains("the disk may grow by 10 TB"), "{}", stderr(&output));
    assert!(!stderr(&mount("64 MiB")).contains("may grow"));
    assert_eq!(playground.left_behind(), [""; 0]);
}

#[test]
fn truncated_record_is_reported_and_measured_again() {
    let playground = Playground::new();
    finished_run(&playground);
    let run = playground.path("out");
    let mut cells: Vec<_> =
        std::fs::read_dir(run.join("cells")).unwrap().map(|entry| entry.unwrap().path()).collect();
    cells.sort();
    let whole = std::fs::read(&cells[1]).unwrap();
    std::fs::write(&cells[1], &whole[..whole.len() / 2]).unwrap();
    let original = std::fs::read(&cells[0]).unwrap();
    let name = cells[1].file_name().unwrap().to_string_lossy().into_owned();

    // The report says so, and goes on with the others.
    let output = playground.output(&["report", "out"]);
    assert!(output.status.success(), "{}", stderr(&output));
    let message = stdout(&output) + &stderr(&output);
    assert!(message.contains("A record was left out") && message.contains(&name), "{message}");

    let output = playground.output(&["run", "--resume", "out"]);
    assert!(output.status.success(), "{}", stderr(&output));
    let message = stderr(&output);
    assert!(message.contains(&format!("{name} is damaged")) && message.contains("run again"), "{message}");
    assert_eq!(records(&run).len(), 4);
    assert_eq!(std::fs::read(&cells[0]).unwrap(), original, "what was whole was kept");
}

/// The registry is in memory on most machines, and a work directory is not.
#[test]
fn run_continues_after_host_restart() {
    let playground = Playground::new();
    finished_run(&playground);
    std::fs::create_dir(playground.path("out/work")).unwrap();
    playground.write("out/work/left", "by a run that was killed");
    let part = playground.write("out/cells/a.parquet.4711.part", "half a raw log");
    let output = playground.output(&["run", "--resume", "out"]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(!playground.path("out/work").exists() && !part.exists());
}

#[test]
fn unusable_work_directory_leaves_no_run() {
    let playground = Playground::new();
    playground.write("null.toml", NULL_STUDY);
    std::fs::create_dir_all(playground.path("disk")).unwrap();
    playground.write("file", "no directory");
    let output = playground.output(&["run", "null.toml", "--out", "out", "--work", "file"]);
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
    assert!(!playground.path("out").exists(), "nothing is left of what was refused");
}

#[test]
fn run_resumes_with_own_study_only() {
    let playground = Playground::new();
    finished_run(&playground);
    playground.write("other.toml", &NULL_STUDY.replace("name = \"null\"", "name = \"other\""));
    let output = playground.output(&["run", "other.toml", "--resume", "out"]);
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
    assert!(stderr(&output).contains("other.toml is not the study of out:"), "{}", stderr(&output));
    // The same text is the same study.
    let output = playground.output(&["run", "null.toml", "--resume", "out"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    // The file at its head stands for it.
    let output = playground.output(&["report", "out/run.json", "--csv"]);
    assert_eq!(stdout(&output).lines().count(), 5, "{}", stderr(&output));
    assert!(playground.output(&["run", "--resume", "out/run.json"]).status.success());
    let output = playground.output(&["run", "--resume", "absent"]);
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
    assert!(!stderr(&output).contains("resuming"), "{}", stderr(&output));
}

#[test]
fn run_refuses_nonempty_directory() {
    let playground = Playground::new();
    playground.write("null.toml", NULL_STUDY);
    std::fs::create_dir_all(playground.path("disk")).unwrap();
    std::fs::create_dir(playground.path("etc")).unwrap();
    playground.write("etc/passwd", "someone's");
    let output = playground.output(&["run", "null.toml", "--out", "etc"]);
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
    assert!(stderr(&output).contains("etc is not empty"), "{}", stderr(&output));
    let left: Vec<_> = std::fs::read_dir(playground.path("etc")).unwrap().collect();
    assert_eq!(left.len(), 1, "nothing was put there");
    std::fs::create_dir(playground.path("empty")).unwrap();
    let output = playground.output(&["run", "null.toml", "--out", "empty"]);
    assert!(output.status.success(), "{}", stderr(&output));
}

/// Two modelled disks as directories, which need no right to mount.
#[test]
fn study_on_directories_runs_without_root() {
    use std::os::unix::process::CommandExt as _;
    if !can_mount() {
        return;
    }
    const NOBODY: u32 = 65_534;
    let playground = Playground::new();
    let study = TINY_STUDY.replace("records = 100_000", "records = 10_000");
    let study = study.replace("count = 2, ", "").replace("layout = \"stripe\"\n", "");
    let file = playground
        .write("tiny.toml", &study.replace("seed = 7", "seed = 7\nattachment = \"fuse-directory\""));
    // The program where that user may run it.
    let program = playground.path("underlay");
    std::fs::copy(env!("CARGO_BIN_EXE_underlay"), &program).unwrap();
    for path in [playground.folder.path(), &file, &program] {
        std::os::unix::fs::chown(path, Some(NOBODY), Some(NOBODY)).unwrap();
    }
    let mut run = Command::new(&program);
    run.args(["run", "tiny.toml", "--out", "out"]).current_dir(playground.folder.path());
    run.env("UNDERLAY_RUNTIME_DIR", playground.path("runtime")).uid(NOBODY).gid(NOBODY);
    let output = run.output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let message = stderr(&output);
    assert_eq!(message.matches("measuring this machine's own overhead").count(), 1, "{message}");
    let records = records(&playground.path("out"));
    assert_eq!(records.len(), 4);
    for record in records {
        assert!(record.measured.is_some_and(|measured| measured.operations > 0), "{}", record.cell.id);
        assert!(record.warnings.iter().any(|warning| warning.contains("own overhead is unknown")));
        // By a delegated group where this host gives that user one.
        let is_told =
            record.warnings.iter().any(|warning| warning.contains("memory budget was not enforced"));
        assert_eq!(is_told, record.memory.enforced_by == "none", "{:?}", record.warnings);
    }
    assert_eq!(playground.left_behind(), [""; 0]);
}
