//! Room on the file systems of this host.

use std::path::Path;

/// Bytes that this user may still write at `path`, or where it would be made: on the file system of the nearest directory
/// above it that is there. `None` where nobody knows.
pub fn free_bytes(path: &Path) -> Option<u64> {
    let path = std::path::absolute(path).ok()?;
    let existing = path.ancestors().find(|place| place.exists())?;
    let found = rustix::fs::statvfs(existing).ok()?;
    // Some blocks are kept for root.
    let blocks = if rustix::process::geteuid().is_root() { found.f_bfree } else { found.f_bavail };
    Some(blocks.saturating_mul(found.f_frsize))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_there_yet_has_the_room_of_what_is_above_it() {
        let folder = tempfile::tempdir().unwrap();
        assert!(free_bytes(&folder.path().join("not/yet")).is_some_and(|bytes| bytes > 0));
        // A file system that nothing can be put on.
        assert_eq!(free_bytes(Path::new("/proc/self")), Some(0));
    }
}
