//! How good a fit is: every point asked of the fitted medium in virtual time, and set beside what was measured.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use underlay_record::Histogram;

use super::demerit::{DistributionDistance, distance};
use super::profile::{DeviceProfile, PointRole, ProbePoint};
use super::target::{LoadSample, ProbeLoad, ProbeTarget, TargetError};
use super::virtual_target::VirtualTarget;
use crate::catalogue::CatalogueMedium;
use crate::medium::ModelOperation;
use crate::predict::AccessPattern;
use crate::stack::InitialState;

/// One point: what was measured and what the fitted medium gives.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PointScore {
    pub pattern: AccessPattern,
    pub block_bytes: u64,
    pub queue_depth: usize,
    pub role: PointRole,
    /// The prober was the limit: a model that is faster is not wrong.
    pub bound: bool,
    pub requests: u64,
    pub measured_iops: f64,
    pub modelled_iops: f64,
    pub measured_p50_us: f64,
    pub modelled_p50_us: f64,
    pub measured_p99_us: f64,
    pub modelled_p99_us: f64,
    /// Of the modelled latencies from the measured ones.
    pub distance: DistributionDistance,
}

/// How many requests it takes for ten to lie beyond the 99th percentile.
const ENOUGH_FOR_P99: u64 = 1000;
/// A point needs no more than this.
const MAX_REQUESTS: u64 = 10_000;
/// Requests before the first that counts: by then a queue has found its order.
const WARMUP_SHARE: f64 = 0.2;
const WARMUP_REQUESTS: f64 = 2_000.0;
/// How many times its size a buffer is filled with: it drains meanwhile.
const FILLS: f64 = 10.0;
const MAX_FILL_REQUESTS: u64 = 2_000_000;

impl PointScore {
    /// Of the mean latency, which in a closed loop is that of the throughput; zero for a bound that is kept.
    pub fn mean_error(&self) -> f64 {
        if self.bound && self.modelled_iops >= self.measured_iops { 0.0 } else { self.distance.mean }
    }

    pub fn p50_error(&self) -> f64 {
        if self.bound && self.modelled_iops >= self.measured_iops { 0.0 } else { self.distance.p50 }
    }

    /// `None` where too few requests were measured for one.
    pub fn p99_error(&self) -> Option<f64> {
        let keeps_bound = self.bound && self.modelled_iops >= self.measured_iops;
        (self.requests >= ENOUGH_FOR_P99).then_some(if keeps_bound { 0.0 } else { self.distance.p99 })
    }
}

/// The largest and the usual error over points.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct WorstScore {
    pub points: usize,
    /// Absolute, of the mean.
    pub worst_mean: f64,
    pub median_mean: f64,
    pub median_demerit: f64,
}

/// Beyond these a medium does not stand for its disk: where the truth is known, held-out points are off by 5 % (median)
/// and 17 % (worst).
const POOR_MEDIAN: f64 = 0.20;
const POOR_WORST: f64 = 1.00;

impl WorstScore {
    /// Whether points that a fit never saw are so far off that it should not be used.
    pub fn is_poor(&self) -> bool {
        self.median_mean > POOR_MEDIAN || self.worst_mean > POOR_WORST
    }

    pub fn from_scores(scores: &[PointScore], role: PointRole) -> WorstScore {
        let role_scores: Vec<&PointScore> = scores.iter().filter(|score| score.role == role).collect();
        let mut means: Vec<f64> = role_scores.iter().map(|score| score.mean_error().abs()).collect();
        let mut demerits: Vec<f64> =
            role_scores.iter().filter(|score| !score.bound).map(|score| score.distance.demerit).collect();
        means.sort_by(f64::total_cmp);
        demerits.sort_by(f64::total_cmp);
        let median = |sorted: &[f64]| sorted.get(sorted.len() / 2).copied().unwrap_or(0.0);
        WorstScore {
            points: role_scores.len(),
            worst_mean: means.last().copied().unwrap_or(0.0),
            median_mean: median(&means),
            median_demerit: median(&demerits),
        }
    }
}

/// Asks a medium for every point of a profile, in virtual time.
///
/// # Errors
/// When the model fails to end a request.
pub fn score(
    profile: &DeviceProfile,
    medium: &CatalogueMedium,
    seed: u64,
) -> Result<Vec<PointScore>, TargetError> {
    let points: Vec<&ProbePoint> = profile.points.iter().filter(|point| point.is_sound()).collect();
    score_points(profile.span_bytes, &points, medium, seed)
}

pub(super) fn score_points(
    span_bytes: u64,
    points: &[&ProbePoint],
    medium: &CatalogueMedium,
    seed: u64,
) -> Result<Vec<PointScore>, TargetError> {
    let capacity_bytes = medium.capacity_bytes();
    let span_bytes = span_bytes.min(capacity_bytes);
    let mut scores = Vec::new();
    for pattern in [
        AccessPattern::RandomRead,
        AccessPattern::SequentialRead,
        AccessPattern::SequentialWrite,
        AccessPattern::RandomWrite,
    ] {
        let pattern_points: Vec<&&ProbePoint> =
            points.iter().filter(|point| point.pattern == pattern).collect();
        if pattern_points.is_empty() {
            continue;
        }
        let mut target = VirtualTarget::new(medium.model(capacity_bytes, seed, InitialState::Fresh));
        if pattern.operation() == ModelOperation::Write {
            fill(&mut target, pattern, medium, span_bytes, seed)?;
        }
        for (index, point) in pattern_points.into_iter().enumerate() {
            if point.block_bytes > span_bytes {
                continue;
            }
            target.set_think(point.think());
            let sample = target.run(&load_of(point, span_bytes, seed + 1 + index as u64))?;
            scores.extend(compare(point, &sample));
        }
    }
    Ok(scores)
}

fn load_of(point: &ProbePoint, span_bytes: u64, seed: u64) -> ProbeLoad {
    let duration = Duration::from_secs_f64(point.duration_s.clamp(1e-6, 1e5));
    ProbeLoad {
        pattern: point.pattern,
        block_bytes: point.block_bytes,
        queue_depth: point.queue_depth,
        first_byte: 0,
        span_bytes: span_bytes / point.block_bytes * point.block_bytes,
        flush_every: 0,
        warmup: duration
            .mul_f64(WARMUP_SHARE)
            .min(Duration::from_secs_f64(WARMUP_REQUESTS / point.iops.max(1e-3))),
        // Rather more requests than were measured: the model's own chance should not be part of the error.
        duration: duration * 4,
        most_requests: MAX_REQUESTS,
        seed,
    }
}

/// Brings the write buffer to where it is in the steady state.
fn fill(
    target: &mut VirtualTarget,
    pattern: AccessPattern,
    medium: &CatalogueMedium,
    span_bytes: u64,
    seed: u64,
) -> Result<(), TargetError> {
    let buffer_bytes = medium.model.write_buffer_bytes();
    let block_bytes: u64 = if pattern.is_random() { 4096 } else { 128 << 10 };
    let requests = ((FILLS * buffer_bytes / block_bytes as f64) as u64).min(MAX_FILL_REQUESTS);
    if requests == 0 || span_bytes < block_bytes {
        return Ok(());
    }
    let load = ProbeLoad {
        pattern,
        block_bytes,
        queue_depth: 32,
        first_byte: 0,
        span_bytes: span_bytes / block_bytes * block_bytes,
        flush_every: 0,
        warmup: Duration::ZERO,
        duration: Duration::from_secs(1_000_000),
        most_requests: requests,
        seed,
    };
    target.run(&load).map(|_| ())
}

fn compare(point: &ProbePoint, sample: &LoadSample) -> Option<PointScore> {
    let measured: &Histogram = &point.latency;
    Some(PointScore {
        pattern: point.pattern,
        block_bytes: point.block_bytes,
        queue_depth: point.queue_depth,
        role: point.role,
        bound: point.saturated,
        requests: point.requests,
        measured_iops: point.iops,
        modelled_iops: sample.iops(),
        measured_p50_us: measured.quantile_us(0.5),
        modelled_p50_us: sample.latency.quantile_us(0.5),
        measured_p99_us: measured.quantile_us(0.99),
        modelled_p99_us: sample.latency.quantile_us(0.99),
        distance: distance(measured, &sample.latency)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fit_is_poor_by_median_or_worst_unseen_point() {
        let held_out =
            |median_mean, worst_mean| WorstScore { points: 8, worst_mean, median_mean, median_demerit: 0.0 };
        assert!(!held_out(0.05, 0.17).is_poor());
        assert!(held_out(0.37, 0.60).is_poor());
        assert!(held_out(0.10, 3.52).is_poor());
    }
}
