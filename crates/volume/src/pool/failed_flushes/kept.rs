//! Which members are in doubt, kept where it outlives the pool's process, as the changes of the maps are.
//!
//! It has its own file: a flush may fail while the pool is being opened, when there are no notes of this
//! session yet.
//!
//! | file `doubtful` | bytes |
//! | --- | --- |
//! | magic | 8 |
//! | identity of the pool | 8 |
//! | boot of the host, filled up with zeros | 40 |
//! | a bit for each member | 32 |
//! | CRC-32 of the above | 4 |

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;

use super::super::extent::take_u64;
use super::super::host_memory::{BOOT_BYTES, HostMemory, boot_field};
use underlay_files::plain_file;

const FILE: &str = "doubtful";
const MAGIC: &[u8; 8] = b"UNDLYDB1";
const MEMBER_BYTES: usize = 32;
const FILE_BYTES: usize = 92;

pub(super) struct FlushHistoryFile {
    file: File,
    identity: u64,
    boot: [u8; BOOT_BYTES],
    members: [u8; MEMBER_BYTES],
}

impl FlushHistoryFile {
    /// Reads what is kept about this pool since the host was started.
    ///
    /// # Errors
    /// When the file can't be read or made.
    pub(super) fn open(memory: &HostMemory, identity: u64) -> io::Result<FlushHistoryFile> {
        let path = memory.directory.join(FILE);
        let boot = boot_field(&memory.boot);
        let found = plain_file::read(&path, FILE_BYTES as u64)?;
        let members = found.and_then(|file| decode(&file, identity, &boot)).unwrap_or_default();
        let file = plain_file::for_writing().open(path)?;
        let history = FlushHistoryFile { file, identity, boot, members };
        history.write()?;
        Ok(history)
    }

    pub(super) fn has(&self, member: u8) -> bool {
        self.members[usize::from(member / 8)] & (1 << (member % 8)) != 0
    }

    /// In one write, which a kill does not divide.
    ///
    /// # Errors
    /// When it can't be written.
    pub(super) fn set(&mut self, member: u8, is_doubtful: bool) -> io::Result<()> {
        if self.has(member) == is_doubtful {
            return Ok(());
        }
        self.members[usize::from(member / 8)] ^= 1 << (member % 8);
        self.write()
    }

    fn write(&self) -> io::Result<()> {
        self.file.write_all_at(&encode(self.identity, &self.boot, &self.members), 0)
    }
}

fn encode(identity: u64, boot: &[u8; BOOT_BYTES], members: &[u8; MEMBER_BYTES]) -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    bytes.extend(identity.to_le_bytes());
    bytes.extend(boot);
    bytes.extend(members);
    bytes.extend(crc32fast::hash(&bytes).to_le_bytes());
    debug_assert_eq!(bytes.len(), FILE_BYTES);
    bytes
}

/// Nothing of another pool or boot: a power cut has taken what it speaks of.
fn decode(file: &[u8], identity: u64, boot: &[u8; BOOT_BYTES]) -> Option<[u8; MEMBER_BYTES]> {
    let (fields, crc) = file.split_at_checked(FILE_BYTES - 4)?;
    if crc != crc32fast::hash(fields).to_le_bytes() {
        return None;
    }
    let mut rest = fields.strip_prefix(MAGIC)?;
    let is_ours = take_u64(&mut rest)? == identity;
    let (found, members) = rest.split_at_checked(BOOT_BYTES)?;
    if !is_ours || found != boot {
        return None;
    }
    members.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doubt_outlives_process_but_not_host_or_pool() {
        let folder = tempfile::tempdir().unwrap();
        let memory_of_boot = |boot: &str| HostMemory {
            directory: folder.path().to_owned(),
            boot: boot.into(),
            long_bytes: 1000,
        };
        let mut history = FlushHistoryFile::open(&memory_of_boot("first"), 7).unwrap();
        for member in [0, 9, 255] {
            history.set(member, true).unwrap();
        }
        history.set(9, false).unwrap();
        let again = FlushHistoryFile::open(&memory_of_boot("first"), 7).unwrap();
        let doubtful: Vec<u8> = (0..=255).filter(|member| again.has(*member)).collect();
        assert_eq!(doubtful, [0, 255]);
        assert!(!FlushHistoryFile::open(&memory_of_boot("first"), 8).unwrap().has(0), "another pool");
        history.set(1, true).unwrap();
        assert!(!FlushHistoryFile::open(&memory_of_boot("second"), 7).unwrap().has(1), "another boot");
    }

    #[test]
    fn damaged_file_is_not_believed() {
        let (boot, members) = ([3; BOOT_BYTES], [5; MEMBER_BYTES]);
        let file = encode(7, &boot, &members);
        assert_eq!(decode(&file, 7, &boot), Some(members));
        for position in 0..file.len() {
            let mut changed = file.clone();
            changed[position] ^= 1;
            assert_eq!(
                (decode(&changed, 7, &boot), decode(&file[..position], 7, &boot)),
                (None, None),
                "{position}"
            );
        }
    }
}
