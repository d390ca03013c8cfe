//! Throughput and latency over the measured time.

use maud::{Markup, html};
use underlay_record::SeriesPoint;

use super::charts::{ChartEvent, ChartLine, ChartStrip, LineChart, thinned};
use super::drawing::{AltText, ChartAxis};
use super::throughput::rate_label;
use super::{OPEN_ROWS, ReportPage, figure};
use crate::comparison::ComparisonRow;
use crate::comparison::background;
use crate::comparison::node_events::node_event_in_words;
use crate::quantity;

pub(super) fn section(page: &ReportPage) -> Option<Markup> {
    if !page.comparison.cells().any(|result| {
        result.drawn().iter().any(|record| record.measured.as_ref().is_some_and(|one| one.series.len() > 1))
    }) {
        return None;
    }
    Some(html! {
        p.lead {
            "The measured window in modelled seconds, after the warm-up. A level line is a steady state; "
            @if is_brief(page) { "the first repetition is shown." } @else { "further repetitions are drawn pale." }
            @if page.comparison.operations().any(|row| row.cells.iter().flatten().any(|result| !background::spans(result).is_empty())) {
                " The bars above a picture show when each storage's system compacted."
            }
        }
        (page.legend())
        (page.for_each_mix(|rows| html! {
            div.charts {
                @for row in rows {
                    (over_time(page, row, "Throughput", "ops/s", &|point| point.throughput_per_s, &rate_label, false))
                    (over_time(page, row, "p99 latency", "latency", &|point| point.p99_us, &quantity::latency, true))
                }
            }
        }))
    })
}

/// Whether the file would grow too large with every repetition of every cell.
fn is_brief(page: &ReportPage) -> bool {
    page.comparison.rows.len() > OPEN_ROWS
}

fn over_time(
    page: &ReportPage,
    row: &ComparisonRow,
    subject: &str,
    y_title: &str,
    pick: &dyn Fn(&SeriesPoint) -> f64,
    label: &dyn Fn(f64) -> String,
    is_latency: bool,
) -> Markup {
    let (most_points, most_lines) = if is_brief(page) { (60, 1) } else { (150, 3) };
    let mut lines = Vec::new();
    for (series, result) in row.cells.iter().enumerate() {
        let Some(result) = result else { continue };
        let mut drawn: Vec<ChartLine> = result
            .drawn()
            .into_iter()
            .filter_map(|record| record.measured.as_ref())
            .take(most_lines)
            .enumerate()
            .map(|(index, measured)| {
                // An interval in which nothing was done has no latency.
                let points: Vec<(f64, f64)> = measured
                    .series
                    .iter()
                    .map(|point| (point.t_s, pick(point)))
                    .filter(|(_, value)| !is_latency || *value > 0.0)
                    .collect();
                let name = (index == 0).then(|| match result.disturbed_by() {
                    Some(disturbed_by) => {
                        format!("{}, disturbed {}", page.comparison.storages[series], disturbed_by.describe())
                    }
                    None => page.comparison.storages[series].to_owned(),
                });
                ChartLine { series, name, points: thinned(&points, most_points) }
            })
            .filter(|line| !line.points.is_empty())
            .collect();
        // The first repetition comes last, so that it is drawn over the pale ones.
        drawn.reverse();
        lines.extend(drawn);
    }
    let last = lines.iter().flat_map(|line| &line.points).map(|point| point.0).fold(0.0, f64::max);
    if last <= 0.0 {
        return html! {};
    }
    // An interval without an operation lies on the ground of either scale.
    let is_log = is_latency || are_far_apart(&lines);
    let happenings = happenings(row, last);
    let compactions = compactions(row, last);
    let caption = ReportPage::caption(row, subject);
    let svg = LineChart {
        words: AltText { title: &caption, description: "One line a storage, over the measured time." },
        y_title: &if is_log && !is_latency { format!("{y_title}, logarithmic") } else { y_title.to_owned() },
        x_title: "seconds",
        lines: &lines,
        x: ChartAxis { low: 0.0, high: last, is_log: false },
        x_ticks: Vec::new(),
        is_log,
        y_high: None,
        width: 520,
        height: 220,
        label,
    }
    .draw_with(
        &happenings.iter().map(|(happening, _)| happening.clone()).collect::<Vec<_>>(),
        &compactions,
        "compacting",
    );
    html! {
        div {
            (figure(&caption, svg))
            @for (happening, description) in happenings {
                p.lead { (happening.sign) " " (page.comparison.storages[happening.series]) ": " (description) }
            }
        }
    }
}

/// Highest over lowest mean of the storages from which throughput is drawn on a logarithmic axis.
const LOG_FROM: f64 = 8.0;

/// Whether lines lie so far apart that the lowest would be flat along the ground.
pub(super) fn are_far_apart(lines: &[ChartLine]) -> bool {
    let means = || {
        let mean = |line: &ChartLine| {
            line.points.iter().map(|point| point.1).sum::<f64>() / line.points.len() as f64
        };
        lines.iter().map(mean).filter(|mean| *mean > 0.0)
    };
    means().fold(0.0, f64::max) > LOG_FROM * means().fold(f64::INFINITY, f64::min)
}

/// Compactions closer to each other than this share of the picture are drawn as one.
const GAP: f64 = 0.01;

/// When compactions ran, in the repetition that is drawn in full.
fn compactions(row: &ComparisonRow, last_s: f64) -> Vec<ChartStrip> {
    let mut found = Vec::new();
    for (series, result) in row.cells.iter().enumerate() {
        let Some(result) = result else { continue };
        let mut spans: Vec<(f64, f64)> = Vec::new();
        for (from, to) in background::spans(result) {
            match spans.last_mut() {
                Some(before) if from - before.1 < GAP * last_s => before.1 = to,
                _ => spans.push((from, to)),
            }
        }
        found.extend(spans.into_iter().map(|(from, to)| ChartStrip { series, from, to }));
    }
    found
}

/// Injected faults and stopped nodes in the repetition that is drawn in full. Devices of a storage that had the same at
/// the same time share a mark.
fn happenings(row: &ComparisonRow, last_s: f64) -> Vec<(ChartEvent, String)> {
    let mut found: Vec<(ChartEvent, String)> = Vec::new();
    for (series, result) in row.cells.iter().enumerate() {
        let Some(record) = result
            .as_ref()
            .and_then(|result| result.drawn().into_iter().find(|record| record.measured.is_some()))
        else {
            continue;
        };
        for fault in record.devices.iter().flat_map(|device| &device.faults) {
            let is_same = |(other, description): &(ChartEvent, String)| {
                other.series == series && *description == fault.what && (other.from - fault.t_s).abs() < 0.1
            };
            if !found.iter().any(is_same) {
                let sign = (found.len() + 1).to_string();
                let happening = ChartEvent { series, sign, from: fault.t_s, to: fault.until_s };
                found.push((happening, fault.what.clone()));
            }
        }
        for event in &record.node_events {
            let Some(from) = event.away_s.filter(|&away_s| away_s <= last_s) else { continue };
            let sign = (found.len() + 1).to_string();
            found.push((
                ChartEvent { series, sign, from, to: event.served_s.filter(|&served_s| served_s < last_s) },
                node_event_in_words(event),
            ));
        }
    }
    found
}
