//! Files that are read and replaced whole: after a crash or on a full disk there is what was before, or what was to be.

use std::io;
use std::path::Path;

use underlay_files::{Access, plain_file};

/// A server's own files are far shorter.
const MAX_BYTES: u64 = 64 << 20;

/// The whole content, or nothing where there is no such file.
pub(super) fn read(path: &Path) -> io::Result<Option<Vec<u8>>> {
    plain_file::read(path, MAX_BYTES)
}

/// Durable once it returns, and readable by this user alone. After an error either content may be there.
pub(super) fn replace(path: &Path, content: &[u8]) -> io::Result<()> {
    underlay_files::replace(path, Access::Private, content)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn crash_leftover_blocks_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.json");
        fs::write(folder.path().join("a.json.part"), "half").unwrap();
        replace(&path, b"one").unwrap();
        replace(&path, b"two").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"two");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
