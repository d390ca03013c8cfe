//! How a connection to an address is had.

use std::fmt;
use std::io;
use std::net::{TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::time::Duration;

use crate::stream::{ByteStream, TcpSocket};

type DialStream = dyn Fn(&str, Duration) -> io::Result<Arc<dyn ByteStream>> + Send + Sync;

/// TCP, or what stands for it.
#[derive(Clone)]
pub struct StreamDialer(Arc<DialStream>);

impl StreamDialer {
    /// Calls `dial` with an address and the time that it may take.
    pub fn new(
        dial: impl Fn(&str, Duration) -> io::Result<Arc<dyn ByteStream>> + Send + Sync + 'static,
    ) -> StreamDialer {
        StreamDialer(Arc::new(dial))
    }

    pub(super) fn dial(&self, address: &str, patience: Duration) -> io::Result<Arc<dyn ByteStream>> {
        (self.0)(address, patience)
    }
}

impl Default for StreamDialer {
    fn default() -> StreamDialer {
        StreamDialer::new(connect)
    }
}

impl fmt::Debug for StreamDialer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Dialer")
    }
}

/// The first of the name's addresses that answers.
fn connect(address: &str, patience: Duration) -> io::Result<Arc<dyn ByteStream>> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name resolves to no address");
    for address in address.to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, patience) {
            Ok(socket) => return Ok(Arc::new(TcpSocket::new(socket)?)),
            Err(error) => last = error,
        }
    }
    Err(last)
}
