//! The newest records most often: zipfian over the age.

use rand::Rng;

use super::zipfian::{ZIPFIAN_CONSTANT, Zipfian};

/// `last - rank`, the rank zipfian over the records `0 ..= last`.
#[derive(Clone, Copy, Debug)]
pub struct Latest {
    ages: Zipfian,
}

impl Latest {
    /// For `records` records to begin with; it follows their growth.
    pub fn new(records: u64) -> Self {
        Latest { ages: Zipfian::new(records.max(1), ZIPFIAN_CONSTANT) }
    }

    pub fn next<R: Rng>(&mut self, rng: &mut R, last: u64) -> u64 {
        self.ages.set_items(last + 1);
        last - self.ages.next(rng)
    }
}
