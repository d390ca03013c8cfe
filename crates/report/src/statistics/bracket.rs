//! The uncertainty of a rate that was looked for.

use underlay_record::{RunRecord, SearchRecord};

use super::StandardError;

/// How well a rate between one that holds and one that fails is known: as a standard error, with every rate between the
/// two as likely. Repetitions try the same rates, so more of them make it no smaller.
///
/// None where no rate was looked for, or none failed.
pub fn bracket_error(records: &[&RunRecord]) -> Option<StandardError> {
    let width = |record: &SearchRecord| Some(record.fails_per_s? - record.holds_per_s?);
    let searches = records.iter().filter_map(|record| record.search.as_ref());
    let widest = searches.filter_map(width).reduce(f64::max)?;
    // That of a uniform distribution over the width.
    Some(StandardError { value: widest.max(0.0) / 12f64.sqrt(), degrees_of_freedom: f64::INFINITY })
}
