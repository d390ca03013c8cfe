//! A chart over a clock's time, for pages that show what goes on now. It has no inline style, so that a page may forbid any.

use maud::{Markup, PreEscaped};

use super::charts::{Happening, Line, Lines};
use super::drawing::{Axis, Words};

/// What the charts' colours mean, and how tables and pages look: every page that shows a chart needs it.
pub const STYLE: &str = include_str!("report.css");

/// A line of a chart.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TimeLine {
    /// Its colour: that of the storage with this place in a study, or whatever the page means by it.
    pub colour: usize,
    /// Written at its end.
    pub name: String,
    /// Seconds of the clock, and the value.
    pub points: Vec<(f64, f64)>,
}

/// Something that happened at a moment, or from one moment to another.
#[derive(Clone, Debug, PartialEq)]
pub struct TimeMark {
    pub colour: usize,
    /// Written at its beginning; what it means is told beside the picture.
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
    /// The picture, as an SVG element that is as wide as there is room.
    pub fn draw(&self) -> Markup {
        let lines: Vec<Line> = self
            .lines
            .iter()
            .map(|line| Line {
                series: line.colour,
                name: Some(line.name.clone()),
                // What lies outside would be drawn at the edge.
                points: line
                    .points
                    .iter()
                    .copied()
                    .filter(|(at, _)| (self.from_s..=self.to_s).contains(at))
                    .collect(),
            })
            .filter(|line| !line.points.is_empty())
            .collect();
        let marks: Vec<Happening> = self
            .marks
            .iter()
            .filter(|mark| mark.from_s <= self.to_s && mark.to_s.is_none_or(|to| to >= self.from_s))
            .map(|mark| Happening {
                series: mark.colour,
                sign: mark.sign.clone(),
                from: mark.from_s.max(self.from_s),
                to: mark.to_s,
            })
            .collect();
        let svg = Lines {
            words: Words { title: self.title, description: self.description },
            y_title: self.y_title,
            x_title: "",
            lines: &lines,
            x: Axis { low: self.from_s, high: self.to_s.max(self.from_s + 1.0), is_log: false },
            x_ticks: self.ticks.clone(),
            is_log: self.is_log,
            y_high: self.y_high,
            width: WIDTH,
            height: HEIGHT,
            label: self.label,
        }
        .draw_with(&marks, &[], "");
        PreEscaped(without_style(svg))
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
    fn a_picture_has_no_style_of_its_own_and_its_words_are_text() {
        let line =
            TimeLine { colour: 1, name: "<b>ssd</b>".to_owned(), points: vec![(1.0, 2.0), (2.0, 3.0)] };
        let mark = TimeMark { colour: 2, sign: "1".to_owned(), from_s: 1.5, to_s: None };
        let drawn = TimeChart {
            title: "Throughput of <script>",
            description: "",
            y_title: "ops/s",
            lines: &[line],
            marks: &[mark],
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
}
