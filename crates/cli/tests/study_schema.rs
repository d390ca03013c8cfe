//! The schema of a study, which editors use: it takes what the reader takes, and knows the keys that the reader knows.

mod support;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use serde_json::{Value, json};
use support::schemas::published;
use support::{NULL_STUDY, Playground, TINY_STUDY, stderr};
use toml_edit::DocumentMut;
use underlay_study::spec::Study;

/// What of a study is not as the schema has it.
fn problem(study: &Value) -> Option<String> {
    static COMPILED: LazyLock<(boon::Schemas, boon::SchemaIndex)> = LazyLock::new(|| {
        let (mut schemas, mut compiler) = (boon::Schemas::new(), boon::Compiler::new());
        compiler.add_resource("study.json", published("study")).unwrap();
        let index = compiler.compile("study.json", &mut schemas).unwrap();
        (schemas, index)
    });
    let (schemas, index) = &*COMPILED;
    schemas.validate(study, *index).err().map(|error| format!("{error:#}"))
}

fn json_of(text: &str) -> Value {
    toml_edit::de::from_str(text).unwrap()
}

fn bundled() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../studies");
    let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    files.filter(|path| path.extension().is_some_and(|extension| extension == "toml")).collect()
}

/// Everything that a study may have, so that each key stands somewhere.
const FULL: &str = r#"
name = "full"
title = "Every key"
baseline = "disks"

[system.rocksdb]
memory = "96 GiB"
write_buffer_share = "4 %"
block_bytes = 4096

[system.ring]
kind = "cassandra"
memory = "96 GB"
fixed_memory = "1.4 GB"
nodes = 3
commitlog = "log"

[system.alone]
kind = "cassandra"
memory = "96 GB"
servers = 2

[storage.disks]
devices = [{ medium = "hdd-7200-sata", count = 6, capacity = "2 TB" }]
layout = "split"
directories = 2
chunk = "64 KiB"
cache = { medium = "optane-p4800x", capacity = "375 GB", mode = "write-back" }
compress = "lz4"
link = { bandwidth = "25 Gbit/s", latency = "20 us" }
initial = "fresh"
filesystem = "ext4"
read_ahead = "16 KiB"
system = { compression = "none" }

[storage.hybrid]
devices = [{ medium = "my-disk.toml" }, { medium = "ssd-mapreduce", directories = 10, capacity = "6 TB", larger_than_medium = true }]
layout = "jbod"

[storage.published]
preset = "oracle-flash"
read_ahead = "none"

[storage.cloud]
devices = [{ medium = "ebs-io2", instance_iops = 18_750 }]

[storage.mine]
paths = ["/mnt/disk"]

[storage.theirs]
elsewhere = "two drives a node"

[storage.remote]
pool = "shared"
transport = "nvme-tcp"
capacity = "4.9 TB"
mirror = true

[pool.shared]
devices = [{ medium = "nvme-9300-max", count = 8 }]
initial = "steady"

[workload.ycsb]
kind = "ycsb"
mixes = ["a", "load", { update = 1.0 }, { read = 80, update = 15, rmw = 5 }, "read80-update20"]
data = ["450 GB", "1 TB"]
record = { fields = 10, bytes = 100 }
distribution = ["uniform", "zipfian"]
threads = [8, 16]
rate = [5_000, "max", { ramp = [1_000, 50_000], over = "60 s" }, { steps = [1_000, 5_000.5], each = "20 s" }]
arrivals = "poisson"
beside = { mix = { update = 1.0 }, threads = 2, rate = 500 }
properties = { readallfields = false, compressibility = 0.4 }
visibility = "secret&(a|b)"
authorizations = ["secret", "a"]
unauthorized_share = 0.1
scan_filter = "user1.*"
compact_at = 0.5

[workload.search]
mixes = "c"
records = 2_000_000
threads = 8
find_rate = { p99 = "10 ms", p999 = "50 ms", from = 100, to = 1e5, within = 0.05, step = "5 s" }

[workload.mapreduce]
kind = "jobs"
jobs = ["teragen", "terasort"]
data = { others = "33 GB", terasort = "8 GB" }
maps = 16
reduces = 16
compressibility = 0.5
limit = "1 h"

[run]
warmup = "500 ms"
duration = "1.5 min"
repetitions = 3
seed = 1
cache = "cold"
attachment = "fuse+loop"
raw = true
dirty_limit = "1.2 GB"

[scale]
time = 8
data = 1000

[fault.slow]
at = "1 s"
for = "2 s"
storage = "disks"
device = 0
slow = 10

[fault.errors]
at = "0 s"
errors = { rate = 0.01, operations = ["read", "flush"], extent = "0..1 GiB" }

[fault.bits]
at = "0 s"
corrupt = { rate = 0.01, extent = "0..1 GiB" }

[fault.spikes]
at = "0 s"
spikes = { rate = 0.01, operations = "write", latency = "200 ms" }

[fault.cut]
at = "0 s"
power_cut = { torn = true, reordered = true }

[fault.gone]
at = "0 s"
vanish = true

[event.lost]
at = "1 s"
for = "2 s"
node = "any node"
how = "stop"
system = "ring"

[short]
warmup = "1 s"
duration = "4 s"
repetitions = 1
dirty_limit = "1 GB"
workloads = ["ycsb"]
mixes = ["a"]
jobs = ["teragen"]
distribution = "uniform"
threads = 8
rate = "max"
records = 1_000
job_data = "1 GB"
servers = 2
pool_devices = 4
time = 2
data_scale = 100

[reference]
paper = "oracle-nosql-flash"
one_of = 5
departures = ["One."]
"#;

#[test]
fn existing_studies_match_schema() {
    let mut studies: Vec<(String, String)> = bundled()
        .into_iter()
        .map(|path| (path.display().to_string(), std::fs::read_to_string(&path).unwrap()))
        .collect();
    assert!(studies.len() >= 5);
    studies.extend(
        [("tiny", TINY_STUDY), ("null", NULL_STUDY), ("full", FULL)]
            .map(|(name, text)| (name.to_owned(), text.to_owned())),
    );
    let playground = Playground::new();
    // Of `command` nobody can guess the commands.
    for system in underlay_systems::names().into_iter().filter(|system| *system != "command") {
        let made =
            playground.output(&["new", system, "--system", system, "--storage", "hddx2,nvme,/mnt/disk"]);
        assert!(made.status.success(), "{}", stderr(&made));
        let text = std::fs::read_to_string(playground.path(&format!("{system}.toml"))).unwrap();
        studies.push((system.to_owned(), text));
    }
    for (name, text) in studies {
        assert_eq!(problem(&json_of(&text)), None, "{name}");
    }
}

#[test]
fn unknown_key_is_refused_in_all_tables() {
    let whole = json_of(FULL);
    let mut places = Vec::new();
    tables(&whole, String::new(), &mut places);
    assert!(places.len() > 30, "{places:?}");
    for place in places {
        let mut study = whole.clone();
        let table = study.pointer_mut(&place).unwrap().as_object_mut().unwrap();
        table.insert("no_such_key".to_owned(), json!("1 GB"));
        // What these hold is the system's or the jobs' affair: no key of theirs is unknown to the schema.
        let is_open = place.ends_with("/system") && place.matches('/').count() > 1
            || place == "/workload/mapreduce/data";
        assert_eq!(problem(&study).is_none(), is_open, "{place}");
    }
}

fn tables(value: &Value, place: String, found: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            found.push(place.clone());
            for (name, field) in fields {
                tables(field, format!("{place}/{name}"), found);
            }
        }
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                tables(item, format!("{place}/{index}"), found);
            }
        }
        _ => {}
    }
}

#[test]
fn value_of_wrong_kind_is_refused() {
    let wrong = [
        ("/scale/time", json!(0.5)),
        ("/run/duration", json!("20")),
        ("/run/cache", json!("hot")),
        ("/system/rocksdb/memory", json!(96)),
        ("/system/rocksdb/kind", json!("oracle")),
        ("/system/ring/kind", json!("oracle")),
        ("/storage/disks/devices/0/medium", json!("tape")),
        ("/storage/disks/paths", json!(["/mnt/disk"])),
        ("/workload/ycsb/mixes", json!(["a", "z"])),
        ("/workload/ycsb/records", json!(1000)),
        ("/fault/slow/vanish", json!(true)),
        ("/reference/paper", json!("none")),
        ("/name", json!("Full")),
    ];
    for (place, value) in wrong {
        let mut study = json_of(FULL);
        let (table, key) = place.rsplit_once('/').unwrap();
        study.pointer_mut(table).unwrap()[key] = value;
        assert!(problem(&study).is_some(), "{place}");
    }
}

/// The reader lists the keys that it knows when it meets one that it does not.
#[test]
fn schema_keys_match_reader() {
    let schema = published("study");
    let requests = "/properties/workload/additionalProperties/anyOf/0";
    let batch = "/properties/workload/additionalProperties/anyOf/1";
    let storage = "/properties/storage/additionalProperties";
    let fault = "/properties/fault/additionalProperties";
    let mut places: Vec<(String, String)> = [
        ("", String::new()),
        ("/run", "/properties/run".into()),
        ("/scale", "/properties/scale".into()),
        ("/short", "/properties/short".into()),
        ("/reference", "/properties/reference".into()),
        ("/pool/shared", "/properties/pool/additionalProperties".into()),
        ("/storage/disks", storage.into()),
        ("/storage/disks/devices/0", format!("{storage}/properties/devices/items")),
        ("/storage/disks/cache", format!("{storage}/properties/cache")),
        ("/storage/disks/link", format!("{storage}/properties/link")),
        ("/workload/ycsb", requests.into()),
        ("/workload/ycsb/beside", format!("{requests}/properties/beside")),
        ("/workload/ycsb/record", format!("{requests}/properties/record")),
        ("/workload/ycsb/properties", format!("{requests}/properties/properties")),
        ("/workload/mapreduce", batch.into()),
        ("/event/lost", "/properties/event/additionalProperties".into()),
        ("/fault/slow", fault.into()),
        ("/fault/errors/errors", format!("{fault}/properties/errors")),
        ("/fault/bits/corrupt", format!("{fault}/properties/corrupt")),
        ("/fault/spikes/spikes", format!("{fault}/properties/spikes")),
        ("/fault/cut/power_cut", format!("{fault}/properties/power_cut/anyOf/1")),
    ]
    .map(|(place, pointer)| (place.to_owned(), pointer))
    .to_vec();
    places.extend(
        underlay_systems::names()
            .into_iter()
            .map(|system| (format!("/system/{system}"), format!("/$defs/{system}"))),
    );
    for (place, pointer) in places {
        let accepted = keys_of_the_reader(&place);
        let keys = schema.pointer(&pointer).unwrap_or_else(|| panic!("no {pointer}"))["properties"]
            .as_object()
            .unwrap();
        let ours: BTreeSet<String> = keys.keys().cloned().collect();
        assert_eq!(ours, accepted, "{place}");
        let undescribed: Vec<&String> = keys
            .iter()
            .filter(|(_, value)| value["description"].as_str().is_none_or(str::is_empty))
            .map(|(key, _)| key)
            .collect();
        assert!(undescribed.is_empty(), "{place}: {undescribed:?}");
    }
}

/// What it lists of the table at `place`, as a JSON pointer into the full study.
fn keys_of_the_reader(place: &str) -> BTreeSet<String> {
    let mut document: DocumentMut = FULL.parse().unwrap();
    let mut item = document.as_item_mut();
    for part in place.split('/').filter(|part| !part.is_empty()) {
        item = match part.parse::<usize>() {
            // Inline tables in an array are values of it.
            Ok(index) => {
                let table = item.as_array_mut().unwrap().get_mut(index).unwrap();
                table.as_inline_table_mut().unwrap().insert("zzzzzzzzz", 1.into());
                return listed(&document.to_string());
            }
            Err(_) => &mut item[part],
        };
    }
    match item.as_inline_table_mut() {
        Some(table) => {
            table.insert("zzzzzzzzz", 1.into());
        }
        None => item["zzzzzzzzz"] = toml_edit::value(1),
    }
    listed(&document.to_string())
}

fn listed(text: &str) -> BTreeSet<String> {
    let findings = Study::parse("full.toml", text, false).unwrap_err();
    let unknown = findings.findings().iter().find(|finding| finding.message.contains("zzzzzzzzz"));
    let unknown = unknown.unwrap_or_else(|| panic!("nothing is said of the key:\n{findings}"));
    let help = unknown.help.as_deref().unwrap_or_default();
    let list = help.strip_prefix("expected one of ").unwrap_or_else(|| panic!("no list of keys: {help}"));
    // A medium has keys of its own beside those.
    let list = list.split(";").next().unwrap_or_default();
    list.split(", ").map(str::to_owned).collect()
}
