//! The cache of fetched files: they are complete or absent, and fetched by one process at a time.

use std::fs::File;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use sha2::{Digest, Sha256};
use underlay_files::plain_file;

use super::locked::{self, LockedFile};
use super::{ArtifactError, ArtifactList};
use crate::system::{LoadProgress, SystemError};

/// Fetches the files of a list into the first directory, which is empty. The second is for its temporary files.
pub(super) type FileFetcher<'f> = dyn Fn(&ArtifactList, &[LockedFile], &Path, &Path, &dyn Fn(&LoadProgress)) -> Result<(), ArtifactError>
    + 'f;

/// The cache's directory; it need not exist.
pub(crate) fn root() -> Result<PathBuf, ArtifactError> {
    let from = |variable: &str| std::env::var_os(variable).filter(|value| !value.is_empty());
    if let Some(chosen) = from("UNDERLAY_CACHE") {
        return std::path::absolute(&chosen).map_err(ArtifactError::io("use", chosen));
    }
    // The XDG Base Directory Specification says that relative paths must be ignored.
    let base = from("XDG_CACHE_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
    let base = base.or_else(|| from("HOME").map(|home| Path::new(&home).join(".cache")));
    base.map(|base| base.join("underlay")).ok_or(ArtifactError::NoCache)
}

/// The place of one version of a list. If the list changes, so does its place.
pub(super) struct ArtifactDirectory<'a> {
    list: &'a ArtifactList,
    files: Vec<LockedFile>,
    folder: PathBuf,
    name: String,
}

impl<'a> ArtifactDirectory<'a> {
    pub(super) fn new(list: &'a ArtifactList, cache: &Path) -> Result<ArtifactDirectory<'a>, ArtifactError> {
        let digest = Sha256::digest(list.locked.as_bytes());
        let short = base16ct::lower::encode_string(&digest[..6]);
        let (files, name) = (list.files()?, format!("{}-{short}", list.name));
        Ok(ArtifactDirectory { list, files, folder: cache.join("artifacts"), name })
    }

    /// The directory with the files. `fetch` is called if they are missing or damaged.
    pub(super) fn obtain(
        &self,
        progress: &dyn Fn(&LoadProgress),
        fetch: &FileFetcher<'_>,
    ) -> Result<PathBuf, ArtifactError> {
        let directory = self.folder.join(&self.name);
        check(&self.folder)?;
        if locked::difference(&directory, &self.files).is_none() {
            return Ok(directory);
        }
        make(&self.folder)?;
        let _lock = self.lock(progress)?;
        // The previous holder of the lock may have fetched it.
        if locked::difference(&directory, &self.files).is_none() {
            return Ok(directory);
        }
        let staging = self.folder.join(format!("{}.partial", self.name));
        // Left by a process that was killed, or damaged since.
        for stale in [&staging, &directory] {
            remove(stale)?;
        }
        let outcome = self.fetch_into(&staging, &directory, progress, fetch);
        let removed = remove(&staging);
        outcome?;
        removed?;
        Ok(directory)
    }

    fn fetch_into(
        &self,
        staging: &Path,
        directory: &Path,
        progress: &dyn Fn(&LoadProgress),
        fetch: &FileFetcher<'_>,
    ) -> Result<(), ArtifactError> {
        let (files, work) = (staging.join("files"), staging.join("work"));
        for folder in [&files, &work] {
            std::fs::create_dir_all(folder).map_err(ArtifactError::io("make", folder))?;
        }
        fetch(self.list, &self.files, &files, &work, progress)?;
        if let Some(problem) = locked::difference(&files, &self.files) {
            return Err(ArtifactError::Different { list: self.list.name, problem });
        }
        // Sync before the rename: after a crash of the machine, the final name must not refer to incomplete files.
        for file in &self.files {
            let path = files.join(&file.name);
            File::open(&path)
                .and_then(|file| file.sync_all())
                .map_err(ArtifactError::io("write out", path))?;
        }
        std::fs::rename(&files, directory).map_err(ArtifactError::io("make", directory))
    }

    fn lock(&self, progress: &dyn Fn(&LoadProgress)) -> Result<File, ArtifactError> {
        let waiting = format!("waiting for another process to fetch {}", self.list.name);
        lock(&self.folder.join(format!("{}.lock", self.name)), &waiting, progress)
    }
}

/// Programs are run from here. Checks that, if this process is root, nobody else can replace them.
pub(crate) fn check(folder: &Path) -> Result<(), ArtifactError> {
    match underlay_files::check_trusted_path(folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(ArtifactError::io("use", folder)(error))
        }
        _ => Ok(()),
    }
}

fn make(folder: &Path) -> Result<(), ArtifactError> {
    underlay_files::Folder::make(folder, underlay_files::Access::Readable)
        .map(drop)
        .map_err(ArtifactError::io("make", folder))
}

/// Locks the file `path`, which is created if necessary, until the returned file is dropped or this process ends. If it
/// has to wait, it reports `waiting` as its progress.
pub(crate) fn lock(
    path: &Path,
    waiting: &str,
    progress: &dyn Fn(&LoadProgress),
) -> Result<File, ArtifactError> {
    let file = plain_file::for_writing().open(path);
    let file = file.map_err(ArtifactError::io("open", path))?;
    if flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
        progress(&LoadProgress { what: waiting.to_owned(), done_bytes: 0, total_bytes: 0 });
        loop {
            match flock(&file, FlockOperation::LockExclusive) {
                Ok(()) => break,
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(ArtifactError::io("lock", path)(error.into())),
            }
        }
    }
    Ok(file)
}

/// Makes sure that `folder` contains `name`. If it doesn't, `make_it` creates it, using a staging folder that is
/// removed afterwards, and renames it when it is complete. Of several processes only one does so, and reports `making`;
/// the others report `waiting`.
pub(crate) fn make_once(
    system: &'static str,
    folder: &Path,
    name: &str,
    [waiting, making]: [&str; 2],
    progress: &dyn Fn(&LoadProgress),
    make_it: impl FnOnce(&Path) -> Result<(), SystemError>,
) -> Result<(), SystemError> {
    let of_system = |error: ArtifactError| error.into_system_error(system);
    let made = folder.join(name);
    check(folder).map_err(of_system)?;
    if made.exists() {
        return Ok(());
    }
    make(folder).map_err(of_system)?;
    let stem = made.with_extension("");
    let _lock = lock(&stem.with_extension("lock"), waiting, progress).map_err(of_system)?;
    if made.exists() {
        return Ok(());
    }
    progress(&LoadProgress { what: making.to_owned(), done_bytes: 0, total_bytes: 0 });
    let staging = stem.with_extension("partial");
    remove(&staging).map_err(of_system)?;
    let outcome = make_it(&staging);
    let removed = remove(&staging).map_err(of_system);
    outcome.and(removed)
}

/// A short hash of these parts.
pub(crate) fn digest<'a>(parts: impl IntoIterator<Item = &'a str>) -> String {
    let mut digest = Sha256::new();
    for part in parts {
        // Prefixed with its length, so that different lists never hash the same bytes.
        digest.update((part.len() as u64).to_le_bytes());
        digest.update(part);
    }
    base16ct::lower::encode_string(&digest.finalize()[..6])
}

pub(crate) fn remove(directory: &Path) -> Result<(), ArtifactError> {
    match std::fs::remove_dir_all(directory) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(ArtifactError::io("remove", directory)(error))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    const LIST: ArtifactList = ArtifactList {
        name: "abc",
        pom: "",
        locked: "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad 3 abc.jar\n",
    };

    /// Obtains the list with a fetch that brings `content`, which takes a moment.
    fn obtain(cache: &Path, content: &str, fetches: &AtomicU32) -> Result<PathBuf, ArtifactError> {
        let fetch = |_: &ArtifactList,
                     files: &[LockedFile],
                     directory: &Path,
                     work: &Path,
                     _: &dyn Fn(&LoadProgress)| {
            fetches.fetch_add(1, Ordering::Relaxed);
            assert_eq!(std::fs::read_dir(directory).unwrap().count(), 0);
            std::fs::write(work.join("anything"), "").unwrap();
            std::thread::sleep(std::time::Duration::from_millis(20));
            std::fs::write(directory.join(&files[0].name), content).unwrap();
            Ok(())
        };
        ArtifactDirectory::new(&LIST, cache).unwrap().obtain(&|_| {}, &fetch)
    }

    #[test]
    fn artifact_is_fetched_once_and_again_when_damaged() {
        let (cache, fetches) = (tempfile::TempDir::new().unwrap(), AtomicU32::new(0));
        let directory = obtain(cache.path(), "abc", &fetches).unwrap();
        assert_eq!(std::fs::read_to_string(directory.join("abc.jar")).unwrap(), "abc");
        assert_eq!(obtain(cache.path(), "never", &fetches).unwrap(), directory);
        assert_eq!(fetches.load(Ordering::Relaxed), 1);
        std::fs::write(directory.join("abc.jar"), "abd").unwrap();
        obtain(cache.path(), "abc", &fetches).unwrap();
        assert_eq!(std::fs::read_to_string(directory.join("abc.jar")).unwrap(), "abc");
        let left: Vec<_> = std::fs::read_dir(cache.path().join("artifacts")).unwrap().collect();
        assert_eq!(left.len(), 2, "the files and the lock: {left:?}");
    }

    #[test]
    fn unlisted_file_is_never_used() {
        let (cache, fetches) = (tempfile::TempDir::new().unwrap(), AtomicU32::new(0));
        let error = obtain(cache.path(), "abd", &fetches).unwrap_err();
        assert!(matches!(error, ArtifactError::Different { list: "abc", .. }), "{error}");
        assert!(error.to_string().contains("abc.jar has another SHA-256"), "{error}");
        obtain(cache.path(), "abc", &fetches).unwrap();
    }

    #[test]
    fn interrupted_fetch_leaves_nothing() {
        let (cache, fetches) = (tempfile::TempDir::new().unwrap(), AtomicU32::new(0));
        let place = ArtifactDirectory::new(&LIST, cache.path()).unwrap();
        let breaks_off = |list: &ArtifactList,
                          files: &[LockedFile],
                          directory: &Path,
                          _: &Path,
                          _: &dyn Fn(&LoadProgress)| {
            std::fs::write(directory.join(&files[0].name), "a").unwrap();
            Err(ArtifactError::Fetch {
                list: list.name,
                files: files.len(),
                megabytes: 0.0,
                problem: "no route".to_owned(),
                log_tail: None,
            })
        };
        let error = place.obtain(&|_| {}, &breaks_off).unwrap_err();
        assert!(error.to_string().contains("no route"), "{error}");
        let left: Vec<_> = std::fs::read_dir(&place.folder).unwrap().collect();
        assert_eq!(left.len(), 1, "the lock alone: {left:?}");
        obtain(cache.path(), "abc", &fetches).unwrap();
    }

    #[test]
    fn leftovers_of_killed_fetch_are_removed() {
        let (cache, fetches) = (tempfile::TempDir::new().unwrap(), AtomicU32::new(0));
        let place = ArtifactDirectory::new(&LIST, cache.path()).unwrap();
        let partial = place.folder.join(format!("{}.partial", place.name)).join("files");
        std::fs::create_dir_all(&partial).unwrap();
        std::fs::write(partial.join("old.jar"), "half").unwrap();
        obtain(cache.path(), "abc", &fetches).unwrap();
    }

    #[test]
    fn concurrent_users_share_one_fetch() {
        let (cache, fetches) = (tempfile::TempDir::new().unwrap(), AtomicU32::new(0));
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| obtain(cache.path(), "abc", &fetches).unwrap());
            }
        });
        assert_eq!(fetches.load(Ordering::Relaxed), 1);
    }
}
