//! The load for `benches/jvm-hop`: a server behind a Unix socket, and threads with a connection each. Prints the result
//! as JSON, times in microseconds.
//!
//! ```text
//! jvm_hop child OPTIONS     asks the Java child with its driver in memory
//! jvm_hop echo OPTIONS      asks a process that is no Java and does nothing but answer with frames of the same lengths
//! ```
//! Options: `--read` or `--update`, `--connections N`, `--rate N` (operations a second of all together, 0 for as many
//! as it answers), `--seconds N`. A record has 10 fields of 100 bytes; an update writes one of them.

use std::io::Write;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use underlay_systems::child::ChildProcess;
use underlay_systems::connection::FramedConnection;
use underlay_systems::java::ClassPath;
use underlay_systems::jvm::{JvmChild, JvmSpec, MEMORY_DRIVER};
use underlay_systems::system::SystemResources;
use underlay_systems::wire::{
    FrameBuffer, WireOpcode, WireRequest, WireStatus, append_values, encode_reply, set_service_ns,
};
use underlay_workload::client::{FieldSelection, FieldValues};

type Failure = Box<dyn std::error::Error + Send + Sync>;

const FIELDS: u32 = 10;
const FIELD_BYTES: usize = 100;
const HEAP_BYTES: u64 = 64 << 20;
const LIMIT: Duration = Duration::from_secs(60);
/// Before anything counts: long enough for Java to have compiled what is hot.
const WARM_UP: Duration = Duration::from_secs(3);
const MAX_NS: u64 = 60_000_000_000;
const POLL: Duration = Duration::from_millis(10);
/// What Linux counts a process's time in, on every machine that it runs on here.
const TICKS_A_SECOND: f64 = 100.0;

fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["serve-echo", socket] => serve_echo(Path::new(socket)),
        [server @ ("child" | "echo"), options @ ..] => run(server, &Load::parse(options)?),
        _ => Err("usage: jvm_hop child|echo OPTIONS".into()),
    }
}

/// What is asked.
struct Load {
    update: bool,
    connections: u32,
    rate: f64,
    seconds: f64,
}

impl Load {
    fn parse(words: &[&str]) -> Result<Load, Failure> {
        let mut load = Load { update: false, connections: 1, rate: 0.0, seconds: 5.0 };
        let mut words = words.iter();
        while let Some(word) = words.next() {
            let mut value = || words.next().ok_or(format!("'{word}' has no value"));
            match *word {
                "--read" => load.update = false,
                "--update" => load.update = true,
                "--connections" => load.connections = value()?.parse()?,
                "--rate" => load.rate = value()?.parse()?,
                "--seconds" => load.seconds = value()?.parse()?,
                _ => return Err(format!("unknown option '{word}'").into()),
            }
        }
        Ok(load)
    }
}

fn record(fields: u32) -> FieldValues {
    let mut values = FieldValues::default();
    (0..fields).for_each(|field| values.push(field, &[field as u8; FIELD_BYTES]));
    values
}

/// A thread a connection, as the child has; a read brings a whole record back.
fn serve_echo(socket: &Path) -> Result<(), Failure> {
    let listener = UnixListener::bind(socket)?;
    loop {
        let (stream, _) = listener.accept()?;
        std::thread::spawn(move || converse(stream));
    }
}

fn converse(mut stream: UnixStream) -> Result<(), Failure> {
    let (whole, none) = (record(FIELDS), FieldValues::default());
    let (mut frames, mut reply) = (FrameBuffer::new(), Vec::new());
    while frames.receive(&mut stream)? {
        let request = WireRequest::decode(frames.body())?;
        let values = if request.opcode == WireOpcode::Read { &whole } else { &none };
        encode_reply(&mut reply, request.id, WireStatus::Found, 0, |out| append_values(values, out))?;
        set_service_ns(&mut reply, 0);
        stream.write_all(&reply)?;
    }
    Ok(())
}

/// One of the two servers, and how to connect to it.
enum Server {
    Java(JvmChild),
    Echo(ChildProcess),
}

fn run(server: &str, load: &Load) -> Result<(), Failure> {
    let scratch = tempfile::TempDir::new()?;
    let resources = SystemResources::with_budget(HEAP_BYTES);
    let started = match server {
        "child" => Server::Java(JvmChild::start(&JvmSpec {
            system: "memory",
            part: None,
            driver: MEMORY_DRIVER,
            class_path: ClassPath::new(),
            properties: [].into(),
            options: Vec::new(),
            scratch: scratch.path(),
            heap_bytes: HEAP_BYTES,
            resources: &resources,
            namespace: None,
            timeout: LIMIT,
            start_limit: LIMIT,
            give_up: None,
        })?),
        _ => {
            let mut command = Command::new(std::env::current_exe()?);
            command.arg("serve-echo").arg(scratch.path().join("echo.sock"));
            Server::Echo(ChildProcess::spawn("echo", command, &scratch.path().join("echo.log"), &resources)?)
        }
    };
    let state = match &started {
        Server::Java(child) => child.state(),
        Server::Echo(child) => child.state(),
    };
    let socket = socket_in(scratch.path())?;
    let over = AtomicBool::new(false);
    let counts = AtomicBool::new(false);
    let mut all = Seen::new()?;
    let mut cpu = 0.0;
    std::thread::scope(|scope| -> Result<(), Failure> {
        let threads: Vec<_> = (0..load.connections)
            .map(|number| {
                let (socket, over, counts) = (&socket, &over, &counts);
                scope.spawn(move || {
                    let connection = FramedConnection::open(socket, LIMIT, Arc::clone(state))?;
                    ask(connection, number, load, over, counts)
                })
            })
            .collect();
        std::thread::sleep(WARM_UP);
        let before = cpu_seconds(state.pid());
        counts.store(true, Ordering::Relaxed);
        std::thread::sleep(Duration::from_secs_f64(load.seconds));
        counts.store(false, Ordering::Relaxed);
        cpu = cpu_seconds(state.pid()) - before;
        over.store(true, Ordering::Relaxed);
        for thread in threads {
            let seen = thread.join().map_err(|_| "a thread ended early")??;
            all.add(&seen)?;
        }
        Ok(())
    })?;
    let us = |histogram: &Histogram<u64>, share: f64| histogram.value_at_quantile(share) as f64 / 1e3;
    let calls = all.round_trip.len() as f64;
    let report = serde_json::json!({
        "calls_per_s": calls / load.seconds,
        "round_trip_p50_us": us(&all.round_trip, 0.5),
        "round_trip_p99_us": us(&all.round_trip, 0.99),
        "hop_p50_us": us(&all.hop, 0.5),
        "hop_p99_us": us(&all.hop, 0.99),
        "driver_p50_us": us(&all.driver, 0.5),
        "driver_p99_us": us(&all.driver, 0.99),
        "cpu_us_a_call": cpu / calls * 1e6,
        "resident_mib": resident_mib(state.pid()),
    });
    println!("{report}");
    Ok(())
}

fn socket_in(folder: &Path) -> Result<PathBuf, Failure> {
    let started = Instant::now();
    loop {
        for entry in std::fs::read_dir(folder)? {
            let path = entry?.path();
            if path.extension().is_some_and(|end| end == "sock") && UnixStream::connect(&path).is_ok() {
                return Ok(path);
            }
        }
        if started.elapsed() > LIMIT {
            return Err("the server does not listen".into());
        }
        std::thread::sleep(POLL);
    }
}

/// What one connection saw, in nanoseconds.
struct Seen {
    round_trip: Histogram<u64>,
    driver: Histogram<u64>,
    hop: Histogram<u64>,
}

impl Seen {
    fn new() -> Result<Seen, Failure> {
        let histogram = || Histogram::new_with_bounds(1, MAX_NS, 2);
        Ok(Seen { round_trip: histogram()?, driver: histogram()?, hop: histogram()? })
    }

    fn add(&mut self, other: &Seen) -> Result<(), Failure> {
        self.round_trip.add(&other.round_trip)?;
        self.driver.add(&other.driver)?;
        Ok(self.hop.add(&other.hop)?)
    }
}

fn ask(
    mut connection: FramedConnection,
    number: u32,
    load: &Load,
    over: &AtomicBool,
    counts: &AtomicBool,
) -> Result<Seen, Failure> {
    let mut seen = Seen::new()?;
    let key = format!("user{number}").into_bytes();
    connection.call(WireOpcode::Insert, FieldSelection::All, 0, &key, Some(&record(FIELDS)))?;
    let change = record(1);
    let interval =
        (load.rate > 0.0).then(|| Duration::from_secs_f64(f64::from(load.connections) / load.rate));
    // Not all of them at the same moment.
    let mut due = Instant::now()
        + interval.unwrap_or_default().mul_f64(f64::from(number) / f64::from(load.connections));
    while !over.load(Ordering::Relaxed) {
        if let Some(interval) = interval {
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
            due += interval;
        }
        let started = Instant::now();
        let reply = match load.update {
            true => connection.call(WireOpcode::Update, FieldSelection::All, 0, &key, Some(&change))?,
            false => connection.call(WireOpcode::Read, FieldSelection::All, 0, &key, None)?,
        };
        if counts.load(Ordering::Relaxed) {
            let round_trip_ns = started.elapsed().as_nanos() as u64;
            seen.round_trip.saturating_record(round_trip_ns);
            seen.driver.saturating_record(reply.service_ns);
            seen.hop.saturating_record(round_trip_ns.saturating_sub(reply.service_ns));
        }
    }
    Ok(seen)
}

/// What the process has used so far: fields 14 and 15 of its `stat`, the first two behind the name's bracket being 3
/// and 4.
fn cpu_seconds(pid: u32) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let words = stat.rsplit(") ").next().unwrap_or_default().split(' ').skip(11).take(2);
    let ticks: f64 = words.filter_map(|word| word.parse::<f64>().ok()).sum();
    ticks / TICKS_A_SECOND
}

fn resident_mib(pid: u32) -> f64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or_default();
    line.split_whitespace().next().and_then(|word| word.parse::<f64>().ok()).unwrap_or_default() / 1024.0
}
