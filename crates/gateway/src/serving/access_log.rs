//! The access log: one line of JSON for each request, without queries and so without signatures.

use std::fs::File;
use std::io::Write as _;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::Duration;

use underlay_files::append;
use underlay_sync::Mutex;

use super::request_ids::RequestId;
use crate::failure::CommandFailure;

/// Lines that wait to be written; what comes while so many wait is left out, and counted.
const MAX_WAITING: usize = 10_000;

/// See the module.
pub(super) struct AccessLog {
    lines: Option<SyncSender<String>>,
    /// Where lines go from the next one on, if it is another file.
    next: Arc<Mutex<Option<File>>>,
    left_out: std::sync::atomic::AtomicU64,
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
        AccessLog { lines: None, next: Arc::default(), left_out: std::sync::atomic::AtomicU64::new(0) }
    }

    /// # Errors
    /// When the file can't be opened.
    pub(super) fn open(path: Option<&Path>) -> Result<AccessLog, CommandFailure> {
        let Some(path) = path else { return Ok(AccessLog::disabled()) };
        let (left_out, next) = (std::sync::atomic::AtomicU64::new(0), Arc::<Mutex<Option<File>>>::default());
        let mut file = open_file(path)?;
        let (lines, waiting) = sync_channel::<String>(MAX_WAITING);
        let coming = Arc::clone(&next);
        underlay_sync::thread::ThreadBuilder::new()
            .name("access-log".to_owned())
            .spawn(move || {
                while let Ok(line) = waiting.recv() {
                    if let Some(other) = coming.lock().take() {
                        file = other;
                    }
                    if let Err(error) = file.write_all(line.as_bytes()) {
                        tracing::warn!("cannot write the access log: {error}");
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
        use std::sync::atomic::Ordering;
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
