//! The metadata store: one transactional file (redb) that says which objects there are and where their bytes lie.
//!
//! Callers change it by handing a closure to the one thread that commits ([`committer`]); many closures share one
//! commit. Readers see the last commit, without waiting.

mod change;
mod committer;
mod file;
mod latest;
mod tables;
mod view;

pub(crate) use change::{Holder, MetadataChange, PartContent, UploadCounts};
pub(crate) use committer::MetadataCommitter;
pub(crate) use file::{MetadataLocation, wait_until_closed};
pub(crate) use tables::{ObjectName, upload_key};
pub(crate) use view::MetadataView;

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt as _;
use std::panic::AssertUnwindSafe;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use redb::backends::FileBackend;
use redb::{Database, DatabaseError, StorageBackend};

use crate::errors::{GatewayError, GatewayResult};
use crate::from_disk::{DiskReadOutcome, OnDisk, make_sure};
use crate::journal::NotedEpoch;
use file::MetadataFile;
use latest::ViewedDatabase;

/// Of our tables; another one is refused.
const FORMAT: u64 = 2;
/// The same, of a local directory that is or was encrypted, or in a cluster.
pub(crate) const FORMAT_OF_MORE: u64 = 3;
/// The same, of one with parts of uploads that are or were kept in a store.
pub(crate) const FORMAT_OF_PARTS: u64 = 4;
pub(crate) const FORMAT_KEY: &[u8] = b"format";

/// How many commits there were.
const COMMITS_KEY: &[u8] = b"commits";

/// How far redb says that it is when it has found the last commit torn, and goes back to the one before.
const TAKES_BACK: Range<f64> = 0.2..0.5;

/// Of redb's mark at the beginning of the file.
const MARK_BYTES: usize = 9;

/// Name of the file in the local directory.
pub(crate) const FILE: &str = "metadata.redb";

/// For the fuzzer: any bytes as a key and as a record of each table.
pub(crate) fn read_any(data: &[u8]) {
    use crate::model::{
        BucketRecord, ContentRecord, ObjectRecord, PartRecord, PendingRecord, StoredRecord, UploadRecord,
    };
    if let Some(name) = ObjectName::from_bytes(data) {
        assert_eq!(name.to_bytes(), data);
    }
    let _ = tables::split_upload_key(data);
    let _ = (tables::decode::<ObjectRecord>(data), tables::decode::<ContentRecord>(data));
    let _ = (tables::decode::<BucketRecord>(data), tables::decode::<PendingRecord>(data));
    let _ = (tables::decode::<StoredRecord>(data), tables::decode::<UploadRecord>(data));
    let _ = (tables::decode::<PartRecord>(data), tables::decode::<u64>(data));
}

/// Whether a file of metadata was begun and never finished: the library writes its mark last, where there are zeros
/// before.
///
/// # Errors
/// When it can't be read.
pub(crate) fn is_unfinished(file: &File) -> io::Result<bool> {
    let mut mark = [0; MARK_BYTES];
    let length = file.metadata()?.len();
    match length < MARK_BYTES as u64 {
        true => Ok(length > 0),
        false => file.read_exact_at(&mut mark, 0).map(|()| mark == [0; MARK_BYTES]),
    }
}

fn cannot_open(path: &Path, error: &dyn std::fmt::Display) -> GatewayError {
    GatewayError::Local(format!(
        "cannot open the metadata in {}: {error}\n  what to do: bring back the whole local directory from a copy that was made while the gateway was stopped; if there is none, move it away and begin with an empty one. That loses what is in the journal, and what only the metadata have: tags, and headers where the store is a directory",
        path.display()
    ))
}

/// The last process that had the file open ended without closing it, perhaps because a sync failed.
fn read_from_disk(path: &Path) -> GatewayResult<()> {
    let seen = OnDisk::open(path).and_then(|mut file| make_sure(&mut file));
    match seen {
        Ok(DiskReadOutcome::Same) => Ok(()),
        Ok(DiskReadOutcome::Forgotten) => {
            tracing::debug!("the file system of {} can't bypass the kernel's page cache", path.display());
            Ok(())
        }
        Err(error) => Err(GatewayError::Local(format!(
            "cannot find out how much of {} is on the disk: {error}\n  what to do: see the kernel's log for errors of this disk; restart the machine, or as root run `echo 1 > /proc/sys/vm/drop_caches`, and start the gateway again",
            path.display()
        ))),
    }
}

/// The open file.
pub(crate) struct MetadataStore {
    database: Arc<ViewedDatabase>,
    /// Counts the openings: the upper bits of every number that is never given twice.
    pub(crate) epoch: u64,
    /// Whether the last user of the file had closed it: if not, the kernel may remember what the disk does not have.
    pub(crate) was_closed: bool,
}

impl MetadataStore {
    /// Opens the file with nothing around it.
    ///
    /// # Errors
    /// As [`open_in`](Self::open_in).
    #[cfg(test)]
    pub(crate) fn open(path: &Path, cache_bytes: usize, noted: NotedEpoch) -> GatewayResult<MetadataStore> {
        MetadataStore::open_in(MetadataLocation::default(), path, cache_bytes, noted)
    }

    /// Opens the file, or makes it, and looks at the checksum of each of its pages. Metadata that have not got as far
    /// as the journal beside it has `noted` are an older copy, which lacks later acknowledgements, or have lost a
    /// commit.
    ///
    /// # Errors
    /// When it can't be opened, is damaged, has not got so far, another version of the gateway made it, or nobody knows
    /// what the disk has of it.
    pub(crate) fn open_in(
        surroundings: MetadataLocation,
        path: &Path,
        cache_bytes: usize,
        noted: NotedEpoch,
    ) -> GatewayResult<MetadataStore> {
        let failed = |error: &dyn std::fmt::Display| cannot_open(path, error);
        let file = std::fs::OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path);
        let file = file.map_err(|error| failed(&error))?;
        let is_new = file.metadata().map_err(|error| failed(&error))?.len() == 0;
        let was_closed = surroundings.are_closed();
        if !is_new && !was_closed {
            read_from_disk(path)?;
        }
        surroundings.reopen().map_err(|error| failed(&error))?;
        let note = surroundings.note().map_err(|error| failed(&error))?;
        let file = FileBackend::new(file).map_err(|error| failed(&error))?;
        let opened = MetadataStore::open_over(file, surroundings, path, cache_bytes, noted);
        // A process that was closing it until now may have left that note, which says nothing about what follows.
        note.reopen().map_err(|error| failed(&error))?;
        opened.map(|metadata| MetadataStore { was_closed, ..metadata })
    }

    fn open_over(
        file: impl StorageBackend,
        surroundings: MetadataLocation,
        path: &Path,
        cache_bytes: usize,
        noted: NotedEpoch,
    ) -> GatewayResult<MetadataStore> {
        let failed = |error: &dyn std::fmt::Display| cannot_open(path, error);
        let is_open = Arc::new(AtomicBool::new(false));
        let file = MetadataFile::new(file, surroundings, Arc::clone(&is_open));
        let mut builder = Database::builder();
        builder.set_cache_size(cache_bytes).set_check_integrity_on_open(true);
        builder.set_repair_callback(|repair| {
            if TAKES_BACK.contains(&repair.progress()) {
                tracing::warn!("the last commit of the metadata is not whole, and is taken back");
            }
        });
        // It may stumble over what makes no sense before it has got to a checksum.
        let opened = std::panic::catch_unwind(AssertUnwindSafe(|| builder.create_with_backend(file)));
        let database = match opened {
            Ok(Ok(database)) => database,
            Ok(Err(DatabaseError::DatabaseAlreadyOpen)) => {
                return Err(GatewayError::Local(format!(
                    "{} is already open in another process: stop that one first",
                    path.display()
                )));
            }
            Ok(Err(error)) => return Err(failed(&error)),
            Err(_) => return Err(failed(&"they are damaged")),
        };
        is_open.store(true, Ordering::Release);
        let mut metadata =
            MetadataStore { database: Arc::new(ViewedDatabase::from(database)), epoch: 0, was_closed: true };
        let transaction = metadata.database.begin_write().map_err(|error| failed(&error))?;
        {
            let mut change = MetadataChange::begin(&transaction)?;
            match change.number(FORMAT_KEY)? {
                None => change.set_number(FORMAT_KEY, FORMAT)?,
                Some(FORMAT..=FORMAT_OF_PARTS) => {}
                Some(other) => {
                    return Err(GatewayError::Local(format!(
                        "{} has format {other}, and this gateway knows the formats {FORMAT} to {FORMAT_OF_PARTS}: use the version that made it",
                        path.display()
                    )));
                }
            }
            let former = change.number(b"epoch")?.unwrap_or(0);
            if former < noted.epoch {
                return Err(GatewayError::Local(format!(
                    "{} is older than the journal beside it: it was opened {former} times, and the journal {} times\n  what to do: bring back the newest metadata; if there are none, move the whole directory away and begin with an empty one, which loses what is in the journal, and what only the metadata have",
                    path.display(),
                    noted.epoch
                )));
            }
            let commits = change.number(COMMITS_KEY)?.unwrap_or(0);
            if commits < noted.commits {
                return Err(GatewayError::Local(format!(
                    "{} lacks {} acknowledged commits: it is an older copy, or the disk has altered its end\n  what to do: bring back the whole local directory from a copy that was made while the gateway was stopped; or, to go on without what was acknowledged last, remove the file `commits` beside the journal's segments",
                    path.display(),
                    noted.commits - commits
                )));
            }
            metadata.epoch = former + 1;
            change.set_number(b"epoch", metadata.epoch)?;
        }
        transaction.commit().map_err(|error| failed(&error))?;
        Ok(metadata)
    }

    /// The state after the last commit.
    pub(crate) fn view(&self) -> GatewayResult<Arc<MetadataView>> {
        self.database.view()
    }

    pub(crate) fn database(&self) -> Arc<ViewedDatabase> {
        Arc::clone(&self.database)
    }
}

#[cfg(test)]
mod tests;
