//! Room on the file systems of this host.

use std::fs::OpenOptions;
use std::io::ErrorKind;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{OFlags, StatVfsMountFlags};

/// Bytes that this user may still write at `path`, or where it would be made: on the file system of the nearest
/// directory above it that is there. `None` where nobody knows.
pub fn free_bytes(path: &Path) -> Option<u64> {
    let found = file_system_of(path)?;
    Some(found.f_bavail.saturating_mul(found.f_frsize))
}

/// Bytes that the same file system has in all, free or not. `None` where nobody knows.
pub fn total_bytes(path: &Path) -> Option<u64> {
    let found = file_system_of(path)?;
    Some(found.f_blocks.saturating_mul(found.f_frsize)).filter(|bytes| *bytes > 0)
}

fn file_system_of(path: &Path) -> Option<rustix::fs::StatVfs> {
    rustix::fs::statvfs(&existing(path)?).ok()
}

/// The nearest directory that is there, from `path` upwards.
fn existing(path: &Path) -> Option<PathBuf> {
    let path = std::path::absolute(path).ok()?;
    path.ancestors().find(|place| place.exists()).map(Path::to_path_buf)
}

/// Why no file below `path` can have this length, which takes no room: its file system has none as large, or this
/// process may write none. `None` also where nobody knows.
pub fn refusal_of_file(path: &Path, length_bytes: u64) -> Option<String> {
    // Beyond its limit, the kernel would end this process.
    let limit = rustix::process::getrlimit(rustix::process::Resource::Fsize).current;
    if let Some(limit_bytes) = limit.filter(|limit_bytes| *limit_bytes < length_bytes) {
        return Some(format!("this process may not write files above {limit_bytes} bytes (see `ulimit -f`)"));
    }
    let place = existing(path)?;
    let unnamed = OpenOptions::new()
        .write(true)
        .mode(0o600)
        .custom_flags(OFlags::TMPFILE.bits() as i32)
        .open(&place)
        .ok()?;
    let refused = unnamed.set_len(length_bytes).err()?;
    (refused.kind() == ErrorKind::FileTooLarge)
        .then(|| format!("the file system of {} has no file as large", place.display()))
}

/// With less, the next image can't grow.
const LEAST_BYTES: u64 = 1 << 20;
/// The space that file systems keep even from root: ext4 16 MiB for its own use.
const KEPT_FROM_ROOT_BYTES: u64 = 64 << 20;

/// Whether nothing can be written at `path` any more. Root may write what is kept for it when others can't write. False
/// where nobody knows.
pub fn is_full(path: &Path) -> bool {
    let Ok(found) = rustix::fs::statvfs(path) else { return false };
    let bytes = |blocks: u64| blocks.saturating_mul(found.f_frsize);
    is_full_for(rustix::process::geteuid().is_root(), bytes(found.f_bavail), bytes(found.f_bfree))
}

/// Whether the file system of `path` is mounted such that nobody writes to it. False where nobody knows.
pub fn is_read_only(path: &Path) -> bool {
    rustix::fs::statvfs(path).is_ok_and(|found| found.f_flag.contains(StatVfsMountFlags::RDONLY))
}

fn is_full_for(root: bool, available_bytes: u64, free_bytes: u64) -> bool {
    available_bytes < LEAST_BYTES && (!root || free_bytes < KEPT_FROM_ROOT_BYTES)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn root_has_room_in_what_is_kept_for_it() {
        const GIB: u64 = 1 << 30;
        assert!(!is_full_for(true, GIB, 2 * GIB) && !is_full_for(false, GIB, 2 * GIB));
        assert!(!is_full_for(true, 0, GIB) && is_full_for(false, 0, GIB));
        // An ext4 that root has filled keeps 16 MiB for itself.
        assert!(is_full_for(true, 0, 16 << 20) && is_full_for(true, 0, 0));
        let folder = tempfile::tempdir().unwrap();
        assert!(!is_full(folder.path()) && !is_full(&folder.path().join("not there")));
    }

    #[test]
    fn missing_path_has_space_of_its_ancestor() {
        let folder = tempfile::tempdir().unwrap();
        assert!(free_bytes(&folder.path().join("not/yet")).is_some_and(|bytes| bytes > 0));
        let total = total_bytes(&folder.path().join("not/yet"));
        assert!(total >= free_bytes(folder.path()) && total > Some(0));
        assert!(!is_read_only(folder.path()));
        assert_eq!(refusal_of_file(&folder.path().join("not/yet"), 1 << 20), None);
        assert!(fs::read_dir(folder.path()).unwrap().next().is_none(), "it leaves nothing behind");
        // Nobody has files of 8 EiB less one, and where no file can be made, nobody knows.
        let huge = refusal_of_file(folder.path(), i64::MAX as u64);
        assert!(huge.as_deref().is_none_or(|reason| reason.contains("no file as large")), "{huge:?}");
        assert_eq!(refusal_of_file(Path::new("/proc/self"), 1 << 20), None);
        // A file system that nothing can be put on.
        assert_eq!(free_bytes(Path::new("/proc/self")), Some(0));
    }
}
