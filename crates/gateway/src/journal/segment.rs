//! One file of the journal. Contents are written at ranges that were reserved for them, in any order and at the same
//! time; the metadata says which ranges hold something.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;

use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::{Errno, retry_on_intr};
use underlay_sync::Mutex;
use underlay_sync::planted::{PlantedBug, is_planted};

use crate::disk_room::is_out_of_room;
use crate::errors::{GatewayError, GatewayResult};

/// A range that nobody else gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ReservedRange {
    pub(super) offset_bytes: u64,
    /// Whether the file system has set it aside. Where it can't, the room is taken by the write itself.
    pub(super) is_allocated: bool,
}

/// See the module.
pub(crate) struct JournalSegment {
    number: u64,
    file: File,
    state: Mutex<SegmentState>,
}

struct SegmentState {
    /// Ranges in use, by where they begin: reserved ones and those that the metadata knows.
    in_use: BTreeMap<u64, u64>,
    /// Where the next range begins.
    end_bytes: u64,
    /// Nothing is appended any more.
    is_sealed: bool,
    /// A sync failed: what the kernel still had is lost, and a later sync that succeeds would say nothing about it.
    is_broken: bool,
}

impl JournalSegment {
    pub(super) fn new(
        number: u64,
        file: File,
        in_use: BTreeMap<u64, u64>,
        is_sealed: bool,
    ) -> JournalSegment {
        let end_bytes = in_use.iter().map(|(offset, length)| offset + length).max().unwrap_or(0);
        JournalSegment {
            number,
            file,
            state: Mutex::new(SegmentState { in_use, end_bytes, is_sealed, is_broken: false }),
        }
    }

    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// A range at the end; `None` where the segment takes no more. A range longer than a segment has one alone.
    ///
    /// # Errors
    /// When the disk has no room for it.
    pub(super) fn reserve(&self, length_bytes: u64, most_bytes: u64) -> io::Result<Option<ReservedRange>> {
        let mut state = self.state.lock();
        let is_full = state.end_bytes > 0 && state.end_bytes + length_bytes > most_bytes;
        if state.is_sealed || state.is_broken || is_full {
            state.is_sealed = true;
            return Ok(None);
        }
        let offset = state.end_bytes;
        // Room is asked for before the client sends a byte: a full disk must not be found out half-way.
        let allocate = || fallocate(&self.file, FallocateFlags::empty(), offset, length_bytes.max(1));
        let is_allocated = match retry_on_intr(allocate) {
            Ok(()) => true,
            // Not every file system can; the write itself will tell.
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => false,
            Err(error) => {
                if !is_planted(PlantedBug::RoomOutsideLock) {
                    self.give_back_from(offset, length_bytes);
                }
                return Err(error.into());
            }
        };
        state.in_use.insert(offset, length_bytes);
        state.end_bytes = offset + length_bytes;
        Ok(Some(ReservedRange { offset_bytes: offset, is_allocated }))
    }

    /// Nothing lies from here on. Some file systems keep room that was set aside before the disk was full, which would
    /// stay full. A file that becomes shorter also gives back the room behind its end.
    fn give_back_from(&self, offset_bytes: u64, length_bytes: u64) {
        let _ = self.file.set_len(offset_bytes + length_bytes.max(1));
        if let Err(error) = self.file.set_len(offset_bytes) {
            tracing::debug!(
                "segment {} of the journal keeps room that it no longer needs: {error}",
                self.number
            );
        }
    }

    /// Gives a range back to the file system. Returns whether the segment is empty and sealed: then it can be removed.
    pub(super) fn free(&self, offset_bytes: u64) -> (u64, bool) {
        let mut state = self.state.lock();
        let length = state.in_use.remove(&offset_bytes).unwrap_or(0);
        if length > 0 {
            // The range is dead even if this fails: at worst it takes room until the segment goes.
            let _ = self.punch(offset_bytes, length);
        }
        (length, state.is_sealed && state.in_use.is_empty())
    }

    pub(super) fn punch(&self, offset_bytes: u64, length_bytes: u64) -> rustix::io::Result<()> {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        fallocate(&self.file, flags, offset_bytes, length_bytes)
    }

    pub(super) fn used_bytes(&self) -> u64 {
        self.state.lock().in_use.values().sum()
    }

    pub(super) fn write(&self, bytes: &[u8], offset_bytes: u64) -> io::Result<()> {
        self.file.write_all_at(bytes, offset_bytes)
    }

    pub(super) fn read(&self, buffer: &mut [u8], offset_bytes: u64) -> io::Result<()> {
        self.file.read_exact_at(buffer, offset_bytes)
    }

    /// Makes all earlier writes durable.
    ///
    /// # Errors
    /// When it can't be, now or at an earlier time.
    pub(crate) fn sync(&self) -> GatewayResult<()> {
        if self.state.lock().is_broken {
            return Err(GatewayError::Local(format!("segment {} of the journal failed before", self.number)));
        }
        self.file.sync_data().map_err(|error| {
            let mut state = self.state.lock();
            (state.is_broken, state.is_sealed) = (true, true);
            match is_out_of_room(&error) {
                true => GatewayError::Busy(format!("the gateway's local disk: {error}")),
                false => GatewayError::local("cannot write the journal", error),
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt as _;

    use super::*;

    #[test]
    fn failed_reservation_returns_its_bytes() {
        let file = tempfile::tempfile().unwrap();
        let segment = JournalSegment::new(1, file.try_clone().unwrap(), BTreeMap::new(), false);
        let first = segment.reserve(10_000, 1 << 30).unwrap().unwrap();
        assert_eq!(first.offset_bytes, 0);
        segment.write(&[7; 10_000], 0).unwrap();
        let before = file.metadata().unwrap().blocks();
        // As a file system leaves it that has found out half-way that there is no room.
        for flags in [FallocateFlags::empty(), FallocateFlags::KEEP_SIZE] {
            if fallocate(&file, flags, 10_000, 4 << 20).is_ok() {
                assert!(file.metadata().unwrap().blocks() > before);
            }
            segment.give_back_from(10_000, 8 << 20);
            let after = file.metadata().unwrap();
            // The file system keeps little for itself.
            assert!(after.len() == 10_000 && after.blocks() < before + 1024, "{} {before}", after.blocks());
        }
        // One that is longer than any file can be fails, and the next one begins where it would have.
        assert!(segment.reserve(1 << 63, u64::MAX).is_err());
        assert_eq!(file.metadata().unwrap().len(), 10_000);
        assert_eq!(segment.reserve(5, 1 << 30).unwrap().unwrap().offset_bytes, 10_000);
        let mut bytes = [0; 10_000];
        segment.read(&mut bytes, 0).unwrap();
        assert_eq!(bytes, [7; 10_000]);
    }
}
