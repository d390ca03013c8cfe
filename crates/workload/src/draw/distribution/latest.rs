//! The newest records most often: zipfian over the age.

use rand::Rng;

use super::zipfian::{ZIPFIAN_CONSTANT, Zipfian};

/// `last - rank`, the rank zipfian over as many ages as there are records before the last. So the very first record,
/// number 0, is never requested: this is YCSB's law, and so is its change while records are added
/// ([`Zipfian::set_items`]).
#[derive(Clone, Copy, Debug)]
pub struct Latest {
    ages: Zipfian,
}

impl Latest {
    /// For `records` initial records; it follows their growth.
    pub fn new(records: u64) -> Self {
        Latest { ages: Zipfian::new(records.saturating_sub(1).max(1), ZIPFIAN_CONSTANT) }
    }

    pub fn next<R: Rng>(&mut self, rng: &mut R, last: u64) -> u64 {
        self.ages.set_items(last);
        last - self.ages.next(rng).min(last)
    }
}
