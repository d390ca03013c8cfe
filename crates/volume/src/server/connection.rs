//! The asking side of the control socket.

use std::io;
use std::path::Path;
use std::time::Duration;

use underlay_files::control_socket;

use super::protocol::{PoolCommand, PoolReply};

/// Deleting a large volume or checking a large pool takes its time, and so does a change of pace in slow motion.
const REPLY_LIMIT: Duration = Duration::from_secs(600);
/// A connection to the server of a pool.
#[derive(Debug)]
pub struct PoolConnection(control_socket::Connection<PoolCommand, PoolReply>);

impl PoolConnection {
    /// Connects to a server's control socket.
    ///
    /// # Errors
    /// As connecting to a Unix socket fails: `NotFound` or `ConnectionRefused` where no server runs.
    pub fn open(control: &Path) -> io::Result<PoolConnection> {
        control_socket::Connection::open(control, REPLY_LIMIT).map(PoolConnection)
    }

    /// The same for callers that only look, and wait no longer than `limit`.
    ///
    /// # Errors
    /// As [`open`](PoolConnection::open).
    pub fn open_within(control: &Path, limit: Duration) -> io::Result<PoolConnection> {
        control_socket::Connection::open(control, limit).map(PoolConnection)
    }

    /// Whether an error of `open` means that nobody serves there.
    pub fn is_nobody(error: &io::Error) -> bool {
        matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused)
    }

    /// Says a command and waits for its reply.
    ///
    /// # Errors
    /// When the server went away, took too long, or answered with something else than a reply.
    pub fn ask(&mut self, command: &PoolCommand) -> io::Result<PoolReply> {
        self.0.ask(command)
    }
}
