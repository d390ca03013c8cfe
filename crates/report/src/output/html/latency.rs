//! Latency: side by side, and as curves over the percentiles.

use maud::{Markup, html};

use super::charts::{ChartLine, ChartMark, GroupChart, LineChart, MarkGroup};
use super::drawing::{AltText, ChartAxis};
use super::throughput::description;
use super::{ReportPage, figure};
use crate::comparison::{ComparisonRow, RowMetrics};
use crate::quantity;
use crate::statistics::IntervalEstimate;
use crate::statistics::quantile::MIN_OPERATIONS_BEYOND;

/// Steps between two nines of a percentile curve.
const STEPS_A_NINE: usize = 12;

pub(super) fn section(page: &ReportPage) -> Option<Markup> {
    if !page
        .comparison
        .cells()
        .any(|result| result.figures().is_some_and(|figures| figures.mean_us.is_some()))
    {
        return None;
    }
    let is_open_loop = page.comparison.operations().any(|row| !row.cell.is_unthrottled());
    Some(html! {
        p.lead {
            "Of all operations together, less is better; the scale is logarithmic. On the left the figures with 95 % intervals, "
            "on the right the latency that a share of the operations stays within: each step to the right is a rarer, slower operation."
            @if is_open_loop { " Under an offered rate latency runs from the intended start, so it counts waiting." }
        }
        (page.legend())
        (page.for_each_mix(|rows| html! {
            div.charts {
                @for row in rows {
                    (side_by_side(page, row))
                    (percentile_curves(page, row))
                }
            }
        }))
    })
}

/// One of a cell's latencies.
type CellLatencyPick = fn(&RowMetrics) -> Option<IntervalEstimate>;

fn side_by_side(page: &ReportPage, row: &ComparisonRow) -> Markup {
    let statistics: [(&str, CellLatencyPick); 4] = [
        ("mean", |figures| figures.mean_us),
        ("p50", |figures| figures.p50_us),
        ("p99", |figures| figures.p99_us),
        ("p99.9", |figures| figures.p999_us),
    ];
    let groups: Vec<MarkGroup> = statistics
        .iter()
        .map(|(label, pick)| MarkGroup {
            label: (*label).to_owned(),
            marks: ChartMark::from_row(row, |result| {
                let estimate = pick(result.figures()?)?;
                Some((estimate.value, estimate.interval))
            }),
        })
        .filter(|group: &MarkGroup| !group.marks.is_empty())
        .collect();
    if groups.is_empty() {
        return html! {};
    }
    let caption = ReportPage::caption(row, "Latency");
    let svg = GroupChart {
        words: AltText { title: &caption, description: &description(page, &groups, &quantity::latency) },
        y_title: "latency",
        groups: &groups,
        is_log: true,
        width: 520,
        height: 280,
        label: &quantity::latency,
    }
    .draw();
    figure(&caption, svg)
}

fn percentile_curves(page: &ReportPage, row: &ComparisonRow) -> Markup {
    let mut lines = Vec::new();
    let mut deepest = 1.0f64;
    for (series, result) in row.cells.iter().enumerate() {
        let Some(figures) = result.as_ref().and_then(|result| result.figures()) else { continue };
        // The curve ends where a handful of operations would decide it.
        let nines = (figures.latency.count() as f64 / MIN_OPERATIONS_BEYOND).log10();
        if nines <= 0.0 {
            continue;
        }
        let nines = nines.min(5.0);
        deepest = deepest.max(nines);
        let steps = (nines * STEPS_A_NINE as f64).ceil() as usize;
        // From the first step on: the fastest operation of all would stretch the scale and tell nothing.
        let points = (1..=steps)
            .map(|step| {
                let x = (step as f64 / STEPS_A_NINE as f64).min(nines);
                (x, figures.latency.quantile_us(1.0 - 10f64.powf(-x)))
            })
            .collect();
        lines.push(ChartLine { series, name: Some(page.comparison.storages[series].to_owned()), points });
    }
    if lines.is_empty() {
        return html! {};
    }
    let ticks = [(50.0, "50 %"), (90.0, "90 %"), (99.0, "99 %"), (99.9, "99.9 %"), (99.99, "99.99 %")]
        .map(|(percent, label)| (-(1.0f64 - percent / 100.0).log10(), label.to_owned()));
    let high = deepest.max(1.0);
    let caption = ReportPage::caption(row, "Latency by percentile");
    let svg = LineChart {
        words: AltText {
            title: &caption,
            description: "One line a storage: the latency in which the share of operations on the horizontal axis is done.",
        },
        y_title: "latency",
        x_title: "share of operations done within",
        lines: &lines,
        x: ChartAxis { low: 0.0, high, is_log: false },
        x_ticks: ticks.into_iter().filter(|(x, _)| *x <= high + 1e-9).collect(),
        is_log: true,
        y_high: None,
        width: 520,
        height: 280,
        label: &quantity::latency,
    }
    .draw();
    figure(&caption, svg)
}
