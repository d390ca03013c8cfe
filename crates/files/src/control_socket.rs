//! A Unix socket on which a process takes commands from its own user: one JSON value a line in each direction, a reply for
//! every line.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::marker::PhantomData;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::listen;

/// Connections served at once; further ones are closed.
const MAX_CONNECTIONS: usize = 16;
/// A reply may carry histograms and a series for each device; more than this is no reply.
const MAX_REPLY_BYTES: u64 = 256 << 20;

/// The answer to a line.
pub struct Answer<R> {
    pub reply: R,
    /// What is to happen once the reply has been sent.
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
        let (connections, is_over) = (Arc::new(AtomicUsize::new(0)), Arc::clone(&has_ended));
        let answer = Arc::new(answer);
        let accept = move || {
            for stream in listener.incoming().flatten() {
                if is_over.load(Ordering::SeqCst) {
                    return;
                }
                let Some(served) = Served::begin(&connections) else { continue };
                let answer = Arc::clone(&answer);
                let serve = move || {
                    // An error here means that the peer hung up, which changes nothing about what it
                    // commanded.
                    let _ = serve(stream, max_line_bytes, &*answer);
                    drop(served);
                };
                // Without a thread the stream is dropped, and the peer sees its connection end.
                let _ = Builder::new().name("control".into()).spawn(serve);
            }
        };
        let accept = Builder::new().name("control-accept".into()).spawn(accept)?;
        Ok(ControlSocket { path: path.to_owned(), has_ended, accept: Some(accept) })
    }

    /// Goes on until the process ends, and leaves the socket to whoever removes its folder.
    pub fn keep(self) {
        std::mem::forget(self);
    }
}

impl Drop for ControlSocket {
    fn drop(&mut self) {
        self.has_ended.store(true, Ordering::SeqCst);
        // Wakes the thread that accepts. Where that fails it is left to the end of the process.
        if UnixStream::connect(&self.path).is_ok()
            && let Some(accept) = self.accept.take()
        {
            let _ = accept.join();
        }
        let _ = std::fs::remove_file(&self.path);
    }
}

/// A connection that counts until this is dropped.
struct Served(Arc<AtomicUsize>);

impl Served {
    /// Nothing where there are too many.
    fn begin(connections: &Arc<AtomicUsize>) -> Option<Served> {
        // Made first: where the limit is reached it is dropped at once, which takes the count back.
        let served = Served(Arc::clone(connections));
        (connections.fetch_add(1, Ordering::SeqCst) < MAX_CONNECTIONS).then_some(served)
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

fn serve<R: Serialize>(
    stream: UnixStream,
    max_line_bytes: u64,
    answer: &impl Fn(&[u8]) -> Answer<R>,
) -> io::Result<()> {
    let mut writer = stream.try_clone()?;
    let mut reader = BufReader::new(stream);
    loop {
        let mut line = Vec::new();
        // One byte more than allowed tells a line that is too long from one that just fits.
        (&mut reader).take(max_line_bytes + 1).read_until(b'\n', &mut line)?;
        if line.is_empty() {
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
    }
}

fn send(stream: &mut UnixStream, value: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(value)?;
    line.push(b'\n');
    stream.write_all(&line)
}

/// The asking side: says commands `C`, and is answered by replies `R`.
#[derive(Debug)]
pub struct Connection<C, R> {
    reader: BufReader<UnixStream>,
    writer: UnixStream,
    spoken: PhantomData<fn(&C) -> R>,
}

impl<C: Serialize, R: DeserializeOwned> Connection<C, R> {
    /// Connects to a control socket. A command may take `limit` to be sent, and its reply as long to come.
    ///
    /// # Errors
    /// As connecting to a Unix socket fails: `NotFound` or `ConnectionRefused` where nobody listens.
    pub fn open(path: &Path, limit: Duration) -> io::Result<Connection<C, R>> {
        let writer = UnixStream::connect(path)?;
        writer.set_read_timeout(Some(limit))?;
        writer.set_write_timeout(Some(limit))?;
        Ok(Connection { reader: BufReader::new(writer.try_clone()?), writer, spoken: PhantomData })
    }

    /// For the replies from now on. One that comes later is taken for the reply to the next command, so a connection that has
    /// timed out is of no further use.
    ///
    /// # Errors
    /// For a limit of zero.
    pub fn set_limit(&self, limit: Duration) -> io::Result<()> {
        self.writer.set_read_timeout(Some(limit))
    }

    /// Says a command and waits for its reply.
    ///
    /// # Errors
    /// When the other side went away, took too long, or answered with something else than a reply.
    pub fn ask(&mut self, command: &C) -> io::Result<R> {
        send(&mut self.writer, command)?;
        let mut reply = Vec::new();
        (&mut self.reader).take(MAX_REPLY_BYTES).read_until(b'\n', &mut reply)?;
        if reply.is_empty() {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "it closed the connection"));
        }
        Ok(serde_json::from_slice(&reply)?)
    }
}

#[cfg(test)]
mod tests {
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
    fn every_line_has_its_reply_and_one_that_is_too_long_is_the_last() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("control");
        let (socket, afterwards) = listening(&path);
        let mut asking = Asking::open(&path, LIMIT).unwrap();
        for word in ["", "four", "twelve"] {
            assert_eq!(asking.ask(&word.to_owned()).unwrap(), word.len() + 2, "with its quotes");
            afterwards.recv_timeout(LIMIT).unwrap();
        }
        assert_eq!(asking.ask(&"x".repeat(100)).unwrap(), 16, "cut short");
        assert!(asking.ask(&"more".to_owned()).is_err());
        drop(socket);
        assert!(!path.exists() && Asking::open(&path, LIMIT).is_err());
    }

    #[test]
    fn so_many_connections_are_served_at_once_and_one_that_ends_makes_room() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("control");
        let (_socket, _afterwards) = listening(&path);
        let ask = |connection: &mut Asking| connection.ask(&String::new());
        let mut all: Vec<Asking> =
            (0..MAX_CONNECTIONS).map(|_| Asking::open(&path, LIMIT).unwrap()).collect();
        assert!(all.iter_mut().all(|connection| ask(connection).is_ok()));
        assert!(ask(&mut Asking::open(&path, LIMIT).unwrap()).is_err());
        all.pop();
        // It is noticed when its thread reads the end.
        while ask(&mut Asking::open(&path, LIMIT).unwrap()).is_err() {}
    }
}
