//! The child's process: how it starts, what it is asked beside operations, how it ends.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use underlay_workload::client::{ClientError, FieldValues, Fields};

use super::client::JvmClient;
use super::hop::Hops;
use super::properties;
use super::sources::CHILD;
use crate::child::{Child, ChildState, OBITUARY_WAIT};
use crate::connection::{Connection, SocketPath};
use crate::java::{ClassPath, Java};
use crate::network_namespace::NetworkNamespace;
use crate::system::{Memory, Progress, SystemError};
use crate::wire::Opcode;

const MAIN: &str = "underlay.jvm.Server";
/// The smallest heap in which the child and a client library start.
const MIN_HEAP_BYTES: u64 = 16 << 20;
/// What a Java machine needs beside its heap, each with a bound of its own. A connection's thread takes what it touches of its
/// stack, some tens of kilobytes.
const OPTIONS: [&str; 9] = [
    // Its pauses on a small heap are short, and it has no threads that would take the cores from the system.
    "-XX:+UseSerialGC",
    "-XX:MaxMetaspaceSize=128m",
    "-XX:ReservedCodeCacheSize=64m",
    "-XX:MaxDirectMemorySize=64m",
    "-Xss512k",
    // A thread keeps a direct buffer as long as the longest message that it ever sent, unless it is longer than this.
    "-Djdk.nio.maxCachedBufferSize=262144",
    // Out of memory, some thread dies and the others wait for it: an end that is seen is better.
    "-XX:+ExitOnOutOfMemoryError",
    "-XX:-UsePerfData",
    "-Dfile.encoding=UTF-8",
];
const CONNECT_POLL: Duration = Duration::from_millis(10);
/// Settling, or a command, may notice its limit this much later.
const GRACE: Duration = Duration::from_secs(10);

/// What to start.
#[derive(Debug)]
pub struct Spec<'a> {
    /// The system that the child is a part of: errors are its.
    pub system: &'static str,
    /// The driver's class.
    pub driver: &'a str,
    /// Where that class and its libraries are; the child's own classes come by themselves.
    pub class_path: ClassPath,
    /// For the driver. They are handed over in a file that none but this user can read, and that is gone when the driver has them.
    pub properties: BTreeMap<String, String>,
    /// More options of the Java machine: `-Dname=value`, `--add-opens=...`.
    pub options: Vec<String>,
    /// For the socket, the log (`jvm-NAME.log`) and temporary files.
    pub scratch: &'a Path,
    pub heap_bytes: u64,
    /// The cgroups that the process joins, and the budget that a kill for want of memory is blamed on.
    pub memory: &'a Memory,
    /// The network that it shall be in.
    pub namespace: Option<&'a NetworkNamespace>,
    /// How long an operation may take.
    pub timeout: Duration,
    /// How long it may take until the driver is open.
    pub start_limit: Duration,
}

/// A running child. Dropping it kills it.
#[derive(Debug)]
pub struct JvmChild {
    child: Child,
    socket: SocketPath,
    timeout: Duration,
    hops: Hops,
}

impl JvmChild {
    /// Compiles what [`start`](Self::start) needs, which does so too, without a word meanwhile: the folder of classes that
    /// drivers are compiled against.
    pub fn prepare(system: &'static str, progress: &dyn Fn(&Progress)) -> Result<PathBuf, SystemError> {
        CHILD.classes(system, &ClassPath::new(), progress)
    }

    /// Starts the child and waits until its driver is open.
    pub fn start(spec: &Spec<'_>) -> Result<JvmChild, SystemError> {
        let system = spec.system;
        let failed = |problem: String| SystemError::starting(system, problem);
        if spec.heap_bytes < MIN_HEAP_BYTES {
            return Err(failed(format!(
                "a heap of {:.1} MiB is too small for the process of its client: it needs {} MiB",
                spec.heap_bytes as f64 / f64::from(1 << 20),
                MIN_HEAP_BYTES >> 20
            )));
        }
        let java = Java::find(system)?;
        let classes = Self::prepare(system, &|_| {})?;
        std::fs::create_dir_all(spec.scratch).map_err(|error| {
            failed(format!("can't make the directory {}: {error}", spec.scratch.display()))
        })?;
        let socket = SocketPath::new(spec.scratch, system)
            .map_err(|error| failed(format!("can't make a place for its socket: {error}")))?;
        let properties = PropertiesFile::write(
            spec.scratch.join(format!("jvm-{}.properties", socket.name())),
            &properties::text(&spec.properties),
        )
        .map_err(|error| failed(format!("can't hand its driver's properties over: {error}")))?;
        let mut class_path = ClassPath::new().with_classes(&classes).to_argument();
        if !spec.class_path.is_empty() {
            class_path.push(":");
            class_path.push(spec.class_path.to_argument());
        }
        let mut command = Command::new(&java.program);
        command
            .arg(format!("-Xmx{}k", spec.heap_bytes >> 10))
            .args(OPTIONS)
            .arg(format!("-Djava.io.tmpdir={}", spec.scratch.display()))
            .args(&spec.options)
            .arg("-cp")
            .arg(class_path)
            .arg(MAIN)
            .arg(socket.as_path())
            .arg(spec.driver)
            .arg(&properties.path)
            .env("MALLOC_ARENA_MAX", "2")
            .env_remove("JAVA_TOOL_OPTIONS")
            .env_remove("_JAVA_OPTIONS")
            .env_remove("JDK_JAVA_OPTIONS")
            .env_remove("CLASSPATH");
        if let Some(namespace) = spec.namespace {
            namespace.enter(&mut command);
        }
        let log = spec.scratch.join(format!("jvm-{}.log", socket.name()));
        let child = Child::spawn(system, command, &log, spec.memory)?;
        let started = JvmChild { child, socket, timeout: spec.timeout, hops: Hops::default() };
        started.wait_until_ready(spec.start_limit)?;
        Ok(started)
    }

    fn wait_until_ready(&self, limit: Duration) -> Result<(), SystemError> {
        let (started, state) = (Instant::now(), self.child.state());
        loop {
            if Connection::open(self.socket.as_path(), self.timeout, Arc::clone(state)).is_ok() {
                return Ok(());
            }
            if state.wait(CONNECT_POLL) {
                return Err(state.failed("starting", format!("its client: {}", state.describe())));
            }
            if started.elapsed() > limit {
                let problem = format!(
                    "its client is not ready after {:.0} s: {}",
                    limit.as_secs_f64(),
                    state.describe()
                );
                return Err(state.failed("starting", problem));
            }
        }
    }

    pub fn state(&self) -> &Arc<ChildState> {
        self.child.state()
    }

    /// A connection for one thread, and in the child a client of the system with these options, which are the driver's own.
    pub fn connect(&self, options: &[(&str, &str)]) -> Result<JvmClient, SystemError> {
        const DURING: &str = "connecting";
        let mut connection = self.open(DURING, self.timeout)?;
        let mut values = FieldValues::default();
        for (number, text) in (0..).zip(options.iter().flat_map(|&(name, value)| [name, value])) {
            values.push(number, text.as_bytes());
        }
        // At once: a client that can't reach the system is better known now than at its first operation.
        connection
            .call(Opcode::Open, Fields::All, 0, b"", Some(&values))
            .map_err(|error| self.explain(DURING, error))?;
        Ok(JvmClient::new(connection, self.hops.connection()))
    }

    /// `Err` when the process has ended, or gives no answer.
    pub fn health(&self) -> Result<(), SystemError> {
        self.request("running", Opcode::Ping, 0, "", "", self.timeout).map(drop)
    }

    /// The driver's figures, and those of the way to it: `client_calls`, `client_driver_seconds` and `client_hop_seconds` in
    /// all, `current_client_hop_p50_us` and `..._p99_us` of the clients since there was none. All of this machine's clock.
    pub fn figures(&self) -> Result<BTreeMap<String, f64>, SystemError> {
        let mut figures = self.numbers(Opcode::Figures)?;
        figures.extend(self.hops.figures());
        Ok(figures)
    }

    /// The driver's gauges: those of its figures that say how much runs in the background.
    pub fn gauges(&self) -> Result<BTreeMap<String, f64>, SystemError> {
        self.numbers(Opcode::Gauges)
    }

    fn numbers(&self, opcode: Opcode) -> Result<BTreeMap<String, f64>, SystemError> {
        const DURING: &str = "telling its figures";
        // The driver has the timeout to itself: its own words say more than a silence.
        let text = self.request(DURING, opcode, 0, "", "", self.patience(Duration::ZERO))?;
        serde_json::from_str(&text)
            .map_err(|error| self.state().failed(DURING, format!("its answer can't be read: {error}")))
    }

    /// Lets the driver bring the data to rest, within `limit`.
    pub fn settle(&self, limit: Duration) -> Result<(), SystemError> {
        self.request("settling", Opcode::Settle, millis(limit), "", "", self.patience(limit)).map(drop)
    }

    /// Lets the driver do something that it alone knows, within `limit`: its answer.
    pub fn command(
        &self,
        during: &'static str,
        name: &str,
        argument: &str,
        limit: Duration,
    ) -> Result<String, SystemError> {
        self.request(during, Opcode::Command, millis(limit), name, argument, self.patience(limit))
    }

    /// Ends it at once: requests under way fail.
    pub fn kill(&self) {
        self.child.kill();
    }

    /// Closes the driver, and waits for the process to end.
    pub fn stop(self, limit: Duration) -> Result<(), SystemError> {
        const DURING: &str = "stopping";
        self.request(DURING, Opcode::Stop, 0, "", "", limit)?;
        let state = self.child.state();
        if !state.wait(limit) {
            let problem = format!("process {} closed its client but did not end; it was killed", state.pid());
            return Err(state.failed(DURING, problem));
        }
        if state.ended_well() { Ok(()) } else { Err(state.failed(DURING, state.describe())) }
    }

    fn patience(&self, limit: Duration) -> Duration {
        limit.saturating_add(GRACE).saturating_add(self.timeout)
    }

    fn open(&self, during: &'static str, timeout: Duration) -> Result<Connection, SystemError> {
        let state = self.child.state();
        Connection::open(self.socket.as_path(), timeout, Arc::clone(state)).map_err(|error| {
            // A process that is being killed closes its socket a moment before it is seen dead.
            let problem = match state.wait(OBITUARY_WAIT) {
                true => state.describe(),
                false => format!("can't connect to process {}: {error}", state.pid()),
            };
            state.failed(during, format!("its client: {problem}"))
        })
    }

    /// One request on a connection of its own; the reply's text.
    fn request(
        &self,
        during: &'static str,
        opcode: Opcode,
        number: u64,
        key: &str,
        argument: &str,
        timeout: Duration,
    ) -> Result<String, SystemError> {
        let mut connection = self.open(during, timeout)?;
        let mut values = FieldValues::default();
        if !argument.is_empty() {
            values.push(0, argument.as_bytes());
        }
        match connection.call(opcode, Fields::All, number, key.as_bytes(), Some(&values)) {
            Ok(reply) => Ok(reply.text()),
            Err(error) => Err(self.explain(during, error)),
        }
    }

    fn explain(&self, during: &'static str, error: ClientError) -> SystemError {
        let state = self.child.state();
        match error {
            ClientError::Timeout(limit) => {
                let seconds = limit.as_secs_f64();
                let problem =
                    format!("its client, process {}, gives no answer within {seconds:.1} s", state.pid());
                state.failed(during, problem)
            }
            // The driver's own words say it all; the log is of other things.
            ClientError::System(problem) => SystemError::failed(state.system(), during, problem),
            ClientError::Lost(problem) => state.failed(during, format!("its client: {problem}")),
        }
    }
}

fn millis(limit: Duration) -> u64 {
    u64::try_from(limit.as_millis()).unwrap_or(u64::MAX)
}

/// The driver's properties on their way to it. Removed here too, for a child that did not come so far.
struct PropertiesFile {
    path: PathBuf,
}

impl PropertiesFile {
    fn write(path: PathBuf, text: &str) -> io::Result<PropertiesFile> {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
        let written = PropertiesFile { path };
        file.write_all(text.as_bytes())?;
        Ok(written)
    }
}

impl Drop for PropertiesFile {
    fn drop(&mut self) {
        // The child has removed it when all went well.
        let _ = std::fs::remove_file(&self.path);
    }
}
