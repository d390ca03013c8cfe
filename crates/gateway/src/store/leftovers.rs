//! Files that interrupted writes leave in a store's directory. `object_store` writes a file `k` under the name `k#1`
//! first, and a process that is killed meanwhile leaves it there. No listing shows it, and it blocks an object with its
//! directory's name.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, Stat, openat, statat, unlinkat};
use rustix::io::Errno;
use underlay_files::Folder;

use super::one_name::TRIAL;

/// So many are named.
const MAX_NAMED_LEFTOVERS: usize = 20;
/// Keys have no more segments than bytes; what others have put deeper is not looked at.
const MAX_DEPTH: usize = 600;

/// See the module.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct LeftoverFiles {
    pub(crate) count: u64,
    /// On the disk.
    pub(crate) bytes: u64,
    /// The first of them.
    pub(crate) examples: Vec<PathBuf>,
    /// Files that look the same where others write as well: they may be theirs.
    pub(crate) doubtful: u64,
}

/// Who writes to a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DirectoryWriters {
    Gateways,
    Others,
}

/// Whether it is a name that `object_store` gives to a file that is not whole, and shows nobody.
pub(super) fn is_unfinished(name: &[u8]) -> bool {
    let Some(position) = name.iter().position(|byte| *byte == b'#') else { return false };
    let digits = &name[position + 1..];
    !digits.is_empty() && digits.iter().all(u8::is_ascii_digit)
}

/// Whether it is a file as a gateway writes it, for its user alone.
pub(super) fn is_own_file(found: &Stat) -> bool {
    let is_file = FileType::from_raw_mode(found.st_mode) == FileType::RegularFile;
    is_file && found.st_uid == rustix::process::geteuid().as_raw() && found.st_mode & 0o077 == 0
}

struct LeftoverWalk {
    /// Only what was changed last before this.
    before: SystemTime,
    removes: bool,
    writers: DirectoryWriters,
    found: LeftoverFiles,
}

const FOLDER: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

impl LeftoverWalk {
    /// Whether the file is ours and old enough, and its room on the disk.
    fn weigh(&self, folder: &impl AsFd, name: &OsString) -> io::Result<Option<u64>> {
        let found = match statat(folder, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(found) => found,
            Err(Errno::NOENT) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        // A link to an object has the object's time, and its own only in the inode's.
        let changed_s = found.st_mtime.max(found.st_ctime);
        let changed = SystemTime::UNIX_EPOCH + Duration::from_secs(u64::try_from(changed_s).unwrap_or(0));
        // Whole seconds: what may be younger is left.
        let is_old = changed + Duration::from_secs(1) <= self.before;
        // Another link's bytes stay.
        let bytes = if found.st_nlink > 1 { 0 } else { u64::try_from(found.st_blocks).unwrap_or(0) * 512 };
        Ok((is_own_file(&found) && is_old).then_some(bytes))
    }

    fn take(&mut self, folder: &impl AsFd, path: &Path, name: &OsString, is_trial: bool) -> io::Result<bool> {
        let Some(bytes) = self.weigh(folder, name)? else { return Ok(false) };
        // Other programs of this user may call files of their own so.
        if self.writers == DirectoryWriters::Others && !is_trial {
            self.found.doubtful += 1;
            return Ok(false);
        }
        self.found.count += 1;
        self.found.bytes += bytes;
        if self.found.examples.len() < MAX_NAMED_LEFTOVERS {
            self.found.examples.push(path.join(name));
        }
        if self.removes {
            unlinkat(folder, name, AtFlags::empty())?;
        }
        Ok(self.removes)
    }

    /// Returns whether something was removed. No link is followed: what the names lead to may be exchanged meanwhile.
    fn through(&mut self, folder: &OwnedFd, path: &Path, depth: usize) -> io::Result<bool> {
        let is_trial = path.file_name().is_some_and(|name| name.as_bytes().starts_with(TRIAL.as_bytes()));
        let (mut files, mut folders) = (Vec::new(), Vec::new());
        for entry in Dir::read_from(folder)? {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            if matches!(name, b"." | b"..") {
                continue;
            }
            let kind = match entry.file_type() {
                FileType::Unknown => match statat(folder, entry.file_name(), AtFlags::SYMLINK_NOFOLLOW) {
                    Ok(found) => FileType::from_raw_mode(found.st_mode),
                    Err(_) => continue,
                },
                other => other,
            };
            match kind {
                FileType::RegularFile if is_trial || is_unfinished(name) => files.push(name.to_vec()),
                FileType::Directory => folders.push(name.to_vec()),
                _ => {}
            }
        }
        let mut has_removed = false;
        for name in files {
            has_removed |= self.take(folder, path, &OsString::from_vec(name), is_trial)?;
        }
        for name in folders.into_iter().filter(|_| depth < MAX_DEPTH) {
            let name = OsString::from_vec(name);
            let inner = match openat(folder, &name, FOLDER, Mode::empty()) {
                Ok(inner) => inner,
                Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => continue,
                Err(error) => return Err(error.into()),
            };
            if self.through(&inner, &path.join(&name), depth + 1)? {
                has_removed = true;
                // If it is empty now, an object of its name can take its place.
                let _ = unlinkat(folder, &name, AtFlags::REMOVEDIR);
            }
        }
        Ok(has_removed)
    }
}

/// Looks through a store's directory for what was last changed before this time, and removes what is surely a
/// gateway's.
///
/// # Errors
/// When the directory can't be trusted or read, or something in it can't be removed.
pub(crate) fn look_through(
    root: &Path,
    writers: DirectoryWriters,
    before: SystemTime,
    removes: bool,
) -> io::Result<LeftoverFiles> {
    // Others who can write there could have files of theirs removed elsewhere.
    let trusted = Folder::open(root)?;
    let folder = rustix::fs::open(trusted.path(), FOLDER, Mode::empty())?;
    let mut walk = LeftoverWalk { before, removes, writers, found: LeftoverFiles::default() };
    walk.through(&folder, root, 0)?;
    Ok(walk.found)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn names_of_unfinished_files_are_known() {
        for name in ["k#1", "k#0", "#12", "part-0.parquet#3"] {
            assert!(is_unfinished(name.as_bytes()), "{name}");
        }
        for name in ["k", "k#", "k#1x", "k#a#1", "%underlay-escaped-k%231", "1"] {
            assert!(!is_unfinished(name.as_bytes()), "{name}");
        }
    }

    #[test]
    fn only_interrupted_writes_are_removed() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        let file = |name: &str, mode: u32| {
            std::fs::create_dir_all(path(name).parent().unwrap()).unwrap();
            std::fs::write(path(name), vec![1; 10_000]).unwrap();
            std::fs::set_permissions(path(name), std::fs::Permissions::from_mode(mode)).unwrap();
        };
        for name in ["a/b/k", "a/b/k#1", "gone/k#12", "top#0", "trial/x", &format!("{TRIAL}-1/case")] {
            file(name, 0o600);
        }
        // Somebody else's, by its mode.
        file("a/theirs#1", 0o644);
        let outside = tempfile::tempdir().unwrap();
        std::fs::write(outside.path().join("k#1"), "x").unwrap();
        std::os::unix::fs::symlink(outside.path(), path("link")).unwrap();
        std::os::unix::fs::symlink(outside.path().join("k#1"), path("link#1")).unwrap();
        // Another link of an object.
        std::fs::hard_link(path("a/b/k"), path("a/b/k#0")).unwrap();

        let look_through =
            |before, removes| look_through(directory.path(), DirectoryWriters::Gateways, before, removes);
        let early = SystemTime::now() - Duration::from_secs(3600);
        assert_eq!(look_through(early, true).unwrap(), LeftoverFiles::default());
        let late = SystemTime::now() + Duration::from_secs(10);
        let found = look_through(late, false).unwrap();
        assert_eq!((found.count, found.examples.len()), (5, 5), "{found:?}");
        assert!(found.bytes >= 40_000 && found.bytes < 100_000, "{found:?}");
        assert!(path("top#0").exists(), "looking removes nothing");
        assert_eq!(look_through(late, true).unwrap(), found);
        assert_eq!(look_through(late, true).unwrap(), LeftoverFiles::default());
        for name in ["a/b/k", "trial/x", "a/theirs#1", "link", "link#1"] {
            assert!(path(name).symlink_metadata().is_ok(), "{name} is gone");
        }
        // With a directory that has nothing else.
        for name in ["a/b/k#0", "a/b/k#1", "gone", "top#0", &format!("{TRIAL}-1")] {
            assert!(path(name).symlink_metadata().is_err(), "{name} is there");
        }
        assert!(outside.path().join("k#1").exists());
    }

    #[test]
    fn leftovers_in_shared_store_are_counted_and_kept() {
        let directory = tempfile::tempdir().unwrap();
        let trial = format!("{TRIAL}-1");
        std::fs::create_dir(directory.path().join(&trial)).unwrap();
        for name in ["issue#1", &format!("{trial}/case")] {
            let path = directory.path().join(name);
            std::fs::write(&path, "x").unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        }
        let late = SystemTime::now() + Duration::from_secs(10);
        let found = look_through(directory.path(), DirectoryWriters::Others, late, true).unwrap();
        assert_eq!((found.count, found.doubtful), (1, 1), "{found:?}");
        assert!(directory.path().join("issue#1").exists() && !directory.path().join(&trial).exists());
    }
}
