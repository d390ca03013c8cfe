//! Accepting connections: how many there may be, and which one is closed when all places are taken.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use hyper_util::server::graceful::GracefulShutdown;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use underlay_sync::rate_limited_log::RateLimitedLog;

use super::connection::ConnectionSet;
use super::seats::{ConnectionSeats, ScarceResource};
use super::tls;

/// How often it is looked whose peer is too slow.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// How long a new connection waits for the place of one that is being closed before another one is.
const PLACE_PAUSE: Duration = Duration::from_millis(50);
/// The bytes of an answer that a socket keeps besides those on their way.
const MAX_UNSENT_BYTES: libc::c_int = 128 << 10;
/// After an error of `accept` (no descriptors left, for example).
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Where connections come from: a port, or a simulation.
pub(crate) trait ConnectionSource {
    type Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static;

    /// The next one. A caller that stops waiting misses none.
    fn next(&mut self) -> impl Future<Output = io::Result<(Self::Stream, SocketAddr)>> + Send;

    /// Before it is served.
    fn prepare(_stream: &Self::Stream) {}
}

impl ConnectionSource for TcpListener {
    type Stream = TcpStream;

    async fn next(&mut self) -> io::Result<(TcpStream, SocketAddr)> {
        self.accept().await
    }

    fn prepare(stream: &TcpStream) {
        // Small answers must not wait for the client's acknowledgement.
        let _ = stream.set_nodelay(true);
        limit_unsent(stream);
    }
}

pub(super) async fn accept_inner(
    listener: Option<impl ConnectionSource>,
    connections: &Arc<ConnectionSet>,
    acceptor: Option<&tls::TlsFrontend>,
    most: usize,
    graceful: &GracefulShutdown,
) {
    match listener {
        Some(listener) => accept(listener, connections, acceptor, most, graceful).await,
        None => std::future::pending().await,
    }
}

/// Takes connections for as long as it is waited for, and gives up those whose peers are too slow.
pub(super) async fn accept(
    mut listener: impl ConnectionSource,
    connections: &Arc<ConnectionSet>,
    acceptor: Option<&tls::TlsFrontend>,
    most: usize,
    graceful: &GracefulShutdown,
) {
    let places = Arc::new(Semaphore::new(most));
    let (mut looks, failures) = (tokio::time::interval(LOOK_EVERY), RateLimitedLog::default());
    loop {
        let accepted = tokio::select! {
            accepted = listener.next() => accepted,
            _ = looks.tick() => {
                connections.seats.look();
                continue;
            }
        };
        match accepted {
            Ok((stream, peer)) => {
                let place = place_for_one_more(&places, &connections.seats).await;
                prepare_with(&listener, &stream);
                connections.start(stream, peer, acceptor.map(tls::TlsFrontend::acceptor), place, graceful);
            }
            Err(error) => {
                make_do(&error, &connections.seats, &failures);
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// A connection can't be accepted. If no more files may be open, the connection that has been idle longest gives its
/// own to the one that waits. This may go on for long, so the log has one line for many.
fn make_do(error: &io::Error, seats: &ConnectionSeats, failures: &RateLimitedLog) {
    let lacks_descriptors = underlay_files::lacks_descriptors(error);
    let is_one_closed = lacks_descriptors && seats.close_idlest();
    let Some(count) = failures.count() else { return };
    let outcome = match is_one_closed {
        true => "idle ones are closed for others",
        false => "clients wait",
    };
    let what_to_do = match lacks_descriptors {
        true => "\n  what to do: raise the limit of open files (`ulimit -n`, or LimitNOFILE= of the service)",
        false => "",
    };
    tracing::warn!("cannot accept a connection, {count} times by now: {error}; {outcome}{what_to_do}");
}

fn prepare_with<A: ConnectionSource>(_arrivals: &A, stream: &A::Stream) {
    A::prepare(stream);
}

/// When all places are taken, closes the connection that has been idle longest, or that of the slowest client. Further
/// connections wait in the kernel's queue meanwhile, and take none of our memory.
async fn place_for_one_more(places: &Arc<Semaphore>, seats: &ConnectionSeats) -> OwnedSemaphorePermit {
    loop {
        if let Ok(place) = Arc::clone(places).try_acquire_owned() {
            return place;
        }
        if !seats.close_idlest() {
            seats.make_room(ScarceResource::Slot);
        }
        seats.look();
        let next = tokio::time::timeout(PLACE_PAUSE, Arc::clone(places).acquire_owned()).await;
        if let Ok(Ok(place)) = next {
            return place;
        }
    }
}

/// The kernel keeps up to megabytes for a client that takes nothing, and counts them as ours.
fn limit_unsent(stream: &TcpStream) {
    use std::os::fd::AsRawFd as _;
    let bytes: libc::c_int = MAX_UNSENT_BYTES;
    let length = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: the descriptor is open for as long as the stream is borrowed, and the kernel reads `length` bytes of an integer that lives here.
    let set = unsafe {
        let value = std::ptr::from_ref(&bytes).cast();
        libc::setsockopt(stream.as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT, value, length)
    };
    if set != 0 {
        tracing::debug!("cannot limit a socket's buffer: {}", std::io::Error::last_os_error());
    }
}

#[cfg(test)]
mod tests {
    use rustix::io::Errno;

    use super::*;

    #[tokio::test]
    async fn connection_without_descriptor_takes_that_of_idlest() {
        let (seats, failures) = (ConnectionSeats::new(false), RateLimitedLog::default());
        let (first, second) = (seats.take(), seats.take());
        first.seat().request_begins();
        let is_over = |seat: &super::super::seats::SeatGuard| {
            let seat = seat.seat();
            async move { futures_util::poll!(Box::pin(seat.is_over())).is_ready() }
        };
        make_do(&Errno::CONNABORTED.into(), &seats, &failures);
        assert!(!is_over(&first).await && !is_over(&second).await);
        make_do(&Errno::MFILE.into(), &seats, &failures);
        assert!(!is_over(&first).await && is_over(&second).await);
        // Nobody loses a request that is in flight.
        make_do(&Errno::NFILE.into(), &seats, &failures);
        assert!(!is_over(&first).await);
        assert_eq!(failures.count(), None, "the log has one line for all of them");
    }
}
