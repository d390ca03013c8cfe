//! Flushes and commits that failed, and who has to hear of it.
//!
//! A commit is shared by all who ask for it, and every five seconds nobody does. What fails then concerns every file with
//! data or attributes that the last good one had not covered: the device may have lost them, and nothing here keeps
//! them to be written again. So each of these files answers each fsync by the error, until it was heard and nobody has the
//! file open any more: a second program that has it open hears as well, and none is told that all is well.

use rustix::io::Errno;
use underlay_storage::device::DeviceError;
use underlay_sync::planted::{Bug, is_planted};

use super::{Core, State, errno};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Failure {
    errno: Errno,
    was_heard: bool,
}

impl Core {
    /// A flush of the device is over, which was to cover so many writes.
    pub(super) fn flush_ended(&self, covers: u64, outcome: &Result<(), DeviceError>) {
        let mut state = self.state();
        match outcome {
            Ok(()) => state.flushed = state.flushed.max(covers),
            Err(error) => state.note_failure(errno(error)),
        }
    }

    /// What an fsync of a file answers.
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

impl State {
    /// The device has answered a write of a file's data.
    pub(super) fn note_write(&mut self, inode: u64) {
        self.written += 1;
        let written = self.written;
        self.volatile.entry(inode).or_default().written = written;
    }

    pub(super) fn note_failure(&mut self, errno: Errno) {
        if is_planted(Bug::CommitOutcomeDropped) {
            return;
        }
        let (flushed, committing) = (self.flushed, self.durable_number + 1..=self.sealed_number);
        for volatile in self.volatile.values_mut() {
            if volatile.written > flushed || committing.contains(&volatile.changed_in) {
                volatile.failure = Some(Failure { errno, was_heard: false });
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
