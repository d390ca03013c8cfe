//! Creating a file system and opening it: what is read from the journal, and what can't be opened.

use std::collections::HashMap;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Weak};

use rustix::io::Errno;
use underlay_storage::device::{BlockDevice, DeviceError, DeviceRequest};
use underlay_storage::journal::format::{AreaHeader, HeaderBlock};
use underlay_storage::journal::{Journal, JournalError, JournalSnapshot};
use underlay_sync::{Condvar, Mutex, channel};

use super::allocator::BlockAllocator;
use super::commit::start_committing;
use super::extents::BlockRun;
use super::operation::{InodeAttributes, InodeKind, TreeOperation, decode};
use super::tree::{self, InodeTree, ROOT};
use super::{BLOCK_BYTES, CoreState, CoreTransaction, DirectoryCore, now};

const JOURNAL_KIND: [u8; 8] = *b"ul-files";

/// The share of the device that metadata may use, within these bounds; the journal is four times as large.
const METADATA_SHARE: u64 = 256;
const MIN_METADATA_BYTES: u64 = 256 << 10;
const MAX_METADATA_BYTES: u64 = 128 << 20;

#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error(transparent)]
    Device(#[from] DeviceError),
    #[error(transparent)]
    Journal(#[from] JournalError),
    #[error("it holds no files of this kind: it was never made, or something else was written there")]
    NothingThere,
    #[error("{0}: the disk's content is damaged; recreate it")]
    Damaged(String),
    #[error("a volume of {0} bytes is too small for a directory: make it 4 MiB or larger")]
    TooSmall(u64),
    #[error("the device has blocks of {0} bytes; a directory needs blocks that divide {BLOCK_BYTES}")]
    Blocks(u32),
    #[error("the thread that commits can't be started: {0}")]
    Thread(std::io::Error),
}

/// The journal's length on a device of this capacity.
pub(super) fn journal_bytes(capacity_bytes: u64) -> u64 {
    let metadata_bytes = metadata_bytes(capacity_bytes);
    Journal::range_bytes(metadata_bytes, metadata_bytes).next_multiple_of(2 * BLOCK_BYTES)
}

fn metadata_bytes(capacity_bytes: u64) -> u64 {
    (capacity_bytes / METADATA_SHARE).clamp(MIN_METADATA_BYTES, MAX_METADATA_BYTES)
}

/// Whether a volume that begins like this holds a directory of ours, which no kernel recognises.
pub fn is_beginning(block: &[u8]) -> bool {
    matches!(AreaHeader::decode(block), HeaderBlock::Valid(header) if header.kind == JOURNAL_KIND)
}

impl DirectoryCore {
    /// Creates an empty file system, whose root belongs to `owner` (user and group). Waits for the device.
    ///
    /// # Errors
    /// When the device fails or is unsuitable.
    pub fn format(device: Arc<dyn BlockDevice>, owner: (u32, u32)) -> Result<Arc<DirectoryCore>, OpenError> {
        let journal_bytes = check_geometry(&*device)?;
        // Nothing else is written or discarded, so a used-up device stays used up. Programs never see the bytes there.
        // These are the two headers of the journal: without them `load` finds no old tree.
        for offset_bytes in [0, journal_bytes / 2] {
            let data = vec![0; BLOCK_BYTES as usize];
            device.execute(DeviceRequest::Write { offset_bytes, data, fua: true })?;
        }
        let core = DirectoryCore::load(device, journal_bytes)?;
        {
            let mut state = core.state();
            let time = now();
            let attributes = InodeAttributes {
                mode: 0o755,
                uid: owner.0,
                gid: owner.1,
                size: 0,
                atime: time,
                mtime: time,
                ctime: time,
            };
            let make = TreeOperation::Make {
                inode: ROOT,
                kind: InodeKind::Directory,
                home: journal_bytes / BLOCK_BYTES,
                device_number: 0,
                target: Vec::new(),
                attributes,
            };
            state.perform(make).map_err(|errno| OpenError::Damaged(errno.to_string()))?;
        }
        core.commit().map_err(|errno| OpenError::Device(DeviceError::Io(errno.to_string())))?;
        Ok(core)
    }

    /// Opens a file system that [`DirectoryCore::format`] created. Waits for the device.
    ///
    /// # Errors
    /// When the device fails, or its contents are damaged or something else.
    pub fn open(device: Arc<dyn BlockDevice>) -> Result<Arc<DirectoryCore>, OpenError> {
        let journal_bytes = check_geometry(&*device)?;
        let is_header = |offset_bytes| -> Result<bool, OpenError> {
            let buffer = vec![0; BLOCK_BYTES as usize];
            let block = device.execute(DeviceRequest::Read { offset_bytes, buffer })?;
            Ok(AreaHeader::decode(&block) != HeaderBlock::Foreign)
        };
        if !is_header(0)? && !is_header(journal_bytes / 2)? {
            return Err(OpenError::NothingThere);
        }
        let core = DirectoryCore::load(device, journal_bytes)?;
        if core.state().tree.get(ROOT).is_none() {
            return Err(OpenError::NothingThere);
        }
        Ok(core)
    }

    fn load(device: Arc<dyn BlockDevice>, journal_bytes: u64) -> Result<Arc<DirectoryCore>, OpenError> {
        let capacity_bytes = device.geometry().capacity_bytes;
        let (journal, recovered) = Journal::open(Arc::clone(&device), 0..journal_bytes, JOURNAL_KIND)?;
        let damaged = |error: &dyn std::fmt::Display| OpenError::Damaged(error.to_string());
        let records = std::iter::once(&recovered.snapshot).chain(&recovered.records);
        let tree = replay(records.map(Vec::as_slice))?;
        // The journal does not say which blocks are in use: the tree does.
        let mut allocator = BlockAllocator::new(journal_bytes / BLOCK_BYTES..capacity_bytes / BLOCK_BYTES);
        for (_, inode) in tree.inodes() {
            if inode.kind == InodeKind::Directory {
                allocator.settle(inode.home);
            }
            for segment in inode.extents.iter() {
                let start = segment.place.device().unwrap_or(0);
                // It fails if another file already has a block, or if the journal is there.
                allocator.take(BlockRun { start, count: segment.count }).map_err(|error| damaged(&error))?;
            }
        }
        let mut state = CoreState {
            tree,
            allocator,
            volatile: HashMap::new(),
            transaction: CoreTransaction::new(1),
            sealed_runs: Vec::new(),
            sealed_number: 0,
            durable_number: 0,
            discarding_blocks: 0,
            written: 0,
            flushed: 0,
            unflushed: Vec::new(),
            failures: 0,
            begins_anew: false,
        };
        state.remove_orphans().map_err(|errno| damaged(&errno))?;
        let (jobs, received) = channel();
        let core = Arc::new_cyclic(|itself| DirectoryCore {
            itself: Weak::clone(itself),
            device,
            journal,
            state: Mutex::new(state),
            ranges: Arc::default(),
            committing: Mutex::new(()),
            committed: Condvar::new(),
            jobs: Mutex::new(Some(jobs)),
            lost: AtomicBool::new(false),
            metadata_limit_bytes: metadata_bytes(capacity_bytes),
        });
        let weak = Arc::downgrade(&core);
        // Weak, since the core owns the journal.
        core.journal.set_source(move || match weak.upgrade() {
            Some(core) => core.snapshot(),
            None => JournalSnapshot::default(),
        });
        start_committing(&core, received).map_err(OpenError::Thread)?;
        Ok(core)
    }
}

impl CoreState {
    /// Removes files that were open without a name when the power failed.
    fn remove_orphans(&mut self) -> Result<(), Errno> {
        let is_orphan = |(number, inode): &(u64, &tree::Inode)| match inode.kind {
            InodeKind::Directory => *number != ROOT && inode.parent == *number,
            _ => inode.links == 0,
        };
        let orphans: Vec<u64> = self.tree.inodes().filter(is_orphan).map(|(number, _)| number).collect();
        orphans.into_iter().try_for_each(|inode| self.perform(TreeOperation::Remove { inode }))
    }
}

/// Builds the tree from these records, in order.
fn replay<'a>(records: impl Iterator<Item = &'a [u8]>) -> Result<InodeTree, OpenError> {
    let mut tree = InodeTree::default();
    for record in records {
        for operation in decode(record).map_err(|error| OpenError::Damaged(error.to_string()))? {
            tree.apply(&operation, &mut Vec::new()).map_err(|error| OpenError::Damaged(error.to_string()))?;
        }
    }
    Ok(tree)
}

/// Whether these bytes could be the records of a directory, to check them without a device.
///
/// # Errors
/// The damage.
pub fn check_records(records: &[&[u8]]) -> Result<(), OpenError> {
    replay(records.iter().copied()).map(|_| ())
}

fn check_geometry(device: &dyn BlockDevice) -> Result<u64, OpenError> {
    let geometry = device.geometry();
    if !BLOCK_BYTES.is_multiple_of(u64::from(geometry.block_bytes)) {
        return Err(OpenError::Blocks(geometry.block_bytes));
    }
    let journal_bytes = journal_bytes(geometry.capacity_bytes);
    if geometry.capacity_bytes < journal_bytes + 64 * BLOCK_BYTES {
        return Err(OpenError::TooSmall(geometry.capacity_bytes));
    }
    Ok(journal_bytes)
}
