//! Rates that were looked for: every step of the way to them.

use maud::{Markup, html};
use underlay_record::{SearchRecord, SearchStep};

use super::drawing::{
    AltText, ChartAxis, ChartMargins, CircleStyle, FINE, INK, MUTED, PlotFrame, TextAnchor, picture,
    series_colour, text, x_axis, y_axis, y_title,
};
use super::throughput::rate_label;
use super::{ReportPage, figure, swatch};
use crate::comparison::search;
use crate::comparison::{CellResult, ComparisonRow};
use crate::quantity::{self, ABSENT};

pub(super) fn section(page: &ReportPage) -> Option<Markup> {
    let rows = search::rows(&page.comparison);
    let rows: Vec<&ComparisonRow> = rows.into_iter().filter(|row| searched(row).next().is_some()).collect();
    if rows.is_empty() {
        return None;
    }
    Some(html! {
        p.lead {
            "The highest rate that keeps to a latency: it is raised until a step fails, and the range between is narrowed. The cell was "
            "then measured at the rate that held. Filled dots are steps that held, hollow ones steps that failed, or told nothing; a ring "
            "around a dot is the rate tried again."
        }
        (page.legend())
        @for row in &rows {
            h3 { (page.row_label(row)) }
            (chart(page, row))
            (table(page, row))
        }
    })
}

/// The storages of a row that a rate was found on.
fn searched<'c, 'a>(row: &'c ComparisonRow<'a>) -> impl Iterator<Item = (usize, &'c CellResult<'a>)> {
    let cells = row.cells.iter().enumerate();
    cells
        .filter_map(|(index, result)| Some((index, result.as_ref()?)))
        .filter(|(_, result)| !search::list_searches(result).is_empty())
}

/// The first repetition of each storage.
fn chart(page: &ReportPage, row: &ComparisonRow) -> Markup {
    let first: Vec<(usize, &SearchRecord)> = searched(row)
        .filter_map(|(index, result)| Some((index, search::list_searches(result).first()?.1)))
        .collect();
    let most = first.iter().map(|(_, record)| record.steps.len()).max().unwrap_or(0);
    if most < 2 {
        return html! {};
    }
    let frame = PlotFrame {
        width: 1060,
        height: 300,
        margins: ChartMargins { left: 66, right: 14, top: 14, bottom: 42 },
    };
    let y =
        ChartAxis::log(first.iter().flat_map(|(_, record)| record.steps.iter().map(|step| step.rate_per_s)));
    let x = ChartAxis { low: 0.5, high: most as f64 + 0.5, is_log: false };
    let every = most.div_ceil(15).max(1);
    let ticks: Vec<(f64, String)> =
        (1..=most).step_by(every).map(|number| (number as f64, number.to_string())).collect();
    let caption = ReportPage::caption(row, "Rates tried, step by step");
    let words = AltText { title: &caption, description: &description(page, &first) };
    let svg = picture(frame, &words, |area| {
        y_title(area, &frame, "offered operations per second, logarithmic");
        y_axis(area, &frame, &y, &rate_label);
        x_axis(area, &frame, &x, &ticks);
        text(area, "step", (frame.x(0.5), frame.y(0.0) + 23 * FINE), 11, MUTED, TextAnchor::Below);
        for (series, record) in &first {
            let place = |(index, step): (usize, &SearchStep)| {
                (frame.x(x.place(index as f64 + 1.0)), frame.y(y.place(step.rate_per_s)))
            };
            let points: Vec<(i32, i32)> = record.steps.iter().enumerate().map(place).collect();
            area.line(&points, series_colour(*series), 0.5, FINE);
            for (step, point) in record.steps.iter().zip(points) {
                let style = match step.verdict == HOLDS {
                    true => CircleStyle::Filled,
                    false => CircleStyle::Ring(2 * FINE),
                };
                area.circle(point, 4 * FINE, (series_colour(*series), 1.0), style);
                if step.confirms {
                    area.circle(point, 6 * FINE, (INK, 0.6), CircleStyle::Ring(FINE));
                }
            }
        }
    });
    figure(&caption, svg)
}

/// As a record has it.
const HOLDS: &str = "holds";

/// The picture's values in words, for those who don't see it.
fn description(page: &ReportPage, found: &[(usize, &SearchRecord)]) -> String {
    let each = found.iter().map(|(index, record)| {
        format!("{}: {}.", page.comparison.storages[*index], search::bracket_in_words(record))
    });
    each.collect::<Vec<_>>().join(" ")
}

fn table(page: &ReportPage, row: &ComparisonRow) -> Markup {
    html! {
        div.scroll { table {
            thead { tr {
                th.l { "Storage" } th { "Repetition" } th { "Holds, ops/s" } th { "Fails, ops/s" } th.l { "Why it fails" } th { "Steps" }
                th.l { "Tried again" }
            } }
            tbody {
                @for (index, result) in searched(row) {
                    @for (position, (repetition, record)) in search::list_searches(result).into_iter().enumerate() {
                        tr {
                            @if position == 0 { th.l scope="row" { (swatch(index)) (page.comparison.storages[index]) } } @else { td {} }
                            td { (repetition) }
                            td { span.strong { (record.holds_per_s.map_or("none".to_owned(), quantity::rate)) } }
                            td { (record.fails_per_s.map_or(ABSENT.to_owned(), quantity::rate)) }
                            td.w { (record.reason.as_deref().unwrap_or("no rate in the range fails")) }
                            td { (record.steps.len()) }
                            td.l { (search::ending_in_words(record)) }
                        }
                    }
                }
            }
        } }
        details {
            summary { "Every step" }
            @for (index, result) in searched(row) {
                @for (repetition, record) in search::list_searches(result) {
                    h4 { (swatch(index)) (page.comparison.storages[index]) ", repetition " (repetition) }
                    (steps(record))
                }
            }
        }
    }
}

fn steps(record: &SearchRecord) -> Markup {
    let share = |part: u64, all: u64| match all {
        0 => ABSENT.to_owned(),
        _ => quantity::percent(part as f64 / all as f64),
    };
    html! {
        div.scroll { table {
            thead { tr {
                th { "Step" } th { "Offered, ops/s" } th { "Due" } th { "Answered" } th { "Failed" }
                @for bound in &record.bounds { th { "Slower, " (bound) } }
                th.l { "Verdict" }
            } }
            tbody {
                @for (index, step) in record.steps.iter().enumerate() {
                    tr {
                        td { (index + 1) }
                        td { (quantity::rate(step.rate_per_s)) }
                        td { (quantity::number(step.due as f64, 1)) }
                        td { (share(step.answered, step.due)) }
                        td { (share(step.errors, step.due)) }
                        @for place in 0..record.bounds.len() {
                            td { (step.beyond.get(place).map_or(ABSENT.to_owned(), |count| share(*count, step.due))) }
                        }
                        td.w { (step.verdict) @if step.confirms { ", tried again" } }
                    }
                }
            }
        } }
    }
}
