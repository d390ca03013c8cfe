//! Writes the feed's lines on its own thread. A file system that hangs, perhaps the one under test, delays nothing but
//! the feed.

use std::fs::File;
use std::io::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use underlay_files::Folder;
use underlay_record::live::{EARLIER_FEED_FILE, FEED_FILE};

/// The limit of waiting lines; further ones are dropped. With a sample a second and some events, the writer is minutes
/// behind by then.
const MAX_WAITING: usize = 1024;
/// How long the end of a run waits for its last lines.
const END_LIMIT: Duration = Duration::from_secs(5);
/// A file that could not be written is tried again after this time, since space may have become free.
const PAUSE: Duration = Duration::from_secs(5);

enum FeedWork {
    Line(Vec<u8>),
    #[cfg(test)]
    Panic,
    /// The feed written so far becomes the earlier one.
    Turn,
}

/// See the module.
pub(super) struct FeedWriter {
    work: Option<SyncSender<FeedWork>>,
    /// Closed when the thread has ended.
    ended: Receiver<()>,
}

impl FeedWriter {
    /// `None` if the thread or the file can't be made.
    pub(super) fn begin(folder: Folder) -> Option<(FeedWriter, u64)> {
        let file = folder.file_to_append(FEED_FILE).ok()?;
        let length_bytes = file.metadata().map_or(0, |found| found.len());
        let output = FeedOutput { folder, file: Some(file), failed: None, is_over: false };
        Some((FeedWriter::start(output)?, length_bytes))
    }

    fn start(mut output: FeedOutput) -> Option<FeedWriter> {
        let (work, todo) = sync_channel(MAX_WAITING);
        let (ends, ended) = sync_channel(0);
        let write = move || {
            let _ends = ends;
            for work in todo {
                // The feed may have no readers. A bug here has been printed and costs a line, not the run.
                if catch_unwind(AssertUnwindSafe(|| output.act(work))).is_err() {
                    (output.file, output.failed) = (None, Some(Instant::now()));
                }
            }
        };
        std::thread::Builder::new().name("feed".to_owned()).spawn(write).ok()?;
        Some(FeedWriter { work: Some(work), ended })
    }

    /// Returns false if too many lines wait already: this one is dropped.
    pub(super) fn line(&self, line: Vec<u8>) -> bool {
        self.put(FeedWork::Line(line))
    }

    pub(super) fn turn(&self) -> bool {
        self.put(FeedWork::Turn)
    }

    fn put(&self, work: FeedWork) -> bool {
        self.work.as_ref().is_some_and(|queue| queue.try_send(work).is_ok())
    }
}

impl Drop for FeedWriter {
    fn drop(&mut self) {
        self.work = None;
        // The sender is never used, so this ends with the thread, or at the limit.
        let _ = self.ended.recv_timeout(END_LIMIT);
    }
}

struct FeedOutput {
    folder: Folder,
    file: Option<File>,
    failed: Option<Instant>,
    is_over: bool,
}

impl FeedOutput {
    fn act(&mut self, work: FeedWork) {
        match work {
            FeedWork::Line(line) => self.line(&line),
            #[cfg(test)]
            FeedWork::Panic => panic!("a bug of the writer"),
            FeedWork::Turn => {
                self.file = None;
                // If it can't be moved aside, nothing more is written: the file would grow without bound.
                self.is_over = self.folder.rename(FEED_FILE, EARLIER_FEED_FILE).is_err();
                self.failed = None;
            }
        }
    }

    fn line(&mut self, line: &[u8]) {
        if self.is_over {
            return;
        }
        if self.file.is_none() {
            if self.failed.is_some_and(|failed_at| failed_at.elapsed() < PAUSE) {
                return;
            }
            self.file = self.folder.file_to_append(FEED_FILE).ok();
        }
        let is_written = self.file.as_mut().is_some_and(|file| file.write_all(line).is_ok());
        self.failed = (!is_written).then(Instant::now);
        if !is_written {
            // The feed may have no readers, and a run goes on without it.
            self.file = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_there_once_the_writer_has_ended() {
        let directory = tempfile::tempdir().unwrap();
        let (writer, length_bytes) = FeedWriter::begin(Folder::open(directory.path()).unwrap()).unwrap();
        assert_eq!(length_bytes, 0);
        assert!(writer.line(b"one\n".to_vec()) && writer.turn() && writer.line(b"two\n".to_vec()));
        drop(writer);
        let read = |name| std::fs::read_to_string(directory.path().join(name)).unwrap();
        assert_eq!((read(EARLIER_FEED_FILE).as_str(), read(FEED_FILE).as_str()), ("one\n", "two\n"));
    }

    #[test]
    fn panic_costs_no_later_line() {
        let directory = tempfile::tempdir().unwrap();
        let (writer, _) = FeedWriter::begin(Folder::open(directory.path()).unwrap()).unwrap();
        // Begins the file anew, which ends the pause after a failure.
        assert!(writer.put(FeedWork::Panic) && writer.turn() && writer.line(b"two\n".to_vec()));
        drop(writer);
        assert_eq!(std::fs::read(directory.path().join(FEED_FILE)).unwrap(), b"two\n");
    }

    /// A pipe without a reader takes some lines and then no more, like a file system that hangs.
    #[test]
    fn hanging_reader_blocks_nobody() {
        let directory = tempfile::tempdir().unwrap();
        let (reader, pipe) = std::io::pipe().unwrap();
        let folder = Folder::open(directory.path()).unwrap();
        let file = Some(File::from(std::os::fd::OwnedFd::from(pipe)));
        let writer = FeedWriter::start(FeedOutput { folder, file, failed: None, is_over: false }).unwrap();
        let line = vec![b'x'; 64 << 10];
        let accepted = (0..2 * MAX_WAITING).filter(|_| writer.line(line.clone())).count();
        assert!((MAX_WAITING..2 * MAX_WAITING).contains(&accepted), "{accepted}");
        // Its thread ends with the pipe.
        drop(reader);
        drop(writer);
    }
}
