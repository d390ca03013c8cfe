//! When operations are sent: the schedule of an open loop.

use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;

use crate::run::rate_profile::RateProfile;

/// The arrival process of an open loop's operations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ArrivalProcess {
    /// Evenly, over all threads together.
    #[default]
    Constant,
    /// Independently of each other: exponential distances, so that bursts occur.
    Poisson,
}

impl ArrivalProcess {
    pub const ALL: [ArrivalProcess; 2] = [ArrivalProcess::Constant, ArrivalProcess::Poisson];

    pub fn name(self) -> &'static str {
        match self {
            ArrivalProcess::Constant => "constant",
            ArrivalProcess::Poisson => "poisson",
        }
    }

    pub fn parse(name: &str) -> Option<Self> {
        ArrivalProcess::ALL.into_iter().find(|arrivals| arrivals.name() == name)
    }
}

/// One thread's share of an open loop: the intended starts of its operations, in rising order, whether or not the
/// thread is free then. None is ever left out.
#[derive(Clone, Debug)]
pub(crate) struct ThreadSchedule {
    start_ns: u64,
    next_ns: u64,
    profile: RateProfile,
    order: ScheduleOrder,
}

#[derive(Clone, Debug)]
enum ScheduleOrder {
    /// Operation `number` of all threads is next: the threads take turns.
    Turns { number: u64, threads: u64 },
    /// Each thread has its own Poisson process, of rate 1 in units of operations: independent ones add up to a Poisson
    /// process again. A thread gets one in `threads` of the profile's operations.
    Independent { number: f64, threads: f64, rng: Box<Pcg64Mcg> },
}

impl ThreadSchedule {
    /// The share of `thread` out of `threads` of the wall-time rate in `profile`, from `start_ns` on.
    pub(crate) fn new(
        arrivals: ArrivalProcess,
        profile: RateProfile,
        thread: u32,
        threads: u32,
        start_ns: u64,
        seed: u64,
    ) -> Self {
        let order = match arrivals {
            ArrivalProcess::Constant => {
                ScheduleOrder::Turns { number: u64::from(thread), threads: u64::from(threads) }
            }
            ArrivalProcess::Poisson => ScheduleOrder::Independent {
                number: 0.0,
                threads: f64::from(threads),
                // A separate stream: arrival times must not depend on the drawn operations.
                rng: Box::new(Pcg64Mcg::seed_from_u64(seed ^ 0xa881_7a15)),
            },
        };
        let mut schedule = ThreadSchedule { start_ns, next_ns: 0, profile, order };
        match schedule.order {
            // Thread 0's first operation is due at the start; a Poisson process begins with a distance.
            ScheduleOrder::Turns { .. } => schedule.set_next(),
            ScheduleOrder::Independent { .. } => schedule.advance(),
        }
        schedule
    }

    /// When the next operation is due.
    pub(crate) fn peek_ns(&self) -> u64 {
        self.next_ns
    }

    pub(crate) fn advance(&mut self) {
        match &mut self.order {
            ScheduleOrder::Turns { number, threads } => *number += *threads,
            // -ln(1 - u) is exponential, and u < 1 keeps the logarithm finite.
            ScheduleOrder::Independent { number, rng, .. } => *number += -(-rng.random::<f64>()).ln_1p(),
        }
        self.set_next();
    }

    fn set_next(&mut self) {
        // From the start each time, not from the last: rounding errors must not accumulate.
        let number = match &self.order {
            ScheduleOrder::Turns { number, .. } => *number as f64,
            ScheduleOrder::Independent { number, threads, .. } => number * threads,
        };
        let offset_ns = (self.profile.due_s(number) * 1e9).round();
        self.next_ns = self.start_ns.saturating_add(offset_ns as u64);
    }
}
