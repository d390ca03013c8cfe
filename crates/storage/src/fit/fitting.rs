//! The fit: from the points that are not held out to the parameters of a measured medium.
//!
//! Some values are read off: service times are the latencies at queue depth 1, the curves are the rates at each depth.
//! In which order a queue is served can't be read off: each order is asked for the fitted points in virtual time, and
//! the nearer one wins.

use std::collections::{BTreeMap, BTreeSet};

use underlay_record::Histogram;

use super::medium_file::{self, DeviceIdentity, PRICE, SOURCE, UNKNOWN};
use super::plausible::FitRepairs;
use super::profile::{BurstPoint, DeviceProfile, PointRole, ProbePoint};
use super::quantiles::quantiles;
use super::rounding::rounded;
use super::score::score_points;
use crate::catalogue::{
    CalibrationLabel, CatalogueMedium, MeasuredDevice, MeasuredLoad, MeasuredOrder, MeasuredParameters,
    MeasuredService, MediumKind, MediumPrice, ModelParameters, OrderProperty, SourcedCurve,
    SourcedDistribution, SourcedProperty, SourcedQuantity,
};
use crate::medium::ModelOperation;
use crate::predict::AccessPattern;

#[derive(Debug, thiserror::Error)]
pub enum FitError {
    #[error("too little was measured: no random reads at queue depth 1; give it more --time")]
    TooLittle,
    #[error("the fit is not a valid medium: {0}")]
    Impossible(String),
}

/// A burst shows a buffer when it ends with less than this share of the rate that it began with.
const BURST_DROP: f64 = 0.8;
/// And when the two levels explain at least this share of the spread of its slices: a noisy device has no buffer.
const BURST_EXPLAINED: f64 = 0.5;
const SEED: u64 = 1;

/// Makes a medium of a profile.
///
/// # Errors
/// When not even random reads at queue depth 1 were measured.
pub fn fit(profile: &DeviceProfile, identity: &DeviceIdentity) -> Result<CatalogueMedium, FitError> {
    let fitted: Vec<&ProbePoint> =
        profile.points.iter().filter(|point| point.role == PointRole::Fitted && point.is_sound()).collect();
    let writes: Vec<&ProbePoint> =
        fitted.iter().filter(|point| point.pattern.operation() == ModelOperation::Write).copied().collect();
    let buffer = FittedBuffer::new(profile, &writes);
    let mut repairs = FitRepairs::default();
    let mut service = services(&fitted, &mut repairs);
    if !service.iter().any(|service| service.load == MeasuredLoad::RandomRead) {
        return Err(FitError::TooLittle);
    }
    if buffer.bytes > 0.0 {
        service.extend(profile.buffered_writes.iter().filter(|point| point.is_sound()).map(|point| {
            MeasuredService {
                load: MeasuredLoad::BufferedWrite,
                block_bytes: point.block_bytes as u32,
                latency_us: quantiles(&point.latency),
                iops: None,
                mb_s: None,
            }
        }));
    }
    repairs.leave_out_contradictions(&mut service);
    let candidates = [MeasuredOrder::Fifo, MeasuredOrder::Any].map(|order| {
        let mut medium = medium(profile, identity, &buffer, &service, order);
        if let Some(note) = &mut medium.note {
            *note += &repairs.note();
        }
        medium
    });
    if let Some(problem) = candidates[0].problems().into_iter().next() {
        return Err(FitError::Impossible(problem));
    }
    let reads: Vec<&ProbePoint> =
        fitted.into_iter().filter(|point| point.pattern == AccessPattern::RandomRead).collect();
    let [fifo, any] = candidates;
    let nearer = usual_error(profile, &reads, &fifo) <= usual_error(profile, &reads, &any);
    Ok(if nearer { fifo } else { any })
}

/// The mean demerit over points.
fn usual_error(profile: &DeviceProfile, points: &[&ProbePoint], medium: &CatalogueMedium) -> f64 {
    match score_points(profile.span_bytes, points, medium, SEED) {
        Ok(scores) => scores.iter().map(|score| score.distance.demerit).sum(),
        Err(_) => f64::MAX,
    }
}

/// For each load and block size that was measured at queue depth 1: how long that took, and how many a second were
/// answered at each depth.
fn services(points: &[&ProbePoint], repairs: &mut FitRepairs) -> Vec<MeasuredService> {
    let alone = points.iter().filter(|point| point.queue_depth == 1 && point.iops > 0.0);
    alone
        .map(|alone| {
            let mut deeper: Vec<&&ProbePoint> = points
                .iter()
                .filter(|point| point.pattern == alone.pattern && point.block_bytes == alone.block_bytes)
                .filter(|point| point.queue_depth > 1)
                .collect();
            deeper.sort_by_key(|point| point.queue_depth);
            let latency_us = quantiles(&alone.latency);
            // Alone and without the prober's own time between two requests.
            let mut curve = vec![(1.0, 0.0)];
            for point in deeper {
                let depth = rounded(point.depth_reached());
                // Depths have to rise along a curve.
                if curve.last().is_none_or(|(last, _)| depth > *last) {
                    curve.push((depth, rounded(point.iops)));
                }
            }
            repairs.hold_to_littles_law(&mut curve, latency_us.mean());
            MeasuredService {
                load: load_of(alone.pattern),
                block_bytes: alone.block_bytes as u32,
                latency_us,
                iops: Some(SourcedCurve { points: curve, source: SOURCE.into(), estimate: false }),
                mb_s: None,
            }
        })
        .collect()
}

fn load_of(pattern: AccessPattern) -> MeasuredLoad {
    match pattern {
        AccessPattern::RandomRead => MeasuredLoad::RandomRead,
        AccessPattern::SequentialRead => MeasuredLoad::SequentialRead,
        AccessPattern::RandomWrite => MeasuredLoad::RandomWrite,
        AccessPattern::SequentialWrite => MeasuredLoad::SequentialWrite,
    }
}

/// The write buffer as bursts and steady rates show it.
#[derive(Clone, Debug, Default, PartialEq)]
struct FittedBuffer {
    bytes: f64,
    /// A flush waits for it.
    is_volatile: bool,
    drain_iops: f64,
    drain_mb_s: f64,
    flush: Option<Histogram>,
    /// Taken off a flush after one write: what that write needs on the medium.
    one_write_us: f64,
}

impl FittedBuffer {
    fn new(profile: &DeviceProfile, steady: &[&ProbePoint]) -> FittedBuffer {
        let most = |pattern: AccessPattern, figure: fn(&ProbePoint) -> f64| {
            steady
                .iter()
                .filter(|point| point.pattern == pattern)
                .map(|point| figure(point))
                .fold(0.0, f64::max)
        };
        let smallest = steady.iter().map(|point| point.block_bytes).min().unwrap_or(4096);
        let drain_iops = steady
            .iter()
            .filter(|point| point.pattern == AccessPattern::RandomWrite && point.block_bytes == smallest)
            .map(|point| point.iops)
            .fold(0.0, f64::max);
        let mb_s = |point: &ProbePoint| point.iops * point.block_bytes as f64 / 1e6;
        let drain_mb_s =
            most(AccessPattern::SequentialWrite, mb_s).max(most(AccessPattern::RandomWrite, mb_s));
        let mut buffer = FittedBuffer { drain_iops, drain_mb_s, ..FittedBuffer::default() };
        if drain_iops > 0.0 && drain_mb_s > 0.0 {
            buffer.bytes = profile.bursts.iter().filter_map(room).fold(0.0, f64::max);
        }
        let flush =
            |writes| profile.flushes.iter().find(|point| point.writes == writes && point.flush.count() > 0);
        if let Some(one) = flush(1) {
            buffer.flush = Some(one.flush.clone());
            if let Some(many) = flush(64)
                && drain_iops > 0.0
            {
                // Half of what it takes to bring the others to the medium.
                let threshold_us = 0.5 * (many.writes - one.writes) as f64 * 1e6 / drain_iops;
                let longer_us = many.flush.quantile_us(0.5) - one.flush.quantile_us(0.5);
                buffer.is_volatile = buffer.bytes > 0.0 && longer_us > threshold_us;
                buffer.one_write_us = if buffer.is_volatile { 1e6 / drain_iops } else { 0.0 };
            }
        }
        buffer
    }

    fn flush_us(&self) -> SourcedDistribution {
        match &self.flush {
            Some(flush) => {
                let mut distribution = quantiles(flush);
                for (_, value) in &mut distribution.quantiles {
                    *value = (*value - self.one_write_us).max(0.0);
                }
                distribution
            }
            None => SourcedDistribution { estimate: true, ..SourcedDistribution::constant(0.0, UNKNOWN) },
        }
    }
}

/// How many bytes a burst took in before it slowed down: where two levels tell its slices best.
fn room(burst: &BurstPoint) -> Option<f64> {
    let rates: Vec<f64> = burst.slices.iter().map(|bytes| *bytes as f64 / burst.slice_s).collect();
    let sum = |part: &[f64]| part.iter().sum::<f64>();
    let error = |part: &[f64]| {
        let mean = sum(part) / part.len() as f64;
        part.iter().map(|rate| (rate - mean).powi(2)).sum::<f64>()
    };
    const MIN_POINTS: usize = 3;
    let end = rates.len().checked_sub(MIN_POINTS)?;
    // Least squares: the cut that leaves the smallest error around two means.
    let change = (MIN_POINTS..end).min_by(|a, b| {
        let split = |index: usize| error(&rates[..index]) + error(&rates[index..]);
        split(*a).total_cmp(&split(*b))
    })?;
    let before = sum(&rates[..change]) / change as f64;
    let after = sum(&rates[change..]) / (rates.len() - change) as f64;
    let explained =
        error(&rates[..change]) + error(&rates[change..]) <= (1.0 - BURST_EXPLAINED) * error(&rates);
    // The incoming bytes less those drained meanwhile.
    (explained && after < BURST_DROP * before).then_some((before - after) * change as f64 * burst.slice_s)
}

fn medium(
    profile: &DeviceProfile,
    identity: &DeviceIdentity,
    buffer: &FittedBuffer,
    service: &[MeasuredService],
    order: MeasuredOrder,
) -> CatalogueMedium {
    let device = MeasuredDevice {
        write_buffer_bytes: SourcedQuantity {
            value: buffer.bytes.round(),
            source: SOURCE.into(),
            estimate: false,
        },
        flush_drains: SourcedProperty { value: buffer.is_volatile, source: SOURCE.into(), estimate: false },
        flush_us: buffer.flush_us(),
    };
    let order = OrderProperty { value: order, source: SOURCE.into(), estimate: false };
    let model = ModelParameters::Measured(MeasuredParameters { order, device, service: service.to_vec() });
    let mut medium = CatalogueMedium {
        name: identity.name.clone(),
        title: identity.title.clone(),
        kind: MediumKind::Measured,
        year: identity.year,
        label: CalibrationLabel::Measured,
        note: Some(medium_file::note(profile)),
        capacity: SourcedQuantity {
            value: identity.capacity_bytes as f64,
            source: SOURCE.into(),
            estimate: false,
        },
        logical_sector: None,
        price: MediumPrice {
            // A catalogue file has to have a price: an unknown one is a dollar, and marked as an estimate.
            usd: identity.price_usd.unwrap_or(1.0),
            rented: false,
            date: identity.date.clone(),
            source: if identity.price_usd.is_some() { PRICE.into() } else { UNKNOWN.into() },
            estimate: identity.price_usd.is_none(),
            rent: None,
        },
        sources: BTreeMap::new(),
        measurements: BTreeSet::from([SOURCE.to_owned()]),
        published: medium_file::published(profile, &model),
        model,
        volume: None,
        tail: None,
        measured: Vec::new(),
    };
    // Last: it lists the sources that the rest of the medium names.
    medium.sources = medium_file::sources(&medium, identity);
    medium
}
