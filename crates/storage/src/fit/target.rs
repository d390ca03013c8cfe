//! Targets of probes, and the loads.

use std::time::Duration;

use underlay_record::Histogram;

use crate::predict::AccessPattern;

/// A closed loop on a part of the device, bounded in time and in number.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ProbeLoad {
    pub pattern: AccessPattern,
    pub block_bytes: u64,
    pub queue_depth: usize,
    /// The part: from here, `span_bytes` long.
    pub first_byte: u64,
    pub span_bytes: u64,
    /// A flush after this many writes, which is timed apart; 0 for never. Only at queue depth 1.
    pub flush_every: u64,
    /// Requests answered before this are not measured.
    pub warmup: Duration,
    pub duration: Duration,
    /// The load ends earlier when this many requests were measured.
    pub most_requests: u64,
    pub seed: u64,
}

/// In this many slices of the load's duration a [`LoadSample`] counts bytes.
pub const SLICES: usize = 200;

/// A load's result, in the target's own time: for a slowed-down device the factor is divided out.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LoadSample {
    pub latency: Histogram,
    /// Of the flushes of `flush_every`.
    pub flush: Histogram,
    pub requests: u64,
    /// The measured span.
    pub duration_s: f64,
    /// Bytes answered in each slice, those of the warm-up left out.
    pub slices: Vec<u64>,
    /// How long a slice is.
    pub slice_s: f64,
    /// The prober itself was the limit: the device can do as much, and perhaps more.
    pub saturated: bool,
}

impl LoadSample {
    pub fn iops(&self) -> f64 {
        if self.duration_s > 0.0 { self.requests as f64 / self.duration_s } else { 0.0 }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum TargetError {
    /// The user asked to stop.
    #[error("stopped")]
    Stopped,
    #[error("{0}")]
    Failed(String),
}

/// A device that can be probed.
pub trait ProbeTarget {
    /// Bytes that may be probed, from the first on.
    fn span_bytes(&self) -> u64;

    fn may_write(&self) -> bool;

    /// Runs a load from an idle device to its end; nothing of it is in flight afterwards.
    ///
    /// # Errors
    /// When a request fails, or when the user stops it.
    fn run(&mut self, load: &ProbeLoad) -> Result<LoadSample, TargetError>;

    /// Flushes, and leaves the device alone for a while, so that what it does behind its back is done.
    ///
    /// # Errors
    /// As `run`.
    fn settle(&mut self, pause: Duration) -> Result<(), TargetError>;
}
