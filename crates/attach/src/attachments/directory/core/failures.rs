//! Flushes and commits that failed, and which files report it.
//!
//! A commit is shared by all who ask for it, and nobody asks for the one every five seconds. When it
//! fails, that concerns every file with data or attributes that the last good one had not covered: the device
//! may have lost them, and nothing here keeps them to be written again. So each of these files answers every
//! fsync with the error until it was reported once and nobody has the file open any more: a second program
//! that has it open gets the error as well.
//!
//! A device may have lost what a failed flush was to write, and let the next one succeed. So places whose content no
//! flush has covered become doubtful then: the journal does not call them written before they were written anew. After
//! a power cut they read as zeros, and not as what another file left there.

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
    /// The count of the write.
    pub written: u64,
    pub inode: u64,
    pub at: u64,
    pub run: BlockRun,
}

/// The scope of a flush that is in flight.
#[derive(Clone, Copy, Debug)]
pub(super) struct FlushScope {
    written: u64,
    failures: u64,
}

impl DirectoryCore {
    /// A flush of the device is over. It has failed as well if another one did meanwhile: a device may tell only one of
    /// them.
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
            // The other one has noted all that this one was to cover. Noted again, it would fail the next one that
            // overlaps it, and so on forever.
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

    /// A write has ended that began when `failures` flushes had failed: one that failed meanwhile may have
    /// lost part of it.
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

    /// Nobody has the file open any more.
    pub(super) fn forget_heard_failure(&mut self, inode: u64) {
        if let Some(volatile) = self.volatile.get_mut(&inode) {
            volatile.failure = volatile.failure.filter(|failure| !failure.was_heard);
        }
    }
}

/// The error number that a program gets for a device's error; the first messages of the device go to the log.
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
