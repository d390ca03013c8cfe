//! When operations are sent: clocks, and the schedule of an open loop.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;

/// How the operations of an open loop follow one another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Arrivals {
    /// At equal distances, over all threads together.
    #[default]
    Constant,
    /// Independently of one another: exponential distances, so that bursts occur.
    Poisson,
}

/// A thread's view of time, in nanoseconds since an origin that all threads of a run share.
pub trait Clock {
    fn now_ns(&self) -> u64;

    /// Waits for `instant_ns`, or until `stop` is set; at once when it is past. Returns the time at the end.
    fn wait_until_ns(&self, instant_ns: u64, stop: &AtomicBool) -> u64;
}

/// A sleep may wake up this much late on a machine that is at rest: the remainder is spun away.
const SPIN_NS: u64 = 60_000;
/// No single sleep is longer, so that a stop is heard.
const LONGEST_SLEEP_NS: u64 = 50_000_000;

/// The machine's monotonic clock.
#[derive(Clone, Copy, Debug)]
pub struct MonotonicClock {
    origin: Instant,
    spins: bool,
}

impl MonotonicClock {
    /// Counts from `origin`. `spins` burns the last 60 us of every wait: more punctual, at the cost of a core.
    pub fn new(origin: Instant, spins: bool) -> Self {
        MonotonicClock { origin, spins }
    }
}

impl Clock for MonotonicClock {
    fn now_ns(&self) -> u64 {
        self.origin.elapsed().as_nanos() as u64
    }

    fn wait_until_ns(&self, instant_ns: u64, stop: &AtomicBool) -> u64 {
        let margin_ns = if self.spins { SPIN_NS } else { 0 };
        loop {
            let now_ns = self.now_ns();
            if now_ns >= instant_ns || stop.load(Ordering::Relaxed) {
                return now_ns;
            }
            let remaining_ns = instant_ns - now_ns;
            if remaining_ns > margin_ns {
                std::thread::sleep(Duration::from_nanos((remaining_ns - margin_ns).min(LONGEST_SLEEP_NS)));
            } else {
                std::hint::spin_loop();
            }
        }
    }
}

/// Lets the calling thread's sleeps end on time: Linux may put them off by 50 us otherwise.
pub(crate) fn make_sleeps_punctual() {
    // SAFETY: PR_SET_TIMERSLACK takes one integer and changes nothing but this thread's timers. It cannot fail
    // with a slack of 1 ns on any kernel that has it; on one that has not, sleeps stay as they are.
    #[cfg(target_os = "linux")]
    unsafe {
        libc::prctl(libc::PR_SET_TIMERSLACK, 1 as libc::c_ulong);
    }
}

/// One thread's share of an open loop: the instants at which its operations are meant to start, in rising order,
/// whether or not the thread is free then. None is ever left out.
#[derive(Clone, Debug)]
pub struct Schedule {
    start_ns: u64,
    next_ns: u64,
    gaps: Gaps,
}

#[derive(Clone, Debug)]
enum Gaps {
    /// Operation `index` of all threads is due `index * gap_ns` after the start.
    Constant { gap_ns: f64, index: u64, threads: u64 },
    /// `mean_ns` between one thread's operations; `offset_ns` after the start is the next.
    Poisson { mean_ns: f64, offset_ns: f64, rng: Box<Pcg64Mcg> },
}

impl Schedule {
    /// The share of `thread` of `threads` in `rate_per_wall_s` operations per second, from `start_ns` on.
    pub fn new(
        arrivals: Arrivals,
        rate_per_wall_s: f64,
        thread: u32,
        threads: u32,
        start_ns: u64,
        seed: u64,
    ) -> Self {
        let gap_ns = 1e9 / rate_per_wall_s;
        let gaps = match arrivals {
            Arrivals::Constant => {
                Gaps::Constant { gap_ns, index: u64::from(thread), threads: u64::from(threads) }
            }
            Arrivals::Poisson => Gaps::Poisson {
                mean_ns: gap_ns * f64::from(threads),
                offset_ns: 0.0,
                rng: Box::new(Pcg64Mcg::seed_from_u64(seed ^ 0xa881_7a15)),
            },
        };
        let mut schedule = Schedule { start_ns, next_ns: 0, gaps };
        if matches!(schedule.gaps, Gaps::Poisson { .. }) {
            schedule.advance();
        } else {
            schedule.set_next();
        }
        schedule
    }

    /// When the next operation is due.
    pub fn peek_ns(&self) -> u64 {
        self.next_ns
    }

    pub fn advance(&mut self) {
        match &mut self.gaps {
            Gaps::Constant { index, threads, .. } => *index += *threads,
            Gaps::Poisson { mean_ns, offset_ns, rng } => {
                *offset_ns += -(-rng.random::<f64>()).ln_1p() * *mean_ns;
            }
        }
        self.set_next();
    }

    fn set_next(&mut self) {
        // From the start each time, not from the last: rounding must not add up.
        let offset_ns = match &self.gaps {
            Gaps::Constant { gap_ns, index, .. } => (*index as f64 * gap_ns).round(),
            Gaps::Poisson { offset_ns, .. } => offset_ns.round(),
        };
        self.next_ns = self.start_ns.saturating_add(offset_ns as u64);
    }
}
