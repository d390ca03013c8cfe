//! A chart over a clock's time, for pages that show what goes on now. It has no inline style, so that a page may forbid
//! any.

use maud::{Markup, PreEscaped};

use super::charts::{ChartEvent, ChartLine, LineChart, ShadedTime};
use super::drawing::{AltText, ChartAxis};

/// The charts' colours, and the style of tables and pages: every page that shows a chart needs it.
pub const STYLE: &str = include_str!("report.css");

/// A line of a chart.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TimeLine {
    /// Its colour: that of the storage with this place in a study, or one with the page's own meaning.
    pub colour: usize,
    /// Written at its end.
    pub name: String,
    /// Seconds of the clock, and the value: nothing joins one part with the next.
    pub parts: Vec<Vec<(f64, f64)>>,
}

impl TimeLine {
    pub fn points(&self) -> impl Iterator<Item = (f64, f64)> + '_ {
        self.parts.iter().flatten().copied()
    }

    pub fn is_empty(&self) -> bool {
        self.parts.iter().all(Vec::is_empty)
    }
}

/// A time that is left out of the picture, and why.
#[derive(Clone, Debug, PartialEq)]
pub struct TimeShade {
    pub label: String,
    pub from_s: f64,
    pub to_s: f64,
}

/// Something that happened at a moment, or from one moment to another.
#[derive(Clone, Debug, PartialEq)]
pub struct TimeMark {
    pub colour: usize,
    /// Written at its beginning; the legend beside the picture explains it.
    pub sign: String,
    pub from_s: f64,
    pub to_s: Option<f64>,
}

/// See the module.
pub struct TimeChart<'a> {
    pub title: &'a str,
    pub description: &'a str,
    pub y_title: &'a str,
    pub lines: &'a [TimeLine],
    pub marks: &'a [TimeMark],
    pub shades: &'a [TimeShade],
    pub from_s: f64,
    pub to_s: f64,
    /// Where the time axis is labelled, and how.
    pub ticks: Vec<(f64, String)>,
    pub is_log: bool,
    /// The end of the y axis, where the values have a known one.
    pub y_high: Option<f64>,
    /// How a value is written.
    pub label: &'a dyn Fn(f64) -> String,
}

const WIDTH: i32 = 560;
const HEIGHT: i32 = 200;

impl TimeChart<'_> {
    /// The picture, as an SVG element that is as wide as there is room, and its y axis once more by itself (`y-axis`),
    /// for pages on which the picture is scrolled.
    pub fn draw(&self) -> Markup {
        let mut lines: Vec<ChartLine> = Vec::new();
        for line in self.lines {
            // Points outside would be drawn at the edge.
            let is_inside = |(time_s, _): &(f64, f64)| (self.from_s..=self.to_s).contains(time_s);
            let parts = line.parts.iter().map(|part| part.iter().copied().filter(is_inside).collect());
            let parts: Vec<Vec<(f64, f64)>> = parts.filter(|part: &Vec<_>| !part.is_empty()).collect();
            let count = parts.len();
            lines.extend(parts.into_iter().enumerate().map(|(place, points)| ChartLine {
                series: line.colour,
                // At the end of the last part.
                name: Some(if place + 1 == count { line.name.clone() } else { String::new() }),
                points,
            }));
        }
        let marks: Vec<ChartEvent> = self
            .marks
            .iter()
            .filter(|mark| mark.from_s <= self.to_s && mark.to_s.is_none_or(|to| to >= self.from_s))
            .map(|mark| ChartEvent {
                series: mark.colour,
                sign: mark.sign.clone(),
                from: mark.from_s.max(self.from_s),
                to: mark.to_s,
            })
            .collect();
        let shades: Vec<ShadedTime> = self
            .shades
            .iter()
            .filter(|shade| shade.from_s < self.to_s && shade.to_s > self.from_s)
            .map(|shade| ShadedTime {
                label: shade.label.clone(),
                from: shade.from_s.max(self.from_s),
                to: shade.to_s.min(self.to_s),
            })
            .collect();
        let drawing = LineChart {
            words: AltText { title: self.title, description: self.description },
            y_title: self.y_title,
            x_title: "",
            lines: &lines,
            x: ChartAxis { low: self.from_s, high: self.to_s.max(self.from_s + 1.0), is_log: false },
            x_ticks: self.ticks.clone(),
            is_log: self.is_log,
            y_high: self.y_high,
            width: WIDTH,
            height: HEIGHT,
            label: self.label,
        };
        let svg = without_style(drawing.draw_over(&marks, &[], "", &shades));
        let axis = without_style(drawing.draw_y_axis()).replacen(
            "<svg class=\"chart\"",
            "<svg class=\"chart y-axis\" aria-hidden=\"true\"",
            1,
        );
        PreEscaped(svg + &axis)
    }
}

/// The one attribute of style that a picture has says how wide it may become, in its first tag.
fn without_style(svg: String) -> String {
    let Some(from) = svg.find(" style=\"") else { return svg };
    let Some(length) = svg[from + 8..].find('"') else { return svg };
    match svg.find('>').is_some_and(|end| end > from) {
        true => format!("{}{}", &svg[..from], &svg[from + 8 + length + 1..]),
        false => svg,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn picture_has_no_own_style_and_keeps_text() {
        let line =
            TimeLine { colour: 1, name: "<b>ssd</b>".to_owned(), parts: vec![vec![(1.0, 2.0), (2.0, 3.0)]] };
        let mark = TimeMark { colour: 2, sign: "1".to_owned(), from_s: 1.5, to_s: None };
        let drawn = TimeChart {
            title: "Throughput of <script>",
            description: "",
            y_title: "ops/s",
            lines: &[line],
            marks: &[mark],
            shades: &[],
            from_s: 0.0,
            to_s: 10.0,
            ticks: vec![(5.0, "14:00".to_owned())],
            is_log: false,
            y_high: None,
            label: &|value| format!("{value}"),
        }
        .draw()
        .into_string();
        assert!(
            drawn.starts_with("<svg class=\"chart\"") && !drawn.contains("style=") && !drawn.contains("<b>")
        );
        assert!(drawn.contains("14:00") && !drawn.contains("<script>"), "{drawn}");
    }

    #[test]
    fn line_parts_stay_separate_with_one_name() {
        let part = |from: u32| (from..from + 20).map(|second| (f64::from(second), 5.0)).collect::<Vec<_>>();
        let line = TimeLine { colour: 1, name: "hdd.0".to_owned(), parts: vec![part(0), part(50)] };
        let shade = TimeShade { label: "filling caches".to_owned(), from_s: 20.0, to_s: 50.0 };
        let drawn = TimeChart {
            title: "IOPS",
            description: "",
            y_title: "",
            lines: &[line],
            marks: &[],
            shades: &[shade],
            from_s: 0.0,
            to_s: 70.0,
            ticks: Vec::new(),
            is_log: false,
            y_high: None,
            label: &|value| format!("{value}"),
        }
        .draw()
        .into_string();
        let (picture, axis) = drawn.split_once("</svg>").unwrap();
        assert_eq!(picture.matches("stroke=\"#0072B2\"").count(), 2, "{picture}");
        assert_eq!(picture.matches(">hdd.0<").count(), 1, "{picture}");
        assert!(picture.contains(">filling caches<"), "{picture}");
        assert!(axis.contains("y-axis") && !axis.contains("hdd.0"), "{axis}");
    }
}
