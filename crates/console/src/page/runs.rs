//! The list of runs.

use std::time::Duration;

use maud::{Markup, html};
use underlay_record::CellState;
use underlay_report::quantity;

use super::frame::NavigationTarget;
use super::matrix::class_of;
use super::words::{date_and_time, escaped, not_shown, prose};
use super::{PageFrame, PageTopic};
use crate::hub::ConsoleHub;
use crate::runs::RunSummary;

/// So much of a second goes on counting the cells of runs that nobody has looked at yet; the rest follow in the next.
const COUNTING: Duration = Duration::from_millis(300);

pub(crate) fn runs(hub: &ConsoleHub, words: &str) -> Markup {
    // Words may be those of states, for which all cells are counted.
    let limit = words.is_empty().then_some(COUNTING);
    let found: Vec<RunSummary> = hub.list(limit).into_iter().filter(|run| run.matches(words)).collect();
    // A list that was searched stays what was found.
    let topic = words.is_empty().then_some(PageTopic::Runs);
    let content = html! {
        section {
            h1 { "Runs" }
            form.search method="get" action="/" role="search" {
                label for="q" { "Search" }
                input #q type="search" name="q" value=(words) placeholder="name, system, storage, state";
                button type="submit" { "Find" }
            }
            form method="get" action="/compare" {
                div #list { (table(&found, words, hub)) }
                p.buttons { button type="submit" { "Compare the two that are marked" } }
            }
        }
    };
    PageFrame {
        topic: topic.as_ref(),
        place: Some(NavigationTarget::Runs),
        ..PageFrame::new("Runs", content)
    }
    .draw()
}

pub(super) fn fragments(hub: &ConsoleHub) -> Vec<(String, Markup)> {
    vec![("list".to_owned(), table(&hub.list(Some(COUNTING)), "", hub))]
}

fn table(found: &[RunSummary], words: &str, hub: &ConsoleHub) -> Markup {
    html! {
        @if found.is_empty() {
            p.muted {
                @if words.is_empty() { "There is no run below " code { (hub.runs.root().display()) } " yet. " a href="/studies" { "Start a study" } " or use " code { "underlay run" } "." }
                @else { "Nothing matches. " a href="/" { "All runs" } }
            }
        } @else {
            div.scroll tabindex="0" role="region" aria-label="Runs" {
                table.runs {
                    thead { tr {
                        th.l scope="col" { span.hidden { "Compare" } }
                        th.l scope="col" { "Run" } th.l scope="col" { "State" } th.l scope="col" { "Started" }
                        th.l scope="col" { "Cells" } th.l scope="col" { "Systems" } th.l scope="col" { "Storages" } th.l scope="col" { "Report" }
                    } }
                    tbody {
                        @for run in found { (row(run)) }
                    }
                }
            }
        }
        (not_shown(hub.runs.left_out(), "further item"))
    }
}

fn row(run: &RunSummary) -> Markup {
    let address = format!("/runs/{}", escaped(&run.name));
    if let Some(problem) = &run.problem {
        return html! {
            tr.bad {
                td.l {}
                th.l scope="row" { (run.name) }
                td.l { span.badge.state-unreadable { (run.state()) } }
                td.w colspan="5" { span.mark aria-hidden="true" { "! " } (prose(problem)) }
            }
        };
    }
    let is_mixed = run.cells.is_some_and(|tally| !tally.is_sound());
    html! {
        tr {
            td.l { input #{ "run-" (run.name) } type="checkbox" name="run" value=(run.name) aria-label={ "Compare " (run.name) }; }
            th.l scope="row" {
                a href=(address) { (run.name) }
                @if let Some(title) = &run.title { small.below { (title) } }
            }
            td.l { span class={ "badge state-" (run.state()) @if is_mixed { " mixed" } } { (run.state()) } }
            td.l { (date_and_time(&run.started_at)) }
            td.l {
                @match &run.cells {
                    Some(tally) => {
                        (tally.ended()) " of " (run.planned)
                        @if !tally.is_sound() { ul.tally { @for (state, count) in tally.there().filter(|(state, _)| *state != CellState::Planned) {
                            li class={ "of-" (class_of(state)) } { (count) " " (state.word()) }
                        } } }
                    }
                    None => { (run.recorded) " of " (run.planned) " …" }
                }
            }
            td.w { (quantity::list(&run.systems, 4)) }
            td.w { (quantity::list(&run.storages, 4)) }
            td.l { @if run.recorded > 0 { a href={ (address) "/report" } { "report" } } }
        }
    }
}
