//! Files of ours by path: a link or a FIFO that someone put in their place is neither followed nor waited for.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use rustix::fs::{Mode, OFlags, openat};
use rustix::io::Errno;

use crate::read::check_regular;

/// To write one, made where it is not there, for this user alone: what a link points to would be emptied.
pub fn for_writing() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.write(true).create(true).mode(0o600).custom_flags(OFlags::NOFOLLOW.bits() as i32);
    options
}

/// To read one; nothing where there is no such file.
///
/// # Errors
/// When it can't be opened or is not a regular file.
pub fn open(path: &Path) -> io::Result<Option<File>> {
    open_in(rustix::fs::CWD, path)
}

pub(crate) fn open_in(folder: BorrowedFd<'_>, path: &Path) -> io::Result<Option<File>> {
    // Without `NONBLOCK`, opening a FIFO would wait for somebody to write to it.
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = match openat(folder, path, flags, Mode::empty()) {
        Ok(file) => File::from(file),
        Err(Errno::NOENT) => return Ok(None),
        Err(errno) => return Err(errno.into()),
    };
    check_regular(&file)?;
    Ok(Some(file))
}

/// The whole content, or nothing where there is no such file.
///
/// # Errors
/// When it can't be read, is not a regular file, or is longer than `most_bytes`.
pub fn read(path: &Path, most_bytes: u64) -> io::Result<Option<Vec<u8>>> {
    open(path)?.map(|file| crate::read::bytes(file, most_bytes)).transpose()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn irregular_file_is_not_read_as_plain() {
        let folder = tempfile::tempdir().unwrap();
        let path_of = |name: &str| folder.path().join(name);
        assert_eq!(read(&path_of("none"), 9).unwrap(), None);
        std::fs::write(path_of("plain"), "it").unwrap();
        assert_eq!(read(&path_of("plain"), 2).unwrap().as_deref(), Some(&b"it"[..]));
        assert!(read(&path_of("plain"), 1).is_err());
        std::os::unix::fs::symlink(path_of("plain"), path_of("link")).unwrap();
        let fifo = rustix::fs::FileType::Fifo;
        rustix::fs::mknodat(rustix::fs::CWD, path_of("fifo"), fifo, rustix::fs::Mode::RUSR, 0).unwrap();
        for name in ["link", "fifo", "."] {
            assert!(read(&path_of(name), 9).is_err(), "{name}");
        }
    }
}
