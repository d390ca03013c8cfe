//! A cell's devices, and their activity.

use std::collections::BTreeMap;
use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::disturbed_by::DisturbedBy;
use crate::histogram::Histogram;
use crate::inputs::DeviceInputs;

/// Which device it is: unique among those of a cell.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub struct DeviceId {
    /// The server that it is a part of, from 1; absent where there is one, and of devices that servers share.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server: Option<u32>,
    /// The role of the system that has it for itself: `wal`, `metadata`. Absent where it belongs to the storage under
    /// test.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<String>,
    /// `hdd-7200-sata.0`, or the path of a real one.
    pub name: String,
}

impl DeviceId {
    /// A device of the storage under test, of the only server or of none.
    pub fn new(name: impl Into<String>) -> Self {
        DeviceId { name: name.into(), ..DeviceId::default() }
    }
}

/// `ssd.0`, `server 2: wal: ssd.0`.
impl fmt::Display for DeviceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(server) = self.server {
            write!(f, "server {server}: ")?;
        }
        if let Some(role) = &self.role {
            write!(f, "{role}: ")?;
        }
        f.write_str(&self.name)
    }
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct DeviceDescription {
    #[serde(flatten)]
    pub id: DeviceId,
    /// The catalogue's name; absent for a real path.
    pub medium: Option<String>,
    /// As sold, unscaled.
    pub capacity_bytes: Option<u64>,
    pub price_usd: Option<f64>,
    /// The price is three years' rent, and buys nothing. Records of earlier versions don't say so.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_rented: bool,
    /// Whether it was modelled as written all over before it was first used, which is what garbage collection needs to
    /// have work. Absent of real devices, and in records of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub starts_overwritten: Option<bool>,
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
    /// Absent on real storage, and on media that don't wear.
    #[serde(default)]
    pub wear: Option<FlashWear>,
    /// How far what is known of its medium carries what was asked of it; absent on real storage, and of devices of a
    /// pool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inputs: Option<DeviceInputs>,
    /// Its injected faults.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub faults: Vec<FaultRecord>,
    /// Its faults since the cell's storage was attached that were over when the measurement began.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub earlier_faults: Vec<EarlierFault>,
}

/// A fault that a device had, or the cut of its power.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct FaultRecord {
    /// From the start of the measurement, in modelled seconds; 0 when it was there before.
    pub t_s: f64,
    /// Absent when it was still there at the end.
    pub until_s: Option<f64>,
    /// `slow: everything takes 10 times as long`
    pub what: String,
    /// Who asked for it; absent in records of versions that did not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<DisturbedBy>,
    /// The study asked for it, and somebody took it off by hand.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub ended_by_hand: bool,
}

/// A fault that was over when the measurement began. Times are modelled.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct EarlierFault {
    pub what: String,
    pub by: DisturbedBy,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub ended_by_hand: bool,
    /// The device did all that it was asked, later than it would have.
    pub only_slows: bool,
    pub lasted_s: f64,
    /// How long before the measurement it ended.
    pub ended_before_s: f64,
}

impl EarlierFault {
    /// Whether what it left behind has been worked off: it only slowed the device, and as much time has passed since as
    /// it lasted.
    pub fn has_passed(&self) -> bool {
        self.only_slows && self.ended_before_s >= self.lasted_s
    }
}

/// The wear of flash since the measurement began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct FlashWear {
    /// Asked for by the host, in whole units of mapping.
    pub host_write_bytes: u64,
    /// Programmed into flash: the host's and what garbage collection moved.
    pub programmed_bytes: u64,
    /// Blocks erased, each of one die.
    pub erased_blocks: u64,
    /// Programmed bytes for each of the host's; absent when the host wrote nothing.
    pub write_amplification: Option<f64>,
    /// The host writes that the maker warrants for the drive's life.
    pub rated_write_bytes: Option<u64>,
    /// How long that lasts at the rate seen, in days of modelled time; absent when the host wrote nothing.
    pub life_days: Option<f64>,
}

impl FlashWear {
    /// The difference since `earlier`, over so much modelled time.
    pub fn delta_since(&self, earlier: &FlashWear, duration_s: f64) -> FlashWear {
        let host_write_bytes = self.host_write_bytes.saturating_sub(earlier.host_write_bytes);
        let programmed_bytes = self.programmed_bytes.saturating_sub(earlier.programmed_bytes);
        let wrote = host_write_bytes > 0;
        let write_amplification = wrote.then(|| programmed_bytes as f64 / host_write_bytes as f64);
        let life_days = self
            .rated_write_bytes
            .filter(|_| wrote)
            .map(|rated| rated as f64 / host_write_bytes as f64 * duration_s / 86_400.0);
        FlashWear {
            host_write_bytes,
            programmed_bytes,
            erased_blocks: self.erased_blocks.saturating_sub(earlier.erased_blocks),
            write_amplification,
            rated_write_bytes: self.rated_write_bytes,
            life_days,
        }
    }
}

impl LayerActivity {
    /// `data.cache.0`, `server 2: data.cache.0`
    pub fn title(&self) -> String {
        self.server.map_or(self.name.clone(), |server| format!("server {server}: {}", self.name))
    }
}

/// A layer's activity during a measurement, and its state at the end.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LayerActivity {
    /// The server that it is a part of, from 1; absent where there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server: Option<u32>,
    /// `data.cache.0`
    pub name: String,
    /// `mirror`, `compress` or `cache`.
    pub kind: String,
    /// `read_hits`, `stored_bytes`, `degraded`: by the kind of the layer.
    pub figures: BTreeMap<String, f64>,
}
