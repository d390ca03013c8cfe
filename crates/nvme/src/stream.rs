//! The stream of a connection: a TCP socket, or bytes in memory.

use std::io::{self, IoSlice, IoSliceMut, Read};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;
use std::time::Duration;
use underlay_sync::Mutex;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::net::{SendAncillaryBuffer, SendFlags, sendmsg, sockopt};

/// TCP probes a peer after this long without a packet, and gives it up after [`PROBES`] without an answer. It
/// matters for hosts that asked for no keep-alive timer.
const SILENCE: Duration = Duration::from_secs(60);
const PROBE_INTERVAL: Duration = Duration::from_secs(10);
const PROBES: u32 = 6;

/// The event that woke a waiting thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StreamReadiness {
    /// Something can be received, or the other side is gone.
    pub can_receive: bool,
    pub is_woken: bool,
}

/// A stream of bytes in both directions. One thread receives; any may send, one at a time.
pub trait ByteStream: Send + Sync {
    /// Waits for bytes. 0 is the end.
    fn receive(&self, buffers: &mut [IoSliceMut<'_>]) -> io::Result<usize>;

    /// Sends what goes at once: `WouldBlock` when nothing does.
    fn send(&self, from: &[IoSlice<'_>]) -> io::Result<usize>;

    /// Waits until something can be received (if asked), sent (if asked), or somebody calls [`ByteStream::wake`].
    fn wait(&self, to_receive: bool, to_send: bool, at_most: Option<Duration>)
    -> io::Result<StreamReadiness>;

    fn wake(&self);

    /// Ends both directions: waiting threads learn of it.
    fn close(&self);

    /// Nothing more will be sent; things may still arrive.
    fn close_sending(&self);

    /// The other side has ended it, whether or not everything was received that it had sent before.
    fn is_hung_up(&self) -> bool;

    /// The descriptor to wait on for room to send, if there is one.
    fn descriptor(&self) -> Option<BorrowedFd<'_>>;

    /// The addresses of this side and of the other.
    fn addresses(&self) -> Option<(SocketAddr, SocketAddr)>;
}

pub struct TcpSocket {
    stream: TcpStream,
    addresses: (SocketAddr, SocketAddr),
    /// Made when somebody first waits for more than the socket: few connections ever do.
    wake: OnceLock<OwnedFd>,
}

impl TcpSocket {
    /// # Errors
    /// When the socket is none any more.
    pub fn new(stream: TcpStream) -> io::Result<TcpSocket> {
        // Each answer is sent as a whole; holding it back for more would only cost time.
        stream.set_nodelay(true)?;
        sockopt::set_socket_keepalive(&stream, true)?;
        sockopt::set_tcp_keepidle(&stream, SILENCE)?;
        sockopt::set_tcp_keepintvl(&stream, PROBE_INTERVAL)?;
        sockopt::set_tcp_keepcnt(&stream, PROBES)?;
        let addresses = (stream.local_addr()?, stream.peer_addr()?);
        Ok(TcpSocket { stream, addresses, wake: OnceLock::new() })
    }

    fn wake_descriptor(&self) -> io::Result<&OwnedFd> {
        if let Some(descriptor) = self.wake.get() {
            return Ok(descriptor);
        }
        let made = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(self.wake.get_or_init(|| made))
    }
}

impl ByteStream for TcpSocket {
    fn receive(&self, buffers: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        match buffers {
            [only] => (&self.stream).read(only),
            _ => (&self.stream).read_vectored(buffers),
        }
    }

    fn send(&self, from: &[IoSlice<'_>]) -> io::Result<usize> {
        // The socket itself stays blocking, for `receive`. NOSIGNAL: a peer that is gone gives EPIPE;
        // SIGPIPE would end a process that does not ignore it.
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        Ok(sendmsg(&self.stream, from, &mut SendAncillaryBuffer::default(), flags)?)
    }

    fn wait(
        &self,
        to_receive: bool,
        to_send: bool,
        at_most: Option<Duration>,
    ) -> io::Result<StreamReadiness> {
        let mut wanted = PollFlags::empty();
        wanted.set(PollFlags::IN, to_receive);
        wanted.set(PollFlags::OUT, to_send);
        let wake = self.wake_descriptor()?;
        let mut polled = [PollFd::new(&self.stream, wanted), PollFd::new(wake, PollFlags::IN)];
        let at_most = at_most.map(|time| Timespec {
            tv_sec: time.as_secs().min(3600) as i64,
            tv_nsec: i64::from(time.subsec_nanos()),
        });
        match poll(&mut polled, at_most.as_ref()) {
            Err(rustix::io::Errno::INTR) => return Ok(StreamReadiness::default()),
            other => other?,
        };
        let is_woken = !polled[1].revents().is_empty();
        if is_woken {
            let _ = rustix::io::read(wake, &mut [0_u8; 8]);
        }
        // An error or the end is there to be received, too.
        let received = PollFlags::IN | PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL | PollFlags::RDHUP;
        Ok(StreamReadiness { can_receive: polled[0].revents().intersects(received), is_woken })
    }

    fn wake(&self) {
        if let Ok(descriptor) = self.wake_descriptor() {
            // It can only fail when the counter is full, and then there is something to wake by.
            let _ = rustix::io::write(descriptor, &1_u64.to_ne_bytes());
        }
    }

    fn close(&self) {
        let _ = self.stream.shutdown(Shutdown::Both);
    }

    fn close_sending(&self) {
        let _ = self.stream.shutdown(Shutdown::Write);
    }

    fn is_hung_up(&self) -> bool {
        let mut polled = [PollFd::new(&self.stream, PollFlags::RDHUP)];
        let polled_now = poll(&mut polled, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }));
        let ended = PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR;
        polled_now.is_ok() && polled[0].revents().intersects(ended)
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.stream.as_fd())
    }

    fn addresses(&self) -> Option<(SocketAddr, SocketAddr)> {
        Some(self.addresses)
    }
}

/// A host that has said everything already, and whose answers are kept.
pub(crate) struct RecordedStream {
    said: Mutex<io::Cursor<Vec<u8>>>,
    answered: Mutex<Vec<u8>>,
}

impl RecordedStream {
    pub(crate) fn new(input: &[u8]) -> RecordedStream {
        RecordedStream { said: Mutex::new(io::Cursor::new(input.to_vec())), answered: Mutex::default() }
    }

    pub(crate) fn into_answer(self: std::sync::Arc<Self>) -> Vec<u8> {
        std::mem::take(&mut self.answered.lock())
    }
}

impl ByteStream for RecordedStream {
    fn receive(&self, buffers: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        self.said.lock().read_vectored(buffers)
    }

    fn send(&self, from: &[IoSlice<'_>]) -> io::Result<usize> {
        let mut answered = self.answered.lock();
        let before = answered.len();
        from.iter().for_each(|piece| answered.extend_from_slice(piece));
        Ok(answered.len() - before)
    }

    fn wait(&self, to_receive: bool, _: bool, _: Option<Duration>) -> io::Result<StreamReadiness> {
        Ok(StreamReadiness { can_receive: to_receive, is_woken: false })
    }

    fn wake(&self) {}

    fn close(&self) {
        let mut cursor = self.said.lock();
        cursor.set_position(u64::MAX);
    }

    fn close_sending(&self) {}

    fn is_hung_up(&self) -> bool {
        false
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn addresses(&self) -> Option<(SocketAddr, SocketAddr)> {
        None
    }
}
