//! What the pages show, as JSON: `docs/console.md` describes it.

use serde::Serialize;
use serde_json::{Value, json};
use underlay_record::PlannedCell;

use crate::feed::{CellView, Event};
use crate::hub::{FollowedRun, Hub};

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
        "ended": run.watched.ended.as_ref().map(|(at_s, how)| json!({ "at_s": at_s, "how": how })),
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
    let kept = run.watched.history.since(since_s).iter();
    Value::Array(kept.map(|moment| json!({ "at_s": moment.at_s, "sample": moment.sample })).collect())
}

#[derive(Serialize)]
struct EventEntry<'a> {
    #[serde(flatten)]
    event: &'a Event,
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
    let kept: Vec<EventEntry<'_>> = run.watched.events.iter().map(entry).collect();
    json!(kept)
}

pub(crate) fn host(hub: &Hub) -> Value {
    let running: Vec<Value> = hub
        .host
        .running()
        .into_iter()
        .map(|run| json!({ "directory": run.directory, "process": run.process }))
        .collect();
    json!({ "runs": running, "storages": hub.host.storages(), "services": hub.host.services() })
}
