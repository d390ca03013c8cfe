//! The clock.

use std::ops::{Add, Sub};
use std::sync::OnceLock;
use std::time::Duration;

use crate::simulation::current;

/// A moment of this machine's monotonic clock, or of a simulation's virtual one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant(std::time::Instant);

impl Instant {
    pub fn now() -> Instant {
        // `std` makes no `Instant` from a number, so virtual time is counted from one moment of the real
        // clock.
        static ORIGIN: OnceLock<std::time::Instant> = OnceLock::new();
        match current() {
            None => Instant(std::time::Instant::now()),
            Some(task) => Instant(*ORIGIN.get_or_init(std::time::Instant::now) + task.now()),
        }
    }

    pub fn elapsed(&self) -> Duration {
        Instant::now().saturating_duration_since(*self)
    }

    pub fn saturating_duration_since(&self, earlier: Instant) -> Duration {
        self.0.saturating_duration_since(earlier.0)
    }

    pub fn checked_duration_since(&self, earlier: Instant) -> Option<Duration> {
        self.0.checked_duration_since(earlier.0)
    }
}

impl Add<Duration> for Instant {
    type Output = Instant;

    fn add(self, duration: Duration) -> Instant {
        Instant(self.0 + duration)
    }
}

impl Sub for Instant {
    type Output = Duration;

    fn sub(self, earlier: Instant) -> Duration {
        self.saturating_duration_since(earlier)
    }
}
