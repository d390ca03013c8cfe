//! Mixed loads at a given rate: what a model answers to requests that arrive whether or not earlier ones are answered.

use std::collections::HashMap;

use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;
use underlay_record::Histogram;

use crate::catalogue::{CatalogueMedium, LoadMeasurement};
use crate::medium::{FinishedRequest, MediumModel, ModelOperation, ModelRequest, RequestId};
use crate::stack::InitialState;
use crate::time::ModelTime;

/// Requests that arrive at random, with exponential gaps.
#[derive(Clone, Copy, Debug)]
pub struct PacedStream {
    pub per_s: f64,
    pub read_share: f64,
    /// One that arrives while so many are in flight is submitted when one of them is answered.
    pub most_under_way: u32,
    /// Whether its latencies count.
    pub is_probe: bool,
}

#[derive(Clone, Debug)]
pub struct PacedLoad {
    pub streams: Vec<PacedStream>,
    /// Every request has this size and lies anywhere on the device.
    pub block_bytes: u64,
    pub warmup_s: f64,
    /// After the warm-up.
    pub duration_s: f64,
    pub seed: u64,
}

/// What came of it.
#[derive(Clone, Debug, Default)]
pub struct PacedPrediction {
    /// Of the probe, from its submission.
    pub reads: Histogram,
    pub writes: Histogram,
    /// Answered in a second, of all streams.
    pub reads_per_s: f64,
    pub writes_per_s: f64,
}

/// A stream in flight.
struct StreamState {
    stream: PacedStream,
    next_ns: f64,
    under_way: u32,
    random: Pcg64Mcg,
}

impl StreamState {
    fn new(stream: PacedStream, seed: u64) -> StreamState {
        let mut state =
            StreamState { stream, next_ns: 0.0, under_way: 0, random: Pcg64Mcg::seed_from_u64(seed) };
        state.pass_on();
        state
    }

    fn pass_on(&mut self) {
        let share: f64 = self.random.random();
        self.next_ns += -(-share).ln_1p() * 1e9 / self.stream.per_s;
    }

    /// When it submits its next request, if it may.
    fn due_ns(&self) -> Option<u64> {
        (self.under_way < self.stream.most_under_way && self.stream.per_s > 0.0)
            .then(|| self.next_ns.min(u64::MAX as f64) as u64)
    }
}

/// Plays the load on an idle model, from time zero.
///
/// # Panics
/// When the block is zero or larger than the device.
pub fn paced_load(model: &mut dyn MediumModel, load: &PacedLoad) -> PacedPrediction {
    let blocks = model.capacity_bytes().checked_div(load.block_bytes).unwrap_or(0);
    assert!(blocks > 0, "no block of {} bytes fits the device", load.block_bytes);
    let begin_ns = (load.warmup_s * 1e9) as u64;
    let end_ns = begin_ns + (load.duration_s * 1e9) as u64;
    let mut streams: Vec<StreamState> = load
        .streams
        .iter()
        .zip(1..)
        .map(|(stream, number): (_, u64)| StreamState::new(*stream, load.seed ^ (number << 32)))
        .collect();
    let mut under_way: HashMap<RequestId, (usize, ModelOperation, u64)> = HashMap::new();
    let mut prediction = PacedPrediction::default();
    let mut finished: Vec<FinishedRequest> = Vec::new();
    let (mut next_id, mut now_ns, mut reads, mut writes) = (0, 0, 0u64, 0u64);
    loop {
        let due =
            streams.iter().enumerate().filter_map(|(place, stream)| Some((stream.due_ns()?, place))).min();
        let event_ns = model.next_completion().map(ModelTime::as_ns);
        let arrival = due.map(|(due_ns, place)| (due_ns.max(now_ns), place));
        match (arrival, event_ns) {
            (Some((arrival_ns, place)), event_ns)
                if event_ns.is_none_or(|event_ns| arrival_ns < event_ns) =>
            {
                if arrival_ns >= end_ns {
                    break;
                }
                now_ns = arrival_ns;
                let stream = &mut streams[place];
                let block = stream.random.random_range(0..blocks);
                let is_read = stream.random.random::<f64>() < stream.stream.read_share;
                let operation = if is_read { ModelOperation::Read } else { ModelOperation::Write };
                stream.under_way += 1;
                stream.pass_on();
                let id = RequestId(next_id);
                next_id += 1;
                under_way.insert(id, (place, operation, now_ns));
                let (offset_bytes, length_bytes) = (block * load.block_bytes, load.block_bytes);
                let request = ModelRequest { id, operation, offset_bytes, length_bytes, fua: false };
                // An event of this very instant comes first.
                model.complete(ModelTime::from_ns(now_ns), &mut finished);
                model.submit(request, ModelTime::from_ns(now_ns));
            }
            (_, Some(event_ns)) => {
                if event_ns >= end_ns {
                    break;
                }
                now_ns = now_ns.max(event_ns);
                model.complete(ModelTime::from_ns(now_ns), &mut finished);
            }
            _ => break,
        }
        for answer in finished.drain(..) {
            let finished_ns = answer.at.as_ns();
            let Some((place, operation, submitted_ns)) = under_way.remove(&answer.id) else { continue };
            streams[place].under_way -= 1;
            if finished_ns < begin_ns {
                continue;
            }
            let (count, latency) = match operation {
                ModelOperation::Read => (&mut reads, &mut prediction.reads),
                _ => (&mut writes, &mut prediction.writes),
            };
            *count += 1;
            if streams[place].stream.is_probe && submitted_ns >= begin_ns {
                latency.record_ns(finished_ns - submitted_ns);
            }
        }
    }
    (prediction.reads_per_s, prediction.writes_per_s) =
        (reads as f64 / load.duration_s, writes as f64 / load.duration_s);
    prediction
}

/// How near to a measured figure its model must come.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum FigureTolerance {
    /// A share of the figure, either way.
    Share(f64),
    /// At most so many times as much, and no less than that part.
    Factor(f64),
}

/// A measured figure beside the model's.
#[derive(Clone, Debug, PartialEq)]
pub struct LoadFigure {
    /// `read p99`, `writes/s`.
    pub name: String,
    /// In microseconds, or a second.
    pub measured: f64,
    pub modelled: f64,
    /// `None` for what is shown and not judged.
    pub tolerance: Option<FigureTolerance>,
}

impl LoadFigure {
    pub fn ratio(&self) -> f64 {
        self.modelled / self.measured
    }

    /// `None` for what is not judged.
    pub fn is_within(&self) -> Option<bool> {
        let ratio = self.ratio();
        self.tolerance.map(|tolerance| match tolerance {
            FigureTolerance::Share(share) => (ratio - 1.0).abs() <= share,
            FigureTolerance::Factor(factor) => (1.0 / factor..=factor).contains(&ratio),
        })
    }
}

/// By operation and share: medians within 10 %, reads within 25 % at p99 and 50 % at p99.9, writes within a factor of
/// two at both.
fn tolerance(is_read: bool, share: f64) -> Option<FigureTolerance> {
    let is_share = |other: f64| (share - other).abs() < 1e-9;
    match is_read {
        _ if is_share(0.5) => Some(FigureTolerance::Share(0.1)),
        true if is_share(0.99) => Some(FigureTolerance::Share(0.25)),
        true if is_share(0.999) => Some(FigureTolerance::Share(0.5)),
        false if is_share(0.99) || is_share(0.999) => Some(FigureTolerance::Factor(2.0)),
        _ => None,
    }
}

/// Throughput within 10 %.
const RATE_TOLERANCE: FigureTolerance = FigureTolerance::Share(0.1);

/// The load of a row, on a device in its steady state.
pub fn measured_load(row: &LoadMeasurement, duration_s: f64, seed: u64) -> PacedLoad {
    let probe = PacedStream {
        per_s: row.probe_per_s,
        read_share: row.probe_read_percent / 100.0,
        most_under_way: row.most_under_way,
        is_probe: true,
    };
    let background = PacedStream {
        per_s: row.background_per_s / f64::from(row.background_streams),
        read_share: row.background_read_percent / 100.0,
        is_probe: false,
        ..probe
    };
    let mut streams = vec![probe];
    streams.extend(vec![background; row.background_streams as usize]);
    // A drive that fills its buffer before it shows its steady rate needs some hundred milliseconds.
    PacedLoad { streams, block_bytes: u64::from(row.block_bytes), warmup_s: 0.5, duration_s, seed }
}

/// Plays the load of a row, its own or another medium's, against a medium in its steady state.
pub fn play_measured(
    medium: &CatalogueMedium,
    row: &LoadMeasurement,
    duration_s: f64,
    seed: u64,
) -> PacedPrediction {
    let mut model = medium.model(medium.capacity_bytes(), seed, InitialState::Steady);
    paced_load(&mut *model, &measured_load(row, duration_s, seed))
}

/// Plays a measured load against a medium: each figure of the row beside the model's.
pub fn compare_measured(
    medium: &CatalogueMedium,
    row: &LoadMeasurement,
    duration_s: f64,
    seed: u64,
) -> Vec<LoadFigure> {
    let prediction = play_measured(medium, row, duration_s, seed);
    let mut figures = Vec::new();
    if row.offered_writes_per_s() > 0.0 {
        figures.push(LoadFigure {
            name: "writes/s".into(),
            measured: row.writes_per_s,
            modelled: prediction.writes_per_s,
            tolerance: Some(RATE_TOLERANCE),
        });
    }
    for (name, is_read, quantiles, latency) in
        [("read", true, &row.read_us, &prediction.reads), ("write", false, &row.write_us, &prediction.writes)]
    {
        figures.extend(quantiles.iter().map(|&(share, measured)| LoadFigure {
            name: format!("{name} p{}", crate::catalogue::plain_number(share * 100.0)),
            measured,
            modelled: latency.quantile_us(share),
            tolerance: tolerance(is_read, share),
        }));
    }
    figures
}
