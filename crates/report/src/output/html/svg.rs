//! Writes the few elements that charts consist of.

use std::cell::RefCell;
use std::fmt::{self, Write as _};

/// Red, green and blue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ChartColour(pub u8, pub u8, pub u8);

/// As the style sheet names it.
impl fmt::Display for ChartColour {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ChartColour(red, green, blue) = self;
        write!(f, "#{red:02X}{green:02X}{blue:02X}")
    }
}

/// How a circle is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CircleStyle {
    Filled,
    /// A ring of this width.
    Ring(i32),
}

/// Where a text stands to its point.
#[derive(Clone, Copy)]
pub(super) enum TextAnchor {
    Centre,
    Above,
    Below,
    LeftOf,
    RightOf,
}

impl TextAnchor {
    /// The attributes `text-anchor` and `dy`.
    fn attributes(self) -> [&'static str; 2] {
        match self {
            TextAnchor::Centre => ["middle", "0.5ex"],
            TextAnchor::Above => ["middle", "-0.5ex"],
            TextAnchor::Below => ["middle", "0.76em"],
            TextAnchor::LeftOf => ["end", "0.5ex"],
            TextAnchor::RightOf => ["start", "0.5ex"],
        }
    }
}

/// What was drawn so far. Positions are in drawing units, from the upper left corner.
#[derive(Default)]
pub(super) struct SvgArea(RefCell<String>);

impl SvgArea {
    pub(super) fn into_elements(self) -> String {
        self.0.into_inner()
    }

    fn add(&self, element: fmt::Arguments<'_>) {
        // Writing to a string can't fail.
        let _ = self.0.borrow_mut().write_fmt(element);
    }

    pub(super) fn line(&self, points: &[(i32, i32)], colour: ChartColour, opacity: f64, width: i32) {
        let opacity = ElementOpacity(opacity);
        self.add(format_args!(
            "<polyline fill=\"none\"{opacity} stroke=\"{colour}\" stroke-width=\"{width}\" points=\""
        ));
        for (x, y) in points {
            self.add(format_args!("{x},{y} "));
        }
        self.add(format_args!("\"/>"));
    }

    pub(super) fn bar(&self, corners: [(i32, i32); 2], colour: ChartColour, opacity: f64) {
        let [(left, top), (right, bottom)] = corners;
        let (width, height, opacity) = (right - left, bottom - top, ElementOpacity(opacity));
        self.add(format_args!(
            "<rect x=\"{left}\" y=\"{top}\" width=\"{width}\" height=\"{height}\"{opacity} fill=\"{colour}\"/>"
        ));
    }

    pub(super) fn circle(
        &self,
        (x, y): (i32, i32),
        radius: i32,
        (colour, opacity): (ChartColour, f64),
        style: CircleStyle,
    ) {
        let opacity = ElementOpacity(opacity);
        self.add(format_args!("<circle cx=\"{x}\" cy=\"{y}\" r=\"{radius}\"{opacity}"));
        match style {
            CircleStyle::Filled => self.add(format_args!(" fill=\"{colour}\"/>")),
            CircleStyle::Ring(width) => {
                self.add(format_args!(" fill=\"none\" stroke=\"{colour}\" stroke-width=\"{width}\"/>"));
            }
        }
    }

    /// Text of this height.
    pub(super) fn text(
        &self,
        words: &str,
        (x, y): (i32, i32),
        height: i32,
        colour: ChartColour,
        anchor: TextAnchor,
    ) {
        let [anchor, dy] = anchor.attributes();
        let words = escape(words);
        self.add(format_args!(
            "<text x=\"{x}\" y=\"{y}\" dy=\"{dy}\" text-anchor=\"{anchor}\" font-size=\"{height}\" \
             fill=\"{colour}\">{words}</text>"
        ));
    }

    /// Text that goes upwards, to the right of its point.
    pub(super) fn upward_text(&self, words: &str, (x, y): (i32, i32), height: i32, colour: ChartColour) {
        let [anchor, dy] = TextAnchor::Below.attributes();
        let words = escape(words);
        self.add(format_args!(
            "<text x=\"{x}\" y=\"{y}\" dy=\"{dy}\" text-anchor=\"{anchor}\" font-size=\"{height}\" \
             fill=\"{colour}\" transform=\"rotate(270, {x}, {y})\">{words}</text>"
        ));
    }
}

/// Nothing where it is whole: half the bytes of a picture otherwise.
struct ElementOpacity(f64);

impl fmt::Display for ElementOpacity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 < 1.0 { write!(f, " opacity=\"{}\"", self.0) } else { Ok(()) }
    }
}

pub(super) fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    const RED: ChartColour = ChartColour(0xD5, 0x0E, 0x00);

    fn drawn(draw: impl FnOnce(&SvgArea)) -> String {
        let area = SvgArea::default();
        draw(&area);
        area.into_elements()
    }

    #[test]
    fn element_has_its_svg_attributes() {
        assert_eq!(
            drawn(|area| area.line(&[(1, 2), (30, -4)], RED, 0.5, 2)),
            "<polyline fill=\"none\" opacity=\"0.5\" stroke=\"#D50E00\" stroke-width=\"2\" points=\"1,2 30,-4 \"/>"
        );
        assert_eq!(
            drawn(|area| area.bar([(1, 2), (11, 22)], RED, 1.0)),
            "<rect x=\"1\" y=\"2\" width=\"10\" height=\"20\" fill=\"#D50E00\"/>"
        );
        assert_eq!(
            drawn(|area| area.circle((1, 2), 3, (RED, 0.6), CircleStyle::Ring(4))),
            "<circle cx=\"1\" cy=\"2\" r=\"3\" opacity=\"0.6\" fill=\"none\" stroke=\"#D50E00\" stroke-width=\"4\"/>"
        );
        assert_eq!(
            drawn(|area| area.circle((1, 2), 3, (RED, 1.0), CircleStyle::Filled)),
            "<circle cx=\"1\" cy=\"2\" r=\"3\" fill=\"#D50E00\"/>"
        );
    }

    #[test]
    fn text_is_escaped_and_anchored() {
        assert_eq!(
            drawn(|area| area.text("a <b> & c", (1, 2), 22, RED, TextAnchor::LeftOf)),
            "<text x=\"1\" y=\"2\" dy=\"0.5ex\" text-anchor=\"end\" font-size=\"22\" fill=\"#D50E00\">\
             a &lt;b&gt; &amp; c</text>"
        );
        let upward = drawn(|area| area.upward_text("up", (0, 9), 22, RED));
        assert!(upward.contains(" transform=\"rotate(270, 0, 9)\">up<"), "{upward}");
    }
}
