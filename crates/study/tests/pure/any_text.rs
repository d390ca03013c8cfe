//! Reading any text as a study ends in a study or in messages, never in a panic.

use proptest::prelude::*;
use underlay_study::plan;
use underlay_study::spec::Study;

const SOUND: &str = include_str!("../../../../studies/oracle-nosql-flash-rocksdb.toml");
const EVERY_KEY: &str = r#"name = "every-key"
title = "Größe ✓"
baseline = "nvme"
[system.rocksdb]
kind = "rocksdb"
nodes = 1
servers = 1
memory = "2 GiB"
compression = "none"
[storage.nvme]
devices = [{ medium = "nvme-9300-max", count = 2, capacity = "1 TB" }]
layout = "stripe"
chunk = "64 KiB"
filesystem = "ext4"
compress = "zstd"
cache = { medium = "optane-p4800x", capacity = "100 GB", mode = "write-back" }
link = { bandwidth = "25 Gbit/s", latency = "20 us" }
initial = "fresh"
[storage.published]
preset = "oracle-flash"
[storage.mine]
paths = ["/mnt/nvme0"]
[pool.shared]
devices = [{ medium = "nvme-9300-max", count = 2 }]
initial = "fresh"
[storage.remote]
pool = "shared"
transport = "nvme-tcp"
capacity = "4 TB"
compress = "lz4"
mirror = true
link = { bandwidth = "25 Gbit/s", latency = "20 us" }
filesystem = "ext4"
system = { compression = "lz4" }
[workload.ycsb]
kind = "ycsb"
records = [20_000_000, 40_000_000]
record = { fields = 10, bytes = 100 }
mixes = ["load", "a", "e", "delete"]
distribution = ["uniform", "hotspot"]
threads = [64, 256]
rate = ["max", 20_000, 0.5, { ramp = [10, 5_000], over = "90 s" }, { steps = [5, 60, 5], each = "10 s" }]
properties = { hotspotdatafraction = "0.2", hotspotopnfraction = 0.8 }
[run]
warmup = "500 ms"
duration = "2 min"
repetitions = 3
seed = 42
cache = "warm"
attachment = "fuse+loop"
raw = true
[scale]
time = 1
data = 10.5
[short]
warmup = "0 s"
duration = "5 s"
repetitions = 1
mixes = ["a"]
distribution = "uniform"
threads = 8
rate = "max"
data = "20 GB"
pool_devices = 3
time = 1
data_scale = 11
[reference]
paper = "oracle-nosql-flash"
departures = ["It differs."]
"#;

const BATCH: &str = r#"name = "batch"
baseline = "hdd"
[system.hadoop]
memory = "48 GB"
datanodes = 3
[storage.hdd]
devices = [{ medium = "hdd-mapreduce", count = 6 }, { medium = "ssd-mapreduce", directories = 10 }]
layout = "jbod"
[storage.ssd]
devices = [{ medium = "ssd-mapreduce" }]
[workload.mapreduce]
kind = "jobs"
jobs = ["teragen", "terasort", "wordcount"]
data = { others = "32 GB", wordcount = "8 GB" }
maps = 8
reduces = 4
compressibility = 0.5
limit = "1 h"
[scale]
time = 8
data = 16
[short]
jobs = ["teragen"]
job_data = { teragen = "4 GB" }
[reference]
paper = "mapreduce-ssd"
"#;
const HIDDEN: &str = r#"name = "hidden"
[system.accumulo]
memory = "64 GB"
[storage.flash]
preset = "accumulo-flash"
[workload.ycsb]
data = "400 GB"
mixes = ["b", "e"]
threads = 8
visibility = "secret&(a|b)"
authorizations = ["secret", "a"]
unauthorized_share = 0.25
scan_filter = "a.*"
compact_at = 0.5
find_rate = { p99 = "20 ms", p99.9 = "1 s", from = 200, to = 5_000, within = 0.1, step = "5 s" }
[scale]
data = 20
[short]
workloads = "ycsb"
[reference]
paper = "accumulo-flash"
one_of = 5
"#;

fn read(text: &str) {
    for short in [false, true] {
        match Study::parse("any.toml", text, short) {
            Ok(study) => {
                // What was accepted can be planned: the checks have kept it within bounds.
                assert!(!study.systems.is_empty() && !study.storages.is_empty());
                assert!(study.storages.iter().any(|storage| storage.name == study.baseline));
                for planned in plan::order(&study) {
                    let records = planned.cell.requests().map_or(1, |requests| requests.records);
                    assert!(study.records_here(records) > 0);
                }
            }
            Err(mistakes) => {
                assert!(mistakes.has_errors());
                for finding in mistakes.findings() {
                    let (line, column) = mistakes.line_column(finding.span.start);
                    assert!(line >= 1 && line <= text.lines().count().max(1) + 1 && column >= 1);
                }
                assert!(!mistakes.to_string().is_empty() && !mistakes.render(true).is_empty());
            }
        }
    }
}

#[test]
fn study_with_every_key_is_sound() {
    for short in [false, true] {
        let study =
            Study::parse("every-key.toml", EVERY_KEY, short).unwrap_or_else(|mistakes| panic!("{mistakes}"));
        assert_eq!(study.workloads[0].mixes.len(), if short { 1 } else { 4 });
        assert_eq!(study.workloads[0].properties["hotspotopnfraction"], "0.8");
    }
}

/// One change of a text: bytes taken out, put in, or a line given twice or moved.
#[derive(Clone, Debug)]
enum Change {
    Cut(usize, usize),
    Insert(usize, String),
    RepeatLine(usize, usize),
}

fn change() -> impl Strategy<Value = Change> {
    let snippet = prop_oneof![
        "\\PC{0,12}",
        "[\\[\\]{}=\",.#0-9a-z_ \n-]{1,12}",
        prop::sample::select(vec![
            "\"",
            "'''",
            "[[",
            "]]",
            "{}",
            "= [",
            "-1",
            "0",
            "9223372036854775807",
            "nan",
            "inf",
            "1e308",
            "true",
            "1979-05-27",
            "\u{feff}",
            "\r",
            "\u{0}",
            "ß",
            "[system]",
            "[workload.ycsb.x]",
            "a.b.c = 1\n",
        ])
        .prop_map(str::to_owned),
    ];
    prop_oneof![
        (any::<usize>(), 1usize..40).prop_map(|(position, length)| Change::Cut(position, length)),
        (any::<usize>(), snippet).prop_map(|(position, text)| Change::Insert(position, text)),
        (any::<usize>(), any::<usize>()).prop_map(|(from, to)| Change::RepeatLine(from, to)),
    ]
}

fn apply(text: &str, changes: &[Change]) -> String {
    let mut text = text.to_owned();
    for change in changes {
        let boundary = |position: usize| {
            (0..=position % (text.len() + 1))
                .rev()
                .find(|&position| text.is_char_boundary(position))
                .unwrap_or(0)
        };
        match change {
            Change::Cut(position, length) => {
                let start = boundary(*position);
                let end = boundary((start + length).min(text.len()));
                text.replace_range(start..end.max(start), "");
            }
            Change::Insert(position, inserted) => text.insert_str(boundary(*position), inserted),
            Change::RepeatLine(from, to) => {
                let mut lines: Vec<&str> = text.lines().collect();
                if !lines.is_empty() {
                    let line = lines[from % lines.len()];
                    lines.insert(to % lines.len(), line);
                }
                text = lines.join("\n");
            }
        }
    }
    text
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn any_text_is_answered(text in "\\PC{0,200}") {
        read(&text);
    }

    #[test]
    fn any_bytes_are_answered(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        read(&String::from_utf8_lossy(&bytes));
    }

    #[test]
    fn changed_study_is_answered(
        sound in prop::sample::select(vec![SOUND, EVERY_KEY, BATCH, HIDDEN]),
        changes in prop::collection::vec(change(), 1..5),
    ) {
        read(&apply(sound, &changes));
    }

    #[test]
    fn any_value_under_a_key_is_answered(
        sound in prop::sample::select(vec![EVERY_KEY, BATCH, HIDDEN]),
        line in 0usize..60,
        value in prop::sample::select(vec![
            "1", "-1", "0", "1.5", "nan", "inf", "-inf", "9223372036854775807", "true", "\"\"", "\"x\"", "\"max\"", "[]", "[[]]", "{}",
            "[{}]", "{ a = 1 }", "1979-05-27", "\"9 PiB\"", "\"16000 PiB\"", "\"0 B\"", "\"1 B\"", "\"0.001 ns\"", "[\"a\", \"a\"]", "\"\\u0000\"",
        ]),
    ) {
        let mut lines: Vec<String> = sound.lines().map(str::to_owned).collect();
        let index = line % lines.len();
        if let Some((key, _)) = lines[index].clone().split_once(" = ") {
            lines[index] = format!("{key} = {value}");
        }
        read(&lines.join("\n"));
    }
}
