//! Price against latency, drawn with characters.

use underlay_report::quantity;

/// A place in the picture.
pub(super) struct PictureMark {
    pub usd: f64,
    pub p99_us: f64,
    pub letter: char,
}

const ROWS: usize = 14;
const LEFT: usize = 10;

/// Both axes are logarithmic; the bound is a line. Empty where there is nothing to draw.
pub(super) fn draw(marks: &[PictureMark], bound_us: f64, columns: usize) -> String {
    let columns = columns.clamp(40, 100) - LEFT - 2;
    let finite: Vec<&PictureMark> =
        marks.iter().filter(|mark| mark.usd > 0.0 && mark.p99_us > 0.0 && mark.p99_us.is_finite()).collect();
    if finite.is_empty() {
        return String::new();
    }
    let range = |values: &mut dyn Iterator<Item = f64>| {
        let (low, high) =
            values.fold((f64::INFINITY, 0.0f64), |(low, high), value| (low.min(value), high.max(value)));
        (low.ln() - 0.1, high.ln() + 0.1)
    };
    let (left, right) = range(&mut finite.iter().map(|mark| mark.usd));
    let (bottom, top) = range(&mut finite.iter().map(|mark| mark.p99_us).chain([bound_us]));
    let place = |value: f64, low: f64, high: f64, cells: usize| {
        (((value.ln() - low) / (high - low) * (cells - 1) as f64).round().max(0.0) as usize).min(cells - 1)
    };
    let mut rows = vec![vec![' '; columns]; ROWS];
    let line = ROWS - 1 - place(bound_us, bottom, top, ROWS);
    rows[line].fill('-');
    for mark in &finite {
        let row = ROWS - 1 - place(mark.p99_us, bottom, top, ROWS);
        let column = place(mark.usd, left, right, columns);
        // The first, which is the cheaper one of the better kind, keeps a place that two would have.
        if matches!(rows[row][column], ' ' | '-') {
            rows[row][column] = mark.letter;
        }
    }
    let mut text = String::from("p99\n");
    for (index, row) in rows.iter().enumerate() {
        let label = match index {
            _ if index == line => quantity::latency(bound_us),
            0 => quantity::latency(top.exp()),
            _ if index == ROWS - 1 => quantity::latency(bottom.exp()),
            _ => String::new(),
        };
        let row: String = row.iter().collect();
        text += &format!("{label:>width$} |{}\n", row.trim_end(), width = LEFT - 1);
    }
    text += &format!("{:>width$} +{}\n", "", "-".repeat(columns), width = LEFT - 1);
    let (from, to) = (quantity::dollars(left.exp()), quantity::dollars(right.exp()));
    let gap = columns.saturating_sub(from.chars().count() + to.chars().count());
    text += &format!("{:>width$}  {from}{}{to}\n", "", " ".repeat(gap), width = LEFT - 1);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn picture_letters_are_placed_and_bound_is_a_line() {
        let mark = |usd, p99_us, letter| PictureMark { usd, p99_us, letter };
        let marks =
            [mark(100.0, 20_000.0, 'x'), mark(1_000.0, 500.0, 'A'), mark(9_000.0, f64::INFINITY, 'z')];
        let text = draw(&marks, 10_000.0, 80);
        let row = |letter: char| text.lines().position(|line| line.contains(letter)).unwrap();
        let line = text.lines().position(|line| line.contains("---") && line.contains("10 ms")).unwrap();
        assert!(row('x') < line && line < row('A'), "{text}");
        assert!(!text.contains('z'), "{text}");
        assert_eq!(draw(&[], 1.0, 80), "");
    }
}
