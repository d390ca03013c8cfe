//! Answers in virtual time: what a model does under a simple load, in microseconds of ours.

pub mod curves;
pub mod paced;

use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;
use serde::{Deserialize, Serialize};
use underlay_record::Histogram;

use crate::catalogue::{CatalogueMedium, FigureKind, MediumKind, ModelParameters, PublishedPerformance};
use crate::media::flash;
use crate::media::hdd::HddModel;
use crate::media::scaled_buffer_bytes;
use crate::medium::{FinishedRequest, MediumModel, ModelOperation, ModelRequest, RequestId};
use crate::stack::InitialState;
use crate::time::ModelTime;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AccessPattern {
    /// Uniformly over the device, aligned to the block.
    RandomRead,
    RandomWrite,
    /// From the device's start, going round at its end.
    SequentialRead,
    SequentialWrite,
}

impl AccessPattern {
    /// In words: `random reads`.
    pub fn name(self) -> &'static str {
        match self {
            AccessPattern::RandomRead => "random reads",
            AccessPattern::RandomWrite => "random writes",
            AccessPattern::SequentialRead => "sequential reads",
            AccessPattern::SequentialWrite => "sequential writes",
        }
    }

    pub fn operation(self) -> ModelOperation {
        match self {
            AccessPattern::RandomRead | AccessPattern::SequentialRead => ModelOperation::Read,
            AccessPattern::RandomWrite | AccessPattern::SequentialWrite => ModelOperation::Write,
        }
    }

    pub fn is_random(self) -> bool {
        matches!(self, AccessPattern::RandomRead | AccessPattern::RandomWrite)
    }
}

/// A load that keeps `queue_depth` requests in flight.
#[derive(Clone, Copy, Debug)]
pub struct ClosedLoop {
    pub pattern: AccessPattern,
    pub block_bytes: u64,
    pub queue_depth: usize,
    /// Measured requests.
    pub requests: u64,
    /// Requests before them, to fill buffers and queues.
    pub warmup: u64,
    pub seed: u64,
}

/// Its outcome.
#[derive(Clone, Debug)]
pub struct MediumPrediction {
    pub latency: Histogram,
    pub iops: f64,
    /// Million bytes a second.
    pub mb_s: f64,
    /// The measured span of modelled time.
    pub duration_s: f64,
}

/// Runs a closed loop on an idle model, from time zero.
///
/// # Panics
/// When the block is zero or larger than the device, or no request is asked for.
pub fn closed_loop(model: &mut dyn MediumModel, load: &ClosedLoop) -> MediumPrediction {
    let blocks = model.capacity_bytes().checked_div(load.block_bytes).unwrap_or(0);
    assert!(blocks > 0, "no block of {} bytes fits the device", load.block_bytes);
    assert!(load.requests > 0 && load.queue_depth > 0, "a load without requests");
    let mut random = Pcg64Mcg::seed_from_u64(load.seed);
    let total = load.warmup + load.requests;
    let mut submitted_at = vec![ModelTime::ZERO; total as usize];
    let mut latency = Histogram::default();
    let (mut next, mut over) = (0u64, 0u64);
    let (mut now, mut began) = (ModelTime::ZERO, ModelTime::ZERO);
    let mut finished: Vec<FinishedRequest> = Vec::new();
    loop {
        while next < total && next - over < load.queue_depth as u64 {
            let block = if load.pattern.is_random() { random.random_range(0..blocks) } else { next % blocks };
            submitted_at[next as usize] = now;
            let request = ModelRequest {
                id: RequestId(next),
                operation: load.pattern.operation(),
                offset_bytes: block * load.block_bytes,
                length_bytes: load.block_bytes,
                fua: false,
            };
            model.submit(request, now);
            next += 1;
        }
        if over == total {
            break;
        }
        let Some(completed_at) = model.next_completion() else { break };
        // Time does not go back, even if a model names an instant that is over.
        now = now.max(completed_at);
        model.complete(now, &mut finished);
        for FinishedRequest { id, at: finished_at } in finished.drain(..) {
            over += 1;
            // The measured span begins as the last request before it ends: no gap, and no overlap.
            if over == load.warmup {
                began = finished_at;
            }
            if over > load.warmup {
                latency.record_ns(finished_at.duration_since(submitted_at[id.0 as usize]).as_nanos() as u64);
            }
        }
    }
    let duration_s = now.duration_since(began).as_secs_f64();
    let iops = load.requests as f64 / duration_s;
    MediumPrediction { latency, iops, mb_s: iops * load.block_bytes as f64 / 1e6, duration_s }
}

/// The model's value for a published figure, in the figure's unit; `None` for a figure that this kind of medium doesn't
/// have (the seek time of flash).
pub fn published(medium: &CatalogueMedium, published: &PublishedPerformance, seed: u64) -> Option<f64> {
    // A disk's second holds a hundred requests, a flash device's many thousands: both take milliseconds here.
    let random = match medium.kind {
        MediumKind::Hdd | MediumKind::Measured => 4_000,
        MediumKind::Flash | MediumKind::Cloud | MediumKind::Pmem | MediumKind::Network => 40_000,
    };
    // A thousandth of few is nothing.
    let random = if published.percentile.is_some() { 40_000 } else { random };
    let effort = PredictionEffort { capacity_bytes: medium.capacity_bytes(), random, sequential: 4_000 };
    answer(medium, published, seed, &effort)
}

/// The same from so few requests, on a part of the device, that it takes milliseconds. Good for comparing two media
/// that differ in a value or two: the same is drawn for both.
pub(crate) fn published_in_brief(
    medium: &CatalogueMedium,
    published: &PublishedPerformance,
    seed: u64,
) -> Option<f64> {
    const PART_BYTES: u64 = 256 << 20;
    let capacity_bytes = medium.capacity_bytes().min(PART_BYTES);
    answer(medium, published, seed, &PredictionEffort { capacity_bytes, random: 2_000, sequential: 1_000 })
}

/// How much is asked for one figure.
struct PredictionEffort {
    /// Of the device that is asked.
    capacity_bytes: u64,
    /// Requests at random, and in sequence.
    random: u64,
    sequential: u64,
}

fn answer(
    medium: &CatalogueMedium,
    published: &PublishedPerformance,
    seed: u64,
    effort: &PredictionEffort,
) -> Option<f64> {
    let &PredictionEffort { capacity_bytes, random, sequential } = effort;
    // A volume's own figure holds at any instance, and so when the user's lets through less.
    let by_itself;
    let medium = match medium.model.has_instance() && !published.of_instance {
        true => {
            by_itself = CatalogueMedium { model: medium.model.clone().without_instance(), ..medium.clone() };
            &by_itself
        }
        false => medium,
    };
    let load = |pattern, requests, warmup| ClosedLoop {
        pattern,
        block_bytes: u64::from(published.block_bytes),
        queue_depth: published.queue_depth as usize,
        requests,
        warmup,
        seed,
    };
    let fresh = || medium.model(capacity_bytes, seed, InitialState::Fresh);
    let initial = initial_state(medium.kind, published.figure == FigureKind::RandomWriteIops);
    let run = |load: ClosedLoop| closed_loop(&mut *medium.model(capacity_bytes, seed, initial), &load);
    // A request's time without any rate limit: without credits, one after the other may be too fast for a small volume.
    let unhindered = match &medium.model {
        ModelParameters::Cloud(volume) if volume.burst_iops.is_some() && volume.cold_share.is_none() => {
            InitialState::Fresh
        }
        _ => initial,
    };
    let time =
        |load: ClosedLoop| closed_loop(&mut *medium.model(capacity_bytes, seed, unhindered), &load).latency;
    let latency_us = |latency: &Histogram| match published.percentile {
        Some(percentile) => latency.quantile_us(percentile / 100.0),
        None => latency.mean_us(),
    };
    let fill = |block_bytes: u32| requests_that_fill(medium, capacity_bytes, u64::from(block_bytes));
    Some(match published.figure {
        FigureKind::RandomReadIops => run(load(AccessPattern::RandomRead, random, 200)).iops,
        FigureKind::RandomWriteIops => {
            run(load(AccessPattern::RandomWrite, random, fill(published.block_bytes))).iops
        }
        FigureKind::SequentialReadMbS => run(load(AccessPattern::SequentialRead, sequential, 200)).mb_s,
        FigureKind::SequentialWriteMbS => {
            run(load(AccessPattern::SequentialWrite, sequential, fill(published.block_bytes))).mb_s
        }
        FigureKind::ReadLatencyUs => latency_us(&time(load(AccessPattern::RandomRead, random, 0))),
        FigureKind::WriteLatencyUs => {
            // Few enough to find room in any buffer; for a percentile they must be more.
            let requests = if published.percentile.is_some() { random } else { 200 };
            latency_us(&time(load(AccessPattern::RandomWrite, requests, 0)))
        }
        FigureKind::FlushLatencyUs => {
            latency_us(&flushes(&mut *fresh(), published.block_bytes, random, seed))
        }
        FigureKind::BurstReadIops => {
            closed_loop(&mut *fresh(), &load(AccessPattern::RandomRead, random, 200)).iops
        }
        FigureKind::BurstWriteIops => {
            closed_loop(&mut *fresh(), &load(AccessPattern::RandomWrite, random, 200)).iops
        }
        FigureKind::BurstReadMbS => {
            closed_loop(&mut *fresh(), &load(AccessPattern::SequentialRead, sequential, 200)).mb_s
        }
        FigureKind::BurstWriteMbS => {
            closed_loop(&mut *fresh(), &load(AccessPattern::SequentialWrite, sequential, 200)).mb_s
        }
        FigureKind::BurstDurationS => {
            let steady_iops = run(load(AccessPattern::RandomRead, sequential, 200)).iops;
            burst_duration_s(&mut *fresh(), &load(AccessPattern::RandomRead, 1, 0), steady_iops)?
        }
        FigureKind::SeekAverageReadMs => mean_seek_ms(medium, ModelOperation::Read, seed)?,
        FigureKind::SeekAverageWriteMs => mean_seek_ms(medium, ModelOperation::Write, seed)?,
        FigureKind::PositioningReadMs => mean_positioning_ms(medium, seed)?,
    })
}

/// The state in which a medium's figures are stated. A volume's rate without credits and its burst rate are separate
/// figures. Flash is filled at random before its random writes are measured, and not before sequential ones.
fn initial_state(kind: MediumKind, is_random_write: bool) -> InitialState {
    match kind {
        MediumKind::Cloud => InitialState::Steady,
        MediumKind::Flash | MediumKind::Network if is_random_write => InitialState::Steady,
        _ => InitialState::Fresh,
    }
}

/// So many that the buffer is full when the measurement begins, although it drains meanwhile: where it takes in but an
/// eighth more than it drains, it is full after eight times its size.
fn requests_that_fill(medium: &CatalogueMedium, capacity_bytes: u64, block_bytes: u64) -> u64 {
    let share = (capacity_bytes as f64 / medium.capacity_bytes() as f64).min(1.0);
    let buffer_bytes = match &medium.model {
        ModelParameters::Flash(parameters) => flash::buffer_limit_bytes(parameters, share),
        model => scaled_buffer_bytes(model.write_buffer_bytes(), share),
    } as f64;
    (10.0 * buffer_bytes / block_bytes as f64) as u64 + 100
}

fn disk(medium: &CatalogueMedium, seed: u64) -> Option<HddModel> {
    match &medium.model {
        ModelParameters::Hdd(parameters) => {
            Some(HddModel::new(parameters, medium.capacity_bytes(), 1.0, seed))
        }
        _ => None,
    }
}

/// How long a sync takes after each of this many random writes.
fn flushes(model: &mut dyn MediumModel, block_bytes: u32, count: u64, seed: u64) -> Histogram {
    let mut random = Pcg64Mcg::seed_from_u64(seed);
    let length_bytes = u64::from(block_bytes);
    let blocks = (model.capacity_bytes() / length_bytes).max(1);
    let (mut latency, mut finished) = (Histogram::default(), Vec::new());
    let mut now = ModelTime::ZERO;
    for index in 0..2 * count {
        let id = RequestId(index);
        let write = index % 2 == 0;
        let request = ModelRequest {
            id,
            operation: if write { ModelOperation::Write } else { ModelOperation::Flush },
            offset_bytes: if write { random.random_range(0..blocks) * length_bytes } else { 0 },
            length_bytes: if write { length_bytes } else { 0 },
            fua: false,
        };
        model.submit(request, now);
        let submitted = now;
        while finished.is_empty() {
            let Some(completed_at) = model.next_completion() else { return latency };
            now = now.max(completed_at);
            model.complete(now, &mut finished);
        }
        finished.clear();
        if !write {
            latency.record_ns(now.duration_since(submitted).as_nanos() as u64);
        }
    }
    latency
}

/// More requests than any volume's credits last for.
const BURST_REQUESTS: u64 = 30_000_000;

/// When the rate of a load falls halfway from what it begins with to what it comes to; `None` when it does
/// not begin any higher.
fn burst_duration_s(model: &mut dyn MediumModel, load: &ClosedLoop, steady_iops: f64) -> Option<f64> {
    const WINDOW: u64 = 2_000;
    let blocks = (model.capacity_bytes() / load.block_bytes).max(1);
    let mut random = Pcg64Mcg::seed_from_u64(load.seed);
    let (mut next, mut over) = (0u64, 0u64);
    let (mut now, mut window_began) = (ModelTime::ZERO, ModelTime::ZERO);
    let mut enough_iops = None;
    let mut finished: Vec<FinishedRequest> = Vec::new();
    while over < BURST_REQUESTS {
        while next - over < load.queue_depth as u64 {
            let request = ModelRequest {
                id: RequestId(next),
                operation: load.pattern.operation(),
                offset_bytes: random.random_range(0..blocks) * load.block_bytes,
                length_bytes: load.block_bytes,
                fua: false,
            };
            model.submit(request, now);
            next += 1;
        }
        now = now.max(model.next_completion()?);
        model.complete(now, &mut finished);
        for _ in finished.drain(..) {
            over += 1;
            if over % WINDOW != 0 {
                continue;
            }
            let iops = WINDOW as f64 / now.duration_since(window_began).as_secs_f64();
            match enough_iops {
                // So little above the steady rate is scatter, and no burst.
                None if iops < 1.05 * steady_iops => return None,
                None => enough_iops = Some((iops + steady_iops) / 2.0),
                Some(enough) if iops < enough => {
                    // The rate fell within this window: the burst lasted up to its beginning for sure.
                    return Some(window_began.duration_since(ModelTime::ZERO).as_secs_f64());
                }
                Some(_) => {}
            }
            window_began = now;
        }
    }
    None
}

const SEEKS: u64 = 20_000;

fn mean_seek_ms(medium: &CatalogueMedium, operation: ModelOperation, seed: u64) -> Option<f64> {
    let disk = disk(medium, seed)?;
    let mut random = Pcg64Mcg::seed_from_u64(seed);
    let mut byte = || random.random_range(0..medium.capacity_bytes());
    let sum_ns: u64 = (0..SEEKS).map(|_| disk.seek_ns(byte(), byte(), operation)).sum();
    Some(sum_ns as f64 / SEEKS as f64 / 1e6)
}

fn mean_positioning_ms(medium: &CatalogueMedium, seed: u64) -> Option<f64> {
    let disk = disk(medium, seed)?;
    let mut random = Pcg64Mcg::seed_from_u64(seed);
    let mut sum_ns = 0;
    for _ in 0..SEEKS {
        let (from, to) = (
            random.random_range(0..medium.capacity_bytes()),
            random.random_range(0..medium.capacity_bytes()),
        );
        let now = ModelTime::from_ns(random.random_range(0..1_000_000_000_000));
        sum_ns += disk.positioning_ns(from, to, ModelOperation::Read, now);
    }
    Some(sum_ns as f64 / SEEKS as f64 / 1e6)
}
