//! The directory that a store is. Where it was unmounted, its path leads to the empty one below; so before and behind each request it is
//! looked whether the path still names what was opened.

use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::errors::{Error, Result};

/// What tells one directory from another: device and inode.
pub(crate) type Identity = (u64, u64);

/// See the module.
#[derive(Debug)]
pub(super) struct Root {
    path: PathBuf,
    identity: Identity,
    /// Held open, so that its inode is given to no other one, and that nobody unmounts it by mistake.
    _opened: File,
    is_away: AtomicBool,
    /// How often it has come back.
    returns: AtomicU64,
}

fn identity_of(found: &Metadata) -> Identity {
    (found.dev(), found.ino())
}

impl Root {
    pub(super) fn open(path: &Path) -> io::Result<Root> {
        let opened = File::open(path)?;
        let identity = identity_of(&opened.metadata()?);
        let (is_away, returns) = (AtomicBool::new(false), AtomicU64::new(0));
        Ok(Root { path: path.to_owned(), identity, _opened: opened, is_away, returns })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn identity(&self) -> Identity {
        self.identity
    }

    pub(super) fn is_away(&self) -> bool {
        self.is_away.load(Ordering::Relaxed)
    }

    pub(super) fn returns(&self) -> u64 {
        self.returns.load(Ordering::Relaxed)
    }

    /// Blocks.
    ///
    /// # Errors
    /// When the path names nothing, or another directory.
    pub(super) fn check(&self) -> Result<()> {
        let why = match std::fs::metadata(&self.path) {
            Ok(found) if identity_of(&found) == self.identity => {
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
                "{}: {why}; nothing is read from there or stored there before the one that was opened is back\n  what to do: mount it again; if another one is to take its place, start the gateway again",
                self.path.display()
            );
        }
        // Where the store is, is not for clients.
        Err(Error::Store(
            "the directory behind the bucket is not there, or is another one than was opened: is it mounted?"
                .to_owned(),
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_in_the_place_of_another_is_not_taken_for_it() {
        let directory = tempfile::tempdir().unwrap();
        let (path, away) = (directory.path().join("store"), directory.path().join("away"));
        std::fs::create_dir(&path).unwrap();
        let root = Root::open(&path).unwrap();
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
}
