//! The volatile write-back cache of a disk: what has been acknowledged and is not on the platter.

use std::collections::{BTreeMap, BTreeSet};

/// A stretch of dirty bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirtyExtent {
    pub first_byte: u64,
    pub end_byte: u64,
    /// The write that these bytes are of.
    pub number: u64,
    /// The number of the oldest write whose durability hangs on this extent: its own, or that of a write
    /// which it replaced before that one reached the platter.
    pub duty: u64,
    pub since_ns: u64,
}

/// Dirty extents, none overlapping another: the latest write of each byte.
#[derive(Clone, Debug, Default)]
pub struct WriteCache {
    limit_bytes: u64,
    used_bytes: u64,
    by_byte: BTreeMap<u64, DirtyExtent>,
    by_duty: BTreeSet<(u64, u64)>,
}

impl WriteCache {
    /// One that never holds anything when `limit_bytes` is zero.
    pub fn new(limit_bytes: u64) -> WriteCache {
        WriteCache { limit_bytes, ..WriteCache::default() }
    }

    pub fn is_empty(&self) -> bool {
        self.by_byte.is_empty()
    }

    pub fn used_bytes(&self) -> u64 {
        self.used_bytes
    }

    pub fn limit_bytes(&self) -> u64 {
        self.limit_bytes
    }

    pub fn has_room_for(&self, bytes: u64) -> bool {
        self.used_bytes + bytes <= self.limit_bytes
    }

    /// Whether every byte of the range is dirty here.
    pub fn covers(&self, first_byte: u64, end_byte: u64) -> bool {
        let mut position = first_byte;
        for extent in self.overlapping(first_byte, end_byte) {
            if extent.first_byte > position {
                return false;
            }
            position = extent.end_byte;
        }
        position >= end_byte
    }

    /// Takes a write, which replaces all dirty data in its range.
    pub fn insert(&mut self, first_byte: u64, end_byte: u64, number: u64, now_ns: u64) {
        let mut extent = DirtyExtent { first_byte, end_byte, number, duty: number, since_ns: now_ns };
        for replaced in self.cut(first_byte, end_byte) {
            extent.duty = extent.duty.min(replaced.duty);
            extent.since_ns = extent.since_ns.min(replaced.since_ns);
        }
        self.add(extent);
    }

    /// Drops what is dirty in the range by writes before `number`: it has been overwritten on the platter.
    pub fn drop_older(&mut self, first_byte: u64, end_byte: u64, number: u64) {
        for cut in self.cut(first_byte, end_byte) {
            if cut.number >= number {
                self.add(cut);
            }
        }
    }

    /// Drops what is dirty in the range: nobody needs it now.
    pub fn discard(&mut self, first_byte: u64, end_byte: u64) {
        self.cut(first_byte, end_byte);
    }

    /// The extents whose duty is the oldest.
    pub fn oldest(&self, count: usize) -> impl Iterator<Item = DirtyExtent> + '_ {
        self.by_duty.iter().take(count).filter_map(|(_, first_byte)| self.by_byte.get(first_byte).copied())
    }

    /// The first extent at `byte` or after it.
    pub fn next_at(&self, byte: u64) -> Option<DirtyExtent> {
        self.by_byte.range(byte..).next().map(|(_, extent)| *extent)
    }

    /// Takes an extent out, to be written.
    pub fn take(&mut self, first_byte: u64) -> Option<DirtyExtent> {
        let extent = self.by_byte.remove(&first_byte)?;
        self.by_duty.remove(&(extent.duty, first_byte));
        self.used_bytes -= extent.end_byte - extent.first_byte;
        Some(extent)
    }

    /// Whether a write numbered `number` or earlier still hangs on this cache.
    pub fn owes(&self, number: u64) -> bool {
        self.by_duty.first().is_some_and(|(duty, _)| *duty <= number)
    }

    pub fn extents(&self) -> impl Iterator<Item = DirtyExtent> + '_ {
        self.by_byte.values().copied()
    }

    fn add(&mut self, extent: DirtyExtent) {
        if extent.first_byte < extent.end_byte {
            self.used_bytes += extent.end_byte - extent.first_byte;
            self.by_duty.insert((extent.duty, extent.first_byte));
            self.by_byte.insert(extent.first_byte, extent);
        }
    }

    fn overlapping(&self, first_byte: u64, end_byte: u64) -> impl Iterator<Item = DirtyExtent> + '_ {
        // Extents don't overlap, so at most one that begins before the range reaches into it.
        let before =
            self.by_byte.range(..first_byte).next_back().filter(move |(_, e)| e.end_byte > first_byte);
        before.into_iter().chain(self.by_byte.range(first_byte..end_byte)).map(|(_, extent)| *extent)
    }

    /// Removes the range from the cache and returns what was dirty in it.
    fn cut(&mut self, first_byte: u64, end_byte: u64) -> Vec<DirtyExtent> {
        let touched: Vec<DirtyExtent> = self.overlapping(first_byte, end_byte).collect();
        let mut cut = Vec::with_capacity(touched.len());
        for extent in touched {
            self.take(extent.first_byte);
            self.add(DirtyExtent { end_byte: extent.end_byte.min(first_byte), ..extent });
            self.add(DirtyExtent { first_byte: extent.first_byte.max(end_byte), ..extent });
            cut.push(DirtyExtent {
                first_byte: extent.first_byte.max(first_byte),
                end_byte: extent.end_byte.min(end_byte),
                ..extent
            });
        }
        cut
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(300))]

        /// Against an array with the newest write and the oldest duty of each byte.
        #[test]
        fn agrees_with_a_byte_by_byte_reference(
            steps in prop::collection::vec((0u8..4, 0u64..60, 1u64..20), 1..60)
        ) {
            let mut cache = WriteCache::new(1000);
            let mut dirty = [false; 80];
            for (number, (kind, first, length)) in steps.into_iter().enumerate() {
                let (end, number) = (first + length, number as u64 + 1);
                match kind {
                    0 | 1 => {
                        cache.insert(first, end, number, number);
                        dirty[first as usize..end as usize].fill(true);
                        prop_assert!(cache.owes(number));
                    }
                    2 => {
                        cache.discard(first, end);
                        dirty[first as usize..end as usize].fill(false);
                    }
                    _ => {
                        if let Some(extent) = cache.next_at(first) {
                            cache.take(extent.first_byte);
                            dirty[extent.first_byte as usize..extent.end_byte as usize].fill(false);
                        }
                    }
                }
                prop_assert_eq!(cache.used_bytes(), dirty.iter().filter(|&&d| d).count() as u64);
                prop_assert_eq!(cache.covers(first, end), dirty[first as usize..end as usize].iter().all(|&d| d));
                let extents: Vec<DirtyExtent> = cache.extents().collect();
                prop_assert!(extents.windows(2).all(|pair| pair[0].end_byte <= pair[1].first_byte));
                prop_assert_eq!(cache.oldest(1000).count(), extents.len());
            }
        }
    }

    #[test]
    fn overwrite_inherits_duty_of_replaced_write() {
        let mut cache = WriteCache::new(1000);
        cache.insert(0, 10, 1, 0);
        cache.insert(0, 10, 7, 5);
        assert!(cache.owes(1));
        cache.drop_older(0, 10, 7);
        assert!(!cache.is_empty(), "write 7 is not older than write 7");
        cache.drop_older(0, 10, 8);
        assert!(cache.is_empty());
    }
}
