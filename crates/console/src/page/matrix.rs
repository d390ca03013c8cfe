//! The cells of a run: a row for each system and workload, a column for each storage.

use std::collections::HashMap;

use maud::{Markup, html};
use underlay_record::{CellState, PlannedCell};
use underlay_report::quantity;

use super::words::{escaped, now_s};
use crate::hub::{ConsoleHub, FollowedRun};

/// A matrix of more rows than this is scrolled.
const MAX_ROWS: usize = 400;

pub(super) fn matrix(hub: &ConsoleHub, run: &FollowedRun) -> Markup {
    let plan = &run.run.plan;
    let several = run.run.systems.len() > 1;
    let labels: Vec<String> = plan.iter().map(|planned| planned.cell.label()).collect();
    // Of each row and storage.
    let mut places: HashMap<(&str, &str, &str), Vec<usize>> = HashMap::new();
    for (position, (planned, label)) in plan.iter().zip(&labels).enumerate() {
        let cell = &planned.cell;
        places.entry((&cell.system, label, &cell.storage)).or_default().push(position);
    }
    let mut rows: Vec<(String, String)> = plan
        .iter()
        .zip(&labels)
        .map(|(planned, label)| (planned.cell.system.clone(), label.clone()))
        .collect();
    // In the study's order of systems, and not in the random one of the plan.
    let place = |system: &String| run.run.systems.iter().position(|other| other == system);
    rows.sort_by(|a, b| (place(&a.0), &a.1).cmp(&(place(&b.0), &b.1)));
    rows.dedup();
    // Of a part of a study (`--only`), the storages of that part.
    let is_planned = |storage: &&String| plan.iter().any(|planned| planned.cell.storage == **storage);
    let storages: Vec<&String> = run.run.storages.iter().filter(is_planned).collect();
    html! {
        div.scroll tabindex="0" role="region" aria-label="Cells" {
            table.matrix {
                thead { tr {
                    th.l scope="col" { "Workload" }
                    @for storage in &storages { th.l scope="col" { (storage) } }
                } }
                tbody {
                    @for (system, label) in rows.iter().take(MAX_ROWS) {
                        tr {
                            th.l scope="row" { @if several { (system) ": " } (label) }
                            @for storage in &storages {
                                td.l {
                                    @for position in places.get(&(system.as_str(), label.as_str(), storage.as_str())).into_iter().flatten() {
                                        (chip(hub, run, *position as u32, &plan[*position]))
                                    }
                                }
                            }
                        }
                    }
                }
            }
        }
        @if rows.len() > MAX_ROWS { p.muted { (rows.len() - MAX_ROWS) " more rows are not shown; the API has all." } }
    }
}

fn chip(hub: &ConsoleHub, run: &FollowedRun, position: u32, planned: &PlannedCell) -> Markup {
    let view = run.cell(position);
    let state = view.state;
    let has_record = state.has_ended();
    // What was asked goes before what is: the run may take a moment to do it.
    let (class, mark, word) = match (view.skip_asked, state) {
        (true, CellState::Running) => (CellState::Skipped, CellState::Skipped, "is being skipped"),
        (true, _) => (CellState::Skipped, CellState::Skipped, "to be skipped"),
        (false, _) => (state, state, state.word()),
    };
    let name = format!("{}, repetition {}", planned.cell.id, planned.repetition);
    let time = match (state, view.began_s, view.wall_s) {
        (CellState::Running, Some(began), _) => {
            let so_far = quantity::duration((now_s() - began).max(0.0));
            match running_left(run) {
                Some(left) => format!("{so_far}, {left}"),
                None => so_far,
            }
        }
        (_, _, Some(wall)) if has_record => quantity::duration(wall),
        _ => String::new(),
    };
    let can_skip =
        run.is_running() && !view.skip_asked && matches!(state, CellState::Planned | CellState::Running);
    html! {
        div class={ "chip cell-" (class_of(class)) } {
            @let inner = html! { span.mark aria-hidden="true" { (mark_of(mark)) } " " (word) @if planned.repetition > 1 || run.run.repetitions > 1 { " #" (planned.repetition) } };
            @if has_record {
                a href={ "/runs/" (escaped(&run.name)) "/cells/" (escaped(&planned.file)) } title=(view.reason.as_deref().unwrap_or(&name)) { (inner) }
            } @else {
                span title=(view.reason.as_deref().unwrap_or(&name)) { (inner) }
            }
            @if !time.is_empty() { small { (time) } }
            @if can_skip {
                form.inline method="post" action={ "/runs/" (escaped(&run.name)) "/skip" } {
                    input type="hidden" name="form" value=(hub.form_secret.reveal());
                    input type="hidden" name="position" value=(position);
                    button.small #{ "skip-" (position) } type="submit" aria-label={ "Skip " (name) } { "skip" }
                }
            }
        }
    }
}

/// How far the cell that runs is in its phase.
fn running_left(run: &FollowedRun) -> Option<String> {
    let sample = &run.current(now_s())?.sample;
    let progress = sample.progress?;
    Some(format!("{} {:.0} %", sample.phase, progress * 100.0))
}

/// Told apart by more than colour.
fn mark_of(state: CellState) -> &'static str {
    match state {
        CellState::Planned => "○",
        CellState::Running => "▶",
        CellState::Completed => "✓",
        CellState::Doubtful => "!",
        CellState::Disturbed => "⚡",
        CellState::Failed => "✗",
        CellState::Unavailable => "–",
        CellState::Skipped => "»",
        CellState::Unreadable => "?",
    }
}

pub(crate) fn class_of(state: CellState) -> &'static str {
    match state {
        CellState::Planned => "planned",
        CellState::Running => "running",
        CellState::Completed => "completed",
        CellState::Doubtful => "doubtful",
        CellState::Disturbed => "disturbed",
        CellState::Failed => "failed",
        CellState::Unavailable => "unavailable",
        CellState::Skipped => "skipped",
        CellState::Unreadable => "unreadable",
    }
}
