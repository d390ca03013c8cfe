//! Every file of `broken/` is refused, and the message is worth reading: it is kept as a snapshot beside it.

use std::fs;
use std::path::Path;

use underlay_study::diagnostics::Severity;
use underlay_study::spec::Study;

#[test]
fn each_mistake_is_shown_at_its_place() {
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

/// A study in which one thing is not wrong but worth saying.
fn notes_of(change: impl Fn(&str) -> String) -> String {
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
    assert!(Study::parse("sound.toml", SOUND, false).unwrap().notes.is_empty());
    let study =
        Study::parse("sound.toml", &change(SOUND), false).unwrap_or_else(|mistakes| panic!("{mistakes}"));
    assert!(study.notes.findings().iter().all(|finding| finding.severity == Severity::Note));
    study.notes.to_string()
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
      = help: four times the memory and more shows what the storage does

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
fn a_distribution_that_nothing_uses_is_noted() {
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
