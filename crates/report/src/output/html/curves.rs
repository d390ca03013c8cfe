//! Charts of lines over a shared axis, each with its table, as a page that needs nothing else.

use maud::{DOCTYPE, Markup, PreEscaped, html};

use super::charts::{ChartLine, LineChart};
use super::drawing::{AltText, ChartAxis};
use super::{OPEN_FOR_PRINT, figure, head, swatch};
use crate::quantity;

/// One page. Series are numbered from 0, by their places in `series`.
pub struct CurvePage {
    pub title: String,
    /// In a sentence or two.
    pub answer: String,
    pub series: Vec<String>,
    pub sections: Vec<CurveSection>,
    /// How it was found, a paragraph each.
    pub notes: Vec<String>,
}

/// A chart and the figures behind it.
pub struct CurveSection {
    pub title: String,
    /// What the axes are and which way is better.
    pub lead: String,
    pub x_title: String,
    /// Latencies are written with their unit, and others as numbers.
    pub x_is_latency: bool,
    pub lines: Vec<CurveLine>,
    /// The first row is the head. Columns from the second on are numbers. Empty: the figures are in another section.
    pub table: Vec<Vec<String>>,
}

/// Latency in microseconds over a positive figure; both axes are logarithmic.
pub struct CurveLine {
    pub series: usize,
    pub name: String,
    pub points: Vec<(f64, f64)>,
}

/// The page.
pub fn render(page: &CurvePage) -> String {
    html! {
        (DOCTYPE)
        html lang="en" {
            (head(&page.title, &page.answer))
            body {
                header.top {
                    h1 { (page.title) }
                    p.answer { (page.answer) }
                }
                main {
                    ul.legend {
                        @for (index, name) in page.series.iter().enumerate() { li { (swatch(index)) (name) } }
                    }
                    @for (index, section) in page.sections.iter().enumerate() {
                        section id={ "curve-" (index) } { (draw_section(section)) }
                    }
                    section id="method" { h2 { "How it was found" } @for note in &page.notes { p { (note) } } }
                }
                footer { p { "Made by underlay " (env!("CARGO_PKG_VERSION")) ". Modelled in virtual time." } }
                script { (PreEscaped(OPEN_FOR_PRINT)) }
            }
        }
    }
    .into_string()
}

fn draw_section(section: &CurveSection) -> Markup {
    html! {
        h2 { (section.title) }
        p.lead { (section.lead) }
        (figure(&section.title, draw_chart(section)))
        @if !section.table.is_empty() {
            details {
                summary { "Figures" }
                (table(&section.table))
            }
        }
    }
}

fn draw_chart(section: &CurveSection) -> String {
    let lines: Vec<ChartLine> = section
        .lines
        .iter()
        .map(|line| ChartLine {
            series: line.series,
            name: Some(line.name.clone()),
            points: line.points.clone(),
        })
        .collect();
    let x = ChartAxis::log(section.lines.iter().flat_map(|line| line.points.iter().map(|point| point.0)));
    let label = |value: f64| match section.x_is_latency {
        true => quantity::latency(value),
        false => quantity::without_last_zeros(&quantity::number(value, 3)),
    };
    LineChart {
        words: AltText { title: &section.title, description: &section.lead },
        y_title: "latency",
        x_title: &section.x_title,
        lines: &lines,
        x,
        x_ticks: x.ticks().into_iter().map(|tick| (tick, label(tick))).collect(),
        is_log: true,
        y_high: None,
        width: 860,
        height: 380,
        label: &quantity::latency,
    }
    .draw()
}

fn table(rows: &[Vec<String>]) -> Markup {
    let Some((head, body)) = rows.split_first() else { return html! {} };
    html! {
        div.scroll {
            table {
                thead { tr {
                    @for (index, cell) in head.iter().enumerate() { th.l[index == 0] scope="col" { (cell) } }
                } }
                tbody {
                    @for row in body {
                        tr {
                            @for (index, cell) in row.iter().enumerate() {
                                @if index == 0 { th.l scope="row" { (cell) } } @else { td { (cell) } }
                            }
                        }
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_has_every_line_and_figure_and_escapes_names() {
        let line = |series, name: &str| CurveLine {
            series,
            name: name.into(),
            points: vec![(100.0, 90.0), (1e5, 800.0)],
        };
        let page = CurvePage {
            title: "a <b> and c".into(),
            answer: "c is faster.".into(),
            series: vec!["a <b>".into(), "c".into()],
            sections: vec![CurveSection {
                title: "random reads".into(),
                lead: "Lower is better.".into(),
                x_title: "requests per second".into(),
                x_is_latency: false,
                lines: vec![line(0, "a <b>"), line(1, "c")],
                table: vec![vec!["medium".into(), "p99".into()], vec!["c".into(), "1.2 ms".into()]],
            }],
            notes: vec!["In virtual time.".into()],
        };
        let text = render(&page);
        assert!(!text.contains("a <b>") && text.contains("a &lt;b&gt;"), "{text}");
        for expected in ["c is faster.", "random reads", "<polyline", "1.2 ms", "In virtual time.", "100,000"]
        {
            assert!(text.contains(expected), "{expected}: {text}");
        }
    }
}
