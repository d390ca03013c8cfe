//! The child process: RocksDB behind a Unix socket, with a thread per connection.

use std::collections::{BTreeMap, HashMap};
use std::ffi::OsString;
use std::io::{self, ErrorKind, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::{Arc, Weak, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use underlay_sync::Mutex;

use super::config::RocksdbConfig;
use super::store::{RocksdbStore, StoreError};
use crate::system::SystemError;
use crate::wire::{
    FrameBuffer, FrameError, ValuesBuilder, WireOpcode, WireRequest, WireStatus, WireValues, encode_reply,
    encode_text_reply, set_service_ns,
};

const SYSTEM: &str = "rocksdb";
/// The stacks are small, so that hundreds of connections don't use up the memory budget.
const THREAD_STACK_BYTES: usize = 512 << 10;

/// The arguments of the child. Both the writer and the reader of the command line are here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct EngineArguments {
    /// The socket to listen on.
    pub socket: PathBuf,
    /// The directory of the database, created if missing.
    pub data: PathBuf,
    /// For the write-ahead log where it has a storage of its own; it is beside the data otherwise.
    pub wal_directory: Option<PathBuf>,
    /// For RocksDB's own log of events.
    pub log_directory: PathBuf,
    pub budget_bytes: u64,
    /// The number of fields in a whole record.
    pub fields: u32,
    pub settings: BTreeMap<String, String>,
}

impl EngineArguments {
    /// The command line, without the program and the subcommand.
    pub(crate) fn to_command_line(&self) -> Vec<OsString> {
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
        if let Some(wal_directory) = &self.wal_directory {
            line.extend([OsString::from("--wal-directory"), wal_directory.clone().into()]);
        }
        for (key, value) in &self.settings {
            line.push("--set".into());
            line.push(format!("{key}={value}").into());
        }
        line
    }

    /// Parses a command line. The error says what is wrong with it.
    pub(crate) fn parse(line: &[OsString]) -> Result<EngineArguments, String> {
        let mut paths: HashMap<&str, PathBuf> = HashMap::new();
        let mut numbers: HashMap<&str, u64> = HashMap::new();
        let mut settings = BTreeMap::new();
        let mut words = line.iter();
        while let Some(flag) = words.next() {
            let flag = flag.to_str().unwrap_or_default();
            let value = words.next().ok_or_else(|| format!("'{flag}' has no value"))?;
            match flag {
                "--socket" | "--data" | "--wal-directory" | "--log-directory" => {
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
        let wal_directory = paths.remove("--wal-directory");
        let mut path = |flag| paths.remove(flag).ok_or_else(|| format!("'{flag}' is missing"));
        let number = |flag| numbers.get(flag).copied().ok_or_else(|| format!("'{flag}' is missing"));
        let fields = number("--fields")?;
        Ok(EngineArguments {
            socket: path("--socket")?,
            data: path("--data")?,
            wal_directory,
            log_directory: path("--log-directory")?,
            budget_bytes: number("--budget-bytes")?,
            fields: u32::try_from(fields).map_err(|_| "'--fields' is too large".to_owned())?,
            settings,
        })
    }
}

/// Runs the engine until it is asked to stop: the program's hidden subcommand `engine`. `line` is what follows it.
///
/// # Errors
/// When the command line is wrong, the database can't be opened or the socket not be listened on, or closing fails.
pub fn main(line: &[OsString]) -> Result<(), SystemError> {
    let failed = |during, problem: String| SystemError::failed(SYSTEM, during, problem);
    let arguments =
        EngineArguments::parse(line).map_err(|problem| failed("reading its command line", problem))?;
    let config = RocksdbConfig::resolve(&arguments.settings, arguments.budget_bytes)
        .map_err(|mistakes| SystemError::first_mistake(SYSTEM, mistakes))?;
    limit_allocator();
    raise_file_limit();
    let wal_directory = arguments.wal_directory.as_deref();
    let store = RocksdbStore::open(
        &arguments.data,
        wal_directory,
        &arguments.log_directory,
        &config,
        arguments.fields,
    )
    .map_err(|error| failed("opening the database", error.to_string()))?;
    // Listening means being ready, so it comes after the database is open.
    let listener = underlay_files::listen(&arguments.socket)
        .map_err(|error| failed("listening", format!("{}: {error}", arguments.socket.display())))?;
    let stopped = serve(store, listener);
    // If this fails, the launcher removes it.
    let _ = std::fs::remove_file(&arguments.socket);
    stopped.map_err(|problem| failed("stopping", problem))
}

/// By default glibc creates an arena for every few threads, and memory freed in one is not available to the others.
/// With hundreds of connections that adds up to memory outside of all of RocksDB's limits.
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
    // Raising the soft limit to the hard one can't fail. If it did, opening a file would report it.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
}

/// The database and its connections.
struct RocksdbEngine {
    store: RocksdbStore,
    connections: Mutex<EngineConnections>,
}

#[derive(Default)]
struct EngineConnections {
    /// No further ones are accepted.
    closed: bool,
    last_id: u64,
    open: HashMap<u64, (UnixStream, JoinHandle<()>)>,
}

/// A request to stop, which is answered when the database is closed.
struct StopRequest {
    stream: UnixStream,
    id: u32,
}

fn serve(store: RocksdbStore, listener: UnixListener) -> Result<(), String> {
    let engine = Arc::new(RocksdbEngine { store, connections: Mutex::default() });
    let (stops, stop_requested) = mpsc::channel();
    // The acceptor lives as long as the process, so it must not keep the database open.
    let acceptor = Arc::downgrade(&engine);
    std::thread::spawn(move || accept(&listener, &acceptor, &stops));
    let stop = stop_requested.recv().map_err(|_| "can't accept connections any more".to_owned())?;
    let result = close(engine);
    let mut answer = Vec::new();
    match &result {
        Ok(()) => drop(encode_reply(&mut answer, stop.id, WireStatus::Found, 0, write_no_values)),
        Err(problem) => encode_text_reply(&mut answer, stop.id, WireStatus::Failed, problem),
    }
    // The requester may be gone. The engine stops all the same.
    let _ = (&stop.stream).write_all(&answer);
    result
}

fn accept(listener: &UnixListener, engine: &Weak<RocksdbEngine>, stops: &mpsc::Sender<StopRequest>) {
    loop {
        match listener.accept() {
            Ok((stream, _)) => {
                let Some(engine) = engine.upgrade() else { return };
                if let Err(error) = engine.connect(stream, stops) {
                    eprintln!("can't accept a connection: {error}");
                }
            }
            Err(error) => {
                eprintln!("can't accept a connection: {error}");
                // Most likely it is out of file descriptors. Existing connections continue meanwhile.
                std::thread::sleep(Duration::from_millis(50));
            }
        }
    }
}

/// Ends the connections, flushes everything and closes the database.
fn close(engine: Arc<RocksdbEngine>) -> Result<(), String> {
    let open = {
        let mut connections = engine.connections.lock();
        connections.closed = true;
        std::mem::take(&mut connections.open)
    };
    for (stream, _) in open.values() {
        // Fails if the peer has closed it. Only reading ends, so that pending replies are still sent.
        let _ = stream.shutdown(Shutdown::Read);
    }
    for (_, thread) in open.into_values() {
        if thread.join().is_err() {
            eprintln!("a connection's thread panicked");
        }
    }
    let written = engine.store.write_out().map_err(|error| error.to_string());
    // The acceptor, or a thread that was about to end when the table was emptied, may still hold the engine for a
    // moment. The database must be closed here, because the process exits next.
    let mut shared = engine;
    loop {
        match Arc::try_unwrap(shared) {
            Ok(engine) => drop(engine),
            Err(remaining) => {
                shared = remaining;
                std::thread::sleep(Duration::from_millis(1));
                continue;
            }
        }
        return written;
    }
}

impl RocksdbEngine {
    fn connect(self: Arc<Self>, stream: UnixStream, stops: &mpsc::Sender<StopRequest>) -> io::Result<()> {
        let stream_handle = stream.try_clone()?;
        let (engine, stops) = (Arc::clone(&self), stops.clone());
        let mut connections = self.connections.lock();
        if connections.closed {
            return Ok(());
        }
        connections.last_id += 1;
        let id = connections.last_id;
        let builder = std::thread::Builder::new().stack_size(THREAD_STACK_BYTES);
        let thread = builder.spawn(move || {
            engine.converse(stream, &stops);
            // While stopping this does nothing: the table is empty, and this thread is joined.
            engine.connections.lock().open.remove(&id);
        })?;
        connections.open.insert(id, (stream_handle, thread));
        Ok(())
    }

    /// Answers the requests of one connection until it ends.
    fn converse(&self, mut stream: UnixStream, stops: &mpsc::Sender<StopRequest>) {
        let mut frames = FrameBuffer::new();
        let (mut reply, mut scratch) = (Vec::new(), Vec::new());
        loop {
            match frames.receive(&mut stream) {
                Ok(true) => {}
                Ok(false) => return,
                Err(error) => {
                    if error.kind() == ErrorKind::InvalidData {
                        encode_text_reply(&mut reply, 0, WireStatus::Failed, &error.to_string());
                        let _ = stream.write_all(&reply);
                    }
                    return;
                }
            }
            let request = match WireRequest::decode(frames.body()) {
                Ok(request) => request,
                Err(error) => {
                    let id = WireRequest::id_of(frames.body());
                    encode_text_reply(
                        &mut reply,
                        id,
                        WireStatus::Failed,
                        &format!("malformed request: {error}"),
                    );
                    let _ = stream.write_all(&reply);
                    return;
                }
            };
            if request.opcode == WireOpcode::Stop {
                // Only the first such request is received and answered. A second one just sees its connection end.
                let _ = stops.send(StopRequest { stream, id: request.id });
                return;
            }
            let started = Instant::now();
            if let Err(error) = self.answer(&request, &mut reply, &mut scratch) {
                encode_text_reply(&mut reply, request.id, WireStatus::Failed, &error.to_string());
            }
            set_service_ns(&mut reply, started.elapsed().as_nanos() as u64);
            if stream.write_all(&reply).is_err() {
                return;
            }
        }
    }

    fn answer(
        &self,
        request: &WireRequest<'_>,
        reply: &mut Vec<u8>,
        scratch: &mut Vec<u8>,
    ) -> Result<(), StoreError> {
        let WireRequest { id, key, values, .. } = *request;
        match request.opcode {
            // Stop is handled by the caller and never gets here.
            WireOpcode::Ping | WireOpcode::Stop => {}
            WireOpcode::Read => return self.answer_read(request, reply, scratch),
            WireOpcode::Scan => {
                let count = self.store.scan(key, request.number, request.fields, scratch)?;
                let status = if count > 0 { WireStatus::Found } else { WireStatus::Missing };
                return Ok(encode_reply(reply, id, status, count, write_no_values)?);
            }
            WireOpcode::ScanRecords => return self.answer_scan_records(request, reply, scratch),
            WireOpcode::Update => self.store.update(key, &values, scratch)?,
            WireOpcode::Insert => self.store.insert(key, &values, scratch)?,
            WireOpcode::Delete => self.store.delete(key)?,
            WireOpcode::Settle => self.store.settle(Duration::from_millis(request.number))?,
            WireOpcode::Figures => {
                encode_text_reply(reply, id, WireStatus::Found, &json(self.store.figures()?));
                return Ok(());
            }
            WireOpcode::Gauges => {
                encode_text_reply(reply, id, WireStatus::Found, &json(self.store.gauges()?));
                return Ok(());
            }
            WireOpcode::Open | WireOpcode::Command => {
                encode_text_reply(reply, id, WireStatus::Failed, "RocksDB has no options and no commands");
                return Ok(());
            }
        }
        Ok(encode_reply(reply, id, WireStatus::Found, 0, write_no_values)?)
    }

    fn answer_read(
        &self,
        request: &WireRequest<'_>,
        reply: &mut Vec<u8>,
        scratch: &mut Vec<u8>,
    ) -> Result<(), StoreError> {
        scratch.clear();
        if self.store.read(request.key, request.fields, scratch)? {
            Ok(encode_reply(reply, request.id, WireStatus::Found, 0, copying(scratch))?)
        } else {
            Ok(encode_reply(reply, request.id, WireStatus::Missing, 0, write_no_values)?)
        }
    }

    fn answer_scan_records(
        &self,
        request: &WireRequest<'_>,
        reply: &mut Vec<u8>,
        scratch: &mut Vec<u8>,
    ) -> Result<(), StoreError> {
        scratch.clear();
        let mut records = ValuesBuilder::new(scratch);
        let count = self.store.scan_records(request.key, request.number, request.fields, &mut records)?;
        records.finish();
        let status = if count > 0 { WireStatus::Found } else { WireStatus::Missing };
        Ok(encode_reply(reply, request.id, status, count, copying(scratch))?)
    }
}

/// Appends values that are encoded already.
fn copying(values: &[u8]) -> impl FnOnce(&mut Vec<u8>) -> Result<(), FrameError> + '_ {
    |out| {
        out.extend_from_slice(values);
        Ok(())
    }
}

fn write_no_values(out: &mut Vec<u8>) -> Result<(), FrameError> {
    out.extend_from_slice(WireValues::NONE.as_bytes());
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
    fn command_line_parses_to_meaning() {
        let arguments = EngineArguments {
            socket: "/tmp/a socket".into(),
            data: "/data".into(),
            wal_directory: Some("/a log/of its own".into()),
            log_directory: "/log".into(),
            budget_bytes: 1 << 30,
            fields: 10,
            settings: BTreeMap::from([
                ("wal".to_owned(), "sync".to_owned()),
                ("io".to_owned(), "a=b".to_owned()),
            ]),
        };
        assert_eq!(EngineArguments::parse(&arguments.to_command_line()), Ok(arguments));
    }

    #[test]
    fn wrong_command_line_is_explained() {
        let parse =
            |words: &[&str]| EngineArguments::parse(&words.iter().map(OsString::from).collect::<Vec<_>>());
        assert_eq!(parse(&[]), Err("'--fields' is missing".to_owned()));
        assert_eq!(parse(&["--fields", "ten"]), Err("'--fields' takes a whole number".to_owned()));
        assert_eq!(parse(&["--socket"]), Err("'--socket' has no value".to_owned()));
        assert_eq!(parse(&["--set", "wal"]), Err("'--set' takes NAME=VALUE".to_owned()));
        assert_eq!(parse(&["--color", "red"]), Err("unknown option '--color'".to_owned()));
        assert_eq!(main(&["--color".into()]).unwrap_err().to_string().lines().count(), 1);
    }
}
