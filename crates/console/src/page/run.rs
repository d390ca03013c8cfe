//! A run: its cells, what it does now, what has happened.

use maud::{Markup, html};
use underlay_record::{CellState, LiveDevice};
use underlay_report::quantity;

use super::frame::NavigationTarget;
use super::words::{date_and_time, escaped, moment, not_shown, now_s, prose};
use super::{ChartSpan, PageFrame, PageTopic, charts, events, matrix, topology};
use crate::hub::{ConsoleHub, FollowedRun};
use crate::recorded::StateTally;

/// Devices whose latencies are listed.
const MAX_DEVICES: usize = 64;

pub(crate) fn run(hub: &ConsoleHub, run: &FollowedRun, span: ChartSpan) -> Markup {
    let topic = PageTopic::Run { name: run.name.clone(), span };
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
            div #now { (piece("now")) }
            p.spans {
                "Show: "
                @for other in ChartSpan::ALL {
                    @if other == span { strong aria-current="true" { (other.word()) } } @else { a href={ (address) "?span=" (other.key()) "#charts" } { (other.word()) } }
                    " "
                }
            }
            (charts::frames(&piece))
        }
        section #topology { h2 { "Topology" } div #picture { (piece("picture")) } div #controls { (piece("controls")) } }
        section #certificate { h2 { "Certificate" } div #certificate-now { (piece("certificate-now")) } }
        section #events { h2 { "Events" } (events::filter()) div #event-list { (piece("event-list")) } }
    };
    PageFrame {
        topic: Some(&topic),
        place: Some(NavigationTarget::Runs),
        ..PageFrame::new(&run.name, content)
    }
    .draw()
}

/// The live observations, for a report that is taken elsewhere.
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

pub(super) fn fragments(hub: &ConsoleHub, run: &FollowedRun, span: ChartSpan) -> Vec<(String, Markup)> {
    let mut pieces = vec![
        ("status".to_owned(), status(hub, run)),
        ("matrix".to_owned(), matrix::matrix(hub, run)),
        ("now".to_owned(), now(run)),
        ("picture".to_owned(), topology::picture(hub, run)),
        ("controls".to_owned(), topology::controls(hub, run)),
        ("certificate-now".to_owned(), certificate(run)),
        ("event-list".to_owned(), events::list(run)),
    ];
    pieces.extend(charts::fragments(run, span));
    pieces
}

/// The run in a line: how far it is, and how to stop it or what to read now that it has ended.
fn status(hub: &ConsoleHub, run: &FollowedRun) -> Markup {
    let tally = run.tally();
    let (total, ended) = (tally.total(), tally.ended());
    let state = match (run.is_running(), ended < total) {
        (true, _) => "running",
        (false, false) => "complete",
        (false, true) => "stopped",
    };
    html! {
        p.state-line {
            span class={ "badge state-" (state) @if !tally.is_sound() { " mixed" } } { (state) }
            " " (ended) " of " (quantity::plural(total, "cell")) " ended"
            @if run.is_running() {
                @if let Some(left) = run.watched.remaining_s(now_s()) { ", about " (quantity::duration(left)) " left" }
            }
        }
        div.progress role="progressbar" aria-label="Cells that have ended" aria-valuemin="0" aria-valuemax=(total) aria-valuenow=(ended) {
            svg viewBox="0 0 1000 10" preserveAspectRatio="none" aria-hidden="true" {
                @for (state, from, width) in widths(&tally) { rect class={ "cell-" (matrix::class_of(state)) } x=(from) y="0" width=(width) height="10" {} }
            }
        }
        ul.facts { @for (state, count) in tally.there() { li { (count) " " (state.word()) } } }
        @if run.is_running() {
            form method="post" action={ "/runs/" (escaped(&run.name)) "/stop" } {
                input type="hidden" name="form" value=(hub.form_secret.reveal());
                button.danger #stop type="submit" { "Stop the run" }
            }
        } @else { (ended_as(run, ended, ended < total)) }
    }
}

/// Links and actions once a run has ended.
fn ended_as(run: &FollowedRun, ended: usize, has_left: bool) -> Markup {
    let page = run.directory.join("report.html");
    let is_kept = page.is_file();
    html! {
        @if let Some((at_s, ending)) = &run.watched.ended { p.ended { "Ended at " (moment(*at_s)) " UTC: " (prose(ending)) "." } }
        @if ended > 0 {
            p.buttons { a.button.primary #report href={ "/runs/" (escaped(&run.name)) "/report" } { "Read the report" } }
            @if is_kept { p.muted { "It is kept in " code { (page.display()) } "." } }
        }
        @if has_left { p.muted { "Finished cells are kept. " code { "underlay run --resume " (run.directory.display()) } " runs the rest." } }
        // For when this console is gone too.
        span hidden data-lost={ "the console has ended" @if is_kept { "; the report is in " (page.display()) } } {}
    }
}

/// The parts of the bar, those that have ended first.
fn widths(tally: &StateTally) -> Vec<(CellState, usize, usize)> {
    let total = tally.total().max(1);
    let mut from = 0;
    tally
        .all()
        .rev()
        .map(|(state, count)| {
            let width = 1000 * count / total;
            from += width;
            (state, from - width, width)
        })
        .collect()
}

/// The present activity, and the latest figures, large.
fn now(run: &FollowedRun) -> Markup {
    if !run.is_running() {
        return html! {
            h2 { "While it ran" }
            p.muted { "The run has ended. Its report has the measurements; below are the live observations." }
        };
    }
    let current = run.current(now_s()).map(|moment| &moment.sample);
    let position = run.watched.running;
    let cell = position.and_then(|position| run.run.plan.get(position as usize));
    html! {
        h2 { "Now" }
        p.doing {
            @if let Some(planned) = cell {
                strong { (planned.cell.id) } @if run.run.repetitions > 1 { " #" (planned.repetition) } ": "
            } @else if !run.watched.doing.is_empty() { (prose(&run.watched.doing)) @if current.is_some() { ": " } }
            @match current {
                Some(sample) => {
                    @if sample.phase.is_empty() { "between phases" } @else { (sample.phase) }
                    @if let Some(progress) = sample.progress { ", " (format!("{:.0}", progress * 100.0)) " %" }
                    @if sample.preparing { span.muted { " (not measured yet: devices may take no modelled time)" } }
                }
                None => {
                    @match (cell, run.watched.history.latest()) {
                        (Some(_), Some(latest)) if latest.sample.position == position => {
                            "no figures since " (moment(latest.at_s)) " UTC"
                        }
                        (Some(_), _) => { "attaching its storage and starting its system" }
                        (None, _) => { @if run.watched.doing.is_empty() { "between cells" } }
                    }
                }
            }
        }
        @if let Some(sample) = current {
            dl.now {
                @if let Some(load) = sample.load {
                    div { dt { "throughput" } dd { (quantity::rate(load.throughput_per_s)) " ops/s" } }
                    // During a rate search, only rates are reported.
                    @if load.p99_us > 0.0 {
                        div { dt { "mean" } dd { (quantity::latency(load.mean_us)) } }
                        div { dt { "p50" } dd { (quantity::latency(load.p50_us)) } }
                        div { dt { "p99" } dd { (quantity::latency(load.p99_us)) } }
                    }
                    div.bad[load.errors > 0] { dt { "errors" } dd { (load.errors) } }
                }
                @if let Some(figure) = &sample.figure {
                    div { dt { (figure.name) } dd { (quantity::number(figure.value, 3)) " " (figure.unit) } }
                }
                @if let Some(share) = sample.cost_share { div { dt { "watching costs" } dd { (quantity::percent(share)) " of a core" } } }
            }
        }
    }
}

/// A page for a run that this console was started for, until there is something to see of it.
pub(crate) fn about_to_begin(name: &str) -> Markup {
    let content = html! {
        div.head { h1 { (name) } }
        section {
            h2 { "About to begin" }
            p { "The run is being prepared: this host is measured before the first cell. This page shows it as soon as it begins." }
        }
    };
    PageFrame { refresh_s: Some(2), ..PageFrame::new(name, content) }.draw()
}

/// The certificate as it forms: what of it can be told already, and what is on record.
fn certificate(run: &FollowedRun) -> Markup {
    let sample = run.current(now_s()).map(|current| &current.sample);
    let busy: Vec<&LiveDevice> =
        sample.iter().flat_map(|sample| &sample.devices).filter(|one| one.modelled_us.is_some()).collect();
    let doubtful =
        (0..run.run.plan.len() as u32).filter(|position| run.cell(*position).state == CellState::Doubtful);
    let doubtful: Vec<u32> = doubtful.collect();
    html! {
        @if busy.is_empty() { p.muted { "Modelled devices answer nothing now." } }
        @else { (device_latencies(&busy)) }
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

/// What each device's model asked for, and what was delivered.
fn device_latencies(busy: &[&LiveDevice]) -> Markup {
    html! {
        p.lead { "Latency over the last second: what each device's model asked for, and what was delivered. The certificate itself is made of the whole measured time when the cell ends." }
        div.scroll tabindex="0" role="region" aria-label="Modelled and delivered latency of each device" {
            table {
                thead {
                    tr { th.l rowspan="2" scope="col" { "Device" } th colspan="3" scope="colgroup" { "Mean" } th colspan="2" scope="colgroup" { "p50" } th colspan="2" scope="colgroup" { "p99" } }
                    tr { th scope="col" { "modelled" } th scope="col" { "delivered" } th scope="col" { "late by" } @for _ in 0..2 { th scope="col" { "modelled" } th scope="col" { "delivered" } } }
                }
                tbody {
                    // A run may have any number of devices, and this piece is drawn anew with each sample.
                    @for device in busy.iter().take(MAX_DEVICES) {
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
        (not_shown(busy.len().saturating_sub(MAX_DEVICES), "further device"))
    }
}

#[cfg(test)]
mod tests {
    use underlay_record::DeviceId;

    use super::*;

    #[test]
    fn devices_beyond_the_listed_are_counted() {
        let device = |number: usize| LiveDevice {
            id: DeviceId::new(format!("ssd.{number}")),
            modelled_us: Some(80.0),
            ..LiveDevice::default()
        };
        let devices: Vec<LiveDevice> = (0..MAX_DEVICES + 6).map(device).collect();
        let shown =
            |count: usize| device_latencies(&devices[..count].iter().collect::<Vec<_>>()).into_string();
        let all = shown(devices.len());
        assert_eq!(all.matches("<th class=\"l\" scope=\"row\">").count(), MAX_DEVICES, "{all}");
        assert!(all.contains("Not shown: 6 further devices."), "{all}");
        assert!(!shown(MAX_DEVICES).contains("Not shown"));
    }
}
