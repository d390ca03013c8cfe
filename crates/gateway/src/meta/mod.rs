//! The metadata store: one transactional file (redb) that says which objects there are and where their bytes lie.
//!
//! Whoever changes it hands a closure to the one thread that commits ([`committer`]); many closures share one commit. Readers
//! see the last commit, without waiting.

mod change;
mod committer;
mod tables;
mod view;

pub(crate) use change::Change;
pub(crate) use committer::Committer;
pub(crate) use tables::{Name, upload_key};
pub(crate) use view::View;

use std::ops::Range;
use std::panic::AssertUnwindSafe;
use std::path::Path;
use std::sync::Arc;

use redb::{Database, DatabaseError};

use crate::errors::{Error, Result};
use crate::journal::Noted;

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

/// Name of the file in the local directory.
pub(crate) const FILE: &str = "metadata.redb";

/// For the fuzzer: any bytes as a key and as a record of each table.
pub(crate) fn read_any(data: &[u8]) {
    use crate::model::{
        BucketRecord, ContentRecord, ObjectRecord, PartRecord, PendingRecord, StoredRecord, UploadRecord,
    };
    if let Some(name) = Name::from_bytes(data) {
        assert_eq!(name.to_bytes(), data);
    }
    let _ = tables::split_upload_key(data);
    let _ = (tables::decode::<ObjectRecord>(data), tables::decode::<ContentRecord>(data));
    let _ = (tables::decode::<BucketRecord>(data), tables::decode::<PendingRecord>(data));
    let _ = (tables::decode::<StoredRecord>(data), tables::decode::<UploadRecord>(data));
    let _ = (tables::decode::<PartRecord>(data), tables::decode::<u64>(data));
}

/// The open file.
pub(crate) struct Metadata {
    database: Arc<Database>,
    /// Counts the openings: the upper bits of every number that is never given twice.
    pub(crate) epoch: u64,
}

impl Metadata {
    /// Opens the file, or makes it, and looks at the checksum of each of its pages. Metadata that have not got as far as the journal beside
    /// it has `noted` are an older copy, which knows nothing of what clients were told since, or have lost a commit.
    ///
    /// # Errors
    /// When it can't be opened, is damaged, has not got so far, or another version of the gateway made it.
    pub(crate) fn open(path: &Path, cache_bytes: usize, noted: Noted) -> Result<Metadata> {
        let failed = |error: &dyn std::fmt::Display| {
            Error::Local(format!(
                "cannot open the metadata in {}: {error}\n  what to do: bring back the whole local directory from a copy that was made while the gateway was stopped; if there is none, move it away and begin with an empty one, which loses what is in the journal, and what only the metadata have: tags, and headers where the store is a directory",
                path.display()
            ))
        };
        let mut builder = Database::builder();
        builder.set_cache_size(cache_bytes).set_check_integrity_on_open(true);
        builder.set_repair_callback(|repair| {
            if TAKES_BACK.contains(&repair.progress()) {
                tracing::warn!("the last commit of the metadata is not whole, and is taken back");
            }
        });
        // It may stumble over what makes no sense before it has got to a checksum.
        let opened = std::panic::catch_unwind(AssertUnwindSafe(|| builder.create(path)));
        let database = match opened {
            Ok(Ok(database)) => database,
            Ok(Err(DatabaseError::DatabaseAlreadyOpen)) => {
                return Err(Error::Local(format!(
                    "{} is already open in another process: stop that one first",
                    path.display()
                )));
            }
            Ok(Err(error)) => return Err(failed(&error)),
            Err(_) => return Err(failed(&"they are damaged")),
        };
        let mut metadata = Metadata { database: Arc::new(database), epoch: 0 };
        let transaction = metadata.database.begin_write().map_err(|error| failed(&error))?;
        {
            let mut change = Change::begin(&transaction)?;
            match change.number(FORMAT_KEY)? {
                None => change.set_number(FORMAT_KEY, FORMAT)?,
                Some(FORMAT..=FORMAT_OF_PARTS) => {}
                Some(other) => {
                    return Err(Error::Local(format!(
                        "{} has format {other}, and this gateway knows the formats {FORMAT} to {FORMAT_OF_PARTS}: use the version that made it",
                        path.display()
                    )));
                }
            }
            let former = change.number(b"epoch")?.unwrap_or(0);
            if former < noted.epoch {
                return Err(Error::Local(format!(
                    "{} is older than the journal beside it: it was opened {former} times, and the journal {} times\n  what to do: bring back the newest metadata; if there are none, move the whole directory away and begin with an empty one, which loses what is in the journal, and what only the metadata have",
                    path.display(),
                    noted.epoch
                )));
            }
            let commits = change.number(COMMITS_KEY)?.unwrap_or(0);
            if commits < noted.commits {
                return Err(Error::Local(format!(
                    "{} lacks {} commits that clients were told of: it is an older copy, or the disk has altered its end\n  what to do: bring back the whole local directory from a copy that was made while the gateway was stopped; or, to go on without what was acknowledged last, remove the file `commits` beside the journal's segments",
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

    /// What the last commit left.
    pub(crate) fn view(&self) -> Result<View> {
        View::of(&self.database)
    }

    pub(crate) fn database(&self) -> Arc<Database> {
        Arc::clone(&self.database)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_format_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join(FILE);
        let open = || Metadata::open(&path, 1 << 20, Noted::default());
        let format = |metadata: &Metadata| metadata.view().unwrap().number(FORMAT_KEY).unwrap();
        let set = |format: u64| {
            let metadata = open().unwrap();
            let transaction = metadata.database.begin_write().unwrap();
            Change::begin(&transaction).unwrap().set_number(FORMAT_KEY, format).unwrap();
            transaction.commit().unwrap();
        };
        assert_eq!(format(&open().unwrap()), Some(FORMAT));
        set(FORMAT_OF_MORE);
        assert_eq!(format(&open().unwrap()), Some(FORMAT_OF_MORE));
        set(FORMAT_OF_PARTS);
        assert_eq!(format(&open().unwrap()), Some(FORMAT_OF_PARTS));
        set(FORMAT_OF_PARTS + 1);
        let why = open().map(drop).unwrap_err().to_string();
        assert!(why.contains("has format 5"), "{why}");
    }
}
