//! The coordinator: connects to workers, divides a job, begins it everywhere at the same time, and puts the parts together.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use underlay_record::Measured;
use underlay_sync::Mutex;
use underlay_workload::Particulars;

use crate::HostError;
use crate::clock_offset::{ClockOffset, spread_ns};
use crate::host::{Host, HostAddress};
use crate::job::Job;
use crate::merge::merge;
use crate::message::{Part, Report};
use crate::trust::{Side, Trust};

/// A worker that says nothing for so long is lost.
const PATIENCE: Duration = Duration::from_secs(15);
const REPORT_INTERVAL: Duration = Duration::from_millis(250);
/// Workers that wait for others are asked something so often: they take silence for the end.
const PING_INTERVAL: Duration = Duration::from_millis(100);
/// Between the word to begin and the begin, beside some ways to the farthest worker.
const START_DELAY: Duration = Duration::from_millis(500);
const DELAY_TRIPS: u64 = 8;

/// Workers that are connected.
pub struct Coordinator {
    hosts: Vec<Host>,
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
    /// How exactly its clock was known when it was told when to begin.
    pub start_uncertainty: Duration,
    /// How much later than it was told it began, by its own clock.
    pub start_lateness: Duration,
    /// By how many nanoseconds its clock gained on ours from before the begin until after the end, as exactly as both were
    /// known; `None` where it was gone by then.
    pub clock_gain_ns: Option<i64>,
}

/// A worker that brought nothing back.
#[derive(Debug)]
pub struct LostHost {
    pub error: HostError,
    /// The last that it said of its run.
    pub last: Report,
}

/// What all workers measured.
#[derive(Debug)]
pub struct Together {
    /// Of those that brought something back.
    pub measured: Measured,
    pub particulars: Particulars,
    pub hosts: Vec<HostReport>,
    /// How far apart these may have begun.
    pub start_spread: Duration,
    pub unstarted: u64,
    pub reconnections: u32,
    pub lost_threads: u32,
    /// Where there are any, the measurement is of a smaller load than was asked for.
    pub lost: Vec<LostHost>,
}

/// A worker's part and what its clock did.
struct WorkerResult {
    part: Part,
    offset_after: Option<ClockOffset>,
}

impl Coordinator {
    /// Connects to all workers at the same time. `trust` is needed for those that listen.
    ///
    /// # Errors
    /// When one of them can't be reached, or they don't trust each other.
    pub fn connect(workers: &[HostAddress], trust: Option<&Trust>) -> Result<Self, HostError> {
        Coordinator::connect_with_patience(workers, trust, PATIENCE)
    }

    /// As [`Coordinator::connect`]. A worker that says nothing for as long as `patience` is lost.
    ///
    /// # Errors
    /// As there.
    pub fn connect_with_patience(
        workers: &[HostAddress],
        trust: Option<&Trust>,
        patience: Duration,
    ) -> Result<Self, HostError> {
        if workers.is_empty() {
            return Err(HostError::Job("no workers: expected one at least".to_owned()));
        }
        if let Some((_, twice)) =
            (0..).zip(workers).find(|(place, worker)| workers[..*place].contains(worker))
        {
            return Err(HostError::Job(format!("worker {twice} is there twice: expected each once")));
        }
        let trust = match trust {
            None => None,
            Some(trust) => Some((trust.clone(), trust.context(Side::Coordinator)?)),
        };
        let origin = Instant::now();
        let connections =
            at_once(workers.iter(), |worker| Host::connect(worker, trust.as_ref(), origin, patience));
        let hosts = connections.into_iter().collect::<Result<_, _>>()?;
        Ok(Coordinator { hosts, origin })
    }

    /// Runs a job on all workers, and lets go of them. `reported` is told of all of them together several times a second.
    ///
    /// # Errors
    /// When the job can't be divided or begun, it was stopped, or no worker brought anything back. A worker that is lost
    /// after the begin is in [`Together::lost`], and what the others measured is kept.
    pub fn run(
        mut self,
        job: &Job,
        stop: &AtomicBool,
        reported: &dyn Fn(&Report),
    ) -> Result<Together, HostError> {
        let parts = job.divided(self.hosts.len() as u32)?;
        self.prepare(&parts, stop)?;
        let offsets = self.start(stop)?;
        let last = Mutex::new(vec![Report::default(); self.hosts.len()]);
        let brought = self.follow(&last, stop, reported);
        let was_stopped =
            |brought: &Result<WorkerResult, HostError>| matches!(brought, Err(HostError::Stopped));
        // Who stopped it may have ended workers too: that is no loss.
        if brought.iter().any(was_stopped)
            || (stop.load(Ordering::Relaxed) && brought.iter().any(Result::is_err))
        {
            return Err(HostError::Stopped);
        }
        let last = last.into_inner();
        self.put_together(&parts, &offsets, brought, &last)
    }

    /// The first worker comes first: what is missing in the system, such as a table, is made once. Meanwhile the others are
    /// kept waiting.
    fn prepare(&mut self, parts: &[Job], stop: &AtomicBool) -> Result<(), HostError> {
        let unprepared = AtomicUsize::new(parts.len());
        let is_first_prepared = AtomicBool::new(false);
        let has_failed = AtomicBool::new(false);
        let prepared = at_once((0..).zip(self.hosts.iter_mut().zip(parts)), |(place, (host, part))| {
            let mut prepare = || {
                while place > 0 && !is_first_prepared.load(Ordering::SeqCst) {
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
            while unprepared.load(Ordering::SeqCst) > 0 {
                std::thread::sleep(PING_INTERVAL);
                host.look_at_clock(stop)?;
            }
            Ok(())
        });
        prepared.into_iter().collect()
    }

    fn start(&mut self, stop: &AtomicBool) -> Result<Vec<ClockOffset>, HostError> {
        let offsets = at_once(self.hosts.iter_mut(), |host| host.clock_offset(stop));
        let offsets: Vec<ClockOffset> = offsets.into_iter().collect::<Result<_, _>>()?;
        let way_ns = offsets.iter().map(|offset| offset.uncertainty_ns).max().unwrap_or(0);
        let delay = START_DELAY + Duration::from_nanos(way_ns.saturating_mul(DELAY_TRIPS));
        let start = self.origin.elapsed() + delay;
        let start_ns = u64::try_from(start.as_nanos()).unwrap_or(u64::MAX);
        let started = at_once(self.hosts.iter_mut().zip(&offsets), |(host, offset)| {
            host.start(offset.theirs_ns(start_ns), stop)
        });
        started.into_iter().collect::<Result<Vec<()>, _>>()?;
        Ok(offsets)
    }

    fn follow(
        &mut self,
        last: &Mutex<Vec<Report>>,
        stop: &AtomicBool,
        reported: &dyn Fn(&Report),
    ) -> Vec<Result<WorkerResult, HostError>> {
        let follow = |(place, host): (usize, &mut Host)| -> Result<WorkerResult, HostError> {
            loop {
                let report = host.report(stop)?;
                last.lock()[place] = report;
                if report.has_ended {
                    let part = host.collect(stop)?;
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
                let mut whole = Report::default();
                last.lock().iter().for_each(|one| whole.add(one));
                whole.has_ended = have_ended;
                reported(&whole);
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
        parts: &[Job],
        offsets: &[ClockOffset],
        brought: Vec<Result<WorkerResult, HostError>>,
        last: &[Report],
    ) -> Result<Together, HostError> {
        let mut together = Together {
            measured: Measured::default(),
            particulars: Particulars::default(),
            hosts: Vec::new(),
            start_spread: Duration::ZERO,
            unstarted: 0,
            reconnections: 0,
            lost_threads: 0,
            lost: Vec::new(),
        };
        let (mut measured, mut begins) = (Vec::new(), Vec::new());
        for (place, brought) in brought.into_iter().enumerate() {
            let (host, offset) = (&self.hosts[place], &offsets[place]);
            let WorkerResult { part, offset_after } = match brought {
                Ok(brought) => brought,
                Err(error) => {
                    together.lost.push(LostHost { error, last: last[place] });
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
            together.reconnections = together.reconnections.saturating_add(part.reconnections);
            together.lost_threads = together.lost_threads.saturating_add(part.lost_threads);
            part.particulars.add_to(&mut together.particulars);
            measured.push(part.measured);
        }
        if measured.is_empty() {
            return Err(together.lost.swap_remove(0).error);
        }
        together.start_spread = Duration::from_nanos(spread_ns(begins));
        together.measured = merge(&measured);
        Ok(together)
    }
}

/// Does something for each of several at the same time, and gives what came of it in their order.
fn at_once<I: Send, T: Send>(each: impl Iterator<Item = I>, work: impl Fn(I) -> T + Sync) -> Vec<T> {
    std::thread::scope(|scope| {
        let work = &work;
        let threads: Vec<_> = each.map(|one| scope.spawn(move || work(one))).collect();
        threads.into_iter().map(joined).collect()
    })
}

fn joined<T>(thread: std::thread::ScopedJoinHandle<'_, T>) -> T {
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}
