//! A system's gauges while a batch job ran: its memory, and its network traffic.

use std::collections::BTreeSet;

use maud::{Markup, html};

use super::charts::{ChartLine, LineChart, thinned};
use super::drawing::{AltText, ChartAxis};
use super::{ReportPage, figure};
use crate::comparison::ComparisonRow;
use crate::quantity;

/// How gauges begin, in records.
const CURRENT: &str = "current_";
const MAX_POINTS: usize = 150;

/// A picture of each gauge, over the time of each of these jobs; empty where no system has one.
pub(super) fn gauges(page: &ReportPage, rows: &[&ComparisonRow]) -> Markup {
    let entries: Vec<(&ComparisonRow, Vec<&str>)> =
        rows.iter().map(|row| (*row, names(row))).filter(|(_, names)| !names.is_empty()).collect();
    html! {
        @if !entries.is_empty() {
            details {
                summary { "Memory and network over time" }
                p.muted.small { "Of the first repetition, in modelled seconds since the job began." }
                div.charts {
                    @for (row, names) in &entries {
                        @for name in names { (picture(page, row, name)) }
                    }
                }
            }
        }
    }
}

fn names<'a>(row: &ComparisonRow<'a>) -> Vec<&'a str> {
    let samples = row
        .cells
        .iter()
        .flatten()
        .filter_map(|result| result.completed().next())
        .flat_map(|record| &record.system_series);
    let names: BTreeSet<&str> =
        samples.flat_map(|sample| sample.figures.keys()).map(String::as_str).collect();
    names.into_iter().collect()
}

fn picture(page: &ReportPage, row: &ComparisonRow, name: &str) -> Markup {
    let mut lines = Vec::new();
    for (series, result) in row.cells.iter().enumerate() {
        let Some(record) = result.as_ref().and_then(|result| result.completed().next()) else { continue };
        let points: Vec<(f64, f64)> = record
            .system_series
            .iter()
            .filter_map(|sample| Some((sample.t_s, *sample.figures.get(name)?)))
            .collect();
        if !points.is_empty() {
            let storage = Some(page.comparison.storages[series].to_owned());
            lines.push(ChartLine { series, name: storage, points: thinned(&points, MAX_POINTS) });
        }
    }
    let last = lines.iter().flat_map(|line| &line.points).map(|point| point.0).fold(0.0, f64::max);
    if last <= 0.0 {
        return html! {};
    }
    let (title, unit) = words(name);
    let caption = ReportPage::caption(row, &title);
    let number = |value: f64| quantity::number(value, 3);
    let label: &dyn Fn(f64) -> String = if unit.starts_with("bytes") { &quantity::bytes } else { &number };
    let svg = LineChart {
        words: AltText { title: &caption, description: "One line a storage, while the job ran." },
        y_title: unit,
        x_title: "seconds",
        lines: &lines,
        x: ChartAxis { low: 0.0, high: last, is_log: false },
        x_ticks: Vec::new(),
        is_log: false,
        y_high: None,
        width: 520,
        height: 220,
        label,
    }
    .draw();
    html! { div { (figure(&caption, svg)) } }
}

/// `current_link_to_store_bytes_per_s`: "link to store", "bytes per second".
fn words(name: &str) -> (String, &'static str) {
    let name = name.strip_prefix(CURRENT).unwrap_or(name);
    let units = [("_bytes_per_s", "bytes per second"), ("_bytes", "bytes")];
    let found = units.iter().find_map(|(suffix, unit)| Some((name.strip_suffix(suffix)?, *unit)));
    let (title, unit) = found.unwrap_or((name, "number"));
    (title.replace('_', " "), unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gauge_is_shown_with_unit() {
        let words = |name| {
            let (title, unit) = words(name);
            format!("{title}, {unit}")
        };
        assert_eq!(words("current_link_to_store_bytes_per_s"), "link to store, bytes per second");
        assert_eq!(words("current_store_resident_bytes"), "store resident, bytes");
        assert_eq!(words("compactions_running"), "compactions running, number");
    }
}
