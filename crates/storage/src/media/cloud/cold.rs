//! Blocks that are still in the snapshot which a volume was made from.

use std::collections::{HashMap, HashSet};

use rand_pcg::Pcg64Mcg;

use crate::media::draw::QuantileDistribution;

/// Which blocks are elsewhere, and when they come.
#[derive(Clone, Debug)]
pub struct ColdBlocks {
    /// Of 2^64 hashes those below it are cold.
    threshold: u64,
    seed: u64,
    block_bytes: u64,
    latency: QuantileDistribution,
    /// Between two blocks.
    gap_ns: f64,
    free_ns: f64,
    /// Cold ones that have been touched.
    touched: HashSet<u64>,
    /// When those on their way will be there.
    coming: HashMap<u64, u64>,
}

/// With more than this many on the list, those that have come are dropped from it.
const MAX_PENDING: usize = 4096;

impl ColdBlocks {
    /// `mb_s` bounds all blocks together.
    pub fn new(
        share: f64,
        block_bytes: u64,
        latency: QuantileDistribution,
        mb_s: Option<f64>,
        seed: u64,
    ) -> ColdBlocks {
        ColdBlocks {
            threshold: (share * u64::MAX as f64) as u64,
            seed,
            block_bytes: block_bytes.max(1),
            latency,
            gap_ns: mb_s.map_or(0.0, |mb_s| block_bytes as f64 * 1e3 / mb_s),
            free_ns: 0.0,
            touched: HashSet::new(),
            coming: HashMap::new(),
        }
    }

    fn is_cold(&self, block: u64) -> bool {
        // SplitMix64's finish: every bit of block and seed counts.
        let mut mixed = block.wrapping_add(self.seed.rotate_left(32)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (mixed ^ (mixed >> 31)) <= self.threshold && !self.touched.contains(&block)
    }

    fn blocks(&self, first_byte: u64, length_bytes: u64) -> std::ops::Range<u64> {
        first_byte / self.block_bytes..(first_byte + length_bytes).div_ceil(self.block_bytes)
    }

    /// When the data of a request are here that comes at `now_ns`. A block that a write covers need not come.
    pub fn touch(
        &mut self,
        first_byte: u64,
        length_bytes: u64,
        write: bool,
        now_ns: u64,
        random: &mut Pcg64Mcg,
    ) -> u64 {
        let mut ready_ns = now_ns;
        for block in self.blocks(first_byte, length_bytes) {
            let start = block * self.block_bytes;
            let covered =
                write && first_byte <= start && start + self.block_bytes <= first_byte + length_bytes;
            if covered {
                if self.is_cold(block) {
                    self.touched.insert(block);
                }
                self.coming.remove(&block);
            } else if self.is_cold(block) {
                self.touched.insert(block);
                let begins_ns = self.free_ns.max(now_ns as f64);
                self.free_ns = begins_ns + self.gap_ns;
                let comes_ns = begins_ns as u64 + self.latency.draw_ns(random);
                self.coming.insert(block, comes_ns);
                ready_ns = ready_ns.max(comes_ns);
            } else if let Some(&comes_ns) = self.coming.get(&block) {
                ready_ns = ready_ns.max(comes_ns);
            }
        }
        if self.coming.len() > MAX_PENDING {
            self.coming.retain(|_, comes_ns| *comes_ns > now_ns);
        }
        ready_ns
    }

    /// As if everything in the range had come long ago.
    pub fn warm(&mut self, first_byte: u64, length_bytes: u64) {
        for block in self.blocks(first_byte, length_bytes) {
            if self.is_cold(block) {
                self.touched.insert(block);
            }
        }
    }
}
