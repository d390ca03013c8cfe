//! A run's events.

use maud::{Markup, html};

use super::words::{moment, not_shown, prose};
use crate::feed::{EventKind, HistoryEvent};
use crate::hub::FollowedRun;

/// Of the newest, on the page; the API has all that are kept.
const SHOWN: usize = 200;

/// The switches that the script obeys: without it, everything is shown.
pub(super) fn filter() -> Markup {
    html! {
        fieldset.filter #event-filter {
            legend { "Show" }
            @for kind in EventKind::ALL {
                label { input type="checkbox" checked value=(kind.word()) data-filter="event"; " " (kind.word()) }
            }
        }
    }
}

pub(super) fn list(run: &FollowedRun) -> Markup {
    let newest = run.watched.events.iter().rev().take(SHOWN);
    html! {
        @if run.watched.events.is_empty() { p.muted { "Nothing has happened yet." } }
        @else {
            div.scroll.tall tabindex="0" role="region" aria-label="Events, newest first" {
                table.events {
                    thead { tr { th.l scope="col" { "Time (UTC)" } th.l scope="col" { "About" } th.l scope="col" { "What happened" } th.l scope="col" { "Cell" } } }
                    tbody { @for event in newest { (row(run, event)) } }
                }
            }
            (not_shown(run.watched.events.len().saturating_sub(SHOWN), "earlier event"))
        }
    }
}

fn row(run: &FollowedRun, event: &HistoryEvent) -> Markup {
    let planned = run.planned_of(event);
    html! {
        tr.bad[event.is_bad] data-event=(event.kind.word()) {
            td.l { (moment(event.at_s)) }
            td.l { (event.kind.word()) }
            td.w { @if event.is_bad { span.mark aria-hidden="true" { "! " } } (prose(&event.what)) }
            td.w.dim { @if let Some(planned) = planned { (planned.cell.id) @if run.run.repetitions > 1 { " #" (planned.repetition) } } }
        }
    }
}
