//! What all charts share: axes, ticks, colours and the SVG's frame.
//!
//! Charts are drawn once, in fixed sentinel colours; the page's style sheet maps each to a variable, so that one
//! picture serves light, dark and print.

use super::svg::escape;
pub(super) use super::svg::{ChartColour, CircleStyle, SvgArea, TextAnchor};
use crate::quantity;

/// Text and axis lines; `report.css` maps it, as it does the others, by its hexadecimal form.
pub(super) const INK: ChartColour = ChartColour(0x11, 0x11, 0x11);
pub(super) const MUTED: ChartColour = ChartColour(0x66, 0x66, 0x66);
/// Writing on something coloured: the page's own ground shows through.
pub(super) const GROUND: ChartColour = ChartColour(0xFF, 0xFF, 0xFF);
pub(super) const GRID: ChartColour = ChartColour(0xDD, 0xDD, 0xDD);
/// One colour a storage, the baseline's first. After M. Okabe and K. Ito's palette for colour-blind readers, without
/// its yellow, which vanishes on white, and with a grey for the baseline.
pub(super) const SERIES: [ChartColour; 7] = [
    ChartColour(0x6B, 0x72, 0x80),
    ChartColour(0x00, 0x72, 0xB2),
    ChartColour(0xD5, 0x5E, 0x00),
    ChartColour(0x00, 0x9E, 0x73),
    ChartColour(0xCC, 0x79, 0xA7),
    ChartColour(0xE6, 0x9F, 0x00),
    ChartColour(0x56, 0xB4, 0xE9),
];

pub(super) fn series_colour(index: usize) -> ChartColour {
    SERIES[index % SERIES.len()]
}

/// Coordinates are whole numbers: drawing larger and showing smaller keeps lines smooth.
pub(super) const FINE: i32 = 2;

/// A value's way to a position on an axis.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct ChartAxis {
    pub low: f64,
    pub high: f64,
    pub is_log: bool,
}

impl ChartAxis {
    /// From zero to a round number that holds every value.
    pub(super) fn from_zero(values: impl IntoIterator<Item = f64>) -> ChartAxis {
        let highest = values.into_iter().filter(|value| is_drawn(*value)).fold(0.0, f64::max);
        let high = if highest > 0.0 { next_of(highest * 1.02, &HEADROOMS) } else { 1.0 };
        ChartAxis { low: 0.0, high, is_log: false }
    }

    /// A logarithmic axis around every positive value.
    pub(super) fn log(values: impl IntoIterator<Item = f64>) -> ChartAxis {
        let (mut low, mut high) = (f64::INFINITY, 0.0f64);
        for value in values.into_iter().filter(|value| is_drawn(*value) && *value > 0.0) {
            low = low.min(value);
            high = high.max(value);
        }
        if high <= 0.0 {
            return ChartAxis { low: 1.0, high: 10.0, is_log: true };
        }
        let (low, high) = (round_down(low / 1.05), next_of(high * 1.05, &STEPS));
        ChartAxis { low, high: if high > low { high } else { low * 10.0 }, is_log: true }
    }

    /// 0 at the low end, 1 at the high one; values beyond are drawn at the end.
    pub(super) fn place(&self, value: f64) -> f64 {
        let share = if self.is_log {
            (value.max(self.low) / self.low).ln() / (self.high / self.low).ln()
        } else {
            (value - self.low) / (self.high - self.low)
        };
        if share.is_finite() { share.clamp(0.0, 1.0) } else { 0.0 }
    }

    /// Round values inside the axis, some five of them.
    pub(super) fn ticks(&self) -> Vec<f64> {
        if !self.is_log {
            let step = next_of((self.high - self.low) / 5.0, &STEPS);
            // What a record says may be anything.
            let first = (self.low / step).ceil().clamp(-1e15, 1e15) as i64;
            return (first..first + 12)
                .map(|index| index as f64 * step)
                // A tick at the very end may be above it by rounding.
                .filter(|tick| *tick <= self.high * (1.0 + 1e-9))
                .collect();
        }
        let decades = (self.high / self.low).log10();
        let steps: &[f64] = if decades > 2.2 { &[1.0] } else { &[1.0, 2.0, 5.0] };
        let every = (decades / 6.0).ceil().max(1.0) as i32;
        let first = self.low.log10().floor().clamp(-MAX_DECADES, MAX_DECADES) as i32;
        let last = self.high.log10().ceil().clamp(-MAX_DECADES, MAX_DECADES) as i32;
        (first..=last)
            .filter(|exponent| (exponent - first) % every == 0)
            .flat_map(|exponent| steps.iter().map(move |step| step * 10f64.powi(exponent)))
            .filter(|tick| *tick >= self.low * (1.0 - 1e-9) && *tick <= self.high * (1.0 + 1e-9))
            .collect()
    }
}

/// A logarithmic axis goes no further, whatever a record says.
const MAX_DECADES: f64 = 30.0;
/// No figure of ours is beyond; one of a record that somebody else wrote may be, and is drawn at the end of the axis.
fn is_drawn(value: f64) -> bool {
    value == 0.0 || (1e-30..=1e30).contains(&value.abs())
}

/// Digits of ticks.
const STEPS: [f64; 5] = [1.0, 2.0, 2.5, 5.0, 10.0];
/// Digits at which an axis may end: closer than ticks, so that little of the picture stays empty.
const HEADROOMS: [f64; 9] = [1.0, 1.2, 1.5, 2.0, 2.5, 3.0, 4.0, 6.0, 8.0];

/// The next of the digits times a power of ten.
fn next_of(value: f64, digits: &[f64]) -> f64 {
    let power = 10f64.powf(value.log10().floor());
    let digit = digits.iter().copied().find(|step| step * power >= value * (1.0 - 1e-9));
    digit.unwrap_or(10.0) * power
}

/// The one before of 1, 2 and 5 times a power of ten.
fn round_down(value: f64) -> f64 {
    let power = 10f64.powf(value.log10().floor());
    let digit = [5.0, 2.0, 1.0].into_iter().find(|step| step * power <= value * (1.0 + 1e-9));
    digit.unwrap_or(1.0) * power
}

/// Margins around the plotted rectangle, in the picture's pixels.
#[derive(Clone, Copy)]
pub(super) struct ChartMargins {
    pub left: i32,
    pub right: i32,
    pub top: i32,
    pub bottom: i32,
}

/// A picture's plotted rectangle.
#[derive(Clone, Copy)]
pub(super) struct PlotFrame {
    pub width: i32,
    pub height: i32,
    pub margins: ChartMargins,
}

impl PlotFrame {
    /// The horizontal position of a share of the plotted width, in drawing units.
    pub(super) fn x(&self, share: f64) -> i32 {
        let inner = f64::from(self.width - self.margins.left - self.margins.right);
        ((f64::from(self.margins.left) + share * inner) * f64::from(FINE)).round() as i32
    }

    /// The vertical position of a share of the plotted height, 0 at the bottom.
    pub(super) fn y(&self, share: f64) -> i32 {
        let inner = f64::from(self.height - self.margins.top - self.margins.bottom);
        ((f64::from(self.margins.top) + (1.0 - share) * inner) * f64::from(FINE)).round() as i32
    }
}

/// Words for those who don't see the picture.
pub(super) struct AltText<'a> {
    pub title: &'a str,
    pub description: &'a str,
}

/// Draws a picture and returns it as an SVG element that scales with the page.
pub(super) fn picture(frame: PlotFrame, words: &AltText, draw: impl FnOnce(&SvgArea)) -> String {
    let area = SvgArea::default();
    draw(&area);
    format!(
        "<svg class=\"chart\" viewBox=\"0 0 {} {}\" role=\"img\" style=\"max-width:{}px;--drawn:{}px\"><title>{}</title><desc>{}</desc>{}</svg>",
        frame.width * FINE,
        frame.height * FINE,
        frame.width * 5 / 4,
        frame.width,
        escape(words.title),
        escape(words.description),
        area.into_elements()
    )
}

/// Text of `size` pixels.
pub(super) fn text(
    area: &SvgArea,
    words: &str,
    anchor_point: (i32, i32),
    size: i32,
    colour: ChartColour,
    anchor: TextAnchor,
) {
    area.text(words, anchor_point, size * FINE, colour, anchor);
}

/// The y axis' name, upwards along the left edge.
pub(super) fn y_title(area: &SvgArea, frame: &PlotFrame, words: &str) {
    area.upward_text(words, (0, frame.y(0.5)), 11 * FINE, MUTED);
}

/// Horizontal grid lines with their values.
pub(super) fn y_axis(area: &SvgArea, frame: &PlotFrame, axis: &ChartAxis, label: &dyn Fn(f64) -> String) {
    for tick in axis.ticks() {
        let y = frame.y(axis.place(tick));
        area.line(&[(frame.x(0.0), y), (frame.x(1.0), y)], GRID, 1.0, FINE);
        let words = quantity::without_last_zeros(&label(tick));
        text(area, &words, (frame.x(0.0) - 6 * FINE, y), 11, MUTED, TextAnchor::LeftOf);
    }
}

/// Values below the plotted rectangle.
pub(super) fn x_axis(area: &SvgArea, frame: &PlotFrame, axis: &ChartAxis, ticks: &[(f64, String)]) {
    let bottom = frame.y(0.0);
    area.line(&[(frame.x(0.0), bottom), (frame.x(1.0), bottom)], MUTED, 1.0, FINE);
    for (value, label) in ticks {
        let x = frame.x(axis.place(*value));
        area.line(&[(x, bottom), (x, bottom + 4 * FINE)], MUTED, 1.0, FINE);
        text(area, label, (x, bottom + 6 * FINE), 11, MUTED, TextAnchor::Below);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn axis_covers_values_and_ticks(values in prop::collection::vec(1e-6f64..1e12, 1..20)) {
            for axis in [ChartAxis::log(values.clone()), ChartAxis::from_zero(values.clone())] {
                for value in &values {
                    prop_assert!(*value >= axis.low * 0.999 && *value <= axis.high * 1.001, "{value} in {axis:?}");
                }
                let ticks = axis.ticks();
                prop_assert!((1..=14).contains(&ticks.len()), "{axis:?} has ticks {ticks:?}");
                for tick in ticks {
                    prop_assert!((0.0..=1.0).contains(&axis.place(tick)));
                }
            }
        }
    }

    /// A record may say anything.
    #[test]
    fn axis_terminates_for_any_values() {
        for values in [[1.0, 1e308], [5e-324, 1.0], [f64::MAX, f64::MIN_POSITIVE], [f64::INFINITY, f64::NAN]]
        {
            for axis in [ChartAxis::log(values), ChartAxis::from_zero(values)] {
                assert!(axis.ticks().len() < 100, "{axis:?}");
                assert!(values.iter().all(|value| (0.0..=1.0).contains(&axis.place(*value))), "{axis:?}");
            }
        }
    }

    #[test]
    fn odd_values_have_a_place() {
        let axis = ChartAxis::log([0.0, f64::NAN, f64::INFINITY, -1.0]);
        for odd in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            assert!((0.0..=1.0).contains(&axis.place(odd)));
        }
    }
}
