//! Clocks: what translates between a model's time and the world's.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::time::ModelTime;

pub trait ModelClock: Send + Sync {
    /// Now, in the model's time.
    fn now(&self) -> ModelTime;
    /// How long the caller must wait in the world for the model's `instant` to come; zero when it is past.
    fn wall_until(&self, instant: ModelTime) -> Duration;
}

/// The machine's monotonic clock, slowed down by a factor: at `dilation = 8` a modelled millisecond takes eight.
#[derive(Clone, Debug)]
pub struct RealClock {
    origin: Instant,
    dilation: f64,
}

impl RealClock {
    #[allow(
        clippy::disallowed_methods,
        reason = "the machine's clock: a simulation has a `ModelClock` of its own"
    )]
    pub fn new(dilation: f64) -> Self {
        assert!(dilation > 0.0 && dilation.is_finite(), "a clock cannot run at a factor of {dilation}");
        RealClock { origin: Instant::now(), dilation }
    }
}

impl ModelClock for RealClock {
    fn now(&self) -> ModelTime {
        let wall_ns = self.origin.elapsed().as_nanos() as f64;
        ModelTime::from_ns((wall_ns / self.dilation) as u64)
    }

    fn wall_until(&self, instant: ModelTime) -> Duration {
        instant.duration_since(self.now()).mul_f64(self.dilation)
    }
}

/// A clock that stands still until it is set: tests and predictions run by it.
#[derive(Debug, Default)]
pub struct VirtualClock {
    now_ns: AtomicU64,
}

impl VirtualClock {
    pub fn advance_to(&self, instant: ModelTime) {
        // Never back, in any order of threads.
        self.now_ns.fetch_max(instant.as_ns(), Ordering::SeqCst);
    }
}

impl ModelClock for VirtualClock {
    fn now(&self) -> ModelTime {
        ModelTime::from_ns(self.now_ns.load(Ordering::SeqCst))
    }

    fn wall_until(&self, _instant: ModelTime) -> Duration {
        Duration::ZERO
    }
}
