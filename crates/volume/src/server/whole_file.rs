//! Files that are read and replaced whole: after a crash or on a full disk there is what was before, or what was to be.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use crate::plain_file;

/// A server's own files are far shorter.
const LONGEST_BYTES: u64 = 64 << 20;

/// The whole content, or nothing where there is no such file.
pub(super) fn read(path: &Path) -> io::Result<Option<Vec<u8>>> {
    plain_file::read(path, LONGEST_BYTES)
}

/// Durable once it returns, and readable by this user alone. After an error either content may be there.
pub(super) fn replace(path: &Path, content: &[u8]) -> io::Result<()> {
    let part = path.with_extension("part");
    // What a crash has left. Made anew, so that it is nobody else's link to somewhere.
    match fs::remove_file(&part) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&part)?;
    file.write_all(content)?;
    file.sync_all()?;
    fs::rename(&part, path)?;
    path.parent().map_or(Ok(()), |directory| File::open(directory)?.sync_all())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_crash_left_is_in_nobodys_way() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.json");
        fs::write(folder.path().join("a.part"), "half").unwrap();
        replace(&path, b"one").unwrap();
        replace(&path, b"two").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"two");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
