//! Benchmarks of the user's: each figure on each storage.

use super::{CellStyle, TableLayout, TablePaint, certificate_mark, reason_not_measured, state_of, wrap};
use crate::cell::benchmark::NamedFigure;
use crate::comparison::{CellOutcome, CellResult, ComparisonRow, RunComparison, work_title};
use crate::findings::warnings;
use crate::quantity::{self, ABSENT};
use crate::statistics::ratio::RatioDifference;
use underlay_record::BetterDirection;

/// Everything about benchmarks; empty where there are none.
pub(super) fn text(comparison: &RunComparison, width: usize, paint: TablePaint) -> String {
    let mut out = String::new();
    let rows: Vec<&ComparisonRow> = comparison.benchmarks().collect();
    if rows.is_empty() {
        return out;
    }
    for row in &rows {
        let heading = match comparison.systems.len() {
            0 | 1 => work_title(row.cell),
            _ => format!("{}, {}", comparison.system_title(row.system), work_title(row.cell)),
        };
        out.push('\n');
        for line in wrap(&heading, width, "") {
            out += &format!("{}\n", paint.bold(&line));
        }
        let whole = table(comparison, row, true);
        let layout = if whole.width() <= width { whole } else { table(comparison, row, false) };
        out += &layout.render(width, paint);
        for result in row.cells.iter().flatten() {
            for phase in result.benchmark().map_or(&[][..], |one| &one.meanwhile) {
                let text = format!("{}: {}", result.cell.storage, phase.describe());
                for line in wrap(&text, width - 2, "  ") {
                    out += &format!("  {line}\n");
                }
            }
            // The table says what is still to come.
            let is_pending = matches!(result.outcome, CellOutcome::Pending);
            if let Some(reason) = reason_not_measured(result).filter(|_| !is_pending) {
                let text = format!("{}: {reason}", warnings::cell_name(comparison, result));
                for line in wrap(&text, width - 2, "  ") {
                    out += &format!("  {line}\n");
                }
            }
        }
    }
    for line in wrap(&words_on_repetitions(&rows, comparison.baseline), width, "") {
        out += &format!("{}\n", paint.dim(&line));
    }
    out
}

/// How sure figures are, and what `against` means, in words.
pub(crate) fn words_on_repetitions(rows: &[&ComparisonRow], baseline: &str) -> String {
    let counts: Vec<usize> = rows
        .iter()
        .flat_map(|row| row.cells.iter().flatten())
        .filter_map(|result| result.benchmark())
        .map(|one| one.repetitions)
        .collect();
    let (low, high) = (counts.iter().min().copied().unwrap_or(0), counts.iter().max().copied().unwrap_or(0));
    let runs = match (low, high) {
        (_, 0) => return "No benchmark has completed.".to_owned(),
        (_, 1) => {
            "Each benchmark ran once, so there are no intervals: how far a second run would differ is unknown."
                .to_owned()
        }
        (low, high) if low == high => {
            format!("Means of {low} runs each, with 95 % intervals from their spread.")
        }
        (low, high) => format!("Means of {low} to {high} runs each, with 95 % intervals from their spread."),
    };
    format!("{runs} Above 1 is better than on {baseline}, whichever direction a figure has.")
}

/// The names of a row's figures with an example of each, in the study's order.
pub(crate) fn figures_of<'r>(row: &'r ComparisonRow) -> Vec<&'r NamedFigure> {
    let mut found: Vec<&'r NamedFigure> = Vec::new();
    for result in row.cells.iter().flatten() {
        for figure in result.benchmark().map(|one| one.figures.as_slice()).unwrap_or_default() {
            if !found.iter().any(|other| other.name == figure.name) {
                found.push(figure);
            }
        }
    }
    found
}

/// `throughput, higher is better`
pub(crate) fn direction(figure: &NamedFigure) -> String {
    let better = match figure.better {
        BetterDirection::Higher => "higher",
        BetterDirection::Lower => "lower",
    };
    format!("{}, {better} is better", figure.title())
}

fn table(comparison: &RunComparison, row: &ComparisonRow, with_intervals: bool) -> TableLayout {
    let against = format!("against {}", comparison.baseline);
    let header = ["storage", "value", against.as_str(), "verdict"].map(str::to_owned);
    let mut layout = TableLayout::new(&header);
    let mut line = 0;
    for (position, figure) in figures_of(row).into_iter().enumerate() {
        layout.headings.push((line, direction(figure)));
        let base = baseline_value(comparison, row, &figure.name);
        for result in row.cells.iter().flatten() {
            let ours = result.benchmark().and_then(|one| one.named(&figure.name));
            let mut fields = vec![result.cell.storage.clone()];
            match ours {
                Some(ours) => {
                    fields.push(ours.describe());
                    let is_baseline = result.cell.storage == comparison.baseline;
                    let ratio = match base.filter(|_| !is_baseline).and_then(|base| without_ratio(ours, base))
                    {
                        Some(words) => words,
                        None => ratio_field(ours, is_baseline, with_intervals),
                    };
                    if ours.performance.is_some_and(|ratio| ratio.difference() == RatioDifference::NoneSeen) {
                        layout.paints.push((line, ratio.clone(), CellStyle::Dim));
                    }
                    fields.push(ratio);
                }
                None => fields.extend([missing(result), ABSENT.to_owned()]),
            }
            // It is one verdict for all figures of a cell.
            let mark = match position {
                0 => certificate_mark(result),
                _ => String::new(),
            };
            if position == 0 && (result.is_doubtful() || result.can_turn) {
                layout.paints.push((line, mark.clone(), CellStyle::Alarm));
            }
            fields.push(mark);
            layout.table.add_row(fields);
            line += 1;
        }
    }
    if line == 0 {
        for result in row.cells.iter().flatten() {
            let state = state_of(&result.outcome).to_owned();
            let storage = result.cell.storage.clone();
            layout.table.add_row(vec![storage, state, ABSENT.to_owned(), String::new()]);
        }
    }
    layout.finish(&[0, 3]);
    layout
}

/// The baseline's figure of this name.
pub(crate) fn baseline_value<'r>(
    comparison: &RunComparison,
    row: &'r ComparisonRow,
    name: &str,
) -> Option<&'r NamedFigure> {
    row.benchmark(comparison.baseline_index()?)?.named(name)
}

/// The text where one of the two is 0, which has no multiple: `the same`, or the other one's value.
pub(crate) fn without_ratio(ours: &NamedFigure, base: &NamedFigure) -> Option<String> {
    let write = |figure: &NamedFigure| quantity::format_with_unit(figure.value.value, &figure.unit);
    match (ours.value.value, base.value.value) {
        (a, b) if a == 0.0 && b == 0.0 => Some("the same".to_owned()),
        (a, b) if a == 0.0 || b == 0.0 => Some(format!("{} instead of {}", write(ours), write(base))),
        _ => None,
    }
}

fn missing(result: &CellResult) -> String {
    match result.benchmark() {
        Some(_) => ABSENT.to_owned(),
        None => state_of(&result.outcome).to_owned(),
    }
}

fn ratio_field(figure: &NamedFigure, is_baseline: bool, with_intervals: bool) -> String {
    match (&figure.performance, is_baseline) {
        (_, true) => "baseline".to_owned(),
        (None, _) => ABSENT.to_owned(),
        (Some(ratio), _) => match ratio.interval {
            Some(interval) if with_intervals => {
                format!("{} ({})", ratio.verdict(), quantity::ratio_interval(interval))
            }
            Some(_) => ratio.verdict(),
            None => quantity::ratio(ratio.value),
        },
    }
}
