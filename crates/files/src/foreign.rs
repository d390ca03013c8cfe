//! A folder that may be anybody's, to read from: nothing in it is followed to anywhere else.

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::Path;

use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::io::Errno;

use crate::{plain_file, read};

const OPEN: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// Held by descriptor, as its owner may exchange what is there at any time.
#[derive(Debug)]
pub struct ForeignFolder {
    descriptor: OwnedFd,
}

impl ForeignFolder {
    /// The folder that the user names: links on the way are followed.
    ///
    /// # Errors
    /// When it is not there, is no folder, or can't be read.
    pub fn open(path: &Path) -> io::Result<ForeignFolder> {
        Ok(ForeignFolder { descriptor: openat(CWD, path, OPEN, Mode::empty())? })
    }

    /// The folder of this name in it; nothing where there is none.
    ///
    /// # Errors
    /// When it is a link or anything else than a folder, or can't be read.
    pub fn inner(&self, name: &str) -> io::Result<Option<ForeignFolder>> {
        match openat(&self.descriptor, name, OPEN | OFlags::NOFOLLOW, Mode::empty()) {
            Ok(descriptor) => Ok(Some(ForeignFolder { descriptor })),
            Err(Errno::NOENT) => Ok(None),
            Err(Errno::NOTDIR | Errno::LOOP) => {
                Err(io::Error::new(io::ErrorKind::NotADirectory, "it is a link or not a directory"))
            }
            Err(errno) => Err(errno.into()),
        }
    }

    /// The whole file of this name; nothing where there is none.
    ///
    /// # Errors
    /// When it is a link or anything else than a regular file, can't be read, or is longer than `most_bytes`.
    pub fn read(&self, name: &str, most_bytes: u64) -> io::Result<Option<Vec<u8>>> {
        let file = plain_file::open_in(self.descriptor.as_fd(), Path::new(name))?;
        file.map(|file| read::bytes(file, most_bytes)).transpose()
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn foreign_directory_links_are_not_followed() {
        let place = tempfile::tempdir().unwrap();
        let path_of = |name: &str| place.path().join(name);
        std::fs::create_dir_all(path_of("run/cells")).unwrap();
        std::fs::write(path_of("run/cells/one"), "it").unwrap();
        std::fs::write(path_of("secret"), "secret").unwrap();
        symlink(path_of("secret"), path_of("run/cells/two")).unwrap();
        symlink(path_of("run/cells"), path_of("run/others")).unwrap();
        symlink(path_of("run"), path_of("named")).unwrap();
        let run = ForeignFolder::open(&path_of("named")).unwrap();
        let cells = run.inner("cells").unwrap().unwrap();
        // The present file there does not matter.
        std::fs::rename(path_of("run/cells"), path_of("run/before")).unwrap();
        symlink(place.path(), path_of("run/cells")).unwrap();
        assert_eq!(cells.read("one", 9).unwrap().as_deref(), Some(&b"it"[..]));
        assert_eq!(cells.read("none", 9).unwrap(), None);
        assert!(cells.read("two", 9).is_err() && cells.read("one", 1).is_err());
        assert!(run.inner("cells").is_err() && run.inner("others").is_err());
        assert!(run.inner("nowhere").unwrap().is_none());
        assert!(ForeignFolder::open(&path_of("secret")).is_err());
    }
}
