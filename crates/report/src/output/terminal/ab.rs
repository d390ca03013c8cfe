//! Two runs beside each other, for a terminal.

use super::{CELLS_NAMED, CellStyle, MIN, TableLayout, TablePaint, wrap};
use crate::comparison::ab::{AbComparison, cell_name};
use crate::quantity::{self, ABSENT};

/// The sentence, the table, how the runs differ and what to know, in lines of at most `width` columns. Colour as in
/// [`comparison`](super::comparison).
pub fn text(ab: &AbComparison, width: usize, colour: bool) -> String {
    let (width, paint) = (width.max(MIN), TablePaint { colour });
    let mut out = String::new();
    for (letter, (name, started_at)) in ["A", "B"].iter().zip(ab.names.iter().zip(&ab.started_at)) {
        out += &format!("{letter}  {name}, started {started_at}\n");
    }
    out.push('\n');
    for line in wrap(&ab.sentence(), width, "") {
        out += &format!("{}\n", paint.bold(&line));
    }
    if ab.figures().next().is_some() {
        // The intervals stay longest: a verdict says what p comes to.
        let tables = [(true, true), (true, false), (false, false)];
        let mut layouts = tables.map(|(intervals, p)| table(ab, intervals, p)).into_iter();
        let fitting = layouts.find(|layout| layout.width() <= width);
        let layout = fitting.unwrap_or_else(|| table(ab, false, false));
        out.push('\n');
        out += &layout.render(width, paint);
        let note = "p is corrected for the number of figures (Holm): the chance that even one of them is called a difference and is \
                    none stays below 5 %. Intervals of B : A are each figure's own.";
        for line in wrap(note, width - 2, "") {
            out += &format!("  {}\n", paint.dim(&line));
        }
    }
    let lists = [
        ("How the runs differ", &ab.differences),
        ("Not compared", &ab.left_out),
        ("Worth knowing", &ab.cautions),
    ];
    for (heading, lines) in lists {
        if lines.is_empty() {
            continue;
        }
        out += &format!("\n{}\n", paint.bold(heading));
        let shown = if heading == "Not compared" { 2 * CELLS_NAMED } else { lines.len() };
        for text in lines.iter().take(shown) {
            for (index, line) in wrap(text, width - 3, "").into_iter().enumerate() {
                out += &format!(" {} {line}\n", if index == 0 { "-" } else { " " });
            }
        }
        if lines.len() > shown {
            out += &format!("   and {} more\n", lines.len() - shown);
        }
    }
    out
}

/// The figures of each cell below its name.
fn table(ab: &AbComparison, with_intervals: bool, with_p: bool) -> TableLayout {
    let mut header = ["figure", "A", "B", "B : A", "verdict"].map(str::to_owned).to_vec();
    if with_p {
        header.insert(4, "p".to_owned());
    }
    let mut layout = TableLayout::new(&header);
    let mut line = 0;
    for cell in &ab.cells {
        let mark = if cell.is_doubtful { "! " } else { "" };
        layout.headings.push((line, format!("{mark}{}", cell_name(cell, ab))));
        for figure in &cell.figures {
            let interval = figure.ratio.interval.filter(|_| with_intervals);
            let ratio = match interval {
                Some(interval) => {
                    format!(
                        "{} ({})",
                        quantity::ratio(figure.ratio.value),
                        quantity::ratio_interval(interval)
                    )
                }
                None => quantity::ratio(figure.ratio.value),
            };
            let verdict = figure.change().describe();
            if !figure.change().is_certain() {
                layout.paints.push((line, verdict.to_owned(), CellStyle::Dim));
            }
            let mut fields = vec![
                figure.metric.describe().to_owned(),
                figure.metric.value_in_words(figure.a.value),
                figure.metric.value_in_words(figure.b.value),
                ratio,
            ];
            if with_p {
                fields.push(figure.corrected.map_or(ABSENT.to_owned(), probability));
            }
            fields.push(verdict.to_owned());
            layout.table.add_row(fields);
            line += 1;
        }
    }
    layout.finish(&[0, header.len() - 1]);
    layout
}

/// `0.034`, or `<0.001`.
pub(crate) fn probability(p: f64) -> String {
    match p {
        small if small < 0.001 => "<0.001".to_owned(),
        large if large >= 0.995 => "1".to_owned(),
        other => quantity::number(other, 2),
    }
}
