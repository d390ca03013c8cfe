//! A hot set that takes a fixed share of the operations.

use rand::{Rng, RngExt};

use super::KeyRange;

/// The first `data_fraction` of the records is hot and gets `operation_fraction` of the operations; both sets are
/// uniform within. A set that would be empty leaves everything to the other.
#[derive(Clone, Copy, Debug)]
pub struct Hotspot {
    range: KeyRange,
    hot_count: u64,
    operation_fraction: f64,
}

impl Hotspot {
    /// Fractions are 0 to 1 and clamped to that.
    pub fn new(range: KeyRange, data_fraction: f64, operation_fraction: f64) -> Self {
        let hot_count = ((range.count() as f64 * data_fraction.clamp(0.0, 1.0)) as u64).min(range.count());
        Hotspot { range, hot_count, operation_fraction: operation_fraction.clamp(0.0, 1.0) }
    }

    pub fn next<R: Rng>(&self, rng: &mut R) -> u64 {
        let cold_count = self.range.count() - self.hot_count;
        let hot = cold_count == 0 || (self.hot_count > 0 && rng.random::<f64>() < self.operation_fraction);
        let first = self.range.first();
        if hot {
            first + rng.random_range(0..self.hot_count)
        } else {
            first + self.hot_count + rng.random_range(0..cold_count)
        }
    }
}
