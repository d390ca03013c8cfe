//! The directory that a store is. Where it was unmounted, its path leads to the empty one below; so before and behind
//! each request it is looked whether the path still names what was opened.

use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tokio::sync::Semaphore;
use underlay_sync::Mutex;

use crate::errors::{GatewayError, GatewayResult};

/// The identity of a directory: device and inode.
pub(crate) type DirectoryIdentity = (u64, u64);

/// Looks at one directory at the same time. Each takes a thread, and where a mount hangs, for as long as it does.
const MAX_CONCURRENT_CHECKS: usize = 16;

#[derive(Debug)]
struct OpenedRoot {
    identity: DirectoryIdentity,
    /// Held open, so that its inode is given to no other one, and that nobody unmounts it by mistake.
    _file: File,
}

impl OpenedRoot {
    fn from_path(path: &Path) -> io::Result<OpenedRoot> {
        let file = File::open(path)?;
        Ok(OpenedRoot { identity: identity_of(&file.metadata()?), _file: file })
    }
}

/// See the module.
#[derive(Debug)]
pub(super) struct StoreRoot {
    path: PathBuf,
    opened: Mutex<OpenedRoot>,
    /// The opened directory is not the expected one, so all of it counts as away until another one [is
    /// accepted](Self::accept).
    is_awaited: AtomicBool,
    is_away: AtomicBool,
    /// Whether a look at it has not come back in time, and none has since.
    hangs: AtomicBool,
    pub(super) looks: Arc<Semaphore>,
    /// How many looks have come back.
    answers: AtomicU64,
    /// How often it has come back.
    returns: AtomicU64,
}

fn identity_of(found: &Metadata) -> DirectoryIdentity {
    (found.dev(), found.ino())
}

impl StoreRoot {
    pub(super) fn open(path: &Path) -> io::Result<StoreRoot> {
        Ok(StoreRoot {
            path: path.to_owned(),
            opened: Mutex::new(OpenedRoot::from_path(path)?),
            is_awaited: AtomicBool::new(false),
            is_away: AtomicBool::new(false),
            hangs: AtomicBool::new(false),
            looks: Arc::new(Semaphore::new(MAX_CONCURRENT_CHECKS)),
            answers: AtomicU64::new(0),
            returns: AtomicU64::new(0),
        })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn identity(&self) -> DirectoryIdentity {
        self.opened.lock().identity
    }

    pub(super) fn is_away(&self) -> bool {
        self.is_away.load(Ordering::Relaxed) || self.hangs()
    }

    pub(super) fn hangs(&self) -> bool {
        self.hangs.load(Ordering::Relaxed)
    }

    /// A look has not come back in time.
    pub(super) fn note_hanging(&self) {
        if !self.hangs.swap(true, Ordering::Relaxed) {
            tracing::warn!("{} does not answer: it counts as not mounted until it does", self.path.display());
        }
    }

    pub(super) fn answers(&self) -> u64 {
        self.answers.load(Ordering::Relaxed)
    }

    /// One has.
    pub(super) fn note_answer(&self) {
        self.answers.fetch_add(1, Ordering::Relaxed);
        if self.hangs.swap(false, Ordering::Relaxed) {
            self.returns.fetch_add(1, Ordering::Relaxed);
            tracing::info!("{} answers again", self.path.display());
        }
    }

    pub(super) fn is_awaited(&self) -> bool {
        self.is_awaited.load(Ordering::Relaxed)
    }

    /// The directory is not the expected one: it is away until [`accept`](Self::accept).
    pub(super) fn await_another(&self) {
        self.is_awaited.store(true, Ordering::Relaxed);
        self.is_away.store(true, Ordering::Relaxed);
    }

    /// The present directory is the awaited one, if it is this one. Blocks.
    ///
    /// # Errors
    /// When it is not, or can't be opened.
    pub(super) fn accept(&self, identity: DirectoryIdentity) -> io::Result<()> {
        let opened = OpenedRoot::from_path(&self.path)?;
        if opened.identity != identity {
            return Err(io::Error::other("it was exchanged again meanwhile"));
        }
        *self.opened.lock() = opened;
        self.is_awaited.store(false, Ordering::Relaxed);
        self.is_away.store(false, Ordering::Relaxed);
        self.returns.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    pub(super) fn returns(&self) -> u64 {
        self.returns.load(Ordering::Relaxed)
    }

    /// Blocks.
    ///
    /// # Errors
    /// When the path names nothing, or another directory.
    pub(super) fn check(&self) -> GatewayResult<()> {
        if self.is_awaited() {
            return Err(not_there());
        }
        let identity = self.identity();
        let reason = match std::fs::metadata(&self.path) {
            Ok(found) if identity_of(&found) == identity => {
                if self.is_away.swap(false, Ordering::Relaxed) {
                    self.returns.fetch_add(1, Ordering::Relaxed);
                    tracing::info!("{} is there again", self.path.display());
                }
                return Ok(());
            }
            Ok(_) => "it is another directory than the one that was opened".to_owned(),
            Err(error) => error.to_string(),
        };
        if !self.is_away.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                "{}: {reason}; nothing is read from there or stored there before the one that was opened is back\n  what to do: mount it again; if another one is to take its place, start the gateway again",
                self.path.display()
            );
        }
        Err(not_there())
    }
}

#[cfg(test)]
impl super::StoreBackend {
    /// As if a look had not come back in time.
    pub(crate) fn hang(&self) {
        self.root.iter().for_each(|root| root.note_hanging());
    }
}

/// Where the store is, is not for clients.
pub(super) fn not_there() -> GatewayError {
    GatewayError::StoreAway(
        "the directory behind the bucket is not there, or is another one than was opened: is it mounted?"
            .to_owned(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replacement_directory_is_not_accepted() {
        let directory = tempfile::tempdir().unwrap();
        let (path, away) = (directory.path().join("store"), directory.path().join("away"));
        std::fs::create_dir(&path).unwrap();
        let root = StoreRoot::open(&path).unwrap();
        assert!(root.check().is_ok() && !root.is_away());
        std::fs::rename(&path, &away).unwrap();
        assert!(root.check().is_err() && root.is_away());
        std::fs::create_dir(&path).unwrap();
        assert!(root.check().is_err() && root.is_away());
        std::fs::remove_dir(&path).unwrap();
        std::fs::rename(&away, &path).unwrap();
        assert!(root.check().is_ok() && root.check().is_ok() && !root.is_away());
        assert_eq!(root.returns(), 1);
        // An inode that was given back at once would be another directory under the same number.
        std::fs::remove_dir(&path).unwrap();
        std::fs::create_dir(&path).unwrap();
        assert!(root.check().is_err());
    }

    #[test]
    fn awaited_directory_is_away_until_accepted() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("store");
        std::fs::create_dir(&path).unwrap();
        let root = StoreRoot::open(&path).unwrap();
        let below = root.identity();
        root.await_another();
        assert!(root.check().is_err() && root.is_away());
        std::fs::rename(&path, directory.path().join("below")).unwrap();
        std::fs::create_dir(&path).unwrap();
        assert!(root.check().is_err() && root.accept(below).is_err() && root.is_away());
        root.accept(StoreRoot::open(&path).unwrap().identity()).unwrap();
        assert!(root.check().is_ok() && !root.is_away() && root.identity() != below);
        assert_eq!(root.returns(), 1);
    }
}
