//! The program on a host that others use too: what another user may have put in its way, and what of its own they may
//! see. The tests stand for the other user by giving files away, which takes root.

mod support;

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown, symlink};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Output;

use support::{Mounted, Playground, can_mount, stderr, stdout};

const SOMEONE: u32 = 65_534;
const MISTAKE: i32 = 2;

fn is_root() -> bool {
    let is_root = fs::metadata("/proc/self").unwrap().uid() == 0;
    assert!(is_root || std::env::var_os("CI").is_none(), "CI must run these tests as root");
    if !is_root {
        eprintln!("NOT RUN: this test stands for another user by giving files away, which needs root");
    }
    is_root
}

fn give_away(path: &Path) {
    chown(path, Some(SOMEONE), Some(SOMEONE)).unwrap();
}

/// A run without records, of what is as short as a run can be.
fn head(title: &str, plan: &str) -> String {
    let machine = r#"{"hostname":"a","cores":1,"memory_bytes":1,"cpu":"a","kernel":"a","distribution":"a","virtualisation":null}"#;
    format!(
        r#"{{"schema":{},"name":"planted","title":"{title}","started_at":"2026-01-01T00:00:00Z","study_toml":"",
        "systems":["rocksdb"],"storages":["hdd"],"baseline":"hdd","scale":{{"time":1.0,"data":1.0}},"seed":1,"short":false,"repetitions":1,"warmup_wall_s":1.0,
        "duration_wall_s":1.0,"machine":{machine},"versions":{{}},"plan":[{plan}],"reference":null}}"#,
        underlay_record::SCHEMA_VERSION
    )
}

/// An entry of the plan, whose record is in this file.
fn planned(file: &str) -> String {
    let cell = r#"{"id":"a","system":"rocksdb","storage":"hdd","workload":"ycsb","servers":1,"data_bytes":1,
        "work":{"kind":"requests","mix":"a","distribution":"uniform","threads":1,"records":1,"rate":{"kind":"unthrottled"}}}"#;
    format!(r#"{{"cell":{cell},"repetition":0,"file":"{file}"}}"#)
}

fn plant_run(directory: &Path, title: &str, plan: &str) {
    fs::create_dir_all(directory.join("cells")).unwrap();
    fs::write(directory.join("run.json"), head(title, plan)).unwrap();
}

fn refused(output: &Output, reason: &str) {
    let message = stderr(output);
    assert!(message.contains(reason), "{message}");
    assert_eq!(output.status.code(), Some(MISTAKE), "{message}");
}

/// The program with no more than this much address space.
fn bounded(playground: &Playground, arguments: &[&str], most_bytes: u64) -> Output {
    let mut command = playground.underlay(arguments);
    let limit = libc::rlimit { rlim_cur: most_bytes, rlim_max: most_bytes };
    // SAFETY: between fork and exec only a system call is made, on plain old data.
    unsafe {
        command.pre_exec(move || match libc::setrlimit(libc::RLIMIT_AS, &limit) {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        });
    }
    command.output().unwrap()
}

/// A line of authorized_keys came to root this way.
#[test]
fn report_into_foreign_directory_is_refused() {
    if !is_root() {
        return;
    }
    let playground = Playground::new();
    let victim = playground.write("authorized_keys", "kept");
    let run = playground.path("planted");
    plant_run(&run, "a", &planned("a.json"));
    for page in ["report.html", "against.html", "report.html.part"] {
        symlink(&victim, run.join(page)).unwrap();
    }
    give_away(&run);
    let run = run.to_str().unwrap();
    for arguments in [&["report", run][..], &["report", run, run]] {
        refused(&playground.output(arguments), "belongs to user 65534");
    }
    assert_eq!(fs::read(&victim).unwrap(), b"kept");
    // It may be read, and the report may go elsewhere.
    let page = playground.path("page.html");
    let output = playground.output(&["report", run, "--out", page.to_str().unwrap()]);
    assert!(output.status.success() && page.is_file(), "{}", stderr(&output));
    refused(&playground.output(&["run", "--resume", run]), "belongs to user 65534");
}

#[test]
fn links_in_a_run_of_ours_are_not_followed() {
    let playground = Playground::new();
    let victim = playground.write("victim", "kept");
    let run = playground.path("mine");
    plant_run(&run, "a", &planned("a.json"));
    for file in ["report.html", "lock", "run.json.part"] {
        symlink(&victim, run.join(file)).unwrap();
    }
    let run = run.to_str().unwrap();
    refused(&playground.output(&["report", run]), "a link is there");
    refused(&playground.output(&["run", "--resume", run]), "lock");
    assert_eq!(fs::read(&victim).unwrap(), b"kept");
}

#[test]
fn newest_run_belongs_to_this_user() {
    if !is_root() {
        return;
    }
    let playground = Playground::new();
    for (run, title) in [("runs/mine", "of mine"), ("runs/theirs", "of theirs"), ("runs/open", "of all")] {
        plant_run(&playground.path(run), title, &planned("a.json"));
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    give_away(&playground.path("runs/theirs"));
    fs::set_permissions(playground.path("runs/open"), fs::Permissions::from_mode(0o777)).unwrap();
    let output = playground.output(&["report"]);
    assert!(stdout(&output).contains("runs/mine"), "{}{}", stdout(&output), stderr(&output));
    fs::remove_dir_all(playground.path("runs/mine")).unwrap();
    refused(&playground.output(&["report"]), "no run of yours below runs/");
}

#[test]
fn run_in_exchangeable_place_is_refused() {
    if !is_root() {
        return;
    }
    let playground = Playground::new();
    let study = playground.write("tiny.toml", support::TINY_STUDY);
    let theirs = playground.path("theirs");
    fs::create_dir(&theirs).unwrap();
    give_away(&theirs);
    for out in ["theirs", "theirs/mine"] {
        let output = playground.output(&["run", study.to_str().unwrap(), "--out", out]);
        refused(&output, "belongs to user 65534");
    }
    assert_eq!(fs::read_dir(theirs).unwrap().count(), 0);
}

/// It replaced /dev/full, and the link /dev/stdout.
#[test]
fn raw_log_replaces_regular_files_only() {
    let playground = Playground::new();
    let victim = playground.write("victim", "kept");
    symlink(&victim, playground.path("link")).unwrap();
    let fifo = std::process::Command::new("mkfifo").arg(playground.path("fifo")).status().unwrap();
    assert!(fifo.success());
    for option in ["--raw", "--hlog"] {
        for (name, reason) in [("link", "a link is there"), ("fifo", "a pipe is there")] {
            let arguments = [
                "ycsb",
                "run",
                "null",
                "--mix",
                "c",
                "--duration",
                "1",
                "-p",
                "recordcount=10",
                option,
                name,
            ];
            refused(&playground.output(&arguments), reason);
        }
    }
    assert!(playground.path("link").is_symlink());
    assert_eq!(fs::read(&victim).unwrap(), b"kept");
    let arguments =
        ["ycsb", "run", "null", "--mix", "c", "--duration", "1", "-p", "recordcount=10", "--raw", "raw"];
    let output = playground.output(&arguments);
    assert!(output.status.success() && playground.path("raw").is_file(), "{}", stderr(&output));
}

#[test]
fn endless_file_is_not_read_to_end() {
    let playground = Playground::new();
    let long = fs::File::create(playground.path("long.toml")).unwrap();
    long.set_len(1 << 40).unwrap();
    assert!(
        std::process::Command::new("mkfifo").arg(playground.path("pipe.toml")).status().unwrap().success()
    );
    fs::create_dir(playground.path("folder.toml")).unwrap();
    playground.write(
        "study.toml",
        "name = \"s\"\n[storage.a]\ndevices = [{ medium = \"pipe.toml\" }]\n[system.null]\n[workload.c]\nmixes = [\"c\"]\n",
    );
    let files = [
        ("/dev/zero", "it is a device: expected a regular file"),
        ("pipe.toml", "it is a pipe: expected a regular file"),
        ("folder.toml", "it is a directory: expected a regular file"),
        ("long.toml", "longer than"),
    ];
    let refuses = |arguments: &[&str], reason: &str| {
        let output = bounded(&playground, arguments, 2 << 30);
        let message = stderr(&output);
        assert!(message.contains(reason), "{arguments:?}: {message}");
        assert_eq!(output.status.code(), Some(MISTAKE), "{arguments:?}: {message}");
    };
    for (file, reason) in files {
        refuses(&["run", file], reason);
        refuses(&["check", file], reason);
        refuses(&["media", "check", file], reason);
        refuses(&["volume", "list", file], reason);
        refuses(&["ycsb", "run", "null", "-P", file], reason);
    }
    for command in [
        &["media", "verify", "pipe.toml"][..],
        &["mount", "pipe.toml", "folder.toml"],
        &["volume", "serve", "pipe.toml"],
        &["new", "other", "--storage", "pipe.toml"],
        &["check", "study.toml"],
    ] {
        refuses(command, "it is a pipe: expected a regular file");
    }
}

#[test]
fn plan_cannot_name_files_outside_run() {
    let playground = Playground::new();
    let secret = playground.write("secret.json", "{\"schema\": \"what is in it\"}");
    let run = playground.path("run");
    for file in ["../../secret.json", secret.to_str().unwrap()] {
        plant_run(&run, "a", &planned(file));
        refused(&playground.output(&["report", run.to_str().unwrap()]), "plan[0].file");
    }
}

#[test]
fn report_page_replaces_no_record_or_pipe() {
    let playground = Playground::new();
    let run = playground.path("run");
    plant_run(&run, "a", &planned("a.json"));
    let head = fs::read(run.join("run.json")).unwrap();
    let report = |page: &str| playground.output(&["report", "run", "--out", page]);
    refused(&report("run/run.json"), "run/run.json exists and is not an HTML page");
    assert_eq!(fs::read(run.join("run.json")).unwrap(), head);
    // A page of its own may be written again.
    for _ in 0..2 {
        let output = report("page.html");
        assert!(output.status.success(), "{}", stderr(&output));
    }
    assert!(std::process::Command::new("mkfifo").arg(playground.path("pipe")).status().unwrap().success());
    let output = report("pipe");
    assert!(stderr(&output).contains("it is a pipe that nobody reads"), "{}", stderr(&output));
    assert!(!output.status.success());
}

/// 56 characters took 4.2 GB.
#[test]
fn distribution_memory_is_bounded_by_its_counts() {
    use base64::Engine as _;
    let playground = Playground::new();
    let run = playground.path("run");
    plant_run(&run, "a", &planned("a.json"));
    let mut head = 0x1c84_9313_u32.to_be_bytes().to_vec();
    for word in [u32::MAX, 0, 3] {
        head.extend(word.to_be_bytes());
    }
    head.extend(1_u64.to_be_bytes());
    head.extend(3_600_000_000_000_u64.to_be_bytes());
    head.extend(1_f64.to_be_bytes());
    let text = base64::engine::general_purpose::STANDARD.encode(&head);
    let latency = format!(r#"{{"summary":{{}},"histogram":"{text}"}}"#);
    let record =
        format!(r#"{{"schema":{},"measured":{{"latency":{latency}}}}}"#, underlay_record::SCHEMA_VERSION);
    fs::write(run.join("cells/a.json"), record).unwrap();
    let output = bounded(&playground, &["report", run.to_str().unwrap()], 2 << 30);
    assert!(output.status.success(), "{:?} {}{}", output.status, stdout(&output), stderr(&output));
}

#[test]
fn titles_do_not_move_the_cursor() {
    let playground = Playground::new();
    let run = playground.path("run");
    plant_run(&run, r"good\u001b[2J\u001b]0;bad\u0007\u009b31m", &planned("a.json"));
    let output = playground.output(&["report", run.to_str().unwrap()]);
    let printed = stdout(&output);
    assert!(output.status.success() && printed.contains("good"), "{printed}{}", stderr(&output));
    assert!(!printed.contains(|letter: char| letter.is_control() && letter != '\n'), "{printed:?}");
    let title = support::TINY_STUDY.replace("baseline", "title = \"a\\u001b[2Jb\"\nbaseline");
    let study = playground.write("tiny.toml", &title);
    refused(&playground.output(&["check", study.to_str().unwrap()]), "control character in a string");
}

#[test]
fn mounted_disk_images_are_private() {
    if !can_mount() {
        return;
    }
    let playground = Playground::new();
    let temporary = playground.path("tmp");
    fs::create_dir(&temporary).unwrap();
    fs::set_permissions(&temporary, fs::Permissions::from_mode(0o1777)).unwrap();
    for keep in [&[][..], &["--keep", "kept"]] {
        let arguments =
            [&["mount", "nvme-9300-max", "mnt", "--size", "512MiB", "--immediate"][..], keep].concat();
        let mounted = Mounted::start_with(&playground, &arguments, |command| {
            command.env("TMPDIR", &temporary);
            // SAFETY: umask cannot fail and touches no memory.
            unsafe {
                command.pre_exec(|| {
                    libc::umask(0);
                    Ok(())
                });
            }
        });
        let folder = match keep.is_empty() {
            true => fs::read_dir(&temporary).unwrap().next().unwrap().unwrap().path(),
            false => playground.path("kept"),
        };
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o7777;
        assert_eq!(mode(&folder), 0o700, "{}", folder.display());
        let images: Vec<_> = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
        assert!(!images.is_empty());
        images.iter().for_each(|image| assert_eq!(mode(image), 0o600, "{}", image.display()));
        assert!(mounted.end().code().is_some());
    }
    assert_eq!(fs::read_dir(&temporary).unwrap().count(), 0, "the temporary disk is gone");
    // One that was kept by an earlier version.
    fs::remove_file(playground.path("kept/disk.json")).unwrap();
    let mut entries = fs::read_dir(playground.path("kept")).unwrap().map(|entry| entry.unwrap().path());
    let image = entries.find(|path| path.extension().is_some_and(|extension| extension == "img")).unwrap();
    fs::set_permissions(&image, fs::Permissions::from_mode(0o644)).unwrap();
    let arguments =
        ["mount", "nvme-9300-max", "mnt", "--size", "512MiB", "--immediate", "--keep", "kept", "--", "true"];
    assert!(playground.output(&arguments).status.success());
    assert_eq!(fs::metadata(&image).unwrap().permissions().mode() & 0o777, 0o600);
}

#[test]
fn disk_in_exchangeable_place_is_refused() {
    if !can_mount() {
        return;
    }
    let playground = Playground::new();
    let theirs = playground.path("theirs");
    fs::create_dir(&theirs).unwrap();
    give_away(&theirs);
    let mount = |dir: &str, keep: &str| {
        let arguments = ["mount", "nvme-9300-max", dir, "--size", "512MiB", "--keep", keep, "--", "true"];
        playground.output(&arguments)
    };
    refused(&mount("mnt", "theirs/disk"), "belongs to user 65534");
    let message = stderr(&mount("theirs/mnt", "disk"));
    assert!(message.contains("belongs to user 65534"), "{message}");
    let open = playground.path("open");
    fs::create_dir(&open).unwrap();
    fs::set_permissions(&open, fs::Permissions::from_mode(0o1777)).unwrap();
    symlink(&theirs, open.join("mnt")).unwrap();
    std::os::unix::fs::lchown(open.join("mnt"), Some(SOMEONE), Some(SOMEONE)).unwrap();
    let message = stderr(&mount("open/mnt", "disk"));
    assert!(message.contains("is a link of user 65534"), "{message}");
    assert_eq!(fs::read_dir(&theirs).unwrap().count(), 0);
}

#[test]
fn exchanged_pool_directory_is_not_written() {
    if !is_root() {
        return;
    }
    let playground = Playground::new();
    let theirs = playground.path("theirs");
    fs::create_dir(&theirs).unwrap();
    let victim = playground.path("victim");
    fs::create_dir(&victim).unwrap();
    fs::write(victim.join("lock"), "kept").unwrap();
    symlink(&victim, theirs.join("pool")).unwrap();
    give_away(&theirs);
    for directory in ["theirs/pool", "theirs/pool/deep/er"] {
        let pool = format!(
            "name = \"tank\"\nlisten = \"127.0.0.1:0\"\ndirectory = \"{directory}\"\n\
             devices = [{{ medium = \"ssd-sata\", capacity = \"64 MiB\" }}]\n"
        );
        playground.write("pool.toml", &pool);
        for command in ["serve", "list"] {
            refused(&playground.output(&["volume", command, "pool.toml"]), "belongs to user 65534");
        }
    }
    assert_eq!(fs::read_to_string(victim.join("lock")).unwrap(), "kept");
    assert_eq!(fs::read_dir(&victim).unwrap().count(), 1);
}
