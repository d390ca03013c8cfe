//! A run: its cells, what it does now, what has happened.

use maud::{Markup, html};
use underlay_record::CellState;
use underlay_report::quantity;

use super::words::{date_and_time, escaped, now_s};
use super::{Frame, Span, Topic, charts, events, matrix, topology};
use crate::hub::{FollowedRun, Hub};

pub(crate) fn run(hub: &Hub, run: &FollowedRun, span: Span) -> Markup {
    let topic = Topic::Run { name: run.name.clone(), span };
    let address = format!("/runs/{}", escaped(&run.name));
    let pieces = fragments(hub, run, span);
    let piece = |id: &str| -> Markup {
        pieces.iter().find(|(other, _)| other == id).map_or_else(|| html! {}, |(_, markup)| markup.clone())
    };
    let content = html! {
        div.head {
            h1 { (run.run.title.as_deref().unwrap_or(&run.run.name)) }
            p.muted { (run.name) ", started " (date_and_time(&run.run.started_at)) }
            div #status { (piece("status")) }
        }
        nav.sections aria-label="Sections" {
            @for (id, name) in [("cells", "Cells"), ("charts", "Charts"), ("topology", "Topology"), ("certificate", "Certificate"), ("events", "Events")] {
                a href={ "#" (id) } { (name) }
            }
            a href={ (address) "/logs" } { "Logs" }
            a href={ (address) "/report" } { "Report" }
            a href={ (address) "/export" } { "Export" }
            a href={ "/api/runs/" (escaped(&run.name)) } { "JSON" }
        }
        section #cells { h2 { "Cells" } div #matrix { (piece("matrix")) } }
        section #charts {
            h2 { "Now" }
            div #now { (piece("now")) }
            p.spans {
                "Show: "
                @for other in Span::ALL {
                    @if other == span { strong aria-current="true" { (other.word()) } } @else { a href={ (address) "?span=" (other.key()) "#charts" } { (other.word()) } }
                    " "
                }
            }
            (charts::frames(&piece))
        }
        section #topology { h2 { "Topology" } div #picture { (piece("picture")) } div #controls { (piece("controls")) } }
        section #certificate { h2 { "Certificate" } div #seal { (piece("seal")) } }
        section #events { h2 { "Events" } (events::filter()) div #event-list { (piece("event-list")) } }
    };
    Frame { title: &run.name, topic: Some(&topic), content }.draw()
}

/// What was seen while it ran, for a report that is taken elsewhere.
pub(crate) fn appendix(run: &FollowedRun) -> Markup {
    let pictures = charts::pictures(run);
    html! {
        @if !pictures.is_empty() || !run.watched.events.is_empty() {
            section id="watched" {
                h2 { "While it ran" }
                p.lead { "Samples of about a second, thinned where the run was long, over all of its cells. Findings are above." }
                div.charts { @for (title, picture) in &pictures { figure { figcaption { (title) } (picture) } } }
                details { summary { "Events" } (events::list(run)) }
            }
        }
    }
}

pub(super) fn fragments(hub: &Hub, run: &FollowedRun, span: Span) -> Vec<(String, Markup)> {
    let mut pieces = vec![
        ("status".to_owned(), status(hub, run)),
        ("matrix".to_owned(), matrix::matrix(hub, run)),
        ("now".to_owned(), now(run)),
        ("picture".to_owned(), topology::picture(hub, run)),
        ("controls".to_owned(), topology::controls(hub, run)),
        ("seal".to_owned(), seal(run)),
        ("event-list".to_owned(), events::list(run)),
    ];
    pieces.extend(charts::fragments(run, span));
    pieces
}

/// The run in a line: how far it is, and how to stop it.
fn status(hub: &Hub, run: &FollowedRun) -> Markup {
    let counts = matrix::counts(run);
    let total: usize = counts.iter().sum();
    let left = counts[0] + counts[1];
    let state = match (run.is_running(), left) {
        (true, _) => "running",
        (false, 0) => "complete",
        (false, _) => "stopped",
    };
    let told = CellState::ALL.iter().zip(counts).filter(|(_, count)| *count > 0);
    html! {
        p.state-line {
            span class={ "badge state-" (state) } { (state) }
            " " (total - left) " of " (quantity::plural(total, "cell")) " ended"
            @if run.is_running() {
                @if let Some(left) = run.watched.remaining_s(now_s()) { ", about " (quantity::duration(left)) " left" }
            }
        }
        div.progress role="progressbar" aria-label="Cells that have ended" aria-valuemin="0" aria-valuemax=(total) aria-valuenow=(total - left) {
            svg viewBox="0 0 1000 10" preserveAspectRatio="none" aria-hidden="true" {
                @let widths = widths(&counts, total);
                @for (state, from, width) in widths { rect class={ "cell-" (matrix::class_of(state)) } x=(from) y="0" width=(width) height="10" {} }
            }
        }
        ul.facts { @for (state, count) in told { li { (count) " " (state.word()) } } }
        @if run.is_running() {
            @if !run.watched.doing.is_empty() { p.doing { (run.watched.doing) } }
            form method="post" action={ "/runs/" (escaped(&run.name)) "/stop" } {
                input type="hidden" name="form" value=(hub.form_secret.reveal());
                button.danger #stop type="submit" { "Stop the run" }
            }
        } @else if left > 0 {
            p.muted { "What was finished is kept. " code { "underlay run --resume " (run.directory.display()) } " runs the rest." }
        }
        @if let Some((_, ended)) = run.watched.ended.as_ref().filter(|_| !run.is_running()) { p.muted { "Ended: " (ended) "." } }
    }
}

/// The parts of the bar, those that have ended first.
fn widths(counts: &[usize; CellState::ALL.len()], total: usize) -> Vec<(CellState, usize, usize)> {
    let order = CellState::ALL.iter().zip(counts).rev();
    let mut from = 0;
    order
        .map(|(state, count)| {
            let width = 1000 * count / total.max(1);
            from += width;
            (*state, from - width, width)
        })
        .collect()
}

/// The latest figures, large.
fn now(run: &FollowedRun) -> Markup {
    let latest = run.watched.history.latest().filter(|_| run.is_running());
    html! {
        @match latest.map(|latest| &latest.sample) {
            None => { p.muted { @if run.is_running() { "Nothing is measured yet." } @else { "The run is not going on. What it measured is in its report; below is what was seen while it ran." } } }
            Some(sample) => {
                @let cell = sample.position.and_then(|position| run.run.plan.get(position as usize));
                p {
                    @if let Some(planned) = cell { strong { (planned.cell.id) } ": " }
                    @if sample.phase.is_empty() { "between phases" } @else { (sample.phase) }
                    @if let Some(progress) = sample.progress { ", " (format!("{:.0}", progress * 100.0)) " %" }
                }
                @if let Some(load) = sample.load {
                    dl.now {
                        div { dt { "throughput" } dd { (quantity::rate(load.throughput_per_s)) " ops/s" } }
                        div { dt { "mean" } dd { (quantity::latency(load.mean_us)) } }
                        div { dt { "p50" } dd { (quantity::latency(load.p50_us)) } }
                        div { dt { "p99" } dd { (quantity::latency(load.p99_us)) } }
                        div.bad[load.errors > 0] { dt { "errors" } dd { (load.errors) } }
                        div { dt { "watching costs" } dd { (quantity::percent(sample.cost_share)) " of a core" } }
                    }
                }
            }
        }
    }
}

/// The certificate as it forms: what of it can be told already, and what is on record.
fn seal(run: &FollowedRun) -> Markup {
    let sample = run.watched.history.latest().filter(|_| run.is_running()).map(|latest| &latest.sample);
    let busy: Vec<_> =
        sample.iter().flat_map(|sample| &sample.devices).filter(|one| one.modelled_us.is_some()).collect();
    let doubtful = (0..run.run.plan.len() as u32).filter(|at| run.cell(*at).state == CellState::Doubtful);
    let doubtful: Vec<u32> = doubtful.collect();
    html! {
        @if busy.is_empty() { p.muted { "Modelled devices answer nothing now." } }
        @else {
            p.lead { "Latency over the last second: what each device's model asked for, and what was delivered. The certificate itself is made of the whole measured time when the cell ends." }
            div.scroll tabindex="0" role="region" aria-label="Modelled and delivered latency of each device" {
                table {
                    thead {
                        tr { th.l rowspan="2" scope="col" { "Device" } th colspan="3" scope="colgroup" { "Mean" } th colspan="2" scope="colgroup" { "p50" } th colspan="2" scope="colgroup" { "p99" } }
                        tr { th scope="col" { "modelled" } th scope="col" { "delivered" } th scope="col" { "late by" } @for _ in 0..2 { th scope="col" { "modelled" } th scope="col" { "delivered" } } }
                    }
                    tbody {
                        @for device in busy.iter().take(64) {
                            @let (modelled, delivered) = (device.modelled_us.unwrap_or(0.0), device.delivered_us.unwrap_or(0.0));
                            tr {
                                th.l scope="row" { (device.id) }
                                td { (quantity::latency(modelled)) } td { (quantity::latency(delivered)) }
                                td { (quantity::latency((delivered - modelled).max(0.0))) }
                                @for us in [device.modelled_p50_us, device.delivered_p50_us, device.modelled_p99_us, device.delivered_p99_us] {
                                    td { (us.map_or_else(|| "-".to_owned(), quantity::latency)) }
                                }
                            }
                        }
                    }
                }
            }
        }
        @if !doubtful.is_empty() {
            p { "Doubtful so far: "
                @for (index, position) in doubtful.iter().enumerate() {
                    @let planned = &run.run.plan[*position as usize];
                    @if index > 0 { ", " }
                    a href={ "/runs/" (escaped(&run.name)) "/cells/" (escaped(&planned.file)) } { (planned.cell.id) }
                }
            }
        }
    }
}
