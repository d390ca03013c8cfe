//! Run directories as they are found: whole, interrupted, broken.

mod fixture;

use std::fs;
use std::path::Path;

use underlay_report::{LoadError, LoadedRun, RunDirectory, terminal};

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
fn a_run_is_read_as_it_was_written() {
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
fn an_interrupted_run_says_how_far_it_came() {
    let directory = tempfile::tempdir().expect("a directory");
    write(&fixture::small(), directory.path(), 10);
    let read = RunDirectory::load(directory.path()).expect("a run");
    assert_eq!((read.finished(), read.planned()), (10, 27));
    let text = terminal::comparison(&read, 100, false);
    assert!(text.contains("10 of 27 repetitions"), "{text}");
    assert!(text.contains("not measured yet"), "{text}");
}

#[test]
fn a_broken_record_costs_one_repetition_and_is_named() {
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
fn what_is_no_run_is_refused_with_a_reason() {
    let directory = tempfile::tempdir().expect("a directory");
    let error = RunDirectory::load(directory.path()).expect_err("empty");
    assert!(matches!(error, LoadError::NotARun(_)), "{error}");
    fs::write(directory.path().join("run.json"), "{ \"schema\": 2 }").expect("written");
    let error = RunDirectory::load(directory.path()).expect_err("another schema");
    assert!(error.to_string().contains("schema 2"), "{error}");
    fs::write(directory.path().join("run.json"), "[]").expect("written");
    let error = RunDirectory::load(directory.path()).expect_err("no object");
    assert!(matches!(error, LoadError::Parse { .. }), "{error}");
}
