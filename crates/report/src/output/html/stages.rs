//! Where the time of batch jobs went: their stages, what tasks did in them, and what the store was asked for meanwhile.

use maud::{Markup, html};
use underlay_record::{StageRecord, StoreRequests, TaskTime};

use super::swatch;
use crate::cell::jobs::JobFigures;
use crate::comparison::ComparisonRow;
use crate::quantity::{self, ABSENT};

/// One of the parts of a task's time.
type StagePick = fn(&TaskTime) -> f64;

/// The parts of a task's time, each with its name.
const PARTS: [(&str, StagePick); 5] = [
    ("compute", |time| time.compute_s),
    ("input", |time| time.input_wait_s),
    ("shuffle", |time| time.shuffle_s),
    ("output", |time| time.output_s),
    ("commit", |time| time.commit_s),
];

/// Empty where no job of these rows has stages.
pub(super) fn stages(rows: &[&ComparisonRow]) -> Markup {
    let entries: Vec<(&str, usize, &str, &JobFigures)> = rows
        .iter()
        .flat_map(|row| row.cells.iter().enumerate().map(move |(index, result)| (row, index, result)))
        .filter_map(|(row, index, result)| {
            let result = result.as_ref()?;
            let job = result.job().filter(|job| !job.stages.is_empty())?;
            Some((row.label(), index, result.cell.storage.as_str(), job))
        })
        .collect();
    html! {
        @if !entries.is_empty() {
            details {
                summary { "Where the time went, stage by stage" }
                p.muted.small {
                    "Of the first repetition. A stage's tasks run side by side, so their time adds up to more than the stage's. "
                    "Requests are those that the store answered while the stage ran."
                }
                div.scroll { table {
                    thead { tr {
                        th.l { "Storage" } th.l { "stage" } th { "from" } th { "took" } th { "tasks" }
                        @for (name, _) in PARTS { th { (name) } }
                        th { "read" } th { "written" } th.l { "requests to the store" }
                    } }
                    tbody {
                        @for (label, index, storage, job) in &entries {
                            tr.group { th colspan="13" {
                                (label) " on " (storage)
                                @if let Some(committer) = &job.committer { ", committed by " code { (committer) } }
                            } }
                            @for stage in &job.stages { (line(stage, *index, storage)) }
                        }
                    }
                } }
            }
        }
    }
}

fn line(stage: &StageRecord, index: usize, storage: &str) -> Markup {
    let all_s = stage.time.total_s();
    html! {
        tr {
            th.l scope="row" { (swatch(index)) (storage) }
            td.l { (stage.name) }
            td { (quantity::duration(stage.began_s)) }
            td { (quantity::duration(stage.duration_s)) }
            td { @if stage.tasks > 0 { (stage.tasks) } @else { (ABSENT) } }
            @for (_, part) in PARTS {
                td { @if all_s > 0.0 { (quantity::percent(part(&stage.time) / all_s)) } @else { (ABSENT) } }
            }
            td { (bytes(stage.input_bytes)) }
            td { (bytes(stage.output_bytes)) }
            td.w {
                @for (position, (kind, sum)) in stage.requests.iter().enumerate() {
                    @if position > 0 { ", " } (requests(kind, sum))
                }
            }
        }
    }
}

fn bytes(bytes: u64) -> String {
    if bytes == 0 { ABSENT.to_owned() } else { quantity::bytes(bytes as f64) }
}

fn requests(kind: &str, sum: &StoreRequests) -> String {
    let moved = sum.sent_bytes + sum.received_bytes;
    match moved {
        0 => format!("{} {kind}", sum.requests),
        _ => format!("{} {kind} ({})", sum.requests, quantity::bytes(moved as f64)),
    }
}
