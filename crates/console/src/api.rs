//! The pages' contents, as JSON: `docs/console.md` describes it.

use std::path::Path;

use serde::Serialize;
use serde_json::{Value, json};
use underlay_record::PlannedCell;

use crate::feed::{CellView, HistoryEvent};
use crate::host::StudyCheck;
use crate::hub::{ConsoleHub, FollowedRun};

#[derive(Serialize)]
struct CellEntry<'a> {
    position: u32,
    #[serde(flatten)]
    planned: &'a PlannedCell,
    #[serde(flatten)]
    view: CellView,
}

/// A run: its cells, what it does now, its nodes.
pub(crate) fn run(run: &FollowedRun) -> Value {
    let cells: Vec<CellEntry<'_>> = (0..)
        .zip(&run.run.plan)
        .map(|(position, planned)| CellEntry { position, planned, view: run.cell(position) })
        .collect();
    let latest = run.watched.history.latest();
    json!({
        "name": run.name,
        "directory": run.directory,
        "study": run.run.name,
        "title": run.run.title,
        "started_at": run.run.started_at,
        "scale": run.run.scale,
        "is_running": run.is_running(),
        "process": run.process,
        "doing": run.watched.doing,
        "running_position": run.watched.running,
        "remaining_s": run.watched.remaining.map(|(_, remaining_s)| remaining_s),
        "ended": run.watched.ended.as_ref().map(|(at_s, ending)| json!({ "at_s": at_s, "how": ending })),
        "cells": cells,
        "latest": latest.map(|latest| json!({ "at_s": latest.at_s, "sample": latest.sample })),
        "storage": run.watched.storage,
        "topology": run.watched.topology,
        "parts": run.watched.parts,
        "nodes": run.nodes,
        "node_events": run.watched.node_events,
    })
}

/// All samples that are kept from a moment on, in seconds since 1970.
pub(crate) fn samples(run: &FollowedRun, since_s: f64) -> Value {
    let moments = run.watched.history.moments_since(since_s).iter();
    Value::Array(moments.map(|moment| json!({ "at_s": moment.at_s, "sample": moment.sample })).collect())
}

#[derive(Serialize)]
struct EventEntry<'a> {
    #[serde(flatten)]
    event: &'a HistoryEvent,
    /// The cell's name, and which of its repetitions.
    cell: Option<&'a str>,
    repetition: Option<u32>,
}

pub(crate) fn events(run: &FollowedRun) -> Value {
    let entry = |event| {
        let planned = run.planned_of(event);
        EventEntry {
            event,
            cell: planned.map(|planned| planned.cell.id.as_str()),
            repetition: planned.map(|planned| planned.repetition),
        }
    };
    let entries: Vec<EventEntry<'_>> = run.watched.events.iter().map(entry).collect();
    json!(entries)
}

pub(crate) fn host(hub: &ConsoleHub) -> Value {
    let running: Vec<Value> = hub
        .host
        .running()
        .into_iter()
        .map(|run| json!({ "directory": run.directory, "process": run.process }))
        .collect();
    json!({ "runs": running, "storages": hub.host.storages(), "services": hub.host.services() })
}

/// The output of `underlay check --json`: the cells of a sound study, or its mistakes.
pub(crate) fn checked(studies: &Path, checked: &StudyCheck) -> Value {
    match checked.is_sound() {
        true => json!(checked.cells),
        false => json!({ "errors": mistakes(studies, checked) }),
    }
}

/// The mistakes and notes as `underlay check --json` has them.
pub(crate) fn mistakes(studies: &Path, checked: &StudyCheck) -> Value {
    let all = checked.mistakes.iter().map(|one| {
        // By the name that the study has in its directory.
        let file = one.file.as_deref().map(|file| match Path::new(file).strip_prefix(studies) {
            Ok(inner) => inner.display().to_string(),
            Err(_) => file.to_owned(),
        });
        json!({
            "file": file,
            "line": one.line,
            "column": one.column,
            "severity": if one.is_note { "note" } else { "error" },
            "message": one.message,
            "label": one.label,
            "help": one.help,
        })
    });
    all.collect()
}
