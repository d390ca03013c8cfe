//! Reads ahead of clients that ask for ranges. A client that goes through an object from front to back gets the next
//! blocks. For one that reads an object's end, as readers of Parquet or ORC do first, the bytes before it are read.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::Semaphore;
use underlay_sync::Mutex;

use super::GatewayEngine;
use super::read::{ResolvedObject, RunSource};
use crate::blocks::BlockOrigin;

/// Objects whose readers are remembered.
const MAX_READERS: usize = 4096;
/// So many ranges in a row make a scan.
const A_SCAN: u32 = 2;
/// The most that is fetched ahead of one reader.
const MAX_AHEAD_BYTES: u64 = 8 << 20;
/// And the part of the memory for blocks that it may take: what is fetched and gone before it is read was fetched in
/// vain.
const PART_OF_MEMORY: u64 = 16;
/// A range that begins in the last bytes of an object is a reader's of its footer.
const FOOTER_BYTES: u64 = 64 << 10;
/// Footers of files with many columns are longer than their last bytes say.
const WHOLE_FOOTER_BYTES: u64 = 1 << 20;
/// Fetches ahead at the same time: what clients wait for goes first.
const FETCHES: usize = 8;

/// Who reads what. By the version of an object: another one has no reader yet.
#[derive(Default)]
struct SequentialReaders {
    by_version: HashMap<(String, u64), SequentialReader>,
}

#[derive(Clone, Copy, Debug, Default)]
struct SequentialReader {
    /// Where the last range ended, and to where has been fetched.
    end: u64,
    ahead_to: u64,
    in_a_row: u32,
}

/// See the module.
pub(super) struct ObjectReadAhead {
    readers: Mutex<SequentialReaders>,
    fetches: Arc<Semaphore>,
    pub(super) bytes: AtomicU64,
}

impl Default for ObjectReadAhead {
    fn default() -> ObjectReadAhead {
        ObjectReadAhead {
            readers: Mutex::default(),
            fetches: Arc::new(Semaphore::new(FETCHES)),
            bytes: AtomicU64::new(0),
        }
    }
}

impl SequentialReaders {
    /// Ranges worth fetching while a client reads this range of an object of this size.
    fn reads(
        &mut self,
        object: (String, u64),
        range: &Range<u64>,
        size: u64,
        (block, most): (u64, u64),
    ) -> Option<Range<u64>> {
        if range.is_empty() || *range == (0..size) {
            // The whole is fetched ahead as it is sent.
            return None;
        }
        if self.by_version.len() >= MAX_READERS && !self.by_version.contains_key(&object) {
            // Which of them are still at it, nobody knows: a scan is found out again after a range or two.
            self.by_version.clear();
        }
        let reader = self.by_version.entry(object).or_default();
        let goes_on = range.start >= reader.end && range.start - reader.end <= block && reader.end > 0;
        reader.in_a_row = if goes_on || range.start == 0 { reader.in_a_row + 1 } else { 0 };
        reader.end = range.end;
        if range.start >= size.saturating_sub(FOOTER_BYTES) && range.start > 0 {
            let begin = size.saturating_sub(WHOLE_FOOTER_BYTES.min(most));
            return (begin < range.start).then_some(begin..range.start);
        }
        if reader.in_a_row < A_SCAN {
            reader.ahead_to = range.end;
            return None;
        }
        // Twice as far with each range, as the kernel does it.
        let ahead = (block << (reader.in_a_row - A_SCAN).min(8)).min(most.max(block));
        let begin = reader.ahead_to.max(range.end);
        let end = (range.end + ahead).min(size);
        // Not before half of what was fetched has been read: many small requests would be as bad as none.
        if end <= begin || begin - range.end > ahead / 2 {
            return None;
        }
        reader.ahead_to = end;
        Some(begin..end)
    }
}

impl GatewayEngine {
    /// Bytes that were fetched before anybody asked for them.
    pub(crate) fn ahead_bytes(&self) -> u64 {
        self.ahead.bytes.load(Ordering::Relaxed)
    }

    /// A range is being read: fetches what is likely to be next.
    pub(super) fn read_ahead(&self, bucket: &str, key: &str, resolved: &ResolvedObject, range: &Range<u64>) {
        let [run] = resolved.runs() else { return };
        // The journal's bytes need no fetching; another gateway sees to its own.
        let RunSource::Remote(origin) = &run.source else { return };
        let object = (format!("{bucket}/{key}/{}", resolved.record.etag), resolved.record.version);
        let block = self.blocks.block_bytes();
        let size = resolved.record.size_bytes;
        let most = MAX_AHEAD_BYTES.min(self.setup.local.memory_bytes / PART_OF_MEMORY);
        let wanted = self.ahead.readers.lock().reads(object, range, size, (block, most));
        let Some(wanted) = wanted else { return };
        self.fetch_ahead(origin, run.range.start + wanted.start..run.range.start + wanted.end);
    }

    /// Has these bytes come, if not too many others do.
    pub(super) fn fetch_ahead(&self, origin: &BlockOrigin, wanted: Range<u64>) {
        let Ok(permit) = Arc::clone(&self.ahead.fetches).try_acquire_owned() else { return };
        self.ahead.bytes.fetch_add(wanted.end.saturating_sub(wanted.start), Ordering::Relaxed);
        let (blocks, origin) = (Arc::clone(&self.blocks), origin.clone());
        let supervisor = self.supervisor.clone();
        tokio::spawn(async move {
            let _permit = permit;
            // A reader that wants the block gets the error.
            let fetching = blocks.prefetch(&origin, wanted);
            let _ = supervisor.shield("read-ahead", &origin.key, fetching).await;
        });
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const BLOCK: u64 = 100;

    fn readers() -> impl FnMut(Range<u64>) -> Option<Range<u64>> {
        let mut readers = SequentialReaders::default();
        move |range| readers.reads(("a".to_owned(), 1), &range, 10_000_000, (BLOCK, MAX_AHEAD_BYTES))
    }

    #[test]
    fn scan_is_read_ahead_further_each_time() {
        let mut reads = readers();
        assert_eq!(reads(0..50), None);
        assert_eq!(reads(50..100), Some(100..200));
        assert_eq!(reads(100..150), Some(200..350));
        assert_eq!(reads(150..151), Some(350..551));
        let (mut offset, mut fetched, mut asked) = (151, 551, 0);
        while offset < 100_000 {
            if let Some(range) = reads(offset..offset + 50) {
                assert_eq!(range.start, fetched);
                (fetched, asked) = (range.end, asked + 1);
            }
            offset += 50;
            assert!(fetched >= offset);
        }
        assert!(asked < 30, "{asked}");
    }

    #[test]
    fn random_reads_are_not_read_ahead() {
        let mut reads = readers();
        for offset in [5000, 100, 70_000, 300, 9000, 2000] {
            assert_eq!(reads(offset..offset + 50), None);
        }
        assert_eq!(reads(0..10_000_000), None);
    }

    #[test]
    fn footer_read_fetches_preceding_bytes() {
        let mut reads = readers();
        assert_eq!(reads(9_999_992..10_000_000), Some(10_000_000 - WHOLE_FOOTER_BYTES..9_999_992));
        let mut small = SequentialReaders::default();
        assert_eq!(small.reads(("b".to_owned(), 1), &(92..100), 100, (BLOCK, MAX_AHEAD_BYTES)), Some(0..92));
    }

    proptest! {
        #[test]
        fn read_ahead_stays_within_object(
            ranges in prop::collection::vec((0..2000_u64, 1..500_u64), 1..50),
            size in 1..2000_u64,
            most in 0..2000_u64,
        ) {
            let mut readers = SequentialReaders::default();
            for (start, length) in ranges {
                let range = start.min(size - 1)..(start + length).min(size).max(start.min(size - 1) + 1);
                if let Some(found) = readers.reads(("a".to_owned(), 1), &range, size, (BLOCK, most)) {
                    prop_assert!(found.start < found.end && found.end <= size);
                    prop_assert!(found.end - found.start <= most.max(BLOCK));
                }
            }
        }
    }
}
