//! Columns of boxes with ways between them, and the same as a table.

use maud::{Markup, html};
use underlay_report::quantity;

const BOX_WIDTH: i32 = 190;
const BOX_HEIGHT: i32 = 44;
const LINE_HEIGHT: i32 = 15;
const GAP_X: i32 = 110;
const GAP_Y: i32 = 14;
const TOP: i32 = 26;
/// Boxes of a column that are drawn, and lines of a box; the table below has all.
const MAX_BOXES: usize = 24;
const MAX_LINES: usize = 8;
/// Of a box's text, on both sides.
const PADDING: i32 = 10;
const NAME_SIZE: f64 = 13.0;
const DETAIL_SIZE: f64 = 11.0;

/// A box.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct GraphNode {
    pub name: String,
    pub detail: String,
    pub is_bad: bool,
    /// Its lines.
    pub lines: Vec<NodeLine>,
    pub leads_to: Vec<GraphEdge>,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct NodeLine {
    pub text: String,
    pub is_bad: bool,
}

/// To a box of a later column.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct GraphEdge {
    pub column: usize,
    pub place: usize,
    pub load: String,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct GraphColumn {
    pub title: String,
    pub things: Vec<GraphNode>,
}

impl GraphNode {
    fn height(&self) -> i32 {
        BOX_HEIGHT + LINE_HEIGHT * self.lines.len().min(MAX_LINES) as i32
    }
}

impl GraphColumn {
    fn drawn(&self) -> &[GraphNode] {
        &self.things[..self.things.len().min(MAX_BOXES)]
    }

    fn height(&self) -> i32 {
        self.drawn().iter().map(|thing| thing.height() + GAP_Y).sum()
    }
}

/// The upper left corner of a box.
fn place(columns: &[GraphColumn], column: usize, row: usize) -> Option<(i32, i32)> {
    let above = columns.get(column)?.drawn();
    above.get(row)?;
    let y: i32 = above[..row].iter().map(|thing| thing.height() + GAP_Y).sum();
    Some((8 + column as i32 * (BOX_WIDTH + GAP_X), TOP + y))
}

pub(super) fn draw(columns: &[GraphColumn]) -> Markup {
    let width = columns.len() as i32 * (BOX_WIDTH + GAP_X) - GAP_X + 16;
    let height = TOP + columns.iter().map(GraphColumn::height).max().unwrap_or(0).max(BOX_HEIGHT);
    html! {
        div.scroll tabindex="0" role="region" aria-label="Topology" {
            svg.topology viewBox={ "0 0 " (width) " " (height) } width=(width) height=(height) role="img" aria-label="From the load generator by servers, directories and layers to devices; the table below says the same" {
                @for (index, column) in columns.iter().enumerate() {
                    @for (row, thing) in column.drawn().iter().enumerate() {
                        @for way in &thing.leads_to {
                            @if let (Some(from), Some(to)) = (place(columns, index, row), place(columns, way.column, way.place)) {
                                (line(from, to, &way.load, thing.is_bad || columns[way.column].things[way.place].is_bad))
                            }
                        }
                    }
                }
                @for (index, column) in columns.iter().enumerate() {
                    text.column x=(8 + index as i32 * (BOX_WIDTH + GAP_X)) y="14" { (column.title) @if column.things.len() > MAX_BOXES { ", " (MAX_BOXES) " of " (column.things.len()) } }
                    @for (row, thing) in column.drawn().iter().enumerate() {
                        @if let Some((x, y)) = place(columns, index, row) { (boxed(thing, x, y)) }
                    }
                }
            }
        }
        (table(columns))
    }
}

fn boxed(thing: &GraphNode, x: i32, y: i32) -> Markup {
    let left = thing.lines.len().saturating_sub(MAX_LINES);
    html! {
        g.thing.bad[thing.is_bad] {
            rect x=(x) y=(y) width=(BOX_WIDTH) height=(thing.height()) rx="6" {}
            text x=(x + PADDING) y=(y + 18) { (fitted("", &thing.name, NAME_SIZE)) title { (thing.name) } }
            text.detail x=(x + PADDING) y=(y + 34) { (fitted(mark(thing.is_bad), &thing.detail, DETAIL_SIZE)) title { (thing.detail) } }
            @for (number, line) in thing.lines.iter().take(MAX_LINES).enumerate() {
                @let is_last = number + 1 == MAX_LINES && left > 0;
                @let text = if is_last { format!("and {} more", left + 1) } else { line.text.clone() };
                text.detail x=(x + PADDING) y=(y + 34 + LINE_HEIGHT * (number as i32 + 1)) { (fitted(mark(line.is_bad && !is_last), &text, DETAIL_SIZE)) title { (text) } }
            }
        }
    }
}

fn table(columns: &[GraphColumn]) -> Markup {
    html! {
        details {
            summary { "As a table" }
            div.scroll tabindex="0" role="region" aria-label="Topology as a table" {
                table {
                    thead { tr { th.l scope="col" { "Part" } th.l scope="col" { "Name" } th.l scope="col" { "State" } th.l scope="col" { "Leads to" } } }
                    tbody {
                        @for column in columns {
                            @for thing in &column.things {
                                tr.bad[thing.is_bad] {
                                    td.l { (column.title) } th.l scope="row" { (thing.name) }
                                    td.w { (thing.detail) @for line in &thing.lines { "; " (line.text) } }
                                    td.w { (targets(columns, thing)) }
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}

fn targets(columns: &[GraphColumn], thing: &GraphNode) -> String {
    let name = |way: &GraphEdge| {
        let target = columns.get(way.column)?.things.get(way.place)?;
        Some(match way.load.as_str() {
            "" => target.name.clone(),
            load => format!("{} ({load})", target.name),
        })
    };
    let names: Vec<String> = thing.leads_to.iter().filter_map(name).collect();
    quantity::list(&names, 8)
}

fn line(from: (i32, i32), to: (i32, i32), load: &str, is_bad: bool) -> Markup {
    let (x1, y1) = (from.0 + BOX_WIDTH, from.1 + BOX_HEIGHT / 2);
    let (x2, y2) = (to.0, to.1 + BOX_HEIGHT / 2);
    let middle = (x1 + x2) / 2;
    html! {
        path.way.bad[is_bad] d={ "M" (x1) " " (y1) " C" (middle) " " (y1) " " (middle) " " (y2) " " (x2) " " (y2) } {}
        // Near its end, where ways have come apart.
        @if !load.is_empty() { text.load x=(x2 - 6) y=(y2 - 5) text-anchor="end" { (load) } }
    }
}

/// Marks a problem for readers who can't see red.
fn mark(is_bad: bool) -> &'static str {
    if is_bad { "! " } else { "" }
}

/// A mark and as much of a text as has room in a box.
fn fitted(mark: &str, text: &str, size: f64) -> String {
    let room = f64::from(BOX_WIDTH - 2 * PADDING) / size;
    let width = |text: &str| text.chars().map(letter_width).sum::<f64>();
    let whole = format!("{mark}{text}");
    if width(&whole) <= room {
        return whole;
    }
    let mut used = letter_width('…');
    let fits = |letter: &char| {
        used += letter_width(*letter);
        used <= room
    };
    whole.chars().take_while(fits).chain(['…']).collect()
}

/// About as wide as a sans-serif font has it, in parts of the font's size, and rather too wide.
fn letter_width(letter: char) -> f64 {
    match letter {
        'i' | 'j' | 'l' | 'I' | '.' | ',' | ':' | ';' | '\'' | '|' | '!' => 0.34,
        'f' | 't' | 'r' | ' ' | '-' | '(' | ')' | '[' | ']' | '/' => 0.42,
        'm' | 'w' | 'M' | 'W' | '@' | '%' | '…' => 1.0,
        'A'..='Z' => 0.75,
        letter if letter.is_ascii() => 0.62,
        letter if (letter as u32) < 0x1100 => 0.75,
        _ => 1.1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_fits_box_for_any_letters() {
        let short = "master, shard 1";
        assert_eq!(fitted("! ", short, DETAIL_SIZE), "! master, shard 1");
        for long in
            ["shard1-node1: member, shard 1, away", &"W".repeat(100), &"漢".repeat(50), &"i".repeat(200)]
        {
            let shown = fitted("! ", long, DETAIL_SIZE);
            let width: f64 = shown.chars().map(letter_width).sum::<f64>() * DETAIL_SIZE;
            assert!(shown.ends_with('…') && width <= f64::from(BOX_WIDTH - 2 * PADDING), "{shown}: {width}");
        }
    }
}
