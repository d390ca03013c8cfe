//! Finds the rate that a system sustains: judges a step at a rate, and chooses the next rate.
//!
//! The search is arithmetic on counts. The measuring code asks [`RateSearch::next`] for a rate, offers it for a while,
//! and reports the result; [`find_rate`] does this with runs.

mod find;
mod judge;
mod measure;

pub use find::{RateSearch, SearchAction, SearchEnding, SearchOutcome, SearchSpec, TriedStep};
pub use judge::{IntervalCounts, LatencyBound, StepCounts, StepVerdict, judge};
pub use measure::{FoundRate, StepTimes, find_rate};
