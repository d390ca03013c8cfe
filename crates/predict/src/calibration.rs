//! From measured cells to an answer for one that was not measured.
//!
//! The demand of an operation comes from cells of the same system and mix, and the devices' own models answer it. The
//! simulation's errors for a measured cell (locks, batching, wake-ups) apply to other cells as well. So the ratio of
//! measured to simulated corrects the answer, with more weight for near cells. Leaving measured cells out shows the
//! errors of such answers, which determine the interval.

mod cached;
mod correction;
mod demand;
mod kind_ambiguity;
mod measured;
mod reads;
mod residuals;

use std::sync::Arc;
use std::sync::OnceLock;

use schemars::JsonSchema;
use serde::Serialize;
use underlay_record::{EstimatedValue, TimeShares};

use crate::cell::{CellPoint, MeasuredCell};
use crate::demand::MixDemand;
use crate::outcome::SimulationOutcome;
use crate::refusal::PredictionRefusal;
use crate::simulation::OperationArrivals;

pub use residuals::LeftOut;

use cached::CachedShare;
use correction::{correction, nearest};
use demand::OperationDemand;
use kind_ambiguity::KindAmbiguity;
use residuals::{ResidualErrors, SystemErrors, student_t};

/// Data : memory may be this many times the measured value, in either direction.
const SIZE_REACH: f64 = 2.05;
/// The same for the threads ...
const THREADS_REACH: f64 = 8.0;
/// ... and the cores.
const CORES_REACH: f64 = 2.0;
/// The part of the interval that remains with any number of measured cells: models, seeds, file systems.
const MIN_ERROR: f64 = 0.02;
/// The part of these errors that applies even to a change without effect in the simulation.
const MIN_ERROR_SHARE: f64 = 0.25;
/// The assumed error of answers if there are too few cells to estimate it.
const UNKNOWN_ERROR: f64 = 0.4;
/// How far the share that a cache device answers may differ from the law: a simulated cache differs by up to this much.
const CACHED_ERROR: f64 = 0.07;
/// How far repetitions are assumed to differ if there was only one.
const UNREPEATED: f64 = 0.08;

/// The predicted metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum PredictedMetric {
    Throughput,
    Mean,
    P50,
    P99,
}

impl PredictedMetric {
    pub const ALL: [PredictedMetric; 4] =
        [PredictedMetric::Throughput, PredictedMetric::Mean, PredictedMetric::P50, PredictedMetric::P99];

    fn index(self) -> usize {
        self as usize
    }

    /// The measured value.
    pub fn measured(self, cell: &MeasuredCell) -> f64 {
        let figures = &cell.figures;
        match self {
            PredictedMetric::Throughput => figures.throughput_per_s.value,
            PredictedMetric::Mean => figures.mean_us.value,
            PredictedMetric::P50 => figures.p50_us.value,
            PredictedMetric::P99 => figures.p99_us.value,
        }
    }

    /// How far repetitions differ, as a standard deviation of logarithms.
    fn spread(self, cell: &MeasuredCell) -> Option<f64> {
        let figures = &cell.figures;
        match self {
            PredictedMetric::Throughput => figures.throughput_per_s.spread,
            PredictedMetric::Mean => figures.mean_us.spread,
            PredictedMetric::P50 => figures.p50_us.spread,
            PredictedMetric::P99 => figures.p99_us.spread,
        }
    }

    pub fn simulated(self, outcome: &SimulationOutcome) -> f64 {
        match self {
            PredictedMetric::Throughput => outcome.throughput_per_s,
            PredictedMetric::Mean => outcome.mean_us,
            PredictedMetric::P50 => outcome.p50_us,
            PredictedMetric::P99 => outcome.p99_us,
        }
    }
}

/// An answer. Times are modelled times.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct CellPrediction {
    pub throughput_per_s: EstimatedValue,
    pub mean_us: EstimatedValue,
    pub p50_us: EstimatedValue,
    pub p99_us: EstimatedValue,
    /// For the busiest device: the share of the time in which it has a request, 0 to 1.
    pub device_busy: EstimatedValue,
    /// 0 to 1; absent if the system's CPU time is unknown.
    pub cpu_busy: Option<f64>,
    /// Reads of the storage that an operation waits for, as a mean over the mix.
    pub reads_per_operation: f64,
    /// The share of them that a cache device answers, 0 to 1; absent without one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cached_share: Option<f64>,
    /// Its value after a long time, if the device is not full when a study begins to measure.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cached_share_later: Option<f64>,
    /// The offered rate is more than the system can handle: latencies keep growing.
    pub is_saturated: bool,
    /// A write-back cache takes in more than it writes back: modelled seconds until it is full, and the metrics change.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cache_full_s: Option<f64>,
    /// Ids of the measured cells that it is based on.
    pub from: Vec<String>,
    /// Assumptions, one sentence each.
    pub assumptions: Vec<String>,
    /// The simulated breakdown of an operation's mean time.
    #[serde(skip)]
    pub shares: TimeShares,
}

impl CellPrediction {
    pub fn estimate(&self, metric: PredictedMetric) -> EstimatedValue {
        match metric {
            PredictedMetric::Throughput => self.throughput_per_s,
            PredictedMetric::Mean => self.mean_us,
            PredictedMetric::P50 => self.p50_us,
            PredictedMetric::P99 => self.p99_us,
        }
    }
}

/// Measured cells that answers are based on.
#[derive(Debug)]
pub struct Calibration {
    cells: Vec<Arc<MeasuredCell>>,
    /// The errors of answers with one kind of cells left out; computed on first use.
    errors: [OnceLock<ResidualErrors>; 3],
}

/// A change of a question: "what if".
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct QuestionChange {
    pub device_speed: f64,
    pub memory: f64,
    pub cores: f64,
}

impl QuestionChange {
    pub const NONE: QuestionChange = QuestionChange { device_speed: 1.0, memory: 1.0, cores: 1.0 };
}

/// An answer before its correction.
struct RawPrediction<'a> {
    sources: Vec<&'a MeasuredCell>,
    outcome: SimulationOutcome,
    demand: MixDemand,
    doubt: KindAmbiguity,
    /// How often cache devices answer; absent without one.
    cached: Option<CachedShare>,
    assumptions: Vec<String>,
}

impl Calibration {
    pub fn new(cells: Vec<Arc<MeasuredCell>>) -> Calibration {
        Calibration { cells, errors: Default::default() }
    }

    /// The calibration without the cells that are left out for this one.
    #[must_use]
    pub fn without(&self, point: &CellPoint, kind: LeftOut) -> Calibration {
        residuals::without(&self.cells, point, kind)
    }

    pub fn cells(&self) -> &[Arc<MeasuredCell>] {
        &self.cells
    }

    /// Answers a question.
    ///
    /// # Errors
    /// When it is outside of the measured range, or has layers that are not modelled.
    pub fn predict(&self, question: &CellPoint) -> Result<CellPrediction, PredictionRefusal> {
        let raw = self.simulate(question)?;
        let kinds = self.kinds_left_out(question, &raw.sources);
        let mut assumptions = raw.assumptions.clone();
        let mut errors = Vec::new();
        for kind in kinds {
            let of_kind = self.errors(kind).find_system(&question.system);
            if !of_kind.tell(PredictedMetric::Throughput) {
                if kind == LeftOut::Storage {
                    return Err(PredictionRefusal::OneStorage { system: question.system.clone() });
                }
                assumptions.push(format!(
                    "{} that was not measured, and no measurement shows how wrong the answer may be: assumed within a factor of 2.2 either way",
                    kind.name()
                ));
            }
            errors.push(of_kind);
        }
        let around = around(question, &raw)?;
        let estimate = |metric: PredictedMetric| {
            let estimate = self.estimate(question, &raw, metric, &errors);
            widened(estimate, metric, &raw.outcome, &around)
        };
        let mut throughput = estimate(PredictedMetric::Throughput);
        let mean = estimate(PredictedMetric::Mean);
        if let (OperationArrivals::Closed, true) = (question.arrivals, mean.value > 0.0) {
            // In a closed loop one follows from the other: clients / latency (Little's law).
            let clients = f64::from(question.threads) * 1e6;
            let from_mean = EstimatedValue {
                value: clients / mean.value,
                low: clients / mean.high.max(1e-9),
                high: clients / mean.low.max(1e-9),
            };
            throughput = EstimatedValue {
                value: from_mean.value,
                low: throughput.low.min(from_mean.low),
                high: throughput.high.max(from_mean.high),
            };
        } else if let OperationArrivals::Even { per_s } | OperationArrivals::Poisson { per_s } =
            question.arrivals
            && !raw.outcome.is_saturated
        {
            throughput = EstimatedValue { value: per_s, low: per_s.min(throughput.low), high: per_s };
        }
        let busy = raw.outcome.device_busy;
        let spread = (throughput.high / throughput.value.max(1e-9)).max(1.0);
        let mut from: Vec<String> = raw.sources.iter().map(|cell| cell.point.id.clone()).collect();
        from.sort();
        from.dedup();
        Ok(CellPrediction {
            throughput_per_s: throughput,
            mean_us: mean,
            p50_us: estimate(PredictedMetric::P50),
            p99_us: estimate(PredictedMetric::P99),
            device_busy: EstimatedValue { value: busy, low: busy / spread, high: (busy * spread).min(1.0) },
            cpu_busy: raw.outcome.cpu_busy.filter(|_| raw.demand.cpu_us() > 0.0),
            reads_per_operation: raw.demand.reads(),
            cached_share: raw.cached.map(|cached| cached.share),
            cached_share_later: raw.cached.and_then(|cached| cached.later),
            is_saturated: raw.outcome.is_saturated,
            cache_full_s: raw.outcome.cache_full_s,
            from,
            assumptions,
            shares: raw.outcome.of_mean,
        })
    }

    /// How often a cache misses for the question's system and mix.
    ///
    /// # Errors
    /// When nothing was measured for them, or the distribution has no curve.
    pub fn miss_curve(&self, question: &CellPoint) -> Result<crate::cache::MissCurve, PredictionRefusal> {
        let sources = self.sources(question)?;
        measured::miss_curve(question, &sources)
            .ok_or_else(|| PredictionRefusal::Distribution { distribution: question.distribution.clone() })
    }

    /// Whether a question of this system, mix, size and load can be answered at all, whatever the storage
    /// configuration.
    ///
    /// # Errors
    /// When it is outside of the measured range.
    pub fn check(&self, question: &CellPoint) -> Result<(), PredictionRefusal> {
        check_reach(question, &self.sources(question)?, QuestionChange::NONE)
    }

    /// The effect of a change of the machine on a measured cell: each metric relative to its measured value. Both
    /// simulations have the same errors. So the interval comes from the errors of predicting another storage
    /// configuration, size or load, in proportion to the size of the change: in full if it doubles a metric.
    ///
    /// # Errors
    /// When the change leads out of the measured range.
    pub fn predict_change(
        &self,
        cell: &MeasuredCell,
        change: QuestionChange,
    ) -> Result<[EstimatedValue; 4], PredictionRefusal> {
        let point = &cell.point;
        let before = cell.simulated()?;
        let sources = self.sources(point)?;
        check_reach(point, &sources, change)?;
        let mut demand = cell.demand.clone();
        if change.memory != 1.0 {
            let alike = self.alike(point);
            let demand_at =
                |memory: f64| demand::demand(point, &sources, &alike, memory).map(|asked| asked.demand);
            let (now, then) = (demand_at(1.0)?, demand_at(change.memory)?);
            let of_reads = then.reads() / now.reads().max(1e-9);
            let of_cpu = then.cpu_us() / now.cpu_us().max(1e-9);
            for class in &mut demand.classes {
                class.reads *= of_reads.min(1.0);
                class.cpu_us *= of_cpu.min(1.0);
            }
        }
        let mut cached = cell.cached;
        if change.memory != 1.0 && cached > 0.0 {
            // More memory answers requests that the device would have answered.
            let curve = measured::miss_curve(point, &sources);
            let share_at = |memory: f64| cached::cached(point, &demand, curve.as_ref(), memory);
            let share = |found: Option<CachedShare>| found.map_or(0.0, |cached| cached.share);
            let (now, then) = (share(share_at(1.0)?), share(share_at(change.memory)?));
            cached = (cached * then / now.max(1e-9)).clamp(0.0, 1.0);
        }
        let mut scenario = point.scenario(&demand, cell.cores_at_once, cached);
        scenario.device_speed = change.device_speed;
        scenario.cores =
            scenario.cores.map(|cores| ((f64::from(cores) * change.cores).round() as u32).max(1));
        let after = crate::simulation::simulate(scenario)?;
        let kind = match change {
            QuestionChange { device_speed, .. } if device_speed != 1.0 => LeftOut::Storage,
            QuestionChange { memory, .. } if memory != 1.0 => LeftOut::Size,
            _ => LeftOut::Threads,
        };
        let errors = self.errors(kind).find_system(&point.system);
        if kind == LeftOut::Storage && !errors.tell(PredictedMetric::Throughput) {
            return Err(PredictionRefusal::OneStorage { system: point.system.clone() });
        }
        Ok(PredictedMetric::ALL.map(|metric| {
            let value = metric.simulated(&after) / metric.simulated(before).max(1e-9);
            // More of a resource never makes this network slower; an opposite result is chance.
            let value = if metric == PredictedMetric::Throughput { value.max(1.0) } else { value.min(1.0) };
            let reach = (value.ln().abs() / std::f64::consts::LN_2).clamp(MIN_ERROR_SHARE, 1.0);
            let error = (errors.squared(metric, reach) * reach * reach + MIN_ERROR * MIN_ERROR).sqrt();
            let quantile = errors.quantile(metric, reach) * reach;
            let width = (student_t(errors.count(metric)) * error).max(quantile).min(5.0).exp();
            EstimatedValue { value, low: value / width, high: value * width }
        }))
    }

    /// All cells of the question's system, whatever their mix and distribution.
    fn alike(&self, question: &CellPoint) -> Vec<&MeasuredCell> {
        let is_alike =
            |point: &CellPoint| point.system == question.system && point.settings == question.settings;
        self.cells.iter().map(|cell| &**cell).filter(|cell| is_alike(&cell.point)).collect()
    }

    fn simulate(&self, question: &CellPoint) -> Result<RawPrediction<'_>, PredictionRefusal> {
        let sources = self.sources(question)?;
        check_reach(question, &sources, QuestionChange::NONE)?;
        if let Some(layer) = &question.not_modelled {
            return Err(PredictionRefusal::Layer { what: layer.clone() });
        }
        let OperationDemand { demand, reads, mut assumptions } =
            demand::demand(question, &sources, &self.alike(question), 1.0)?;
        let curve = measured::miss_curve(question, &sources);
        let cached = cached::cached(question, &demand, curve.as_ref(), 1.0)?;
        if cached.is_some_and(|cached| cached.later.is_some()) {
            assumptions.push(
                "a cache device is not full when measuring begins: after a long time it answers more"
                    .to_owned(),
            );
        }
        assumptions.extend(question.assumed.clone());
        let scenario = question.scenario(
            &demand,
            scale_concurrent_cores(question, &sources),
            cached.map_or(0.0, |cached| cached.share),
        );
        let outcome = crate::simulation::simulate(scenario)?;
        if outcome.cache_full_s.is_some() {
            assumptions.push(
                "the write-back cache takes in more than it writes back: once it is full, writes go at the pace of the devices behind it"
                    .to_owned(),
            );
        }
        // A measurement of it would be as long as the existing ones.
        let length_s = sources
            .iter()
            .map(|cell| cell.operations / cell.figures.throughput_per_s.value.max(1e-9))
            .sum::<f64>()
            / sources.len().max(1) as f64;
        let doubt = KindAmbiguity::from_answer(&reads, &demand, length_s * outcome.throughput_per_s);
        Ok(RawPrediction { sources, outcome, demand, doubt, cached, assumptions })
    }

    /// The measured cells of the same system and mix.
    fn sources(&self, question: &CellPoint) -> Result<Vec<&MeasuredCell>, PredictionRefusal> {
        let of_system: Vec<&MeasuredCell> = self
            .cells
            .iter()
            .map(|cell| &**cell)
            .filter(|cell| cell.point.system == question.system)
            .collect();
        // In this order, a refusal names the first property in which no measurement matches the question.
        let Some(first) = of_system.first() else {
            return Err(PredictionRefusal::System { system: question.system.clone() });
        };
        let same_settings: Vec<&MeasuredCell> =
            of_system.iter().copied().filter(|cell| cell.point.settings == question.settings).collect();
        if same_settings.is_empty() {
            let difference = difference(&first.point.settings, &question.settings);
            return Err(PredictionRefusal::Settings { system: question.system.clone(), difference });
        }
        let same_mix: Vec<&MeasuredCell> = same_settings
            .into_iter()
            .filter(|cell| cell.point.mix == question.mix && cell.point.distribution == question.distribution)
            .collect();
        let Some(first) = same_mix.first() else {
            return Err(PredictionRefusal::Mix {
                system: question.system.clone(),
                mix: question.mix.clone(),
                distribution: question.distribution.clone(),
            });
        };
        let machines = |point: &CellPoint| point.nodes.max(1).saturating_mul(point.servers.max(1));
        let (measured, asked) = (machines(&first.point), machines(question));
        let same: Vec<&MeasuredCell> =
            same_mix.iter().copied().filter(|cell| machines(&cell.point) == asked).collect();
        if same.is_empty() {
            return Err(PredictionRefusal::Nodes { measured, asked });
        }
        let (measured, asked) = (same[0].point.record_bytes, question.record_bytes);
        let same: Vec<&MeasuredCell> = same
            .into_iter()
            .filter(|cell| (cell.point.record_bytes / question.record_bytes - 1.0).abs() < 0.05)
            .collect();
        if same.is_empty() {
            return Err(PredictionRefusal::Records { asked: asked as u64, measured: measured as u64 });
        }
        // One that can be simulated is enough. Otherwise the reason for the first one is reported.
        let usable: Vec<&MeasuredCell> =
            same.iter().copied().filter(|cell| cell.simulated().is_ok()).collect();
        if usable.is_empty() {
            return Err(same[0]
                .simulated()
                .err()
                .unwrap_or(PredictionRefusal::System { system: question.system.clone() }));
        }
        Ok(usable)
    }

    fn estimate(
        &self,
        question: &CellPoint,
        raw: &RawPrediction<'_>,
        metric: PredictedMetric,
        errors: &[&SystemErrors],
    ) -> EstimatedValue {
        let simulated = metric.simulated(&raw.outcome);
        if !simulated.is_finite() || raw.outcome.is_saturated {
            let value = if simulated.is_finite() { simulated } else { f64::INFINITY };
            return match metric {
                PredictedMetric::Throughput => EstimatedValue { value, low: value / 1.5, high: value * 1.5 },
                _ => EstimatedValue { value, low: value / 2.0, high: f64::INFINITY },
            };
        }
        let EstimatedValue { value, low, high } = corrected(question, raw, metric);
        // Errors of different kinds add up; each is at least the difference between repetitions.
        let distance = nearest(question, &raw.outcome, &raw.sources);
        let of_kinds: f64 = errors.iter().map(|errors| errors.squared(metric, distance)).sum();
        let spreads: Vec<f64> = raw.sources.iter().filter_map(|cell| metric.spread(cell)).collect();
        let repetitions = if spreads.is_empty() {
            UNREPEATED * UNREPEATED
        } else {
            spreads.iter().map(|spread| spread * spread).sum::<f64>() / spreads.len() as f64
        };
        let error = (of_kinds + repetitions + MIN_ERROR * MIN_ERROR).sqrt();
        let degrees = errors.iter().map(|errors| errors.count(metric)).min().unwrap_or(8);
        let quantiles: f64 = errors.iter().map(|errors| errors.quantile(metric, distance).powi(2)).sum();
        let width = (student_t(degrees) * error).max(quantiles.sqrt()).min(5.0).exp();
        EstimatedValue { value, low: low / width, high: high * width }
    }

    /// The new parts of the question: the answer's error is estimated without such cells.
    fn kinds_left_out(&self, question: &CellPoint, sources: &[&MeasuredCell]) -> Vec<LeftOut> {
        let near = |a: f64, b: f64| (a / b - 1.0).abs() < 0.02;
        let mut kinds = Vec::new();
        let knows_storage = sources.iter().any(|cell| cell.point.volumes == question.volumes);
        if !knows_storage {
            kinds.push(LeftOut::Storage);
        }
        let ratio = question.data_to_memory();
        if !sources.iter().any(|cell| near(cell.point.data_to_memory(), ratio)) {
            kinds.push(LeftOut::Size);
        }
        let knows_load = sources.iter().any(|cell| {
            cell.point.threads == question.threads
                && std::mem::discriminant(&cell.point.arrivals) == std::mem::discriminant(&question.arrivals)
        });
        if !knows_load {
            kinds.push(LeftOut::Threads);
        }
        kinds
    }

    fn errors(&self, kind: LeftOut) -> &ResidualErrors {
        self.errors[kind as usize].get_or_init(|| residuals::errors(self, kind))
    }

    /// The answer with an interval only for its ambiguity, and the distance of the nearest cell, for the estimate by
    /// leaving cells out.
    fn value(&self, question: &CellPoint) -> Result<([EstimatedValue; 4], f64), PredictionRefusal> {
        let raw = self.simulate(question)?;
        let values = PredictedMetric::ALL.map(|metric| corrected(question, &raw, metric));
        Ok((values, nearest(question, &raw.outcome, &raw.sources)))
    }
}

/// A simulated value with its correction, and its possible range, with a separate correction for each end.
fn corrected(question: &CellPoint, raw: &RawPrediction<'_>, metric: PredictedMetric) -> EstimatedValue {
    let outcome = &raw.outcome;
    let adjusted =
        |simulated: f64| simulated * correction(question, outcome, &raw.sources, metric, simulated);
    let value = adjusted(metric.simulated(outcome));
    let (below, above) = raw.doubt.around(metric, outcome);
    EstimatedValue { value, low: adjusted(below).min(value), high: adjusted(above).max(value) }
}

/// The same with a cache device that answers less and more than assumed; nothing without one.
fn around(
    question: &CellPoint,
    raw: &RawPrediction<'_>,
) -> Result<Vec<SimulationOutcome>, PredictionRefusal> {
    let Some(CachedShare { share, .. }) = raw.cached else { return Ok(Vec::new()) };
    [share - CACHED_ERROR, share + CACHED_ERROR]
        .into_iter()
        .map(|share| {
            let cores_at_once = scale_concurrent_cores(question, &raw.sources);
            let scenario = question.scenario(&raw.demand, cores_at_once, share.clamp(0.0, 1.0));
            crate::simulation::simulate(scenario)
        })
        .collect()
}

/// An interval that also contains the difference between these outcomes.
fn widened(
    estimate: EstimatedValue,
    metric: PredictedMetric,
    outcome: &SimulationOutcome,
    around: &[SimulationOutcome],
) -> EstimatedValue {
    let mut wider = estimate;
    for other in around {
        let ratio = metric.simulated(other) / metric.simulated(outcome).max(1e-9);
        if metric != PredictedMetric::Throughput && (other.is_saturated || !ratio.is_finite()) {
            wider.high = f64::INFINITY;
        } else if ratio.is_finite() {
            wider.low = wider.low.min(estimate.low * ratio);
            wider.high = wider.high.max(estimate.high * ratio);
        }
    }
    wider
}

/// How many cores run at a time, as on the host of the nearest cell's measurement: its slow motion is part of the
/// measurement.
fn scale_concurrent_cores(question: &CellPoint, sources: &[&MeasuredCell]) -> Option<u32> {
    let (cores, measured) = (question.cores?, sources.first()?);
    let (of_cores, at_once) = (measured.point.cores?, measured.cores_at_once?);
    Some((f64::from(cores) * f64::from(at_once) / f64::from(of_cores)).round().max(1.0) as u32)
}

fn check_reach(
    question: &CellPoint,
    sources: &[&MeasuredCell],
    change: QuestionChange,
) -> Result<(), PredictionRefusal> {
    let range = |input_of: fn(&CellPoint) -> f64| {
        sources
            .iter()
            .map(|cell| input_of(&cell.point))
            .fold((f64::INFINITY, 0.0f64), |(low, high), value| (low.min(value), high.max(value)))
    };
    let (from, to) = range(CellPoint::data_to_memory);
    let ratio = question.data_to_memory() / change.memory;
    if !(from / SIZE_REACH..=to * SIZE_REACH).contains(&ratio) {
        return Err(PredictionRefusal::Size { ratio, from, to });
    }
    let (from, to) = range(|point| f64::from(point.threads));
    if !(from / THREADS_REACH..=to * THREADS_REACH).contains(&f64::from(question.threads)) {
        return Err(PredictionRefusal::Threads {
            threads: question.threads,
            from: from as u32,
            to: to as u32,
        });
    }
    let in_words = |cores: Option<u32>| cores.map_or("no number of".to_owned(), |cores| cores.to_string());
    let fits = |cell: &&MeasuredCell| match (cell.point.cores, question.cores) {
        (Some(measured), Some(asked)) => {
            (1.0 / CORES_REACH..=CORES_REACH).contains(&(f64::from(asked) / f64::from(measured)))
        }
        (measured, asked) => measured == asked,
    };
    if !sources.iter().any(fits) {
        let (measured, asked) = (in_words(sources[0].point.cores), in_words(question.cores));
        return Err(PredictionRefusal::Cores { measured, asked });
    }
    Ok(())
}

fn difference(
    measured: &std::collections::BTreeMap<String, String>,
    asked: &std::collections::BTreeMap<String, String>,
) -> String {
    let value = |settings: &std::collections::BTreeMap<String, String>, key: &str| {
        settings.get(key).map_or("not set".to_owned(), Clone::clone)
    };
    let keys = measured.keys().chain(asked.keys());
    let first = keys.into_iter().find(|key| measured.get(*key) != asked.get(*key));
    first.map_or_else(String::new, |key| {
        format!("{key} was {}, and is {} in the question", value(measured, key), value(asked, key))
    })
}
