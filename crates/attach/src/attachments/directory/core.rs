//! A file system on a block device, without FUSE and without a clock: names, extents, data and durability.
//!
//! The device begins with a journal (`underlay_storage::journal`) that holds the tree; the rest is data. The tree
//! is kept in memory as well. A change of the tree is one or more [`TreeOperation`]s: applied at once, and added to the
//! running transaction, which [`DirectoryCore::commit`] makes durable as one record.
//!
//! - **Data before names for it.** An extent is mapped when its data has been written, and a commit flushes the device
//!   before its record is written. So what is found after a power cut is never another file's old data.
//! - **Freed blocks wait.** They are discarded and used again only once the record that frees them is durable. Until
//!   then a power cut may bring their file back.
//! - **A failed flush or commit is reported by every file that it concerns** (`failures`), no matter what triggered it.
//! - **Reading and writing** hold the range of blocks that they touch, so that blocks don't change hands under them.

#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

mod allocator;
mod commit;
mod data;
mod extents;
mod failures;
mod names;
mod open;
mod operation;
mod ranges;
mod space;
mod tree;

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use rustix::io::Errno;
use underlay_storage::device::{BlockDevice, DeviceError};
use underlay_storage::journal::{Journal, JournalSnapshot};
use underlay_sync::{Condvar, Mutex, MutexGuard, Sender};

use allocator::BlockAllocator;
use commit::CommitJob;
pub use data::WriteOptions;
use extents::{BlockRun, ExtentMap};
use failures::{PlacedBlocks, WriteFailure, errno};
pub use names::{AttributeChange, DirectoryListing, FileStat, FilesystemSpace, NewNode, RenameMode};
pub use open::{OpenError, check_records, is_beginning};
pub use operation::{FileTimestamp, InodeAttributes, InodeKind, TreeOperation, UnreadableOperation, decode};
use ranges::InodeRanges;
pub use space::AllocateMode;
use tree::InodeTree;
pub use tree::ROOT;

/// The unit of allocation, and of every request to the device.
pub const BLOCK_BYTES: u64 = 4096;

pub type CoreCallback<T> = Box<dyn FnOnce(Result<T, Errno>) + Send>;

type CoreResult = Result<(), Errno>;

/// A mounted file system. Its methods never wait for the device unless they say so.
pub struct DirectoryCore {
    itself: Weak<DirectoryCore>,
    device: Arc<dyn BlockDevice>,
    journal: Journal,
    state: Mutex<CoreState>,
    ranges: Arc<InodeRanges>,
    /// Held by the commit in progress.
    committing: Mutex<()>,
    /// Signalled when a commit or a discard is over.
    committed: Condvar,
    jobs: Mutex<Option<Sender<CommitJob>>>,
    /// The device was gone for a time: memory may refer to lost data.
    lost: AtomicBool,
    metadata_limit_bytes: u64,
}

struct CoreState {
    tree: InodeTree,
    allocator: BlockAllocator,
    /// The state of an inode that exists only while it is in use.
    volatile: HashMap<u64, OpenInode>,
    transaction: CoreTransaction,
    /// Blocks freed by transactions that are in the journal and may not be durable yet.
    sealed_runs: Vec<BlockRun>,
    sealed_number: u64,
    /// The last durable transaction.
    durable_number: u64,
    /// Blocks whose discard is in flight; they will soon be free.
    discarding_blocks: u64,
    /// The number of data writes that the device has answered.
    written: u64,
    /// How many of them a flush has covered.
    flushed: u64,
    /// The places of the others' data that had no place before.
    unflushed: Vec<PlacedBlocks>,
    /// Flushes and commits that have failed.
    failures: u64,
    /// A sealed transaction calls something written that a failed flush may have lost. It must not become durable
    /// before the transaction that takes this back, so the journal begins anew with both.
    begins_anew: bool,
}

#[derive(Default)]
struct OpenInode {
    opens: u32,
    /// The kernel's lookup count of this inode: lookups less forgets.
    lookups: u64,
    /// Places on the device that are reserved for future file blocks, so that a growing file stays in one piece.
    reserved: ExtentMap,
    /// Where the last allocation ended, in the file and on the device.
    hint: Option<(u64, u64)>,
    /// The part of the last block after the file's end is known to hold zeros.
    tail_clean: bool,
    changed_in: u64,
    data_changed_in: u64,
    /// The number of its last data write.
    written: u64,
    /// A failed write that has not been reported yet: its data may not be durable.
    failure: Option<WriteFailure>,
    removing: bool,
}

struct CoreTransaction {
    number: u64,
    operations: Vec<u8>,
    /// Inodes whose attributes are to be written.
    changed: BTreeSet<u64>,
    freed: Vec<BlockRun>,
}

impl CoreTransaction {
    fn new(number: u64) -> CoreTransaction {
        CoreTransaction { number, operations: Vec::new(), changed: BTreeSet::new(), freed: Vec::new() }
    }

    fn is_empty(&self) -> bool {
        self.operations.is_empty() && self.changed.is_empty()
    }
}

#[allow(
    clippy::disallowed_methods,
    reason = "a file has the time of the calendar, and nothing is decided by it"
)]
fn now() -> FileTimestamp {
    let since_epoch = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    FileTimestamp { s: since_epoch.as_secs() as i64, ns: since_epoch.subsec_nanos() }
}

impl DirectoryCore {
    fn state(&self) -> MutexGuard<'_, CoreState> {
        // A panic ends the daemon; in a test, the thread that panicked reports it.
        self.state.lock()
    }

    /// The contents of a new journal: everything, the running transaction included.
    fn snapshot(&self) -> JournalSnapshot {
        let mut state = self.state();
        state.seal(&self.journal);
        JournalSnapshot { state: state.tree.snapshot(), covers: self.journal.appended() }
    }

    /// From now on everything gets an error, until the file system is opened again. This is for a device whose power
    /// was cut: its journal knows its contents better than memory does.
    pub fn abandon(&self) {
        if !self.lost.swap(true, Ordering::SeqCst) {
            tracing::error!(
                "the device was gone: its directory answers with errors until it is attached again"
            );
        }
        self.committed.notify_all();
    }

    fn check_alive(&self) -> Result<(), Errno> {
        if self.lost.load(Ordering::SeqCst) { Err(Errno::IO) } else { Ok(()) }
    }

    /// Like [`errno()`], and notes if the device is gone.
    fn errno(&self, error: &DeviceError) -> Errno {
        if *error == DeviceError::Gone {
            self.abandon();
        }
        errno(error)
    }
}

impl CoreState {
    /// Changes the tree, and records the change.
    fn perform(&mut self, operation: TreeOperation) -> Result<(), Errno> {
        self.tree.apply(&operation, &mut self.transaction.freed).map_err(|contradiction| {
            tracing::error!("refused: {contradiction}");
            Errno::IO
        })?;
        operation.encode(&mut self.transaction.operations);
        Ok(())
    }

    /// The inode's attributes must be written with the transaction; `data` if its data can't be read without them.
    fn changed(&mut self, inode: u64, data: bool) {
        let number = self.transaction.number;
        self.transaction.changed.insert(inode);
        let volatile = self.volatile.entry(inode).or_default();
        volatile.changed_in = number;
        if data {
            volatile.data_changed_in = number;
        }
    }

    /// Passes the running transaction to the journal and begins the next one.
    fn seal(&mut self, journal: &Journal) {
        if self.transaction.is_empty() {
            return;
        }
        let next = CoreTransaction::new(self.transaction.number + 1);
        let CoreTransaction { number, mut operations, changed, mut freed } =
            std::mem::replace(&mut self.transaction, next);
        for inode in changed {
            if let Some(found) = self.tree.get(inode) {
                TreeOperation::SetAttributes { inode, attributes: found.attributes }.encode(&mut operations);
            }
        }
        self.sealed_runs.append(&mut freed);
        self.sealed_number = number;
        journal.append(operations);
    }
}

#[cfg(test)]
mod tests;
