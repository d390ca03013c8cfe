//! Short-lived folders in a temporary directory, without a journal. A process that is killed in that moment leaves one
//! behind, whose name says which process made it.

use std::collections::BTreeSet;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use crate::trusted_path::User;
use crate::{Access, Folder, unique_name};

const PURPOSE: &str = "underlay-fleeting";

/// Nobody can see whether a process of another PID namespace still runs, other than by its lock, which earlier versions
/// did not take. A folder this old that nobody has locked is taken to be left behind.
const OTHERS_LIMIT: Duration = Duration::from_secs(24 * 3600);

/// A directory that every user of the host reaches, independent of `TMPDIR`.
pub const SHARED: &str = "/tmp";

/// One that nobody else can look into or has put anything into. The caller removes it, and keeps the [`Folder`] until
/// then: that holds the lock by which others see that it is in use.
///
/// # Errors
/// When it can't be made.
pub fn make() -> io::Result<Folder> {
    make_in(&std::env::temp_dir())
}

/// The same in [`SHARED`].
///
/// # Errors
/// When it can't be made.
pub fn make_shared() -> io::Result<Folder> {
    make_in(Path::new(SHARED))
}

fn make_in(directory: &Path) -> io::Result<Folder> {
    let folder = Folder::make_new(&directory.join(name()), Access::Private)?;
    // Where there are no locks nobody can take one either, so it is left alone.
    let _ = folder.try_lock();
    Ok(folder)
}

fn name() -> String {
    match pid_namespace() {
        Some(namespace) => unique_name(&format!("{PURPOSE}-n{namespace}")),
        None => unique_name(PURPOSE),
    }
}

/// Tells the PID namespace of this process from others: a process number means something else in each.
pub fn pid_namespace() -> Option<u64> {
    std::fs::metadata("/proc/self/ns/pid").ok().map(|namespace| namespace.ino())
}

/// Those of this user whose process is gone.
pub fn left_behind() -> Vec<PathBuf> {
    // Without links, as they are removed, and each once.
    let places = [std::env::temp_dir(), PathBuf::from(SHARED)];
    let places: BTreeSet<PathBuf> =
        places.iter().filter_map(|place| std::fs::canonicalize(place).ok()).collect();
    places.iter().flat_map(|place| left_behind_in(place)).collect()
}

fn left_behind_in(directory: &Path) -> Vec<PathBuf> {
    let user = User::current();
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let is_left = |path: &PathBuf| {
        let Some(maker) = path.file_name().and_then(|name| Maker::parse(name.to_str()?)) else {
            return false;
        };
        rustix::fs::lstat(path).is_ok_and(|found| {
            rustix::fs::FileType::from_raw_mode(found.st_mode) == rustix::fs::FileType::Directory
                && user.owns(&found)
        }) && maker.is_gone(path)
    };
    entries.map(|entry| entry.path()).filter(is_left).collect()
}

/// The process that a folder's name tells of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Maker {
    process: u32,
    /// Earlier versions did not note it.
    namespace: Option<u64>,
}

impl Maker {
    /// Of `PURPOSE-nNAMESPACE-PROCESS-NUMBER`, or without the namespace.
    fn parse(name: &str) -> Option<Maker> {
        let rest = name.strip_prefix(PURPOSE)?.strip_prefix('-')?;
        let (namespace, rest) = match rest.strip_prefix('n') {
            Some(noted) => {
                let (namespace, rest) = noted.split_once('-')?;
                (Some(namespace.parse().ok()?), rest)
            }
            None => (None, rest),
        };
        let (process, number) = rest.split_once('-')?;
        let is_number = number.len() == 16 && number.bytes().all(|byte| byte.is_ascii_hexdigit());
        if is_number { Some(Maker { process: process.parse().ok()?, namespace }) } else { None }
    }

    /// Whether it has ended, as far as this process can tell.
    fn is_gone(self, folder: &Path) -> bool {
        match self.namespace {
            Some(namespace) if pid_namespace() != Some(namespace) => {
                let changed = std::fs::symlink_metadata(folder).and_then(|found| found.modified()).ok();
                let age = changed.and_then(|changed| SystemTime::now().duration_since(changed).ok());
                age.is_some_and(|age| age > OTHERS_LIMIT) && is_unlocked(folder)
            }
            _ => !Path::new("/proc").join(self.process.to_string()).exists(),
        }
    }
}

fn is_unlocked(folder: &Path) -> bool {
    use rustix::fs::{FlockOperation, Mode, OFlags, flock, open};
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    open(folder, flags, Mode::empty())
        .and_then(|opened| flock(&opened, FlockOperation::NonBlockingLockExclusive))
        .is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scratch_name_contains_its_process() {
        let (process, namespace) = (std::process::id(), pid_namespace());
        assert!(namespace.is_some());
        assert_eq!(Maker::parse(&name()), Some(Maker { process, namespace }));
        // As earlier versions wrote them.
        assert_eq!(Maker::parse(&unique_name(PURPOSE)), Some(Maker { process, namespace: None }));
        for other in [
            "underlay-fleeting-7",
            "underlay-fleeting-7-abc",
            "underlay-fleeting-n-7-0123456789abcdef",
            "underlay-fleeting-n8-7",
            "underlay-7-0123456789abcdef",
            "",
        ] {
            assert_eq!(Maker::parse(other), None, "{other}");
        }
    }

    #[test]
    fn scratch_directory_is_locked_while_kept() {
        let place = tempfile::tempdir().unwrap();
        let folder = make_in(place.path()).unwrap();
        let path = folder.path().to_path_buf();
        assert!(!is_unlocked(&path));
        drop(folder);
        assert!(is_unlocked(&path));
    }

    #[test]
    fn killed_process_leftovers_are_found_and_others_stay() {
        let place = tempfile::tempdir().unwrap();
        let named = |process: u32| place.path().join(format!("{PURPOSE}-{process}-0123456789abcdef"));
        // No process has so high a number.
        let (dead, alive, link) = (named(u32::MAX), named(std::process::id()), named(u32::MAX - 1));
        std::fs::create_dir(&dead).unwrap();
        std::fs::create_dir(&alive).unwrap();
        std::fs::create_dir(place.path().join("other")).unwrap();
        std::os::unix::fs::symlink(&alive, &link).unwrap();
        std::fs::write(named(u32::MAX - 2), "a file").unwrap();
        assert_eq!(left_behind_in(place.path()), [dead]);
    }

    #[test]
    fn scratch_of_other_pid_namespace_stays_a_day() {
        let place = tempfile::tempdir().unwrap();
        let named = |namespace: u64| {
            let folder = place.path().join(format!("{PURPOSE}-n{namespace}-{}-0123456789abcdef", u32::MAX));
            std::fs::create_dir(&folder).unwrap();
            folder
        };
        let (here, foreign) = (named(pid_namespace().unwrap()), named(7));
        assert_eq!(left_behind_in(place.path()), std::slice::from_ref(&here));
        let old = std::fs::FileTimes::new().set_modified(SystemTime::now() - 2 * OTHERS_LIMIT);
        std::fs::File::open(&foreign).unwrap().set_times(old).unwrap();
        // One that is still in use is locked.
        let used = Folder::open(&foreign).unwrap();
        used.try_lock().unwrap();
        assert_eq!(left_behind_in(place.path()), std::slice::from_ref(&here));
        drop(used);
        let mut found = left_behind_in(place.path());
        found.sort();
        let mut expected = [here, foreign];
        expected.sort();
        assert_eq!(found, expected);
    }
}
