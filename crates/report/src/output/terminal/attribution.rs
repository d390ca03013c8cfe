//! Each cell's bottleneck, a sentence each.

use underlay_record::RunExplanation;

use super::layout::{TablePaint, wrap};
use crate::comparison::RunComparison;
use crate::findings::warnings;

/// Cells to list; the page has them all.
const TOLD: usize = 8;

/// Empty where nothing is explained.
pub(super) fn text(
    comparison: &RunComparison,
    explained: &RunExplanation,
    width: usize,
    paint: TablePaint,
) -> String {
    let bottlenecks: Vec<(String, String)> = comparison
        .operations()
        .flat_map(|row| row.cells.iter().flatten())
        .filter_map(|result| {
            let words = match explained.find_cell(&result.cell.id) {
                Some(found) => found.bottleneck.clone(),
                None => format!("not explained: {}", explained.unsound(&result.cell.id)?.why),
            };
            Some((warnings::cell_name(comparison, result), words))
        })
        .collect();
    if bottlenecks.is_empty() {
        return String::new();
    }
    let mut out = format!("\n{}\n", paint.bold("Where the time goes"));
    for (name, bottleneck) in bottlenecks.iter().take(TOLD) {
        for line in wrap(&format!("{name}: {bottleneck}"), width - 2, "  ") {
            out += &format!("  {line}\n");
        }
    }
    if bottlenecks.len() > TOLD {
        let more = match bottlenecks.len() - TOLD {
            1 => "1 more is".to_owned(),
            several => format!("{several} more are"),
        };
        let more = format!("{more} on the page; `underlay explain` prints them all.");
        for line in wrap(&more, width - 2, "  ") {
            out += &format!("  {line}\n");
        }
    }
    out
}
