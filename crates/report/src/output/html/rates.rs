//! Latency over the offered rate, step by step.

use std::collections::BTreeSet;

use maud::{Markup, html};

use super::charts::{ChartLine, LineChart};
use super::drawing::{AltText, ChartAxis};
use super::throughput::rate_label;
use super::{ReportPage, figure, swatch};
use crate::comparison::ComparisonRow;
use crate::comparison::rates::{self, RateSeries};
use crate::quantity::{self, ABSENT};
use crate::statistics::IntervalEstimate;
use crate::statistics::operation::{LatencyPick, SHOWN};

/// An offered rate counts as reached from this share on.
const REACHED: f64 = 0.98;

pub(super) fn section(page: &ReportPage) -> Option<Markup> {
    let all = rates::series(&page.comparison);
    if all.is_empty() {
        return None;
    }
    Some(html! {
        p.lead {
            "The offered rate, step by step, and the system's answers. Latency runs from the intended start, so it counts "
            "waiting. An unthrottled load is drawn at the throughput that it reached."
        }
        (page.legend())
        @for one in &all {
            @if all.len() > 1 { h3 { (heading(page, one)) } }
            div.charts { (pictures(page, one)) }
            (table(page, one))
        }
    })
}

fn heading(page: &ReportPage, series: &RateSeries) -> String {
    if page.comparison.systems.len() > 1 {
        format!("{}, {}", page.comparison.system_title(series.system), series.label)
    } else {
        series.label.clone()
    }
}

/// The kinds of operation that any step has.
fn operations(series: &RateSeries) -> Vec<String> {
    let figures =
        series.steps.iter().flat_map(|row| row.cells.iter().flatten()).filter_map(|one| one.figures());
    let all: BTreeSet<String> = figures.flat_map(|one| one.operations.keys().cloned()).collect();
    all.into_iter().collect()
}

fn pictures(page: &ReportPage, series: &RateSeries) -> Markup {
    html! {
        @for operation in operations(series) {
            @for (statistic, pick) in SHOWN {
                @let lines = lines(page, series, &operation, pick);
                @if lines.iter().any(|line| line.points.len() > 1) {
                    @let caption = format!("{operation}, {statistic} latency");
                    (figure(&caption, LineChart {
                        words: AltText { title: &caption, description: &describe_rates(page, &lines) },
                        y_title: &format!("{statistic} latency, logarithmic scale"),
                        x_title: "offered operations per second",
                        x: ChartAxis::from_zero(lines.iter().flat_map(|line| line.points.iter().map(|point| point.0))),
                        lines: &lines,
                        x_ticks: Vec::new(),
                        is_log: true,
                        y_high: None,
                        width: 520,
                        height: 300,
                        label: &quantity::latency,
                    }.with_rates().draw()))
                }
            }
        }
    }
}

impl LineChart<'_> {
    /// Labels the x axis by rates.
    fn with_rates(self) -> Self {
        let x_ticks = self.x.ticks().into_iter().map(|tick| (tick, rate_label(tick))).collect();
        LineChart { x_ticks, ..self }
    }
}

fn lines(page: &ReportPage, series: &RateSeries, operation: &str, pick: LatencyPick) -> Vec<ChartLine> {
    page.comparison
        .storages
        .iter()
        .enumerate()
        .filter_map(|(index, name)| {
            let mut points: Vec<(f64, f64)> = series
                .steps
                .iter()
                .filter_map(|row| {
                    let figures = row.figures(index)?;
                    let latency = pick(figures.operations.get(operation)?)?;
                    Some((row.cell.rate_per_s().unwrap_or(figures.throughput_per_s.value), latency.value))
                })
                .collect();
            points.sort_by(|a, b| a.0.total_cmp(&b.0));
            (!points.is_empty()).then(|| ChartLine { series: index, name: Some((*name).to_owned()), points })
        })
        .collect()
}

/// The picture's values in words, for those who don't see it.
fn describe_rates(page: &ReportPage, lines: &[ChartLine]) -> String {
    let each = lines.iter().map(|line| {
        let points: Vec<String> = line
            .points
            .iter()
            .map(|(rate, us)| format!("{} at {}/s", quantity::latency(*us), rate_label(*rate)))
            .collect();
        format!("{}: {}.", page.comparison.storages[line.series], points.join(", "))
    });
    each.collect::<Vec<_>>().join(" ")
}

fn table(page: &ReportPage, series: &RateSeries) -> Markup {
    let operations = operations(series);
    html! {
        div.scroll { table {
            thead { tr {
                th.l { "Offered" } th.l { "Storage" } th { "Reached, ops/s" }
                @for operation in &operations {
                    @for (statistic, _) in SHOWN { th { (operation) ", " (statistic) } }
                }
            } }
            tbody {
                @for row in &series.steps { (step(page, row, &operations)) }
            }
        } }
    }
}

fn step(page: &ReportPage, row: &ComparisonRow, operations: &[String]) -> Markup {
    let measured: Vec<usize> =
        (0..page.comparison.storages.len()).filter(|index| row.figures(*index).is_some()).collect();
    html! {
        @for (position, index) in measured.iter().enumerate() {
            @let figures = row.figures(*index).expect("it was measured");
            @let falls_short = row.cell.rate_per_s().is_some_and(|rate| figures.throughput_per_s.value < REACHED * rate);
            tr {
                @if position == 0 { th.l scope="rowgroup" rowspan=(measured.len()) { (rates::offered(row.cell)) } }
                td.l { (swatch(*index)) (page.comparison.storages[*index]) }
                td {
                    (quantity::rate(figures.throughput_per_s.value))
                    @if falls_short { small { "less than offered" } }
                }
                @for operation in operations {
                    @for (_, pick) in SHOWN {
                        td { (latency(figures.operations.get(operation).and_then(pick))) }
                    }
                }
            }
        }
    }
}

fn latency(estimate: Option<IntervalEstimate>) -> Markup {
    html! {
        @match estimate {
            None => (ABSENT),
            Some(estimate) => {
                (quantity::latency(estimate.value))
                @if let Some(interval) = estimate.interval { small { (quantity::latency_interval(interval)) } }
            },
        }
    }
}
