//! Clocks: what translates between a model's time and the world's.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::time::Time;

pub trait Clock: Send + Sync {
    /// Now, in the model's time.
    fn now(&self) -> Time;
    /// How long the caller must wait in the world for the model's `instant` to come; zero when it is past.
    fn wall_until(&self, instant: Time) -> Duration;
}

/// The machine's monotonic clock, slowed down by a factor: at `dilation = 8` a modelled millisecond takes eight.
#[derive(Clone, Debug)]
pub struct RealClock {
    origin: Instant,
    dilation: f64,
}

impl RealClock {
    pub fn new(dilation: f64) -> Self {
        assert!(dilation > 0.0 && dilation.is_finite(), "a clock cannot run at a factor of {dilation}");
        RealClock { origin: Instant::now(), dilation }
    }
}

impl Clock for RealClock {
    fn now(&self) -> Time {
        let wall_ns = self.origin.elapsed().as_nanos() as f64;
        Time::from_ns((wall_ns / self.dilation) as u64)
    }

    fn wall_until(&self, instant: Time) -> Duration {
        instant.since(self.now()).mul_f64(self.dilation)
    }
}

/// A clock that stands still until it is set: tests and predictions run by it.
#[derive(Debug, Default)]
pub struct VirtualClock {
    now_ns: AtomicU64,
}

impl VirtualClock {
    pub fn advance_to(&self, instant: Time) {
        // Never back, in whatever order threads get here.
        self.now_ns.fetch_max(instant.as_ns(), Ordering::SeqCst);
    }
}

impl Clock for VirtualClock {
    fn now(&self) -> Time {
        Time::from_ns(self.now_ns.load(Ordering::SeqCst))
    }

    fn wall_until(&self, _instant: Time) -> Duration {
        Duration::ZERO
    }
}
