//! Whether this process kept running: a thread wakes up every few milliseconds and notes when it could not.
//!
//! A stopped process (Ctrl-Z, a debugger, a freezer) sends nothing and times nothing, while devices and the system's
//! clocks continue. No metric of the measurement shows this. The gap between two wake-ups does, and so does a clock
//! that continues while the machine is suspended.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use underlay_record::Pauses;
use underlay_record::pauses::{DELAY_WALL_S, PAUSE_WALL_S};
use underlay_sync::{Mutex, ThreadFate, slices, timer_slack};

use crate::run::control::RunWindow;

const PERIOD: Duration = Duration::from_millis(10);
/// An hour of a process that is stopped and continued thirty times a second; beyond that, the oldest are forgotten.
const MAX_GAPS: usize = 100_000;
/// The two clocks are read one after the other.
const CLOCKS_APART: Duration = Duration::from_millis(1);

/// A period in which the thread should have woken up and did not.
#[derive(Clone, Copy, Debug, PartialEq)]
struct WakeupGap {
    from: Instant,
    until: Instant,
    /// How much of it the machine was suspended.
    suspended: Duration,
}

#[derive(Debug)]
struct ObservedGaps {
    gaps: VecDeque<WakeupGap>,
    /// When the thread last woke up, and how far ahead the clock that continues in suspension was.
    last: Instant,
    ahead: Duration,
}

impl ObservedGaps {
    fn new(now: Instant, ahead: Duration) -> ObservedGaps {
        ObservedGaps { gaps: VecDeque::new(), last: now, ahead }
    }

    /// The gap that ends now, if the last wake-up was too long ago.
    fn gap_until(&self, now: Instant, ahead: Duration) -> Option<WakeupGap> {
        let suspended = ahead.saturating_sub(self.ahead);
        let suspended = if suspended > CLOCKS_APART { suspended } else { Duration::ZERO };
        let from = self.last + PERIOD;
        let length = now.saturating_duration_since(from);
        (length.as_secs_f64() >= DELAY_WALL_S || !suspended.is_zero()).then_some(WakeupGap {
            from: from.min(now),
            until: now,
            suspended,
        })
    }

    fn wake(&mut self, now: Instant, ahead: Duration) {
        if let Some(gap) = self.gap_until(now, ahead) {
            if self.gaps.len() == MAX_GAPS {
                self.gaps.pop_front();
            }
            self.gaps.push_back(gap);
        }
        self.last = now;
        self.ahead = self.ahead.max(ahead);
    }

    /// The part of the gaps between two instants; the second is now or in the past.
    fn between(&self, begin: Instant, end: Instant, open: Option<WakeupGap>) -> Pauses {
        let mut pauses = Pauses::default();
        for gap in self.gaps.iter().copied().chain(open) {
            let inside_s = gap.until.min(end).saturating_duration_since(gap.from.max(begin)).as_secs_f64();
            let is_outside = gap.until < begin || gap.from > end;
            if is_outside {
                continue;
            }
            pauses.suspended_wall_s += gap.suspended.as_secs_f64();
            pauses.longest_wall_s = pauses.longest_wall_s.max(inside_s);
            // By its whole length: a part of a long stop within the window is not a busy host's delay.
            if (gap.until - gap.from).as_secs_f64() >= PAUSE_WALL_S {
                pauses.paused_wall_s += inside_s;
                pauses.pauses += 1;
            } else {
                pauses.delayed_wall_s += inside_s;
            }
        }
        pauses
    }
}

/// Watches this process until it is dropped.
#[derive(Debug)]
pub struct PauseWatch {
    seen: Arc<Mutex<ObservedGaps>>,
    over: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
    fate: ThreadFate,
}

impl PauseWatch {
    /// If the thread can't be started, nothing is observed until the first query: the whole time since then counts as
    /// one pause.
    pub fn start() -> PauseWatch {
        let seen = Arc::new(Mutex::new(ObservedGaps::new(Instant::now(), ahead())));
        let shared_gaps = Arc::clone(&seen);
        let (over, ended) = mpsc::channel::<()>();
        let fate = ThreadFate::default();
        let of_thread = fate.clone();
        let work = move || {
            // A refusal only means that sleeps end as late as before.
            let _ = timer_slack::narrow();
            // A thread with a shorter slice runs at once when it wakes up, if the kernel supports that.
            let _ = slices::shorten();
            while let Err(RecvTimeoutError::Timeout) = ended.recv_timeout(PERIOD) {
                let (now, ahead) = (Instant::now(), ahead());
                shared_gaps.lock().wake(now, ahead);
            }
        };
        let thread = std::thread::Builder::new().name("pause-watch".to_owned());
        let thread = thread.spawn(move || of_thread.watch(work));
        PauseWatch { seen, over: Some(over), thread: thread.ok(), fate }
    }

    /// How long this process stalled between two instants; the second is now or in the past.
    fn between(&self, begin: Instant, end: Instant) -> Pauses {
        // Time missed because of a bug in the watch is no pause of the process.
        self.fate.check();
        let seen = self.seen.lock();
        // After a pause the caller may run before the watch's thread does.
        let open = seen.gap_until(Instant::now(), ahead());
        seen.between(begin, end, open)
    }

    /// How long this process stalled in a finished window. A backlog from before counts too, as far as the process
    /// stalled and was not merely delayed.
    pub fn over(&self, window: &RunWindow) -> Pauses {
        let RunWindow { began, ended, warm_up, .. } = *window;
        let warming_up = self.between(window.warm_up_began(), began);
        Pauses {
            delayed_wall_s: self.between(began, ended).delayed_wall_s,
            warm_up_wall_s: warm_up.as_secs_f64(),
            warm_up_paused_wall_s: if warm_up.is_zero() { 0.0 } else { warming_up.paused_wall_s },
            ..self.between(window.counts_from(), ended)
        }
    }
}

impl Drop for PauseWatch {
    fn drop(&mut self) {
        drop(self.over.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        self.fate.check();
    }
}

/// By how much the clock that counts suspended time is ahead of the one that does not.
fn ahead() -> Duration {
    clock(libc::CLOCK_BOOTTIME).saturating_sub(clock(libc::CLOCK_MONOTONIC))
}

fn clock(id: libc::clockid_t) -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: it only writes into the timespec that it is given.
    let status = unsafe { libc::clock_gettime(id, &mut time) };
    match status {
        0 => Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0)),
        // A kernel without this clock reports no suspension.
        _ => Duration::ZERO,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AHEAD: Duration = Duration::from_secs(100);

    fn ms(count: u64) -> Duration {
        Duration::from_millis(count)
    }

    /// Wake-ups at these milliseconds.
    fn woken(begin: Instant, wakes: &[u64]) -> ObservedGaps {
        let mut seen = ObservedGaps::new(begin, AHEAD);
        wakes.iter().for_each(|&wake_ms| seen.wake(begin + ms(wake_ms), AHEAD));
        seen
    }

    #[test]
    fn gaps_differ_from_delays_and_usual_sleeps() {
        let begin = Instant::now();
        // Late by 5 ms, by 40 ms, and by two seconds.
        let seen = woken(begin, &[10, 25, 75, 85, 2095, 2105]);
        let found = seen.between(begin, begin + ms(2105), None);
        assert!((found.delayed_wall_s - 0.04).abs() < 1e-9, "{found:?}");
        assert!((found.paused_wall_s - 2.0).abs() < 1e-9 && found.pauses == 1, "{found:?}");
        assert_eq!(found.longest_wall_s, found.paused_wall_s);
        assert_eq!(found.suspended_wall_s, 0.0);
    }

    #[test]
    fn gap_across_edge_counts_its_inner_part() {
        let begin = Instant::now();
        let seen = woken(begin, &[10, 1020]);
        let pauses_within = |from: u64, to: u64| seen.between(begin + ms(from), begin + ms(to), None);
        assert!((pauses_within(520, 2000).paused_wall_s - 0.5).abs() < 1e-9);
        assert!((pauses_within(0, 520).paused_wall_s - 0.5).abs() < 1e-9);
        assert_eq!(pauses_within(1100, 2000), Pauses::default());
        let edge = pauses_within(970, 2000);
        assert!((edge.paused_wall_s - 0.05).abs() < 1e-9 && edge.delayed_wall_s == 0.0, "{edge:?}");
    }

    #[test]
    fn gap_counts_before_watch_wakes() {
        let begin = Instant::now();
        let seen = woken(begin, &[10]);
        let open = seen.gap_until(begin + ms(520), AHEAD);
        assert!((seen.between(begin, begin + ms(520), open).paused_wall_s - 0.5).abs() < 1e-9);
        assert_eq!(seen.gap_until(begin + ms(30), AHEAD), None);
    }

    #[test]
    fn suspension_is_told_by_the_clocks_alone() {
        let begin = Instant::now();
        let mut seen = woken(begin, &[10]);
        // The monotonic clock stopped, and so shows no gap.
        seen.wake(begin + ms(20), AHEAD + Duration::from_secs(30));
        seen.wake(begin + ms(30), AHEAD + Duration::from_secs(30));
        let found = seen.between(begin, begin + ms(30), None);
        assert_eq!((found.suspended_wall_s, found.paused_wall_s), (30.0, 0.0));
        assert_eq!(seen.between(begin + ms(25), begin + ms(30), None).suspended_wall_s, 0.0);
    }

    #[test]
    fn warm_up_stop_counts_where_backlog_remains() {
        let begin = Instant::now();
        let mut seen = ObservedGaps::new(begin, ahead());
        // It stalls for 3.9 s of a warm-up of 5 s, and is late by 40 ms after that.
        [10, 3_920, 3_970].into_iter().for_each(|wake_ms| seen.wake(begin + ms(wake_ms), ahead()));
        seen.last = begin + ms(9_000);
        let watch = PauseWatch {
            seen: Arc::new(Mutex::new(seen)),
            over: None,
            thread: None,
            fate: ThreadFate::default(),
        };
        let over = |behind_since| {
            watch.over(&RunWindow {
                began: begin + ms(5_000),
                ended: begin + ms(9_000),
                warm_up: ms(5_000),
                behind_since,
            })
        };
        let near = |found: f64, expected: f64| (found - expected).abs() < 1e-9;
        let left = over(Some(begin + ms(20)));
        assert!(near(left.paused_wall_s, 3.9) && left.pauses == 1, "{left:?}");
        assert_eq!(left.delayed_wall_s, 0.0, "a delay before the window is none of its own");
        for pauses in [over(None), over(Some(begin + ms(4_990)))] {
            assert_eq!((pauses.paused_wall_s, pauses.pauses), (0.0, 0));
            assert!(near(pauses.warm_up_paused_wall_s, 3.9) && pauses.warm_up_wall_s == 5.0, "{pauses:?}");
        }
    }

    #[test]
    fn watch_panic_is_noticed_by_reader() {
        let begin = Instant::now();
        let seen = Arc::new(Mutex::new(ObservedGaps::new(begin, ahead())));
        let fate = ThreadFate::default();
        fate.watch(|| panic!("a bug of the watch"));
        let watch = PauseWatch { seen, over: None, thread: None, fate };
        let asked = std::panic::AssertUnwindSafe(|| watch.between(begin, begin));
        assert!(std::panic::catch_unwind(asked).is_err());
    }

    #[test]
    fn remembered_gaps_are_bounded() {
        let begin = Instant::now();
        let mut seen = ObservedGaps::new(begin, AHEAD);
        (1..=MAX_GAPS as u64 + 10).for_each(|number| seen.wake(begin + ms(number * 40), AHEAD));
        assert_eq!(seen.gaps.len(), MAX_GAPS);
    }

    #[test]
    fn watch_wakes_until_dropped() {
        let watch = PauseWatch::start();
        let first = watch.seen.lock().last;
        let deadline = Instant::now() + Duration::from_secs(60);
        while watch.seen.lock().last == first {
            assert!(Instant::now() < deadline, "it never wakes up");
            std::thread::sleep(PERIOD);
        }
        let seen = Arc::downgrade(&watch.seen);
        drop(watch);
        assert!(seen.upgrade().is_none(), "its thread has ended");
    }
}
