//! Observing and stopping a run from outside.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use underlay_record::Histogram;
use underlay_sync::Mutex;

use crate::mix::OperationKind;
use crate::run::raw::RawLog;
use crate::run::series::{IntervalLatencies, IntervalSeries, TimelineInterval};
use crate::run::ycsb_stats::YcsbStatistics;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RunPhase {
    #[default]
    Connecting,
    WarmingUp,
    Measuring,
    /// The measured time is over; the run waits for operations in flight.
    Finishing,
    Ended,
}

/// The current state of a run. Rates and latencies are in modelled time, durations in wall time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RunProgress {
    pub phase: RunPhase,
    /// Answered since the run began, warm-up included.
    pub operations: u64,
    /// Failed since the run began, warm-up included.
    pub errors: u64,
    /// Over the last wall second.
    pub throughput_per_s: f64,
    /// Over the last wall second, like the next two: the mean within 6 %, quantiles within 12 %.
    pub mean_us: f64,
    pub p50_us: f64,
    pub p99_us: f64,
    /// Since the phase began.
    pub phase_elapsed: Duration,
    /// The length of the phase, where only time ends it.
    pub phase_length: Option<Duration>,
    /// The total number of the run's operations, where this ends it.
    pub operation_limit: Option<u64>,
}

/// A run's observations about itself, which are no measurements of the system.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RunAftermath {
    /// The share of wall time that the hypervisor took from this machine's cores during the measurement, 0 to 1.
    pub steal_share: f64,
    /// Open loop: operations that were due within the measured window but were never sent, because the system was
    /// behind until its end. Their latency was recorded as their wait until then.
    pub unstarted: u64,
    /// Errors that also have a latency: timeouts of operations that were due within the measured window.
    pub timed_timeouts: u64,
    /// Records whose values differ from the written ones. They do not count as errors.
    pub integrity_mismatches: u64,
    /// Connections that were lost and restored.
    pub reconnections: u32,
    /// Threads that lost their connection for good.
    pub lost_threads: u32,
    /// How much faster the run's clock went than the kernel's: 1e-6 is a microsecond per second.
    pub clock_drift: f64,
    /// Operations that were answered before or after the measured window, and so are in no throughput.
    pub outside: u64,
    /// Absent where the run ended before it.
    pub window: Option<RunWindow>,
}

/// When a run was measured, and how much of the earlier time matters for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunWindow {
    pub began: Instant,
    pub ended: Instant,
    /// The length of the warm-up before it.
    pub warm_up: Duration,
    /// For a rate, since when operations were continuously in flight or overdue as the window began. A stall in that
    /// time left a backlog that was worked off in the window. Absent if there were none.
    pub behind_since: Option<Instant>,
}

impl RunWindow {
    /// A window without a warm-up.
    pub fn alone(began: Instant, ended: Instant) -> RunWindow {
        RunWindow { began, ended, warm_up: Duration::ZERO, behind_since: None }
    }

    /// The time from which stalls count.
    pub fn counts_from(&self) -> Instant {
        self.behind_since.map_or(self.began, |behind_since| behind_since.min(self.began))
    }

    pub fn length(&self) -> Duration {
        self.ended.saturating_duration_since(self.began)
    }

    /// When the warm-up began.
    pub fn warm_up_began(&self) -> Instant {
        self.began.checked_sub(self.warm_up).unwrap_or(self.began)
    }
}

type PhaseCallback<'a> = Box<dyn Fn() + Send + Sync + 'a>;
type StartTimer<'a> = Box<dyn Fn(Instant) + Send + Sync + 'a>;
type StartTrigger<'a> = Box<dyn Fn() -> Option<Instant> + Send + Sync + 'a>;

/// A run's handle, shared with its observers. Its callbacks may borrow for `'a`.
#[derive(Default)]
pub struct RunHandle<'a> {
    /// Set it to end the run as soon as the operations in flight are answered.
    pub stop: Arc<AtomicBool>,
    /// Called on the thread that called `run` when all connections are open. It returns when to begin, and may wait
    /// until that is known; `None` ends the run like a stop. Without it a run begins at once.
    pub on_connected: Option<StartTrigger<'a>>,
    /// Called on the thread that called `run` with the instant at which the measured window begins. Without a warm-up,
    /// it is called a moment earlier, and after the next callback.
    pub on_window: Option<StartTimer<'a>>,
    /// Called on the thread that called `run` when the measured window begins. Without a warm-up, it is called before,
    /// for as long as it takes.
    pub on_measurement_started: Option<PhaseCallback<'a>>,
    /// Called on the same thread when the window ends. Always called if the other one was.
    pub on_measurement_ended: Option<PhaseCallback<'a>>,
    /// Set it to keep the measurements of a stopped run. Otherwise, and if there are none, it ends with
    /// [`RunError::Stopped`](crate::RunError::Stopped).
    pub keeps_stopped_run: bool,
    /// Set it to fill [`RunHandle::intervals`] after the run.
    pub keeps_intervals: bool,
    /// Set it to fill [`RunHandle::particulars`] after the run.
    pub keeps_particulars: bool,
    /// If above 0, each interval of the time series is cut into this many parts for [`RunHandle::timeline`].
    pub timeline_parts: u32,
    progress: Mutex<RunProgress>,
    aftermath: Mutex<RunAftermath>,
    intervals: Mutex<Vec<IntervalLatencies>>,
    particulars: Mutex<YcsbStatistics>,
    timeline: Mutex<Vec<TimelineInterval>>,
    series: Mutex<Option<Arc<IntervalSeries>>>,
    raw_log: Mutex<Option<RawLog>>,
}

/// One kind of operation since the measured time began.
#[derive(Clone, Debug, PartialEq)]
pub struct LatenciesSoFar {
    pub kind: OperationKind,
    /// From the intended start.
    pub latency: Histogram,
    /// From the actual start; `None` in a closed loop, where it is the latency.
    pub service: Option<Histogram>,
}

impl RunHandle<'_> {
    pub fn new() -> Self {
        RunHandle::default()
    }

    /// A control that is stopped by an existing flag, such as a signal handler's.
    pub fn with_stop(stop: Arc<AtomicBool>) -> Self {
        RunHandle { stop, ..RunHandle::default() }
    }

    pub fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// The latest progress, at most a quarter of a second old while the machine keeps up.
    pub fn progress(&self) -> RunProgress {
        *self.progress.lock()
    }

    /// Complete once `run` has returned.
    pub fn aftermath(&self) -> RunAftermath {
        *self.aftermath.lock()
    }

    /// The latencies of each interval of the time series by kind of operation, once `run` has returned. They are moved
    /// out, and empty unless [`RunHandle::keeps_intervals`] was set.
    pub fn intervals(&self) -> Vec<IntervalLatencies> {
        std::mem::take(&mut *self.intervals.lock())
    }

    /// Answers and failures in each part of an interval, once `run` has returned. They are moved out, and empty unless
    /// [`RunHandle::timeline_parts`] was set.
    pub fn timeline(&self) -> Vec<TimelineInterval> {
        std::mem::take(&mut *self.timeline.lock())
    }

    /// The run's details besides its measurement, once `run` has returned. They are moved out, and empty unless
    /// [`RunHandle::keeps_particulars`] was set.
    pub fn particulars(&self) -> YcsbStatistics {
        std::mem::take(&mut *self.particulars.lock())
    }

    /// The latencies of the measured time so far. Threads hand over their counts at the end of each interval of the
    /// time series, so the latest are missing.
    pub fn latencies_so_far(&self) -> Vec<LatenciesSoFar> {
        let series = self.series.lock().clone();
        let Some(series) = series else { return Vec::new() };
        let so_far = |kind| {
            let latencies = series.latencies(kind)?;
            Some(LatenciesSoFar { kind, latency: latencies.latency, service: latencies.service })
        };
        OperationKind::ALL.into_iter().filter_map(so_far).collect()
    }

    pub(crate) fn share_series(&self, series: &Arc<IntervalSeries>) {
        *self.series.lock() = Some(Arc::clone(series));
    }

    pub(crate) fn set_particulars(&self, particulars: YcsbStatistics) {
        *self.particulars.lock() = particulars;
    }

    /// Makes the next run log every operation. The log ends with the run; its other end must be read meanwhile.
    pub fn log_operations(&self, log: RawLog) {
        *self.raw_log.lock() = Some(log);
    }

    pub(crate) fn take_raw_log(&self) -> Option<RawLog> {
        self.raw_log.lock().take()
    }

    pub(crate) fn set_intervals(&self, intervals: Vec<IntervalLatencies>) {
        *self.intervals.lock() = intervals;
    }

    pub(crate) fn set_timeline(&self, timeline: Vec<TimelineInterval>) {
        *self.timeline.lock() = timeline;
    }

    pub(crate) fn set_progress(&self, progress: RunProgress) {
        *self.progress.lock() = progress;
    }

    pub(crate) fn set_phase(&self, phase: RunPhase) {
        let mut progress = self.progress.lock();
        progress.phase = phase;
        progress.phase_elapsed = Duration::ZERO;
        progress.phase_length = None;
    }

    pub(crate) fn set_aftermath(&self, aftermath: RunAftermath) {
        *self.aftermath.lock() = aftermath;
    }
}
