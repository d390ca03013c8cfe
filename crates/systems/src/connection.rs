//! The load generator's end of a socket to a child process.

use std::io::{ErrorKind, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use underlay_files::{Folder, scratch_dir};
use underlay_workload::client::{ClientError, FieldSelection, FieldValues};

use crate::child::ChildState;
use crate::wire::{FrameBuffer, WireOpcode, WireReply, WireRequest, WireStatus, encode_request};

/// The longest path of a Unix socket: `sun_path` has 108 bytes including the terminating zero, and Java leaves one more
/// unused ("Unix domain path too long").
const SOCKET_PATH_BYTES: usize = 106;

/// A connection that sends a request with one write and receives the reply with one read. It stops allocating once its
/// buffers have grown to the size of the messages.
#[derive(Debug)]
pub struct FramedConnection {
    stream: UnixStream,
    frames: FrameBuffer,
    out: Vec<u8>,
    last_id: u32,
    timeout: Duration,
    child: Arc<ChildState>,
    /// Why every further call fails.
    lost: Option<String>,
}

impl FramedConnection {
    /// Connects to a child that listens on `socket`. A call waits up to `timeout` for its answer.
    ///
    /// # Errors
    /// When nothing listens there.
    pub fn open(
        socket: &Path,
        timeout: Duration,
        child: Arc<ChildState>,
    ) -> std::io::Result<FramedConnection> {
        let stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(timeout))?;
        stream.set_write_timeout(Some(timeout))?;
        Ok(FramedConnection {
            stream,
            frames: FrameBuffer::new(),
            out: Vec::new(),
            last_id: 0,
            timeout,
            child,
            lost: None,
        })
    }

    /// Sends a request and waits for its reply, skipping late replies to requests that timed out. The wait is at
    /// most twice the timeout. A reply of [`WireStatus::Failed`] is an error of kind `System`.
    ///
    /// # Errors
    /// When the request is too long, the answer does not arrive in time or can't be read, the child reports a failure,
    /// or the connection is lost.
    pub fn call(
        &mut self,
        opcode: WireOpcode,
        fields: FieldSelection,
        number: u64,
        key: &[u8],
        values: Option<&FieldValues>,
    ) -> Result<WireReply<'_>, ClientError> {
        if let Some(reason) = &self.lost {
            return Err(ClientError::Lost(reason.clone()));
        }
        self.last_id = self.last_id.wrapping_add(1);
        encode_request(&mut self.out, self.last_id, opcode, fields, number, key, values)
            .map_err(|error| ClientError::System(format!("the request can't be sent: {error}")))?;
        if let Err(error) = self.stream.write_all(&self.out) {
            // Part of the request may have been sent: the next one would be read as the rest of it.
            return Err(match error.kind() {
                ErrorKind::WouldBlock | ErrorKind::TimedOut => self.lose(|child| {
                    format!("{} (process {}) accepts no requests", child.system(), child.pid())
                }),
                _ => self.lose(ChildState::describe_loss),
            });
        }
        self.await_reply()?;
        match WireReply::decode(self.frames.body()) {
            Ok(reply) if reply.status == WireStatus::Failed => Err(ClientError::System(reply.text())),
            Ok(reply) => Ok(reply),
            Err(error) => Err(ClientError::System(format!("the answer can't be read: {error}"))),
        }
    }

    fn await_reply(&mut self) -> Result<(), ClientError> {
        let mut skipping_since = None;
        loop {
            match self.frames.receive(&mut self.stream) {
                // A reply starts with its id, as a request does.
                Ok(true) if WireRequest::id_of(self.frames.body()) == self.last_id => return Ok(()),
                Ok(true) => {
                    let started = *skipping_since.get_or_insert_with(Instant::now);
                    if started.elapsed() > self.timeout {
                        return Err(ClientError::Timeout(self.timeout));
                    }
                }
                Ok(false) => return Err(self.lose(ChildState::describe_loss)),
                Err(error) => {
                    return Err(match error.kind() {
                        ErrorKind::WouldBlock | ErrorKind::TimedOut => ClientError::Timeout(self.timeout),
                        ErrorKind::InvalidData => self.lose(|_| error.to_string()),
                        _ => self.lose(ChildState::describe_loss),
                    });
                }
            }
        }
    }

    fn lose(&mut self, explain: impl FnOnce(&ChildState) -> String) -> ClientError {
        let reason = explain(&self.child);
        self.lost = Some(reason.clone());
        ClientError::Lost(reason)
    }
}

/// The socket that a child listens on. Dropping this removes the socket and the directory that was made for it, if any.
#[derive(Debug)]
pub struct SocketPath {
    path: PathBuf,
    name: String,
    directory: Option<Folder>,
}

impl SocketPath {
    /// A new path in `scratch`, or in a private temporary directory if that would be too long for a socket.
    ///
    /// # Errors
    /// When no directory with a short enough path can be created.
    pub fn new(scratch: &Path, system: &str) -> std::io::Result<SocketPath> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("{system}-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let path = scratch.join(format!("{name}.sock"));
        if path.as_os_str().len() <= SOCKET_PATH_BYTES {
            return Ok(SocketPath { path, name, directory: None });
        }
        let directory = scratch_dir::make()?;
        let short = SocketPath { path: directory.path().join("sock"), name, directory: Some(directory) };
        if short.path.as_os_str().len() > SOCKET_PATH_BYTES {
            let problem =
                format!("both {} and {} are too long for a socket", path.display(), short.path.display());
            return Err(std::io::Error::new(ErrorKind::InvalidInput, problem));
        }
        Ok(short)
    }

    pub fn as_path(&self) -> &Path {
        &self.path
    }

    /// A name that is unique on this machine, for the files of the process that listens.
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl Drop for SocketPath {
    fn drop(&mut self) {
        // Either may be gone already, since the child unlinks its socket when it stops.
        let _ = std::fs::remove_file(&self.path);
        if let Some(directory) = &self.directory {
            let _ = std::fs::remove_dir(directory.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A path of the length that Linux takes, and Java does not, goes to the temporary directory.
    #[test]
    fn socket_path_is_short_enough_for_java() {
        let folder = tempfile::tempdir().unwrap();
        let length = |socket: &SocketPath| socket.as_path().as_os_str().len();
        let here = SocketPath::new(folder.path(), "system").unwrap();
        assert!(here.as_path().starts_with(folder.path()) && length(&here) <= SOCKET_PATH_BYTES);
        for longer in 0..120 {
            let scratch = folder.path().join("x".repeat(longer + 1));
            let socket = SocketPath::new(&scratch, "system").unwrap();
            assert!(length(&socket) <= 106, "{}", socket.as_path().display());
            let fits = scratch.join(format!("{}.sock", socket.name())).as_os_str().len() <= 106;
            assert_eq!(socket.as_path().starts_with(&scratch), fits);
        }
    }
}
