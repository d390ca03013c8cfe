//! A Unix socket on which a process takes commands from its own user: one JSON value a line in each direction, a reply
//! for every line.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::marker::PhantomData;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType};
use serde::Serialize;
use serde::de::DeserializeOwned;
use underlay_sync::UnsimulatedMutex as Mutex;

use crate::listen;

/// Connections served at once. For a further one, one that is idle makes room.
const MAX_CONNECTIONS: usize = 16;
/// So long may a peer take for a line that it has begun, and for its first.
const LINE_LIMIT: Duration = Duration::from_secs(10);
/// So long may a peer take none of its reply.
const WRITE_LIMIT: Duration = Duration::from_secs(60);
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// A reply may carry histograms and a series for each device; more than this is no reply.
const MAX_REPLY_BYTES: u64 = 256 << 20;

/// Instead of a reply, on a connection that ends: what is said on it from now on is not obeyed, and may be said again
/// on another one.
const NOT_OBEYED: &[u8] = b"\n";

/// The answer to a line.
pub struct Answer<R> {
    pub reply: R,
    /// The action once the reply has been sent.
    pub afterwards: Option<Box<dyn FnOnce()>>,
}

impl<R> From<R> for Answer<R> {
    fn from(reply: R) -> Answer<R> {
        Answer { reply, afterwards: None }
    }
}

/// A control socket that is listened on until it is dropped.
#[derive(Debug)]
pub struct ControlSocket {
    path: PathBuf,
    has_ended: Arc<AtomicBool>,
    accept: Option<JoinHandle<()>>,
}

impl ControlSocket {
    /// Creates the socket, for this user alone, and answers every line on it by `answer`, on its own threads.
    /// A line is passed with its newline. A line longer than `max_line_bytes` is passed truncated, one byte
    /// longer than allowed, and ends the connection after its reply.
    ///
    /// # Errors
    /// When something is there already, or neither the socket nor the thread can be had.
    pub fn listen<R: Serialize>(
        path: &Path,
        max_line_bytes: u64,
        answer: impl Fn(&[u8]) -> Answer<R> + Send + Sync + 'static,
    ) -> io::Result<ControlSocket> {
        let listener = listen(path)?;
        let has_ended = Arc::new(AtomicBool::new(false));
        let (connections, is_over) = (Arc::new(Connections::default()), Arc::clone(&has_ended));
        let answer = Arc::new(answer);
        let accept = move || {
            loop {
                let accepted = listener.accept();
                if is_over.load(Ordering::SeqCst) {
                    return;
                }
                let Ok((stream, _)) = accepted else {
                    // No descriptor is left, for one: asking again at once would keep a core busy.
                    std::thread::sleep(ACCEPT_PAUSE);
                    continue;
                };
                let Some(served) = connections.begin(stream) else { continue };
                let (answer, peer) = (Arc::clone(&answer), Arc::clone(&served.peer));
                let serve = move || {
                    // An error here means that the peer hung up, which changes nothing about what it
                    // commanded.
                    if serve(&served, max_line_bytes, &*answer).is_ok() {
                        say_not_obeyed(&served.peer.stream);
                    }
                };
                // Without a thread the stream is dropped, and the peer sees its connection end.
                if Builder::new().name("control".into()).spawn(serve).is_err() {
                    say_not_obeyed(&peer.stream);
                }
            }
        };
        let accept = Builder::new().name("control-accept".into()).spawn(accept)?;
        Ok(ControlSocket { path: path.to_owned(), has_ended, accept: Some(accept) })
    }

    /// Serves until the process ends. The socket stays until its folder is removed.
    pub fn keep(self) {
        std::mem::forget(self);
    }
}

impl Drop for ControlSocket {
    fn drop(&mut self) {
        self.has_ended.store(true, Ordering::SeqCst);
        // Wakes the thread that accepts. Where that fails it is left to the end of the process.
        if connect_within(&self.path, LINE_LIMIT).is_ok()
            && let Some(accept) = self.accept.take()
        {
            let _ = accept.join();
        }
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Connects within a limit. A peer that was stopped accepts nobody, and once its queue is full, a plain `connect` waits
/// without end.
fn connect_within(path: &Path, limit: Duration) -> io::Result<UnixStream> {
    let socket =
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    let (address, deadline) = (SocketAddrUnix::new(path)?, Instant::now() + limit);
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        // On Unix sockets, this limit holds for `connect` as well.
        set_socket_timeout(&socket, Timeout::Send, Some(left))?;
        match rustix::net::connect(&socket, &address) {
            Ok(()) => return Ok(UnixStream::from(socket)),
            // On a socket with a time limit, any signal does this, also one that the kernel would restart calls after.
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Whether a process may be listening there, even if it accepts nobody. Only the kernel's word that there is none
/// counts against it: a caller with too few descriptors knows nothing of the socket, and may be about to remove it.
pub fn is_listening(path: &Path) -> bool {
    const LIMIT: Duration = Duration::from_secs(1);
    let is_absent = |kind| {
        use io::ErrorKind::{ConnectionRefused, InvalidFilename, InvalidInput, NotADirectory, NotFound};
        matches!(kind, ConnectionRefused | InvalidFilename | InvalidInput | NotADirectory | NotFound)
    };
    connect_within(path, LIMIT).err().is_none_or(|error| !is_absent(error.kind()))
}

/// Those that are served now.
#[derive(Default)]
struct Connections(Mutex<Vec<Arc<Peer>>>);

/// The other end of a connection.
struct Peer {
    stream: UnixStream,
    state: Mutex<PeerState>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum PeerState {
    /// It has no command in flight, since then.
    Idle(Instant),
    Answered,
    /// It had to make room. Nothing that it says is obeyed any more.
    SentAway,
}

impl Connections {
    /// Counts one more, until that is dropped. Where there are too many, the one that has been idle for longest makes
    /// room: a peer that was stopped keeps nobody out, and one that still wants something connects again. Nothing where
    /// all are being answered.
    fn begin(self: &Arc<Self>, stream: UnixStream) -> Option<Served> {
        let mut all = self.0.lock();
        if all.len() >= MAX_CONNECTIONS {
            let idle_since = |peer: &Arc<Peer>| match *peer.state.lock() {
                PeerState::Idle(instant) => Some(instant),
                PeerState::Answered | PeerState::SentAway => None,
            };
            let idle = all.iter().enumerate().filter_map(|(index, peer)| Some((idle_since(peer)?, index)));
            let longest = idle.min().map(|(_, longest)| longest).filter(|longest| {
                // It may have said something since it was looked at.
                let is_idle = |state| matches!(state, PeerState::Idle(_));
                all[*longest].change(is_idle, PeerState::SentAway).is_some()
            });
            let Some(longest) = longest else {
                say_not_obeyed(&stream);
                return None;
            };
            let peer = &all[longest];
            say_not_obeyed(&peer.stream);
            let _ = peer.stream.shutdown(std::net::Shutdown::Both);
            all.remove(longest);
        }
        let peer = Arc::new(Peer { stream, state: Mutex::new(PeerState::Idle(Instant::now())) });
        all.push(Arc::clone(&peer));
        Some(Served { connections: Arc::clone(self), peer })
    }
}

impl Peer {
    /// Goes on to `next` from a state that fits, and says whether it did.
    fn change(&self, fits: impl Fn(PeerState) -> bool, next: PeerState) -> Option<()> {
        let mut state = self.state.lock();
        fits(*state).then(|| *state = next)
    }
}

/// A connection that counts until this is dropped.
struct Served {
    connections: Arc<Connections>,
    peer: Arc<Peer>,
}

impl Drop for Served {
    fn drop(&mut self) {
        self.connections.0.lock().retain(|peer| !Arc::ptr_eq(peer, &self.peer));
    }
}

/// Best effort, and without waiting for a peer that takes nothing: it then sees only that its connection ended.
fn say_not_obeyed(stream: &UnixStream) {
    let _ = rustix::net::send(stream, NOT_OBEYED, SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
}

/// Until nothing more is obeyed on this connection. An error where the peer has nothing more to say, or took no reply
/// to what was obeyed.
fn serve<R: Serialize>(
    served: &Served,
    max_line_bytes: u64,
    answer: &impl Fn(&[u8]) -> Answer<R>,
) -> io::Result<()> {
    let peer = &served.peer;
    let mut writer = peer.stream.try_clone()?;
    writer.set_write_timeout(Some(WRITE_LIMIT))?;
    let mut reader = BufReader::new(peer.stream.try_clone()?);
    // Who connects has something to say. Later a peer may be silent for as long as it likes, but not in the middle of a
    // line.
    reader.get_ref().set_read_timeout(Some(LINE_LIMIT))?;
    loop {
        match reader.fill_buf().map(<[u8]>::is_empty) {
            Ok(false) => {}
            Ok(true) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Err(_) => return Ok(()),
        }
        reader.get_ref().set_read_timeout(Some(LINE_LIMIT))?;
        let mut line = Vec::new();
        // One byte more than allowed tells a line that is too long from one that just fits.
        if (&mut reader).take(max_line_bytes + 1).read_until(b'\n', &mut line).is_err() {
            return Ok(());
        }
        if peer.change(|state| state != PeerState::SentAway, PeerState::Answered).is_none() {
            return Ok(());
        }
        let Answer { reply, afterwards } = answer(&line);
        send(&mut writer, &reply)?;
        if let Some(afterwards) = afterwards {
            afterwards();
        }
        if line.len() as u64 > max_line_bytes {
            return Ok(());
        }
        let _ = peer.change(|_| true, PeerState::Idle(Instant::now()));
        reader.get_ref().set_read_timeout(None)?;
    }
}

fn send(stream: &mut UnixStream, value: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(value)?;
    line.push(b'\n');
    stream.write_all(&line)
}

/// A command's result.
enum Said {
    Replied(Vec<u8>),
    /// The other side ended the connection before, and obeys nothing that was said on it.
    NotObeyed(io::Error),
}

/// The asking side: says commands `C`, and is answered by replies `R`.
#[derive(Debug)]
pub struct Connection<C, R> {
    path: PathBuf,
    limit: Duration,
    reader: BufReader<UnixStream>,
    writer: UnixStream,
    spoken: PhantomData<fn(&C) -> R>,
}

impl<C: Serialize, R: DeserializeOwned> Connection<C, R> {
    /// Connects to a control socket. That may take `limit`, as may a command to be sent, and its reply to come.
    ///
    /// # Errors
    /// As connecting to a Unix socket fails: `NotFound` or `ConnectionRefused` where nobody listens, `WouldBlock` where
    /// nobody accepts within the limit.
    pub fn open(path: &Path, limit: Duration) -> io::Result<Connection<C, R>> {
        let writer = connect_within(path, limit)?;
        writer.set_read_timeout(Some(limit))?;
        writer.set_write_timeout(Some(limit))?;
        let reader = BufReader::new(writer.try_clone()?);
        Ok(Connection { path: path.to_owned(), limit, reader, writer, spoken: PhantomData })
    }

    /// For the replies from now on. One that comes later is taken for the reply to the next command, so a connection
    /// that has timed out is of no further use.
    ///
    /// # Errors
    /// For a limit of zero.
    pub fn set_limit(&mut self, limit: Duration) -> io::Result<()> {
        self.limit = limit;
        self.writer.set_read_timeout(Some(limit))
    }

    /// Says a command and waits for its reply. Where the other side has ended the connection before, it is said once
    /// more on a new one. Where the connection ends without a word the command may have been obeyed, so that is an
    /// error.
    ///
    /// # Errors
    /// When the other side went away, took too long, or answered with something else than a reply.
    pub fn ask(&mut self, command: &C) -> io::Result<R> {
        let mut response = self.ask_once(command)?;
        if let Said::NotObeyed(error) = response {
            // Nobody listens any more: then the first error is the one to tell.
            let Ok(anew) = Connection::open(&self.path, self.limit) else { return Err(error) };
            *self = anew;
            response = self.ask_once(command)?;
        }
        match response {
            Said::Replied(reply) => Ok(serde_json::from_slice(&reply)?),
            Said::NotObeyed(error) => Err(error),
        }
    }

    fn ask_once(&mut self, command: &C) -> io::Result<Said> {
        match send(&mut self.writer, command) {
            Err(error) if is_closed(&error) => return Ok(Said::NotObeyed(error)),
            sent => sent?,
        }
        let closed = || io::Error::new(io::ErrorKind::UnexpectedEof, "it closed the connection");
        let mut reply = Vec::new();
        (&mut self.reader).take(MAX_REPLY_BYTES).read_until(b'\n', &mut reply)?;
        match reply.as_slice() {
            [] => Err(closed()),
            NOT_OBEYED => Ok(Said::NotObeyed(closed())),
            _ => Ok(Said::Replied(reply)),
        }
    }
}

/// Whether the other side had closed a connection before it was sent anything.
fn is_closed(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionReset};
    matches!(error.kind(), BrokenPipe | ConnectionReset)
}

#[cfg(test)]
mod tests {
    use std::os::unix::thread::JoinHandleExt as _;
    use std::sync::mpsc;

    use super::*;

    type Asking = Connection<String, usize>;

    const LIMIT: Duration = Duration::from_secs(30);

    /// Answers by the length of a line without its newline.
    fn listening(path: &Path) -> (ControlSocket, mpsc::Receiver<()>) {
        let (sender, receiver) = mpsc::channel();
        let answer = move |line: &[u8]| {
            let sender = sender.clone();
            Answer { reply: line.len() - 1, afterwards: Some(Box::new(move || sender.send(()).unwrap())) }
        };
        (ControlSocket::listen(path, 16, answer).unwrap(), receiver)
    }

    #[test]
    fn connecting_ends_where_nobody_accepts() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("full");
        assert!(!is_listening(&path));
        let listener = listen(&path).unwrap();
        // One waits, and the queue is full.
        rustix::net::listen(&listener, 0).unwrap();
        let _waiting = UnixStream::connect(&path).unwrap();
        let refused = Asking::open(&path, Duration::from_millis(50)).err().unwrap();
        assert_eq!(refused.kind(), io::ErrorKind::WouldBlock);
        assert!(is_listening(&path));
        drop(listener);
        assert!(!is_listening(&path), "the socket is left, and nobody has it");
    }

    /// Whatever ended the wait, somebody has the socket.
    #[test]
    fn signal_does_not_end_wait_for_full_queue() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("full");
        let listener = listen(&path).unwrap();
        rustix::net::listen(&listener, 0).unwrap();
        let _waiting = UnixStream::connect(&path).unwrap();
        extern "C" fn pass_over(_: libc::c_int) {}
        // SAFETY: the handler does nothing. Calls that can be restarted are, as by default with `signal`.
        unsafe { libc::signal(libc::SIGUSR1, pass_over as *const () as libc::sighandler_t) };
        let looking = std::thread::spawn(move || is_listening(&path));
        while !looking.is_finished() {
            // SAFETY: the thread has not been joined.
            unsafe { libc::pthread_kill(looking.as_pthread_t(), libc::SIGUSR1) };
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(looking.join().unwrap());
    }

    #[test]
    fn control_socket_answers_lines_until_one_is_too_long() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("control");
        let (socket, afterwards) = listening(&path);
        let mut asking = Asking::open(&path, LIMIT).unwrap();
        for word in ["", "four", "twelve"] {
            assert_eq!(asking.ask(&word.to_owned()).unwrap(), word.len() + 2, "with its quotes");
            afterwards.recv_timeout(LIMIT).unwrap();
        }
        assert_eq!(asking.ask(&"x".repeat(100)).unwrap(), 16, "cut short");
        // It has ended that connection, so this goes by another one.
        assert_eq!(asking.ask(&"more".to_owned()).unwrap(), 6);
        drop(socket);
        assert!(!path.exists() && Asking::open(&path, LIMIT).is_err());
    }

    /// Reads a line on each connection, answers it by the next of these, and ends the connection; says how many lines
    /// it has read.
    fn answering_with(path: &Path, answers: &'static [&'static [u8]]) -> JoinHandle<usize> {
        let listener = listen(path).unwrap();
        std::thread::spawn(move || {
            let mut heard = 0;
            for answer in answers {
                let (mut stream, _) = listener.accept().unwrap();
                let mut line = String::new();
                heard += BufReader::new(stream.try_clone().unwrap()).read_line(&mut line).unwrap().min(1);
                stream.write_all(answer).unwrap();
            }
            heard
        })
    }

    #[test]
    fn possibly_obeyed_command_is_not_repeated() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("control");
        let heard = answering_with(&path, &[b"", b"6\n"]);
        let mut asking = Asking::open(&path, LIMIT).unwrap();
        let error = asking.ask(&"four".to_owned()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
        // The second answer is still to be had.
        assert_eq!(Asking::open(&path, LIMIT).unwrap().ask(&"four".to_owned()).unwrap(), 6);
        assert_eq!(heard.join().unwrap(), 2);
    }

    #[test]
    fn unobeyed_command_is_repeated_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("control");
        let heard = answering_with(&path, &[NOT_OBEYED, b"6\n"]);
        assert_eq!(Asking::open(&path, LIMIT).unwrap().ask(&"four".to_owned()).unwrap(), 6);
        assert_eq!(heard.join().unwrap(), 2);
        let other = folder.path().join("other");
        let heard = answering_with(&other, &[NOT_OBEYED, NOT_OBEYED]);
        assert!(Asking::open(&other, LIMIT).unwrap().ask(&"four".to_owned()).is_err());
        assert_eq!(heard.join().unwrap(), 2);
    }

    #[test]
    fn peers_that_say_nothing_keep_nobody_out() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("control");
        let (_socket, _afterwards) = listening(&path);
        let mut first = Asking::open(&path, LIMIT).unwrap();
        assert!(first.ask(&String::new()).is_ok());
        let silent: Vec<UnixStream> =
            (0..3 * MAX_CONNECTIONS).map(|_| UnixStream::connect(&path).unwrap()).collect();
        assert!(Asking::open(&path, LIMIT).unwrap().ask(&String::new()).is_ok());
        // The one that was sent away comes back by itself.
        assert!(first.ask(&"four".to_owned()).is_ok());
        drop(silent);
    }

    #[test]
    fn peer_being_answered_is_not_dropped() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("control");
        let (began, has_begun) = mpsc::channel();
        let (release, released) = mpsc::channel::<()>();
        let (began, released) = (Mutex::new(began), Mutex::new(released));
        let answer = move |line: &[u8]| {
            if line.len() > 3 {
                began.lock().send(()).unwrap();
                released.lock().recv().unwrap();
            }
            Answer::from(line.len() - 1)
        };
        let _socket = ControlSocket::listen(&path, 16, answer).unwrap();
        let mut slow = Asking::open(&path, LIMIT).unwrap();
        let asking = std::thread::spawn(move || slow.ask(&"slow".to_owned()));
        has_begun.recv_timeout(LIMIT).unwrap();
        let mut others: Vec<Asking> =
            (0..3 * MAX_CONNECTIONS).map(|_| Asking::open(&path, LIMIT).unwrap()).collect();
        assert!(others.iter_mut().all(|other| other.ask(&String::new()).is_ok()));
        release.send(()).unwrap();
        assert_eq!(asking.join().unwrap().unwrap(), 6);
    }
}
