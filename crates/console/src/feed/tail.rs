//! A feed, read as it grows.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use underlay_files::plain_file;
use underlay_record::FeedLine;
use underlay_record::live::{EARLIER_FEED_FILE, FEED_FILE, MAX_FEED_BYTES, MAX_FEED_LINE_BYTES, feed_line};

const CHUNK_BYTES: usize = 64 << 10;
/// Read at once: a feed and a line.
const MAX_CHUNKS: usize = (MAX_FEED_BYTES as usize + MAX_FEED_LINE_BYTES) / CHUNK_BYTES + 1;
/// Followed at once, where files are exchanged.
const MAX_FILES: usize = 6;

/// Follows a run's feed from the beginning, over the change to a new file. It passes over text that is no line of a
/// feed.
pub(crate) struct FeedTail {
    directory: PathBuf,
    file: Option<File>,
    /// Whether the older part has been read.
    is_past_earlier: bool,
    /// The beginning of a line whose end is not there yet.
    pending: Vec<u8>,
    /// The rest of a line that is too long.
    skips: bool,
}

impl FeedTail {
    pub(crate) fn new(directory: &Path) -> FeedTail {
        FeedTail {
            directory: directory.to_owned(),
            file: None,
            is_past_earlier: false,
            pending: Vec::new(),
            skips: false,
        }
    }

    /// The lines written since the last time, each with its length in bytes.
    ///
    /// # Errors
    /// When it can't be read. A feed that is not there yet is no error.
    pub(crate) fn read(&mut self, mut take: impl FnMut(FeedLine, usize)) -> io::Result<()> {
        for _ in 0..MAX_FILES {
            if self.file.is_none() {
                let name = if self.is_past_earlier { FEED_FILE } else { EARLIER_FEED_FILE };
                self.is_past_earlier = true;
                self.file = plain_file::open(&self.directory.join(name))?;
                if self.file.is_none() {
                    match name {
                        FEED_FILE => return Ok(()),
                        _ => continue,
                    }
                }
            }
            // The rest comes next time.
            if !self.read_to_end(&mut take)? || self.is_current()? {
                return Ok(());
            }
            // It has another name by now, or was the older part: all of it has been read.
            self.file = None;
            self.pending.clear();
            self.skips = false;
        }
        Ok(())
    }

    /// Whether the end was reached: no more is read at once than a feed may have.
    fn read_to_end(&mut self, take: &mut impl FnMut(FeedLine, usize)) -> io::Result<bool> {
        let Some(file) = &mut self.file else { return Ok(true) };
        let mut chunk = vec![0; CHUNK_BYTES];
        for _ in 0..MAX_CHUNKS {
            let count = file.read(&mut chunk)?;
            if count == 0 {
                return Ok(true);
            }
            for part in chunk[..count].split_inclusive(|byte| *byte == b'\n') {
                let ends = part.ends_with(b"\n");
                if !self.skips {
                    self.pending.extend_from_slice(part);
                    if self.pending.len() > MAX_FEED_LINE_BYTES {
                        self.pending.clear();
                        self.skips = true;
                    }
                }
                if !ends {
                    continue;
                }
                if !std::mem::take(&mut self.skips)
                    && let Some(line) = std::str::from_utf8(&self.pending).ok().and_then(feed_line)
                {
                    take(line, self.pending.len());
                }
                self.pending.clear();
            }
        }
        Ok(false)
    }

    /// Whether the file that is open is the one that is being written.
    fn is_current(&self) -> io::Result<bool> {
        let Some(file) = &self.file else { return Ok(false) };
        let own = file.metadata()?;
        match std::fs::symlink_metadata(self.directory.join(FEED_FILE)) {
            Ok(metadata) => Ok((metadata.dev(), metadata.ino()) == (own.dev(), own.ino())),
            // In the moment between the old and the new one.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(true),
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use proptest::prelude::*;
    use underlay_record::FeedEntry;

    use super::*;

    fn line(at_ms: u64) -> String {
        let entry = FeedEntry::Doing { what: "x".to_owned() };
        format!("\n{}\n", serde_json::to_string(&FeedLine { at_ms, entry }).unwrap())
    }

    fn read(tail: &mut FeedTail) -> Vec<u64> {
        let mut found = Vec::new();
        tail.read(|line, _| found.push(line.at_ms)).unwrap();
        found
    }

    #[test]
    fn tail_continues_over_file_change() {
        let folder = tempfile::tempdir().unwrap();
        let path_of = |name: &str| folder.path().join(name);
        let mut tail = FeedTail::new(folder.path());
        assert!(read(&mut tail).is_empty());
        std::fs::write(path_of(EARLIER_FEED_FILE), line(1)).unwrap();
        std::fs::write(path_of(FEED_FILE), line(2)).unwrap();
        // It began before the older part was there; another reader begins with it.
        assert_eq!(read(&mut tail), [2]);
        assert_eq!(read(&mut FeedTail::new(folder.path())), [1, 2]);
        let append = |text: &str| {
            let mut file = std::fs::OpenOptions::new().append(true).open(path_of(FEED_FILE)).unwrap();
            file.write_all(text.as_bytes()).unwrap();
        };
        let (begin, end) = (&line(3)[..9], &line(3)[9..]);
        append(begin);
        assert!(read(&mut tail).is_empty());
        append(end);
        append("{\"torn\n");
        append(&"z".repeat(MAX_FEED_LINE_BYTES + 10));
        assert_eq!(read(&mut tail), [3]);
        append("more of it\n");
        append(&line(4));
        std::fs::rename(path_of(FEED_FILE), path_of(EARLIER_FEED_FILE)).unwrap();
        std::fs::write(path_of(FEED_FILE), line(5)).unwrap();
        assert_eq!(read(&mut tail), [4, 5]);
        assert!(read(&mut tail).is_empty());
    }

    #[test]
    fn endless_feed_is_read_in_parts() {
        let folder = tempfile::tempdir().unwrap();
        let file = File::create(folder.path().join(FEED_FILE)).unwrap();
        // Zeros that take no room.
        file.set_len(1 << 40).unwrap();
        let mut tail = FeedTail::new(folder.path());
        assert!(read(&mut tail).is_empty() && read(&mut tail).is_empty());
    }

    #[test]
    fn tail_refuses_link() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("other"), line(1)).unwrap();
        std::os::unix::fs::symlink("other", folder.path().join(FEED_FILE)).unwrap();
        assert!(FeedTail::new(folder.path()).read(|_, _| panic!("it was followed")).is_err());
    }

    proptest! {
        #[test]
        fn noise_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..2000)) {
            let folder = tempfile::tempdir().unwrap();
            std::fs::write(folder.path().join(FEED_FILE), bytes).unwrap();
            FeedTail::new(folder.path()).read(|_, _| {}).unwrap();
        }
    }
}
