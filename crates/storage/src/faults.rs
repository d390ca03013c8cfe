//! Faults: what goes wrong with a device while a program uses it.
//!
//! A fault is put on a device and taken off it again, by the device's name, on a [`crate::stack::Stack`] that
//! serves. Everything random about it comes from its seed: the same requests in the same order meet the same
//! fault. A power cut is an event and no state; see [`PowerCut`].

mod device;
mod model;
mod power;

use std::time::Duration;

use serde::{Deserialize, Serialize};
use underlay_record::DisturbedBy;

use crate::device::DeviceRequest;
use crate::medium::ModelOperation;
use crate::time::ModelTime;

pub use device::FaultyDevice;
pub(crate) use device::PowerCutArming;
pub(crate) use model::{FaultyModel, ModelFaults};
pub use power::WriteSurvival;

/// Longer than any drive's own retries, and shorter than what would look like a hang for good.
const MAX_SPIKE_US: f64 = 3600e6;
const MAX_FACTOR: f64 = 1e6;

/// A device's faults.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum DeviceFault {
    /// Requests fail with an I/O error, after the time that they would have taken. A write that fails is not there.
    Errors {
        /// Empty for all of them.
        #[serde(default)]
        operations: Vec<ModelOperation>,
        /// The share of the requests that fail: 1 is all.
        rate: f64,
        /// Only requests that touch these bytes; a flush touches none.
        #[serde(default)]
        extent: Option<ByteExtent>,
        seed: u64,
    },
    /// Reads silently return data with one wrong bit. The stored data stays as it is.
    Corrupt {
        /// The share of the reads that it strikes: 1 is all.
        rate: f64,
        /// Only reads that touch these bytes, and only bits of these.
        #[serde(default)]
        extent: Option<ByteExtent>,
        seed: u64,
    },
    /// Requests take longer than their medium's own time.
    Spikes {
        #[serde(default)]
        operations: Vec<ModelOperation>,
        rate: f64,
        latency_us: f64,
        seed: u64,
    },
    /// The device does everything this many times slower.
    Slow { factor: f64 },
    /// The device is gone: requests fail at once, those in flight too. Its data is there when it returns.
    Vanish,
    /// The pool that a thin device takes its space from is empty: a write to a block that holds nothing finds no space.
    /// Existing data can be read, overwritten and discarded.
    Full,
    /// The device lies: it answers flushes, and writes that must not rest in its buffer, but leaves
    /// everything in the buffer. It shows at the next power cut.
    IgnoreFlushes,
}

/// Bytes from `start_bytes` to `end_bytes`, that one not included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ByteExtent {
    pub start_bytes: u64,
    pub end_bytes: u64,
}

/// How the power is cut: which of the writes that no flush covered are found on the device afterwards.
///
/// In every choice, writes that a completed flush covers and completed FUA writes are there, and so are all completed
/// ones where the medium keeps its write buffer (`power_loss_protection`, a write cache of nothing). Each block of 4096
/// bytes is old or new.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PowerCut {
    pub seed: u64,
    /// A write of several blocks may be there in part.
    #[serde(default)]
    pub torn: bool,
    /// Any of the unflushed writes may be missing. Otherwise those are which completed last.
    #[serde(default)]
    pub reordered: bool,
}

/// Names a fault on a stack, to take it off again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct FaultId(pub u64);

/// A fault in force.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ActiveFault {
    pub id: FaultId,
    pub fault: DeviceFault,
    /// How long it has been there, in modelled seconds.
    pub for_s: f64,
}

/// A device and what is wrong with it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DeviceFaults {
    pub device: String,
    pub medium: Option<String>,
    pub capacity_bytes: u64,
    /// Whether its power can be cut: see [`crate::stack::DeviceSpec::power_cut_armed`].
    pub power_cut_armed: bool,
    pub powered: bool,
    /// It is elsewhere, where its faults are too.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_remote: bool,
    pub faults: Vec<ActiveFault>,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FaultError {
    #[error("there is no device '{name}': expected one of {}", known.join(", "))]
    UnknownDevice { name: String, known: Vec<String> },
    #[error("{0}")]
    Senseless(String),
    #[error(
        "an extent from {start_bytes}: {device} ends at {capacity_bytes} bytes, so no request would meet the fault; expected a start below that"
    )]
    BeyondTheEnd { device: String, start_bytes: u64, capacity_bytes: u64 },
    #[error("{device} has no medium, so {fault} has no times to change")]
    Timeless { device: String, fault: &'static str },
    #[error(
        "{device} is not armed for power cuts: mount the storage with --power-cut (or, in a study, give it a \
         power-cut fault), so that the old data under unflushed writes is kept from the start"
    )]
    NotArmed { device: String },
    #[error("{device} is served by another program: put the fault on one of that program's own devices")]
    Elsewhere { device: String },
    #[error("{device} is already without power")]
    NoPower { device: String },
    #[error(
        "the power can't come back while the storage runs: its layers ({}) kept what they know of the devices \
             in memory, and the cut took that too. Detach the storage and attach it again: what is on the \
             devices is read from them",
        layers.join(", ")
    )]
    LayersLost { layers: Vec<String> },
    #[error("the power of {device} was cut, but its backing could not be written: {problem}")]
    Backing { device: String, problem: String },
}

impl DeviceFault {
    /// Whether the fault has a meaning.
    ///
    /// # Errors
    /// When it has none, in words that name the key.
    pub fn check(&self) -> Result<(), FaultError> {
        let senseless = |text: String| Err(FaultError::Senseless(text));
        match self {
            DeviceFault::Errors { rate, .. }
            | DeviceFault::Corrupt { rate, .. }
            | DeviceFault::Spikes { rate, .. }
                if !(*rate > 0.0 && *rate <= 1.0) =>
            {
                senseless(format!(
                    "a rate of {rate}: expected more than 0 and at most 1, where 1 is every request"
                ))
            }
            DeviceFault::Errors { extent: Some(ByteExtent { start_bytes, end_bytes }), .. }
            | DeviceFault::Corrupt { extent: Some(ByteExtent { start_bytes, end_bytes }), .. }
                if start_bytes >= end_bytes =>
            {
                senseless(format!(
                    "an extent from {start_bytes} to {end_bytes}: expected its end after its start"
                ))
            }
            DeviceFault::Spikes { latency_us, .. } if !(*latency_us > 0.0 && *latency_us <= MAX_SPIKE_US) => {
                senseless(format!(
                    "a latency of {latency_us} us: expected more than zero and at most an hour"
                ))
            }
            DeviceFault::Slow { factor } if !(*factor > 1.0 && *factor <= MAX_FACTOR) => {
                senseless(format!("a factor of {factor}: expected more than 1 and at most {MAX_FACTOR}"))
            }
            _ => Ok(()),
        }
    }

    /// The range of bytes that it is confined to, if it is.
    pub fn extent(&self) -> Option<ByteExtent> {
        match self {
            DeviceFault::Errors { extent, .. } | DeviceFault::Corrupt { extent, .. } => *extent,
            DeviceFault::Spikes { .. } | DeviceFault::Slow { .. } => None,
            DeviceFault::Vanish | DeviceFault::Full | DeviceFault::IgnoreFlushes => None,
        }
    }

    /// `errors`, `spikes` ... as a study and the command line write it.
    pub fn name(&self) -> &'static str {
        match self {
            DeviceFault::Errors { .. } => "errors",
            DeviceFault::Corrupt { .. } => "corrupt",
            DeviceFault::Spikes { .. } => "spikes",
            DeviceFault::Slow { .. } => "slow",
            DeviceFault::Vanish => "vanish",
            DeviceFault::Full => "full",
            DeviceFault::IgnoreFlushes => "ignore-flushes",
        }
    }

    /// Whether it is the model's time that changes, and not what is answered.
    fn is_of_time(&self) -> bool {
        matches!(self, DeviceFault::Spikes { .. } | DeviceFault::Slow { .. })
    }
}

impl std::fmt::Display for DeviceFault {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            DeviceFault::Errors { operations, rate, extent, .. } => {
                write!(formatter, "errors: {}", share_that(*rate, operations, ["fails", "fail"]))?;
                write_extent(formatter, *extent)
            }
            DeviceFault::Corrupt { rate, extent, .. } => {
                match *rate >= 1.0 {
                    true => write!(formatter, "corrupts: every read has a wrong bit")?,
                    false => write!(formatter, "corrupts: {} % of reads have a wrong bit", percent(*rate))?,
                }
                write_extent(formatter, *extent)
            }
            DeviceFault::Spikes { operations, rate, latency_us, .. } => {
                let latency = Duration::from_nanos((latency_us * 1e3) as u64);
                write!(
                    formatter,
                    "spikes: {} {latency:?} longer",
                    share_that(*rate, operations, ["takes", "take"])
                )
            }
            DeviceFault::Slow { factor } => {
                write!(formatter, "slow: everything takes {factor} times as long")
            }
            DeviceFault::Vanish => formatter.write_str("vanished: every request fails"),
            DeviceFault::IgnoreFlushes => {
                formatter.write_str("ignores flushes: they are answered but not carried out")
            }
            DeviceFault::Full => formatter.write_str("full: no space for blocks that hold nothing yet"),
        }
    }
}

fn write_extent(formatter: &mut std::fmt::Formatter<'_>, extent: Option<ByteExtent>) -> std::fmt::Result {
    match extent {
        Some(ByteExtent { start_bytes, end_bytes }) => {
            write!(formatter, " in bytes {start_bytes} to {end_bytes}")
        }
        None => Ok(()),
    }
}

/// A share in percent, to a millionth.
fn percent(share: f64) -> f64 {
    (share * 1e8).round() / 1e6
}

/// `every read and write fails`, `1 % of requests fail`: a share of operations, and what is with one of them and with
/// several.
fn share_that(rate: f64, operations: &[ModelOperation], [one, several]: [&str; 2]) -> String {
    let is_every = rate >= 1.0;
    let name = |operation: &ModelOperation| match (operation_name(*operation), is_every) {
        (name, true) => name.to_owned(),
        ("flush", false) => "flushes".to_owned(),
        (name, false) => format!("{name}s"),
    };
    let names: Vec<String> = operations.iter().map(name).collect();
    match (names.as_slice(), is_every) {
        ([], true) => format!("every request {one}"),
        ([], false) => format!("{} % of requests {several}", percent(rate)),
        (names, true) => format!("every {} {one}", names.join(" and ")),
        (names, false) => format!("{} % of {} {several}", percent(rate), names.join(" and ")),
    }
}

fn operation_name(operation: ModelOperation) -> &'static str {
    match operation {
        ModelOperation::Read => "read",
        ModelOperation::Write => "write",
        ModelOperation::Flush => "flush",
        ModelOperation::Discard => "discard",
    }
}

fn operation_of(request: &DeviceRequest) -> ModelOperation {
    match request {
        DeviceRequest::Read { .. } => ModelOperation::Read,
        DeviceRequest::Write { .. } => ModelOperation::Write,
        DeviceRequest::Flush => ModelOperation::Flush,
        DeviceRequest::Discard { .. } => ModelOperation::Discard,
    }
}

fn is_among(operation: ModelOperation, operations: &[ModelOperation]) -> bool {
    operations.is_empty() || operations.contains(&operation)
}

/// Something that was done to a device, for the record of a measurement.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct FaultEvent {
    pub at: ModelTime,
    pub until: Option<ModelTime>,
    pub what: String,
    pub by: DisturbedBy,
    /// Somebody ended by hand what was not begun so.
    pub ended_by_hand: bool,
    /// The device did all that it was asked, later than it would have.
    pub only_slows: bool,
}
