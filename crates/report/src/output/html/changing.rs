//! Rates that change while they are measured.

use maud::{Markup, html};

use super::charts::{ChartLine, LineChart};
use super::drawing::{AltText, ChartAxis};
use super::throughput::rate_label;
use super::{ReportPage, figure, swatch};
use crate::comparison::ComparisonRow;
use crate::comparison::changing::{self, TimeStretch};
use crate::output::terminal::changing::seconds;
use crate::quantity::{self, ABSENT};

pub(super) fn section(page: &ReportPage) -> Option<Markup> {
    let rows: Vec<&ComparisonRow> = changing::rows(&page.comparison)
        .into_iter()
        .filter(|row| (0..row.cells.len()).any(|index| !stretches(row, index).is_empty()))
        .collect();
    if rows.is_empty() {
        return None;
    }
    Some(html! {
        p.lead {
            "The rate changed during the measurement: the offered rate in each interval, and the answers, over all "
            "repetitions. Latency runs from the intended start, so it counts waiting, and a backlog of one interval is late in the next."
        }
        (page.legend())
        @for row in &rows {
            h3 { (page.row_label(row)) }
            div.charts { (chart(page, row, "Mean latency", |one| one.mean_us)) (chart(page, row, "Longest latency", |one| one.max_us)) }
            (table(page, row))
        }
    })
}

fn stretches(row: &ComparisonRow, storage: usize) -> Vec<TimeStretch> {
    match row.cells.get(storage) {
        Some(Some(result)) => changing::stretches(result.cell, &result.measured()),
        _ => Vec::new(),
    }
}

fn chart(
    page: &ReportPage,
    row: &ComparisonRow,
    subject: &str,
    pick: fn(&TimeStretch) -> Option<f64>,
) -> Markup {
    let lines: Vec<ChartLine> = page
        .comparison
        .storages
        .iter()
        .enumerate()
        .map(|(series, name)| {
            // Where a rate comes again, time alone tells the two apart: its line goes back.
            let points = stretches(row, series);
            let points = points.iter().filter_map(|one| Some((one.offered_per_s(), pick(one)?))).collect();
            ChartLine { series, name: Some((*name).to_owned()), points }
        })
        .filter(|line| line.points.len() > 1)
        .collect();
    if lines.is_empty() {
        return html! {};
    }
    let caption = ReportPage::caption(row, subject);
    let x = ChartAxis::from_zero(lines.iter().flat_map(|line| line.points.iter().map(|point| point.0)));
    let svg = LineChart {
        words: AltText {
            title: &caption,
            description: "One line a storage, over the offered rate; the table below has the values.",
        },
        y_title: "latency, logarithmic scale",
        x_title: "offered operations per second",
        lines: &lines,
        x,
        x_ticks: x.ticks().into_iter().map(|tick| (tick, rate_label(tick))).collect(),
        is_log: true,
        y_high: None,
        width: 520,
        height: 260,
        label: &quantity::latency,
    }
    .draw();
    figure(&caption, svg)
}

fn table(page: &ReportPage, row: &ComparisonRow) -> Markup {
    let latency = |us: Option<f64>| us.map_or(ABSENT.to_owned(), quantity::latency);
    html! {
        div.scroll { table {
            thead { tr { th.l { "Storage" } th { "Seconds" } th.l { "Offered" } th { "Reached, ops/s" } th { "mean" } th { "max" } } }
            tbody {
                @for (index, storage) in page.comparison.storages.iter().enumerate() {
                    @for (position, one) in stretches(row, index).iter().enumerate() {
                        tr {
                            @if position == 0 { th.l scope="row" { (swatch(index)) (storage) } } @else { td {} }
                            td { (seconds(one.from_s, one.to_s)) }
                            td.l { (one.offered()) }
                            td {
                                (quantity::rate(one.reached_per_s))
                                @if !one.is_reached() { small { "less than offered" } }
                            }
                            td { (latency(one.mean_us)) }
                            td { (latency(one.max_us)) }
                        }
                    }
                }
            }
        } }
    }
}
