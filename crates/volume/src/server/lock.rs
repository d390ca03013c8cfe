//! One user of a pool at a time.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use underlay_files::Folder;

const FILE: &str = "lock";
const MAX_BYTES: u64 = 64;

/// Held until it is dropped or its process ends, however that ends.
#[derive(Debug)]
pub(super) struct PoolLock {
    _file: File,
}

#[derive(Debug)]
pub(super) enum LockError {
    /// Who has it, if that could be read.
    Taken(Option<u32>),
    Io(io::Error),
}

impl PoolLock {
    /// Takes the pool of this directory.
    pub(super) fn take(directory: &Folder) -> Result<PoolLock, LockError> {
        let mut file = directory.file(FILE).map_err(LockError::Io)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::AGAIN) => {
                let mut text = String::new();
                let _ = (&mut file).take(MAX_BYTES).read_to_string(&mut text);
                return Err(LockError::Taken(text.trim().parse().ok()));
            }
            Err(errno) => return Err(LockError::Io(errno.into())),
        }
        // For the next process that tries. It is a courtesy: the lock counts, not what the file says.
        let _ = file
            .set_len(0)
            .and_then(|()| file.seek(SeekFrom::Start(0)))
            .and_then(|_| writeln!(file, "{}", std::process::id()));
        Ok(PoolLock { _file: file })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn second_holder_learns_the_first() {
        let folder = tempfile::tempdir().unwrap();
        let folder = Folder::open(folder.path()).unwrap();
        let first = PoolLock::take(&folder).unwrap();
        match PoolLock::take(&folder) {
            Err(LockError::Taken(Some(pid))) => assert_eq!(pid, std::process::id()),
            other => panic!("{other:?}"),
        }
        drop(first);
        PoolLock::take(&folder).unwrap();
    }
}
