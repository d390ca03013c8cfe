//! Measurements of a load, prepared for requests of any size at any depth.

use std::collections::VecDeque;

use rand::{Rng, RngExt};

use crate::catalogue::{MeasuredLoad, MeasuredParameters, MeasuredService};
use crate::media::draw::QuantileDistribution;

/// Between which measured block sizes a request's size lies.
#[derive(Clone, Copy, Debug)]
pub(super) struct BlockSizeBracket {
    lower: usize,
    upper: usize,
    /// How far it is from the lower to the upper, on a logarithm of size.
    part: f64,
    /// Against queue depth 1, what the device's bandwidth lets through at most.
    most: f64,
}

/// Of one load, by block size.
#[derive(Clone, Debug)]
pub(super) struct LoadModel {
    sizes: Vec<MeasuredSize>,
    /// At which what is beyond the largest block follows; absent where two sizes show what a larger one takes.
    bytes_per_ns: Option<f64>,
}

#[derive(Clone, Debug)]
struct MeasuredSize {
    block_bytes: f64,
    latency: QuantileDistribution,
    mean_ns: f64,
    /// Work done in a unit of time against queue depth 1, from depth 1 on.
    speeds: Vec<f64>,
    /// Between two requests at the depth at which it is fastest.
    fastest_ns: f64,
}

/// No queue is deeper.
const DEEPEST: f64 = 4096.0;
/// A request that takes no time would have no rate.
const MIN_NS: f64 = 1.0;

impl MeasuredSize {
    fn new(service: &MeasuredService) -> MeasuredSize {
        let latency = QuantileDistribution::from_us(&service.latency_us);
        let mean_ns = latency.mean_ns().max(MIN_NS);
        let (speeds, fastest_ns) = match &service.iops {
            None => (vec![1.0], mean_ns),
            Some(iops) => {
                let deepest = iops.points.last().map_or(1.0, |point| point.0).clamp(1.0, DEEPEST) as usize;
                let first = iops.logarithmic_at(1.0);
                let speeds: Vec<f64> =
                    (1..=deepest).map(|depth| iops.logarithmic_at(depth as f64) / first).collect();
                let fastest = speeds.iter().copied().fold(f64::MIN, f64::max) * first;
                (speeds, 1e9 / fastest)
            }
        };
        MeasuredSize { block_bytes: f64::from(service.block_bytes), latency, mean_ns, speeds, fastest_ns }
    }

    fn speed(&self, depth: usize) -> f64 {
        self.speeds[(depth.max(1) - 1).min(self.speeds.len() - 1)]
    }
}

impl LoadModel {
    /// Of the load, or of the nearest that was measured.
    pub(super) fn new(parameters: &MeasuredParameters, load: MeasuredLoad) -> LoadModel {
        use MeasuredLoad::{BufferedWrite, RandomRead, RandomWrite, SequentialRead, SequentialWrite};
        let nearest: &[MeasuredLoad] = match load {
            RandomRead => &[RandomRead],
            SequentialRead => &[SequentialRead, RandomRead],
            RandomWrite => &[RandomWrite, RandomRead],
            SequentialWrite => &[SequentialWrite, RandomWrite, SequentialRead, RandomRead],
            BufferedWrite => &[BufferedWrite, RandomWrite, RandomRead],
        };
        let found =
            nearest.iter().map(|load| parameters.service_of(*load)).find(|services| !services.is_empty());
        let found = found.unwrap_or_default();
        let sizes: Vec<MeasuredSize> = found.iter().copied().map(MeasuredSize::new).collect();
        let stated = found.last().and_then(|service| service.mb_s.as_ref()).map(|mb_s| mb_s.value / 1e3);
        let bytes_per_ns = stated.or(match &sizes[..] {
            // A device that answers so many blocks moves at least as many bytes.
            [only] => Some(only.block_bytes / only.fastest_ns),
            _ => None,
        });
        LoadModel { sizes, bytes_per_ns }
    }

    pub(super) fn blocks(&self, length_bytes: u64) -> BlockSizeBracket {
        let length = length_bytes as f64;
        let after = self.sizes.partition_point(|size| size.block_bytes <= length);
        let last = self.sizes.len() - 1;
        if after == 0 || after > last {
            let index = after.min(last);
            return BlockSizeBracket { lower: index, upper: index, part: 0.0, most: self.most(length_bytes) };
        }
        let (lower, upper) = (self.sizes[after - 1].block_bytes, self.sizes[after].block_bytes);
        BlockSizeBracket {
            lower: after - 1,
            upper: after,
            part: (length / lower).ln() / (upper / lower).ln(),
            most: f64::INFINITY,
        }
    }

    /// How much longer than blocks of the largest size measured a larger request takes: as bandwidth says, or the line
    /// through the last two sizes.
    fn beyond(&self, length_bytes: u64, value_of: impl Fn(&MeasuredSize) -> f64) -> f64 {
        let length = length_bytes as f64;
        match (&self.sizes[..], self.bytes_per_ns) {
            ([.., last], _) if length <= last.block_bytes => 1.0,
            ([.., last], Some(bytes_per_ns)) => {
                1.0 + (length - last.block_bytes) / bytes_per_ns / value_of(last)
            }
            ([.., before, last], None) => {
                let slope = (value_of(last) - value_of(before)) / (last.block_bytes - before.block_bytes);
                1.0 + slope.max(0.0) * (length - last.block_bytes) / value_of(last)
            }
            ([_], None) | ([], _) => 1.0,
        }
    }

    /// How many times the work of queue depth 1 is done where bandwidth bounds it: several large requests share it.
    fn most(&self, length_bytes: u64) -> f64 {
        match (&self.sizes[..], self.bytes_per_ns) {
            ([.., last], Some(bytes_per_ns)) if length_bytes as f64 > last.block_bytes => {
                let alone_ns = last.mean_ns * self.beyond(length_bytes, |size| size.mean_ns);
                (alone_ns / (length_bytes as f64 / bytes_per_ns)).max(1.0)
            }
            _ => f64::INFINITY,
        }
    }

    fn between(&self, blocks: BlockSizeBracket, value_of: impl Fn(&MeasuredSize) -> f64) -> f64 {
        let (lower, upper) = (value_of(&self.sizes[blocks.lower]), value_of(&self.sizes[blocks.upper]));
        if blocks.lower == blocks.upper {
            return lower;
        }
        (lower.ln() * (1.0 - blocks.part) + upper.ln() * blocks.part).exp()
    }

    /// The work of a request, in nanoseconds at queue depth 1.
    pub(super) fn draw_ns(&self, blocks: BlockSizeBracket, length_bytes: u64, random: &mut impl Rng) -> f64 {
        let share: f64 = random.random();
        let drawn = self.between(blocks, |size| size.latency.quantile_ns(share).max(MIN_NS));
        drawn * self.beyond(length_bytes, |size| size.mean_ns)
    }

    pub(super) fn speed(&self, blocks: BlockSizeBracket, depth: usize) -> f64 {
        let (lower, upper) = (self.sizes[blocks.lower].speed(depth), self.sizes[blocks.upper].speed(depth));
        (lower + (upper - lower) * blocks.part).min(blocks.most)
    }

    /// From one request to the next at the depth at which most are answered.
    pub(super) fn fastest_ns(&self, blocks: BlockSizeBracket, length_bytes: u64) -> f64 {
        self.between(blocks, |size| size.fastest_ns) * self.beyond(length_bytes, |size| size.fastest_ns)
    }

    /// Whether more depths than the first were measured.
    pub(super) fn has_depths(&self) -> bool {
        self.sizes.iter().any(|size| size.speeds.len() > 1)
    }
}

/// Streams that the model tells apart.
const STREAMS: usize = 32;

/// Where the latest requests ended, latest first.
#[derive(Clone, Debug, Default)]
pub(super) struct RecentStreams {
    ends: VecDeque<u64>,
}

impl RecentStreams {
    /// Whether a request begins where one of the latest ended; it is the latest from now on.
    pub(super) fn goes_on(&mut self, first_byte: u64, length_bytes: u64) -> bool {
        let found = self.ends.iter().position(|end| *end == first_byte);
        if let Some(index) = found {
            self.ends.remove(index);
        }
        self.ends.truncate(STREAMS - 1);
        self.ends.push_front(first_byte + length_bytes);
        found.is_some()
    }
}
