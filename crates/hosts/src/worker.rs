//! A worker, and the address that it listens on.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use openssl::ssl::{Ssl, SslContext};
use underlay_sync::Mutex;

use crate::HostError;
use crate::frame::FrameError;
use crate::generator::{JobConnector, LoadGenerator, WatchStarter};
use crate::message::ProgressReport;
use crate::session::{WorkerSession, report_of, send_welcome};
use crate::stream::{DeadlineSocket, PeerStream};
use crate::trust::{PeerSide, TrustMethod};

/// The limit for a handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// The maximum number of unauthenticated connections. When there are more, the oldest is closed, so that silent
/// connections can't keep others out.
const MAX_PENDING_HANDSHAKES: usize = 16;
/// How long to wait for the previous coordinator to leave.
const TURN_TIME: Duration = Duration::from_secs(1);
/// How often it checks for a connection.
const ACCEPT_INTERVAL: Duration = Duration::from_millis(20);
const COPY_BYTES: usize = 64 << 10;

/// Serves coordinators, one after another.
pub struct WorkerServer {
    generator: LoadGenerator,
    is_busy: AtomicBool,
}

/// An event on a connection to a worker.
#[derive(Clone, Copy, Debug)]
pub enum ConnectionEvent<'a> {
    /// Anyone on the network can cause this at any rate.
    Refused {
        from: SocketAddr,
        why: &'a str,
    },
    Coordinates {
        from: SocketAddr,
    },
    Gone {
        from: SocketAddr,
        error: Option<&'a FrameError>,
    },
}

/// Where a worker listens.
pub struct WorkerListener {
    listener: TcpListener,
    context: SslContext,
    waiting: PendingHandshakes,
}

/// Connections that wait for their handshake, each with a number, in order of arrival.
#[derive(Default)]
struct PendingHandshakes(Mutex<VecDeque<(u64, TcpStream)>>);

impl PendingHandshakes {
    /// Adds one, and closes the oldest if there are too many.
    fn add(&self, number: u64, stream: TcpStream) {
        let mut waiting = self.0.lock();
        waiting.push_back((number, stream));
        while waiting.len() > MAX_PENDING_HANDSHAKES {
            if let Some((_, longest)) = waiting.pop_front() {
                // Its handshake fails, and its thread ends.
                let _ = longest.shutdown(Shutdown::Both);
            }
        }
    }

    /// Removes one. Returns whether it was still waiting.
    fn remove(&self, number: u64) -> bool {
        let mut waiting = self.0.lock();
        let place = waiting.iter().position(|(one, _)| *one == number);
        place.and_then(|place| waiting.remove(place)).is_some()
    }
}

impl WorkerListener {
    /// # Errors
    /// When it can't listen there, or the token or the certificates can't be used.
    pub fn open(address: &str, trust: &TrustMethod) -> Result<Self, HostError> {
        let context = trust.context(PeerSide::Worker)?;
        let has_port = address.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
        if !has_port {
            return Err(HostError::Job(format!("cannot listen on '{address}': expected HOST:PORT")));
        }
        let listen_error = |error: std::io::Error| HostError::Listen {
            address: address.to_owned(),
            problem: match error.kind() {
                std::io::ErrorKind::AddrInUse => format!("{error}: expected a port that is not in use"),
                std::io::ErrorKind::AddrNotAvailable => format!("{error}: expected an address of this host"),
                _ => error.to_string(),
            },
        };
        let addresses: Vec<SocketAddr> = address.to_socket_addrs().map_err(listen_error)?.collect();
        let listener = TcpListener::bind(&addresses[..]).map_err(listen_error)?;
        listener.set_nonblocking(true).map_err(listen_error)?;
        Ok(WorkerListener { listener, context, waiting: PendingHandshakes::default() })
    }

    /// The address that it listens on.
    ///
    /// # Errors
    /// When the operating system can't tell.
    pub fn address(&self) -> std::io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Performs the handshake. Until it succeeds, nothing else is read.
    fn welcome(&self, stream: TcpStream) -> std::io::Result<PeerStream> {
        let wire = DeadlineSocket::tcp(stream, Instant::now() + HANDSHAKE_TIMEOUT)?;
        PeerStream::accept(Ssl::new(&self.context)?, wire)
    }
}

impl WorkerServer {
    pub fn new(connector: JobConnector) -> Self {
        WorkerServer { generator: LoadGenerator::new(connector), is_busy: AtomicBool::new(false) }
    }

    /// Has the processes that a run's clients start watched, so that one that was stopped is in the results.
    pub fn watched_by(self, watch: WatchStarter) -> Self {
        WorkerServer { generator: self.generator.watched_by(watch), ..self }
    }

    /// The progress of this worker's part of a run; `None` while it has none.
    pub fn progress(&self) -> Option<ProgressReport> {
        self.generator.running().map(|control| report_of(&control, false))
    }

    /// Whether a coordinator is connected.
    pub fn is_busy(&self) -> bool {
        self.is_busy.load(Ordering::SeqCst)
    }

    /// Serves one coordinator at a time until `stop` is set, or until there was none for `idle_limit`. `tell` is called
    /// with what happens.
    pub fn serve(
        &self,
        listener: &WorkerListener,
        idle_limit: Option<Duration>,
        stop: &AtomicBool,
        tell: &(dyn Fn(ConnectionEvent<'_>) + Sync),
    ) {
        let mut busy = Instant::now();
        let mut number = 0;
        std::thread::scope(|scope| {
            while !stop.load(Ordering::Relaxed) {
                if self.is_busy.load(Ordering::SeqCst) {
                    busy = Instant::now();
                }
                // A connection that is already waiting is still served, because this is checked before accepting.
                if idle_limit.is_some_and(|limit| busy.elapsed() > limit) {
                    return;
                }
                let Ok((stream, from)) = listener.listener.accept() else {
                    std::thread::sleep(ACCEPT_INTERVAL);
                    continue;
                };
                number += 1;
                // The listener is non-blocking, which some systems pass on to accepted sockets. The clone
                // is for `PendingHandshakes`, which can then close a connection while its thread is in the handshake.
                let waits = stream.set_nonblocking(false).and_then(|()| stream.try_clone());
                let Ok(same) = waits else { continue };
                listener.waiting.add(number, same);
                let visit = move || {
                    let welcomed = listener.welcome(stream);
                    let refused = |reason: &str| tell(ConnectionEvent::Refused { from, why: reason });
                    if !listener.waiting.remove(number) {
                        return refused("too many other connections are waiting for their handshake");
                    }
                    match welcomed {
                        Ok(stream) => self.serve_connection(stream, from, stop, tell),
                        Err(problem) => refused(&problem.to_string()),
                    }
                };
                let named = std::thread::Builder::new().name("visit".to_owned());
                if let Err(error) = named.spawn_scoped(scope, visit) {
                    listener.waiting.remove(number);
                    tell(ConnectionEvent::Refused {
                        from,
                        why: &format!("can't start a thread for it: {error}"),
                    });
                }
            }
        });
    }

    /// Serves the coordinator at the other end of two streams, such as the standard streams of a program under ssh,
    /// until it is gone.
    ///
    /// # Errors
    /// When the streams fail, or a message can't be parsed.
    pub fn serve_streams(
        &self,
        input: impl Read + Send + 'static,
        mut output: impl Write + Send,
        stop: &AtomicBool,
    ) -> Result<(), FrameError> {
        // Copied through a socket, because these streams have no timeouts.
        let (inner, outer) = UnixStream::pair()?;
        let (mut to_session, mut from_session) = (outer.try_clone()?, outer);
        // This thread can't be interrupted while it waits for input. It ends with the program.
        std::thread::Builder::new().name("input".to_owned()).spawn(move || {
            let _ = copy(input, &mut to_session);
            let _ = to_session.shutdown(Shutdown::Write);
        })?;
        std::thread::scope(|scope| {
            let copying = scope.spawn(move || copy(&mut from_session, &mut output));
            let ended = WorkerSession::new(
                &self.generator,
                PeerStream::Plain(DeadlineSocket::unix(inner, Instant::now())),
                stop,
            )
            .serve();
            let _ = copying.join();
            ended
        })
    }

    /// Waits a moment for the previous coordinator to leave. Returns whether this one may go on.
    fn take_turn(&self) -> bool {
        let latest = Instant::now() + TURN_TIME;
        while self.is_busy.swap(true, Ordering::SeqCst) {
            if Instant::now() > latest {
                return false;
            }
            std::thread::sleep(ACCEPT_INTERVAL);
        }
        true
    }

    fn serve_connection(
        &self,
        mut stream: PeerStream,
        from: SocketAddr,
        stop: &AtomicBool,
        tell: &(dyn Fn(ConnectionEvent<'_>) + Sync),
    ) {
        if !self.take_turn() {
            tell(ConnectionEvent::Refused { from, why: "another coordinator is active" });
            let _ = send_welcome(&mut stream, true);
            return;
        }
        tell(ConnectionEvent::Coordinates { from });
        let ended = WorkerSession::new(&self.generator, stream, stop).serve();
        self.is_busy.store(false, Ordering::SeqCst);
        tell(ConnectionEvent::Gone { from, error: ended.as_ref().err() });
    }
}

/// Copies data without delay.
fn copy(mut from: impl Read, to: &mut impl Write) -> std::io::Result<()> {
    let mut buffer = vec![0; COPY_BYTES];
    loop {
        match from.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(count) => {
                to.write_all(&buffer[..count])?;
                to.flush()?;
            }
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}
