//! A file system on a block device, without FUSE and without a clock: names, extents, data and what is durable.
//!
//! The device begins with a journal (`underlay_storage::journal`) that holds the tree; the rest is data. The tree
//! is kept in memory as well. A change of the tree is one or more [`Operation`]s: applied at once, and added to the
//! running transaction, which [`Core::commit`] makes durable as one record.
//!
//! - **Data before names for it.** An extent is mapped when its data has been written, and a commit flushes the device
//!   before its record is written. So what is found after a power cut is never another file's old data.
//! - **Freed blocks wait.** They are discarded and used again only once the record that frees them is durable. Until
//!   then a power cut may bring their file back.
//! - **A failed flush or commit is reported by every file that it concerns** (`failures`), whoever asked
//!   for it.
//! - **Reading and writing** hold the range of blocks that they touch, so that blocks don't change hands under them.

mod allocator;
mod data;
mod extents;
mod failures;
mod names;
mod operation;
mod ranges;
mod space;
mod tree;

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;
use underlay_sync::planted::{Bug, is_planted};
use underlay_sync::{Condvar, Mutex, MutexGuard};
use underlay_sync::{Receiver, RecvTimeoutError, Sender, channel};

use rustix::io::Errno;
use underlay_storage::device::{BlockDevice, Completion, DeviceError, Request};
use underlay_storage::journal::format::{Header, HeaderBlock};
use underlay_storage::journal::{Journal, JournalError, Snapshot};

use allocator::Allocator;
pub use data::WriteOptions;
use extents::{ExtentMap, Run};
use failures::{Failure, Placed, errno};
pub use names::{Change, Entry, NewNode, RenameMode, Space, Stat};
pub use operation::{Attributes, Kind, Operation, Timestamp, Unreadable, decode};
use ranges::Ranges;
pub use space::Allocate;
pub use tree::ROOT;
use tree::Tree;

/// The unit of allocation, and of every request to the device.
pub const BLOCK_BYTES: u64 = 4096;

const JOURNAL_KIND: [u8; 8] = *b"ul-files";

/// The share of the device that metadata may take, within these bounds; the journal is four times as large.
const METADATA_SHARE: u64 = 256;
const MIN_METADATA_BYTES: u64 = 256 << 10;
const MAX_METADATA_BYTES: u64 = 128 << 20;

/// A transaction of this size is committed without being asked for; at twice the size changes have to wait.
const FULL_TRANSACTION_BYTES: usize = 512 << 10;

/// How long a change may stay in memory, as with ext4.
const COMMIT_INTERVAL: Duration = Duration::from_secs(5);

pub type Done<T> = Box<dyn FnOnce(Result<T, Errno>) + Send>;

type Outcome = Result<(), Errno>;

#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error(transparent)]
    Device(#[from] DeviceError),
    #[error(transparent)]
    Journal(#[from] JournalError),
    #[error("it holds no files of this kind: it was never made, or something else was written there")]
    NothingThere,
    #[error("{0}: the disk's content is damaged; make it anew")]
    Damaged(String),
    #[error("a volume of {0} bytes is too small for a directory: make it 4 MiB or larger")]
    TooSmall(u64),
    #[error("the device has blocks of {0} bytes; a directory needs blocks that divide {BLOCK_BYTES}")]
    Blocks(u32),
    #[error("the thread that commits can't be started: {0}")]
    Thread(std::io::Error),
}

/// A mounted file system. Its methods never wait for the device unless they say so.
pub struct Core {
    itself: Weak<Core>,
    device: Arc<dyn BlockDevice>,
    journal: Journal,
    state: Mutex<State>,
    ranges: Arc<Ranges>,
    /// Held by the one commit that is under way.
    committing: Mutex<()>,
    /// Signalled when a commit or a discard is over.
    committed: Condvar,
    jobs: Mutex<Option<Sender<Job>>>,
    /// The device was gone for a time: what is in memory may speak of data that was lost.
    lost: AtomicBool,
    metadata_limit_bytes: u64,
}

enum Job {
    Commit(Done<()>),
    /// Commit, and then go on with what had found no space.
    Reclaim(Box<dyn FnOnce() + Send>),
    Stop(Sender<()>),
}

struct State {
    tree: Tree,
    allocator: Allocator,
    /// What is known of an inode only while it is in use.
    volatile: HashMap<u64, Volatile>,
    transaction: Transaction,
    /// Freed by transactions that were given to the journal and may not be durable.
    sealed_runs: Vec<Run>,
    sealed_number: u64,
    /// The last transaction that is durable.
    durable_number: u64,
    /// Blocks whose discard is under way: free soon.
    discarding_blocks: u64,
    /// Writes of data that the device has answered, counted.
    written: u64,
    /// How many of them a flush has covered.
    flushed: u64,
    /// Where the others have put what had no place before.
    unflushed: Vec<Placed>,
    /// Flushes and commits that have failed.
    failures: u64,
    /// A sealed transaction calls something written that a failed flush may have lost. It must not become durable before the one
    /// that takes that back, so the journal begins anew with both.
    begins_anew: bool,
}

#[derive(Default)]
struct Volatile {
    opens: u32,
    /// The kernel's lookup count of this inode: lookups less forgets.
    lookups: u64,
    /// File blocks that have a place on the device, should they be written: so that a file that grows stays in one piece.
    reserved: ExtentMap,
    /// Where the last allocation ended, in the file and on the device.
    hint: Option<(u64, u64)>,
    /// Behind the file's end its last block is known to hold zeros.
    tail_clean: bool,
    changed_in: u64,
    data_changed_in: u64,
    /// The count of its last write of data.
    written: u64,
    /// What may not be durable, though nobody was told.
    failure: Option<Failure>,
    removing: bool,
}

struct Transaction {
    number: u64,
    operations: Vec<u8>,
    /// Inodes whose attributes are to be written.
    changed: BTreeSet<u64>,
    freed: Vec<Run>,
}

impl Transaction {
    fn new(number: u64) -> Transaction {
        Transaction { number, operations: Vec::new(), changed: BTreeSet::new(), freed: Vec::new() }
    }

    fn is_empty(&self) -> bool {
        self.operations.is_empty() && self.changed.is_empty()
    }
}

/// The journal's length on a device of this capacity.
fn journal_bytes(capacity_bytes: u64) -> u64 {
    let metadata_bytes = metadata_bytes(capacity_bytes);
    Journal::range_bytes(metadata_bytes, metadata_bytes).next_multiple_of(2 * BLOCK_BYTES)
}

fn metadata_bytes(capacity_bytes: u64) -> u64 {
    (capacity_bytes / METADATA_SHARE).clamp(MIN_METADATA_BYTES, MAX_METADATA_BYTES)
}

fn now() -> Timestamp {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    Timestamp { s: since.as_secs() as i64, ns: since.subsec_nanos() }
}

/// Whether a volume that begins so holds a directory of ours, which no kernel knows.
pub fn is_beginning(block: &[u8]) -> bool {
    matches!(Header::decode(block), HeaderBlock::Valid(header) if header.kind == JOURNAL_KIND)
}

impl Core {
    /// Makes an empty file system, whose root belongs to `owner` (user and group). Waits for the device.
    pub fn format(device: Arc<dyn BlockDevice>, owner: (u32, u32)) -> Result<Arc<Core>, OpenError> {
        let journal_bytes = check_geometry(&*device)?;
        // Nothing else is written or discarded: a device that is used up stays so. What lies there is never shown.
        // Where the two headers of the journal lie: without them `load` finds no old tree.
        for offset_bytes in [0, journal_bytes / 2] {
            let data = vec![0; BLOCK_BYTES as usize];
            device.execute(Request::Write { offset_bytes, data, fua: true })?;
        }
        let core = Core::load(device, journal_bytes)?;
        {
            let mut state = core.state();
            let time = now();
            let attributes = Attributes {
                mode: 0o755,
                uid: owner.0,
                gid: owner.1,
                size: 0,
                atime: time,
                mtime: time,
                ctime: time,
            };
            let make = Operation::Make {
                inode: ROOT,
                kind: Kind::Directory,
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

    /// Opens what [`Core::format`] made. Waits for the device.
    pub fn open(device: Arc<dyn BlockDevice>) -> Result<Arc<Core>, OpenError> {
        let journal_bytes = check_geometry(&*device)?;
        let is_header = |offset_bytes| -> Result<bool, OpenError> {
            let buffer = vec![0; BLOCK_BYTES as usize];
            let block = device.execute(Request::Read { offset_bytes, buffer })?;
            Ok(Header::decode(&block) != HeaderBlock::Foreign)
        };
        if !is_header(0)? && !is_header(journal_bytes / 2)? {
            return Err(OpenError::NothingThere);
        }
        let core = Core::load(device, journal_bytes)?;
        if core.state().tree.get(ROOT).is_none() {
            return Err(OpenError::NothingThere);
        }
        Ok(core)
    }

    fn load(device: Arc<dyn BlockDevice>, journal_bytes: u64) -> Result<Arc<Core>, OpenError> {
        let capacity_bytes = device.geometry().capacity_bytes;
        let (journal, recovered) = Journal::open(Arc::clone(&device), 0..journal_bytes, JOURNAL_KIND)?;
        let damaged = |error: &dyn std::fmt::Display| OpenError::Damaged(error.to_string());
        let records = std::iter::once(&recovered.snapshot).chain(&recovered.records);
        let tree = replay(records.map(Vec::as_slice))?;
        let mut allocator = Allocator::new(journal_bytes / BLOCK_BYTES..capacity_bytes / BLOCK_BYTES);
        for (_, inode) in tree.inodes() {
            if inode.kind == Kind::Directory {
                allocator.settle(inode.home);
            }
            for segment in inode.extents.iter() {
                let start = segment.place.device().unwrap_or(0);
                allocator.take(Run { start, count: segment.count }).map_err(|error| damaged(&error))?;
            }
        }
        let mut state = State {
            tree,
            allocator,
            volatile: HashMap::new(),
            transaction: Transaction::new(1),
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
        let core = Arc::new_cyclic(|itself| Core {
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
        core.journal.set_source(move || match weak.upgrade() {
            Some(core) => core.snapshot(),
            None => Snapshot::default(),
        });
        let weak = Arc::downgrade(&core);
        underlay_sync::thread::Builder::new()
            .name("directory-commit".into())
            .spawn(move || work(&weak, &received))
            .map_err(OpenError::Thread)?;
        Ok(core)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // A panic ends the daemon; in a test the one that panicked tells.
        self.state.lock()
    }

    /// What the journal begins anew with: everything, the running transaction included.
    fn snapshot(&self) -> Snapshot {
        let mut state = self.state();
        state.seal(&self.journal);
        Snapshot { state: state.tree.snapshot(), covers: self.journal.appended() }
    }

    /// Makes every change durable that was made before. Waits for the device.
    pub fn commit(&self) -> Result<(), Errno> {
        let _one = self.committing.lock();
        self.check_alive()?;
        let (nothing_new, begins_anew) = {
            let mut state = self.state();
            state.seal(&self.journal);
            (state.sealed_number == state.durable_number, std::mem::take(&mut state.begins_anew))
        };
        // Flush the data that the records describe. Only this function has the journal write, so no record
        // overtakes it.
        let covers = self.state().covers();
        let flushed = match is_planted(Bug::NamesBeforeData) {
            true => Ok(()),
            false => self.device.execute(Request::Flush).map(drop),
        };
        let outcome = self.flush_ended(covers, flushed).and_then(|()| match nothing_new {
            true => Ok(()),
            // A checkpoint flushes as well.
            false => match begins_anew {
                true => self.journal.checkpoint_and_wait(),
                false => self.journal.commit_and_wait(),
            }
            .inspect_err(|error| self.state().note_failure(errno(error))),
        });
        if outcome.is_err() {
            self.state().begins_anew |= begins_anew;
        } else {
            let runs = {
                let mut state = self.state();
                state.durable_number = state.sealed_number;
                let runs = merged(std::mem::take(&mut state.sealed_runs));
                state.discarding_blocks += runs.iter().map(|run| run.count).sum::<u64>();
                runs
            };
            runs.into_iter().for_each(|run| self.discard(run));
        }
        self.committed.notify_all();
        outcome.map_err(|error| self.errno(&error))
    }

    /// From now on everything is answered by an error, until the file system is opened again: for a device
    /// whose power was cut, of which a journal knows better what is there than the memory does.
    pub fn abandon(&self) {
        if !self.lost.swap(true, Ordering::SeqCst) {
            tracing::error!(
                "the device was gone: its directory answers with errors until it is attached anew"
            );
        }
        self.committed.notify_all();
    }

    fn check_alive(&self) -> Result<(), Errno> {
        if self.lost.load(Ordering::SeqCst) { Err(Errno::IO) } else { Ok(()) }
    }

    /// As [`errno()`], and takes note of a device that is gone.
    fn errno(&self, error: &DeviceError) -> Errno {
        if *error == DeviceError::Gone {
            self.abandon();
        }
        errno(error)
    }

    /// Gives blocks back to the device, and then to the allocator.
    fn discard(&self, run: Run) {
        let request =
            Request::Discard { offset_bytes: run.start * BLOCK_BYTES, length_bytes: run.count * BLOCK_BYTES };
        // Weak: a request under way must not keep the file system alive after its last user is gone.
        let core = Weak::clone(&self.itself);
        let discarded = move |_| {
            let Some(core) = core.upgrade() else { return };
            let mut state = core.state();
            state.discarding_blocks -= run.count;
            if let Err(overlap) = state.allocator.release(run) {
                // Better lost than given to two files.
                tracing::error!("not used again: {overlap}");
            }
            drop(state);
            core.committed.notify_all();
        };
        // A device that can't discard still has the blocks.
        self.device.submit(request, Box::new(discarded));
    }

    /// Waits until the device has taken back what it was given.
    fn wait_for_discards(&self) {
        let mut state = self.state();
        while state.discarding_blocks > 0 && self.check_alive().is_ok() {
            state = self.committed.wait_timeout(state, Duration::from_secs(1));
        }
    }

    /// [`Core::commit`] on the thread that is there for it; those who ask at the same time share one.
    pub fn commit_later(&self, done: Done<()>) {
        self.send(Job::Commit(done));
    }

    fn send(&self, job: Job) {
        let jobs = self.jobs.lock().clone();
        match (jobs, job) {
            (Some(jobs), job) => {
                // The thread lives as long as this value does.
                let _ = jobs.send(job);
            }
            (None, Job::Commit(done)) => done(Err(Errno::IO)),
            (None, Job::Reclaim(then)) => then(),
            (None, Job::Stop(_)) => {}
        }
    }

    /// Makes a file durable, or with `data_only` what is needed to read it: fsync(2) and fdatasync(2).
    pub fn sync(&self, inode: u64, data_only: bool, done: Done<()>) {
        let (is_durable, covers) = {
            let state = self.state();
            let is_durable = state.volatile.get(&inode).is_none_or(|volatile| {
                let changed = if data_only { volatile.data_changed_in } else { volatile.changed_in };
                changed <= state.durable_number
            });
            (is_durable, state.covers())
        };
        let weak = Weak::clone(&self.itself);
        if !is_durable {
            return self.commit_later(Box::new(move |outcome| match weak.upgrade() {
                Some(core) => done(core.with_failure(inode, outcome)),
                None => done(outcome),
            }));
        }
        if let Err(error) = self.check_alive() {
            return done(Err(error));
        }
        let flushed = move |completion: Completion| {
            let Some(core) = weak.upgrade() else { return done(Err(Errno::IO)) };
            let outcome = core.flush_ended(covers, completion.map(drop));
            done(core.with_failure(inode, outcome.map_err(|error| core.errno(&error))));
        };
        self.device.submit(Request::Flush, Box::new(flushed));
    }

    /// Waits while the transaction is so large that the device must catch up. Not for a thread that completes requests.
    ///
    /// # Errors
    /// When the device is gone.
    pub fn throttle(&self) -> Result<(), Errno> {
        let mut state = self.state();
        if state.transaction.operations.len() > FULL_TRANSACTION_BYTES {
            self.commit_later(Box::new(|_| {}));
        }
        let limit = Duration::from_secs(1);
        while state.transaction.operations.len() > 2 * FULL_TRANSACTION_BYTES && self.check_alive().is_ok() {
            state = self.committed.wait_timeout(state, limit);
        }
        self.check_alive()
    }

    /// Makes everything durable and ends. Waits for the device.
    pub fn close(&self) -> Result<(), Errno> {
        let jobs = self.jobs.lock().take();
        if let Some(jobs) = jobs {
            let (stopped, wait) = channel();
            if jobs.send(Job::Stop(stopped)).is_ok() {
                let _ = wait.recv();
            }
        }
        self.commit()
    }
}

impl State {
    /// Changes the tree, and notes how.
    fn perform(&mut self, operation: Operation) -> Result<(), Errno> {
        self.tree.apply(&operation, &mut self.transaction.freed).map_err(|contradiction| {
            tracing::error!("refused: {contradiction}");
            Errno::IO
        })?;
        operation.encode(&mut self.transaction.operations);
        Ok(())
    }

    /// The inode's attributes are to be written with the transaction; `data` if its data can't be read without them.
    fn changed(&mut self, inode: u64, data: bool) {
        let number = self.transaction.number;
        self.transaction.changed.insert(inode);
        let volatile = self.volatile.entry(inode).or_default();
        volatile.changed_in = number;
        if data {
            volatile.data_changed_in = number;
        }
    }

    /// Gives the running transaction to the journal and begins the next one.
    fn seal(&mut self, journal: &Journal) {
        if self.transaction.is_empty() {
            return;
        }
        let next = Transaction::new(self.transaction.number + 1);
        let Transaction { number, mut operations, changed, mut freed } =
            std::mem::replace(&mut self.transaction, next);
        for inode in changed {
            if let Some(found) = self.tree.get(inode) {
                Operation::SetAttributes { inode, attributes: found.attributes }.encode(&mut operations);
            }
        }
        self.sealed_runs.append(&mut freed);
        self.sealed_number = number;
        journal.append(operations);
    }

    /// Files that were open without a name when the power went.
    fn remove_orphans(&mut self) -> Result<(), Errno> {
        let is_orphan = |(number, inode): &(u64, &tree::Inode)| match inode.kind {
            Kind::Directory => *number != ROOT && inode.parent == *number,
            _ => inode.links == 0,
        };
        let orphans: Vec<u64> = self.tree.inodes().filter(is_orphan).map(|(number, _)| number).collect();
        orphans.into_iter().try_for_each(|inode| self.perform(Operation::Remove { inode }))
    }
}

/// The tree that these records make, in their order.
fn replay<'a>(records: impl Iterator<Item = &'a [u8]>) -> Result<Tree, OpenError> {
    let mut tree = Tree::default();
    for record in records {
        for operation in decode(record).map_err(|error| OpenError::Damaged(error.to_string()))? {
            tree.apply(&operation, &mut Vec::new()).map_err(|error| OpenError::Damaged(error.to_string()))?;
        }
    }
    Ok(tree)
}

/// Whether these bytes could be the records of a directory: for looking at them without a device.
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

fn merged(mut runs: Vec<Run>) -> Vec<Run> {
    runs.sort_unstable();
    let mut merged: Vec<Run> = Vec::new();
    for run in runs {
        match merged.last_mut() {
            Some(last) if last.end() == run.start => last.count += run.count,
            _ => merged.push(run),
        }
    }
    merged
}

/// The thread that commits: when asked, and now and then.
fn work(core: &Weak<Core>, jobs: &Receiver<Job>) {
    loop {
        let first = match jobs.recv_timeout(COMMIT_INTERVAL) {
            Ok(job) => Some(job),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => return,
        };
        let Some(core) = core.upgrade() else { return };
        let waiting: Vec<Job> = first.into_iter().chain(jobs.try_iter()).collect();
        if waiting.is_empty() && core.state().transaction.is_empty() {
            continue;
        }
        let outcome = core.commit();
        for job in waiting {
            match job {
                Job::Commit(done) => done(outcome),
                Job::Reclaim(then) => {
                    core.wait_for_discards();
                    then();
                }
                Job::Stop(stopped) => {
                    let _ = stopped.send(());
                    return;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
