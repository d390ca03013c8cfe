//! The translation layer of a device of any size: the mapping of a sample of its units stands for all.
//!
//! Up to [`MAX_UNITS`] units of 4 KiB the mapping is exact. A larger device is divided into as many groups
//! of neighbouring units, and of each group one unit is simulated, at a place that hashing chooses. Blocks
//! shrink by the same factor, and every simulated unit counts for its whole group: write amplification depends
//! on over-provisioning, on the number of blocks and on the pattern of writes, and all three are kept.
//!
//! Garbage collection is paced, as firmware does: what a victim costs to copy is spread evenly over the host's
//! writes for which its stale space makes room.

use rand::SeedableRng;
use rand_pcg::Pcg64Mcg;

use super::MAPPING_BYTES;
use super::ftl::{CollectionResult, Ftl};
use crate::stack::InitialState;

/// The most units that are mapped: 9 MB for a device with usual spare.
const MAX_UNITS: u64 = 1 << 20;
/// More blocks say no more about write amplification, fewer say less.
const MIN_BLOCKS: f64 = 64.0;
const MAX_BLOCKS: f64 = 2048.0;
/// Of a small device, so that its blocks still have a mixture of valid and stale.
const MIN_BLOCK_UNITS: u64 = 8;

#[derive(Clone, Debug)]
pub(super) struct FlashTranslation {
    ftl: Ftl,
    sample: SampledUnits,
    /// Copies that garbage collection has still to make.
    owed_bytes: f64,
    /// Host writes until the next block is collected, as expected.
    within_bytes: f64,
    /// As much on top over which copies are spread, so that they don't pause when it is collected late: what the
    /// last block gave up.
    cushion_bytes: f64,
    /// Of the blocks that are being collected, the share that is valid.
    valid_share: f64,
}

/// The programming cost of a write.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct ProgramWork {
    pub host_bytes: f64,
    /// Copied by garbage collection meanwhile.
    pub copied_bytes: f64,
}

impl ProgramWork {
    pub(super) fn bytes(&self) -> f64 {
        self.host_bytes + self.copied_bytes
    }
}

/// The sizes of a device that its translation depends on.
#[derive(Clone, Copy, Debug)]
pub(super) struct TranslationShape {
    pub capacity_bytes: u64,
    /// Spare over the logical capacity.
    pub over_provisioning: f64,
    /// Blocks erased together (one of each die) of the device as sold: a scaled device keeps their number.
    pub superblocks: f64,
}

impl FlashTranslation {
    pub(super) fn new(shape: &TranslationShape, seed: u64, initial: InitialState) -> FlashTranslation {
        FlashTranslation::with_units(shape, seed, initial, MAX_UNITS)
    }

    fn with_units(
        shape: &TranslationShape,
        seed: u64,
        initial: InitialState,
        most_units: u64,
    ) -> FlashTranslation {
        let sample = SampledUnits::new(shape.capacity_bytes.div_ceil(MAPPING_BYTES), seed, most_units);
        let units = sample.groups();
        let spacious = 1.0 + shape.over_provisioning;
        let superblocks = shape.superblocks.clamp(MIN_BLOCKS, MAX_BLOCKS);
        let block_units = ((units as f64 * spacious / superblocks).round() as u64).max(MIN_BLOCK_UNITS);
        let blocks = (units as f64 * spacious / block_units as f64).round() as u64;
        let (units, block_units, blocks) = (units as u32, block_units as u32, blocks as u32);
        let (ftl, collected) = match initial {
            InitialState::Fresh => (Ftl::fresh(units, block_units, blocks), CollectionResult::default()),
            InitialState::Steady => {
                let mut random = Pcg64Mcg::seed_from_u64(seed);
                Ftl::steady(units, block_units, blocks, &mut random)
            }
        };
        let mut translation = FlashTranslation {
            ftl,
            sample,
            owed_bytes: 0.0,
            within_bytes: 0.0,
            cushion_bytes: 0.0,
            valid_share: 0.0,
        };
        if collected.freed > 0 {
            // As if blocks like the last ones had been collected all along.
            let per_freed = collected.copied as f64 / collected.freed as f64;
            let unit_bytes = translation.sample.unit_bytes();
            translation.valid_share = per_freed / (1.0 + per_freed);
            translation.cushion_bytes = f64::from(block_units) / (1.0 + per_freed) * unit_bytes;
            translation.within_bytes = f64::from(translation.ftl.room_units()) * unit_bytes;
            translation.owed_bytes = per_freed * (translation.within_bytes + translation.cushion_bytes);
        }
        translation
    }

    fn owe(&mut self, collected: CollectionResult) {
        let unit_bytes = self.sample.unit_bytes();
        let (copied_bytes, freed_bytes) =
            (collected.copied as f64 * unit_bytes, collected.freed as f64 * unit_bytes);
        if freed_bytes > 0.0 {
            self.owed_bytes += copied_bytes;
            self.within_bytes += freed_bytes;
            self.cushion_bytes = freed_bytes;
            self.valid_share = copied_bytes / (copied_bytes + freed_bytes);
        }
    }

    /// Maps a write, and says what it costs to program.
    pub(super) fn write(&mut self, first_byte: u64, length_bytes: u64) -> ProgramWork {
        let (first, end) = (first_byte / MAPPING_BYTES, (first_byte + length_bytes).div_ceil(MAPPING_BYTES));
        for group in self.sample.groups_of(first, end) {
            if self.sample.is_simulated(group, first, end) {
                let collected = self.ftl.write(group as u32);
                self.owe(collected);
            }
        }
        let host_bytes = ((end - first) * MAPPING_BYTES) as f64;
        let spread_bytes = self.within_bytes + self.cushion_bytes;
        let share = if host_bytes < spread_bytes { host_bytes / spread_bytes } else { 1.0 };
        let copied_bytes = self.owed_bytes * share;
        self.owed_bytes -= copied_bytes;
        self.within_bytes = (self.within_bytes - host_bytes).max(0.0);
        ProgramWork { host_bytes, copied_bytes }
    }

    /// Forgets the units that a range fills entirely.
    pub(super) fn discard(&mut self, first_byte: u64, length_bytes: u64) {
        let first = first_byte.div_ceil(MAPPING_BYTES);
        let end = (first_byte + length_bytes) / MAPPING_BYTES;
        if first < end {
            for group in self.sample.groups_of(first, end) {
                if self.sample.is_simulated(group, first, end) {
                    self.ftl.discard(group as u32);
                }
            }
        }
    }

    /// Whether blocks have to be erased before they are written.
    pub(super) fn recycles(&self) -> bool {
        self.ftl.has_recycled()
    }

    /// Pages read for each page's worth of copies: a page gives its valid units, and those are scattered.
    pub(super) fn reads_per_copied_page(&self, units_per_page: f64) -> f64 {
        if self.valid_share <= 0.0 {
            return 1.0;
        }
        // Copies fill a page once 1 / valid_share pages were gone through; those with any valid unit are read.
        (1.0 - (1.0 - self.valid_share).powf(units_per_page)) / self.valid_share
    }
}

/// Which units stand for all.
#[derive(Clone, Copy, Debug)]
struct SampledUnits {
    units: u64,
    group_units: u64,
    seed: u64,
}

impl SampledUnits {
    fn new(units: u64, seed: u64, most_units: u64) -> SampledUnits {
        SampledUnits { units, group_units: units.div_ceil(most_units), seed }
    }

    /// The bytes that one simulated unit stands for.
    fn unit_bytes(&self) -> f64 {
        (self.group_units * MAPPING_BYTES) as f64
    }

    fn groups(&self) -> u64 {
        self.units.div_ceil(self.group_units)
    }

    fn groups_of(&self, first: u64, end: u64) -> std::ops::Range<u64> {
        first / self.group_units..(end - 1) / self.group_units + 1
    }

    /// Whether the unit that stands for a group lies in the range.
    fn is_simulated(&self, group: u64, first: u64, end: u64) -> bool {
        let group_first = group * self.group_units;
        let length = self.group_units.min(self.units - group_first);
        let mixed = (group ^ self.seed.rotate_left(17)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let unit = group_first + (mixed >> 20) % length;
        (first..end).contains(&unit)
    }
}

#[cfg(test)]
mod tests;
