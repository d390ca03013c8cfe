//! The search for the highest rate that keeps to a latency.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// One step: a rate that was offered for a while.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SearchStep {
    pub rate_per_s: f64,
    /// Operations whose time came, and how many of them were answered within the step.
    pub due: u64,
    pub answered: u64,
    pub errors: u64,
    /// How many took longer than each bound allows.
    pub beyond: Vec<u64>,
    /// `holds`, `undecided`, or why it fails.
    pub verdict: String,
    /// It tried the rate that was found again.
    pub confirms: bool,
}

/// How a rate was looked for. The cell was then measured at it; where none was found the cell failed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SearchRecord {
    /// `p99 within 10 ms`.
    pub bounds: Vec<String>,
    /// The highest rate that held, in operations per second; absent where even the lowest that may be tried fails.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub holds_per_s: Option<f64>,
    /// The lowest one above it that failed; absent where the highest that may be tried holds.
    pub fails_per_s: Option<f64>,
    /// Why that one failed.
    pub reason: Option<String>,
    /// How many of the steps that tried the rate again held, of `confirmations`.
    pub confirmed: u32,
    pub confirmations: u32,
    /// False where the steps were used up before the rate was known as nearly as was asked.
    pub is_closed: bool,
    pub steps: Vec<SearchStep>,
}
