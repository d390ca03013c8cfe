//! How fast a volume may be: two token buckets, and the one thread that waits for tokens.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::time::Duration;
use underlay_sync::thread::{self, JoinHandle};
use underlay_sync::{Condvar, Mutex, MutexGuard};

use serde::{Deserialize, Serialize};
use underlay_storage::clock::ModelClock;
use underlay_storage::time::ModelTime;

/// In the time of the pool's clock. Absent is unlimited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RateLimits {
    /// Reads and writes a second.
    pub iops: Option<u64>,
    /// Of reads and writes.
    pub bytes_per_second: Option<u64>,
}

impl RateLimits {
    pub fn is_unlimited(&self) -> bool {
        self.iops.is_none() && self.bytes_per_second.is_none()
    }
}

/// How much an idle volume may save up, in seconds of its rate.
const BURST_S: f64 = 0.05;

/// Says when each request may begin. It reads no clock.
///
/// Tokens come in at the rate, up to 50 ms worth. A request takes its tokens when it comes, and begins at once if there
/// were enough, or else when its debt is paid. So requests begin in their order of arrival, and one that is longer than
/// the bucket needs no special rule.
#[derive(Debug, Default)]
pub struct RateLimiter {
    operations: Option<TokenBucket>,
    bytes: Option<TokenBucket>,
}

#[derive(Debug)]
struct TokenBucket {
    rate: f64,
    depth: f64,
    tokens: f64,
    /// When `tokens` was right.
    at: ModelTime,
}

impl TokenBucket {
    fn new(rate: u64, least: f64, now: ModelTime) -> TokenBucket {
        let rate = rate.max(1) as f64;
        let depth = (rate * BURST_S).max(least);
        TokenBucket { rate, depth, tokens: depth, at: now }
    }

    fn take(&mut self, tokens: f64, now: ModelTime) -> ModelTime {
        self.tokens = (self.tokens + now.duration_since(self.at).as_secs_f64() * self.rate).min(self.depth);
        self.at = self.at.max(now);
        self.tokens -= tokens;
        if self.tokens >= 0.0 { now } else { now + Duration::from_secs_f64(-self.tokens / self.rate) }
    }
}

impl RateLimiter {
    pub fn new(limits: RateLimits, now: ModelTime) -> RateLimiter {
        RateLimiter {
            operations: limits.iops.map(|rate| TokenBucket::new(rate, 1.0, now)),
            bytes: limits.bytes_per_second.map(|rate| TokenBucket::new(rate, 4096.0, now)),
        }
    }

    /// When a request of this many bytes that comes now may begin.
    pub fn admit(&mut self, bytes: u64, now: ModelTime) -> ModelTime {
        let operations = self.operations.as_mut().map_or(now, |bucket| bucket.take(1.0, now));
        let bytes = self.bytes.as_mut().map_or(now, |bucket| bucket.take(bytes as f64, now));
        operations.max(bytes)
    }
}

type TimerJob = Box<dyn FnOnce() + Send>;

/// Runs jobs at instants of a clock. Its thread begins with the first job.
pub struct JobTimer {
    shared: Arc<TimerShared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

struct TimerShared {
    clock: Arc<dyn ModelClock>,
    state: Mutex<TimerState>,
    changed: Condvar,
}

#[derive(Default)]
struct TimerState {
    due: BinaryHeap<Reverse<DueJob>>,
    next: u64,
    ended: bool,
}

struct DueJob {
    at: ModelTime,
    number: u64,
    job: TimerJob,
}

impl PartialEq for DueJob {
    fn eq(&self, other: &DueJob) -> bool {
        // The number keeps jobs of one instant in the order in which they came.
        (self.at, self.number) == (other.at, other.number)
    }
}

impl Eq for DueJob {}

impl PartialOrd for DueJob {
    fn partial_cmp(&self, other: &DueJob) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for DueJob {
    fn cmp(&self, other: &DueJob) -> std::cmp::Ordering {
        (self.at, self.number).cmp(&(other.at, other.number))
    }
}

impl JobTimer {
    pub fn new(clock: Arc<dyn ModelClock>) -> JobTimer {
        let shared = TimerShared { clock, state: Mutex::default(), changed: Condvar::new() };
        JobTimer { shared: Arc::new(shared), thread: Mutex::new(None) }
    }

    /// Runs `job` at `instant`, or at once where no thread can be had or the timer has ended.
    pub fn run_at(&self, instant: ModelTime, job: TimerJob) {
        let started = {
            let mut thread = self.thread.lock();
            if thread.is_none() {
                let shared = Arc::clone(&self.shared);
                *thread = thread::ThreadBuilder::new()
                    .name("volume-limits".into())
                    .spawn(move || shared.work_or_end())
                    .ok();
            }
            thread.is_some()
        };
        let mut state = self.shared.lock();
        if !started || state.ended {
            drop(state);
            return job();
        }
        let number = state.next;
        state.next += 1;
        state.due.push(Reverse(DueJob { at: instant, number, job }));
        drop(state);
        self.shared.changed.notify_one();
    }

    /// Runs what is left at once, and ends the thread.
    pub fn end(&self) {
        self.shared.lock().ended = true;
        self.shared.changed.notify_all();
        let thread = self.thread.lock().take();
        // A job may drop the last handle, on the timer's own thread: that can't join itself.
        if let Some(thread) = thread.filter(|thread| thread.thread().id() != thread::current().id()) {
            // A panic of a job has been printed.
            let _ = thread.join();
        }
    }
}

impl Drop for JobTimer {
    fn drop(&mut self) {
        self.end();
    }
}

impl TimerShared {
    fn lock(&self) -> MutexGuard<'_, TimerState> {
        self.state.lock()
    }

    /// Where the thread must end by a panic, it runs what is left at once, rather than leave requests waiting. Later
    /// ones run where they come.
    fn work_or_end(&self) {
        let Err(panic) = catch_unwind(AssertUnwindSafe(|| self.work())) else { return };
        self.lock().ended = true;
        // A job that panics here, too, has been run; the others want to be.
        while catch_unwind(AssertUnwindSafe(|| self.work())).is_err() {}
        resume_unwind(panic);
    }

    fn work(&self) {
        let mut state = self.lock();
        loop {
            let wait = match state.due.peek() {
                None if state.ended => return,
                Some(_) if state.ended => Duration::ZERO,
                Some(Reverse(due)) => self.clock.wall_until(due.at),
                None => Duration::MAX,
            };
            state = if wait.is_zero() {
                let due = state.due.pop();
                drop(state);
                if let Some(Reverse(due)) = due {
                    // Unlocked: a job may set the timer again.
                    (due.job)();
                }
                self.lock()
            } else if wait == Duration::MAX {
                self.changed.wait(state)
            } else {
                self.changed.wait_timeout(state, wait)
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use underlay_storage::clock::RealClock;

    use super::*;

    proptest! {
        /// Whenever requests come: in no span are there more than the rate allows, beside what was saved up before it.
        #[test]
        fn span_holds_at_most_the_rate(
            iops in 1..100_000u64,
            bytes_per_second in 4096..1_000_000_000u64,
            requests in prop::collection::vec((0..5_000_000u64, 1..257u64), 1..200),
        ) {
            let limits = RateLimits { iops: Some(iops), bytes_per_second: Some(bytes_per_second) };
            let mut limiter = RateLimiter::new(limits, ModelTime::ZERO);
            let mut now = ModelTime::ZERO;
            let mut begun: Vec<(ModelTime, u64)> = Vec::new();
            for (gap_ns, blocks) in requests {
                now += Duration::from_nanos(gap_ns);
                let admitted_at = limiter.admit(blocks * 4096, now);
                prop_assert!(admitted_at >= now && begun.last().is_none_or(|(last, _)| *last <= admitted_at));
                begun.push((admitted_at, blocks * 4096));
            }
            for first in 0..begun.len() {
                let mut bytes = 0;
                for last in first..begun.len() {
                    let span_s = begun[last].0.duration_since(begun[first].0).as_secs_f64() + BURST_S + 1e-6;
                    // The first one of a span may have been waiting with its debt paid.
                    let count = (last - first) as f64;
                    prop_assert!(count <= span_s * iops as f64 + 1.0);
                    bytes += if last > first { begun[last].1 } else { 0 };
                    prop_assert!(bytes as f64 <= span_s * bytes_per_second as f64 + 4096.0);
                }
            }
        }
    }

    #[test]
    fn busy_volume_gets_its_rate() {
        let mut limiter =
            RateLimiter::new(RateLimits { iops: Some(1000), bytes_per_second: None }, ModelTime::ZERO);
        let last = (0..10_050).map(|_| limiter.admit(4096, ModelTime::ZERO)).last().unwrap();
        assert_eq!(last.as_ns(), 10_000_000_000);
    }

    #[test]
    fn panicking_job_leaves_no_other_waiting() {
        let clock: Arc<dyn ModelClock> = Arc::new(RealClock::new(1.0));
        let timer = JobTimer::new(Arc::clone(&clock));
        let (sender, ran) = std::sync::mpsc::channel();
        let job = |name: u32| {
            let sender = sender.clone();
            Box::new(move || sender.send(name).unwrap())
        };
        let far = clock.now() + Duration::from_secs(3600);
        timer.run_at(far, job(1));
        timer.run_at(far, Box::new(|| panic!("another bug of a caller")));
        timer.run_at(far, job(2));
        timer.run_at(clock.now(), Box::new(|| panic!("a bug of a caller")));
        let next = || ran.recv_timeout(Duration::from_secs(60)).unwrap();
        assert_eq!((next(), next()), (1, 2));
        timer.run_at(far, job(3));
        assert_eq!(next(), 3);
        // It is not hidden from a caller that joins the thread.
        let thread = timer.thread.lock().take().unwrap();
        assert!(thread.join().is_err());
    }

    #[test]
    fn jobs_run_in_order_and_finish_at_end() {
        let clock: Arc<dyn ModelClock> = Arc::new(RealClock::new(1.0));
        let timer = JobTimer::new(Arc::clone(&clock));
        let ran = Arc::new(Mutex::new(Vec::new()));
        let far = clock.now() + Duration::from_secs(3600);
        for (name, due) in [(2, far), (1, clock.now()), (3, far)] {
            let ran = Arc::clone(&ran);
            timer.run_at(due, Box::new(move || ran.lock().push(name)));
        }
        timer.end();
        assert_eq!(*ran.lock(), [1, 2, 3]);
    }
}
