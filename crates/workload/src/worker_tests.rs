//! Threads in virtual time: what is measured must follow from when operations were due and how long they took.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use proptest::prelude::*;
use underlay_record::SeriesPoint;

use crate::client::{Client, ClientError, FieldValues, Fields, Outcome};
use crate::live::LiveCounters;
use crate::mix::Mix;
use crate::operations::{OperationSource, SharedOperations};
use crate::pacing::{Arrivals, Clock, Schedule};
use crate::recorder::{ErrorSamples, Merged, Recorder, Window};
use crate::series::{Cut, Series};
use crate::worker::{Ending, Worker, WorkerReport};
use crate::workload::Workload;

const MS: u64 = 1_000_000;
const S: u64 = 1_000 * MS;

/// One thread's time: it passes only when the system works or the thread waits, and waits end late by a fixed time.
#[derive(Clone, Default)]
struct VirtualClock {
    now_ns: Arc<AtomicU64>,
    wakes_late_ns: u64,
}

impl Clock for VirtualClock {
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

type Answer = Result<Outcome, ClientError>;
/// Given when an operation starts: how long it takes and how it ends.
type Script = Arc<dyn Fn(u64) -> (u64, Answer) + Send + Sync>;

struct Scripted {
    clock: VirtualClock,
    script: Script,
}

impl Scripted {
    fn answer(&mut self) -> Answer {
        let now_ns = self.clock.now_ns();
        let (service_ns, answer) = (self.script)(now_ns);
        self.clock.now_ns.store(now_ns + service_ns, Ordering::Relaxed);
        answer
    }
}

impl Client for Scripted {
    fn read(&mut self, _: &[u8], _: Fields, values: &mut FieldValues) -> Answer {
        values.clear();
        self.answer()
    }
    fn scan(&mut self, _: &[u8], limit: u32, _: Fields) -> Result<(Outcome, u32), ClientError> {
        self.answer().map(|outcome| (outcome, limit))
    }
    fn update(&mut self, _: &[u8], _: &FieldValues) -> Answer {
        self.answer()
    }
    fn insert(&mut self, _: &[u8], _: &FieldValues) -> Answer {
        self.answer()
    }
    fn delete(&mut self, _: &[u8]) -> Answer {
        self.answer()
    }
}

struct Simulation {
    threads: u32,
    rate_per_wall_s: Option<f64>,
    arrivals: Arrivals,
    warmup_ns: u64,
    duration_ns: u64,
    dilation: f64,
    wakes_late_ns: u64,
    /// How many connections can be made after the first.
    reconnections: u64,
    script: Script,
}

struct Simulated {
    merged: Merged,
    endings: Vec<Ending>,
    reconnections: u32,
    unstarted: u64,
    points: Vec<SeriesPoint>,
    samples: Vec<String>,
}

impl Simulation {
    fn new(script: impl Fn(u64) -> (u64, Answer) + Send + Sync + 'static) -> Self {
        Simulation {
            threads: 1,
            rate_per_wall_s: None,
            arrivals: Arrivals::Constant,
            warmup_ns: 0,
            duration_ns: 10 * S,
            dilation: 1.0,
            wakes_late_ns: 0,
            reconnections: 0,
            script: Arc::new(script),
        }
    }

    fn run(&self) -> Simulated {
        let workload = Arc::new(Workload::new(1000, 1, 100));
        let shared = SharedOperations::new(workload, Mix::parse("c").unwrap(), self.threads, None).unwrap();
        let window = Window { begin_ns: self.warmup_ns, end_ns: self.warmup_ns + self.duration_ns };
        let series = Series::new(window.begin_ns, Cut::Width { wall_ns: self.duration_ns.div_ceil(20) });
        let (live, samples, stop) =
            (LiveCounters::default(), ErrorSamples::default(), AtomicBool::new(false));
        let left = AtomicU64::new(self.reconnections);
        let reports: Vec<WorkerReport> = (0..self.threads)
            .map(|thread| {
                let clock = VirtualClock { wakes_late_ns: self.wakes_late_ns, ..VirtualClock::default() };
                let connect = || -> Box<dyn Client> {
                    Box::new(Scripted { clock: clock.clone(), script: Arc::clone(&self.script) })
                };
                let reconnect = || {
                    left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1))
                        .map(|_| connect())
                        .map_err(|_| ClientError::System("refused".to_owned()))
                };
                let schedule = self.rate_per_wall_s.map(|rate| {
                    Schedule::new(self.arrivals, rate, thread, self.threads, 0, u64::from(thread))
                });
                let recorder = Recorder::new(
                    window,
                    schedule.is_some(),
                    self.dilation,
                    series.thread(),
                    &live,
                    &samples,
                );
                Worker {
                    clock: clock.clone(),
                    client: connect(),
                    reconnect: &reconnect,
                    source: OperationSource::new(&shared, thread, 7),
                    recorder,
                    schedule,
                    window,
                    stop: &stop,
                    dilation: self.dilation,
                }
                .run()
            })
            .collect();
        let endings = reports.iter().map(|report| report.ending.clone()).collect();
        let reconnections = reports.iter().map(|report| report.reconnections).sum();
        let records: Vec<_> = reports.into_iter().map(|report| report.record).collect();
        Simulated {
            merged: Merged::of(&records),
            endings,
            reconnections,
            unstarted: records.iter().map(|record| record.unstarted).sum(),
            points: series.points(window.end_ns, self.dilation),
            samples: samples.into_texts(),
        }
    }
}

/// Histograms have three digits.
fn assert_near(found: f64, expected: f64) {
    assert!((found - expected).abs() <= expected * 1.5e-3, "{found}, expected {expected}");
}

/// 100 operations a second of 1 ms each; the one due at 5 s takes a second. Those due meanwhile wait: the j-th after it
/// has a latency of 1 s - 9 ms x j, until the queue is empty after 111 of them.
#[test]
fn a_stall_is_felt_by_every_arrival_that_it_delays() {
    let simulated = Simulation {
        rate_per_wall_s: Some(100.0),
        duration_ns: 20 * S,
        ..Simulation::new(|now_ns| (if now_ns == 5 * S { S } else { MS }, Ok(Outcome::Found)))
    }
    .run();
    let read = &simulated.merged.by_operation["read"];
    assert_eq!((read.latency.us.count, read.count, simulated.unstarted), (2000, 2000, 0));
    let latency = &read.latency.histogram;
    assert_near(latency.quantile_us(0.5), 1_000.0);
    // The 20 slowest of 2,000 are those of the stalled one and of j = 1 to 19, so p99 is that of j = 20.
    assert_near(latency.quantile_us(0.99), 1_000_000.0 - 9_000.0 * 20.0);
    assert_near(latency.quantile_us(0.999), 1_000_000.0 - 9_000.0 * 2.0);
    assert_near(read.latency.us.max, 1_000_000.0);
    let waiting_us: f64 = (0..=111).map(|j| 1_000_000.0 - 9_000.0 * f64::from(j)).sum();
    assert_near(read.latency.us.mean, (waiting_us + 1_000.0 * (2000.0 - 112.0)) / 2000.0);
    // Seen from the actual start, one operation was slow and the others know nothing of it.
    assert_near(read.service.histogram.quantile_us(0.999), 1_000.0);
    assert_near(read.service.us.max, 1_000_000.0);
    // The second of the stall has no answers, and the queue is worked off after it.
    assert_eq!(simulated.points.iter().map(|point| point.operations).sum::<u64>(), 2000);
    assert_eq!((simulated.points[5].operations, simulated.points[5].throughput_per_s), (0, 0.0));
    assert_eq!(simulated.points[6].operations, 200);
    assert_eq!(simulated.merged.lateness_p99_us, Some(0.001), "the waiting is the system's fault");
}

/// A system that serves 50 of 100 operations a second: half of what was due within 10 s is never sent, and each of
/// those counts with the time it had waited by the end.
#[test]
fn what_a_saturated_system_never_gets_to_has_waited_until_the_end() {
    let simulated =
        Simulation { rate_per_wall_s: Some(100.0), ..Simulation::new(|_| (20 * MS, Ok(Outcome::Found))) }
            .run();
    let read = &simulated.merged.by_operation["read"];
    assert_eq!((read.latency.us.count, read.service.us.count), (1000, 500));
    assert_eq!((simulated.unstarted, simulated.merged.operations), (500, 499));
    // Arrival i < 500 ends at 20 ms x (i + 1), so it took 10 ms x i + 20 ms; arrival 999 waited 10 ms.
    assert_near(read.latency.us.max, 5_010_000.0);
    assert_near(read.latency.us.min, 10_000.0);
    let sent: f64 = (0..500).map(|i| 10_000.0 * f64::from(i) + 20_000.0).sum();
    let unsent: f64 = (500..1000).map(|i| 10_000_000.0 - 10_000.0 * f64::from(i)).sum();
    assert_near(read.latency.us.mean, (sent + unsent) / 1000.0);
}

#[test]
fn an_operation_under_way_at_the_end_keeps_its_latency_but_adds_no_throughput() {
    // The tenth operation begins at 9 s and hangs for 100 s.
    let simulated =
        Simulation::new(|now_ns| (if now_ns >= 9 * S { 100 * S } else { S }, Ok(Outcome::Found))).run();
    let read = &simulated.merged.by_operation["read"];
    assert_eq!((simulated.merged.operations, read.count, read.latency.us.count), (9, 9, 10));
    assert_near(read.latency.us.max, 100e6);
    assert_eq!(read.latency, read.service);
    assert_eq!(simulated.endings, [Ending::WindowClosed]);
}

#[test]
fn the_warm_up_is_not_measured() {
    let simulated = Simulation {
        warmup_ns: 4 * S,
        ..Simulation::new(|now_ns| (if now_ns < 4 * S { 400 * MS } else { 100 * MS }, Ok(Outcome::Found)))
    }
    .run();
    let read = &simulated.merged.by_operation["read"];
    // The operation that ends just at the window's end is outside, and the one that ends just at its begin inside.
    assert_eq!((read.count, read.latency.us.count), (100, 100));
    assert_near(read.latency.us.max, 100_000.0);
}

#[test]
fn slow_motion_is_divided_out_of_every_time() {
    let simulated = Simulation {
        rate_per_wall_s: Some(100.0),
        dilation: 8.0,
        wakes_late_ns: 80_000,
        ..Simulation::new(|_| (4 * MS, Ok(Outcome::Found)))
    }
    .run();
    let read = &simulated.merged.by_operation["read"];
    assert_near(read.service.us.p50, 500.0);
    assert_near(read.latency.us.p50, 510.0);
    assert_near(simulated.merged.lateness_p99_us.unwrap(), 10.0);
    assert_near(simulated.points.last().unwrap().t_s, 1.25);
    assert_near(simulated.points[3].throughput_per_s, 800.0);
}

/// A thread that was busy is late by the system's fault; only what comes on top is the generator's.
#[test]
fn the_generators_lateness_leaves_out_waiting_for_the_system() {
    let simulated = Simulation {
        rate_per_wall_s: Some(1000.0),
        wakes_late_ns: 50_000,
        ..Simulation::new(|now_ns| (if now_ns < 2 * S { 3 * MS } else { 100_000 }, Ok(Outcome::Found)))
    }
    .run();
    assert_near(simulated.merged.lateness_p99_us.unwrap(), 50.0);
    assert!(simulated.merged.latency.quantile_us(0.99) > 1_000.0 * 1_000.0);
}

#[test]
fn refusals_and_errors_are_counted_and_timeouts_are_timed() {
    let simulated = Simulation::new(|now_ns| match now_ns / S {
        0..=3 => (S, Ok(Outcome::Found)),
        4 => (S, Ok(Outcome::Missing)),
        5 => (S, Ok(Outcome::Throttled)),
        6 => (S, Err(ClientError::System("disk full".to_owned()))),
        _ => (2 * S, Err(ClientError::Timeout(Duration::from_secs(2)))),
    })
    .run();
    let read = &simulated.merged.by_operation["read"];
    assert_eq!((read.count, read.missing, read.throttled, read.errors), (5, 1, 1, 3));
    assert_eq!((simulated.merged.operations, simulated.merged.errors), (5, 3));
    assert_eq!(read.latency.us.count, 5 + 2, "answers and timeouts");
    assert_near(read.latency.us.max, 2e6);
    assert_eq!(simulated.samples, ["read: disk full", "read: no answer within 2s"]);
}

#[test]
fn a_lost_connection_is_made_again() {
    let lost_once = AtomicBool::new(false);
    let simulated = Simulation {
        rate_per_wall_s: Some(100.0),
        reconnections: 1,
        ..Simulation::new(move |now_ns| {
            let lost = now_ns >= S && !lost_once.swap(now_ns >= S, Ordering::Relaxed);
            (MS, if lost { Err(ClientError::Lost("reset".to_owned())) } else { Ok(Outcome::Found) })
        })
    }
    .run();
    let read = &simulated.merged.by_operation["read"];
    assert_eq!((simulated.reconnections, read.errors, read.count), (1, 1, 999));
    // The first pause is 100 ms: arrivals of that time waited for it.
    assert_near(read.latency.us.max, 101_000.0 - 9_000.0);
    assert_eq!(simulated.endings, [Ending::WindowClosed]);
}

#[test]
fn a_thread_that_cannot_reconnect_ends_and_its_arrivals_still_count() {
    let simulated = Simulation {
        rate_per_wall_s: Some(100.0),
        ..Simulation::new(|now_ns| {
            (
                MS,
                if now_ns >= 5 * S { Err(ClientError::Lost("reset".to_owned())) } else { Ok(Outcome::Found) },
            )
        })
    }
    .run();
    let read = &simulated.merged.by_operation["read"];
    assert_eq!(simulated.endings, [Ending::Lost(ClientError::System("refused".to_owned()))]);
    assert_eq!((read.count, read.errors, simulated.unstarted), (500, 1, 499));
    assert_eq!(read.latency.us.count, 999, "all but the failed one");
}

#[test]
fn constant_arrivals_are_evenly_spread_over_all_threads() {
    let threads = 7;
    let mut due_ns: Vec<u64> = Vec::new();
    for thread in 0..threads {
        let mut schedule = Schedule::new(Arrivals::Constant, 3_000.0, thread, threads, 5 * S, 1);
        while schedule.peek_ns() < 6 * S {
            due_ns.push(schedule.peek_ns());
            schedule.advance();
        }
    }
    due_ns.sort_unstable();
    let expected: Vec<u64> =
        (0..3000).map(|index| 5 * S + (f64::from(index) * 1e9 / 3000.0).round() as u64).collect();
    assert_eq!(due_ns, expected);
}

/// Of a Poisson process, the number of arrivals in an interval has a variance equal to its mean.
#[test]
fn poisson_arrivals_have_the_variance_of_their_mean() {
    let mut counts = vec![0f64; 2000];
    for thread in 0..4 {
        let mut schedule = Schedule::new(Arrivals::Poisson, 1_000.0, thread, 4, 0, u64::from(thread) + 99);
        while schedule.peek_ns() < 20 * S {
            counts[(schedule.peek_ns() / (10 * MS)) as usize] += 1.0;
            schedule.advance();
        }
    }
    let mean = counts.iter().sum::<f64>() / counts.len() as f64;
    let variance = counts.iter().map(|count| (count - mean).powi(2)).sum::<f64>() / counts.len() as f64;
    // Standard errors: sqrt(10 / 2000) = 0.07 of the mean, 10 x sqrt(2 / 2000) = 0.32 of the variance.
    assert!((mean - 10.0).abs() < 0.35 && (variance - 10.0).abs() < 1.6, "mean {mean}, variance {variance}");
}

proptest! {
    /// However slow the system is, whatever is due within the window is measured: sent, or counted as unsent.
    #[test]
    fn no_arrival_is_skipped(
        threads in 1u32..5,
        rate in 1.0f64..400.0,
        services_ms in proptest::collection::vec(0u64..200, 1..10),
        warmup_ms in 0u64..2000,
        poisson in any::<bool>(),
    ) {
        let arrivals = if poisson { Arrivals::Poisson } else { Arrivals::Constant };
        let calls = AtomicU64::new(0);
        let simulation = Simulation {
            threads,
            rate_per_wall_s: Some(rate),
            arrivals,
            warmup_ns: warmup_ms * MS,
            duration_ns: 5 * S,
            ..Simulation::new(move |_| {
                let call = calls.fetch_add(1, Ordering::Relaxed) as usize;
                (services_ms[call % services_ms.len()] * MS, Ok(Outcome::Found))
            })
        };
        let simulated = simulation.run();
        let mut due = 0;
        for thread in 0..threads {
            let mut schedule = Schedule::new(arrivals, rate, thread, threads, 0, u64::from(thread));
            while schedule.peek_ns() < (warmup_ms + 5000) * MS {
                due += u64::from(schedule.peek_ns() >= warmup_ms * MS);
                schedule.advance();
            }
        }
        prop_assert_eq!(simulated.merged.latency.count(), due);
        if !poisson {
            prop_assert!((due as f64 - rate * 5.0).abs() <= 1.0);
        }
        let in_series: u64 = simulated.points.iter().map(|point| point.operations).sum();
        prop_assert_eq!(in_series, simulated.merged.operations);
    }
}
