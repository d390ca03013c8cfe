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
      = help: at least four times the memory shows the storage

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
    assert!(
        unchecked.contains("`dataintegrity` checks values that are read, but null keeps nothing"),
        "{unchecked}"
    );
    let output = mistakes("properties = { measurementtype = \"raw\" }", "[system.rocksdb]");
    assert!(output.contains("property `measurementtype` has no place in a study"), "{output}");
    assert!(output.contains("it is about YCSB's output"), "{output}");
    let ignored = mistakes("properties = { dotransactions = true }", "[system.rocksdb]");
    assert!(ignored.contains("it changes nothing: the command says whether it loads or runs"), "{ignored}");
}
