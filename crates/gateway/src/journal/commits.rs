//! How many commits the metadata had when a client was last answered. It is noted behind each commit and before its
//! callers hear of it, without waiting for the disk: a kill leaves it exact, and a power cut too low at worst. Metadata
//! with fewer have lost something that was acknowledged, be it that they are an older copy, or that the disk has
//! altered the last commit so that it looks torn.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;

use underlay_files::Folder;

const FILE: &str = "commits";

/// See the module.
pub(crate) struct JournalCommits(File);

fn line_of(count: u64) -> String {
    format!("{count:016x} {:08x}\n", crc_fast::crc32_iscsi(&count.to_le_bytes()))
}

pub(super) fn count_in(text: &str) -> Option<u64> {
    let count = u64::from_str_radix(text.get(..16)?, 16).ok()?;
    (line_of(count) == text).then_some(count)
}

impl JournalCommits {
    /// # Errors
    /// When the file can't be made.
    pub(crate) fn open(folder: &Folder) -> io::Result<JournalCommits> {
        folder.file(FILE).map(JournalCommits)
    }

    pub(crate) fn note(&self, count: u64) {
        // At worst it says less than it could.
        if let Err(error) = self.0.write_all_at(line_of(count).as_bytes(), 0) {
            tracing::debug!("the number of commits is not noted: {error}");
        }
    }
}

/// The last note; 0 without one.
///
/// # Errors
/// When it can't be read.
pub(crate) fn noted(folder: &Folder) -> io::Result<u64> {
    match folder.read_text(FILE, 64) {
        Ok(text) => Ok(count_in(&text).unwrap_or_else(|| {
            if !text.is_empty() {
                let path = folder.path().join(FILE);
                tracing::warn!(
                    "{} is damaged: whether the metadata have all commits is not looked at",
                    path.display()
                );
            }
            0
        })),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(0),
        // Any bytes may be there.
        Err(error) if error.kind() == io::ErrorKind::InvalidData => Ok(0),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn noted_commits_are_read_and_torn_lines_ignored() {
        let directory = tempfile::tempdir().unwrap();
        let folder = Folder::open(directory.path()).unwrap();
        assert_eq!(noted(&folder).unwrap(), 0);
        let commits = JournalCommits::open(&folder).unwrap();
        assert_eq!(noted(&folder).unwrap(), 0);
        for count in [1, 0xffff_ffff_ffff, 7] {
            commits.note(count);
            assert_eq!(noted(&folder).unwrap(), count);
        }
        let line = line_of(7);
        assert_eq!(line, "0000000000000007 7671b78e\n", "disks have such lines");
        for length in 0..line.len() {
            let mut other = line.clone().into_bytes();
            other[length] ^= 1;
            std::fs::write(directory.path().join(FILE), &other).unwrap();
            assert_eq!(noted(&folder).unwrap(), 0, "{length}");
        }
        std::fs::write(directory.path().join(FILE), [0xff; 26]).unwrap();
        assert_eq!(noted(&folder).unwrap(), 0);
    }
}
