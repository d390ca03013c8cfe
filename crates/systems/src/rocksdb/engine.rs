//! The child process: RocksDB behind a Unix socket, a thread a connection.

use std::collections::{BTreeMap, HashMap};
use std::ffi::OsString;
use std::io::{self, ErrorKind, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError, Weak, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::config::Config;
use super::store::{Store, StoreError};
use crate::system::SystemError;
use crate::wire::{
    FrameBuffer, FrameError, Opcode, Request, Status, Values, ValuesBuilder, encode_reply, encode_text_reply,
    set_service_ns,
};

const SYSTEM: &str = "rocksdb";
/// Requests are answered on little stack: hundreds of connections must not eat the memory budget.
const THREAD_STACK_BYTES: usize = 512 << 10;

/// What the launcher tells its child; both sides of the command line are here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arguments {
    /// Where to listen.
    pub socket: PathBuf,
    /// The database's directory, made if missing.
    pub data: PathBuf,
    /// For RocksDB's own log.
    pub log_directory: PathBuf,
    pub budget_bytes: u64,
    /// Fields of a whole record.
    pub fields: u32,
    pub settings: BTreeMap<String, String>,
}

impl Arguments {
    /// The command line, without the program and the subcommand.
    pub fn to_command_line(&self) -> Vec<OsString> {
        let mut line: Vec<OsString> = vec![
            "--socket".into(),
            self.socket.clone().into(),
            "--data".into(),
            self.data.clone().into(),
            "--log-directory".into(),
            self.log_directory.clone().into(),
            "--budget-bytes".into(),
            self.budget_bytes.to_string().into(),
            "--fields".into(),
            self.fields.to_string().into(),
        ];
        for (key, value) in &self.settings {
            line.push("--set".into());
            line.push(format!("{key}={value}").into());
        }
        line
    }

    /// Reads a command line; the error says what is wrong with it.
    pub fn parse(line: &[OsString]) -> Result<Arguments, String> {
        let mut paths: HashMap<&str, PathBuf> = HashMap::new();
        let mut numbers: HashMap<&str, u64> = HashMap::new();
        let mut settings = BTreeMap::new();
        let mut words = line.iter();
        while let Some(flag) = words.next() {
            let flag = flag.to_str().unwrap_or_default();
            let value = words.next().ok_or_else(|| format!("'{flag}' has no value"))?;
            match flag {
                "--socket" | "--data" | "--log-directory" => {
                    paths.insert(flag, PathBuf::from(value));
                }
                "--budget-bytes" | "--fields" => {
                    let number = value.to_str().and_then(|text| text.parse().ok());
                    numbers.insert(flag, number.ok_or_else(|| format!("'{flag}' takes a whole number"))?);
                }
                "--set" => {
                    let pair = value.to_str().and_then(|text| text.split_once('='));
                    let (key, value) = pair.ok_or_else(|| "'--set' takes NAME=VALUE".to_owned())?;
                    settings.insert(key.to_owned(), value.to_owned());
                }
                _ => return Err(format!("unknown option '{flag}'")),
            }
        }
        let mut path = |flag| paths.remove(flag).ok_or_else(|| format!("'{flag}' is missing"));
        let number = |flag| numbers.get(flag).copied().ok_or_else(|| format!("'{flag}' is missing"));
        let fields = number("--fields")?;
        Ok(Arguments {
            socket: path("--socket")?,
            data: path("--data")?,
            log_directory: path("--log-directory")?,
            budget_bytes: number("--budget-bytes")?,
            fields: u32::try_from(fields).map_err(|_| "'--fields' is beyond any record".to_owned())?,
            settings,
        })
    }
}

/// Runs the engine until it is told to stop. The program's hidden subcommand `engine`; `line` is what follows it.
pub fn main(line: &[OsString]) -> Result<(), SystemError> {
    let failed = |during, problem: String| SystemError::failed(SYSTEM, during, problem);
    let arguments = Arguments::parse(line).map_err(|problem| failed("reading its command line", problem))?;
    let config = Config::resolve(&arguments.settings, arguments.budget_bytes)
        .map_err(|mistakes| SystemError::first_mistake(SYSTEM, mistakes))?;
    limit_allocator();
    raise_file_limit();
    let store = Store::open(&arguments.data, &arguments.log_directory, &config, arguments.fields)
        .map_err(|error| failed("opening the database", error.to_string()))?;
    // Listening is the sign of being ready: from here on a connection succeeds.
    let listener = underlay_files::listen(&arguments.socket)
        .map_err(|error| failed("listening", format!("{}: {error}", arguments.socket.display())))?;
    let stopped = serve(store, listener);
    // The launcher removes it too, should this fail.
    let _ = std::fs::remove_file(&arguments.socket);
    stopped.map_err(|problem| failed("stopping", problem))
}

/// glibc keeps a heap for every few threads, and what one frees the others don't get: with hundreds of connections that is
/// memory outside every budget of RocksDB's.
fn limit_allocator() {
    #[cfg(target_env = "gnu")]
    // SAFETY: mallopt only sets a number, and no other thread runs yet.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 2);
    }
}

/// RocksDB keeps every table file open.
fn raise_file_limit() {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    // Raising to the allowed maximum can't be refused, and if it were, opening a file would say so.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
}

/// The database and its connections.
struct Engine {
    store: Store,
    connections: Mutex<Connections>,
}

#[derive(Default)]
struct Connections {
    /// No further ones are taken.
    closed: bool,
    last_id: u64,
    open: HashMap<u64, (UnixStream, JoinHandle<()>)>,
}

/// A request to stop: who asked, to be answered when it is done.
struct StopRequest {
    stream: UnixStream,
    id: u32,
}

fn serve(store: Store, listener: UnixListener) -> Result<(), String> {
    let engine = Arc::new(Engine { store, connections: Mutex::default() });
    let (stops, stop_requested) = mpsc::channel();
    // The acceptor waits for connections to the end of the process, so it must not keep the database open.
    let acceptor = Arc::downgrade(&engine);
    std::thread::spawn(move || accept(&listener, &acceptor, &stops));
    let stop = stop_requested.recv().map_err(|_| "can't take connections any more".to_owned())?;
    let result = close(engine);
    let mut answer = Vec::new();
    match &result {
        Ok(()) => drop(encode_reply(&mut answer, stop.id, Status::Found, 0, no_values)),
        Err(problem) => encode_text_reply(&mut answer, stop.id, Status::Failed, problem),
    }
    // Whoever asked may be gone; it is stopped all the same.
    let _ = (&stop.stream).write_all(&answer);
    result
}

fn accept(listener: &UnixListener, engine: &Weak<Engine>, stops: &mpsc::Sender<StopRequest>) {
    loop {
        match listener.accept() {
            Ok((stream, _)) => {
                let Some(engine) = engine.upgrade() else { return };
                if let Err(error) = engine.connect(stream, stops) {
                    eprintln!("can't take a connection: {error}");
                }
            }
            Err(error) => {
                eprintln!("can't take a connection: {error}");
                // Out of file descriptors, most likely: those who have a connection go on meanwhile.
                std::thread::sleep(Duration::from_millis(50));
            }
        }
    }
}

/// Ends the connections, writes everything out and closes the database.
fn close(engine: Arc<Engine>) -> Result<(), String> {
    let open = {
        let mut connections = engine.connections.lock().unwrap_or_else(PoisonError::into_inner);
        connections.closed = true;
        std::mem::take(&mut connections.open)
    };
    for (stream, _) in open.values() {
        // Its peer may have hung up already. Replies that are under way still go out.
        let _ = stream.shutdown(Shutdown::Read);
    }
    for (_, thread) in open.into_values() {
        if thread.join().is_err() {
            eprintln!("a connection's thread ended early");
        }
    }
    let written = engine.store.write_out().map_err(|error| error.to_string());
    // A thread that was about to end when its connection was taken from the table may still hold the engine, as may
    // the acceptor for a moment. The database is closed here and nowhere else: the process ends next.
    let mut shared = engine;
    loop {
        match Arc::try_unwrap(shared) {
            Ok(engine) => drop(engine),
            Err(held) => {
                shared = held;
                std::thread::sleep(Duration::from_millis(1));
                continue;
            }
        }
        return written;
    }
}

impl Engine {
    fn connect(self: Arc<Self>, stream: UnixStream, stops: &mpsc::Sender<StopRequest>) -> io::Result<()> {
        let kept = stream.try_clone()?;
        let (engine, stops) = (Arc::clone(&self), stops.clone());
        let mut connections = self.connections.lock().unwrap_or_else(PoisonError::into_inner);
        if connections.closed {
            return Ok(());
        }
        connections.last_id += 1;
        let id = connections.last_id;
        let builder = std::thread::Builder::new().stack_size(THREAD_STACK_BYTES);
        let thread = builder.spawn(move || {
            engine.converse(stream, &stops);
            // Not while stopping: then the table was taken away, and this thread is waited for.
            engine.connections.lock().unwrap_or_else(PoisonError::into_inner).open.remove(&id);
        })?;
        connections.open.insert(id, (kept, thread));
        Ok(())
    }

    /// Answers one connection's requests until it ends.
    fn converse(&self, mut stream: UnixStream, stops: &mpsc::Sender<StopRequest>) {
        let mut frames = FrameBuffer::new();
        let (mut reply, mut scratch) = (Vec::new(), Vec::new());
        loop {
            match frames.receive(&mut stream) {
                Ok(true) => {}
                Ok(false) => return,
                Err(error) => {
                    if error.kind() == ErrorKind::InvalidData {
                        encode_text_reply(&mut reply, 0, Status::Failed, &error.to_string());
                        let _ = stream.write_all(&reply);
                    }
                    return;
                }
            }
            let request = match Request::decode(frames.body()) {
                Ok(request) => request,
                Err(error) => {
                    let id = Request::id_of(frames.body());
                    encode_text_reply(&mut reply, id, Status::Failed, &format!("malformed request: {error}"));
                    let _ = stream.write_all(&reply);
                    return;
                }
            };
            if request.opcode == Opcode::Stop {
                // The receiver lives until the first such request; a second one learns of the stop by its
                // connection's end.
                let _ = stops.send(StopRequest { stream, id: request.id });
                return;
            }
            let started = Instant::now();
            if let Err(error) = self.answer(&request, &mut reply, &mut scratch) {
                encode_text_reply(&mut reply, request.id, Status::Failed, &error.to_string());
            }
            set_service_ns(&mut reply, started.elapsed().as_nanos() as u64);
            if stream.write_all(&reply).is_err() {
                return;
            }
        }
    }

    fn answer(
        &self,
        request: &Request<'_>,
        reply: &mut Vec<u8>,
        scratch: &mut Vec<u8>,
    ) -> Result<(), StoreError> {
        let Request { id, key, values, .. } = *request;
        match request.opcode {
            // Stopping is the connection's affair, and never comes here; it is answered like a ping.
            Opcode::Ping | Opcode::Stop => {}
            Opcode::Read => return self.answer_read(request, reply, scratch),
            Opcode::Scan => {
                let count = self.store.scan(key, request.number, request.fields, scratch)?;
                let status = if count > 0 { Status::Found } else { Status::Missing };
                return Ok(encode_reply(reply, id, status, count, no_values)?);
            }
            Opcode::ScanRecords => return self.answer_scan_records(request, reply, scratch),
            Opcode::Update => self.store.update(key, &values, scratch)?,
            Opcode::Insert => self.store.insert(key, &values, scratch)?,
            Opcode::Delete => self.store.delete(key)?,
            Opcode::Settle => self.store.settle(Duration::from_millis(request.number))?,
            Opcode::Figures => {
                encode_text_reply(reply, id, Status::Found, &json(self.store.figures()?));
                return Ok(());
            }
            Opcode::Gauges => {
                encode_text_reply(reply, id, Status::Found, &json(self.store.gauges()?));
                return Ok(());
            }
            Opcode::Open | Opcode::Command => {
                encode_text_reply(reply, id, Status::Failed, "RocksDB knows no options and no commands");
                return Ok(());
            }
        }
        Ok(encode_reply(reply, id, Status::Found, 0, no_values)?)
    }

    fn answer_read(
        &self,
        request: &Request<'_>,
        reply: &mut Vec<u8>,
        scratch: &mut Vec<u8>,
    ) -> Result<(), StoreError> {
        scratch.clear();
        if self.store.read(request.key, request.fields, scratch)? {
            Ok(encode_reply(reply, request.id, Status::Found, 0, copying(scratch))?)
        } else {
            Ok(encode_reply(reply, request.id, Status::Missing, 0, no_values)?)
        }
    }

    fn answer_scan_records(
        &self,
        request: &Request<'_>,
        reply: &mut Vec<u8>,
        scratch: &mut Vec<u8>,
    ) -> Result<(), StoreError> {
        scratch.clear();
        let mut records = ValuesBuilder::new(scratch);
        let count = self.store.scan_records(request.key, request.number, request.fields, &mut records)?;
        records.finish();
        let status = if count > 0 { Status::Found } else { Status::Missing };
        Ok(encode_reply(reply, request.id, status, count, copying(scratch))?)
    }
}

/// Values that are encoded already.
fn copying(values: &[u8]) -> impl FnOnce(&mut Vec<u8>) -> Result<(), FrameError> + '_ {
    |out| {
        out.extend_from_slice(values);
        Ok(())
    }
}

fn no_values(out: &mut Vec<u8>) -> Result<(), FrameError> {
    out.extend_from_slice(Values::NONE.as_bytes());
    Ok(())
}

fn json(figures: BTreeMap<String, f64>) -> String {
    let figures: serde_json::Map<_, _> =
        figures.into_iter().map(|(name, value)| (name, value.into())).collect();
    serde_json::Value::Object(figures).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_says_what_was_meant() {
        let arguments = Arguments {
            socket: "/tmp/a socket".into(),
            data: "/data".into(),
            log_directory: "/log".into(),
            budget_bytes: 1 << 30,
            fields: 10,
            settings: BTreeMap::from([
                ("wal".to_owned(), "sync".to_owned()),
                ("io".to_owned(), "a=b".to_owned()),
            ]),
        };
        assert_eq!(Arguments::parse(&arguments.to_command_line()), Ok(arguments));
    }

    #[test]
    fn a_wrong_command_line_is_explained() {
        let parse = |words: &[&str]| Arguments::parse(&words.iter().map(OsString::from).collect::<Vec<_>>());
        assert_eq!(parse(&[]), Err("'--fields' is missing".to_owned()));
        assert_eq!(parse(&["--fields", "ten"]), Err("'--fields' takes a whole number".to_owned()));
        assert_eq!(parse(&["--socket"]), Err("'--socket' has no value".to_owned()));
        assert_eq!(parse(&["--set", "wal"]), Err("'--set' takes NAME=VALUE".to_owned()));
        assert_eq!(parse(&["--color", "red"]), Err("unknown option '--color'".to_owned()));
        assert_eq!(main(&["--color".into()]).unwrap_err().to_string().lines().count(), 1);
    }
}
