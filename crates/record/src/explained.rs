//! Where the time of a run's operations went: found by simulating each measured cell, shown by `underlay explain` and
//! the report.

use schemars::JsonSchema;
use serde::Serialize;

use crate::soundness::UnsoundReason;

/// A figure with the interval that it is in with a probability of 95 %. A missing bound is infinite, and `null` in
/// JSON.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, JsonSchema)]
pub struct EstimatedValue {
    #[schemars(with = "Option<f64>")]
    pub value: f64,
    #[schemars(with = "Option<f64>")]
    pub low: f64,
    #[schemars(with = "Option<f64>")]
    pub high: f64,
}

/// Where the time of an operation went, in modelled microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, JsonSchema)]
pub struct TimeShares {
    pub device_service_us: f64,
    pub device_queueing_us: f64,
    pub network_us: f64,
    pub cpu_us: f64,
    pub cpu_waiting_us: f64,
    /// Until a client thread was free; only where operations arrive by themselves.
    pub client_waiting_us: f64,
}

impl TimeShares {
    pub fn total_us(&self) -> f64 {
        self.device_service_us
            + self.device_queueing_us
            + self.network_us
            + self.cpu_us
            + self.cpu_waiting_us
            + self.client_waiting_us
    }
}

/// One figure of a cell, and what it is made of, in modelled microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, JsonSchema)]
pub struct TimeAccount {
    pub measured_us: f64,
    #[serde(flatten)]
    pub shares: TimeShares,
    /// Time that layers take themselves: 0, since what a cache asks of its devices is theirs, and no layer that
    /// computes is modelled.
    pub layers_us: f64,
    /// The time that the simulation does not explain; negative where operations wait longer in it than they did.
    pub unexplained_us: f64,
}

/// With more of a figure than this outside of what is simulated, or simulated and not measured, nobody knows what more
/// of something would change.
const MAX_UNEXPLAINED_SHARE: f64 = 1.0 / 3.0;

/// A simulation whose operations take so many times as long as measured is as good as it gets.
const WORTH_A_WORD: f64 = 1.02;

impl TimeAccount {
    /// Of the measured figure.
    pub fn unexplained_share(&self) -> f64 {
        self.unexplained_us / self.measured_us.max(1e-9)
    }

    /// The whole of all shares: the measured figure, or the simulated one where that is longer, so that no share is
    /// above one.
    pub fn whole_us(&self) -> f64 {
        (self.measured_us - self.unexplained_us.min(0.0)).max(1e-9)
    }

    /// A part as a share of the whole; what is unexplained is no less than nothing of it.
    pub fn share(&self, us: f64) -> f64 {
        let share = us / self.whole_us();
        if share.is_finite() { share.clamp(0.0, 1.0) } else { 0.0 }
    }

    /// How many times as long the simulation has operations take as they did, where that is worth a word.
    pub fn overrun(&self) -> Option<f64> {
        let times = 1.0 - self.unexplained_share();
        (times > WORTH_A_WORD).then_some(times)
    }

    /// Whether it says what a change would make of the figure.
    pub fn carries_what_if(&self) -> bool {
        self.unexplained_share().abs() <= MAX_UNEXPLAINED_SHARE
    }

    /// Whether its parts say what the figure is made of: not where they are more than the whole. A percentile between
    /// two kinds of operations that differ a thousand times may be either.
    pub fn has_parts(&self) -> bool {
        self.unexplained_share() >= -MAX_UNEXPLAINED_SHARE
    }
}

/// The effect of one change.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct WhatIf {
    /// `a device twice as fast`
    pub change: String,
    /// Absent where it is not answered.
    pub throughput_per_s: Option<EstimatedValue>,
    pub mean_us: Option<EstimatedValue>,
    /// Absent too where too much of the p99 is unexplained.
    pub p99_us: Option<EstimatedValue>,
    /// Throughput over the measured one; of an offered rate the measured mean latency over the new one.
    pub gain: Option<EstimatedValue>,
    pub refused: Option<String>,
}

/// A measured cell, explained.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct CellExplanation {
    pub cell: String,
    pub throughput_per_s: f64,
    pub mean: TimeAccount,
    pub p50: TimeAccount,
    pub p99: TimeAccount,
    /// As measured, of the busiest device.
    pub device_busy: f64,
    /// As simulated; absent where the cores are not known.
    pub cpu_busy: Option<f64>,
    pub reads_per_operation: f64,
    /// One sentence.
    pub bottleneck: String,
    pub what_if: Vec<WhatIf>,
}

/// A measured cell that can't be explained.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct NotExplained {
    pub cell: String,
    pub why: String,
    /// The flaw of the measurement; absent for other reasons, such as a storage without a model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unsound: Option<UnsoundReason>,
}

/// The part of a run to explain.
#[derive(Clone, Debug, Default, PartialEq, Serialize, JsonSchema)]
pub struct RunExplanation {
    pub cells: Vec<CellExplanation>,
    pub refused: Vec<NotExplained>,
}

impl RunExplanation {
    pub fn find_cell(&self, cell: &str) -> Option<&CellExplanation> {
        self.cells.iter().find(|one| one.cell == cell)
    }

    /// Why a cell is not explained whose measurement does not hold.
    pub fn unsound(&self, cell: &str) -> Option<&NotExplained> {
        self.refused.iter().find(|one| one.cell == cell && one.unsound.is_some())
    }
}
