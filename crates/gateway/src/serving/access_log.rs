//! The access log: one line of JSON for each request, without queries and so without signatures.

use std::fs::{File, Metadata};
use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::Duration;

use underlay_files::append;
use underlay_sync::Mutex;
use underlay_sync::rate_limited_log::RateLimitedLog;

use super::request_ids::RequestId;
use crate::failure::CommandFailure;

/// Lines that wait to be written; what comes while so many wait is left out, and counted.
const MAX_WAITING: usize = 10_000;

/// See the module.
pub(super) struct AccessLog {
    lines: Option<SyncSender<String>>,
    /// Where lines go from the next one on, if it is another file.
    next: Arc<Mutex<Option<File>>>,
    /// Lines that nobody will find in the log.
    left_out: Arc<AtomicU64>,
}

/// Where lines go.
struct LogFile {
    file: File,
    /// Whether the end of a line that failed is still to come.
    has_open_line: bool,
}

impl LogFile {
    /// Writes a whole line, or none: who reads the log takes each for one of JSON.
    ///
    /// # Errors
    /// When it can't be written. Where a part of it can't be taken back either, the next one begins on a line of its
    /// own.
    fn write(&mut self, line: &str) -> io::Result<()> {
        if self.has_open_line {
            self.file.write_all(b"\n")?;
            self.has_open_line = false;
        }
        let before = self.file.metadata().ok().filter(Metadata::is_file).map(|found| found.len());
        let mut rest = line.as_bytes();
        while !rest.is_empty() {
            match self.file.write(rest) {
                Ok(0) => {
                    return Err(self.take_back(
                        line.len() - rest.len(),
                        before,
                        io::ErrorKind::WriteZero.into(),
                    ));
                }
                Ok(count) => rest = &rest[count..],
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(self.take_back(line.len() - rest.len(), before, error)),
            }
        }
        Ok(())
    }

    /// Takes so many bytes of a line back that begun where the file ended `before`. If another process has written
    /// there, or emptied the file, they stay.
    fn take_back(&mut self, count: usize, before: Option<u64>, error: io::Error) -> io::Error {
        if count > 0 {
            let is_last =
                |length: u64| self.file.metadata().is_ok_and(|found| found.len() == length + count as u64);
            let is_gone = before
                .filter(|length| is_last(*length))
                .is_some_and(|length| self.file.set_len(length).is_ok());
            self.has_open_line = !is_gone;
        }
        error
    }
}

/// Opens the file at its end, and makes it where it is not there.
///
/// # Errors
/// A mistake where the path is no place for a file, and otherwise what the disk says.
pub(super) fn open_file(path: &Path) -> Result<File, CommandFailure> {
    use std::io::ErrorKind::{IsADirectory, NotADirectory, NotFound, PermissionDenied, ReadOnlyFilesystem};
    append(path).map_err(|error| {
        let text = format!("the access log {}: {error}", path.display());
        match error.kind() {
            NotFound | NotADirectory | IsADirectory | PermissionDenied | ReadOnlyFilesystem => {
                CommandFailure::Mistake(text)
            }
            _ => CommandFailure::Failed(text),
        }
    })
}

pub(super) struct AccessLine<'a> {
    pub(super) id: &'a RequestId,
    pub(super) peer: SocketAddr,
    pub(super) key_id: &'a str,
    pub(super) operation: &'a str,
    pub(super) method: &'a str,
    pub(super) path: &'a str,
    pub(super) status: u16,
    pub(super) sent_bytes: u64,
    /// Until the answer began.
    pub(super) head: Duration,
    pub(super) whole: Duration,
}

impl AccessLog {
    /// One that nothing is written to.
    pub(super) fn disabled() -> AccessLog {
        AccessLog { lines: None, next: Arc::default(), left_out: Arc::default() }
    }

    /// # Errors
    /// When the file can't be opened.
    pub(super) fn open(path: Option<&Path>) -> Result<AccessLog, CommandFailure> {
        let Some(path) = path else { return Ok(AccessLog::disabled()) };
        let (left_out, next) = (Arc::<AtomicU64>::default(), Arc::<Mutex<Option<File>>>::default());
        let mut file = LogFile { file: open_file(path)?, has_open_line: false };
        let (lines, waiting) = sync_channel::<String>(MAX_WAITING);
        let (coming, lost) = (Arc::clone(&next), Arc::clone(&left_out));
        let failures = RateLimitedLog::default();
        underlay_sync::thread::ThreadBuilder::new()
            .name("access-log".to_owned())
            .spawn(move || {
                while let Ok(line) = waiting.recv() {
                    if let Some(other) = coming.lock().take() {
                        file = LogFile { file: other, has_open_line: false };
                    }
                    if let Err(error) = file.write(&line) {
                        lost.fetch_add(1, Ordering::Relaxed);
                        if let Some(count) = failures.count() {
                            tracing::warn!("cannot write {count} lines of the access log: {error}");
                        }
                    }
                }
            })
            .map_err(|error| format!("cannot start a thread: {error}"))?;
        Ok(AccessLog { lines: Some(lines), next, left_out })
    }

    /// Writes to this file from the next line on: another one may have its name by now.
    pub(super) fn go_on_in(&self, file: File) {
        *self.next.lock() = Some(file);
    }

    /// Whether lines go anywhere.
    pub(super) fn is_on(&self) -> bool {
        self.lines.is_some()
    }

    pub(super) fn write(&self, line: &AccessLine<'_>) {
        let Some(lines) = &self.lines else { return };
        let text = serde_json::json!({
            "time": jiff::Timestamp::now().to_string(),
            "id": line.id.as_str(),
            "peer": line.peer.to_string(),
            "key": line.key_id,
            "operation": line.operation,
            "method": line.method,
            "path": line.path,
            "status": line.status,
            "sent_bytes": line.sent_bytes,
            "head_us": u64::try_from(line.head.as_micros()).unwrap_or(u64::MAX),
            "whole_us": u64::try_from(line.whole.as_micros()).unwrap_or(u64::MAX),
            "left_out": self.left_out.load(Ordering::Relaxed),
        });
        // A disk that is slow must not make clients wait.
        if lines.try_send(format!("{text}\n")).is_err() {
            self.left_out.fetch_add(1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn access_line_that_fails_leaves_no_half() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("access.log");
        let mut log = LogFile { file: open_file(&path).unwrap(), has_open_line: false };
        log.write("{\"first\":1}\n").unwrap();
        // Nothing can be written by a descriptor that only reads.
        log.file = File::open(&path).unwrap();
        log.write("{\"second\":2}\n").unwrap_err();
        assert!(!log.has_open_line, "nothing of it was written");
        // Half a line that could not be taken back ends before the next one.
        std::fs::write(&path, "{\"first\":1}\n{\"sec").unwrap();
        log = LogFile { file: open_file(&path).unwrap(), has_open_line: true };
        log.write("{\"third\":3}\n").unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "{\"first\":1}\n{\"sec\n{\"third\":3}\n");
    }
}
