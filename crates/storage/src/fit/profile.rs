//! The probes' results: the raw points that a medium is fitted to, and that are kept beside it.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use underlay_record::Histogram;

use super::target::LoadSample;
use crate::predict::AccessPattern;

/// The use of a point.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PointRole {
    /// The medium is made from it.
    Fitted,
    /// The medium has never seen it, and is judged by it.
    HeldOut,
}

/// One closed loop in the steady state.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ProbePoint {
    pub pattern: AccessPattern,
    pub block_bytes: u64,
    pub queue_depth: usize,
    pub role: PointRole,
    pub requests: u64,
    pub duration_s: f64,
    pub iops: f64,
    pub latency: Histogram,
    /// The prober was the limit: the figure is only a bound on the device.
    pub saturated: bool,
}

impl ProbePoint {
    /// Whether it can have been measured; a file of points may have been edited.
    pub(super) fn is_sound(&self) -> bool {
        let sized =
            (512..=1_000_000_000).contains(&self.block_bytes) && (1..=65_536).contains(&self.queue_depth);
        sized && self.requests > 0 && self.latency.count() > 0 && self.iops > 0.0 && self.iops.is_finite()
    }

    /// How many requests were in flight on the average (Little's law): less than the queue depth where the prober takes
    /// its time from an answer to the next request.
    pub(super) fn depth_reached(&self) -> f64 {
        (self.iops * self.latency.mean_us() / 1e6).clamp(0.0, self.queue_depth as f64)
    }

    /// That time of the prober's.
    pub(super) fn think(&self) -> Duration {
        let idle = (self.queue_depth as f64 - self.depth_reached()) / self.iops;
        // Less than a thousandth is rounding.
        if idle * self.iops < 1e-3 * self.queue_depth as f64 {
            return Duration::ZERO;
        }
        Duration::from_secs_f64(idle.clamp(0.0, 1e3))
    }

    pub(super) fn new(
        pattern: AccessPattern,
        block_bytes: u64,
        queue_depth: usize,
        role: PointRole,
        sample: LoadSample,
    ) -> ProbePoint {
        ProbePoint {
            pattern,
            block_bytes,
            queue_depth,
            role,
            requests: sample.requests,
            duration_s: sample.duration_s,
            iops: sample.iops(),
            saturated: sample.saturated,
            latency: sample.latency,
        }
    }
}

/// Writes from rest, and how fast they went from slice to slice.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BurstPoint {
    pub pattern: AccessPattern,
    pub block_bytes: u64,
    pub queue_depth: usize,
    pub slice_s: f64,
    /// Bytes answered in each slice.
    pub slices: Vec<u64>,
}

/// Random reads inside a working set that was read before.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CachePoint {
    pub working_set_bytes: u64,
    pub latency: Histogram,
}

/// A flush after some random writes, one at a time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FlushPoint {
    pub block_bytes: u64,
    /// Before each flush.
    pub writes: u64,
    pub write: Histogram,
    pub flush: Histogram,
}

/// Writes in rounds until they are steady, after SNIA.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SteadyRounds {
    pub pattern: AccessPattern,
    pub iops: Vec<f64>,
    /// The last rounds agreed; false when time ran out before.
    pub steady: bool,
}

/// All that was found of one device.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DeviceProfile {
    /// Bytes of the device or file that were probed.
    pub span_bytes: u64,
    pub points: Vec<ProbePoint>,
    /// Writes from rest at queue depth 1, by block size.
    pub buffered_writes: Vec<ProbePoint>,
    pub bursts: Vec<BurstPoint>,
    pub read_cache: Vec<CachePoint>,
    pub flushes: Vec<FlushPoint>,
    /// Sequential writes first, then random ones.
    pub rounds: Vec<SteadyRounds>,
}

/// How much is asked: the sizes, the depths, and how long.
#[derive(Clone, Debug, PartialEq)]
pub struct LoadShape {
    /// In rising order. Random reads, which tell most, are asked for at all combinations of size and depth.
    pub block_bytes: Vec<u64>,
    /// In rising order, from 1 on.
    pub queue_depths: Vec<usize>,
    /// Sizes and depths between those, that the fit never sees.
    pub held_out: Vec<(u64, usize)>,
    /// One point.
    pub cell: Duration,
    pub most_requests: u64,
    /// None at all when zero.
    pub burst: Duration,
    pub round: Duration,
    pub most_rounds: usize,
    pub most_round_requests: u64,
    /// Rest before what is measured from rest.
    pub rest: Duration,
    pub largest_working_set_bytes: u64,
}

const KIB: u64 = 1 << 10;

impl LoadShape {
    /// Two to three minutes.
    pub fn full() -> LoadShape {
        LoadShape {
            block_bytes: [4, 16, 64, 256, 1024].map(|kib| kib * KIB).to_vec(),
            queue_depths: vec![1, 2, 4, 8, 16, 32],
            held_out: [(4, 3), (4, 6), (4, 12), (4, 24), (8, 1), (32, 4), (128, 1), (128, 8)]
                .map(|(kib, depth)| (kib * KIB, depth))
                .to_vec(),
            cell: Duration::from_millis(900),
            most_requests: u64::MAX,
            burst: Duration::from_secs(4),
            round: Duration::from_millis(1500),
            most_rounds: 12,
            most_round_requests: u64::MAX,
            rest: Duration::from_millis(500),
            largest_working_set_bytes: 1 << 30,
        }
    }

    /// Half a minute, and coarser.
    pub fn quick() -> LoadShape {
        LoadShape {
            block_bytes: [4, 32, 256].map(|kib| kib * KIB).to_vec(),
            queue_depths: vec![1, 4, 8, 32],
            held_out: [(4, 16), (16, 1), (128, 2)].map(|(kib, depth)| (kib * KIB, depth)).to_vec(),
            cell: Duration::from_millis(500),
            burst: Duration::from_secs(2),
            round: Duration::from_secs(1),
            most_rounds: 8,
            rest: Duration::from_millis(200),
            largest_working_set_bytes: 64 << 20,
            ..LoadShape::full()
        }
    }

    /// The same with all spans `factor` times as long.
    #[must_use]
    pub fn stretched(&self, factor: f64) -> LoadShape {
        LoadShape {
            cell: self.cell.mul_f64(factor),
            burst: self.burst.mul_f64(factor),
            round: self.round.mul_f64(factor),
            rest: self.rest.mul_f64(factor),
            ..self.clone()
        }
    }

    /// At most how long the probes of it take.
    pub fn longest(&self, writes: bool) -> Duration {
        let points = |pattern| self.grid(pattern).len() as u32;
        let warmup_and_cell = self.cell + self.warmup();
        let reads = points(AccessPattern::RandomRead) + points(AccessPattern::SequentialRead);
        let cache = self.working_sets(u64::MAX).len() as u32;
        let mut longest = warmup_and_cell * reads + (warmup_and_cell + self.cell) * cache;
        if writes {
            let writes = points(AccessPattern::RandomWrite) + points(AccessPattern::SequentialWrite);
            let buffered = self.block_bytes.len() as u32;
            longest += warmup_and_cell * writes + (self.rest + self.cell) * (buffered + 2);
            longest += (self.burst + self.burst / 16 + self.rest * 2) * 2;
            longest += self.round * 2 * self.most_rounds as u32;
        }
        longest
    }

    pub(super) fn warmup(&self) -> Duration {
        self.cell / 6
    }

    /// The points of a load. Others than random reads are asked for at every second depth only, and at the deepest.
    pub(super) fn grid(&self, pattern: AccessPattern) -> Vec<(u64, usize, PointRole)> {
        let all = pattern == AccessPattern::RandomRead;
        let mut grid = Vec::new();
        for &block_bytes in &self.block_bytes {
            for (index, &queue_depth) in self.queue_depths.iter().enumerate() {
                if all || index % 2 == 0 || index + 1 == self.queue_depths.len() {
                    grid.push((block_bytes, queue_depth, PointRole::Fitted));
                }
            }
        }
        let held_out = self.held_out.iter().enumerate().filter(|(index, _)| all || index % 2 == 1);
        grid.extend(
            held_out.map(|(_, (block_bytes, queue_depth))| (*block_bytes, *queue_depth, PointRole::HeldOut)),
        );
        grid
    }

    pub(super) fn working_sets(&self, span_bytes: u64) -> Vec<u64> {
        let largest = self.largest_working_set_bytes.min(span_bytes);
        std::iter::successors(Some(256 * KIB), |bytes| Some(bytes * 4))
            .take_while(|bytes| *bytes <= largest)
            .collect()
    }
}
