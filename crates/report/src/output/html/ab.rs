//! Two runs beside each other, as a page that needs nothing else.

use maud::{DOCTYPE, Markup, PreEscaped, html};

use super::drawing::{
    AltText, ChartAxis, ChartMargins, CircleStyle, FINE, GRID, INK, MUTED, PlotFrame, TextAnchor, picture,
    series_colour, text, x_axis,
};
use super::{OPEN_FOR_PRINT, figure, head, prose};
use crate::comparison::ab::{AbComparison, MetricChange, MetricPair, cell_name};
use crate::output::terminal::ab::probability;
use crate::quantity::{self, ABSENT};
use crate::statistics::IntervalEstimate;

/// The height of a figure's line in the picture, in pixels.
const LINE: i32 = 22;
/// A ratio's interval is drawn as far as this many times the furthest ratio.
const FURTHEST: f64 = 2.0;

/// The page.
pub fn render(ab: &AbComparison) -> String {
    let title = format!("{} and {}", ab.names[0], ab.names[1]);
    let lists = [("How the runs differ", &ab.differences), ("Not compared", &ab.left_out)];
    html! {
        (DOCTYPE)
        html lang="en" {
            (head(&title, &ab.sentence()))
            body {
                header.top {
                    h1 { "Two runs" }
                    p.answer { (ab.sentence()) }
                    ul.facts {
                        @for (letter, (name, started_at)) in ["A", "B"].iter().zip(ab.names.iter().zip(&ab.started_at)) {
                            li { strong { (letter) } " " (name) ", started " (started_at) }
                        }
                    }
                }
                main {
                    @if !ab.cautions.is_empty() {
                        section.box aria-labelledby="notes" { h2 id="notes" { "Worth knowing" } ul { @for text in &ab.cautions { li { (prose(text)) "." } } } }
                    }
                    @if ab.figures().next().is_some() {
                        section id="figures" {
                            h2 { "Figures" }
                            p.lead {
                                "B : A is B's figure divided by A's, with its own 95 % interval. "
                                em { "p" } " is how likely such a ratio would be without a difference (Welch's test on the logarithm), corrected "
                                "for the number of figures here (Holm): the chance that even one of them is wrongly called a difference stays "
                                "below 5 %."
                            }
                            (figure("B : A, each with its 95 % interval", chart(ab)))
                            (table(ab))
                        }
                    }
                    @for (heading, lines) in lists {
                        @if !lines.is_empty() {
                            section { h2 { (heading) } ul { @for text in lines { li { (text) } } } }
                        }
                    }
                }
                footer {
                    p { "Made by underlay " (env!("CARGO_PKG_VERSION")) " from the records of two runs. Durations and rates are in modelled time." }
                }
                script { (PreEscaped(OPEN_FOR_PRINT)) }
            }
        }
    }
    .into_string()
}

/// A line for each figure: its ratio and interval about 1.
fn chart(ab: &AbComparison) -> String {
    let figures: Vec<(String, &MetricPair)> = ab
        .cells
        .iter()
        .flat_map(|cell| {
            let name = cell_name(cell, ab);
            cell.figures.iter().map(move |figure| (format!("{name}, {}", figure.metric.describe()), figure))
        })
        .collect();
    let ratios = || figures.iter().map(|(_, figure)| figure.ratio.value);
    let furthest = ratios().map(|ratio| ratio.ln().abs()).fold(0.05, f64::max).exp() * FURTHEST;
    let ends =
        figures.iter().filter_map(|(_, figure)| figure.ratio.interval).flat_map(|one| [one.low, one.high]);
    let x = ChartAxis::log(
        ratios().chain(ends).map(|ratio| ratio.clamp(1.0 / furthest, furthest)).chain([0.9, 1.1]),
    );
    let longest = figures.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0) as i32;
    let left = (longest * 13 / 2 + 12).min(480);
    let margins = ChartMargins { left, right: 20, top: 8, bottom: 30 };
    let height = LINE * figures.len() as i32 + margins.top + margins.bottom;
    let frame = PlotFrame { width: 1060, height, margins };
    let ticks: Vec<(f64, String)> = x
        .ticks()
        .into_iter()
        .map(|tick| (tick, quantity::without_last_zeros(&quantity::ratio(tick))))
        .collect();
    let words = AltText { title: "B : A", description: &ab.sentence() };
    picture(frame, &words, |area| {
        for (tick, _) in &ticks {
            let place = frame.x(x.place(*tick));
            area.line(&[(place, frame.y(0.0)), (place, frame.y(1.0))], GRID, 1.0, FINE);
        }
        let one = frame.x(x.place(1.0));
        area.line(&[(one, frame.y(0.0)), (one, frame.y(1.0))], MUTED, 1.0, FINE + 1);
        x_axis(area, &frame, &x, &ticks);
        for (index, (name, figure)) in figures.iter().enumerate() {
            let y = (frame.margins.top + LINE * index as i32 + LINE / 2) * FINE;
            text(area, name, (frame.x(0.0) - 6 * FINE, y), 11, INK, TextAnchor::LeftOf);
            let colour = series_colour(match figure.change() {
                MetricChange::Better => 3,
                MetricChange::Worse => 2,
                MetricChange::NoneSeen | MetricChange::Unknown => 0,
            });
            if let Some(interval) = figure.ratio.interval {
                let ends = [interval.low, interval.high].map(|end| (frame.x(x.place(end)), y));
                area.line(&ends, colour, 1.0, FINE + 1);
            }
            let style = match figure.change().is_certain() {
                true => CircleStyle::Filled,
                false => CircleStyle::Ring(2 * FINE),
            };
            let position = (frame.x(x.place(figure.ratio.value)), y);
            area.circle(position, 4 * FINE, (colour, 1.0), style);
        }
    })
}

fn table(ab: &AbComparison) -> Markup {
    html! {
        div.scroll { table {
            thead { tr { th.l { "Cell" } th.l { "Figure" } th { "A" } th { "B" } th { "B : A" } th { em { "p" } } th.l { "Verdict" } } }
            tbody {
                @for cell in &ab.cells {
                    @for (position, figure) in cell.figures.iter().enumerate() {
                        @let is_certain = figure.change().is_certain();
                        tr {
                            @if position == 0 {
                                th.l scope="rowgroup" rowspan=(cell.figures.len()) {
                                    (cell_name(cell, ab))
                                    @if cell.is_doubtful { " " span.badge.doubtful { "⚠ doubtful" } }
                                    @if cell.is_disturbed { " " span.badge.doubtful { "⚡ disturbed by the study" } }
                                }
                            }
                            td.l { (figure.metric.describe()) }
                            @for one in [figure.a, figure.b] { td { (value(figure, one)) } }
                            td {
                                span.strong[is_certain].dim[!is_certain] { (quantity::ratio(figure.ratio.value)) }
                                @if let Some(interval) = figure.ratio.interval { small { (quantity::ratio_interval(interval)) } }
                            }
                            td { (figure.corrected.map_or(ABSENT.to_owned(), probability)) }
                            td.l { span.strong[is_certain].dim[!is_certain] { (figure.change().describe()) } }
                        }
                    }
                }
            }
        } }
    }
}

fn value(figure: &MetricPair, one: IntervalEstimate) -> Markup {
    html! {
        (figure.metric.value_in_words(one.value))
        @if let Some(share) = one.relative_half_width() { small { "±" (quantity::percent(share)) } }
    }
}
