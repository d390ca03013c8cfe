//! The connection between a coordinator and a worker: a socket, or TLS over one, on which every wait has a limit.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use openssl::ssl::{Ssl, SslStream};
use openssl::x509::X509VerifyResult;

/// A timeout of zero would be an error for a socket.
const MIN_WAIT: Duration = Duration::from_millis(1);

#[derive(Debug)]
enum StreamSocket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

/// A socket with a deadline for all of its reads and writes together.
#[derive(Debug)]
pub(crate) struct DeadlineSocket {
    socket: StreamSocket,
    deadline: Instant,
}

impl DeadlineSocket {
    pub(crate) fn tcp(stream: TcpStream, deadline: Instant) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        Ok(DeadlineSocket { socket: StreamSocket::Tcp(stream), deadline })
    }

    pub(crate) fn unix(stream: UnixStream, deadline: Instant) -> Self {
        DeadlineSocket { socket: StreamSocket::Unix(stream), deadline }
    }

    fn left(&self) -> io::Result<Option<Duration>> {
        // `WouldBlock` is what a socket with a timeout reports as well, so callers see one kind.
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(Some(left.max(MIN_WAIT))) }
    }
}

impl Read for DeadlineSocket {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = self.left()?;
        match &mut self.socket {
            StreamSocket::Tcp(stream) => stream.set_read_timeout(left).and_then(|()| stream.read(buffer)),
            StreamSocket::Unix(stream) => stream.set_read_timeout(left).and_then(|()| stream.read(buffer)),
        }
    }
}

impl Write for DeadlineSocket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let left = self.left()?;
        match &mut self.socket {
            StreamSocket::Tcp(stream) => stream.set_write_timeout(left).and_then(|()| stream.write(bytes)),
            StreamSocket::Unix(stream) => stream.set_write_timeout(left).and_then(|()| stream.write(bytes)),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A connection to an authenticated peer.
pub(crate) enum PeerStream {
    /// Within this machine or through ssh.
    Plain(DeadlineSocket),
    Encrypted(Box<SslStream<DeadlineSocket>>),
}

impl PeerStream {
    /// Performs the handshake of the client, until the deadline of the wire.
    pub(crate) fn connect(ssl: Ssl, wire: DeadlineSocket) -> io::Result<Self> {
        PeerStream::shake_hands(ssl, wire, SslStream::connect)
    }

    /// Performs the handshake of the server, until the deadline of the wire.
    pub(crate) fn accept(ssl: Ssl, wire: DeadlineSocket) -> io::Result<Self> {
        PeerStream::shake_hands(ssl, wire, SslStream::accept)
    }

    fn shake_hands(
        ssl: Ssl,
        wire: DeadlineSocket,
        handshake: fn(&mut SslStream<DeadlineSocket>) -> Result<(), openssl::ssl::Error>,
    ) -> io::Result<Self> {
        let mut stream = SslStream::new(ssl, wire)?;
        let Err(error) = handshake(&mut stream) else { return Ok(PeerStream::Encrypted(Box::new(stream))) };
        if error.io_error().is_some_and(|error| error.kind() == io::ErrorKind::WouldBlock) {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "the TLS handshake timed out"));
        }
        let mut problem = format!("the TLS handshake failed: {}", describe_error(&error));
        let verified = stream.ssl().verify_result();
        if verified != X509VerifyResult::OK {
            problem = format!("{problem}: {}", verified.error_string());
        }
        Err(io::Error::other(problem))
    }

    /// Sets the deadline for reads and writes.
    pub(crate) fn wait_at_most(&mut self, wait: Duration) {
        let wire = match self {
            PeerStream::Plain(wire) => wire,
            PeerStream::Encrypted(stream) => stream.get_mut(),
        };
        wire.deadline = Instant::now() + wait;
    }
}

impl Read for PeerStream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            PeerStream::Plain(wire) => wire.read(buffer),
            PeerStream::Encrypted(stream) => stream.read(buffer).map_err(said),
        }
    }
}

impl Write for PeerStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            PeerStream::Plain(wire) => wire.write(bytes),
            PeerStream::Encrypted(stream) => stream.write(bytes).map_err(said),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            PeerStream::Plain(wire) => wire.flush(),
            PeerStream::Encrypted(stream) => stream.flush(),
        }
    }
}

/// OpenSSL's reasons without locations in its source, and without the names of older protocols in its alerts.
fn describe_error(error: &openssl::ssl::Error) -> String {
    let Some(stack) = error.ssl_error() else { return error.to_string() };
    let reason = |error: &openssl::error::Error| {
        let reason = error.reason().unwrap_or("for an unknown reason");
        match reason.split_once(" alert ") {
            Some((_, alert)) => format!("the other side refused: {alert}"),
            None => reason.to_owned(),
        }
    };
    stack.errors().iter().map(reason).collect::<Vec<_>>().join(", ")
}

/// Replaces TLS errors with their reasons. Errors of the socket stay as they are.
fn said(error: io::Error) -> io::Error {
    let of_tls = error.get_ref().and_then(|inner| inner.downcast_ref::<openssl::ssl::Error>());
    of_tls.map(describe_error).map_or(error, io::Error::other)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A peer that sends a byte now and then must not be able to extend the deadline.
    #[test]
    fn many_small_pieces_do_not_put_the_deadline_off() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let dribbling = std::thread::spawn(move || {
            // Until nobody reads any more.
            while theirs.write_all(b"x").is_ok() {
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        let mut wire = DeadlineSocket::unix(ours, Instant::now() + Duration::from_millis(100));
        let error = wire.read_exact(&mut [0; 1 << 20]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
        drop(wire);
        dribbling.join().unwrap();
    }
}
