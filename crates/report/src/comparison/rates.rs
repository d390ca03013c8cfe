//! A workload at several offered rates: one series of steps, up to the rate that nothing holds back.

use underlay_record::{Cell, OfferedRate, RecordedWork, RequestWork};

use crate::comparison::{ComparisonRow, RunComparison};

/// The name for the rate of a closed loop, which has none.
pub const UNTHROTTLED: &str = "unthrottled";

/// The rows that differ by their offered rate alone, slowest first and the unthrottled one last.
#[derive(Debug)]
pub struct RateSeries<'a, 'c> {
    pub system: &'a str,
    /// The common label of the steps in tables: `a`, or `a, zipfian`.
    pub label: String,
    pub steps: Vec<&'c ComparisonRow<'a>>,
}

/// Every series of two steps or more, in the order of the comparison.
pub fn series<'a, 'c>(comparison: &'c RunComparison<'a>) -> Vec<RateSeries<'a, 'c>> {
    let mut all: Vec<RateSeries<'a, 'c>> = Vec::new();
    // A job has no rate, and a compaction that was forced is another workload. A rate that changes, or was looked for,
    // is no step either.
    let is_step = |cell: &Cell| {
        cell.requests().is_some_and(|requests| {
            requests.compacts_at.is_none()
                && matches!(requests.rate, OfferedRate::Steady { .. } | OfferedRate::Unthrottled)
        })
    };
    for row in comparison.operations().filter(|row| is_step(row.cell)) {
        match all.iter_mut().find(|one| is_same_but_for_rate(one.steps[0].cell, row.cell)) {
            Some(one) => one.steps.push(row),
            None => all.push(RateSeries {
                system: row.system,
                label: row.cell.label_without_rate(),
                steps: vec![row],
            }),
        }
    }
    all.retain(|one| one.steps.len() > 1);
    for one in &mut all {
        let rate = |row: &&ComparisonRow| row.cell.rate_per_s().unwrap_or(f64::INFINITY);
        one.steps.sort_by(|a, b| rate(a).total_cmp(&rate(b)));
    }
    all
}

fn is_same_but_for_rate(a: &Cell, b: &Cell) -> bool {
    let work = |cell: &Cell| match &cell.work {
        RecordedWork::Requests(requests) => {
            RecordedWork::Requests(RequestWork { rate: OfferedRate::Unthrottled, ..requests.clone() })
        }
        RecordedWork::Job(job) => RecordedWork::Job(job.clone()),
        RecordedWork::Benchmark(benchmark) => RecordedWork::Benchmark(benchmark.clone()),
    };
    a.system == b.system && a.data_bytes == b.data_bytes && work(a) == work(b)
}

/// A step's offered rate in words: `20,000/s`, or `unthrottled`.
pub fn offered(cell: &Cell) -> String {
    cell.rate_per_s().map_or(UNTHROTTLED.to_owned(), |rate| format!("{}/s", crate::quantity::rate(rate)))
}
