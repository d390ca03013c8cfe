//! The coordinator: connects to workers, divides a job among them, starts it everywhere at the same time and merges the
//! results.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use underlay_record::MeasuredWindow;
use underlay_sync::Mutex;
use underlay_workload::YcsbStatistics;

use crate::HostError;
use crate::clock_offset::{ClockOffset, spread_ns};
use crate::host::{HostAddress, RemoteHost};
use crate::job::RemoteJob;
use crate::merge::merge;
use crate::message::{MeasuredPart, ProgressReport, WorkerProgress};
use crate::trust::{PeerSide, TrustMethod};

/// A worker that is silent for this long is lost.
const SILENCE_TIMEOUT: Duration = Duration::from_secs(15);
const REPORT_INTERVAL: Duration = Duration::from_millis(250);
/// How often workers that wait for others are polled: they would take silence for the end of the coordinator.
const PING_INTERVAL: Duration = Duration::from_millis(100);
/// The time between the command to start and the start, in addition to some round trips to the farthest worker.
const START_DELAY: Duration = Duration::from_millis(500);
const DELAY_TRIPS: u64 = 8;

/// Workers that are connected.
pub struct WorkerCoordinator {
    hosts: Vec<RemoteHost>,
    /// Its clock counts from here.
    origin: Instant,
}

/// One worker's part in a run.
#[derive(Clone, Debug, PartialEq)]
pub struct HostReport {
    pub worker: String,
    pub cores: u32,
    pub threads: u32,
    pub operations: u64,
    /// The uncertainty of its clock when the start command was sent.
    pub start_uncertainty: Duration,
    /// How much later than commanded it started, by its own clock.
    pub start_lateness: Duration,
    /// How many nanoseconds its clock gained on ours during the run, within the uncertainty of both measurements.
    /// `None` if the worker was gone afterwards.
    pub clock_gain_ns: Option<i64>,
}

/// A worker that returned no results.
#[derive(Debug)]
pub struct LostHost {
    pub error: HostError,
    /// Its last report.
    pub last: ProgressReport,
}

/// All workers' measurements.
#[derive(Debug)]
pub struct CombinedResults {
    /// The merged results of the workers that returned any.
    pub measured: MeasuredWindow,
    pub particulars: YcsbStatistics,
    pub hosts: Vec<HostReport>,
    /// How far apart these may have started.
    pub start_spread: Duration,
    pub unstarted: u64,
    /// Operations that were answered before or after the measured time.
    pub outside: u64,
    pub reconnections: u32,
    pub lost_threads: u32,
    /// If there are any, the load was smaller than requested.
    pub lost: Vec<LostHost>,
}

/// A worker's results and its clock offset afterwards.
struct WorkerResult {
    part: MeasuredPart,
    offset_after: Option<ClockOffset>,
}

impl WorkerCoordinator {
    /// Connects to all workers at the same time. `trust` is needed for those that listen.
    ///
    /// # Errors
    /// When one of them can't be reached, or they don't trust each other.
    pub fn connect(workers: &[HostAddress], trust: Option<&TrustMethod>) -> Result<Self, HostError> {
        WorkerCoordinator::connect_with_patience(workers, trust, SILENCE_TIMEOUT)
    }

    /// Like [`WorkerCoordinator::connect`], with another limit for a worker's silence.
    ///
    /// # Errors
    /// Like there.
    pub fn connect_with_patience(
        workers: &[HostAddress],
        trust: Option<&TrustMethod>,
        patience: Duration,
    ) -> Result<Self, HostError> {
        if workers.is_empty() {
            return Err(HostError::Job("no workers: expected at least one".to_owned()));
        }
        if let Some((_, twice)) =
            (0..).zip(workers).find(|(place, worker)| workers[..*place].contains(worker))
        {
            return Err(HostError::Job(format!("worker {twice} is listed twice: list each worker once")));
        }
        let trust = match trust {
            None => None,
            Some(trust) => Some((trust.clone(), trust.context(PeerSide::Coordinator)?)),
        };
        let origin = Instant::now();
        let connections = run_concurrently(workers.iter(), |worker| {
            RemoteHost::connect(worker, trust.as_ref(), origin, patience)
        });
        let hosts = connections.into_iter().collect::<Result<_, _>>()?;
        Ok(WorkerCoordinator { hosts, origin })
    }

    /// Runs a job on all workers and disconnects from them. `reported` is called with their combined progress, and that
    /// of each, several times a second.
    ///
    /// # Errors
    /// When the job can't be divided or started, it was stopped, or no worker returned any results. A worker that is
    /// lost after the start is in [`CombinedResults::lost`], and the results of the others are kept.
    pub fn run(
        mut self,
        job: &RemoteJob,
        stop: &AtomicBool,
        reported: &dyn Fn(&ProgressReport, &[WorkerProgress]),
    ) -> Result<CombinedResults, HostError> {
        let parts = job.divided(self.hosts.len() as u32)?;
        self.prepare(&parts, stop)?;
        let offsets = self.start(stop)?;
        let unheard =
            |host: &RemoteHost| WorkerProgress { worker: host.name.clone(), ..WorkerProgress::default() };
        let last = Mutex::new(self.hosts.iter().map(unheard).collect());
        let results = self.follow(&last, stop, reported);
        let was_stopped =
            |result: &Result<WorkerResult, HostError>| matches!(result, Err(HostError::Stopped));
        // The cause that stopped this may have stopped workers as well. They don't count as lost.
        if results.iter().any(was_stopped)
            || (stop.load(Ordering::Relaxed) && results.iter().any(Result::is_err))
        {
            return Err(HostError::Stopped);
        }
        let last = last.into_inner();
        self.put_together(&parts, &offsets, results, &last)
    }

    /// Prepares the first worker before the others, so that only one creates what is missing in the system, such as a
    /// table. Meanwhile the others are kept waiting.
    fn prepare(&mut self, parts: &[RemoteJob], stop: &AtomicBool) -> Result<(), HostError> {
        let unprepared = AtomicUsize::new(parts.len());
        let is_first_prepared = AtomicBool::new(false);
        let has_failed = AtomicBool::new(false);
        let prepared =
            run_concurrently((0..).zip(self.hosts.iter_mut().zip(parts)), |(place, (host, part))| {
                let mut prepare = || {
                    while place > 0 && !is_first_prepared.load(Ordering::SeqCst) {
                        // The error of the worker that failed is the one to report.
                        if has_failed.load(Ordering::SeqCst) {
                            return Ok(());
                        }
                        std::thread::sleep(PING_INTERVAL);
                        host.look_at_clock(stop)?;
                    }
                    host.prepare(part, stop)
                };
                let prepared = prepare();
                if place == 0 {
                    is_first_prepared.store(prepared.is_ok(), Ordering::SeqCst);
                }
                has_failed.fetch_or(prepared.is_err(), Ordering::SeqCst);
                unprepared.fetch_sub(1, Ordering::SeqCst);
                prepared?;
                // Workers take silence for our end, so those that are prepared early are polled until all are.
                while unprepared.load(Ordering::SeqCst) > 0 {
                    std::thread::sleep(PING_INTERVAL);
                    host.look_at_clock(stop)?;
                }
                Ok(())
            });
        prepared.into_iter().collect()
    }

    fn start(&mut self, stop: &AtomicBool) -> Result<Vec<ClockOffset>, HostError> {
        let offsets = run_concurrently(self.hosts.iter_mut(), |host| host.clock_offset(stop));
        let offsets: Vec<ClockOffset> = offsets.into_iter().collect::<Result<_, _>>()?;
        let round_trip_ns = offsets.iter().map(|offset| offset.uncertainty_ns).max().unwrap_or(0);
        let delay = START_DELAY + Duration::from_nanos(round_trip_ns.saturating_mul(DELAY_TRIPS));
        let start = self.origin.elapsed() + delay;
        let start_ns = u64::try_from(start.as_nanos()).unwrap_or(u64::MAX);
        let started = run_concurrently(self.hosts.iter_mut().zip(&offsets), |(host, offset)| {
            // As an instant of its own clock: it doesn't matter how long the request takes, if it is there
            // in time.
            host.start(offset.theirs_ns(start_ns), stop)
        });
        started.into_iter().collect::<Result<Vec<()>, _>>()?;
        Ok(offsets)
    }

    fn follow(
        &mut self,
        last: &Mutex<Vec<WorkerProgress>>,
        stop: &AtomicBool,
        reported: &dyn Fn(&ProgressReport, &[WorkerProgress]),
    ) -> Vec<Result<WorkerResult, HostError>> {
        let follow = |(place, host): (usize, &mut RemoteHost)| -> Result<WorkerResult, HostError> {
            loop {
                let marked = |error: HostError| {
                    let mut all = last.lock();
                    let one = &mut all[place];
                    // Of one that was only told to stop, nothing is wrong.
                    match error {
                        HostError::Lost { .. } => one.is_lost = true,
                        HostError::Failed { .. } => one.has_failed = true,
                        _ => {}
                    }
                    error
                };
                let report = host.report(stop).map_err(marked)?;
                last.lock()[place].report = report;
                if report.has_ended {
                    let part = host.collect(stop).map_err(marked)?;
                    return Ok(WorkerResult { part, offset_after: host.clock_offset(stop).ok() });
                }
                if stop.load(Ordering::Relaxed) {
                    host.end_run();
                    return Err(HostError::Stopped);
                }
                std::thread::sleep(REPORT_INTERVAL);
            }
        };
        let follow = &follow;
        std::thread::scope(|scope| {
            let hosts = self.hosts.iter_mut().enumerate();
            let threads: Vec<_> = hosts.map(|host| scope.spawn(move || follow(host))).collect();
            loop {
                let have_ended = threads.iter().all(|thread| thread.is_finished());
                let each = last.lock().clone();
                let mut whole = ProgressReport::default();
                each.iter().for_each(|one| whole.add(&one.now()));
                whole.has_ended = have_ended;
                reported(&whole, &each);
                if have_ended {
                    break;
                }
                std::thread::sleep(REPORT_INTERVAL);
            }
            threads.into_iter().map(joined).collect()
        })
    }

    fn put_together(
        self,
        parts: &[RemoteJob],
        offsets: &[ClockOffset],
        results: Vec<Result<WorkerResult, HostError>>,
        last: &[WorkerProgress],
    ) -> Result<CombinedResults, HostError> {
        let mut together = CombinedResults {
            measured: MeasuredWindow::default(),
            particulars: YcsbStatistics::default(),
            hosts: Vec::new(),
            start_spread: Duration::ZERO,
            unstarted: 0,
            outside: 0,
            reconnections: 0,
            lost_threads: 0,
            lost: Vec::new(),
        };
        let (mut measured, mut begins) = (Vec::new(), Vec::new());
        for (place, result) in results.into_iter().enumerate() {
            let (host, offset) = (&self.hosts[place], &offsets[place]);
            let WorkerResult { part, offset_after } = match result {
                Ok(result) => result,
                Err(error) => {
                    together.lost.push(LostHost { error, last: last[place].report });
                    continue;
                }
            };
            let gain_ns = offset_after.map(|after| after.ahead_ns - offset.ahead_ns);
            together.hosts.push(HostReport {
                worker: host.name.clone(),
                cores: host.cores,
                threads: parts[place].own_threads,
                operations: part.measured.operations,
                start_uncertainty: Duration::from_nanos(offset.uncertainty_ns),
                start_lateness: Duration::from_nanos(part.start_lateness_ns),
                clock_gain_ns: gain_ns.and_then(|gain_ns| i64::try_from(gain_ns).ok()),
            });
            begins.push((part.start_lateness_ns, offset.uncertainty_ns));
            together.unstarted = together.unstarted.saturating_add(part.unstarted);
            together.outside = together.outside.saturating_add(part.outside);
            together.reconnections = together.reconnections.saturating_add(part.reconnections);
            together.lost_threads = together.lost_threads.saturating_add(part.lost_threads);
            part.particulars.add_to(&mut together.particulars);
            measured.push(part.measured);
        }
        if measured.is_empty() {
            // Not empty: there is at least one worker, and none returned results.
            return Err(together.lost.swap_remove(0).error);
        }
        together.start_spread = Duration::from_nanos(spread_ns(begins));
        together.measured = merge(&measured);
        Ok(together)
    }
}

/// Runs `work` for all items in parallel and returns the results in their order.
fn run_concurrently<I: Send, T: Send>(each: impl Iterator<Item = I>, work: impl Fn(I) -> T + Sync) -> Vec<T> {
    std::thread::scope(|scope| {
        let work = &work;
        let threads: Vec<_> = each.map(|one| scope.spawn(move || work(one))).collect();
        threads.into_iter().map(joined).collect()
    })
}

fn joined<T>(thread: std::thread::ScopedJoinHandle<'_, T>) -> T {
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}
