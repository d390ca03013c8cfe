//! The probes in their order, after SNIA's idea: reads on a laid-out device, writes from rest, then writes in rounds
//! until they are steady, and only then the points that count.

use std::time::Duration;

use super::profile::{
    BurstPoint, CachePoint, DeviceProfile, FlushPoint, LoadShape, ProbePoint, SteadyRounds,
};
use super::target::{ProbeLoad, ProbeTarget, TargetError};
use crate::predict::AccessPattern;

/// The campaign's next step.
#[derive(Clone, Debug, PartialEq)]
pub struct CampaignProgress {
    pub what: String,
    pub step: usize,
    pub steps: usize,
}

/// A campaign in progress.
pub struct ProbeCampaign<'a> {
    target: &'a mut dyn ProbeTarget,
    shape: &'a LoadShape,
    progress: &'a mut dyn FnMut(&CampaignProgress),
    step: usize,
    steps: usize,
    seed: u64,
}

const FLUSH_BLOCK_BYTES: u64 = 4096;
/// Writes from rest at each block size: few enough to find room in any buffer that deserves the name.
const BUFFERED_WRITES: u64 = 64;
const BUFFERED_BYTES: u64 = 4 << 20;
/// Rounds that have to agree, and by how much: SNIA's performance test specification asks that the largest and the
/// smallest of five lie within 20 % of their mean, and a line through them within 10 %.
const STEADY_ROUNDS: usize = 5;
const STEADY_RANGE: f64 = 0.2;
const STEADY_SLOPE: f64 = 0.1;

/// Probes a target in every way that `shape` asks, telling `progress` before each step.
///
/// # Errors
/// When a request fails or the user stops it.
pub fn profile(
    target: &mut dyn ProbeTarget,
    shape: &LoadShape,
    progress: &mut dyn FnMut(&CampaignProgress),
) -> Result<DeviceProfile, TargetError> {
    let mut campaign = ProbeCampaign { target, shape, progress, step: 0, steps: 0, seed: 0 };
    campaign.steps = campaign.count_steps();
    campaign.run()
}

impl ProbeCampaign<'_> {
    fn count_steps(&self) -> usize {
        let grid = |pattern| self.shape.grid(pattern).len();
        let cache = self.shape.working_sets(self.target.span_bytes()).len();
        let reads = grid(AccessPattern::RandomRead) + grid(AccessPattern::SequentialRead) + cache;
        let writes = grid(AccessPattern::RandomWrite) + grid(AccessPattern::SequentialWrite);
        // Buffered writes, bursts, two flushes, two series of rounds.
        let bursts = if self.shape.burst.is_zero() { 0 } else { 4 };
        let extra = self.shape.block_bytes.len() + bursts + 2 + 2;
        reads + if self.target.may_write() { writes + extra } else { 0 }
    }

    fn run(&mut self) -> Result<DeviceProfile, TargetError> {
        let mut profile = DeviceProfile { span_bytes: self.target.span_bytes(), ..DeviceProfile::default() };
        self.grid(AccessPattern::RandomRead, &mut profile)?;
        self.grid(AccessPattern::SequentialRead, &mut profile)?;
        self.read_cache(&mut profile)?;
        if self.target.may_write() {
            self.writes_after_rest(&mut profile)?;
            for pattern in [AccessPattern::SequentialWrite, AccessPattern::RandomWrite] {
                self.rounds(pattern, &mut profile)?;
                self.grid(pattern, &mut profile)?;
            }
        }
        Ok(profile)
    }

    fn tell(&mut self, activity: String) {
        self.step += 1;
        let progress = CampaignProgress { what: activity, step: self.step, steps: self.steps };
        (self.progress)(&progress);
    }

    /// A load over the whole span; every load has its own requests.
    fn load(&mut self, pattern: AccessPattern, block_bytes: u64, queue_depth: usize) -> ProbeLoad {
        self.seed += 1;
        ProbeLoad {
            pattern,
            block_bytes,
            queue_depth,
            first_byte: 0,
            span_bytes: self.target.span_bytes() / block_bytes * block_bytes,
            flush_every: 0,
            warmup: self.shape.warmup(),
            duration: self.shape.cell,
            most_requests: self.shape.most_requests,
            seed: self.seed,
        }
    }

    fn grid(&mut self, pattern: AccessPattern, profile: &mut DeviceProfile) -> Result<(), TargetError> {
        for (block_bytes, queue_depth, role) in self.shape.grid(pattern) {
            self.tell(format!("{} of {} at queue depth {queue_depth}", pattern.name(), size(block_bytes)));
            let load = self.load(pattern, block_bytes, queue_depth);
            let sample = self.target.run(&load)?;
            profile.points.push(ProbePoint::new(pattern, block_bytes, queue_depth, role, sample));
        }
        Ok(())
    }

    fn read_cache(&mut self, profile: &mut DeviceProfile) -> Result<(), TargetError> {
        for working_set_bytes in self.shape.working_sets(self.target.span_bytes()) {
            self.tell(format!("reads within {}", size(working_set_bytes)));
            let block_bytes = 64 << 10;
            let fill = ProbeLoad {
                span_bytes: working_set_bytes,
                warmup: Duration::ZERO,
                most_requests: working_set_bytes / block_bytes,
                ..self.load(AccessPattern::SequentialRead, block_bytes, 4)
            };
            self.target.run(&fill)?;
            let reread = ProbeLoad {
                span_bytes: working_set_bytes,
                duration: self.shape.cell / 2,
                ..self.load(AccessPattern::RandomRead, 4096, 1)
            };
            let latency = self.target.run(&reread)?.latency;
            profile.read_cache.push(CachePoint { working_set_bytes, latency });
        }
        Ok(())
    }

    /// Measures a write's cost while the buffer has room, that room, and a flush's cost.
    fn writes_after_rest(&mut self, profile: &mut DeviceProfile) -> Result<(), TargetError> {
        for block_bytes in self.shape.block_bytes.clone() {
            self.tell(format!("writes of {} from rest", size(block_bytes)));
            self.target.settle(self.shape.rest)?;
            let most_requests = BUFFERED_WRITES.min(BUFFERED_BYTES / block_bytes).max(2);
            let load = ProbeLoad {
                warmup: Duration::ZERO,
                most_requests,
                ..self.load(AccessPattern::RandomWrite, block_bytes, 1)
            };
            let sample = self.target.run(&load)?;
            profile.buffered_writes.push(ProbePoint::new(
                AccessPattern::RandomWrite,
                block_bytes,
                1,
                super::PointRole::Fitted,
                sample,
            ));
        }
        for (pattern, block_bytes) in
            [(AccessPattern::RandomWrite, 4096), (AccessPattern::SequentialWrite, 128 << 10)]
        {
            if self.shape.burst.is_zero() {
                break;
            }
            // A small buffer is seen in a short burst only, a large one in a long one.
            for duration in [self.shape.burst / 16, self.shape.burst] {
                self.tell(format!("a burst of {}", pattern.name()));
                self.target.settle(self.shape.rest)?;
                let queue_depth = 4;
                let load = ProbeLoad {
                    warmup: Duration::ZERO,
                    duration,
                    most_requests: u64::MAX,
                    ..self.load(pattern, block_bytes, queue_depth)
                };
                let sample = self.target.run(&load)?;
                let (slice_s, slices) = (sample.slice_s, sample.slices);
                profile.bursts.push(BurstPoint { pattern, block_bytes, queue_depth, slice_s, slices });
            }
        }
        for writes in [1, 64] {
            self.tell(format!("a flush after {writes} writes"));
            self.target.settle(self.shape.rest)?;
            let load = ProbeLoad {
                flush_every: writes,
                warmup: Duration::ZERO,
                ..self.load(AccessPattern::RandomWrite, FLUSH_BLOCK_BYTES, 1)
            };
            let sample = self.target.run(&load)?;
            let (write, flush) = (sample.latency, sample.flush);
            profile.flushes.push(FlushPoint { block_bytes: FLUSH_BLOCK_BYTES, writes, write, flush });
        }
        Ok(())
    }

    /// Writes until the last rounds agree.
    fn rounds(&mut self, pattern: AccessPattern, profile: &mut DeviceProfile) -> Result<(), TargetError> {
        self.tell(format!("{} until they are steady", pattern.name()));
        let queue_depth = self.shape.queue_depths.last().copied().unwrap_or(1);
        let block_bytes = if pattern.is_random() { 4096 } else { 128 << 10 };
        let mut rounds = SteadyRounds { pattern, iops: Vec::new(), steady: false };
        while !rounds.steady && rounds.iops.len() < self.shape.most_rounds {
            let load = ProbeLoad {
                warmup: Duration::ZERO,
                duration: self.shape.round,
                most_requests: self.shape.most_round_requests,
                ..self.load(pattern, block_bytes, queue_depth)
            };
            rounds.iops.push(self.target.run(&load)?.iops());
            rounds.steady = is_steady(&rounds.iops);
        }
        profile.rounds.push(rounds);
        Ok(())
    }
}

/// Whether the last rounds are of one size and go nowhere.
fn is_steady(rounds: &[f64]) -> bool {
    let Some(last) = rounds.len().checked_sub(STEADY_ROUNDS).map(|first| &rounds[first..]) else {
        return false;
    };
    let mean = last.iter().sum::<f64>() / STEADY_ROUNDS as f64;
    let (low, high) =
        last.iter().fold((f64::MAX, f64::MIN), |(low, high), &iops| (low.min(iops), high.max(iops)));
    // The least-squares line through equally spaced rounds.
    let middle = (STEADY_ROUNDS - 1) as f64 / 2.0;
    let (mut product, mut square) = (0.0, 0.0);
    for (round, iops) in last.iter().enumerate() {
        product += (round as f64 - middle) * (iops - mean);
        square += (round as f64 - middle).powi(2);
    }
    let rise = product / square * (STEADY_ROUNDS - 1) as f64;
    mean > 0.0 && high - low <= STEADY_RANGE * mean && rise.abs() <= STEADY_SLOPE * mean
}

/// `4 KiB`, `1 MiB`
fn size(bytes: u64) -> String {
    match bytes {
        _ if bytes.is_multiple_of(1 << 30) => format!("{} GiB", bytes >> 30),
        _ if bytes.is_multiple_of(1 << 20) => format!("{} MiB", bytes >> 20),
        _ => format!("{} KiB", bytes >> 10),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_are_steady_when_they_agree_and_go_nowhere() {
        assert!(!is_steady(&[100.0; 4]));
        assert!(is_steady(&[900.0, 100.0, 101.0, 99.0, 100.0, 100.0]));
        assert!(!is_steady(&[100.0, 100.0, 100.0, 100.0, 125.0]), "one round is off");
        assert!(!is_steady(&[106.0, 103.0, 100.0, 97.0, 94.0]), "still falling");
        assert!(!is_steady(&[0.0; 5]));
    }

    #[test]
    fn sizes_in_words() {
        assert_eq!([size(4096), size(1 << 20), size(4 << 30)], ["4 KiB", "1 MiB", "4 GiB"]);
    }
}
