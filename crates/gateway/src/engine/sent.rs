//! Which requests are on their way to stores, noted before each is sent. The note does not wait for the disk, as that
//! of [commits] doesn't: a kill leaves it exact, and a power cut may take it. It costs some microseconds, where a
//! commit of the metadata would cost a sync of the disk.
//!
//! [commits]: crate::journal

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde::{Deserialize, Serialize};
use underlay_files::Folder;
use underlay_sync::Mutex;

use crate::store::{RequestEffect, SentNotes};

const FILE: &str = "sent";
/// Each note has a slot of this size: a key has at most 1024 bytes, a bucket's name 63, and an effect less than 100.
const SLOT_BYTES: usize = 2048;
/// The length of a note and its checksum.
const HEAD_BYTES: usize = 8;
/// No gateway has so many requests on their way: a file that says so is damaged.
const MAX_SLOTS: usize = 16 << 10;

/// A request that may have been sent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SentRequest {
    pub(super) bucket: String,
    pub(super) key: String,
    pub(super) effect: RequestEffect,
}

/// See the module.
#[derive(Debug)]
pub(super) struct SentLog {
    file: File,
    slots: Mutex<SentSlots>,
    has_failed: AtomicBool,
}

#[derive(Debug, Default)]
struct SentSlots {
    /// So many of the file are in use, or free.
    count: u64,
    free: Vec<u64>,
}

/// The notes of one bucket.
#[derive(Debug)]
pub(super) struct OfBucket {
    pub(super) log: Arc<SentLog>,
    pub(super) bucket: String,
}

fn read_slot(slot: &[u8]) -> Option<SentRequest> {
    let (head, rest) = slot.split_at_checked(HEAD_BYTES)?;
    let length = u32::from_le_bytes(head[..4].try_into().ok()?) as usize;
    let note = rest.get(..length).filter(|note| !note.is_empty())?;
    (crc_fast::crc32_iscsi(note).to_le_bytes() == head[4..]).then(|| postcard::from_bytes(note).ok())?
}

impl SentLog {
    /// Returns what an earlier start had sent and heard no answer to. It stays noted until it is
    /// [cleared](Self::clear).
    ///
    /// # Errors
    /// When the file can't be made or read.
    pub(super) fn open(folder: &Folder) -> io::Result<(SentLog, Vec<SentRequest>)> {
        let file = folder.file(FILE)?;
        let length = file.metadata()?.len().min((MAX_SLOTS * SLOT_BYTES) as u64);
        let mut bytes = vec![0; length as usize];
        file.read_exact_at(&mut bytes, 0)?;
        let left = bytes.chunks(SLOT_BYTES).filter_map(read_slot).collect();
        // New notes come behind what is left.
        let count = length.div_ceil(SLOT_BYTES as u64);
        let slots = Mutex::new(SentSlots { count, free: Vec::new() });
        Ok((SentLog { file, slots, has_failed: AtomicBool::new(false) }, left))
    }

    /// Forgets what an earlier start had sent. To be called before anything is sent.
    ///
    /// # Errors
    /// When the file can't be written.
    pub(super) fn clear(&self) -> io::Result<()> {
        let mut slots = self.slots.lock();
        self.file.set_len(0)?;
        *slots = SentSlots::default();
        Ok(())
    }

    fn write(&self, slot: u64, bytes: &[u8]) {
        if let Err(error) = self.file.write_all_at(bytes, slot * SLOT_BYTES as u64)
            && !self.has_failed.swap(true, Ordering::Relaxed)
        {
            tracing::warn!(
                "cannot note which requests are sent: a start after a kill may not know of some: {error}"
            );
        }
    }
}

impl SentNotes for OfBucket {
    fn begin(&self, key: &str, effect: &RequestEffect) -> Option<u64> {
        let sent = SentRequest { bucket: self.bucket.clone(), key: key.to_owned(), effect: effect.clone() };
        let note = postcard::to_allocvec(&sent).ok().filter(|note| note.len() <= SLOT_BYTES - HEAD_BYTES)?;
        let slot = {
            let mut slots = self.log.slots.lock();
            match slots.free.pop() {
                Some(slot) => slot,
                None if slots.count >= MAX_SLOTS as u64 => return None,
                None => {
                    slots.count += 1;
                    slots.count - 1
                }
            }
        };
        let mut bytes = Vec::with_capacity(HEAD_BYTES + note.len());
        bytes.extend_from_slice(&(note.len() as u32).to_le_bytes());
        bytes.extend_from_slice(&crc_fast::crc32_iscsi(&note).to_le_bytes());
        bytes.extend_from_slice(&note);
        self.log.write(slot, &bytes);
        Some(slot)
    }

    fn end(&self, slot: u64) {
        self.log.write(slot, &[0; HEAD_BYTES]);
        self.log.slots.lock().free.push(slot);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(log: &Arc<SentLog>, bucket: &str) -> OfBucket {
        OfBucket { log: Arc::clone(log), bucket: bucket.to_owned() }
    }

    #[test]
    fn requests_in_flight_survive_restart() {
        let directory = tempfile::tempdir().unwrap();
        let folder = Folder::open(directory.path()).unwrap();
        let (log, left) = SentLog::open(&folder).unwrap();
        assert!(left.is_empty());
        let (log, long) = (Arc::new(log), "k".repeat(1024));
        let (lake, pond) = (of(&log, "lake"), of(&log, "pond"));
        let first = lake.begin("a", &RequestEffect::Delete).unwrap();
        lake.begin(&long, &RequestEffect::Copy).unwrap();
        lake.end(first);
        // In its place.
        assert_eq!(pond.begin("b", &RequestEffect::Delete), Some(first));
        let sent = |bucket: &str, key: &str, effect| SentRequest {
            bucket: bucket.to_owned(),
            key: key.to_owned(),
            effect,
        };
        let expected = [sent("pond", "b", RequestEffect::Delete), sent("lake", &long, RequestEffect::Copy)];
        for _ in 0..2 {
            let (log, left) = SentLog::open(&folder).unwrap();
            // Behind them are those of the round before.
            assert_eq!(left[..2], expected);
            // New requests before they are kept elsewhere replace none of them.
            let slot = of(&Arc::new(log), "lake").begin("c", &RequestEffect::Delete).unwrap();
            assert!(slot >= 2);
        }
        let (log, left) = SentLog::open(&folder).unwrap();
        assert_eq!(left.len(), 4);
        log.clear().unwrap();
        assert!(SentLog::open(&folder).unwrap().1.is_empty());
        // Any bytes are no more than no note.
        std::fs::write(directory.path().join(FILE), vec![0xff; 3 * SLOT_BYTES + 5]).unwrap();
        assert!(SentLog::open(&folder).unwrap().1.is_empty());
    }
}
