//! The cache of consumer SSDs: blocks used with one bit a cell, fast until they are full, emptied when idle.

use crate::media::transfer_ns;

#[derive(Clone, Copy, Debug)]
pub(super) struct SlcCache {
    pub capacity_bytes: f64,
    pub program_mb_s: f64,
    /// At which it is folded into the blocks that hold the data for good.
    pub fold_mb_s: f64,
    pub used_bytes: f64,
    /// The bytes of it in use at first.
    pub initial_bytes: f64,
    /// Since when nothing is written.
    pub idle_since_ns: u64,
    pub folded_bytes: f64,
}

impl SlcCache {
    /// Whether so many bytes go into the cache.
    pub(super) fn takes(&self, bytes: u64) -> bool {
        self.used_bytes + bytes as f64 <= self.capacity_bytes
    }

    /// How long programming this many bytes takes at the rate that the cache allows.
    pub(super) fn program_ns(&mut self, bytes: u64, direct_mb_s: f64) -> u64 {
        if self.takes(bytes) {
            self.used_bytes += bytes as f64;
            transfer_ns(bytes, self.program_mb_s)
        } else {
            transfer_ns(bytes, direct_mb_s)
        }
    }

    /// As it was at first, without earlier writes and foldings.
    pub(super) fn restart(&mut self, now_ns: u64) {
        self.used_bytes = self.initial_bytes;
        self.idle_since_ns = now_ns;
    }

    /// Writing begins again: what was idle time has gone into folding.
    pub(super) fn wake(&mut self, now_ns: u64) {
        let idle_s = now_ns.saturating_sub(self.idle_since_ns) as f64 / 1e9;
        let folded = (idle_s * self.fold_mb_s * 1e6).min(self.used_bytes);
        self.used_bytes -= folded;
        self.folded_bytes += folded;
        self.idle_since_ns = now_ns;
    }
}
