//! Chances and sizes that the generator and its scenes draw by.

use crate::world::SplitMix64;

pub(super) const MIB: u64 = 1 << 20;

/// One in so many.
pub(super) fn one_in(random: &mut SplitMix64, times: u64) -> bool {
    random.below(times) == 0
}

pub(super) fn some_u32(random: &mut SplitMix64) -> u32 {
    random.below(1 << 20) as u32
}
