//! The file that the metadata are in, as redb uses it.
//!
//! A full disk would end redb for good, so the room that is set aside is given up first. And when the file is closed it
//! is noted that every sync has succeeded: a process that opens it without that note can't believe what the kernel
//! remembers of it.

use std::io;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use redb::{BackendError, StorageBackend};
use underlay_files::{Access, Folder};

use crate::disk_room::{DiskRoom, is_out_of_room};

/// In the journal's folder: the metadata were closed, and nothing that was written to them is lost.
const CLOSED: &str = "closed";

/// How many are open in this process.
static OPEN: AtomicUsize = AtomicUsize::new(0);

/// Waits until each that was opened is closed, and says so in its note. Returns whether that is so.
pub(crate) fn wait_until_closed(limit: Duration) -> bool {
    let begun = Instant::now();
    while OPEN.load(Ordering::Acquire) > 0 {
        if begun.elapsed() > limit {
            return false;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    true
}

/// Where the metadata lie.
#[derive(Debug, Default)]
pub(crate) struct MetadataLocation {
    pub(crate) disk: Option<Arc<DiskRoom>>,
    /// The folder of the journal, which the note is in.
    pub(crate) journal: Option<Folder>,
}

impl MetadataLocation {
    /// Whether the last user of the file has closed it, and everything is on the disk.
    pub(super) fn are_closed(&self) -> bool {
        self.journal.as_ref().is_none_or(|journal| journal.has(CLOSED))
    }

    /// The same note, for a caller that has handed these on.
    ///
    /// # Errors
    /// When the folder can't be opened.
    pub(super) fn note(&self) -> io::Result<MetadataLocation> {
        let journal = self.journal.as_ref().map(|journal| Folder::open(journal.path())).transpose()?;
        Ok(MetadataLocation { disk: None, journal })
    }

    /// Before anything is written.
    ///
    /// # Errors
    /// When the note can't be taken away.
    pub(super) fn reopen(&self) -> io::Result<()> {
        self.journal.as_ref().map_or(Ok(()), |journal| journal.remove_if_there(CLOSED))
    }
}

/// See the module.
#[derive(Debug)]
pub(super) struct MetadataFile<B: StorageBackend> {
    inner: B,
    surroundings: MetadataLocation,
    /// Set once it is open, by the code that opened it: what could not be opened is not closed either.
    is_open: Arc<AtomicBool>,
    has_failed: AtomicBool,
    /// Whether something was written since the last sync.
    is_dirty: AtomicBool,
}

impl<B: StorageBackend> MetadataFile<B> {
    pub(super) fn new(inner: B, surroundings: MetadataLocation, is_open: Arc<AtomicBool>) -> MetadataFile<B> {
        OPEN.fetch_add(1, Ordering::AcqRel);
        let (has_failed, is_dirty) = (AtomicBool::new(false), AtomicBool::new(false));
        MetadataFile { inner, surroundings, is_open, has_failed, is_dirty }
    }

    /// Once more with the room that is set aside, where there was none.
    fn with_room(&self, work: impl Fn() -> io::Result<()>) -> io::Result<()> {
        self.is_dirty.store(true, Ordering::Release);
        let done = work();
        match (&done, &self.surroundings.disk) {
            (Err(error), Some(disk)) if is_out_of_room(error) && disk.give_up() => self.noted(work()),
            _ => self.noted(done),
        }
    }

    fn noted<T>(&self, done: io::Result<T>) -> io::Result<T> {
        if done.is_err() {
            self.has_failed.store(true, Ordering::Release);
        }
        done
    }

    fn note_closed(&self) {
        let is_sound = !self.has_failed.load(Ordering::Acquire) && !self.is_dirty.load(Ordering::Acquire);
        // It is closed once: behind that another process may have it open.
        if !self.is_open.swap(false, Ordering::AcqRel) || !is_sound {
            return;
        }
        let Some(journal) = &self.surroundings.journal else { return };
        // Without it the next start takes longer.
        if let Err(error) = journal.replace(CLOSED, Access::Private, b"") {
            tracing::debug!("cannot note that the metadata are closed: {error}");
        }
    }
}

impl<B: StorageBackend> Drop for MetadataFile<B> {
    fn drop(&mut self) {
        OPEN.fetch_sub(1, Ordering::AcqRel);
    }
}

impl<B: StorageBackend> StorageBackend for MetadataFile<B> {
    fn len(&self) -> io::Result<u64> {
        self.inner.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.inner.read(offset, out)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.with_room(|| self.inner.set_len(len))
    }

    /// Not once more: what a sync could not write is lost, and the next one would not say so.
    fn sync_data(&self) -> io::Result<()> {
        let is_written = self.is_dirty.swap(false, Ordering::AcqRel);
        let synced = self.noted(self.inner.sync_data());
        self.is_dirty.fetch_or(is_written && synced.is_err(), Ordering::AcqRel);
        synced
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.with_room(|| self.inner.write(offset, data))
    }

    fn close(&self) -> io::Result<()> {
        // As long as nobody else can open it.
        self.note_closed();
        self.inner.close()
    }

    fn try_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.inner.try_lock_range(start, end)
    }

    fn try_lock_shared_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.inner.try_lock_shared_range(start, end)
    }

    fn lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.inner.lock_range(start, end)
    }

    fn lock_shared_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.inner.lock_shared_range(start, end)
    }

    fn unlock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.inner.unlock_range(start, end)
    }

    fn query_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.inner.query_lock_range(start, end)
    }
}
