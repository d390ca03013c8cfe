//! Every file of `broken/` is refused, and the message is worth reading: it is kept as a snapshot beside it.

use std::fs;
use std::path::Path;

use underlay_config::DiagnosticSeverity;
use underlay_study::spec::Study;

#[test]
fn mistakes_are_shown_in_place() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/broken");
    let mut files: Vec<_> = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    files.sort();
    assert!(files.len() >= 30, "only {} broken studies", files.len());
    let mut settings = insta::Settings::clone_current();
    settings.set_snapshot_path("broken_snapshots");
    settings.set_prepend_module_to_snapshot(false);
    settings.set_omit_expression(true);
    settings.bind(|| {
        for file in files {
            let name = file.into_string().unwrap();
            let text = fs::read_to_string(folder.join(&name)).unwrap();
            let mistakes =
                Study::parse(&name, &text, false).err().unwrap_or_else(|| panic!("{name} was accepted"));
            assert!(mistakes.has_errors(), "{name} was refused for no mistake");
            insta::assert_snapshot!(name.trim_end_matches(".toml"), mistakes.to_string());
        }
    });
}

const SOUND: &str = r#"name = "sound"
[system.rocksdb]
memory = "2 GiB"
[storage.hdd]
devices = [{ medium = "hdd-7200-sata" }]
[workload.ycsb]
data = "16 GB"
mixes = ["a"]
threads = 8
"#;

/// A study in which one thing is not wrong but worth saying.
fn notes_of(change: impl Fn(&str) -> String) -> String {
    assert!(Study::parse("sound.toml", SOUND, false).unwrap().notes.is_empty());
    let study =
        Study::parse("sound.toml", &change(SOUND), false).unwrap_or_else(|mistakes| panic!("{mistakes}"));
    assert!(study.notes.findings().iter().all(|finding| finding.severity == DiagnosticSeverity::Note));
    study.notes.to_string()
}

/// Of a study in which one thing is wrong.
fn mistakes_of(text: &str) -> String {
    Study::parse("wrong.toml", text, false).err().unwrap_or_else(|| panic!("accepted:\n{text}")).to_string()
}

/// A fault in bytes 500 to 600 GB of a disk of 40 GB was accepted, and never met by a request.
#[test]
fn extent_off_device_is_refused_and_overlap_noted() {
    let fault = |act: &str, study: &str| {
        let disk = study.replace("\"hdd-7200-sata\"", "\"hdd-7200-sata\", capacity = \"40 GB\"");
        format!("{disk}[fault.rotten]\nat = \"1 s\"\nstorage = \"hdd\"\n{act}\n")
    };
    for act in ["corrupt", "errors"] {
        let act = format!("{act} = {{ rate = 0.5, extent = \"500 GB..600 GB\" }}");
        let mistakes = mistakes_of(&fault(&act, SOUND));
        assert!(mistakes.contains("begins beyond the devices of [storage.hdd]"), "{mistakes}");
        assert!(mistakes.contains("below 40 GB"), "{mistakes}");
        let notes = notes_of(|study| fault(&act.replace("500 GB..", "30 GB.."), study));
        assert!(notes.contains("ends beyond the devices of [storage.hdd]"), "{notes}");
    }
    // The second of two devices, which are as small as each other.
    let act = "device = 1\nerrors = { rate = 0.5, extent = \"30 GB..40 GB\" }";
    let two = |study: &str| {
        let devices =
            "[{ medium = \"hdd-7200-sata\", capacity = \"20 GB\", count = 2 }]\nlayout = \"stripe\"";
        study.replace("[{ medium = \"hdd-7200-sata\" }]", devices).replace("16 GB", "10 GB")
    };
    let second = format!("{}[fault.rotten]\nat = \"1 s\"\n{act}\n", two(SOUND));
    assert!(mistakes_of(&second).contains("begins beyond"));
    assert!(Study::parse("sound.toml", &second.replace("30 GB..40 GB", "3 GB..4 GB"), false).is_ok());
}

/// Scans of at least 200 records and at most 100, the default of mix e.
#[test]
fn scan_minimum_above_default_maximum_is_refused() {
    let scans = |properties: &str, study: &str| {
        study.replace("mixes = [\"a\"]", &format!("mixes = [\"e\"]\nproperties = {{ {properties} }}"))
    };
    let mistakes = mistakes_of(&scans("minscanlength = 200", SOUND));
    assert!(mistakes.contains("minscanlength is 200: expected at most 100"), "{mistakes}");
    let both = scans("minscanlength = 200, maxscanlength = 300", SOUND);
    assert!(Study::parse("sound.toml", &both, false).is_ok());
    // The same of fields, whose length the record says.
    let fields = "record = { fields = 10, bytes = 50 }\nproperties = { fieldlengthdistribution = \"uniform\", minfieldlength = 80 }";
    let mistakes = mistakes_of(&format!("{SOUND}{fields}\n"));
    assert!(mistakes.contains("minfieldlength is 80: expected at most fieldlength, 50"), "{mistakes}");
    assert!(
        Study::parse("sound.toml", &format!("{SOUND}{}\n", fields.replace("= 80", "= 40")), false).is_ok()
    );
}

/// Nothing can be put into /proc, and ext4 has no file of 20 TiB: both used to fail only after hours of loading.
#[test]
fn file_too_large_for_host_is_noted() {
    let proc =
        notes_of(|study| study.replace("devices = [{ medium = \"hdd-7200-sata\" }]", "paths = [\"/proc\"]"));
    assert!(proc.contains("/proc is on a file system that has no room for files"), "{proc}");
    let large = "medium = \"ebs-gp2\", capacity = \"20 TiB\", larger_than_medium = true";
    let notes = notes_of(|study| study.replace("medium = \"hdd-7200-sata\"", large));
    assert!(
        notes.contains("[storage.hdd] is a file of") && notes.contains("no file above 16 TiB"),
        "{notes}"
    );
    let scaled = |study: &str| study.replace("medium = \"hdd-7200-sata\"", large) + "[scale]\ndata = 2\n";
    assert!(!notes_of(scaled).contains("16 TiB"));
}

/// A study may be checked on another host than the one that it is for.
#[test]
fn missing_directory_is_noted_in_place() {
    let directory = tempfile::tempdir().unwrap();
    let missing = directory.path().join("none");
    let paths = format!("paths = [{missing:?}]");
    let notes = notes_of(|text| text.replace("devices = [{ medium = \"hdd-7200-sata\" }]", &paths));
    assert!(notes.contains(&format!("there is no directory {} on this host", missing.display())), "{notes}");
    assert!(notes.contains("sound.toml:5:") && !notes.contains("2 notes"), "{notes}");
}

#[test]
fn data_that_fits_in_memory_is_noted() {
    insta::assert_snapshot!(notes_of(|study| study.replace("16 GB", "1 GB")), @r#"
    note: 1 GB of data fits in the memory of [system.rocksdb]
     --> sound.toml:7:8
      |
    3 | memory = "2 GiB"
      |          ------- the memory
    ...
    7 | data = "1 GB"
      |        ^^^^^^ reads will come from memory, not from the storage
      |
      = help: use at least four times as much data as memory to see the storage

    sound.toml: 1 note
    "#);
}

#[test]
fn too_few_operations_for_a_p999_are_noted() {
    insta::assert_snapshot!(
        notes_of(|study| format!("{study}rate = [\"max\", 200]\n[run]\nduration = \"30 s\"\n[scale]\ntime = 2\n")),
        @r#"
    note: at 200 operations per second a measurement has 3000 of them
      --> sound.toml:10:16
       |
    10 | rate = ["max", 200]
       |                ^^^ its p99.9 rests on fewer than ten
    11 | [run]
    12 | duration = "30 s"
       |            ------ the measurement
       |
       = help: 10000 operations are enough: raise `duration`

    sound.toml: 1 note
    "#
    );
}

#[test]
fn unused_distribution_is_noted() {
    insta::assert_snapshot!(
        notes_of(|study| study.replace("[\"a\"]", "[\"load\"]\ndistribution = \"zipfian\"")),
        @r#"
    note: [workload.ycsb] has no mix that uses a distribution
     --> sound.toml:9:16
      |
    9 | distribution = "zipfian"
      |                ^^^^^^^^^ load and delete go through all keys in order

    sound.toml: 1 note
    "#
    );
}

#[test]
fn published_figures_for_other_storages_are_noted() {
    insta::assert_snapshot!(
        notes_of(|study| format!("{}\n[reference]\npaper = \"cassandra-nvme-tcp\"\n", study)),
        @r#"
    note: cassandra-nvme-tcp has figures for other storages than this study's
      --> sound.toml:12:9
       |
    12 | paper = "cassandra-nvme-tcp"
       |         ^^^^^^^^^^^^^^^^^^^^ name a storage local or remote to see them beside yours

    sound.toml: 1 note
    "#
    );
}

#[test]
fn rate_profile_beyond_window_is_noted() {
    insta::assert_snapshot!(
        notes_of(|study| format!("{study}rate = {{ ramp = [5_000, 90_000], over = \"2 min\" }}\n")),
        @r#"
    note: this rate changes for 2 min, but a measurement takes 60 s
      --> sound.toml:10:8
       |
    10 | rate = { ramp = [5_000, 90_000], over = "2 min" }
       |        ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ its end is not reached

    sound.toml: 1 note
    "#
    );
}

#[test]
fn rates_that_change_are_read() {
    use underlay_study::spec::{ChangingRate, StudyRate};
    let text = fs::read_to_string(
        Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/broken/b7-arrivals-without-a-rate.toml"),
    )
    .unwrap();
    let rates = |rate: &str| {
        let lines = format!("rate = {rate}\narrivals = \"poisson\"");
        let study = Study::parse("sound.toml", &text.replace("arrivals = \"poisson\"", &lines), false);
        study.unwrap_or_else(|mistakes| panic!("{mistakes}")).workloads[0].rates.clone()
    };
    let ramp = ChangingRate::Ramp { from_per_s: 1_000.0, to_per_s: 50_000.0, over: None };
    let steps = ChangingRate::Steps {
        rates_per_s: vec![100.0, 200.5, 100.0],
        each: Some(std::time::Duration::from_secs(10)),
    };
    assert_eq!(rates("{ ramp = [1_000, 50_000] }"), [StudyRate::Changing(ramp)]);
    assert_eq!(
        rates("[5, { steps = [100, 200.5, 100], each = \"10 s\" }, \"max\"]"),
        [StudyRate::Steady(5.0), StudyRate::Changing(steps), StudyRate::Max]
    );
}

#[test]
fn arrivals_of_a_rate_are_read() {
    use underlay_workload::ArrivalProcess;
    let text = fs::read_to_string(
        Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/broken/b7-arrivals-without-a-rate.toml"),
    )
    .unwrap();
    let arrivals = |lines: &str| {
        let study = Study::parse("sound.toml", &text.replace("arrivals = \"poisson\"", lines), false);
        study.unwrap_or_else(|mistakes| panic!("{mistakes}")).workloads[0].arrivals
    };
    assert_eq!(arrivals("rate = [500, \"max\"]\narrivals = \"poisson\""), ArrivalProcess::Poisson);
    assert_eq!(arrivals("rate = 500\narrivals = \"constant\""), ArrivalProcess::Constant);
    assert_eq!(arrivals("rate = 500"), ArrivalProcess::Constant);
}

#[test]
fn searched_rate_is_read_and_named() {
    let text = fs::read_to_string(
        Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/broken/b8-find-rate-of-nothing.toml"),
    )
    .unwrap();
    let parse =
        |lines: &str| Study::parse("sound.toml", &text.replace("find_rate = { from = 10 }", lines), false);
    let mistakes =
        |lines: &str| parse(lines).err().unwrap_or_else(|| panic!("{lines} was accepted")).to_string();
    let wanted = "find_rate = { p99 = \"10 ms\", p999 = \"50 ms\", from = 500, step = \"5 s\" }";
    let only = |mixes: &str| {
        text.replace("[\"a\", \"b\", \"c\"]", mixes).replace("find_rate = { from = 10 }", wanted)
    };
    let study =
        Study::parse("sound.toml", &only("[\"a\"]"), false).unwrap_or_else(|mistakes| panic!("{mistakes}"));
    let found = study.workloads[0].find_rate.clone().unwrap();
    assert_eq!((found.from_per_s, found.to_per_s, found.within), (Some(500.0), None, 0.05));
    assert_eq!(found.label(), "p99 within 10 ms and p99.9 within 50 ms");
    assert_eq!(found.bounds[1].limit_ns, 50_000_000);
    let cells = underlay_study::plan::expand(&study);
    assert!(cells.iter().all(|cell| cell.rate_within() == Some("p99 within 10 ms and p99.9 within 50 ms")));
    assert!(
        cells
            .iter()
            .all(|cell| cell.label() == "a, highest rate with p99 within 10 ms and p99.9 within 50 ms")
    );

    assert!(
        mistakes("rate = 5\nfind_rate = { p99 = \"10 ms\" }").contains("has a rate and searches for one")
    );
    assert!(mistakes("find_rate = { p99 = \"10 ms\", mean = \"1 ms\" }").contains("unknown key `mean`"));
    assert!(mistakes("find_rate = { p99 = \"10 ms\", from = 9, to = 8 }").contains("ends below its start"));
    assert!(
        mistakes("find_rate = { p99 = \"10 ms\", within = 2 }")
            .contains("expected a fraction from 0.01 to 0.5")
    );
    let load = Study::parse("sound.toml", &only("[\"load\"]"), false).err().unwrap().to_string();
    assert!(load.contains("mix \"load\" ends with its records"), "{load}");
}

#[test]
fn values_that_cannot_be_checked_are_refused() {
    let text = fs::read_to_string(
        Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/broken/b7-arrivals-without-a-rate.toml"),
    )
    .unwrap();
    let parse = |lines: &str, system: &str| {
        let text = text.replace("arrivals = \"poisson\"", lines).replace("[system.rocksdb]", system);
        Study::parse("sound.toml", &text, false)
    };
    let mistakes = |lines: &str, system: &str| parse(lines, system).expect_err("it was accepted").to_string();
    let checked = "properties = { dataintegrity = true }";
    assert!(parse(checked, "[system.rocksdb]").is_ok());
    let unchecked = mistakes(checked, "[system.null]");
    assert!(unchecked.contains("`dataintegrity` checks what is read, but null keeps nothing"), "{unchecked}");
    let output = mistakes("properties = { measurementtype = \"raw\" }", "[system.rocksdb]");
    assert!(output.contains("property `measurementtype` has no place in a study"), "{output}");
    assert!(output.contains("it is about YCSB's output"), "{output}");
    let ignored = mistakes("properties = { dotransactions = true }", "[system.rocksdb]");
    assert!(ignored.contains("it changes nothing: the command says whether it loads or runs"), "{ignored}");
}

/// Several systems, storages and workloads, so that a check of each pair sees each of them several times.
const COMMANDS: &str = r#"name = "commands"
baseline = "hdd"
[system.shell]
kind = "command"
memory = "1 GiB"
servers = 2
[storage.hdd]
devices = [{ medium = "hdd-7200-sata" }]
[storage.ssd]
devices = [{ medium = "ssd-sata" }]
[workload.one]
kind = "command"
run = "bench {data}"
figures.speed = { pattern = '([0-9]+)', unit = "tps", better = "higher" }
[workload.two]
kind = "command"
run = "bench {data} 2"
figures.speed = { pattern = '([0-9]+)', unit = "tps", better = "higher" }
"#;

const JOBS: &str = r#"name = "batch"
[system.hadoop]
memory = "48 GB"
[storage.hdd]
devices = [{ medium = "hdd-mapreduce", count = 6 }]
layout = "jbod"
[workload.one]
jobs = ["teragen", "terasort"]
data = "32 GB"
[workload.two]
jobs = ["teragen"]
data = "32 GB"
[scale]
time = 8
data = 16
"#;

fn count_of(text: &str, message: &str) -> usize {
    let mistakes = mistakes_of(text);
    assert!(mistakes.contains(message), "{mistakes}");
    mistakes.matches("error: ").count()
}

#[test]
fn mistake_among_pairs_is_reported_once() {
    assert_eq!(count_of(COMMANDS, "is run by commands, which know one server"), 1);
    let shared = JOBS.replace("[storage.hdd]", "servers = 2\n[storage.hdd]");
    assert_eq!(count_of(&shared, "is a cluster that spreads its data by itself"), 1);
    let little = JOBS.replacen("data = \"32 GB\"", "data = \"1 MB\"", 1);
    assert_eq!(count_of(&little, "jobs `teragen`, `terasort` have only 62.5 kB"), 1);
    // Of two systems of a kind, two storages and two workloads.
    let twice = SOUND
        .replace("[storage.hdd]", "[system.more]\nkind = \"rocksdb\"\nmemory = \"4 GiB\"\n[storage.hdd]")
        .replace("name = \"sound\"", "name = \"sound\"\nbaseline = \"hdd\"")
        .replace("[workload.ycsb]", "[storage.ssd]\ndevices = [{ medium = \"ssd-sata\" }]\n[workload.ycsb]")
        + "[workload.more]\ndata = \"20 GB\"\nmixes = [\"c\"]\nthreads = 8\n";
    let extended = |lines: &str| format!("{twice}{lines}\n");
    assert!(Study::parse("twice.toml", &twice, false).is_ok());
    assert_eq!(count_of(&extended("scan_filter = \"a.*\""), "a filter of scans, which rocksdb cannot do"), 1);
    let few = "there are only 10 records on this machine";
    assert_eq!(count_of(&extended("[short]\nrecords = 10"), few), 1);
    let crowded = extended("[short]\nrecords = [2_000, 3_000]\nthreads = 1_024");
    assert_eq!(count_of(&crowded, "1024 threads are too many for 2000 records"), 1);
    let limit = "`dirty_limit` is only 1 kB on this machine";
    assert_eq!(count_of(&extended("[run]\ndirty_limit = \"1 kB\""), limit), 1);
    let filtered = twice.replace(
        "mixes = [\"a\"]",
        "mixes = [\"e\"]\nscan_filter = \"a.*\"\nproperties = { dataintegrity = true }",
    );
    // The systems can't filter, and whatever could would find values wrong.
    assert_eq!(count_of(&filtered, "`scan_filter` leaves out parts of them"), 2);
}

#[test]
fn partly_read_list_causes_no_further_mistake() {
    let only = |text: &str, message: &str| assert_eq!(count_of(text, message), 1, "{}", mistakes_of(text));
    let devices = |list: &str| SOUND.replace("[{ medium = \"hdd-7200-sata\" }]", list);
    only(
        &devices("[{ medium = \"hdd-7200-sata\" }, { medium = \"hdd-7200-sta\" }]\nlayout = \"mirror\""),
        "unknown medium",
    );
    only(&devices("[{ medium = \"hdd-7200-sata\" }]\nlayout = \"mirror\""), "a mirror of one device");
    only(&format!("{SOUND}rate = [\"max\", \"fast\"]\narrivals = \"poisson\"\n"), "`rate`");
    only(&format!("{SOUND}find_rate = 5\narrivals = \"poisson\"\n"), "`find_rate`");
    // What could not be read of a workload may be what [short] keeps.
    let mixes = SOUND.replace("[\"a\"]", "[\"a\", 5]");
    only(&format!("{mixes}[short]\nmixes = [\"c\"]\n"), "`mixes`");
    let jobs = |text: &str, lines: &str| format!("{text}[short]\n{lines}\n");
    let misread = JOBS.replacen("\"terasort\"]", "5]", 1);
    only(&jobs(&misread, "jobs = [\"terasort\"]"), "`jobs`");
    only(&jobs(&misread, "job_data = { terasort = \"16 GB\" }"), "`jobs`");
    let sized = misread.replacen("\"32 GB\"", "{ others = \"32 GB\", terasort = \"16 GB\" }", 1);
    only(&sized, "`jobs`");
    // The same of systems, storages and [short] itself.
    let system = SOUND.replace("\"2 GiB\"", "\"2 GiB\"\nservers = \"two\"");
    only(&format!("{system}[short]\nservers = 2\n"), "`servers`");
    let storage = SOUND.replace("devices = [{", "pool = 5\ncapacity = \"1 TB\" # [{");
    only(&format!("{storage}[short]\npool_devices = 2\n"), "`pool`");
    let two = SOUND.replace("[workload", "[storage.ssd]\ndevices = [{ medium = \"ssd-sata\" }]\n[workload");
    let two = two.replace("name = \"sound\"", "name = \"sound\"\nbaseline = \"hdd\"");
    only(&format!("{two}[short]\nstorages = [\"ssd\", 5]\n"), "`storages`");
    only(&format!("{SOUND}[short]\nworkloads = 5\ndata_scale = 10_000\n"), "`workloads`");
    // An event may be for the system that could not be read, or after a duration that could not.
    let event = "[event.lost]\nat = \"90 s\"\nnode = \"any node\"\n";
    let ring = SOUND.replace("[storage", "[system.cassandra]\nmemory = 5\nnodes = 3\n[storage");
    let long = "[run]\nduration = \"2 min\"\n";
    only(&format!("{ring}{long}{event}"), "`memory`");
    only(&format!("{ring}{long}{event}system = \"cassandra\"\n"), "`memory`");
    let fault = "[fault.slow]\nat = \"90 s\"\nslow = 2\n";
    only(&format!("{SOUND}[run]\nduration = \"2 minutes\"\n{fault}"), "`duration`");
    // A storage for a role of a system that could not be read is not compared.
    let role = "[system.cassandra]\nmemory = 5\ncommitlog = \"log\"\n[storage.log]\n\
                devices = [{ medium = \"ssd-sata\", count = 2 }]\nlayout = \"jbod\"\n[storage.hdd]";
    let role = SOUND.replace("[storage.hdd]", role).replace("\"sound\"", "\"sound\"\nbaseline = \"hdd\"");
    only(&role, "`memory`");
}

#[test]
fn short_key_that_applies_to_nothing_is_refused() {
    let commands = COMMANDS.replace("servers = 2\n", "");
    for (study, sound) in
        [(SOUND, "threads = 4"), (JOBS, "jobs = [\"teragen\"]"), (&commands, "duration = \"1 s\"")]
    {
        let text = format!("{study}[short]\n{sound}\nrepetitions = 1\n");
        assert!(Study::parse("sound.toml", &text, true).is_ok(), "{text}");
    }
    for (study, key, message) in [
        (JOBS, "mixes = [\"a\"]", "[short] keeps mix \"a\", which no workload has"),
        (SOUND, "jobs = [\"teragen\"]", "[short] keeps job \"teragen\", which no workload has"),
        (SOUND, "job_data = \"1 GB\"", "[short] changes `job_data`, but no workload runs jobs"),
        (SOUND, "job_data = { teragen = \"1 GB\" }", "[short] changes `job_data`, but no workload runs jobs"),
        (JOBS, "warmup = \"1 s\"", "[short] changes `warmup`, but every workload runs batch jobs"),
        (JOBS, "duration = \"1 s\"", "[short] changes `duration`, but every workload runs batch jobs"),
        (
            JOBS,
            "distribution = \"uniform\"",
            "[short] changes `distribution`, but no workload sends requests",
        ),
        (&commands, "threads = 8", "[short] changes `threads`, but no workload sends requests"),
        (&commands, "rate = 500", "[short] changes `rate`, but no workload sends requests"),
        (JOBS, "records = 10_000", "[short] changes `records`, but no workload sends requests"),
        (&commands, "data = \"1 GB\"", "[short] changes `data`, but no workload sends requests"),
        (
            JOBS,
            "jobs = [\"teragen\"]\njob_data = { terasort = \"16 GB\" }",
            "[short] changes the data of job \"terasort\", which it does not keep",
        ),
        (
            JOBS,
            "workloads = [\"two\"]\njobs = [\"terasort\"]",
            "[short] keeps job \"terasort\", which no workload that it keeps has",
        ),
    ] {
        assert_eq!(count_of(&format!("{study}[short]\n{key}\n"), message), 1, "{key}");
    }
    // Of two kinds of workloads, the short form keeps one.
    let both = format!("{COMMANDS}[workload.ycsb]\ndata = \"16 GB\"\nmixes = [\"a\"]\nthreads = 8\n");
    let cut = mistakes_of(&format!("{both}[short]\nworkloads = [\"one\"]\nthreads = 4\n"));
    assert!(cut.contains("but no workload that it keeps sends requests"), "{cut}");
    let real = SOUND.replace("devices = [{ medium = \"hdd-7200-sata\" }]", "paths = [\"/\"]");
    let limit = format!("{real}[short]\ndirty_limit = \"1 GB\"\n");
    assert_eq!(count_of(&limit, "[short] changes `dirty_limit`, but no storage is modelled"), 1);
}

/// How long a batch job takes is not known before, and the study can't say it.
#[test]
fn fault_beside_batch_jobs_may_come_at_any_time() {
    let fault = "[fault.slow]\nat = \"40 s\"\nslow = 2\n";
    let parsed = Study::parse("batch.toml", &format!("{JOBS}{fault}"), false);
    assert!(parsed.is_ok(), "{}", parsed.unwrap_err());
    let requests = format!("{SOUND}[run]\nduration = \"10 s\"\n{fault}");
    assert_eq!(count_of(&requests, "[fault.slow] comes after the measurement has ended"), 1);
}

#[test]
fn run_key_that_applies_to_nothing_is_refused() {
    let real = SOUND.replace("devices = [{ medium = \"hdd-7200-sata\" }]", "paths = [\"/\"]");
    let commands = COMMANDS.replace("servers = 2\n", "");
    for (study, key, message) in [
        (JOBS, "warmup = \"1 s\"", "[run] sets `warmup`, but every workload runs batch jobs"),
        (JOBS, "duration = \"1 s\"", "[run] sets `duration`, but every workload runs batch jobs"),
        (JOBS, "raw = true", "[run] sets `raw`, but no workload sends requests"),
        (&commands, "raw = true", "[run] sets `raw`, but no workload sends requests"),
        (&real, "attachment = \"fuse+loop\"", "[run] sets `attachment`, but no storage is modelled"),
        (&real, "dirty_limit = \"1 GB\"", "[run] sets `dirty_limit`, but no storage is modelled"),
    ] {
        assert_eq!(count_of(&format!("{study}[run]\n{key}\n"), message), 1, "{key}");
    }
    let sound = "warmup = \"1 s\"\nduration = \"1 s\"\nraw = true\nattachment = \"fuse+loop\"\ndirty_limit = \"1 GB\"";
    assert!(Study::parse("sound.toml", &format!("{SOUND}[run]\n{sound}\n"), false).is_ok());
    assert!(Study::parse("sound.toml", &format!("{JOBS}[run]\nraw = false\n"), false).is_ok());
}
