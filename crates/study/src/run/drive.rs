//! A cell's workload for the load generator, and observation of the generator while it runs.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use underlay_record::MeasuredWindow;
use underlay_sync::Mutex;
use underlay_workload::{
    AcknowledgedWrites, ArrivalProcess, BackgroundWork, CoreWorkload, OperationMix, PropertyOrigin, RatePart,
    RateProfile, RunAftermath, RunError, RunHandle, RunPhase, RunSpec, TimelineInterval, YcsbProperties,
};

use super::cell_plan::CellPlan;
use super::{CellError, LiveCell, RunObserver};
use crate::session::{LoadOutcome, ServerSession};
use crate::spec::BesideSpec;

/// The number of intervals in the measured time, for the time series and its statistics.
const SERIES_INTERVALS: u32 = 40;
/// Loading and deleting go through all keys, but no longer than this many times the study's duration.
const WHOLE_RANGE_LIMIT: u32 = 4;
/// Threads that load data which nobody measures.
const LOADING_THREADS: u32 = 4;
/// A limit for work that isn't measured.
const UNMEASURED_LIMIT: Duration = Duration::from_secs(3600);
/// Another program may have filled the disk briefly, and existing data needs no more room.
const FULL_FOR: Duration = Duration::from_secs(5);
const WATCH_INTERVAL: Duration = Duration::from_millis(200);
/// Operations in flight when the user stops the run get this long to end. In slow motion some would wait for minutes.
const STOP_GRACE: Duration = Duration::from_secs(5);

/// The purpose of a generator's run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DrivePurpose {
    Loading,
    FillingCaches,
    Measuring,
}

impl DrivePurpose {
    /// The phase of a run without warm-up.
    fn phase(self) -> &'static str {
        match self {
            DrivePurpose::Loading => "loading",
            DrivePurpose::FillingCaches => "filling caches",
            DrivePurpose::Measuring => "measuring",
        }
    }
}

/// Hooks at the edges of the measured window.
pub(super) trait WindowHooks: Sync {
    /// The measured window begins at this instant: now, or without a warm-up in a moment and after `measuring_begins`.
    fn window_begins(&self, _at: Instant) {}
    fn measuring_begins(&self) {}
    fn measuring_ended(&self) {}
}

impl WindowHooks for () {}

/// The files of a run that are kept in addition to its metrics.
#[derive(Clone, Copy, Default)]
pub(super) struct KeptOutputs<'a> {
    /// The file of all operations.
    pub raw: Option<&'a Path>,
    /// The acknowledged writes.
    pub writes: Option<&'a Arc<AcknowledgedWrites>>,
    /// The number of parts that each interval of the timeline is cut into; 0 for no timeline.
    pub timeline_parts: u32,
    /// The path of files on this host that grow with written data and may fill its disk.
    pub images: Option<&'a Path>,
}

/// The generator's result.
pub(super) struct DriveResult {
    pub measured: MeasuredWindow,
    /// Empty unless it was requested.
    pub timeline: Vec<TimelineInterval>,
    /// Its findings about itself.
    pub aftermath: RunAftermath,
    /// Why the requested file of all operations is missing.
    pub raw_problem: Option<String>,
    /// When the measured window began.
    pub window: Option<Instant>,
}

fn workload(plan: &CellPlan<'_>) -> Result<CoreWorkload, CellError> {
    let mut properties = YcsbProperties::new();
    let mut set = |key: &str, value: &str| {
        properties.add(key, value, PropertyOrigin::Argument(format!("{key}={value}")))
    };
    for (key, value) in &plan.workload.properties {
        set(key, value);
    }
    // After the study's own properties, since the last of several values counts.
    set("recordcount", &plan.records_here.to_string());
    set("fieldcount", &plan.workload.fields.to_string());
    set("fieldlength", &plan.workload.field_bytes.to_string());
    // Loading and deleting go through all keys in any case.
    set("requestdistribution", &plan.requests()?.distribution);
    properties.workload().map_err(|mistakes| CellError::Failed(mistakes.to_string()))
}

fn mix(name: &str) -> Result<OperationMix, CellError> {
    OperationMix::parse(name).map_err(|unknown| CellError::Failed(unknown.to_string()))
}

/// The load phase before the measurement: every record once, as fast as possible.
pub(super) fn loading_spec(plan: &CellPlan<'_>) -> Result<RunSpec, CellError> {
    Ok(RunSpec {
        workload: Arc::new(workload(plan)?),
        mix: mix("load")?,
        threads: LOADING_THREADS,
        share: None,
        rate_per_s: None,
        rate_profile: None,
        arrivals: ArrivalProcess::Constant,
        beside: None,
        warmup: Duration::ZERO,
        duration: UNMEASURED_LIMIT,
        operation_limit: Some(plan.records_here),
        dilation: 1.0,
        series_intervals: SERIES_INTERVALS,
        // The data is the same in all repetitions.
        seed: plan.study.run.seed,
    })
}

/// The cell's own mix, to fill the caches. A fixed number of operations, so that every storage configuration gets the
/// same.
pub(super) fn filling_spec(plan: &CellPlan<'_>, operations: u64) -> Result<RunSpec, CellError> {
    let requests = plan.requests()?;
    let own = mix(&requests.mix)?;
    Ok(RunSpec {
        workload: Arc::new(workload(plan)?),
        // A mix that inserts would add the same keys as the measured one.
        mix: if own.changes_the_key_set() { mix("c")? } else { own },
        threads: requests.threads,
        share: None,
        rate_per_s: None,
        rate_profile: None,
        arrivals: ArrivalProcess::Constant,
        beside: None,
        warmup: Duration::ZERO,
        duration: UNMEASURED_LIMIT,
        operation_limit: Some(operations),
        dilation: 1.0,
        series_intervals: SERIES_INTERVALS,
        // Must not repeat the measured requests, since those would then hit the cache.
        seed: plan.seed ^ 0xf111_cace,
    })
}

pub(super) fn measuring_spec(plan: &CellPlan<'_>) -> Result<RunSpec, CellError> {
    let requests = plan.requests()?;
    let mix = mix(&requests.mix)?;
    let whole_range = mix.visits_every_record();
    let run = &plan.study.run;
    let warmup = if whole_range { Duration::ZERO } else { run.warmup };
    Ok(RunSpec {
        workload: Arc::new(workload(plan)?),
        threads: requests.threads,
        share: None,
        rate_per_s: plan.cell().rate_per_s(),
        // A warm-up is in wall time, a profile in modelled time.
        rate_profile: profile(plan.cell().rate_parts(), warmup.div_f64(plan.scale.time))
            .map_err(CellError::Failed)?,
        arrivals: plan.workload.arrivals,
        beside: background_work(plan)?,
        warmup,
        duration: if whole_range { run.duration * WHOLE_RANGE_LIMIT } else { run.duration },
        operation_limit: whole_range.then_some(plan.records_here),
        dilation: plan.scale.time,
        series_intervals: SERIES_INTERVALS,
        seed: plan.seed,
        mix,
    })
}

/// The background load next to the measured operations.
fn background_work(plan: &CellPlan<'_>) -> Result<Option<BackgroundWork>, CellError> {
    let Some(background) = &plan.workload.beside else { return Ok(None) };
    let BesideSpec { threads, rate_per_s, .. } = *background;
    Ok(Some(BackgroundWork { mix: mix(&background.mix)?, threads, rate_per_s }))
}

/// A rate that changes during the measurement; the warm-up uses the first rate.
fn profile(changing: &[underlay_record::RatePart], warmup: Duration) -> Result<Option<RateProfile>, String> {
    let Some(first) = changing.first() else { return Ok(None) };
    let mut parts = Vec::new();
    if !warmup.is_zero() {
        parts.push(RatePart::Steady { rate_per_s: first.from_per_s, length: warmup });
    }
    for part in changing {
        let length = Duration::try_from_secs_f64(part.length_s).map_err(|error| error.to_string())?;
        parts.push(RatePart::Ramp { from_per_s: part.from_per_s, to_per_s: part.to_per_s, length });
    }
    RateProfile::from_parts(&parts).map(Some)
}

/// The time series' interval in modelled seconds.
pub(super) fn interval_s(spec: &RunSpec) -> f64 {
    spec.duration.as_secs_f64() / spec.dilation / f64::from(spec.series_intervals.max(1))
}

/// Runs the generator against a started system, and reports progress to the observer.
pub(super) fn drive(
    spec: &RunSpec,
    session: &ServerSession,
    hooks: &dyn WindowHooks,
    observer: &dyn RunObserver,
    stop: &AtomicBool,
    purpose: DrivePurpose,
    keep: KeptOutputs<'_>,
) -> Result<DriveResult, CellError> {
    let window = Mutex::new(None);
    let mut control = RunHandle::new();
    control.on_window = Some(Box::new(|instant| {
        *window.lock() = Some(instant);
        hooks.window_begins(instant);
    }));
    control.on_measurement_started = Some(Box::new(|| hooks.measuring_begins()));
    control.on_measurement_ended = Some(Box::new(|| hooks.measuring_ended()));
    control.timeline_parts = keep.timeline_parts;
    let control = control;
    let (ended, is_full) = (AtomicBool::new(false), AtomicBool::new(false));
    let LoadOutcome { measured: outcome, raw_problem } = std::thread::scope(|scope| {
        scope.spawn(|| watch(&control, session, observer, stop, &ended, purpose));
        if let Some(images) = keep.images {
            scope.spawn(|| watch_space(images, &control, session, &ended, &is_full));
        }
        let outcome = session.run(spec, &control, keep.raw, keep.writes);
        ended.store(true, Ordering::Relaxed);
        outcome
    });
    if let (Some(file), Err(_)) = (keep.raw, &outcome) {
        // Operations of a cell that has no metrics.
        let _ = std::fs::remove_file(file);
    }
    // Before the outcome: a failure while everything is being stopped says nothing.
    if stop.load(Ordering::Relaxed) {
        return Err(CellError::Interrupted);
    }
    let window = *window.lock();
    match outcome {
        // Earlier measurements stay valid.
        Err(_) if is_full.load(Ordering::Relaxed) => {
            Err(CellError::Failed("it was ended, since nothing more could be written".to_owned()))
        }
        Ok(measured) => Ok(DriveResult {
            measured,
            timeline: control.timeline(),
            aftermath: control.aftermath(),
            raw_problem,
            window,
        }),
        Err(RunError::Stopped) => Err(CellError::Interrupted),
        Err(error) => Err(CellError::Failed(error.to_string())),
    }
}

/// Ends everything once this host's disk has been full for a while. A system whose devices fail may retry for minutes,
/// or wait forever.
fn watch_space(
    images: &Path,
    control: &RunHandle<'_>,
    session: &ServerSession,
    ended: &AtomicBool,
    is_full: &AtomicBool,
) {
    let mut full_since: Option<Instant> = None;
    while !ended.load(Ordering::Relaxed) {
        std::thread::sleep(WATCH_INTERVAL);
        if !underlay_files::is_full(images) {
            full_since = None;
        } else if full_since.get_or_insert_with(Instant::now).elapsed() > FULL_FOR
            // The cell that was just measured still needs its servers.
            && !ended.load(Ordering::Relaxed)
        {
            is_full.store(true, Ordering::Relaxed);
            control.stop.store(true, Ordering::Relaxed);
            session.servers().abort();
            return;
        }
    }
}

/// Passes on the generator's progress. Passes the user's stop to the generator, and to the system if operations then
/// still wait for it.
fn watch(
    control: &RunHandle<'_>,
    session: &ServerSession,
    observer: &dyn RunObserver,
    stop: &AtomicBool,
    ended: &AtomicBool,
    purpose: DrivePurpose,
) {
    let mut stopped: Option<Instant> = None;
    let mut is_aborted = false;
    while !ended.load(Ordering::Relaxed) {
        if stop.load(Ordering::Relaxed) {
            control.stop.store(true, Ordering::Relaxed);
            if !is_aborted && stopped.get_or_insert_with(Instant::now).elapsed() > STOP_GRACE {
                session.servers().abort();
                is_aborted = true;
            }
        }
        let seen = control.progress();
        let by_time = seen
            .phase_length
            .map(|length| seen.phase_elapsed.as_secs_f64() / length.as_secs_f64().max(f64::MIN_POSITIVE));
        let by_count = seen.operation_limit.map(|limit| seen.operations as f64 / limit.max(1) as f64);
        observer.live(&LiveCell {
            phase: match (seen.phase, by_time) {
                (RunPhase::WarmingUp, _) => "warming up",
                // The measured time is over, but operations that began in it are not.
                (_, Some(share)) if share >= 1.0 && by_count.is_none() => "waiting for the last operations",
                _ => purpose.phase(),
            }
            .into(),
            preparing: purpose != DrivePurpose::Measuring,
            throughput_per_s: seen.throughput_per_s,
            mean_us: seen.mean_us,
            p50_us: seen.p50_us,
            p99_us: seen.p99_us,
            errors: seen.errors,
            progress: by_count.or(by_time).map(|share| share.min(1.0)),
            figure: None,
        });
        std::thread::sleep(WATCH_INTERVAL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changing_rate_begins_with_measurement() {
        let part =
            |from_per_s, to_per_s, length_s| underlay_record::RatePart { from_per_s, to_per_s, length_s };
        assert_eq!(profile(&[], Duration::ZERO), Ok(None));
        let rising = [part(100.0, 100.0, 10.0), part(100.0, 300.0, 10.0)];
        for warmup_s in [0u32, 5] {
            let begin_s = f64::from(warmup_s);
            let found = profile(&rising, Duration::from_secs(warmup_s.into())).unwrap().unwrap();
            let rates = [0.0, 9.0, 15.0, 20.0, 99.0].map(|t_s| found.rate_at(begin_s + t_s));
            assert_eq!(rates, [100.0, 100.0, 200.0, 300.0, 300.0]);
        }
        assert!(profile(&[part(1.0, 1.0, -1.0)], Duration::ZERO).is_err());
    }
}
