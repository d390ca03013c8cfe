//! Flushes and commits that failed, and which files report it.
//!
//! All callers share a commit, and the one every five seconds has no caller. A failed commit concerns every file with
//! data or attributes that the last good one had not covered. The device may have lost them, and nothing here keeps
//! them to be written again. So each of these files answers every fsync with the error, until the error was reported
//! once and the file is no longer open. A second program that has it open gets the error as well.
//!
//! A device may have lost the data of a failed flush, and let the next one succeed. So places that no flush has covered
//! become doubtful then: the journal does not call them written until they were written again. After a power cut they
//! read as zeros, and not as data of another file.

use rustix::io::Errno;
use underlay_storage::device::DeviceError;
use underlay_sync::planted::{PlantedBug, is_planted};

use super::extents::BlockRun;
use super::{CoreState, DirectoryCore, OpenInode};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct WriteFailure {
    errno: Errno,
    was_heard: bool,
}

/// Blocks that a file's content was written to.
#[derive(Clone, Copy, Debug)]
pub(super) struct PlacedBlocks {
    /// The number of the write.
    pub written: u64,
    pub inode: u64,
    pub at: u64,
    pub run: BlockRun,
}

/// The scope of a flush in flight.
#[derive(Clone, Copy, Debug)]
pub(super) struct FlushScope {
    written: u64,
    failures: u64,
}

impl DirectoryCore {
    /// A flush of the device has ended. It counts as failed if another one failed meanwhile: a device may report only
    /// one of them.
    pub(super) fn flush_ended(
        &self,
        covers: FlushScope,
        outcome: Result<(), DeviceError>,
    ) -> Result<(), DeviceError> {
        let mut state = self.state();
        match outcome {
            Ok(()) if state.failures == covers.failures => {
                state.flushed = state.flushed.max(covers.written);
                state.unflushed.retain(|placed| placed.written > covers.written);
                Ok(())
            }
            // The other one has noted everything that this one should have covered. If this one noted it again, it
            // would make the next overlapping flush fail, and so on forever.
            Ok(()) => Err(DeviceError::Io("another flush failed at the same time".into())),
            Err(error) => {
                state.note_failure(errno(&error));
                Err(error)
            }
        }
    }

    /// The answer to an fsync of a file.
    pub(super) fn with_failure(&self, inode: u64, outcome: Result<(), Errno>) -> Result<(), Errno> {
        let mut state = self.state();
        let failure = state.volatile.get_mut(&inode).and_then(|volatile| volatile.failure.as_mut());
        match failure {
            Some(failure) => {
                failure.was_heard = true;
                outcome.and(Err(failure.errno))
            }
            None => outcome,
        }
    }
}

impl OpenInode {
    fn fail(&mut self, errno: Errno) {
        if !is_planted(PlantedBug::CommitOutcomeDropped) {
            self.failure = Some(WriteFailure { errno, was_heard: false });
        }
    }
}

impl CoreState {
    /// The device has answered a write of a file's data.
    pub(super) fn note_write(&mut self, inode: u64) {
        self.written += 1;
        let written = self.written;
        self.volatile.entry(inode).or_default().written = written;
    }

    /// The scope of a flush that begins now.
    pub(super) fn covers(&self) -> FlushScope {
        FlushScope { written: self.written, failures: self.failures }
    }

    pub(super) fn note_failure(&mut self, errno: Errno) {
        self.failures += 1;
        self.doubt(|_| true);
        let (flushed, committing) = (self.flushed, self.durable_number + 1..=self.sealed_number);
        let is_concerned =
            |volatile: &OpenInode| volatile.written > flushed || committing.contains(&volatile.changed_in);
        self.volatile.values_mut().filter(|volatile| is_concerned(volatile)).for_each(|one| one.fail(errno));
    }

    /// A write has ended that began when `failures` flushes had failed. A flush that failed meanwhile may have lost
    /// part of it.
    pub(super) fn written_across_failures(&mut self, inode: u64, failures: u64) {
        if self.failures != failures {
            let number = self.written;
            self.doubt(|placed| placed.written == number);
            self.volatile.entry(inode).or_default().fail(Errno::IO);
        }
    }

    fn doubt(&mut self, is_doubtful: impl Fn(&PlacedBlocks) -> bool) {
        let doubtful: Vec<PlacedBlocks> =
            self.unflushed.extract_if(.., |placed| is_doubtful(placed)).collect();
        self.begins_anew |= !doubtful.is_empty() && self.sealed_number > self.durable_number;
        for PlacedBlocks { inode, at: offset, run, .. } in doubtful {
            for operation in self.tree.doubt(inode, offset, run) {
                operation.encode(&mut self.transaction.operations);
            }
        }
    }

    /// The file is no longer open.
    pub(super) fn forget_heard_failure(&mut self, inode: u64) {
        if let Some(volatile) = self.volatile.get_mut(&inode) {
            volatile.failure = volatile.failure.filter(|failure| !failure.was_heard);
        }
    }
}

/// The error number that a program gets for a device's error. The device's first messages go to the log.
pub(super) fn errno(error: &DeviceError) -> Errno {
    use std::sync::atomic::{AtomicU32, Ordering};
    const MAX_LOGGED: u32 = 100;
    static LOGGED: AtomicU32 = AtomicU32::new(0);
    if LOGGED.load(Ordering::Relaxed) < MAX_LOGGED {
        LOGGED.fetch_add(1, Ordering::Relaxed);
        tracing::error!("{error}");
    }
    match error {
        DeviceError::NoSpace => Errno::NOSPC,
        _ => Errno::IO,
    }
}
