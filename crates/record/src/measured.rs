//! The load generator's measurements.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::histogram::{Histogram, LatencySummary};
use crate::integrity::IntegrityRecord;
use crate::pauses::{Pauses, StoppedProcess};

/// A distribution of latencies, with its summary in microseconds for readers that decode no histograms.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RecordedLatency {
    pub us: LatencySummary,
    pub histogram: Histogram,
}

impl RecordedLatency {
    pub fn new(histogram: Histogram) -> Self {
        RecordedLatency { us: histogram.summary_us(), histogram }
    }
}

/// One kind of operation: `read`, `update`, `insert`, `scan`, `read-modify-write`, `delete`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct OperationStats {
    pub count: u64,
    /// Answered that no such record exists.
    pub missing: u64,
    /// Refused by the system because of load.
    pub throttled: u64,
    pub errors: u64,
    /// Records whose values were not what was written; not among the errors.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub mismatches: u64,
    /// From the intended start: what a user waits. In a closed loop it is the service time.
    pub latency: RecordedLatency,
    /// From the actual start.
    pub service: RecordedLatency,
}

fn is_zero(count: &u64) -> bool {
    *count == 0
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SeriesPoint {
    /// The interval's end, from the start of the measurement.
    pub t_s: f64,
    pub operations: u64,
    pub throughput_per_s: f64,
    pub mean_us: f64,
    pub p50_us: f64,
    pub p99_us: f64,
    pub max_us: f64,
}

/// The system's own gauges at one time.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SystemSample {
    /// From the start of the measurement.
    pub t_s: f64,
    /// How many there were at that time: `major_compactions_running`.
    pub figures: BTreeMap<String, f64>,
}

/// The generator's own cost: is the figure the system's or ours?
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct GeneratorCost {
    /// CPU time of the load generator's process over wall time: 1.0 is one core.
    pub cpu_cores: f64,
    /// CPU time of everything on the machine over wall time and cores: 1.0 is a machine without idle time.
    pub machine_busy: f64,
    /// The highest rate that the generator reached here with a system that does nothing.
    pub ceiling_per_s: Option<f64>,
    /// Open loop: how late operations were sent because of the generator itself, in modelled time.
    pub lateness_p99_us: Option<f64>,
    /// How long its process stood still in the window; of several hosts, the worst. Absent in older records.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pauses: Option<Pauses>,
}

impl GeneratorCost {
    /// How many times the measured throughput it must be able to offer: below that, it may be what was measured.
    pub const MIN_HEADROOM: f64 = 2.0;
    /// Its own lateness may be this part of the p99 latency ...
    const LATENESS_PART: f64 = 0.1;
    /// ... or this, which a busy timer needs.
    const LATENESS_US: f64 = 100.0;

    /// How many times a throughput it could have offered; absent where that was not measured.
    pub fn headroom(&self, throughput_per_s: f64) -> Option<f64> {
        self.ceiling_per_s.map(|ceiling| ceiling / throughput_per_s.max(f64::MIN_POSITIVE))
    }

    /// Whether a lateness of its own is too large beside a p99 latency.
    pub fn is_too_late(lateness_us: f64, p99_us: f64) -> bool {
        lateness_us > (GeneratorCost::LATENESS_PART * p99_us).max(GeneratorCost::LATENESS_US)
    }
}

/// A second stream of operations beside the measured one, as a writer of a fixed rate beside readers.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct BesideMeasured {
    /// YCSB's, or shares of one's own: `update100`.
    pub mix: String,
    pub threads: u32,
    /// The requested rate; absent for as many as the system answers.
    pub rate_per_s: Option<f64>,
    pub operations: u64,
    pub errors: u64,
    pub throughput_per_s: f64,
    pub by_operation: BTreeMap<String, OperationStats>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct MeasuredWindow {
    /// Modelled seconds.
    pub duration_s: f64,
    pub wall_s: f64,
    pub operations: u64,
    pub errors: u64,
    pub throughput_per_s: f64,
    /// All kinds of operation together.
    pub latency: RecordedLatency,
    pub by_operation: BTreeMap<String, OperationStats>,
    pub series: Vec<SeriesPoint>,
    pub generator: GeneratorCost,
    /// The background load, which is in none of the figures above; absent without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub beside: Option<BesideMeasured>,
    /// Absent where values were not checked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub integrity: Option<IntegrityRecord>,
    /// Whether it was ended before its time: the figures are of the part until then.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub stopped: bool,
    /// Of `underlay ycsb`: other processes that were stopped meanwhile, on all hosts. Empty where none was; a study's
    /// record has them among its pauses.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stopped_processes: Vec<StoppedProcess>,
    /// The first few errors, word for word.
    pub error_samples: Vec<String>,
}
