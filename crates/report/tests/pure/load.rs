//! Run directories as they are found: whole, interrupted, broken.

use std::fs;
use std::path::Path;

use crate::fixture;
use underlay_record::{OfferedRate, ReadError, SCHEMA_VERSION};
use underlay_report::ab::AbComparison;
use underlay_report::{LoadError, LoadedRun, RunDirectory, export, html, terminal};

fn write(loaded: &LoadedRun, directory: &Path, records: usize) {
    fs::create_dir(directory.join("cells")).expect("a new directory");
    fs::write(directory.join("run.json"), serde_json::to_string(&loaded.run).expect("plain data"))
        .expect("written");
    for (planned, record) in loaded.run.plan.iter().zip(&loaded.records).take(records) {
        let text = serde_json::to_string(record).expect("plain data");
        fs::write(directory.join("cells").join(&planned.file), text).expect("written");
    }
}

#[test]
fn run_reads_back() {
    let made = fixture::small();
    let directory = tempfile::tempdir().expect("a directory");
    write(&made, directory.path(), usize::MAX);
    let read = RunDirectory::load(directory.path()).expect("a run");
    assert_eq!(read.run, made.run);
    let cells = |loaded: &LoadedRun| -> Vec<_> {
        loaded.records.iter().map(|one| (one.cell.clone(), one.repetition, one.status.clone())).collect()
    };
    assert_eq!(cells(&read), cells(&made));
    assert_eq!(terminal::comparison(&read, 140, false), terminal::comparison(&made, 140, false));
    assert!(read.broken.is_empty() && !read.is_partial());
}

#[test]
fn interrupted_run_reports_progress() {
    let directory = tempfile::tempdir().expect("a directory");
    write(&fixture::small(), directory.path(), 10);
    let read = RunDirectory::load(directory.path()).expect("a run");
    assert_eq!((read.finished(), read.planned()), (10, 27));
    let text = terminal::comparison(&read, 100, false);
    assert!(text.contains("10 of 27 repetitions"), "{text}");
    assert!(text.contains("not yet") || text.contains("Not measured yet"), "{text}");
}

#[test]
fn broken_record_costs_one_repetition_and_is_named() {
    let made = fixture::small();
    let directory = tempfile::tempdir().expect("a directory");
    write(&made, directory.path(), usize::MAX);
    let cells = directory.path().join("cells");
    fs::write(cells.join(&made.run.plan[0].file), "{ \"schema\": 1, \"cell\"").expect("written");
    fs::write(cells.join(&made.run.plan[1].file), "{ \"schema\": 7 }").expect("written");
    let read = RunDirectory::load(directory.path()).expect("a run");
    assert_eq!((read.finished(), read.broken.len()), (25, 2));
    let text = terminal::comparison(&read, 100, false);
    assert!(text.contains(&made.run.plan[0].file) && text.contains("schema 7"), "{text}");
}

#[test]
fn invalid_run_is_refused_with_reason() {
    let directory = tempfile::tempdir().expect("a directory");
    let error = RunDirectory::load(directory.path()).expect_err("empty");
    assert!(matches!(error, LoadError::NotARun(_)), "{error}");
    fs::write(directory.path().join("run.json"), "{ \"schema\": 3 }").expect("written");
    let error = RunDirectory::load(directory.path()).expect_err("another schema");
    assert!(error.to_string().contains("schema 3"), "{error}");
    fs::write(directory.path().join("run.json"), "[]").expect("written");
    let error = RunDirectory::load(directory.path()).expect_err("no object");
    assert!(matches!(error, LoadError::Record { source: ReadError::Form(_), .. }), "{error}");
    let error = RunDirectory::load(directory.path().join("run.json")).expect_err("a file");
    let expected = format!("name its directory, {}", directory.path().display());
    assert!(error.to_string().ends_with(&expected), "{error}");
}

/// A run as version 0.2.0 wrote it: two servers on devices of their own, and on a pool over a network; stopped after
/// two cells.
const EARLIER_RUN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../record/tests/schema-2");

#[test]
fn earlier_run_is_read() {
    let read = RunDirectory::load(EARLIER_RUN).expect("a run");
    assert!(read.broken.is_empty(), "{:?}", read.broken);
    assert_eq!((read.run.schema, read.finished(), read.planned()), (SCHEMA_VERSION, 2, 4));
    assert_eq!(read.run.storages, ["local", "remote"]);
    let mut labels: Vec<String> = read.run.plan.iter().map(|planned| planned.cell.label()).collect();
    labels.sort();
    assert_eq!(labels, ["a, 500/s", "a, 500/s", "a, unthrottled", "a, unthrottled"]);
    let local = read.records.iter().find(|record| record.cell.storage == "local").expect("on record");
    let requests = local.cell.requests().expect("no job");
    assert_eq!((requests.threads, requests.records, &requests.rate), (4, 40_000, &OfferedRate::Unthrottled));
    let servers: Vec<_> = local.devices.iter().map(|device| device.description.id.server).collect();
    assert_eq!(servers, [Some(1), Some(2)]);
    assert!(local.devices.iter().all(|device| device.description.id.name == "ssd-sata.0"));
    assert!(terminal::comparison(&read, 120, false).contains("500/s"));
    assert!(html::render(&read).contains("server 2: pool/server-1"));
    let (json, csv) = (export::json(&read), export::csv(&read));
    assert!(json.contains("\"a, unthrottled\"") && csv.contains("\"a, 500/s\""), "{csv}");
}

#[test]
fn earlier_run_is_compared_with_current_one() {
    let old = RunDirectory::load(EARLIER_RUN).expect("a run");
    let again = tempfile::tempdir().expect("a directory");
    fs::create_dir(again.path().join("cells")).expect("a new directory");
    fs::write(again.path().join("run.json"), serde_json::to_string(&old.run).expect("plain data")).unwrap();
    for record in &old.records {
        let planned = old.run.plan.iter().find(|planned| planned.cell.id == record.cell.id).expect("planned");
        let text = serde_json::to_string(record).expect("plain data");
        assert!(text.starts_with("{\"schema\":2"), "it is written as records are today");
        fs::write(again.path().join("cells").join(&planned.file), text).unwrap();
    }
    let new = RunDirectory::load(again.path()).expect("a run");
    assert_eq!((&new.run, &new.records), (&old.run, &old.records));
    let compared = AbComparison::new(("old", &old), ("new", &new));
    assert_eq!(compared.cells.len(), 2);
    assert!(
        compared.left_out.iter().all(|one| one.ends_with("neither run measured it")),
        "{:?}",
        compared.left_out
    );
}

#[test]
fn record_under_foreign_name_is_excluded() {
    let made = fixture::small();
    let directory = tempfile::tempdir().expect("a directory");
    write(&made, directory.path(), usize::MAX);
    let cells = directory.path().join("cells");
    let [other_repetition, other_cell] = [(1, 0), (3, 0)].map(|(over, from)| {
        let [over, from] = [over, from].map(|index: usize| &made.run.plan[index]);
        assert_ne!((&over.cell.id, over.repetition), (&from.cell.id, from.repetition));
        fs::copy(cells.join(&from.file), cells.join(&over.file)).expect("copied");
        over
    });
    let read = RunDirectory::load(directory.path()).expect("a run");
    assert_eq!((read.finished(), read.broken.len()), (25, 2));
    let text = terminal::comparison(&read, 400, false);
    for over in [other_repetition, other_cell] {
        let expected = format!("where the plan has repetition {} of {}", over.repetition, over.cell.id);
        assert!(text.contains(&over.file) && text.contains(&expected), "{text}");
    }
    assert!(export::json(&read).contains("is misplaced"));
}

#[test]
fn record_with_impossible_figures_is_excluded() {
    let made = fixture::small();
    let directory = tempfile::tempdir().expect("a directory");
    write(&made, directory.path(), usize::MAX);
    let edits: [(&str, serde_json::Value, &str); 5] = [
        ("/cell/storage", "another".into(), "is misplaced"),
        ("/measured/operations", u64::MAX.into(), "it counts 18446744073709551615"),
        ("/devices/0/totals/read_bytes", (1_u64 << 63).into(), "it counts 9223372036854775808"),
        ("/measured/duration_s", 0.into(), "its measurement lasted 0 s"),
        ("/measured", serde_json::Value::Null, "is completed, and it has no figures"),
    ];
    let completed = made.run.plan.iter().zip(&made.records).filter(|(_, record)| record.measured.is_some());
    for ((planned, record), (place, value, _)) in completed.zip(&edits) {
        let mut record = serde_json::to_value(record).expect("plain data");
        *record.pointer_mut(place).expect("a field of a record") = value.clone();
        fs::write(directory.path().join("cells").join(&planned.file), record.to_string()).expect("written");
    }
    let read = RunDirectory::load(directory.path()).expect("a run");
    let named: Vec<String> = read.broken.iter().map(ToString::to_string).collect();
    assert_eq!(named.len(), edits.len(), "{named:?}");
    for (place, _, expected) in &edits {
        assert!(named.iter().any(|error| error.contains(expected)), "{place}: {named:?}");
    }
    let _ = (terminal::comparison(&read, 100, false), html::render(&read), export::json(&read));
}

#[test]
fn run_mixing_versions_or_hosts_is_reported() {
    let same = fixture::small();
    let mixed = |document: &str| document.contains("The run mixes");
    assert!(!mixed(&terminal::comparison(&same, 400, false)) && !mixed(&html::render(&same)));
    let mut made = fixture::small();
    for record in made.records.iter_mut().skip(18) {
        record.versions.insert("underlay".to_owned(), "0.2.0".to_owned());
        record.machine.hostname = "borrowed".to_owned();
    }
    let versions = "The run mixes versions of underlay: 0.1.0 in 4 cells and 0.2.0 in 3 cells";
    let machines = "bench (2 cores, a made-up CPU at 2.6 GHz, 24 GiB) in 4 cells and borrowed";
    for text in [terminal::comparison(&made, 400, false), html::render(&made), export::json(&made)] {
        assert!(text.contains(versions) && text.contains(machines), "{text}");
        assert!(!text.contains("mixes versions of rocksdb"), "{text}");
    }
    let compared = AbComparison::new(("mixed", &made), ("same", &same));
    let text = terminal::ab::text(&compared, 400, false);
    assert!(text.contains("A: The run mixes machines") && !text.contains("B: The run mixes"), "{text}");
    // Beside the warning, the page's facts name each.
    assert!(html::render(&made).contains("underlay 0.1.0 and 0.2.0"));
}
