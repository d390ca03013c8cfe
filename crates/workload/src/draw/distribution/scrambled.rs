//! Zipfian popularity scattered over the keyspace, so that popular records are not neighbours.

use rand::Rng;

use super::KeyRange;
use super::remainder::FastRemainder;
use super::zipfian::{ZIPFIAN_CONSTANT, Zipfian};
use crate::draw::keys::NumberHash;

/// Ranks are drawn over this many, regardless of the keyspace: a rank keeps its key while records are added, and zeta
/// is known in advance. YCSB has the ranks from 0 to 10^10, both included.
const RANKS: u64 = 10_000_000_001;
/// `zeta(10^10, 0.99)`, as published by YCSB.
const ZETA_RANKS: f64 = 26.46902820178302;
/// YCSB takes `Math.abs` of its hash, which is still negative for `Long.MIN_VALUE`: this clears that bit.
const NON_NEGATIVE: u64 = u64::MAX >> 1;

/// `first + FNV-1a(rank) mod count`, the rank zipfian over 10^10. Hashing merges ranks, so the most popular record has
/// about 1/26.5 of the operations regardless of their number.
#[derive(Clone, Copy, Debug)]
pub struct ScrambledZipfian {
    first: u64,
    ranks: Zipfian,
    hash: NumberHash,
    place: FastRemainder,
}

impl ScrambledZipfian {
    pub fn new(range: KeyRange) -> Self {
        ScrambledZipfian {
            first: range.first(),
            ranks: Zipfian::with_zeta(RANKS, ZIPFIAN_CONSTANT, ZETA_RANKS),
            hash: NumberHash::up_to(RANKS),
            place: FastRemainder::new(range.count()),
        }
    }

    #[inline]
    pub fn next<R: Rng>(&self, rng: &mut R) -> u64 {
        self.number_of_rank(self.ranks.next(rng))
    }

    /// Replaces random bits by the record numbers that they stand for. Each step processes all of them, so that the
    /// processor works on several at once: the steps of a single draw depend on each other.
    #[inline(always)]
    pub fn replace_all(&self, bits: &mut [u64]) {
        self.ranks.replace_all(bits);
        self.hash.replace_all(bits);
        for number in bits {
            *number = self.first + self.place.remainder(*number & NON_NEGATIVE);
        }
    }

    /// The record of the popularity rank `rank`.
    #[inline]
    pub fn number_of_rank(&self, rank: u64) -> u64 {
        self.first + self.place.remainder(self.hash.hash_number(rank) & NON_NEGATIVE)
    }

    /// The generator of ranks.
    pub fn ranks(&self) -> &Zipfian {
        &self.ranks
    }
}
