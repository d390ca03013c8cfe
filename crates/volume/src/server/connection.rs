//! The asking side of the control socket.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use super::protocol::{Command, Reply};

/// Deleting a large volume or checking a large pool takes its time, and so does a change of pace in slow motion.
const REPLY_LIMIT: Duration = Duration::from_secs(600);
/// A reply carries a line for each volume, or histograms and a series for each device; more than this is no reply.
const MAX_REPLY_BYTES: u64 = 256 << 20;

/// A connection to the server of a pool.
#[derive(Debug)]
pub struct Connection {
    reader: BufReader<UnixStream>,
    writer: UnixStream,
}

impl Connection {
    /// Connects to a server's control socket.
    ///
    /// # Errors
    /// As connecting to a Unix socket fails: `NotFound` or `ConnectionRefused` where no server runs.
    pub fn open(control: &Path) -> io::Result<Connection> {
        let writer = UnixStream::connect(control)?;
        writer.set_read_timeout(Some(REPLY_LIMIT))?;
        writer.set_write_timeout(Some(REPLY_LIMIT))?;
        Ok(Connection { reader: BufReader::new(writer.try_clone()?), writer })
    }

    /// Whether an error of `open` means that nobody serves there.
    pub fn is_nobody(error: &io::Error) -> bool {
        matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused)
    }

    /// Says a command and waits for its reply.
    ///
    /// # Errors
    /// When the server went away, took too long, or answered with something else than a reply.
    pub fn ask(&mut self, command: &Command) -> io::Result<Reply> {
        let mut line = serde_json::to_vec(command)?;
        line.push(b'\n');
        self.writer.write_all(&line)?;
        let mut reply = Vec::new();
        (&mut self.reader).take(MAX_REPLY_BYTES).read_until(b'\n', &mut reply)?;
        if reply.is_empty() {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the server closed the connection"));
        }
        Ok(serde_json::from_slice(&reply)?)
    }
}
