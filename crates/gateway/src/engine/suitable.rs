//! Whether a directory can be a store at all: it tells all names apart, and has nothing of the gateway's own in it.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::{CACHE, GatewayEngine, JOURNAL};
use crate::disk_room::is_out_of_room;
use crate::store::{DirectoryIdentity, StoreBackend};

/// One that hangs is not waited for: it counts as not mounted soon.
const CHECK_TIMEOUT: Duration = Duration::from_secs(30);

/// Which directory a path leads to.
fn identity_of(path: &Path) -> io::Result<DirectoryIdentity> {
    use std::os::unix::fs::MetadataExt as _;
    let found = std::fs::metadata(path)?;
    Ok((found.dev(), found.ino()))
}

/// Of a directory and all those above it.
fn identities_from(path: &Path) -> io::Result<Vec<DirectoryIdentity>> {
    std::fs::canonicalize(path)?.ancestors().map(identity_of).collect()
}

/// Whether one lies in the other under any name: links and bind mounts give a directory several.
///
/// # Errors
/// When that can't be found out.
fn are_nested(own: &Path, store: &Path) -> io::Result<bool> {
    let parts = [own.to_owned(), own.join(JOURNAL), own.join(CACHE)];
    let own_parts: Vec<DirectoryIdentity> = parts.iter().filter_map(|part| identity_of(part).ok()).collect();
    let is_in_own = identities_from(store)?.iter().any(|above| own_parts.contains(above));
    Ok(is_in_own || identities_from(own)?.contains(&identity_of(store)?))
}

/// Whether a directory is to become a store, or is one already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StoreAge {
    New,
    Former,
}

impl StoreAge {
    /// Whether names need not be told apart where they can't be tried. One that can't be written to has no two objects
    /// for one. A store that is full is one all the same: its objects have to be read.
    fn may_skip_trial(self, error: &io::Error) -> bool {
        let is_for_good =
            matches!(error.kind(), io::ErrorKind::ReadOnlyFilesystem | io::ErrorKind::PermissionDenied);
        is_for_good || (self == StoreAge::Former && is_out_of_room(error))
    }
}

/// Why a directory is not used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum StoreProblem {
    /// It can't be a store.
    Unsuitable(String),
    /// Nobody could find out.
    Untried(String),
}

impl StoreProblem {
    /// With what to do.
    pub(super) fn into_text(self) -> String {
        match self {
            StoreProblem::Unsuitable(text) | StoreProblem::Untried(text) => text,
        }
    }

    fn with_bucket(self, bucket: &str) -> StoreProblem {
        let name = |text: String| format!("the store of bucket {bucket}: {text}");
        match self {
            StoreProblem::Unsuitable(text) => StoreProblem::Unsuitable(name(text)),
            StoreProblem::Untried(text) => StoreProblem::Untried(name(text)),
        }
    }
}

/// Blocks.
fn look(own: &Path, store: &Path, backend: &StoreBackend, age: StoreAge) -> Result<(), StoreProblem> {
    let unsuitable = |reason: &str, what_to_do: &str| {
        let text = format!("{} can't be a store: {reason}\n  what to do: {what_to_do}", store.display());
        Err(StoreProblem::Unsuitable(text))
    };
    match are_nested(own, store) {
        Ok(false) => {}
        Ok(true) => {
            return unsuitable(
                "it and the gateway's own directory lie in each other",
                "name another directory in [local], or another store",
            );
        }
        Err(error) => tracing::debug!("{}: cannot tell where it lies: {error}", store.display()),
    }
    match backend.find_alias_reason() {
        Ok(None) => Ok(()),
        Ok(Some(reason)) => unsuitable(
            &format!("its file system {reason}, so two keys would be one object"),
            "move the objects to a directory that tells all names apart (ext4 without casefold, XFS, or a share that is mounted so), and name that one. An earlier version of the gateway can still store what it has not stored yet",
        ),
        Err(error) if age.may_skip_trial(&error) => {
            tracing::warn!("{}: cannot try whether it tells all names apart: {error}", store.display());
            Ok(())
        }
        Err(error) => Err(StoreProblem::Untried(format!(
            "{}: nobody can try whether it tells all names apart: {error}\n  what to do: see to it that files can be made there",
            store.display()
        ))),
    }
}

impl GatewayEngine {
    /// # Errors
    /// When the store of a bucket is a directory that can't be one, with what to do.
    pub(super) async fn check_suitable(
        &self,
        bucket: &str,
        backend: &StoreBackend,
        age: StoreAge,
    ) -> Result<(), StoreProblem> {
        let Some((root, _)) = backend.root() else { return Ok(()) };
        let (own, store, backend) = (self.setup.local.directory.clone(), root.to_owned(), backend.clone());
        let looked = crate::blocking::spawn_blocking({
            let store: PathBuf = store.clone();
            move || look(&own, &store, &backend, age)
        });
        match tokio::time::timeout(CHECK_TIMEOUT, looked).await {
            Ok(outcome) => outcome
                .unwrap_or_else(|error| Err(StoreProblem::Untried(error.to_string())))
                .map_err(|problem| problem.with_bucket(bucket)),
            Err(_) if age == StoreAge::New => Err(StoreProblem::Untried(format!(
                "{} does not say whether it tells all names apart\n  what to do: see whether it answers, and try again",
                store.display()
            ))),
            Err(_) => {
                tracing::warn!("{} does not say whether it tells all names apart", store.display());
                Ok(())
            }
        }
    }

    /// The same of all that are there at the start. One that can't be tried is away until it can: other buckets are
    /// served meanwhile.
    ///
    /// # Errors
    /// When one can't be a store.
    pub(super) async fn check_all_suitable(&self) -> Result<(), String> {
        for state in self.bucket_states().iter().filter(|state| !state.backend.is_away()) {
            match self.check_suitable(&state.name, &state.backend, StoreAge::Former).await {
                Ok(()) => {}
                Err(StoreProblem::Unsuitable(text)) => return Err(text),
                Err(StoreProblem::Untried(text)) => {
                    tracing::warn!("nothing of bucket {} is stored or read for now: {text}", state.name);
                    state.backend.await_another();
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use rustix::io::Errno;

    use super::*;
    use crate::store::{BackendKind, NameDirectory};

    /// A directory in which no file can be made.
    struct Failing(Errno);

    impl NameDirectory for Failing {
        fn make(&mut self, _name: &str) -> io::Result<()> {
            Err(self.0.into())
        }

        fn names(&mut self) -> io::Result<Vec<std::ffi::OsString>> {
            Err(self.0.into())
        }
    }

    #[test]
    fn directory_whose_names_cannot_be_tried_is_refused() {
        let (own, root) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let is_taken = |errno, age| {
            let store = Arc::new(object_store::memory::InMemory::new());
            let backend = StoreBackend::new(store, BackendKind::Directory).with_root(root.path()).unwrap();
            let backend = backend.trying_names_in(Arc::new(move || Box::new(Failing(errno))));
            look(own.path(), root.path(), &backend, age).is_ok()
        };
        use StoreAge::{Former, New};
        for errno in [Errno::MFILE, Errno::NFILE, Errno::IO, Errno::STALE, Errno::NOMEM] {
            assert!(!is_taken(errno, New) && !is_taken(errno, Former), "{errno}");
        }
        assert!(!is_taken(Errno::NOSPC, New) && is_taken(Errno::NOSPC, Former));
        assert!(is_taken(Errno::ROFS, New) && is_taken(Errno::ROFS, Former));
    }

    #[test]
    fn directories_within_each_other_are_known_by_whatever_name() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        for name in ["own/journal/deep", "own/cache", "beside"] {
            std::fs::create_dir_all(path(name)).unwrap();
        }
        for (link, to) in [("to-own", "own"), ("to-journal", "own/journal"), ("to-all", ".")] {
            std::os::unix::fs::symlink(path(to), path(link)).unwrap();
        }
        let nested =
            ["own", "own/journal", "own/journal/deep", "to-own", "to-own/cache", "to-journal", "to-all", "."];
        for store in nested {
            assert!(are_nested(&path("own"), &path(store)).unwrap(), "{store}");
            assert!(are_nested(&path("to-own"), &path(store)).unwrap(), "{store}");
        }
        assert!(!are_nested(&path("own"), &path("beside")).unwrap());
        assert!(are_nested(&path("own"), &path("none")).is_err());
    }
}
