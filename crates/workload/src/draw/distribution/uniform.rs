//! Every record equally likely.

use rand::{Rng, RngExt};

use super::KeyRange;

#[derive(Clone, Copy, Debug)]
pub struct Uniform {
    range: KeyRange,
}

impl Uniform {
    pub fn new(range: KeyRange) -> Self {
        Uniform { range }
    }

    pub fn next<R: Rng>(&self, rng: &mut R) -> u64 {
        rng.random_range(self.range.first()..=self.range.last())
    }
}
