//! A run: threads that send a workload's operations to a system, and their combined measurements.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::{self, Sender};
use std::thread::{self, ScopedJoinHandle, Thread};
use std::time::{Duration, Instant};

use underlay_record::{GeneratorCost, IntegrityRecord, MeasuredWindow, Pauses, RecordedLatency};
use underlay_sync::{Condvar, Mutex, timer_slack};

use crate::client::{Client, ClientError};
use crate::draw::operations::{OperationSource, SharedOperations};
use crate::draw::values;
use crate::run::beside::BesideStage;
use crate::run::clock::{MonotonicClock, RunClock, TOLERATED_DRIFT};
use crate::run::control::{RunAftermath, RunHandle, RunPhase, RunProgress, RunWindow};
use crate::run::live::{LiveCounters, LiveMeter};
use crate::run::machine_use::{MachineSnapshot, MachineUse};
use crate::run::pacing::ThreadSchedule;
use crate::run::pauses::PauseWatch;
use crate::run::rate_profile::RateProfile;
use crate::run::raw::RawLog;
use crate::run::recorder::{
    ErrorSamples, MeasuredSpan, MergedRecorder, OperationBurst, ThreadRecord, ThreadRecorder,
};
use crate::run::series::{IntervalCut, IntervalSeries};
use crate::run::spec::{BackgroundWork, RunSpec};
use crate::run::worker::{ThreadEnding, WorkerReport, WorkerThread};
use crate::run::ycsb_stats::ParticularCounts;

/// The name prefix of threads that each stand for a client.
pub const CLIENT_THREADS: &str = "client-";

/// The time between the last connection and the first operation, for threads to wake up.
const START_DELAY_NS: u64 = 2_000_000;
const PROGRESS_INTERVAL: Duration = Duration::from_millis(250);
// Far enough below `u64::MAX` to add a start and a warm-up.
const MAX_WINDOW_NS: u64 = 1 << 62;
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The specification cannot be run: nothing was started.
    #[error("the workload cannot be run: {}", problems.join("; "))]
    Spec { problems: Vec<String> },
    #[error("client thread {thread} could not connect: {source}")]
    Connect { thread: u32, source: ClientError },
    /// Every thread lost its connection and could not restore it.
    #[error("all {threads} connections were lost, the last with: {source}{}", first_words(samples))]
    AllLost { threads: u32, source: ClientError, samples: Vec<String> },
    /// It was stopped by its [`RunHandle`].
    #[error("the run was stopped")]
    Stopped,
    #[error(
        "all operations were done before the measured time began: \
         ask for a shorter warm-up, more records or more operations"
    )]
    NothingMeasured,
    /// Times in nanoseconds are not reliable.
    #[error(
        "the processor's time stamp counter and the kernel's clock drifted apart by {parts_per_million:.0} parts per million \
         during the run, as happens when a machine is suspended or migrated. Run it again; if that happens again, boot with \
         another clock source"
    )]
    Clock { parts_per_million: f64 },
    #[error(
        "client thread {thread} could not be started: {source}; ask for fewer threads, or raise the limit on processes"
    )]
    Spawn { thread: u32, source: std::io::Error },
    /// A defect of a client or of the generator.
    #[error("client thread {thread} failed unexpectedly: {text}")]
    Panicked { thread: u32, text: String },
}

fn first_words(samples: &[String]) -> String {
    samples.iter().take(3).map(|sample| format!("\n  {sample}")).collect()
}

/// Opens a thread's connection; threads call it at the same time.
pub type ThreadConnector<'a> = &'a (dyn Fn(u32) -> Result<Box<dyn Client>, ClientError> + Sync);

/// Connected threads wait here for a common start.
#[derive(Debug, Default)]
struct StartGate {
    /// `Some(None)` ends all threads.
    start_ns: Mutex<Option<Option<u64>>>,
    opened: Condvar,
}

impl StartGate {
    fn open(&self, start_ns: Option<u64>) {
        *self.start_ns.lock() = Some(start_ns);
        self.opened.notify_all();
    }

    fn wait(&self) -> Option<u64> {
        let mut start_ns = self.start_ns.lock();
        loop {
            match *start_ns {
                Some(start_ns) => return start_ns,
                None => start_ns = self.opened.wait(start_ns),
            }
        }
    }
}

/// Tells the coordinator that a thread has ended, even by a panic.
struct EndSignal<'a> {
    active: &'a AtomicU32,
    coordinator: Thread,
}

impl Drop for EndSignal<'_> {
    fn drop(&mut self) {
        self.active.fetch_sub(1, Ordering::SeqCst);
        self.coordinator.unpark();
    }
}

/// State shared by the threads of a run; times count from `origin`.
struct ThreadShared<'a> {
    spec: &'a RunSpec,
    connect: ThreadConnector<'a>,
    stop: &'a AtomicBool,
    operations: SharedOperations,
    beside: Option<BesideStage>,
    clock: MonotonicClock,
    gate: StartGate,
    samples: ErrorSamples,
    live: Vec<LiveCounters>,
    active: AtomicU32,
    /// When the coordinating thread saw that the run was stopped.
    stopped_ns: std::sync::OnceLock<u64>,
    series: std::sync::OnceLock<Arc<IntervalSeries>>,
    particulars: Option<ParticularCounts>,
    raw_log: Option<RawLog>,
}

/// Sends the workload to a system and measures its answers.
///
/// In slow motion all results are already in modelled time. Blocks until the last operation in flight is answered,
/// which a client's timeout limits.
///
/// # Errors
/// [`RunError`]. Errors of single operations are counted and sampled in [`MeasuredWindow`], and do not end the run.
pub fn run(
    spec: &RunSpec,
    connect: ThreadConnector<'_>,
    control: &RunHandle,
) -> Result<MeasuredWindow, RunError> {
    // Taken before anything can fail: its reader waits until it is dropped.
    let raw_log = control.take_raw_log();
    spec.check().map_err(|problems| RunError::Spec { problems })?;
    control.set_phase(RunPhase::Connecting);
    let operations = SharedOperations::new(
        Arc::clone(&spec.workload),
        spec.mix.clone(),
        spec.threads,
        spec.operation_limit,
    )
    .map_err(|problem| RunError::Spec { problems: vec![problem] })?;
    let background = spec.beside.as_ref().map(|background| BesideStage::new(background, spec)).transpose();
    let background_stage = background.map_err(|problem| RunError::Spec { problems: vec![problem] })?;
    let all_threads = spec.all_threads();
    let cores = thread::available_parallelism().map_or(1, usize::from);
    // A spinning thread takes a core from the system under test: only if most cores are free.
    let spins = all_threads as usize * 2 <= cores;
    let stage = ThreadShared {
        spec,
        connect,
        stop: &control.stop,
        operations,
        beside: background_stage,
        clock: MonotonicClock::start(spins),
        gate: StartGate::default(),
        samples: ErrorSamples::default(),
        live: (0..all_threads).map(|_| LiveCounters::default()).collect(),
        active: AtomicU32::new(all_threads),
        stopped_ns: std::sync::OnceLock::new(),
        series: std::sync::OnceLock::new(),
        particulars: control.keeps_particulars.then(ParticularCounts::default),
        raw_log,
    };
    let outcome = thread::scope(|scope| {
        let (connected, connections) = mpsc::channel();
        let mut threads = Vec::new();
        for thread in 0..all_threads {
            let (stage, connected, coordinator) = (&stage, connected.clone(), thread::current());
            let spawned = thread::Builder::new()
                .name(format!("{CLIENT_THREADS}{thread}"))
                .spawn_scoped(scope, move || stage.client_thread(thread, connected, coordinator));
            match spawned {
                Ok(handle) => threads.push(handle),
                Err(error) => {
                    stage.gate.open(None);
                    return Err(RunError::Spawn { thread, source: error });
                }
            }
        }
        // The loop below ends with the last sender: threads have their own, and this one would keep it waiting.
        drop(connected);
        let mut failure = None;
        for (thread, result) in &connections {
            if let Err(error) = result {
                failure.get_or_insert(RunError::Connect { thread, source: error });
            }
        }
        if failure.is_none() && control.is_stopped() {
            failure = Some(RunError::Stopped);
        }
        let mut begin = None;
        if failure.is_none()
            && let Some(starter) = &control.on_connected
        {
            begin = starter();
            failure = begin.is_none().then_some(RunError::Stopped);
        }
        if let Some(failure) = failure {
            stage.gate.open(None);
            return Err(failure);
        }
        let watch = PauseWatch::start();
        let window = stage.start(control, begin);
        let watched = stage.watch(window, control);
        let reports = join(threads)?;
        let watched = watched.map(|(machine_use, ended)| {
            let seen = stage.seen(window, ended, &reports);
            ProcessObservation { machine_use, pauses: watch.over(&seen), window: seen }
        });
        Ok((window, watched, reports))
    });
    control.set_phase(RunPhase::Ended);
    let (window, watched, reports) = outcome?;
    stage.conclude(window, watched, reports, control)
}

/// Observations of this process and this machine during the measurement of a run.
#[derive(Clone, Copy, Debug)]
struct ProcessObservation {
    machine_use: MachineUse,
    pauses: Pauses,
    window: RunWindow,
}

type JoinedThread<'scope> = ScopedJoinHandle<'scope, Option<WorkerReport>>;

/// In order of the threads' numbers.
fn join(threads: Vec<JoinedThread<'_>>) -> Result<Vec<(u32, WorkerReport)>, RunError> {
    let mut reports = Vec::new();
    let mut failure = None;
    for (thread, handle) in threads.into_iter().enumerate() {
        match handle.join() {
            Ok(report) => reports.extend(report.map(|report| (thread as u32, report))),
            Err(panic) => {
                let text = panic
                    .downcast_ref::<String>()
                    .cloned()
                    .or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()))
                    .unwrap_or_else(|| "no message".to_owned());
                failure.get_or_insert(RunError::Panicked { thread: thread as u32, text });
            }
        }
    }
    failure.map_or(Ok(reports), Err)
}

impl ThreadShared<'_> {
    fn client_thread(
        &self,
        thread: u32,
        connected: Sender<(u32, Result<(), ClientError>)>,
        coordinator: Thread,
    ) -> Option<WorkerReport> {
        // Dropped last, so that the coordinator notices every end, by return or by panic.
        let _end = EndSignal { active: &self.active, coordinator };
        // A refusal only means that sleeps end as late as before.
        let _ = timer_slack::narrow();
        let connection = (self.connect)(thread);
        let report = connection.as_ref().map(|_| ()).map_err(ClientError::clone);
        let sent = connected.send((thread, report));
        drop(connected);
        let (Ok(client), Ok(())) = (connection, sent) else { return None };
        // Buffers and generators are created before the start, not during it.
        let seed = self.spec.seed_of_host();
        let background = self.beside_of(thread);
        let operations = background.map_or(&self.operations, |(_, stage)| &stage.operations);
        let mut source = OperationSource::new(
            operations,
            self.number_in_stream(thread),
            seed_of(seed, background.is_some()),
        );
        if !client.wants_values() {
            source.leave_out_values();
        }
        let start_ns = self.gate.wait()?;
        let series = background.map_or(&self.series, |(_, stage)| &stage.series).get()?;
        let spec = self.spec;
        let window = self.window(start_ns);
        let profile = match background {
            Some((background, _)) => background.rate_per_s.map(RateProfile::constant),
            None => spec.profile(),
        };
        let schedule = profile.map(|profile| {
            let seed = values::mix(seed ^ u64::from(thread));
            let profile = profile.dilated(spec.dilation);
            let (number, all) = spec
                // Every host has its turns in one schedule over the threads of all hosts.
                .share
                .map_or((thread, spec.threads), |share| (share.first_thread + thread, share.all_threads));
            let (number, all) = match background {
                Some((background, _)) => (self.number_in_stream(thread), background.threads),
                None => (number, all),
            };
            ThreadSchedule::new(spec.arrivals, profile, number, all, start_ns, seed)
        });
        let mut recorder = ThreadRecorder::new(
            window,
            schedule.is_some(),
            spec.dilation,
            series.thread(),
            &self.live[thread as usize],
            &self.samples,
        );
        // Background operations are in no metric, so they are in no evidence for one either.
        if background.is_none() {
            recorder.keep_raw(self.raw_log.as_ref().map(|log| log.thread(thread, spec.threads)));
            recorder.keep_particulars(self.particulars.as_ref().map(|counts| counts.place(thread)));
        }
        let reconnect = || (self.connect)(thread);
        self.clock.wait_until_ns(start_ns, self.stop);
        let worker = WorkerThread {
            clock: self.clock,
            client,
            reconnect: &reconnect,
            source,
            recorder,
            schedule,
            window,
            stop: self.stop,
            dilation: spec.dilation,
            burst: OperationBurst::default(),
        };
        Some(worker.run())
    }

    /// The background stream of a thread, if it is not in the measured stream.
    fn beside_of(&self, thread: u32) -> Option<(&BackgroundWork, &BesideStage)> {
        if thread < self.spec.threads {
            return None;
        }
        self.spec.beside.as_ref().zip(self.beside.as_ref())
    }

    /// Counted from 0 in each stream.
    fn number_in_stream(&self, thread: u32) -> u32 {
        thread.checked_sub(self.spec.threads).unwrap_or(thread)
    }

    fn window(&self, start_ns: u64) -> MeasuredSpan {
        let ns = |span: Duration| u64::try_from(span.as_nanos()).unwrap_or(u64::MAX).min(MAX_WINDOW_NS);
        let begin_ns = start_ns.saturating_add(ns(self.spec.warmup));
        MeasuredSpan { begin_ns, end_ns: begin_ns.saturating_add(ns(self.spec.duration)) }
    }

    /// Opens the gate; with no warm-up, the measurement is announced before.
    fn start(&self, control: &RunHandle, begin: Option<Instant>) -> MeasuredSpan {
        if self.spec.warmup.is_zero() {
            announce(&control.on_measurement_started);
        }
        let delay = begin.map_or(Duration::ZERO, |begin| begin.saturating_duration_since(Instant::now()));
        let delay_ns = u64::try_from(delay.as_nanos()).unwrap_or(u64::MAX).max(START_DELAY_NS);
        let start_ns = self.clock.now_ns().saturating_add(delay_ns);
        let window = self.window(start_ns);
        if self.spec.warmup.is_zero() {
            self.tell_window(window, control);
        }
        let intervals = self.spec.series_intervals.max(1).saturating_mul(control.timeline_parts.max(1));
        // Cannot underflow: the window's end is its begin plus a duration.
        let length_ns = window.end_ns - window.begin_ns;
        let cut = if self.spec.is_limited() {
            // Short enough for a very short run, and doubled for a longer one.
            let first_wall_ns = (length_ns / u64::from(intervals)).clamp(1_000_000, 20_000_000);
            IntervalCut::Growing { first_wall_ns, most: intervals as usize * 2 }
        } else {
            IntervalCut::Width { wall_ns: length_ns.div_ceil(u64::from(intervals)) }
        };
        let series = self.series.get_or_init(|| Arc::new(IntervalSeries::new(window.begin_ns, cut)));
        control.share_series(series);
        if let Some(background) = &self.beside {
            background.series.get_or_init(|| Arc::new(IntervalSeries::new(window.begin_ns, cut)));
        }
        self.gate.open(Some(start_ns));
        window
    }

    /// Follows the run from the caller's thread until its window is over, and announces the window's edges. Returns the
    /// machine use, and the time at which the window was over.
    fn watch(&self, window: MeasuredSpan, control: &RunHandle) -> Option<(MachineUse, Instant)> {
        let mut meter = LiveMeter::default();
        let announced_before = self.spec.warmup.is_zero();
        if !announced_before {
            control.set_phase(RunPhase::WarmingUp);
            self.follow(RunPhase::WarmingUp, self.spec.warmup, window.begin_ns, &mut meter, control);
            if self.is_over(control) {
                return None;
            }
            self.tell_window(window, control);
            announce(&control.on_measurement_started);
        }
        let before = MachineSnapshot::take();
        control.set_phase(RunPhase::Measuring);
        self.follow(RunPhase::Measuring, self.spec.duration, window.end_ns, &mut meter, control);
        // Before the callback, whose work is not the generator's use of the machine in the window.
        let machine_use = before.use_until(&MachineSnapshot::take());
        let ended = Instant::now();
        announce(&control.on_measurement_ended);
        control.set_phase(RunPhase::Finishing);
        Some((machine_use, ended))
    }

    /// The window by the shared clock, once the threads of both streams have reported their backlog at its beginning.
    fn seen(&self, window: MeasuredSpan, ended: Instant, reports: &[(u32, WorkerReport)]) -> RunWindow {
        let caught_up_ns = reports.iter().filter_map(|(_, report)| report.record.caught_up_ns).min();
        let behind_since = caught_up_ns.filter(|&caught_up_ns| caught_up_ns < window.begin_ns);
        RunWindow {
            began: self.instant_of(window.begin_ns),
            ended,
            warm_up: self.spec.warmup,
            behind_since: behind_since.map(|since_ns| self.instant_of(since_ns)),
        }
    }

    /// When the window begins, or has just begun, by the shared clock.
    fn tell_window(&self, window: MeasuredSpan, control: &RunHandle) {
        let Some(timekeeper) = &control.on_window else { return };
        timekeeper(self.instant_of(window.begin_ns));
    }

    /// Converts a time of the run's clock to the shared clock.
    fn instant_of(&self, time_ns: u64) -> Instant {
        let (now, now_ns) = (Instant::now(), self.clock.now_ns());
        let elapsed = Duration::from_nanos(now_ns.saturating_sub(time_ns));
        let remaining = Duration::from_nanos(time_ns.saturating_sub(now_ns));
        now.checked_sub(elapsed).unwrap_or(now) + remaining
    }

    fn is_over(&self, control: &RunHandle) -> bool {
        self.active.load(Ordering::SeqCst) == 0 || control.is_stopped()
    }

    /// Publishes progress until `end_ns`, or until no thread is left.
    fn follow(
        &self,
        phase: RunPhase,
        length: Duration,
        end_ns: u64,
        meter: &mut LiveMeter,
        control: &RunHandle,
    ) {
        let begin_ns = self.clock.now_ns();
        let operation_limit = self.spec.operations_in_all();
        let phase_length = (length < Duration::MAX).then_some(length);
        loop {
            let now_ns = self.clock.now_ns();
            let reading = meter.read(now_ns, &self.live);
            control.set_progress(RunProgress {
                phase,
                operations: reading.operations,
                errors: reading.errors,
                // A modelled second lasts `dilation` wall seconds.
                throughput_per_s: reading.throughput_per_wall_s * self.spec.dilation,
                mean_us: reading.mean_us,
                p50_us: reading.p50_us,
                p99_us: reading.p99_us,
                phase_elapsed: Duration::from_nanos(now_ns - begin_ns),
                phase_length,
                operation_limit,
            });
            if control.is_stopped() {
                self.stopped_ns.get_or_init(|| now_ns);
            }
            if now_ns >= end_ns || self.is_over(control) {
                return;
            }
            thread::park_timeout(PROGRESS_INTERVAL.min(Duration::from_nanos(end_ns - now_ns)));
        }
    }

    fn conclude(
        self,
        planned: MeasuredSpan,
        watched: Option<ProcessObservation>,
        reports: Vec<(u32, WorkerReport)>,
        control: &RunHandle,
    ) -> Result<MeasuredWindow, RunError> {
        let spec = self.spec;
        let (own, others): (Vec<_>, Vec<_>) =
            reports.into_iter().partition(|(thread, _)| self.beside_of(*thread).is_none());
        let without_numbers = |reports: Vec<(u32, WorkerReport)>| {
            reports.into_iter().map(|(_, report)| report).collect::<Vec<_>>()
        };
        let (reports, others) = (without_numbers(own), without_numbers(others));
        let lost_beside =
            others.iter().filter(|report| matches!(report.ending, ThreadEnding::Lost(_))).count() as u32;
        let reconnections_beside: u32 = others.iter().map(|report| report.reconnections).sum();
        let (samples, wrong_values) = self.samples.into_parts();
        let lost =
            reports.iter().filter(|report| matches!(report.ending, ThreadEnding::Lost(_))).count() as u32;
        let all_lost = reports.iter().rev().find_map(|report| match &report.ending {
            ThreadEnding::Lost(error) if lost == spec.threads => Some(error.clone()),
            _ => None,
        });
        let reconnections =
            reports.iter().map(|report| report.reconnections).sum::<u32>() + reconnections_beside;
        let exhausted = reports.iter().any(|report| report.ending == ThreadEnding::Exhausted);
        let was_stopped = reports.iter().any(|report| report.ending == ThreadEnding::Stopped);
        let empty_error = || if was_stopped { RunError::Stopped } else { RunError::NothingMeasured };
        let seen_by_threads = reports.iter().filter_map(|report| report.stopped_ns).min();
        let stopped_ns = seen_by_threads.into_iter().chain(self.stopped_ns.get().copied()).min();
        let records: Vec<ThreadRecord> = reports.into_iter().map(|report| report.record).collect();
        control.set_aftermath(RunAftermath {
            steal_share: watched.map_or(0.0, |watched| watched.machine_use.steal_share),
            unstarted: records.iter().map(|record| record.unstarted).sum(),
            timed_timeouts: records.iter().map(|record| record.timed_timeouts).sum(),
            integrity_mismatches: records.iter().map(ThreadRecord::mismatches).sum(),
            reconnections,
            lost_threads: lost + lost_beside,
            clock_drift: self.clock.drift(),
            outside: records.iter().map(|record| record.outside).sum(),
            window: watched.map(|watched| watched.window),
        });
        if let Some(error) = all_lost {
            return Err(RunError::AllLost { threads: spec.threads, source: error, samples });
        }
        if was_stopped && !control.keeps_stopped_run {
            return Err(RunError::Stopped);
        }
        let last_end_ns = records.iter().map(|record| record.last_end_ns).max().unwrap_or(0);
        let end_ns = match stopped_ns {
            // Counted from the first thread that noticed: one that waits for an answer notices late, and the others
            // sent nothing meanwhile.
            Some(stopped_ns) if was_stopped => stopped_ns.min(planned.end_ns),
            // A run that used up its operations ends with its last answer. The minimum, since that may come after the
            // window.
            _ if exhausted || was_stopped => last_end_ns.min(planned.end_ns),
            _ => planned.end_ns,
        };
        let (Some(ProcessObservation { machine_use, pauses, .. }), Some(series)) =
            (watched, self.series.get())
        else {
            return Err(empty_error());
        };
        if end_ns <= planned.begin_ns {
            return Err(empty_error());
        }
        let clock_drift = control.aftermath().clock_drift;
        if clock_drift.abs() > TOLERATED_DRIFT {
            return Err(RunError::Clock { parts_per_million: clock_drift.abs() * 1e6 });
        }
        if let Some(particulars) = &self.particulars {
            control.set_particulars(particulars.sum());
        }
        if control.keeps_intervals {
            control.set_intervals(series.intervals(end_ns));
        }
        if control.timeline_parts > 0 {
            control.set_timeline(series.timeline(end_ns, spec.dilation));
        }
        let wall_s = (end_ns - planned.begin_ns) as f64 / 1e9;
        let duration_s = wall_s / spec.dilation;
        let merged = MergedRecorder::from_threads(&records, series);
        let others: Vec<ThreadRecord> = others.into_iter().map(|report| report.record).collect();
        let background = spec.beside.as_ref().zip(self.beside.as_ref());
        let background =
            background.and_then(|(background, stage)| stage.measured(background, &others, duration_s));
        Ok(MeasuredWindow {
            duration_s,
            wall_s,
            operations: merged.operations,
            errors: merged.errors,
            throughput_per_s: merged.operations as f64 / duration_s,
            latency: RecordedLatency::new(merged.latency),
            by_operation: merged.by_operation,
            series: series.points(end_ns, spec.dilation, control.timeline_parts.max(1).into()),
            generator: GeneratorCost {
                cpu_cores: machine_use.process_cores,
                machine_busy: machine_use.machine_busy,
                ceiling_per_s: None,
                lateness_p99_us: merged.lateness_p99_us,
                pauses: Some(pauses),
            },
            beside: background,
            integrity: spec
                .workload
                .data_integrity
                .then_some(IntegrityRecord { wrong_values, ..merged.integrity }),
            stopped: was_stopped,
            stopped_processes: Vec::new(),
            error_samples: samples,
        })
    }
}

/// Threads with the same number draw different operations in each stream.
fn seed_of(seed: u64, is_beside: bool) -> u64 {
    if is_beside { values::mix(seed ^ values::mix(0xbe51de)) } else { seed }
}

fn announce(callback: &Option<Box<dyn Fn() + Send + Sync + '_>>) {
    if let Some(callback) = callback {
        callback();
    }
}
