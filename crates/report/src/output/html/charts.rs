//! The three kinds of chart: grouped bars, dots with intervals, and lines.

use super::drawing::{
    AltText, ChartAxis, ChartMargins, CircleStyle, FINE, GRID, INK, MUTED, PlotFrame, TextAnchor, picture,
    series_colour, text, x_axis, y_axis, y_title,
};
use crate::comparison::{CellResult, ComparisonRow};
use crate::quantity;
use crate::statistics::ConfidenceInterval;

/// One value of a group, belonging to a storage.
#[derive(Clone, Debug)]
pub(super) struct ChartMark {
    /// The storage's index, for its colour.
    pub series: usize,
    pub value: f64,
    pub interval: Option<ConfidenceInterval>,
    /// Drawn pale or hollow, with an exclamation mark.
    pub is_doubtful: bool,
}

impl ChartMark {
    /// A mark for each storage that has the value.
    pub(super) fn from_row(
        row: &ComparisonRow,
        pick: impl Fn(&CellResult) -> Option<(f64, Option<ConfidenceInterval>)>,
    ) -> Vec<ChartMark> {
        let mark = |(series, result): (usize, &Option<CellResult>)| {
            let result = result.as_ref()?;
            let (value, interval) = pick(result)?;
            Some(ChartMark { series, value, interval, is_doubtful: result.is_doubtful() })
        };
        row.cells.iter().enumerate().filter_map(mark).collect()
    }
}

/// Marks that stand together under one name.
#[derive(Clone, Debug)]
pub(super) struct MarkGroup {
    pub label: String,
    pub marks: Vec<ChartMark>,
}

/// A picture of groups of marks.
pub(super) struct GroupChart<'a> {
    pub words: AltText<'a>,
    pub y_title: &'a str,
    pub groups: &'a [MarkGroup],
    pub is_log: bool,
    pub width: i32,
    pub height: i32,
    pub label: &'a dyn Fn(f64) -> String,
}

impl GroupChart<'_> {
    fn values(&self) -> impl Iterator<Item = f64> + '_ {
        self.groups.iter().flat_map(|group| &group.marks).flat_map(|mark| {
            let ends = mark.interval.map_or([mark.value; 2], |one| [one.low, one.high]);
            [mark.value, ends[0], ends[1]]
        })
    }

    fn frame(&self) -> PlotFrame {
        let margins = ChartMargins { left: 68, right: 12, top: 20, bottom: 30 };
        PlotFrame { width: self.width, height: self.height, margins }
    }

    fn axis(&self) -> ChartAxis {
        if !self.is_log {
            return ChartAxis::from_zero(self.values());
        }
        // An interval that reaches to nothing must not stretch the axis by decades.
        let marks = self.groups.iter().flat_map(|group| &group.marks);
        let lowest = marks.map(|mark| mark.value).filter(|value| *value > 0.0).fold(f64::INFINITY, f64::min);
        ChartAxis::log(self.values().map(|value| value.max(lowest / 3.0)))
    }

    /// Bars, or dots on a logarithmic axis: that has no zero, so that a bar's length would mean nothing.
    pub(super) fn draw(&self) -> String {
        if self.is_log { self.dots() } else { self.bars() }
    }

    /// Bars side by side, each with its value on top and its interval as a whisker.
    fn bars(&self) -> String {
        let (frame, axis) = (self.frame(), self.axis());
        picture(frame, &self.words, |area| {
            y_title(area, &frame, self.y_title);
            y_axis(area, &frame, &axis, self.label);
            let slot = 1.0 / self.groups.len().max(1) as f64;
            for (index, group) in self.groups.iter().enumerate() {
                let count = group.marks.len().max(1) as f64;
                let step = (slot * 0.8 / count).min(0.12);
                let start = (index as f64 + 0.5) * slot - step * count / 2.0;
                for (position, mark) in group.marks.iter().enumerate() {
                    let left = frame.x(start + step * (position as f64 + 0.06));
                    let right = frame.x(start + step * (position as f64 + 0.94));
                    let top = frame.y(axis.place(mark.value));
                    let opacity = if mark.is_doubtful { 0.4 } else { 1.0 };
                    area.bar([(left, top), (right, frame.y(0.0))], series_colour(mark.series), opacity);
                    let middle = (left + right) / 2;
                    let mut highest = top;
                    if let Some(interval) = mark.interval {
                        highest = frame.y(axis.place(interval.high));
                        whisker(area, &frame, &axis, middle, interval);
                    }
                    let mut words =
                        if right - left >= 30 * FINE { (self.label)(mark.value) } else { String::new() };
                    if mark.is_doubtful {
                        words = format!("! {words}").trim().to_owned();
                    }
                    text(area, &words, (middle, highest - FINE), 11, INK, TextAnchor::Above);
                }
            }
            self.names_below(area, &frame);
        })
    }

    /// The ground that groups stand on, and their names.
    fn names_below(&self, area: &super::drawing::SvgArea, frame: &PlotFrame) {
        let slot = 1.0 / self.groups.len().max(1) as f64;
        for (index, group) in self.groups.iter().enumerate() {
            let centre = frame.x((index as f64 + 0.5) * slot);
            text(area, &group.label, (centre, frame.y(0.0) + 7 * FINE), 12, INK, TextAnchor::Below);
        }
        area.line(&[(frame.x(0.0), frame.y(0.0)), (frame.x(1.0), frame.y(0.0))], MUTED, 1.0, FINE);
    }

    /// Dots with whiskers: for a logarithmic axis, on which a bar's length would mean nothing. A storage has the same
    /// place in every group.
    fn dots(&self) -> String {
        let (frame, axis) = (self.frame(), self.axis());
        let mut all: Vec<usize> = Vec::new();
        for mark in self.groups.iter().flat_map(|group| &group.marks) {
            if !all.contains(&mark.series) {
                all.push(mark.series);
            }
        }
        picture(frame, &self.words, |area| {
            y_title(area, &frame, self.y_title);
            y_axis(area, &frame, &axis, self.label);
            let slot = 1.0 / self.groups.len().max(1) as f64;
            let mut places: Vec<(&ChartMark, i32, [i32; 3])> = Vec::new();
            for (index, group) in self.groups.iter().enumerate() {
                let count = all.len().max(1) as f64;
                let step = slot * 0.8 / count;
                let start = (index as f64 + 0.5) * slot - step * count / 2.0;
                for mark in &group.marks {
                    let position = all.iter().position(|series| *series == mark.series).unwrap_or(0);
                    let x = frame.x(start + step * (position as f64 + 0.5));
                    let y = frame.y(axis.place(mark.value));
                    let ends = mark.interval.map_or([y, y], |interval| {
                        [interval.high, interval.low].map(|end| frame.y(axis.place(end)))
                    });
                    let (top, bottom) = (ends[0].min(y - 5 * FINE), ends[1].max(y + 5 * FINE));
                    places.push((mark, x, [top, y, bottom]));
                }
            }
            for (mark, x, [_, y, _]) in &places {
                if let Some(interval) = &mark.interval {
                    whisker(area, &frame, &axis, *x, *interval);
                }
                let style = match mark.is_doubtful {
                    true => CircleStyle::Ring(2 * FINE),
                    false => CircleStyle::Filled,
                };
                area.circle((*x, *y), 5 * FINE, (series_colour(mark.series), 1.0), style);
            }
            let mut occupied: Vec<PlotRectangle> = places
                .iter()
                .map(|(_, x, [top, _, bottom])| PlotRectangle {
                    left: x - 5 * FINE,
                    right: x + 5 * FINE,
                    top: *top,
                    bottom: *bottom,
                })
                .collect();
            for (mark, x, [top, _, bottom]) in &places {
                let value = (self.label)(mark.value);
                let words = if mark.is_doubtful { format!("! {value}") } else { value };
                let place = free_place(&words, *x, [*top, *bottom], &frame, &occupied);
                text(area, &words, (*x, place.bottom), 10, INK, TextAnchor::Above);
                occupied.push(place);
            }
            self.names_below(area, &frame);
        })
    }
}

/// Part of a picture that something is drawn on, in drawing units.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct PlotRectangle {
    pub left: i32,
    pub right: i32,
    pub top: i32,
    pub bottom: i32,
}

impl PlotRectangle {
    pub(super) fn overlaps(&self, other: &PlotRectangle) -> bool {
        self.left < other.right
            && other.left < self.right
            && self.top < other.bottom
            && other.top < self.bottom
    }
}

/// Where a value can be written near its mark without anything below it: above the mark, then below it, then further
/// away.
pub(super) fn free_place(
    words: &str,
    x: i32,
    [top, bottom]: [i32; 2],
    frame: &PlotFrame,
    occupied: &[PlotRectangle],
) -> PlotRectangle {
    const HEIGHT: i32 = 11 * FINE;
    const STEPS: i32 = 8;
    let half = words.chars().count() as i32 * 29 * FINE / 10;
    let place =
        |foot: i32| PlotRectangle { left: x - half, right: x + half, top: foot - HEIGHT, bottom: foot };
    let above = |step: i32| place(top - FINE - step * HEIGHT);
    let below = |step: i32| place(bottom + 2 * FINE + (step + 1) * HEIGHT);
    let is_free = |one: &PlotRectangle| {
        one.top >= 0 && one.bottom <= frame.y(0.0) && !occupied.iter().any(|other| one.overlaps(other))
    };
    (0..STEPS).flat_map(|step| [above(step), below(step)]).find(is_free).unwrap_or_else(|| above(0))
}

/// An interval with a cap at each end. An end below the axis has none: there the line stops above the ground, in an
/// arrow.
fn whisker(
    area: &super::drawing::SvgArea,
    frame: &PlotFrame,
    axis: &ChartAxis,
    x: i32,
    interval: ConfidenceInterval,
) {
    let cap = 4 * FINE;
    let width = FINE + 1;
    let high = frame.y(axis.place(interval.high));
    let (low, is_open) = lower_end(frame, axis, interval);
    area.line(&[(x, low), (x, high)], INK, 1.0, width);
    area.line(&[(x - cap, high), (x + cap, high)], INK, 1.0, width);
    match is_open {
        true => area.line(&[(x - cap, low - cap), (x, low), (x + cap, low - cap)], INK, 1.0, width),
        false => area.line(&[(x - cap, low), (x + cap, low)], INK, 1.0, width),
    }
}

/// Where an interval ends below, and whether it goes on beyond the axis.
fn lower_end(frame: &PlotFrame, axis: &ChartAxis, interval: ConfidenceInterval) -> (i32, bool) {
    let is_open = interval.low < axis.low || (axis.is_log && interval.low <= 0.0);
    match is_open {
        true => ((frame.y(0.0) - 3 * FINE).max(frame.y(axis.place(interval.high))), true),
        false => (frame.y(axis.place(interval.low)), false),
    }
}

/// The height of a lane of strips, in the picture's pixels.
const LANE: i32 = 7;
/// Of a line of so few points each is marked: one alone would not be seen.
const POINTS_WITH_DOTS: usize = 12;

/// A line of one storage.
#[derive(Clone, Debug)]
pub(super) struct ChartLine {
    pub series: usize,
    /// Written at the line's end; none for a further repetition.
    pub name: Option<String>,
    pub points: Vec<(f64, f64)>,
}

/// Left of the plotted rectangle: the y axis.
const LEFT: i32 = 66;

/// A picture of lines over a shared x axis.
pub(super) struct LineChart<'a> {
    pub words: AltText<'a>,
    pub y_title: &'a str,
    pub x_title: &'a str,
    pub lines: &'a [ChartLine],
    pub x: ChartAxis,
    /// Where the x axis is labelled; its own ticks when empty.
    pub x_ticks: Vec<(f64, String)>,
    pub is_log: bool,
    /// The y axis' high end where the values have a known one.
    pub y_high: Option<f64>,
    pub width: i32,
    pub height: i32,
    pub label: &'a dyn Fn(f64) -> String,
}

/// Something that happened to a storage on the way, from one place of the x axis to another.
#[derive(Clone, Debug)]
pub(super) struct ChartEvent {
    pub series: usize,
    /// Written at its beginning; what it means is told beside the picture.
    pub sign: String,
    pub from: f64,
    /// Absent when it lasted.
    pub to: Option<f64>,
}

/// A time in which nothing of what a picture shows was measured: pale, with what happened then.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ShadedTime {
    pub label: String,
    pub from: f64,
    pub to: f64,
}

/// While something went on in a storage: drawn above the picture, each storage in its own lane.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct ChartStrip {
    pub series: usize,
    pub from: f64,
    pub to: f64,
}

impl LineChart<'_> {
    pub(super) fn draw(&self) -> String {
        self.draw_with(&[], &[], "")
    }

    /// With what happened behind the lines: pale over its length, and a thin mark where it began; and strips above
    /// them, with what they are.
    pub(super) fn draw_with(
        &self,
        happenings: &[ChartEvent],
        strips: &[ChartStrip],
        subject: &str,
    ) -> String {
        self.draw_over(happenings, strips, subject, &[])
    }

    /// Both axes' places: `above` is what lies above the picture.
    fn axes(&self, above: i32) -> (PlotFrame, ChartAxis) {
        let longest =
            self.lines.iter().filter_map(|line| line.name.as_ref()).map(|name| name.chars().count()).max();
        let right = 14 + (longest.unwrap_or(0) as i32 * 13 / 2).min(110);
        let margins = ChartMargins { left: LEFT, right, top: 12 + above, bottom: 42 };
        let frame = PlotFrame { width: self.width, height: self.height, margins };
        let values = || self.lines.iter().flat_map(|line| line.points.iter().map(|point| point.1));
        let y = if self.is_log { ChartAxis::log(values()) } else { ChartAxis::from_zero(values()) };
        (frame, ChartAxis { high: self.y_high.unwrap_or(y.high), ..y })
    }

    /// The y axis alone, to stand still where the picture is scrolled.
    pub(super) fn draw_y_axis(&self) -> String {
        let (frame, y) = self.axes(0);
        let margins = ChartMargins { right: 0, ..frame.margins };
        let frame = PlotFrame { width: LEFT, margins, ..frame };
        picture(frame, &self.words, |area| {
            y_title(area, &frame, self.y_title);
            y_axis(area, &frame, &y, self.label);
        })
    }

    /// With times behind everything in which nothing was measured.
    pub(super) fn draw_over(
        &self,
        happenings: &[ChartEvent],
        strips: &[ChartStrip],
        subject: &str,
        shades: &[ShadedTime],
    ) -> String {
        let mut lanes: Vec<usize> = strips.iter().map(|strip| strip.series).collect();
        lanes.sort_unstable();
        lanes.dedup();
        // Marks are written above the picture, and so are strips.
        let above = if lanes.is_empty() { 0 } else { 4 + LANE * lanes.len() as i32 };
        let (frame, y) = self.axes(above);
        let ticks = if self.x_ticks.is_empty() {
            self.x
                .ticks()
                .into_iter()
                .map(|tick| (tick, quantity::without_last_zeros(&quantity::number(tick, 3))))
                .collect()
        } else {
            self.x_ticks.clone()
        };
        picture(frame, &self.words, |area| {
            for shade in shades {
                let (from, to) = (frame.x(self.x.place(shade.from)), frame.x(self.x.place(shade.to)));
                area.bar([(from, frame.y(1.0)), (to, frame.y(0.0))], GRID, 0.45);
                // Only where there is room.
                if (to - from) / FINE > shade.label.chars().count() as i32 * 11 / 2 {
                    let position = ((from + to) / 2, frame.y(1.0) + 3 * FINE);
                    text(area, &shade.label, position, 10, MUTED, TextAnchor::Below);
                }
            }
            y_title(area, &frame, self.y_title);
            y_axis(area, &frame, &y, self.label);
            x_axis(area, &frame, &self.x, &ticks);
            let below = (frame.x(0.5), frame.y(0.0) + 23 * FINE);
            text(area, self.x_title, below, 11, MUTED, TextAnchor::Below);
            for one in happenings {
                let (from, to) =
                    (frame.x(self.x.place(one.from)), frame.x(one.to.map_or(1.0, |to| self.x.place(to))));
                let (top, bottom) = (frame.y(1.0), frame.y(0.0));
                let colour = series_colour(one.series);
                area.bar([(from, top), (to, bottom)], colour, 0.12);
                area.line(&[(from, top), (from, bottom)], colour, 0.9, FINE);
                text(area, &one.sign, (from, top), 10, INK, TextAnchor::Above);
            }
            if !lanes.is_empty() {
                let middle = (4 + LANE * lanes.len() as i32 / 2) * FINE;
                text(area, &cut(subject), (frame.x(0.0) - 4 * FINE, middle), 10, MUTED, TextAnchor::LeftOf);
            }
            for strip in strips {
                let lane = lanes.iter().position(|series| *series == strip.series).unwrap_or(0) as i32;
                let top = (4 + LANE * lane) * FINE;
                let (from, to) = (frame.x(self.x.place(strip.from)), frame.x(self.x.place(strip.to)));
                let corners = [(from, top), (to.max(from + FINE), top + (LANE - 2) * FINE)];
                area.bar(corners, series_colour(strip.series), 1.0);
            }
            for one in self.lines {
                let points: Vec<(i32, i32)> = one
                    .points
                    .iter()
                    .filter(|point| point.1.is_finite())
                    .map(|point| (frame.x(self.x.place(point.0)), frame.y(y.place(point.1))))
                    .collect();
                if points.len() <= POINTS_WITH_DOTS {
                    let colour = (series_colour(one.series), 1.0);
                    points
                        .iter()
                        .for_each(|point| area.circle(*point, 3 * FINE, colour, CircleStyle::Filled));
                }
                let (opacity, width) = if one.name.is_some() { (1.0, 2 * FINE) } else { (0.45, FINE + 1) };
                area.line(&points, series_colour(one.series), opacity, width);
            }
            for (name, series, place) in end_labels(self.lines, &frame, &y) {
                let colour = series_colour(series);
                text(area, name, (frame.x(1.0) + 6 * FINE, place), 11, colour, TextAnchor::RightOf);
            }
        })
    }
}

/// What fits to the left of a picture.
fn cut(words: &str) -> String {
    const FITTING: usize = 12;
    if words.chars().count() <= FITTING {
        return words.to_owned();
    }
    words.chars().take(FITTING - 1).chain(['…']).collect()
}

/// Names at the heights where their lines end, moved apart where they would overlap.
fn end_labels<'a>(lines: &'a [ChartLine], frame: &PlotFrame, y: &ChartAxis) -> Vec<(&'a str, usize, i32)> {
    let gap = 13 * FINE;
    let mut labels: Vec<(&str, usize, i32)> = lines
        .iter()
        .filter_map(|line| {
            let last = line.points.last()?.1;
            // A part of a line that goes on later has no name.
            let name = line.name.as_deref().filter(|name| !name.is_empty())?;
            Some((name, line.series, frame.y(y.place(last))))
        })
        .collect();
    labels.sort_by_key(|label| label.2);
    for index in 1..labels.len() {
        labels[index].2 = labels[index].2.max(labels[index - 1].2 + gap);
    }
    // The lowest may have left the picture by this: push back up from the bottom.
    let mut floor = frame.y(0.0);
    for label in labels.iter_mut().rev() {
        label.2 = label.2.min(floor);
        floor = label.2 - gap;
    }
    labels
}

/// Averages neighbouring points, so that at most `most` remain.
pub(super) fn thinned(points: &[(f64, f64)], most: usize) -> Vec<(f64, f64)> {
    let each = points.len().div_ceil(most.max(1)).max(1);
    points
        .chunks(each)
        .map(|chunk| {
            let count = chunk.len() as f64;
            (chunk.iter().map(|p| p.0).sum::<f64>() / count, chunk.iter().map(|p| p.1).sum::<f64>() / count)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interval_below_axis_is_cut_at_axis() {
        let frame = PlotFrame {
            width: 500,
            height: 200,
            margins: ChartMargins { left: 60, right: 10, top: 10, bottom: 30 },
        };
        let ground = frame.y(0.0);
        for axis in [ChartAxis::log([0.5, 8.0]), ChartAxis::from_zero([8.0])] {
            for low in [-1.0, f64::NEG_INFINITY] {
                let (end, is_open) = lower_end(&frame, &axis, ConfidenceInterval { low, high: 8.0 });
                assert!(is_open && end < ground, "{axis:?}: {end} of {ground}");
            }
            let (end, is_open) = lower_end(&frame, &axis, ConfidenceInterval { low: 2.0, high: 8.0 });
            assert!(!is_open && end == frame.y(axis.place(2.0)), "{axis:?}");
        }
        // Two repetitions of a latency: 0 to 8 ms.
        let (end, is_open) =
            lower_end(&frame, &ChartAxis::log([0.5, 8.0]), ConfidenceInterval { low: 0.0, high: 8.0 });
        assert!(is_open && end < ground);
    }
}
