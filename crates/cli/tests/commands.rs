//! Every other command as a user types it: what it prints and what it ends with.

mod support;

use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::os::unix::process::CommandExt as _;

use support::{Playground, TINY_STUDY, can_mount, stderr, stdout};

const QUICKSTART: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../studies/quickstart.toml");

/// Units that tables print were once refused as input. Now only the quantity itself may be refused.
#[test]
fn quantities_are_read_as_they_are_printed() {
    use underlay_config::units;
    use underlay_report::quantity;
    for us in [0.31, 7.0, 193.0, 999.7, 1_840.0, 182_000.0, 2_430_000.0] {
        let printed = quantity::latency(us);
        let read = units::parse_duration(&printed).unwrap_or_else(|problem| panic!("{printed}: {problem}"));
        assert!((read.as_secs_f64() * 1e6 / us - 1.0).abs() < 0.06, "{printed}");
    }
    for seconds in [2.5, 45.0, 200.0, 7_500.0, 90_061.0] {
        for printed in [quantity::duration(seconds), quantity::short_duration(seconds)] {
            let read =
                units::parse_duration(&printed).unwrap_or_else(|problem| panic!("{printed}: {problem}"));
            assert!((read.as_secs_f64() / seconds - 1.0).abs() < 0.06, "{printed}");
        }
    }
    for count in [512.0, 4_096.0, 1.5e6, 256e9, 4.9e12, 3e15] {
        for printed in [quantity::bytes(count), quantity::memory(count)] {
            let read = units::parse_bytes(&printed).unwrap_or_else(|problem| panic!("{printed}: {problem}"));
            assert!((read as f64 / count - 1.0).abs() < 0.01, "{printed}");
        }
        let printed = format!("{}/s", quantity::bytes(count));
        if count < 1e15 {
            units::parse_bandwidth(&printed).unwrap_or_else(|problem| panic!("{printed}: {problem}"));
        }
    }
    for value in [0.123, 31.44, 9_120.4, 1_234_567.0] {
        let rate = quantity::rate(value);
        for printed in [rate.clone(), format!("{rate} ops/s"), format!("{rate}/s")] {
            let read = units::parse_rate(&printed).unwrap_or_else(|problem| panic!("{printed}: {problem}"));
            assert!((read / value - 1.0).abs() < 0.01, "{printed}");
        }
        assert!((units::parse_dollars(&quantity::dollars(value)).unwrap() / value - 1.0).abs() < 0.03);
        assert!((units::parse_factor(&quantity::ratio(value)).unwrap() / value - 1.0).abs() < 0.01);
    }
    assert_eq!(units::parse_share(&quantity::percent(0.03)), Ok(0.03));
    let playground = Playground::new();
    for micro in ["100 \u{b5}s", "100 \u{3bc}s", "100us"] {
        let bound = format!("p99={micro}");
        let output = playground.output(&["ycsb", "run", "null", "--rate", "1,2", "--find-rate", &bound]);
        let message = stderr(&output);
        assert!(
            output.status.code() == Some(2) && message.contains("begins with one rate"),
            "{micro}: {message}"
        );
    }
    let output = playground.output(&["ycsb", "run", "null", "--rate", "9", "--find-rate", "p99=10 kg"]);
    assert!(stderr(&output).contains("expected one of ns, us, ms, s, min, h"), "{}", stderr(&output));
}

#[test]
fn load_timeout_is_reported_with_exit_code_one() {
    let playground = Playground::new();
    let load = [
        "ycsb",
        "load",
        "null",
        "--threads",
        "1",
        "-p",
        "recordcount=2000000000",
        "-p",
        "maxexecutiontime=1",
    ];
    let output = playground.output(&load);
    let message = stderr(&output);
    assert_eq!(output.status.code(), Some(1), "{message}");
    assert!(
        message.contains("of 2,000,000,000 records were inserted: the maximum execution time"),
        "{message}"
    );
    let output = playground.output(&["ycsb", "load", "null", "--threads", "1", "-p", "recordcount=1000"]);
    assert!(output.status.success() && !stderr(&output).contains("were inserted"), "{}", stderr(&output));
    let run = ["ycsb", "run", "null", "--mix", "c", "-p", "operationcount=2000000000", "--duration", "1 s"];
    let output = playground.output(&run);
    let message = stderr(&output);
    assert!(
        output.status.success() && message.contains("of 2,000,000,000 operations were done"),
        "{message}"
    );
}

#[test]
fn volume_of_unsold_size_is_not_mounted() {
    let playground = Playground::new();
    for (medium, size, message) in [
        ("ebs-gp2", "17 TiB", "from 1 to 16384 GiB"),
        ("ebs-st1", "8 GiB", "from 125 to 16384 GiB"),
        ("ebs-gp3-16k", "8 GiB", "500 IOPS for each GiB"),
    ] {
        let output = playground.output(&["mount", medium, "here", "--size", size]);
        let printed = stderr(&output);
        assert!(output.status.code() == Some(2) && printed.contains(message), "{medium}: {printed}");
    }
}

#[test]
fn mistakes_end_with_two_and_say_where() {
    let playground = Playground::new();
    playground.write("broken.toml", &TINY_STUDY.replace("hdd-7200-sata", "hdd-7200-stata"));
    let cases: [(&[&str], &str); 19] = [
        (&["check", "broken.toml"], "broken.toml:9"),
        (&["run", "broken.toml"], "hdd-7200-sata"),
        (&["run", "absent.toml"], "absent.toml"),
        (&["run", "--resume", "absent"], "absent"),
        (&["report", "absent"], "absent"),
        (&["media", "show", "nvme-9300"], "nvme-9300-max"),
        (&["mount", "nvme-9300-maxx0", "here"], "1 to 64"),
        (&["mount", "ssd-sata", "here", "--attachment", "nbd"], "fuse-directory"),
        (&["media", "measure", ".", "-o", "/proc/x.toml"], "cannot write /proc/x.toml"),
        (&["advise", "split", "hdd=6@120"], "hdd=6@120"),
        (&["advise", "split", "hdd=6@120MB/s", "hdd=1@1300MB/s"], "twice"),
        (&["advise", "split", "hdd=6@120MB/s", "--root", "a,b"], "absolute path"),
        (&["ycsb", "run", "mysql", "--dir", "here"], "rocksdb"),
        (&["ycsb", "run", "rocksdb", "--dir", "here", "-p", "recordcount=many"], "recordcount"),
        (&["ycsb", "run", "null", "--rate", "-5"], "'-5' is not a rate"),
        (&["ycsb", "run", "null", "--arrivals", "poisson"], "expected --rate as well"),
        (&["ycsb", "run", "null", "--rate", "1,2", "--find-rate", "p99=1s"], "begins with one rate"),
        (
            &["ycsb", "run", "null", "--rate", "9", "--find-rate", "p99=1s", "--step", "1"],
            "expected 34 at least",
        ),
        (&["ycsb", "run", "null", "--rate", "9", "--find-rate", "p99=1s", "--step", "0"], "--step is 0"),
    ];
    for (arguments, expected) in cases {
        let output = playground.output(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {}", stderr(&output));
        assert!(
            stderr(&output).contains(expected),
            "{arguments:?} does not say '{expected}':\n{}",
            stderr(&output)
        );
        assert!(!stderr(&output).contains("panicked"), "{}", stderr(&output));
    }
    assert_eq!(playground.output(&["frobnicate"]).status.code(), Some(2));
    assert!(!playground.path("here").exists(), "a mistake leaves nothing half done");
}

/// A study of one cell, to which a case adds what it is about.
const ONE_CELL: &str = r#"
name = "one"
[system.rocksdb]
memory = "64 MiB"
[storage.disk]
devices = [{ medium = "hdd-7200-sata" }]
[workload.w]
records = 100_000
record = { fields = 10, bytes = 100 }
mixes = ["c"]
threads = 1
[run]
repetitions = 1
"#;

fn check(playground: &Playground, text: &str) -> (Option<i32>, String) {
    playground.write("study.toml", text);
    let output = playground.output(&["check", "study.toml"]);
    (output.status.code(), stdout(&output) + &stderr(&output))
}

#[test]
fn device_larger_than_medium_is_refused() {
    let playground = Playground::new();
    let larger = ONE_CELL.replace("\"hdd-7200-sata\"", "\"hdd-7200-sata\", capacity = \"60 TB\"");
    let (code, message) = check(&playground, &larger);
    assert_eq!(code, Some(2), "{message}");
    assert!(message.contains("study.toml:6:") && message.contains("larger than its medium"), "{message}");
    assert!(message.contains("\"hdd-7200-sata\" has 6 TB"), "{message}");
    let smaller = ONE_CELL.replace("\"hdd-7200-sata\"", "\"hdd-7200-sata\", capacity = \"6 TB\"");
    assert_eq!(check(&playground, &smaller).0, Some(0));
    let output = playground.output(&["mount", "hdd-7200-sata", "here", "--size", "60 TB", "--", "true"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("6 TB at most"), "{}", stderr(&output));
}

#[test]
fn system_alias_is_suggested() {
    let playground = Playground::new();
    let (_, message) = check(&playground, &ONE_CELL.replace("[system.rocksdb]", "[system.kvstore]"));
    assert!(message.contains("did you mean `oracle-nosql`?"), "{message}");
}

#[test]
fn invalid_toml_positions_are_all_reported() {
    let playground = Playground::new();
    let broken = "name = \n[system.rocksdb]\nmemory = \"1 GiB\nnodes = 1x\n[storage\n";
    let (code, message) = check(&playground, broken);
    assert_eq!(code, Some(2), "{message}");
    for line in [1, 3, 4, 5] {
        assert!(message.contains(&format!("study.toml:{line}:")), "line {line} is not told of:\n{message}");
    }
    assert!(message.starts_with("error: this is not valid TOML\n"), "{message}");
    let (_, twice) = check(&playground, &ONE_CELL.replace("threads = 1", "threads = 1\nthreads = 2"));
    assert_eq!(twice.matches("error:").count(), 1, "{twice}");
}

#[test]
fn mistakes_of_a_study_are_for_scripts_too() {
    let playground = Playground::new();
    let checked = |text: &str| -> (Option<i32>, serde_json::Value) {
        playground.write("study.toml", text);
        let output = playground.output(&["check", "study.toml", "--json"]);
        assert_eq!(stderr(&output), "");
        (output.status.code(), serde_json::from_slice(&output.stdout).unwrap())
    };
    let (code, report) = checked(&ONE_CELL.replace("threads = 1", "thread = 1"));
    assert_eq!(code, Some(2));
    let errors = report["errors"].as_array().unwrap();
    assert_eq!(errors.len(), 2, "{report}");
    let unknown = &errors[1];
    assert_eq!(
        (&unknown["file"], &unknown["line"], &unknown["column"]),
        (&"study.toml".into(), &11.into(), &1.into())
    );
    assert!(unknown["message"].as_str().unwrap().contains("unknown key `thread`"), "{unknown}");
    assert_eq!(checked(ONE_CELL).1.as_array().map(Vec::len), Some(1), "a sound one gives its cells");
    let absent = playground.output(&["check", "absent.toml", "--json"]);
    let report: serde_json::Value = serde_json::from_slice(&absent.stdout).unwrap();
    assert_eq!((absent.status.code(), report["errors"].as_array().map(Vec::len)), (Some(2), Some(1)));
}

#[test]
fn version_names_commit_and_build() {
    let playground = Playground::new();
    let printed = stdout(&playground.output(&["--version"]));
    let head = format!("underlay {} (commit ", env!("CARGO_PKG_VERSION"));
    assert!(printed.starts_with(&head) && printed.contains(" build for "), "{printed}");
}

#[test]
fn counts_use_singular_and_plural() {
    let playground = Playground::new();
    let (code, printed) = check(&playground, ONE_CELL);
    assert_eq!(code, Some(0), "{printed}");
    assert!(printed.contains("1 cell, 1 repetition each"), "{printed}");
    std::fs::create_dir(playground.path("disk")).unwrap();
    let null = ONE_CELL.replace("[system.rocksdb]\nmemory = \"64 MiB\"", "[system.null]");
    let null = null.replace("devices = [{ medium = \"hdd-7200-sata\" }]", "paths = [\"disk\"]");
    playground.write("null.toml", &(null + "warmup = \"0 s\"\nduration = \"100 ms\"\n"));
    let output = playground.output(&["run", "null.toml", "--out", "out"]);
    assert!(output.status.success(), "a system that keeps nothing needs no memory: {}", stderr(&output));
    assert!(stderr(&output).starts_with("1 cell, about"), "{}", stderr(&output));
}

#[test]
fn negative_number_reaches_its_option() {
    let playground = Playground::new();
    let cases: [(&[&str], &str); 5] = [
        (&["mount", "ssd-sata", "here", "--time", "-1"], "--time is -1: expected a factor"),
        (&["mount", "ssd-sata", "here", "--time", "1e308"], "--time is 1e308: expected a factor"),
        (&["mount", "ssd-sata", "here", "--size", "-1"], "--size -1:"),
        (&["media", "verify", "ssd-sata", "--time", "-2"], "-2"),
        (&["ycsb", "run", "null", "--threads", "-3"], "invalid value '-3' for '--threads"),
    ];
    for (arguments, expected) in cases {
        let output = playground.output(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {}", stderr(&output));
        assert!(stderr(&output).contains(expected), "{arguments:?}: {}", stderr(&output));
        assert!(!stderr(&output).contains("unexpected argument"), "{arguments:?}: {}", stderr(&output));
    }
}

#[test]
fn external_cluster_needs_no_directory_or_budget() {
    let playground = Playground::new();
    // Nobody listens there.
    let of_cluster = ["ycsb", "load", "cassandra", "--set", "endpoints=127.0.0.1:1", "-p", "recordcount=10"];
    let output = playground.output(&of_cluster);
    assert_eq!(output.status.code(), Some(4), "{}", stderr(&output));
    assert!(stderr(&output).contains("127.0.0.1:1"), "{}", stderr(&output));
    for word in ["--dir", "memory"] {
        assert!(!stderr(&output).contains(word), "'{word}' is none of its business: {}", stderr(&output));
    }
    for option in [&["--dir", "here"][..], &["--memory", "1 GiB"]] {
        let output = playground.output(&[&of_cluster[..], option].concat());
        assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
        assert!(stderr(&output).contains("does not go with --set endpoints"), "{}", stderr(&output));
    }
    assert!(!playground.path("here").exists());
    let output = playground.output(&["ycsb", "load", "cassandra"]);
    assert!(stderr(&output).contains("or --set endpoints="), "{}", stderr(&output));
    let help = stdout(&playground.output(&["ycsb", "--help"]));
    for system in ["rocksdb", "je", "je-ha", "oracle-nosql", "cassandra", "accumulo", "null", "Hadoop"] {
        assert!(help.contains(system), "the help does not name {system}:\n{help}");
    }
}

#[test]
fn services_of_other_users_are_mentioned() {
    if !can_mount() {
        return;
    }
    let playground = Playground::new();
    // Root's own registry, which a user without rights may not look into.
    let closed = std::path::Path::new("/run/underlay");
    let was_there = closed.exists();
    if !was_there {
        std::fs::DirBuilder::new().mode(0o700).create(closed).unwrap();
    }
    // The program where that user may run it.
    let program = playground.path("underlay");
    std::fs::copy(env!("CARGO_BIN_EXE_underlay"), &program).unwrap();
    let readable = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(playground.folder.path(), readable).unwrap();
    let output = std::process::Command::new(&program)
        .args(["fault", "list"])
        .current_dir("/")
        .env("UNDERLAY_RUNTIME_DIR", format!("/tmp/underlay-test-{}", std::process::id()))
        .uid(65_534)
        .gid(65_534)
        .output()
        .unwrap();
    let _ = std::fs::remove_dir_all(format!("/tmp/underlay-test-{}", std::process::id()));
    if !was_there {
        let _ = std::fs::remove_dir(closed);
    }
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let printed = stdout(&output);
    assert!(printed.contains("this user serves nothing") && printed.contains("/run/underlay"), "{printed}");
}

#[test]
fn layout_is_mounted_unchanged() {
    if !can_mount() {
        return;
    }
    let playground = Playground::new();
    let list = ["sh", "-c", "ls -d disks/*/ && df --output=target disks/* | tail -n +2"];
    let mount = ["mount", "spark-shuffle", "disks", "--size", "512 MiB", "--"];
    let output = playground.output(&[&mount[..], &list].concat());
    assert!(output.status.success(), "{}\n{}", stdout(&output), stderr(&output));
    let disks = playground.path("disks");
    let mounted = stdout(&output).lines().filter(|line| line.starts_with(&*disks.to_string_lossy())).count();
    assert_eq!(mounted, 2, "a directory for each device: {}", stdout(&output));
    assert_eq!(playground.left_behind(), [""; 0]);
    let unknown = playground.output(&["mount", "accumulo-hd", "here"]);
    assert!(stderr(&unknown).contains("or a layout: accumulo-flash, accumulo-hdd"), "{}", stderr(&unknown));
}

#[test]
fn check_lists_the_cells_of_a_study() {
    let playground = Playground::new();
    let output = playground.output(&["check", QUICKSTART]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(stdout(&output).contains("9 cells"), "{}", stdout(&output));
    let json = stdout(&playground.output(&["check", QUICKSTART, "--json"]));
    let cells: Vec<serde_json::Value> = serde_json::from_str(&json).unwrap();
    assert_eq!(cells.len(), 9);
}

#[test]
fn advice_on_splitting_is_for_people_and_for_scripts() {
    let playground = Playground::new();
    let split = ["advise", "split", "hdd=6@120MB/s", "ssd=1@1300MB/s"];
    let output = playground.output(&split);
    assert!(output.status.success(), "{}", stderr(&output));
    insta::assert_snapshot!("advise_split", stdout(&output));
    let json = stdout(&playground.output(&[&split[..], &["--json", "--root", "/mnt"]].concat()));
    let value: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(value["devices"][1]["directories"], 11);
    assert_eq!(value["before_bytes_per_s"], 840e6);
    let directories = value["properties"]["dfs.datanode.data.dir"].as_str().unwrap();
    assert_eq!(directories.split(',').count(), 17);
    assert!(directories.starts_with("/mnt/hdd-0/hdfs,"), "{directories}");
}

#[test]
fn ycsb_loads_and_runs_and_prints_as_ycsb_does() {
    let playground = Playground::new();
    let database = playground.path("db");
    let dir = database.to_str().unwrap();
    let load = playground.output(&["ycsb", "load", "rocksdb", "--dir", dir, "-p", "recordcount=5000"]);
    assert!(load.status.success(), "{}", stderr(&load));
    assert!(stdout(&load).contains("[INSERT], Operations, 5000"), "{}", stdout(&load));
    playground.write(
        "workload",
        "recordcount=5000\noperationcount=3000\nreadproportion=0.5\nupdateproportion=0.5\n",
    );
    // As a script of YCSB's has it.
    let line = format!(
        "ycsb run rocksdb -s -P workload -p rocksdb.dir={dir} -threads 2 -l first: -t -jvm-args=-Xmx1g"
    );
    let run = playground.output(&line.split(' ').collect::<Vec<_>>());
    assert!(run.status.success(), "{}", stderr(&run));
    assert!(
        stderr(&run).contains("first:20") && stderr(&run).contains("'jvm-args' is no"),
        "{}",
        stderr(&run)
    );
    assert!(!stderr(&run).contains("rocksdb.dir"), "{}", stderr(&run));
    // A place that can't be written to is said before anything is measured.
    let line = format!("ycsb run rocksdb --dir {dir} -P workload --hlog none/run.hlog");
    let refused = playground.output(&line.split(' ').collect::<Vec<_>>());
    assert_eq!(refused.status.code(), Some(2));
    assert!(stderr(&refused).contains("cannot write none/run.hlog") && stdout(&refused).is_empty());
    let text = stdout(&run);
    assert!(text.contains("[OVERALL], Throughput(ops/sec)"), "{text}");
    assert!(text.contains("[READ], Return=OK") && text.contains("[UPDATE], Return=OK"), "{text}");
    assert!(!text.contains("NOT_FOUND"), "every record that was loaded is there: {text}");
    assert_eq!(playground.left_behind(), [""; 0]);
}

#[test]
fn mount_provides_disk_and_removes_it() {
    if !can_mount() {
        return;
    }
    let playground = Playground::new();
    let write = "echo kept > mnt/file && sync mnt/file && df --output=fstype mnt | tail -1";
    let arguments =
        ["mount", "ssd-satax2", "mnt", "--size", "256 MiB", "--keep", "disk", "--activity", "did.json", "--"];
    let output = playground.output(&[&arguments[..], &["sh", "-c", write]].concat());
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(stdout(&output).trim(), "xfs");
    let outcome: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(playground.path("did.json")).unwrap()).unwrap();
    let devices = outcome["devices"].as_array().unwrap();
    assert_eq!(devices.len(), 2);
    assert!(devices.iter().any(|device| device["activity"]["totals"]["flushes"].as_u64().unwrap() > 0));
    assert_eq!(playground.left_behind(), [""; 0]);

    let output = playground.output(&[
        "mount",
        "ssd-satax2",
        "mnt",
        "--size",
        "256 MiB",
        "--keep",
        "disk",
        "--",
        "cat",
        "mnt/file",
    ]);
    assert_eq!(stdout(&output), "kept\n", "{}", stderr(&output));
    // Where no file system could be made, nothing is kept that a later mount would trip over.
    let small = ["mount", "ssd-sata", "mnt", "--size", "64 MiB", "--keep", "small", "--", "true"];
    let output = playground.output(&small);
    assert!(stderr(&output).contains("too small for xfs"), "{}", stderr(&output));
    let left = std::fs::read_dir(playground.path("small")).unwrap().map(|entry| entry.unwrap().file_name());
    assert_eq!(left.collect::<Vec<_>>(), ["lock"]);
    let output =
        playground.output(&["mount", "ssd-sata", "mnt", "--size", "512 MiB", "--", "sh", "-c", "exit 9"]);
    assert_eq!(output.status.code(), Some(9), "the exit code is the command's own: {}", stderr(&output));
    assert_eq!(playground.left_behind(), [""; 0]);
}

/// Two volumes with a cache each, one that is split, and one that nobody can mount.
const LAYERED_STUDY: &str = r#"
name = "layered"
baseline = "disks"

[system.null]
memory = "1 GiB"

[storage.disks]
devices = [{ medium = "hdd-7200-sata", count = 2, capacity = "4 GiB" }]
layout = "jbod"
cache = { medium = "optane-p4800x", capacity = "128 MiB", mode = "write-back" }

[storage.parts]
devices = [{ medium = "ssd-sata", capacity = "4 GiB" }]
layout = "split"
directories = 3
compress = "lz4"
filesystem = "ext4"

[storage.mine]
paths = ["/tmp"]

[workload.ycsb]
records = 10_000
mixes = ["c"]
threads = 1

[scale]
data = 8
"#;

#[test]
fn mount_gives_a_program_the_storage_of_a_study() {
    let playground = Playground::new();
    playground.write("study.toml", LAYERED_STUDY);
    let refused: [(&[&str], &str); 6] = [
        (&["ssd-sata", "mnt", "--storage", "disks"], "goes with a study's file"),
        (&["study.toml", "mnt", "--storage", "disk"], "it has disks, parts, mine"),
        (&["study.toml", "mnt", "--storage", "mine"], "real storage"),
        (&["study.toml", "mnt", "--storage", "disks", "--size", "1 GiB"], "--size"),
        (&["none.toml", "mnt", "--storage", "disks"], "none.toml"),
        (&["study.toml", "mnt"], "--storage"),
    ];
    for (arguments, expected) in refused {
        let output = playground.output(&[&["mount"], arguments].concat());
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {}", stderr(&output));
        assert!(stderr(&output).contains(expected), "{arguments:?}: {}", stderr(&output));
    }
    if !can_mount() {
        return;
    }
    let mounted = |storage: &str, more: &[&str], script: &str| {
        let first = ["mount", "study.toml", "mnt", "--storage", storage, "--activity", "did.json"];
        let output = playground.output(&[&first[..], more, &["--", "sh", "-c", script]].concat());
        assert!(output.status.success(), "{}", stderr(&output));
        assert_eq!(playground.left_behind(), [""; 0]);
        let written = std::fs::read_to_string(playground.path("did.json")).unwrap();
        (stdout(&output), serde_json::from_str::<serde_json::Value>(&written).unwrap())
    };
    let write =
        "ls mnt; echo kept > mnt/disks-1/file && sync mnt/disks-1/file && df --output=fstype mnt/disks-0";
    let (printed, outcome) = mounted("disks", &["--keep", "images", "--time", "2"], write);
    assert_eq!(printed.split_whitespace().collect::<Vec<_>>(), ["disks-0", "disks-1", "Type", "xfs"]);
    assert_eq!(outcome["time"], 2.0);
    assert_eq!(outcome["devices"].as_array().unwrap().len(), 4, "two disks, and a cache for each");
    assert_eq!(outcome["layers"].as_array().unwrap().len(), 2, "{}", outcome["layers"]);
    // A kept storage is found again, the cache's dirty blocks with it.
    assert_eq!(mounted("disks", &["--keep", "images"], "cat mnt/disks-1/file").0, "kept\n");

    let (printed, _) = mounted("parts", &[], "df --output=fstype mnt; ls -d mnt/dir-*");
    assert_eq!(
        printed.split_whitespace().collect::<Vec<_>>(),
        ["Type", "ext4", "mnt/dir-0", "mnt/dir-1", "mnt/dir-2"]
    );
}

#[test]
fn doctor_and_media_say_what_there_is() {
    let playground = Playground::new();
    let doctor = playground.output(&["doctor"]);
    assert!(stdout(&doctor).contains("FUSE"), "{}", stdout(&doctor));
    let json: serde_json::Value =
        serde_json::from_str(&stdout(&playground.output(&["doctor", "--json"]))).unwrap();
    assert!(json.as_array().is_some_and(|entries| entries.len() > 5));
    assert!(stdout(&playground.output(&["media", "list"])).contains("hdd-7200-sata"));
    let shown = stdout(&playground.output(&["media", "show", "sx300-1600"]));
    assert!(shown.contains("235000") && shown.contains("sources:"), "{shown}");
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../media/ssd-sata.toml");
    assert!(playground.output(&["media", "check", file]).status.success());
}

/// The page that says what is promised lists the exit codes that `--help` does.
#[test]
fn exit_codes_match_help() {
    let page =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/semantics.md")).unwrap();
    let help = stdout(&Playground::new().output(&["--help"]));
    let promised: Vec<&str> = page
        .lines()
        .filter_map(|line| line.strip_prefix("| ")?.split(" | ").next())
        .filter(|cell| cell.parse::<u8>().is_ok())
        .collect();
    assert_eq!(promised, ["0", "1", "2", "3", "4", "70", "130"]);
    for code in promised {
        assert!(
            help.lines().any(|line| line.trim_start().starts_with(&format!("{code}  "))),
            "{code} is not in --help"
        );
    }
}
