//! What the devices of a cell are and did.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::histogram::Histogram;

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct DeviceDescription {
    /// `hdd-7200-sata.0`, or the path of a real one.
    pub name: String,
    /// The catalogue's name; absent for a real path.
    pub medium: Option<String>,
    /// As sold, unscaled.
    pub capacity_bytes: Option<u64>,
    pub price_usd: Option<f64>,
    /// When and where the price was taken.
    pub price_source: Option<String>,
}

/// Sums since the measurement began. Latencies run in modelled time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct DeviceTotals {
    pub reads: u64,
    pub writes: u64,
    pub flushes: u64,
    pub discards: u64,
    pub read_bytes: u64,
    pub write_bytes: u64,
    /// Time during which at least one request was under way.
    pub busy_us: f64,
    /// The integral of the queue depth over time: divided by the time it is the mean depth.
    pub queue_us: f64,
}

/// The same over one interval, as rates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct DeviceSample {
    /// The interval's end, from the start of the measurement.
    pub t_s: f64,
    pub read_iops: f64,
    pub write_iops: f64,
    pub read_bytes_per_s: f64,
    pub write_bytes_per_s: f64,
    pub queue_depth: f64,
    /// 0 to 1.
    pub busy: f64,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct DeviceActivity {
    pub description: DeviceDescription,
    pub duration_s: f64,
    pub totals: DeviceTotals,
    pub series: Vec<DeviceSample>,
    /// Latency that the model asked for; absent on real storage.
    pub modelled: Option<Histogram>,
    /// Latency from the request's arrival to its reply; absent on real storage.
    pub delivered: Option<Histogram>,
}
