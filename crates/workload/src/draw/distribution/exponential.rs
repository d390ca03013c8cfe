//! Recent records exponentially more likely than old ones.

use rand::{Rng, RngExt};

/// `last - floor(X)`, X exponential with the rate at which `percentile` % of the draws fall into the newest
/// `window` records: `gamma = -ln(1 - percentile / 100) / window`. Draws beyond the oldest record are repeated.
#[derive(Clone, Copy, Debug)]
pub struct Exponential {
    gamma: f64,
}

impl Exponential {
    /// `percentile` lies between 0 and 100, exclusive; `window` counts records and is positive.
    pub fn new(percentile: f64, window: f64) -> Self {
        Exponential { gamma: -(1.0 - percentile / 100.0).ln() / window }
    }

    pub fn next<R: Rng>(&self, rng: &mut R, last: u64) -> u64 {
        // The inverse of the distribution truncated to `last + 1` records: one draw, however few records there are,
        // and the same law as repeating a draw that goes too far back.
        let reach = -(-self.gamma * (last as f64 + 1.0)).exp_m1();
        let age = -(-rng.random::<f64>() * reach).ln_1p() / self.gamma;
        last - (age as u64).min(last)
    }
}
