//! A cache device in front of a volume: the requests that it accepts, the blocks that it takes in, and those that it
//! writes back.
//!
//! Whether it holds a block is drawn with the request's probability (from `layers.rs`). Everything else follows the
//! layer itself (`storage/src/layers/cache.rs`): fills after the answer, long requests that bypass it, batches of dirty
//! blocks.

use underlay_storage::layers::cache::CacheMode;

use super::BLOCK_BYTES;

/// How many dirty blocks are written back together.
const BATCH_BLOCKS: u64 = 128;
/// Sets of eight slots are never all full: this is the usable share of a cache filled with dirty blocks.
const FULL: f64 = 0.95;

pub(super) struct FrontCache {
    /// The place of the fast device.
    pub device: usize,
    pub capacity_bytes: u64,
    mode: CacheMode,
    /// Longer requests bypass the cache.
    bypass_bytes: u64,
    slots: u64,
    /// Above this number, dirty blocks are written back.
    limit: u64,
    dirty: u64,
    /// The mean length of writes in blocks: dirty blocks stay in the order in which they were written.
    run_blocks: f64,
    /// The slow device was written directly since its last flush.
    pub is_direct: bool,
    is_writing_back: bool,
    /// The batch in flight: the position on the slow device and the length of each run, in bytes, in the slow device's
    /// order.
    pub runs: Vec<(u64, u64)>,
    batch_blocks: u64,
    /// Where on the slow device the next batch begins.
    hand_bytes: u64,
}

impl FrontCache {
    pub(super) fn new(
        device: usize,
        capacity_bytes: u64,
        mode: CacheMode,
        bypass_bytes: u64,
        dirty_percent: u32,
    ) -> FrontCache {
        let slots = capacity_bytes / BLOCK_BYTES;
        let limit = slots * u64::from(dirty_percent.min(100)) / 100;
        FrontCache {
            device,
            capacity_bytes,
            mode,
            bypass_bytes,
            slots,
            limit,
            // As after a long time: as many as the limit allows.
            dirty: if mode == CacheMode::WriteBack { limit } else { 0 },
            run_blocks: 1.0,
            is_direct: false,
            is_writing_back: false,
            runs: Vec::new(),
            batch_blocks: 0,
            hand_bytes: 0,
        }
    }

    pub(super) fn writes_back(&self) -> bool {
        self.mode == CacheMode::WriteBack
    }

    pub(super) fn takes_in(&self, length_bytes: u64) -> bool {
        length_bytes <= self.bypass_bytes
    }

    /// Whether a write of this length stays here, as dirty data.
    pub(super) fn takes_write(&mut self, length_bytes: u64) -> bool {
        let blocks = length_bytes.div_ceil(BLOCK_BYTES);
        if !self.takes_in(length_bytes) || self.dirty + blocks > self.most_dirty() {
            self.is_direct = true;
            return false;
        }
        self.dirty += blocks;
        self.run_blocks = 0.9 * self.run_blocks + 0.1 * blocks as f64;
        true
    }

    fn most_dirty(&self) -> u64 {
        (FULL * self.slots as f64) as u64
    }

    /// How many more dirty blocks fit.
    pub(super) fn room_blocks(&self) -> u64 {
        self.most_dirty().saturating_sub(self.dirty)
    }

    /// Assembles a batch, if one is due and none is in flight.
    pub(super) fn begin_batch(&mut self, span_bytes: u64) -> bool {
        if self.is_writing_back || self.dirty <= self.limit {
            return false;
        }
        self.is_writing_back = true;
        self.batch_blocks = BATCH_BLOCKS.min(self.dirty);
        let run_blocks = (self.run_blocks.round() as u64).clamp(1, self.batch_blocks);
        let length_bytes = run_blocks * BLOCK_BYTES;
        // Runs are spread evenly over the part in use.
        let runs = (self.dirty / run_blocks).max(1);
        let gap_bytes = (span_bytes / runs / BLOCK_BYTES * BLOCK_BYTES).max(length_bytes);
        let mut left_blocks = self.batch_blocks;
        self.runs.clear();
        while left_blocks > 0 {
            let blocks = run_blocks.min(left_blocks);
            if self.hand_bytes.saturating_add(length_bytes) > span_bytes {
                self.hand_bytes = 0;
            }
            self.runs.push((self.hand_bytes, blocks * BLOCK_BYTES));
            self.hand_bytes += gap_bytes;
            left_blocks -= blocks;
        }
        true
    }

    pub(super) fn end_batch(&mut self) {
        self.is_writing_back = false;
        self.dirty = self.dirty.saturating_sub(self.batch_blocks);
    }
}
