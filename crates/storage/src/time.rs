//! Time as models see it: nanoseconds on a clock that starts at zero.

use std::ops::{Add, AddAssign, Sub};
use std::time::Duration;

/// An instant on a model's clock. It is never compared with the wall clock: a [`crate::clock::ModelClock`]
/// translates, and in slow motion the translation is not one to one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ModelTime(u64);

impl ModelTime {
    pub const ZERO: ModelTime = ModelTime(0);

    pub const fn from_ns(ns: u64) -> Self {
        ModelTime(ns)
    }

    pub const fn as_ns(self) -> u64 {
        self.0
    }

    /// Earlier by this much, the clock's start at the earliest.
    pub fn saturating_sub(self, span: Duration) -> ModelTime {
        ModelTime(self.0.saturating_sub(u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)))
    }

    /// The time from `earlier` to `self`, zero if `earlier` is later.
    pub fn duration_since(self, earlier: ModelTime) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for ModelTime {
    type Output = ModelTime;
    fn add(self, span: Duration) -> ModelTime {
        // 2^64 ns are 584 years: saturating keeps an absurd medium from wrapping into the past.
        ModelTime(self.0.saturating_add(u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)))
    }
}

impl AddAssign<Duration> for ModelTime {
    fn add_assign(&mut self, span: Duration) {
        *self = *self + span;
    }
}

impl Sub for ModelTime {
    type Output = Duration;
    fn sub(self, earlier: ModelTime) -> Duration {
        self.duration_since(earlier)
    }
}
