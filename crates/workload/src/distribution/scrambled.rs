//! Zipfian popularity scattered over the keyspace, so that popular records are not neighbours.

use rand::Rng;

use super::KeyRange;
use super::zipfian::{ZIPFIAN_CONSTANT, Zipfian};
use crate::keys::fnv1a_64;

/// Ranks are drawn over this many, whatever the keyspace: a rank keeps its key while records are added, and zeta
/// is known beforehand.
const RANKS: u64 = 10_000_000_000;
/// `zeta(10^10, 0.99)`, as YCSB publishes it.
const ZETA_RANKS: f64 = 26.46902820178302;

/// `first + FNV-1a(rank) mod count`, the rank zipfian over 10^10. Hashing merges ranks, so the most popular record
/// has about 1/26.5 of the operations whatever their number.
#[derive(Clone, Copy, Debug)]
pub struct ScrambledZipfian {
    range: KeyRange,
    ranks: Zipfian,
}

impl ScrambledZipfian {
    pub fn new(range: KeyRange) -> Self {
        ScrambledZipfian { range, ranks: Zipfian::with_zeta(RANKS, ZIPFIAN_CONSTANT, ZETA_RANKS) }
    }

    pub fn next<R: Rng>(&self, rng: &mut R) -> u64 {
        self.number_of_rank(self.ranks.next(rng))
    }

    /// The record that the popularity rank `rank` falls on.
    pub fn number_of_rank(&self, rank: u64) -> u64 {
        self.range.first() + fnv1a_64(rank) % self.range.count()
    }

    /// The generator of ranks.
    pub fn ranks(&self) -> &Zipfian {
        &self.ranks
    }
}
