//! Rates that were looked for: the highest that keeps to a latency, as each repetition found it.

use underlay_record::SearchRecord;

use crate::comparison::{CellResult, ComparisonRow, RunComparison};
use crate::quantity;

/// The workloads whose rate was looked for.
pub(crate) fn rows<'c, 'a>(comparison: &'c RunComparison<'a>) -> Vec<&'c ComparisonRow<'a>> {
    comparison.operations().filter(|row| row.cell.rate_within().is_some()).collect()
}

/// The workload's name without what is looked for.
pub(crate) fn label(row: &ComparisonRow) -> String {
    row.cell.label_without_rate()
}

/// Each repetition's result, with its number. Those too that found no rate to hold, and so have nothing else.
pub(crate) fn list_searches<'a>(result: &CellResult<'a>) -> Vec<(u32, &'a SearchRecord)> {
    let records = result.records.iter().copied();
    records.filter_map(|record| Some((record.repetition, record.search.as_ref()?))).collect()
}

/// `12,000/s holds, 12,300/s fails`
pub(crate) fn bracket_in_words(record: &SearchRecord) -> String {
    let per_s = |rate: f64| format!("{}/s", quantity::rate(rate));
    match (record.holds_per_s, record.fails_per_s) {
        (Some(highest), Some(fails)) => format!("{} holds, {} fails", per_s(highest), per_s(fails)),
        (Some(highest), None) => format!("{} holds, the highest in the range", per_s(highest)),
        (None, Some(fails)) => format!("none holds: {} fails, the lowest that was tried", per_s(fails)),
        (None, None) => "none holds".to_owned(),
    }
}

/// How the search ended: `confirmed 3 of 3`, and what it did not come to.
pub(crate) fn ending_in_words(record: &SearchRecord) -> String {
    if record.holds_per_s.is_none() {
        return "nothing to try again".to_owned();
    }
    let confirmed = match record.confirmations {
        0 => "not tried again".to_owned(),
        all => format!("confirmed {} of {all}", record.confirmed),
    };
    if record.is_closed { confirmed } else { format!("{confirmed}, ran out of steps") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(fails_per_s: Option<f64>) -> SearchRecord {
        SearchRecord {
            holds_per_s: Some(12_000.0),
            fails_per_s,
            confirmed: 2,
            confirmations: 3,
            is_closed: fails_per_s.is_some(),
            ..SearchRecord::default()
        }
    }

    #[test]
    fn search_summary_reads_well() {
        let closed = record(Some(12_300.0));
        assert_eq!(bracket_in_words(&closed), "12,000/s holds, 12,300/s fails");
        assert_eq!(ending_in_words(&closed), "confirmed 2 of 3");
        let open = record(None);
        assert_eq!(bracket_in_words(&open), "12,000/s holds, the highest in the range");
        assert_eq!(ending_in_words(&open), "confirmed 2 of 3, ran out of steps");
        let none = SearchRecord { holds_per_s: None, ..record(Some(26.8)) };
        assert_eq!(bracket_in_words(&none), "none holds: 26.8/s fails, the lowest that was tried");
        assert_eq!(ending_in_words(&none), "nothing to try again");
    }
}
