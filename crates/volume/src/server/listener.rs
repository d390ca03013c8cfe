//! The answering side of the control socket.

use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use underlay_sync::thread::JoinHandle;

use super::protocol::{Command, FailureKind, MAX_LINE_BYTES, Reply, parse};

/// Connections served at once.
const MAX_CONNECTIONS: usize = 16;

/// Does what a command says; called by several threads at once.
pub(super) type Obey = Arc<dyn Fn(Command) -> Reply + Send + Sync>;

/// A control socket that is listened on until it is dropped.
pub(super) struct Listener {
    path: PathBuf,
    ended: Arc<AtomicBool>,
    accept: Option<JoinHandle<()>>,
}

impl Listener {
    /// Makes the socket, for this user alone. One that is there is taken for what a killed server left: the caller holds
    /// the pool's lock.
    pub(super) fn start(path: &Path, obey: Obey) -> io::Result<Listener> {
        match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let listener = underlay_files::listen(path)?;
        let ended = Arc::new(AtomicBool::new(false));
        let (connections, is_over) = (Arc::new(AtomicUsize::new(0)), Arc::clone(&ended));
        let accept = move || {
            for stream in listener.incoming().flatten() {
                if is_over.load(Ordering::SeqCst) {
                    return;
                }
                if connections.fetch_add(1, Ordering::SeqCst) >= MAX_CONNECTIONS {
                    connections.fetch_sub(1, Ordering::SeqCst);
                    continue;
                }
                let (obey, counter, spare) =
                    (Arc::clone(&obey), Arc::clone(&connections), Arc::clone(&connections));
                let serve = move || {
                    // A peer that went away is no concern of the volumes.
                    let _ = serve(stream, obey.as_ref());
                    counter.fetch_sub(1, Ordering::SeqCst);
                };
                if underlay_sync::thread::Builder::new().name("control".into()).spawn(serve).is_err() {
                    spare.fetch_sub(1, Ordering::SeqCst);
                }
            }
        };
        let accept = underlay_sync::thread::Builder::new().name("control-accept".into()).spawn(accept)?;
        Ok(Listener { path: path.to_owned(), ended, accept: Some(accept) })
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::SeqCst);
        // Wakes the thread that accepts. Where that fails it is left to the end of the process.
        if UnixStream::connect(&self.path).is_ok()
            && let Some(accept) = self.accept.take()
        {
            let _ = accept.join();
        }
        let _ = fs::remove_file(&self.path);
    }
}

fn serve(stream: UnixStream, obey: &(dyn Fn(Command) -> Reply + Send + Sync)) -> io::Result<()> {
    let mut writer = stream.try_clone()?;
    let mut reader = BufReader::new(stream);
    loop {
        let mut line = Vec::new();
        // One byte more than allowed tells a line that is too long from one that just fits.
        (&mut reader).take(MAX_LINE_BYTES + 1).read_until(b'\n', &mut line)?;
        if line.is_empty() {
            return Ok(());
        }
        let reply = match parse(&line) {
            Ok(command) => obey(command),
            Err(problem) => Reply::Failed { kind: FailureKind::Mistake, problem },
        };
        let mut text = serde_json::to_vec(&reply)?;
        text.push(b'\n');
        writer.write_all(&text)?;
        if line.len() as u64 > MAX_LINE_BYTES {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::connection::Connection;
    use std::os::unix::fs::PermissionsExt as _;
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn it_answers_every_line_and_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("control");
        // A killed server leaves its socket.
        drop(UnixListener::bind(&path).unwrap());
        let obey = |command: Command| match command {
            Command::Ping => Reply::Done,
            _ => Reply::Failed { kind: FailureKind::Failed, problem: "no".into() },
        };
        let listener = Listener::start(&path, Arc::new(obey)).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let mut connection = Connection::open(&path).unwrap();
        assert_eq!(connection.ask(&Command::Ping).unwrap(), Reply::Done);
        assert!(matches!(connection.ask(&Command::List).unwrap(), Reply::Failed { .. }));
        assert_eq!(connection.ask(&Command::Ping).unwrap(), Reply::Done);
        let mut noise = UnixStream::connect(&path).unwrap();
        noise.write_all(b"what?\n").unwrap();
        let mut answer = String::new();
        BufReader::new(&noise).read_line(&mut answer).unwrap();
        assert!(answer.contains("not a command"), "{answer}");
        drop(listener);
        assert!(!path.exists());
        assert!(Connection::is_nobody(&Connection::open(&path).unwrap_err()));
    }
}
