//! Which blocks are written to flash. Once it is full, each that comes drives another one out: so only those come that
//! were asked for before, and a scan, which asks for each once, drives out nothing.

use std::collections::HashSet;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

/// Regions that foyer keeps free, to have one to write to.
const LEFT_CLEAN: u64 = 2;
/// Entries on flash begin at a page, behind a head of their own.
const PAGE_BYTES: u64 = 4 << 10;
/// Blocks that are remembered at most, in each of two generations of 9 MiB of memory.
const MAX_REMEMBERED_BLOCKS: u64 = 1 << 18;

/// See the module.
#[derive(Debug)]
pub(super) struct CacheAdmission {
    /// The bytes that may be written before something has to go for them.
    room_bytes: u64,
    /// Blocks that came lately, the latest apart: once those are as many as flash has, the others are forgotten.
    latest: HashSet<u128>,
    former: HashSet<u128>,
    most: usize,
}

impl CacheAdmission {
    /// For flash of this size in a directory, which is written to in regions.
    pub(super) fn new(
        directory: &Path,
        flash_bytes: u64,
        region_bytes: u64,
        block_bytes: u64,
    ) -> CacheAdmission {
        let used_bytes: u64 = std::fs::read_dir(directory)
            .into_iter()
            .flatten()
            .flatten()
            .filter_map(|entry| entry.metadata().ok())
            // Of a file with holes only what was written.
            .map(|found| found.blocks().saturating_mul(512))
            .sum();
        let most = (flash_bytes / block_bytes.max(1)).clamp(1, MAX_REMEMBERED_BLOCKS) as usize;
        let room_bytes = flash_bytes.saturating_sub(used_bytes + LEFT_CLEAN * region_bytes);
        CacheAdmission { room_bytes, latest: HashSet::new(), former: HashSet::new(), most }
    }

    /// Whether a block of this length that has just come is worth a place on flash.
    pub(super) fn admits(&mut self, id: u128, length_bytes: u64) -> bool {
        let was_there = self.latest.contains(&id) || self.former.contains(&id);
        if self.latest.len() >= self.most {
            self.former = std::mem::take(&mut self.latest);
        }
        self.latest.insert(id);
        let stored_bytes = length_bytes.next_multiple_of(PAGE_BYTES) + PAGE_BYTES;
        match self.room_bytes.checked_sub(stored_bytes) {
            Some(left) => {
                self.room_bytes = left;
                true
            }
            None => was_there,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCK: u64 = 64 << 10;

    #[test]
    fn block_read_once_is_not_admitted_to_full_flash() {
        let directory = tempfile::tempdir().unwrap();
        let mut admission = CacheAdmission::new(directory.path(), 40 * BLOCK, BLOCK, BLOCK);
        let mut admits = |id| admission.admits(id, BLOCK - PAGE_BYTES);
        // As long as there is room everything comes.
        assert_eq!((0..38).filter(|id| admits(*id)).count(), 38);
        assert_eq!((1000..1030).filter(|id| admits(*id)).count(), 0, "a scan");
        assert!(admits(7) && admits(1007), "asked for again");
        // A scan that comes back to where it began has been as long as flash, and is as good as new.
        assert_eq!((2000..2100).chain(2000..2010).filter(|id| admits(*id)).count(), 0);
        assert!(admission.latest.len() + admission.former.len() <= 80);
    }

    #[test]
    fn flash_of_earlier_start_counts_as_used() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("region"), vec![1; 38 * BLOCK as usize]).unwrap();
        let mut admission = CacheAdmission::new(directory.path(), 40 * BLOCK, BLOCK, BLOCK);
        assert!(!admission.admits(1, BLOCK) && admission.admits(1, BLOCK));
    }
}
