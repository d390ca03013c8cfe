//! Tables and lines as a terminal shows them.

use comfy_table::presets::NOTHING;
use comfy_table::{CellAlignment, Table};

/// A table and what of it is to be painted once it is laid out: escapes would count as width before.
pub(super) struct TableLayout {
    pub(super) table: Table,
    /// (line of the body, text, how): a text's first occurrence on its line.
    pub(super) paints: Vec<(usize, String, CellStyle)>,
    /// Lines above the body.
    pub(super) header_lines: usize,
    /// (line of the body, text): what stands above that line, and is too long for a column.
    pub(super) headings: Vec<(usize, String)>,
}

#[derive(Clone, Copy)]
pub(super) enum CellStyle {
    Dim,
    Alarm,
}

impl TableLayout {
    pub(super) fn new(header: &[String]) -> Self {
        let mut table = Table::new();
        table.load_style(NOTHING);
        table.set_header(header.to_vec());
        TableLayout { table, paints: Vec::new(), header_lines: 1, headings: Vec::new() }
    }

    /// Aligns all but the first column and the named ones to the right, two spaces apart.
    pub(super) fn finish(&mut self, left: &[usize]) {
        for (index, column) in self.table.column_iter_mut().enumerate() {
            column.set_padding((if index == 0 { 1 } else { 0 }, 2));
            if index > 0 && !left.contains(&index) {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
    }

    pub(super) fn lines(&self) -> Vec<String> {
        self.table.lines().map(|line| line.trim_end().to_owned()).collect()
    }

    pub(super) fn width(&self) -> usize {
        self.lines().iter().map(|line| line.chars().count()).max().unwrap_or(0)
    }

    /// The table, or its rows as lists where it is wider than `width`.
    pub(super) fn render(&self, width: usize, paint: TablePaint) -> String {
        if self.width() > width {
            return self.render_rows(width, paint);
        }
        let mut out = String::new();
        for (index, line) in self.lines().into_iter().enumerate() {
            let mut line = line;
            if index < self.header_lines {
                line = paint.dim(&line);
            } else {
                out += &self.headings_above(index - self.header_lines, width);
            }
            for (body_line, text, style) in &self.paints {
                if index == body_line + self.header_lines {
                    line = line.replacen(text.as_str(), &paint.styled(*style, text), 1);
                }
            }
            out += &line;
            out.push('\n');
        }
        out
    }

    fn render_rows(&self, width: usize, paint: TablePaint) -> String {
        let mut out = String::new();
        for (index, mut lines) in rows_as_lists(&self.table, width).into_iter().enumerate() {
            for (_, text, style) in self.paints.iter().filter(|(line, ..)| *line == index) {
                if let Some(line) = lines.iter_mut().find(|line| line.contains(text.as_str())) {
                    *line = line.replacen(text.as_str(), &paint.styled(*style, text), 1);
                }
            }
            out += &self.headings_above(index, width);
            out += &(lines.join("\n") + "\n");
        }
        out
    }

    fn headings_above(&self, body_line: usize, width: usize) -> String {
        let above = self.headings.iter().filter(|(line, _)| *line == body_line);
        above.flat_map(|(_, text)| wrap(text, width, "  ")).map(|line| format!("{line}\n")).collect()
    }
}

/// A table in lines of at most `width` columns: as it is where it fits, or else its rows as lists.
pub fn fitted(table: &Table, width: usize) -> String {
    let lines: Vec<String> = table.lines().map(|line| line.trim_end().to_owned()).collect();
    if lines.iter().all(|line| line.chars().count() <= width) {
        return lines.join("\n");
    }
    rows_as_lists(table, width).concat().join("\n")
}

/// Each row in lines: what its first column says, and below it the name of each other column with what stands there.
fn rows_as_lists(table: &Table, width: usize) -> Vec<Vec<String>> {
    let names: Vec<String> =
        table.header().map(|row| row.cell_iter().map(|cell| cell.content()).collect()).unwrap_or_default();
    let row_in_lines = |row: &comfy_table::Row| {
        let mut lines = Vec::new();
        for (index, cell) in row.cell_iter().enumerate() {
            let content = cell.content();
            match names.get(index) {
                // A name that stands in the row above already.
                _ if content.trim().is_empty() => {}
                Some(name) if index > 0 && !name.trim().is_empty() => {
                    let text = format!("{}: {content}", name.trim());
                    lines.extend(wrap(&text, width - 2, "  ").into_iter().map(|line| format!("  {line}")));
                }
                _ => lines.extend(wrap(&content, width, "  ")),
            }
        }
        lines
    };
    table.row_iter().map(row_in_lines).collect()
}

/// Words in lines of at most `width` columns, all but the first indented; a longer word has its own line.
pub fn wrap(text: &str, width: usize, indent: &str) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    let mut line = String::new();
    let mut words: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match words.last_mut() {
            // A number keeps its sign of percent.
            Some(last) if word.starts_with('%') => *last = format!("{last} {word}"),
            _ => words.push(word.to_owned()),
        }
    }
    for word in &words {
        let is_full = line.chars().count() + 1 + word.chars().count() > width;
        if is_full && !line.trim().is_empty() {
            lines.push(std::mem::replace(&mut line, indent.to_owned()));
        }
        if !line.trim().is_empty() {
            line.push(' ');
        }
        line += word;
    }
    lines.push(line);
    lines
}

#[derive(Clone, Copy)]
pub(super) struct TablePaint {
    pub(super) colour: bool,
}

impl TablePaint {
    fn with(self, code: &str, text: &str) -> String {
        if self.colour { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }

    fn styled(self, style: CellStyle, text: &str) -> String {
        match style {
            CellStyle::Dim => self.dim(text),
            CellStyle::Alarm => self.alarm(text),
        }
    }

    pub(super) fn bold(self, text: &str) -> String {
        self.with("1", text)
    }

    pub(super) fn dim(self, text: &str) -> String {
        self.with("2", text)
    }

    pub(super) fn alarm(self, text: &str) -> String {
        self.with("1;31", text)
    }
}
