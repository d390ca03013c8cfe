//! Detects stalls during a measurement: of this process by its own watch, and of the run's other processes through
//! `/proc`.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use underlay_attach::processes::ProcessId;
use underlay_attach::standstill::{FrozenGroups, RunProcesses, WatchedProcess};
use underlay_record::{PauseRecord, StoppedProcess};
use underlay_sync::Mutex;
use underlay_workload::{PauseWatch, RunWindow};

use crate::machine::thread_time;
use crate::ticker::SamplerTicker;

const EVERY: Duration = Duration::from_millis(50);
/// How often all processes are listed again. Each listing finds new processes.
const LIST_EVERY: Duration = Duration::from_secs(1);
/// Sampling may take this share of a CPU, and so may listing; beyond it they become rarer. CPU time counts: a sample
/// that waited for a CPU on a busy host is as cheap as any other.
const SHARE_OF_A_CPU: f64 = 0.005;
/// The longest interval between samples.
const RAREST_LOOK: Duration = Duration::from_secs(2);
const RAREST_LIST: Duration = Duration::from_secs(10);
/// A sample covers the time since the previous one, but at most this many intervals: this process may have been stopped
/// too.
const STANDS_FOR: u32 = 4;
/// More than a cell has; beyond it, only the first are kept.
const MAX_STOPPED: usize = 100;
/// The limit per process; beyond it, only the first are kept.
const MAX_STOPS: usize = 10_000;

/// A period in which a process stalled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ProcessStop {
    from: Instant,
    until: Instant,
}

impl ProcessStop {
    fn within(&self, from: Instant, to: Instant) -> Duration {
        self.until.min(to).saturating_duration_since(self.from.max(from))
    }
}

/// By process: its name, and the times at which it was stopped, in order.
#[derive(Debug, Default)]
struct StoppedProcesses(BTreeMap<ProcessId, (String, Vec<ProcessStop>)>);

impl StoppedProcesses {
    fn add(&mut self, process: ProcessId, name: &str, stop: ProcessStop) {
        if self.0.len() >= MAX_STOPPED && !self.0.contains_key(&process) {
            return;
        }
        let (_, stops) = self.0.entry(process).or_insert_with(|| (name.to_owned(), Vec::new()));
        let stop_count = stops.len();
        match stops.last_mut() {
            Some(last) if last.until >= stop.from => last.until = stop.until,
            _ if stop_count >= MAX_STOPS => {}
            _ => stops.push(stop),
        }
    }

    /// The processes that were stopped during the window or the warm-up before it.
    fn over(&self, window: &RunWindow) -> Vec<StoppedProcess> {
        let all = self.0.iter().map(|(id, (name, stops))| {
            let within_s = |from: Instant, to: Instant| {
                stops.iter().map(|stop| stop.within(from, to).as_secs_f64()).sum::<f64>()
            };
            StoppedProcess {
                name: name.clone(),
                pid: id.pid,
                stopped_wall_s: within_s(window.counts_from(), window.ended),
                warm_up_stopped_wall_s: within_s(window.warm_up_began(), window.began),
            }
        });
        all.filter(|process| process.stopped_wall_s + process.warm_up_stopped_wall_s > 0.0).collect()
    }
}

/// The processes that were stopped in the last sample, with the time not yet counted for each.
type StandingProcesses = BTreeMap<ProcessId, Duration>;

/// Additional stall time of each process that is stopped in both this sample and the previous one. A single sample may
/// find a process that is stopped only briefly, such as one that a tracer or a shell has just started. `still` are the
/// processes stopped in this sample, which covers `stood`.
fn stood_twice(
    standing: &mut StandingProcesses,
    still: impl Iterator<Item = ProcessId>,
    stood: Duration,
) -> BTreeMap<ProcessId, Duration> {
    let (mut now, mut found) = (StandingProcesses::new(), BTreeMap::new());
    for id in still {
        match standing.get(&id) {
            Some(uncounted) => {
                found.insert(id, *uncounted + stood);
                now.insert(id, Duration::ZERO);
            }
            None => {
                now.insert(id, stood);
            }
        }
    }
    *standing = now;
    found
}

/// How long this thread has worked since an instant at which it had used `spent` of CPU time. Some kernels count CPU
/// time in ticks, which are longer than a sample.
fn worked_since(began: Instant, spent: Duration) -> Duration {
    began.elapsed().min(thread_time().saturating_sub(spent))
}

/// The pause after work that took this long.
fn pause_after(elapsed: Duration, shortest: Duration, longest: Duration) -> Duration {
    longest.min(elapsed.div_f64(SHARE_OF_A_CPU)).max(shortest)
}

/// Samples until it is dropped.
pub struct PauseMeter {
    own: PauseWatch,
    stopped: Arc<Mutex<StoppedProcesses>>,
    ticker: SamplerTicker,
}

impl PauseMeter {
    /// `groups` are the control groups that the system's processes are in.
    pub fn watch(groups: Vec<PathBuf>) -> PauseMeter {
        let stopped = Arc::<Mutex<StoppedProcesses>>::default();
        let shared = Arc::clone(&stopped);
        let ticker = SamplerTicker::start("standstill", EVERY, move || {
            let mut processes = RunProcesses::from_groups(groups);
            let mut standing = StandingProcesses::new();
            let (mut listed, mut list_after) = (None::<Instant>, LIST_EVERY);
            let mut last = Instant::now();
            let mut pause = EVERY;
            Some(move || {
                let (began, spent) = (Instant::now(), thread_time());
                let is_due =
                    listed.is_none_or(|listed| began.saturating_duration_since(listed) >= list_after);
                if is_due {
                    processes.list();
                    list_after = pause_after(worked_since(began, spent), LIST_EVERY, RAREST_LIST);
                    listed = Some(began);
                }
                // A listing takes long where there are many threads, and is not a sample.
                let (looked, spent) = (Instant::now(), thread_time());
                if !is_due {
                    processes.add_new();
                }
                let mut frozen = FrozenGroups::default();
                let still = processes.iter().filter(|process| process.stands_still(&mut frozen));
                let still: Vec<&WatchedProcess> = still.collect();
                let stood = looked.saturating_duration_since(last).min(pause * STANDS_FOR);
                let found = stood_twice(&mut standing, still.iter().map(|process| process.id), stood);
                if !found.is_empty() {
                    let mut guard = shared.lock();
                    for process in still {
                        let Some(stood) = found.get(&process.id) else { continue };
                        let from = looked.checked_sub(*stood).unwrap_or(looked);
                        guard.add(process.id, &process.name, ProcessStop { from, until: looked });
                    }
                }
                last = looked;
                pause = pause_after(worked_since(looked, spent), EVERY, RAREST_LOOK);
                pause
            })
        });
        PauseMeter { own: PauseWatch::start(), stopped, ticker }
    }

    /// The processes that stalled in a finished window, in its warm-up, and in a backlog before it.
    pub fn over(&self, window: &RunWindow) -> PauseRecord {
        PauseRecord {
            window_wall_s: window.length().as_secs_f64(),
            own: self.own.over(window),
            stopped: self.stopped_over(window),
            counted_off_wall_s: None,
        }
    }

    /// The other processes that stalled.
    pub fn stopped_over(&self, window: &RunWindow) -> Vec<StoppedProcess> {
        self.ticker.check();
        self.stopped.lock().over(window)
    }
}

/// A host that is busy for such a moment stalls no process, however short a step is.
const BUSY_MOMENT_S: f64 = 0.2;

/// Steps that follow one another: a stall in one of them is little compared with all, but decides that step's result.
pub struct StepClock<'a> {
    meter: &'a PauseMeter,
    began: Cell<Instant>,
    problem: RefCell<Option<String>>,
}

impl<'a> StepClock<'a> {
    /// Begins the first step.
    pub fn begin(meter: &'a PauseMeter) -> StepClock<'a> {
        StepClock { meter, began: Cell::new(Instant::now()), problem: RefCell::new(None) }
    }

    /// Ends one step and begins the next.
    pub fn end_step(&self) {
        let now = Instant::now();
        let step = RunWindow::alone(self.began.replace(now), now);
        let record = self.meter.over(&step);
        let others_s = record.stopped.iter().map(|process| process.stopped_wall_s);
        let stood_s = others_s.fold(record.own.paused_wall_s + record.own.suspended_wall_s, f64::max);
        let problem = record.stop_problem().filter(|_| stood_s > BUSY_MOMENT_S);
        let mut first = self.problem.borrow_mut();
        *first = first.take().or(problem);
    }

    /// The processes that stood still in the first step with a stall.
    pub fn problem(self) -> Option<String> {
        self.problem.into_inner()
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command};

    use rustix::process::{Pid, Signal, kill_process};

    use super::*;

    struct Ended(Child);

    impl Ended {
        fn signal(&self, signal: Signal) {
            kill_process(Pid::from_raw(self.0.id() as i32).unwrap(), signal).unwrap();
        }
    }

    impl Drop for Ended {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    const JAVA: ProcessId = ProcessId { pid: 7, start_ticks: 1 };

    fn ms(count: u64) -> Duration {
        Duration::from_millis(count)
    }

    /// Builds a record of stopped processes from samples every 100 ms between these times.
    fn stopped(origin: Instant, times: &[(u64, u64)]) -> StoppedProcesses {
        let mut stopped = StoppedProcesses::default();
        for &(from, to) in times {
            for begin in (from..to).step_by(100) {
                let stop = ProcessStop { from: origin + ms(begin), until: origin + ms(begin + 100) };
                stopped.add(JAVA, "java", stop);
            }
        }
        stopped
    }

    #[test]
    fn earlier_stop_does_not_count() {
        let origin = Instant::now();
        let stopped = stopped(origin, &[(0, 500), (1_000, 3_000)]);
        assert_eq!(stopped.0[&JAVA].1.len(), 2, "looks in a row are one stop");
        let over = |from, to| stopped.over(&RunWindow::alone(origin + ms(from), origin + ms(to)));
        assert_eq!(over(500, 1_000), []);
        let expected =
            StoppedProcess { name: "java".into(), pid: 7, stopped_wall_s: 2.0, ..StoppedProcess::default() };
        assert_eq!(over(500, 9_000), std::slice::from_ref(&expected));
        assert_eq!(over(2_500, 9_000), [StoppedProcess { stopped_wall_s: 0.5, ..expected }]);
    }

    /// A rate whose backlog was worked off in the window, and another whose threads had caught up by then.
    #[test]
    fn warm_up_stop_counts_where_backlog_remains() {
        let origin = Instant::now();
        let stopped = stopped(origin, &[(1_000, 4_900)]);
        let over = |behind_since_ms: Option<u64>| {
            let window = RunWindow {
                began: origin + ms(5_000),
                ended: origin + ms(9_000),
                warm_up: ms(5_000),
                behind_since: behind_since_ms.map(|behind_ms| origin + ms(behind_ms)),
            };
            let found = stopped.over(&window);
            (found[0].stopped_wall_s, found[0].warm_up_stopped_wall_s)
        };
        assert_eq!(over(Some(1_000)), (3.9, 3.9));
        assert_eq!(over(Some(4_995)), (0.0, 3.9));
        assert_eq!(over(None), (0.0, 3.9));
    }

    #[test]
    fn process_counts_as_stopped_from_second_consecutive_look() {
        let mut standing = StandingProcesses::new();
        let mut look = |still: &[ProcessId]| stood_twice(&mut standing, still.iter().copied(), ms(50));
        assert!(look(&[JAVA]).is_empty(), "it may have been a moment");
        assert!(look(&[]).is_empty());
        assert!(look(&[JAVA]).is_empty(), "nor are two looks apart a stop");
        assert_eq!(look(&[JAVA]).get(&JAVA), Some(&ms(100)), "the first look counts as well");
        assert_eq!(look(&[JAVA]).get(&JAVA), Some(&ms(50)));
    }

    #[test]
    fn looks_stay_cheap_and_go_on() {
        let after = |elapsed| pause_after(elapsed, EVERY, RAREST_LOOK);
        assert_eq!(after(Duration::from_micros(100)), EVERY);
        assert_eq!(after(ms(1)), ms(200));
        assert_eq!(after(Duration::from_secs(3600)), RAREST_LOOK);
        let (began, spent) = (Instant::now(), thread_time());
        std::thread::sleep(ms(300));
        assert!(worked_since(began, spent) < ms(200), "waiting for a CPU is no work");
    }

    /// Asserts no duration, only that the stall is detected: in the window, and as a problem of a step.
    #[test]
    fn stopped_process_of_run_is_reported() {
        let meter = PauseMeter::watch(Vec::new());
        let began = Instant::now();
        let steps = StepClock::begin(&meter);
        // After the first listing.
        let sleeper = Ended(Command::new("sleep").arg("600").spawn().unwrap());
        sleeper.signal(Signal::STOP);
        let deadline = Instant::now() + Duration::from_secs(60);
        let long_enough =
            |process: &StoppedProcess| process.pid == sleeper.0.id() && process.stopped_wall_s > 0.5;
        while !meter.stopped_over(&RunWindow::alone(began, Instant::now())).iter().any(long_enough) {
            assert!(Instant::now() < deadline);
            std::thread::sleep(EVERY);
        }
        steps.end_step();
        sleeper.signal(Signal::CONT);
        steps.end_step();
        assert!(steps.problem().is_some());
    }
}
