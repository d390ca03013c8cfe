//! Loads from several hosts, and workers of this host: what each host does now, and did in the last minutes.

use std::collections::BTreeSet;

use maud::{Markup, html};
use underlay_record::{LiveLoad, LiveService, LiveWorker, ServiceMoment};
use underlay_report::html::time_chart::{TimeChart, TimeLine};
use underlay_report::quantity;

use super::charts;
use super::words::{moment, not_shown, now_s, ticks};
use crate::feed::MAX_STEP_S;
use crate::host::LiveServiceInfo;
use crate::hub::ConsoleHub;

/// The span of charts, in seconds.
const SPAN_S: f64 = 300.0;
/// Lines of one chart; the table has all hosts.
const MAX_LINES: usize = 7;
/// Of a load; no more are drawn.
const MAX_WORKERS: usize = 256;

pub(super) fn loads(hub: &ConsoleHub) -> Markup {
    let services = hub.host.services();
    let mut telling: Vec<(&LiveServiceInfo, &LiveService)> =
        services.iter().filter_map(|service| Some((service, service.live.as_ref()?))).collect();
    // A load's total before its parts.
    telling.sort_by_key(|(service, live)| (live.kind != "load", service.process));
    html! {
        h2 { "Loads and workers" }
        @if telling.is_empty() {
            p.muted { "No load from several hosts is coordinated here, and no worker waits for one: " code { "underlay ycsb --workers" } " or " code { "underlay worker" } " would." }
        }
        @for (service, live) in telling { (load(service, live)) }
    }
}

fn load(service: &LiveServiceInfo, live: &LiveService) -> Markup {
    let id = format!("load-{}", service.process);
    html! {
        h3 id=(id) { (live.kind) ": " (live.what) }
        p.muted { (live.state) ", process " (service.process) }
        @if let Some(latest) = live.moments.last() {
            @if !service.is_current(now_s()) { p.muted { "As last seen at " (moment(latest.at_ms as f64 / 1e3)) " UTC:" } }
            (now(latest))
            div.charts.live {
                (chart((service.process, live), "Throughput by host", "ops/s", &|load| Some(load.throughput_per_s), quantity::rate, false))
                (chart((service.process, live), "Latency by host: p99", "logarithmic", &|load| Some(load.p99_us).filter(|us| *us > 0.0), quantity::latency, true))
            }
            @if !latest.workers.is_empty() { (hosts(latest, service.process)) }
        }
    }
}

fn now(latest: &ServiceMoment) -> Markup {
    let load = &latest.load;
    html! {
        dl.now {
            div { dt { "throughput" } dd { (quantity::rate(load.throughput_per_s)) " ops/s" } }
            div { dt { "mean" } dd { (quantity::latency(load.mean_us)) } }
            div { dt { "p50" @if latest.workers.len() > 1 { ", highest" } } dd { (quantity::latency(load.p50_us)) } }
            div { dt { "p99" @if latest.workers.len() > 1 { ", highest" } } dd { (quantity::latency(load.p99_us)) } }
            div { dt { "operations" } dd { (quantity::number(latest.operations as f64, 1)) } }
            div.bad[load.errors > 0] { dt { "errors" } dd { (load.errors) } }
        }
    }
}

fn hosts(latest: &ServiceMoment, process: u32) -> Markup {
    let row = |worker: &LiveWorker| {
        let LiveWorker { name, state, load, operations } = worker;
        let is_bad = matches!(state.as_str(), "lost" | "failed") || load.errors > 0;
        let answers = load.throughput_per_s > 0.0;
        let latency = |us: f64| if answers { quantity::latency(us) } else { "-".to_owned() };
        html! {
            tr.bad[is_bad] {
                th.l scope="row" { (name) } td.l { @if is_bad { "! " } (state) }
                td { (quantity::rate(load.throughput_per_s)) }
                td { (latency(load.mean_us)) } td { (latency(load.p50_us)) } td { (latency(load.p99_us)) }
                td { (quantity::number(*operations as f64, 1)) } td { (load.errors) }
            }
        }
    };
    html! {
        div.scroll tabindex="0" role="region" aria-label={ "Hosts of the load of process " (process) } { table {
            thead { tr { th.l scope="col" { "Host" } th.l scope="col" { "State" } th scope="col" { "ops/s" } th scope="col" { "Mean" } th scope="col" { "p50" } th scope="col" { "p99" } th scope="col" { "Operations" } th scope="col" { "Errors" } } }
            tbody { @for worker in latest.workers.iter().take(MAX_WORKERS) { (row(worker)) } }
        } }
        (not_shown(latest.workers.len().saturating_sub(MAX_WORKERS), "further host"))
    }
}

fn chart(
    (process, live): (u32, &LiveService),
    title: &str,
    y_title: &str,
    pick: &dyn Fn(&LiveLoad) -> Option<f64>,
    label: fn(f64) -> String,
    is_log: bool,
) -> Markup {
    let at_s = |moment: &ServiceMoment| moment.at_ms as f64 / 1e3;
    let Some(to_s) = live.moments.last().map(at_s) else { return html! {} };
    let first_s = live.moments.first().map_or(to_s, at_s);
    let from_s = (to_s - SPAN_S).max(first_s).min(to_s - 20.0);
    let shown = &live.moments[live.moments.partition_point(|moment| at_s(moment) < from_s)..];
    let lines = lines(shown, pick);
    // Each is a landmark, with a name that no other has.
    let caption = format!("{title}, {} of process {process}", live.kind);
    html! {
        figure {
            figcaption { (title) }
            @if lines.is_empty() { p.muted.small { "No figures in this time." } }
            @else {
                div.picture tabindex="0" role="region" aria-label=(caption) { (TimeChart {
                    title,
                    description: "Lines over time, one a host. The table below has the values.",
                    y_title,
                    lines: &lines,
                    marks: &[],
                    shades: &[],
                    from_s,
                    to_s,
                    ticks: ticks(from_s, to_s),
                    is_log,
                    y_high: None,
                    label: &label,
                }.draw()) }
                (not_shown(host_names(shown).len().saturating_sub(MAX_LINES), "further host"))
                details {
                    summary { "As a table" }
                    div.scroll tabindex="0" role="region" aria-label={ (caption) ", as a table" } { (charts::table(label, &lines)) }
                }
            }
        }
    }
}

/// In the order in which they came.
fn host_names(moments: &[ServiceMoment]) -> Vec<&str> {
    let mut seen = BTreeSet::new();
    let names = moments.iter().flat_map(|moment| &moment.workers).map(|worker| worker.name.as_str());
    names.filter(|name| seen.insert(*name)).collect()
}

/// A line a host, the first ones; of a load without any, its own.
fn lines(moments: &[ServiceMoment], pick: &dyn Fn(&LiveLoad) -> Option<f64>) -> Vec<TimeLine> {
    let mut names = host_names(moments);
    names.truncate(MAX_LINES);
    let line = |colour: usize, name: &str, load_of: &dyn Fn(&ServiceMoment) -> Option<LiveLoad>| TimeLine {
        colour,
        name: name.to_owned(),
        parts: parts(
            moments
                .iter()
                .map(|moment| (moment.at_ms as f64 / 1e3, load_of(moment).and_then(|load| pick(&load)))),
        ),
    };
    let of_host = |name: &str, moment: &ServiceMoment| {
        // Of one that is lost, nobody knows anything, and one that failed does nothing.
        let found = moment.workers.iter().find(|worker| worker.name == name);
        found.filter(|worker| !matches!(worker.state.as_str(), "lost" | "failed")).map(|worker| worker.load)
    };
    let lines = match names.is_empty() {
        true => vec![line(1, "this host", &|moment| Some(moment.load))],
        false => (1..)
            .zip(names)
            .map(|(colour, name)| line(colour, name, &|moment| of_host(name, moment)))
            .collect(),
    };
    lines.into_iter().filter(|line| !line.is_empty()).collect()
}

/// The known values, split where a value is missing or no report came for a while.
fn parts(values: impl Iterator<Item = (f64, Option<f64>)>) -> Vec<Vec<(f64, f64)>> {
    let mut parts: Vec<Vec<(f64, f64)>> = Vec::new();
    let mut last_s = None;
    for (at_s, value) in values {
        let Some(value) = value else {
            last_s = None;
            continue;
        };
        match parts.last_mut().filter(|_| last_s.is_some_and(|last_s| at_s - last_s <= MAX_STEP_S)) {
            Some(part) => part.push((at_s, value)),
            None => parts.push(vec![(at_s, value)]),
        }
        last_s = Some(at_s);
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn load_hosts_have_rows_and_lost_one_is_marked() {
        let worker = |name: &str, state: &str, throughput_per_s: f64| LiveWorker {
            name: name.to_owned(),
            state: state.to_owned(),
            load: LiveLoad { throughput_per_s, p99_us: 900.0, ..LiveLoad::default() },
            operations: 5,
        };
        let moment = |at_ms: u64, state: &str| ServiceMoment {
            at_ms,
            workers: vec![worker("a:7400", "running", 10.0), worker("<b>b:7400</b>", state, 20.0)],
            ..ServiceMoment::default()
        };
        let live = LiveService {
            kind: "load".to_owned(),
            what: "null: run".to_owned(),
            moments: vec![moment(1_000_000, "running"), moment(1_001_000, "lost")],
            ..LiveService::default()
        };
        let service = LiveServiceInfo { live: Some(live.clone()), ..LiveServiceInfo::default() };
        let shown = load(&service, &live).into_string();
        assert!(shown.contains("As last seen at"), "{shown}");
        assert!(shown.contains("! lost") && shown.contains("a:7400") && !shown.contains("<b>"), "{shown}");
        let lines = lines(&live.moments, &|load| Some(load.throughput_per_s));
        let points: Vec<usize> = lines.iter().map(|line| line.points().count()).collect();
        assert_eq!(points, [2, 1]);
        // A gap without reports splits the line.
        let seconds = [0.0, 1.0, 60.0, 61.0, 62.0];
        let samples = seconds.map(|at_s| (at_s, (at_s != 61.0).then_some(5.0)));
        assert_eq!(
            parts(samples.into_iter()),
            [vec![(0.0, 5.0), (1.0, 5.0)], vec![(60.0, 5.0)], vec![(62.0, 5.0)]]
        );
    }

    #[test]
    fn hosts_beyond_the_listed_are_counted() {
        let worker = |number: usize| LiveWorker { name: format!("host-{number}"), ..LiveWorker::default() };
        let latest = ServiceMoment {
            at_ms: 1_000_000,
            workers: (0..MAX_WORKERS + 4).map(worker).collect(),
            ..ServiceMoment::default()
        };
        assert!(hosts(&latest, 7).into_string().contains("Not shown: 4 further hosts."));
        let live = LiveService { moments: vec![latest], ..LiveService::default() };
        let drawn = chart((7, &live), "Throughput", "ops/s", &|_| Some(1.0), quantity::rate, false);
        assert!(drawn.into_string().contains("Not shown: 253 further hosts."));
    }
}
