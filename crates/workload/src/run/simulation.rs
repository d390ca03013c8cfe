//! Threads in virtual time, for tests: a system that answers by a script, and the threads' measurements of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use underlay_record::SeriesPoint;

use crate::client::{Client, ClientError, FieldSelection, FieldValues, OperationOutcome};
use crate::draw::operations::{OperationSource, SharedOperations};
use crate::mix::{OperationKind, OperationMix};
use crate::run::clock::RunClock;
use crate::run::live::LiveCounters;
use crate::run::pacing::{ArrivalProcess, ThreadSchedule};
use crate::run::rate_profile::RateProfile;
use crate::run::raw::{RawLog, RawOperation};
use crate::run::recorder::{ErrorSamples, MeasuredSpan, MergedRecorder, OperationBurst, ThreadRecorder};
use crate::run::series::{IntervalCut, IntervalSeries};
use crate::run::worker::{ThreadEnding, WorkerReport, WorkerThread};
use crate::run::ycsb_stats::{ParticularCounts, YcsbStatistics};
use crate::workload::CoreWorkload;

pub(crate) const MS: u64 = 1_000_000;
pub(crate) const S: u64 = 1_000 * MS;

/// One thread's clock: it advances only when the system works or the thread waits, and waits end late by a fixed time.
#[derive(Clone, Default)]
struct VirtualClock {
    now_ns: Arc<AtomicU64>,
    wakes_late_ns: u64,
}

impl RunClock for VirtualClock {
    fn now_ns(&self) -> u64 {
        self.now_ns.load(Ordering::Relaxed)
    }

    fn wait_until_ns(&self, instant_ns: u64, _stop: &AtomicBool) -> u64 {
        if self.now_ns() < instant_ns {
            self.now_ns.store(instant_ns + self.wakes_late_ns, Ordering::Relaxed);
        }
        self.now_ns()
    }
}

pub(crate) type ScriptedAnswer = Result<OperationOutcome, ClientError>;
/// Returns the duration and the outcome of an operation, given its kind and its start.
pub(crate) type OperationScript = Arc<dyn Fn(OperationKind, u64) -> (u64, ScriptedAnswer) + Send + Sync>;

struct ScriptedClient {
    clock: VirtualClock,
    script: OperationScript,
    stop: Arc<AtomicBool>,
    stop_at_ns: u64,
}

impl ScriptedClient {
    fn answer(&mut self, kind: OperationKind) -> ScriptedAnswer {
        let now_ns = self.clock.now_ns();
        let (service_ns, answer) = (self.script)(kind, now_ns);
        self.clock.now_ns.store(now_ns + service_ns, Ordering::Relaxed);
        if now_ns + service_ns >= self.stop_at_ns {
            self.stop.store(true, Ordering::Relaxed);
        }
        answer
    }
}

impl Client for ScriptedClient {
    fn read(&mut self, _: &[u8], _: FieldSelection, values: &mut FieldValues) -> ScriptedAnswer {
        values.clear();
        self.answer(OperationKind::Read)
    }
    fn scan(
        &mut self,
        _: &[u8],
        limit: u32,
        _: FieldSelection,
    ) -> Result<(OperationOutcome, u32), ClientError> {
        self.answer(OperationKind::Scan).map(|outcome| (outcome, limit))
    }
    fn update(&mut self, _: &[u8], _: &FieldValues) -> ScriptedAnswer {
        self.answer(OperationKind::Update)
    }
    fn insert(&mut self, _: &[u8], _: &FieldValues) -> ScriptedAnswer {
        self.answer(OperationKind::Insert)
    }
    fn delete(&mut self, _: &[u8]) -> ScriptedAnswer {
        self.answer(OperationKind::Delete)
    }
}

pub(crate) struct RunSimulation {
    pub mix: &'static str,
    pub operation_limit: Option<u64>,
    pub threads: u32,
    pub rate_per_wall_s: Option<f64>,
    /// Replaces a constant rate.
    pub profile: Option<RateProfile>,
    pub arrivals: ArrivalProcess,
    pub warmup_ns: u64,
    pub duration_ns: u64,
    pub dilation: f64,
    pub wakes_late_ns: u64,
    /// Every operation is logged, and so recorded separately.
    pub keeps_raw: bool,
    /// How many connections can be opened after the first.
    pub reconnections: u64,
    /// The first answer from this time on stops the run.
    pub stop_at_ns: Option<u64>,
    pub script: OperationScript,
}

pub(crate) struct SimulatedRun {
    pub merged: MergedRecorder,
    pub endings: Vec<ThreadEnding>,
    pub reconnections: u32,
    pub unstarted: u64,
    /// Answered before or after the window.
    pub outside: u64,
    /// For the thread that was behind for the longest time.
    pub caught_up_ns: Option<u64>,
    pub points: Vec<SeriesPoint>,
    pub samples: Vec<String>,
    pub raw: Vec<RawOperation>,
    pub particulars: YcsbStatistics,
}

impl RunSimulation {
    /// A system that takes the same time for every operation.
    pub(crate) fn new(script: impl Fn(u64) -> (u64, ScriptedAnswer) + Send + Sync + 'static) -> Self {
        RunSimulation::from_kinds(move |_, now_ns| script(now_ns))
    }

    pub(crate) fn from_kinds(
        script: impl Fn(OperationKind, u64) -> (u64, ScriptedAnswer) + Send + Sync + 'static,
    ) -> Self {
        RunSimulation {
            mix: "c",
            operation_limit: None,
            threads: 1,
            rate_per_wall_s: None,
            profile: None,
            arrivals: ArrivalProcess::Constant,
            warmup_ns: 0,
            duration_ns: 10 * S,
            dilation: 1.0,
            wakes_late_ns: 0,
            keeps_raw: true,
            reconnections: 0,
            stop_at_ns: None,
            script: Arc::new(script),
        }
    }

    /// One thread's arrivals; `None` in a closed loop.
    pub(crate) fn schedule(&self, thread: u32) -> Option<ThreadSchedule> {
        let profile = self.profile.clone().or_else(|| self.rate_per_wall_s.map(RateProfile::constant))?;
        Some(ThreadSchedule::new(self.arrivals, profile, thread, self.threads, 0, u64::from(thread)))
    }

    pub(crate) fn run(&self) -> SimulatedRun {
        let workload = Arc::new(CoreWorkload::new(1000, 1, 100));
        let mix = OperationMix::parse(self.mix).unwrap();
        let shared = SharedOperations::new(workload, mix, self.threads, self.operation_limit).unwrap();
        let (log, operations) = RawLog::new();
        // The log has little room: without a reader the workers would wait forever.
        let reader = std::thread::spawn(move || operations.flatten().collect());
        let window = MeasuredSpan { begin_ns: self.warmup_ns, end_ns: self.warmup_ns + self.duration_ns };
        let series = IntervalSeries::new(
            window.begin_ns,
            IntervalCut::Width { wall_ns: self.duration_ns.div_ceil(20) },
        );
        let (live, samples) = (LiveCounters::default(), ErrorSamples::default());
        let stop = Arc::new(AtomicBool::new(false));
        let particulars = ParticularCounts::default();
        let left = AtomicU64::new(self.reconnections);
        let reports: Vec<WorkerReport> = (0..self.threads)
            .map(|thread| {
                let clock = VirtualClock { wakes_late_ns: self.wakes_late_ns, ..VirtualClock::default() };
                let connect = || -> Box<dyn Client> {
                    Box::new(ScriptedClient {
                        clock: clock.clone(),
                        script: Arc::clone(&self.script),
                        stop: Arc::clone(&stop),
                        stop_at_ns: self.stop_at_ns.unwrap_or(u64::MAX),
                    })
                };
                let reconnect = || {
                    left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1))
                        .map(|_| connect())
                        .map_err(|_| ClientError::System("refused".to_owned()))
                };
                let schedule = self.schedule(thread);
                let mut recorder = ThreadRecorder::new(
                    window,
                    schedule.is_some(),
                    self.dilation,
                    series.thread(),
                    &live,
                    &samples,
                );
                recorder.keep_particulars(Some(particulars.place(thread)));
                recorder.keep_raw(self.keeps_raw.then(|| log.thread(thread, self.threads)));
                WorkerThread {
                    clock: clock.clone(),
                    client: connect(),
                    reconnect: &reconnect,
                    source: OperationSource::new(&shared, thread, 7),
                    recorder,
                    schedule,
                    window,
                    stop: &stop,
                    dilation: self.dilation,
                    burst: OperationBurst::default(),
                }
                // Threads run one after the other: each has its own clock, and virtual time does not wait.
                .run()
            })
            .collect();
        // The reader ends with the last writer.
        drop(log);
        let raw = reader.join().unwrap();
        let endings = reports.iter().map(|report| report.ending.clone()).collect();
        let reconnections = reports.iter().map(|report| report.reconnections).sum();
        let records: Vec<_> = reports.into_iter().map(|report| report.record).collect();
        SimulatedRun {
            merged: MergedRecorder::from_threads(&records, &series),
            endings,
            reconnections,
            unstarted: records.iter().map(|record| record.unstarted).sum(),
            outside: records.iter().map(|record| record.outside).sum(),
            caught_up_ns: records.iter().filter_map(|record| record.caught_up_ns).min(),
            points: series.points(window.end_ns, self.dilation, 1),
            samples: samples.into_parts().0,
            raw,
            particulars: particulars.sum(),
        }
    }
}

/// Histograms have three digits of precision.
pub(crate) fn assert_near(found: f64, expected: f64) {
    assert!((found - expected).abs() <= expected * 1.5e-3, "{found}, expected {expected}");
}
