//! Who stood still while a cell was measured: this process by its own watch, all others of the cell by what `/proc` says of them.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use underlay_attach::processes::ProcessId;
use underlay_attach::standstill::{FrozenGroups, Watched, of_this_run};
use underlay_record::{PauseRecord, StoppedProcess};
use underlay_sync::Mutex;
use underlay_workload::PauseWatch;

use crate::ticker::Ticker;

const EVERY: Duration = Duration::from_millis(50);
/// How often processes that began or ended are seen.
const LIST_EVERY: Duration = Duration::from_secs(1);
/// Looking may take this share of a CPU: beyond, it becomes rarer.
const SHARE_OF_A_CPU: f64 = 0.005;
/// A look stands for the time since the one before, but for no more than this many pauses between looks: this process may have been stopped too.
const STANDS_FOR: u32 = 4;
/// More than a cell has; of more, the first are kept.
const MAX_STOPPED: usize = 100;

/// By process: its name, and how long it was stopped so far.
type Stopped = BTreeMap<ProcessId, (String, Duration)>;

/// Who stood still at the last look, with what was not counted of it yet.
type Standing = BTreeMap<ProcessId, Duration>;

/// How much longer each process stood still, of those that do now and did at the look before: a single look may meet a process that is stopped for a
/// moment only, such as one that a tracer or a shell has just started. `still` are those of this look, which stands for `stood`.
fn stood_twice(
    standing: &mut Standing,
    still: impl Iterator<Item = ProcessId>,
    stood: Duration,
) -> BTreeMap<ProcessId, Duration> {
    let (mut now, mut found) = (Standing::new(), BTreeMap::new());
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

/// Watches until it is dropped.
pub(super) struct PauseMeter {
    own: PauseWatch,
    stopped: Arc<Mutex<Stopped>>,
    _ticker: Ticker,
}

impl PauseMeter {
    /// `groups` are the control groups that the system's processes are in.
    pub(super) fn watch(groups: Vec<PathBuf>) -> PauseMeter {
        let stopped = Arc::<Mutex<Stopped>>::default();
        let kept = Arc::clone(&stopped);
        let ticker = Ticker::start("standstill", EVERY, move || {
            let mut processes: Vec<Watched> = Vec::new();
            let mut standing = Standing::new();
            let mut listed: Option<Instant> = None;
            let mut last = Instant::now();
            let mut pause = EVERY;
            Some(move || {
                let began = Instant::now();
                if listed.is_none_or(|listed| listed.elapsed() >= LIST_EVERY) {
                    processes = of_this_run(groups.iter().map(PathBuf::as_path));
                    listed = Some(began);
                }
                let mut frozen = FrozenGroups::default();
                let still = processes.iter().filter(|process| process.stands_still(&mut frozen));
                let still: Vec<&Watched> = still.collect();
                let stood = (began - last).min(pause * STANDS_FOR);
                let found = stood_twice(&mut standing, still.iter().map(|process| process.id), stood);
                if !found.is_empty() {
                    let mut kept = kept.lock();
                    for process in still {
                        let Some(stood) = found.get(&process.id) else { continue };
                        if kept.len() < MAX_STOPPED || kept.contains_key(&process.id) {
                            let known = kept.entry(process.id);
                            known.or_insert_with(|| (process.name.clone(), Duration::ZERO)).1 += *stood;
                        }
                    }
                }
                last = began;
                pause = EVERY.max(began.elapsed().div_f64(SHARE_OF_A_CPU));
                pause
            })
        });
        PauseMeter { own: PauseWatch::start(), stopped, _ticker: ticker }
    }

    /// How long other processes have been stopped so far: for [`between`](Self::between).
    pub(super) fn begin(&self) -> Began {
        Began { at: Instant::now(), stopped: self.stopped.lock().clone() }
    }

    /// Who stood still from `began`, or from `from` where that was earlier, until now. The window was as long as `window`.
    pub(super) fn since(&self, began: &Began, from: Instant, window: Duration) -> PauseRecord {
        PauseRecord {
            window_wall_s: window.as_secs_f64(),
            own: self.own.between(began.at.min(from), Instant::now()),
            stopped: stopped_since(&began.stopped, &self.stopped.lock()),
            counted_off_wall_s: None,
        }
    }
}

/// When something began that must not stand still.
#[derive(Clone, Debug)]
pub(super) struct Began {
    pub at: Instant,
    stopped: Stopped,
}

fn stopped_since(then: &Stopped, now: &Stopped) -> Vec<StoppedProcess> {
    let all = now.iter().map(|(id, (name, total))| {
        let before = then.get(id).map_or(Duration::ZERO, |(_, before)| *before);
        let stopped_wall_s = total.saturating_sub(before).as_secs_f64();
        StoppedProcess { name: name.clone(), pid: id.pid, stopped_wall_s }
    });
    all.filter(|process| process.stopped_wall_s > 0.0).collect()
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

    #[test]
    fn what_was_stopped_before_does_not_count() {
        let id = ProcessId { pid: 7, start_ticks: 1 };
        let at = |ms| Stopped::from([(id, ("java".to_owned(), Duration::from_millis(ms)))]);
        assert_eq!(stopped_since(&at(500), &at(500)), []);
        let found = stopped_since(&at(500), &at(2500));
        assert_eq!(found, [StoppedProcess { name: "java".into(), pid: 7, stopped_wall_s: 2.0 }]);
        assert_eq!(stopped_since(&Stopped::new(), &at(100)).len(), 1);
    }

    #[test]
    fn a_process_counts_as_stopped_from_its_second_look_in_a_row_on() {
        let id = ProcessId { pid: 7, start_ticks: 1 };
        let ms = Duration::from_millis;
        let mut standing = Standing::new();
        let mut look = |still: &[ProcessId]| stood_twice(&mut standing, still.iter().copied(), ms(50));
        assert!(look(&[id]).is_empty(), "it may have been a moment");
        assert!(look(&[]).is_empty());
        assert!(look(&[id]).is_empty(), "nor are two looks apart a stop");
        assert_eq!(look(&[id]).get(&id), Some(&ms(100)), "the first look counts as well");
        assert_eq!(look(&[id]).get(&id), Some(&ms(50)));
    }

    /// No figure is asserted, but that it is seen at all.
    #[test]
    fn a_process_of_this_run_that_is_stopped_is_told() {
        let sleeper = Ended(Command::new("sleep").arg("600").spawn().unwrap());
        let meter = PauseMeter::watch(Vec::new());
        let began = meter.begin();
        sleeper.signal(Signal::STOP);
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            let seen = meter.since(&began, began.at, began.at.elapsed());
            if seen.stopped.iter().any(|process| process.pid == sleeper.0.id()) {
                break;
            }
            assert!(Instant::now() < deadline, "{seen:?}");
            std::thread::sleep(EVERY);
        }
        sleeper.signal(Signal::CONT);
    }
}
