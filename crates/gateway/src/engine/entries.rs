//! Limits on what takes no room in the journal: names that the store does not have yet, which are in memory, and
//! unfinished uploads with their parts, which are in the metadata.

use std::collections::HashMap;
use std::sync::atomic::{AtomicI64, Ordering};

use underlay_sync::Mutex;
use underlay_sync::planted::{PlantedBug, is_planted};

use crate::errors::{GatewayError, GatewayResult};
use crate::meta::{MetadataView, UploadCounts};

/// A pending name's weight against the memory for blocks. It takes some 500 bytes.
const NAME_BYTES: u64 = 1024;
/// However little memory there is.
const MIN_NAMES: u64 = 16 << 10;
/// The same of a name that a client's own write has gone to without an answer. It takes a row of the metadata as well.
const LATE_NAME_BYTES: u64 = 4096;
const MIN_LATE_NAMES: u64 = 4 << 10;
/// Unfinished uploads of a bucket.
pub(super) const MAX_UPLOADS: i64 = 100_000;
/// A part's weight against the journal, also without bytes of its own.
const PART_BYTES: u64 = 1024;
const MIN_PARTS: u64 = 100_000;

/// Names that may be pending.
pub(super) fn most_names(memory_bytes: u64) -> usize {
    usize::try_from((memory_bytes / NAME_BYTES).max(MIN_NAMES)).unwrap_or(usize::MAX)
}

/// Names to which clients' own writes may be on their way, or without an answer: those where others write as well.
pub(super) fn most_late_names(memory_bytes: u64) -> usize {
    usize::try_from((memory_bytes / LATE_NAME_BYTES).max(MIN_LATE_NAMES)).unwrap_or(usize::MAX)
}

/// Unfinished uploads, and their parts.
pub(super) struct UploadEntries {
    by_bucket: Mutex<HashMap<String, i64>>,
    parts: AtomicI64,
    most_parts: i64,
}

impl UploadEntries {
    /// # Errors
    /// When the metadata can't be read.
    pub(super) fn counted(view: &MetadataView, journal_bytes: u64) -> GatewayResult<UploadEntries> {
        let mut by_bucket = HashMap::new();
        view.each_upload(|name, _, _| *by_bucket.entry(name.bucket).or_default() += 1)?;
        let parts = AtomicI64::new(i64::try_from(view.count_parts()?).unwrap_or(i64::MAX));
        let most_parts = i64::try_from((journal_bytes / PART_BYTES).max(MIN_PARTS)).unwrap_or(i64::MAX);
        Ok(UploadEntries { by_bucket: Mutex::new(by_bucket), parts, most_parts })
    }

    /// Applies a commit's changes.
    pub(super) fn apply(&self, unfinished: Vec<UploadCounts>) {
        for UploadCounts { bucket, uploads, parts } in unfinished {
            self.parts.fetch_add(parts, Ordering::Relaxed);
            if uploads != 0 {
                *self.by_bucket.lock().entry(bucket).or_default() += uploads;
            }
        }
    }

    /// # Errors
    /// `Busy` if no upload may be begun in this bucket.
    pub(super) fn check_begin(&self, bucket: &str) -> GatewayResult<()> {
        match self.by_bucket.lock().get(bucket) {
            Some(count) if *count >= MAX_UPLOADS && !is_planted(PlantedBug::EntriesUncounted) => {
                Err(GatewayError::Busy(format!(
                    "the bucket has {MAX_UPLOADS} unfinished uploads, and may have no more: complete or abort some of them"
                )))
            }
            _ => Ok(()),
        }
    }

    /// # Errors
    /// `Busy` if there may be no further part.
    pub(super) fn check_part(&self) -> GatewayResult<()> {
        let is_full = self.parts.load(Ordering::Relaxed) >= self.most_parts;
        match is_full && !is_planted(PlantedBug::EntriesUncounted) {
            true => Err(GatewayError::Busy(
                "the unfinished uploads have as many parts as the gateway may keep: complete or abort some of them".to_owned(),
            )),
            false => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn upload_and_part_counts_follow_changes() {
        let uploads = UploadEntries { by_bucket: Mutex::default(), parts: AtomicI64::new(0), most_parts: 2 };
        let change = |uploads, parts| UploadCounts { bucket: "lake".to_owned(), uploads, parts };
        uploads.apply(vec![change(MAX_UPLOADS, 0), change(0, 1)]);
        assert!(matches!(uploads.check_begin("lake"), Err(GatewayError::Busy(_))));
        assert!(uploads.check_begin("pond").is_ok() && uploads.check_part().is_ok());
        uploads.apply(vec![change(0, 1)]);
        assert!(matches!(uploads.check_part(), Err(GatewayError::Busy(_))));
        uploads.apply(vec![change(-1, -2)]);
        assert!(uploads.check_begin("lake").is_ok() && uploads.check_part().is_ok());
    }

    #[test]
    fn names_are_limited_by_memory() {
        assert_eq!(most_names(1 << 30), 1 << 20);
        assert_eq!(most_names(0), 16 << 10);
        assert_eq!((most_late_names(1 << 30), most_late_names(0)), (256 << 10, 4 << 10));
    }
}
