//! The process of the child: how it starts, what it is asked besides operations, and how it ends.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use underlay_workload::client::{ClientError, FieldSelection, FieldValues};

use super::client::JvmClient;
use super::hop::ConnectionHops;
use super::properties;
use super::sources::CHILD;
use crate::child::{ChildProcess, ChildState, OBITUARY_WAIT};
use crate::connection::{FramedConnection, SocketPath};
use crate::java::{ClassPath, Java, without_options_of_the_user};
use crate::network_namespace::NetworkNamespace;
use crate::system::{LoadProgress, SystemError, SystemResources};
use crate::wire::WireOpcode;

const MAIN: &str = "underlay.jvm.Server";
/// The smallest heap in which the child and a client library start.
const MIN_HEAP_BYTES: u64 = 16 << 20;
/// Limits for everything that Java needs besides its heap. A connection's thread uses only the part of its stack that
/// it touches, some tens of kilobytes.
const OPTIONS: [&str; 9] = [
    // Its pauses on a small heap are short, and it has no threads that compete with the system for the cores.
    "-XX:+UseSerialGC",
    "-XX:MaxMetaspaceSize=128m",
    "-XX:ReservedCodeCacheSize=64m",
    "-XX:MaxDirectMemorySize=64m",
    "-Xss512k",
    // Each thread caches a direct buffer of the size of the longest message that it ever sent, unless that is longer
    // than this.
    "-Djdk.nio.maxCachedBufferSize=262144",
    // After an OutOfMemoryError one thread dies and the others wait for it forever. It is better to end visibly.
    "-XX:+ExitOnOutOfMemoryError",
    "-XX:-UsePerfData",
    "-Dfile.encoding=UTF-8",
];
const CONNECT_POLL: Duration = Duration::from_millis(10);
/// How much later than its limit settling or a command may end.
const GRACE: Duration = Duration::from_secs(10);

/// How to start a child.
#[derive(Debug)]
pub struct JvmSpec<'a> {
    /// The system that the child belongs to, which errors name.
    pub system: &'static str,
    /// The process's name in errors where it is a part of the system. `None`: it is the system's client.
    pub part: Option<&'a str>,
    /// The driver's class.
    pub driver: &'a str,
    /// Where that class and its libraries are. The child's own classes are added to it.
    pub class_path: ClassPath,
    /// The properties of the driver. They are passed in a file that only this user can read, which is deleted once they
    /// have been read.
    pub properties: BTreeMap<String, String>,
    /// More options of Java: `-Dname=value`, `--add-opens=...`.
    pub options: Vec<String>,
    /// For the socket, the log (`jvm-NAME.log`) and temporary files.
    pub scratch: &'a Path,
    pub heap_bytes: u64,
    /// The cgroups that the process joins and the CPUs that it runs on, and the budget that is named if the kernel
    /// kills it. A client counts this host's cores, not the modelled machine's, since it is on another one.
    pub resources: &'a SystemResources,
    /// The network that it runs in.
    pub namespace: Option<&'a NetworkNamespace>,
    /// How long an operation may take.
    pub timeout: Duration,
    /// How long it may take until the driver is open.
    pub start_limit: Duration,
    /// Becomes true where it is no use any more to wait for that.
    pub give_up: Option<&'a AtomicBool>,
}

/// A running child. Dropping it kills it.
#[derive(Debug)]
pub struct JvmChild {
    child: ChildProcess,
    socket: SocketPath,
    timeout: Duration,
    hops: ConnectionHops,
    is_client: bool,
}

impl JvmChild {
    /// Compiles the classes of the child and returns their folder, which drivers are compiled against.
    /// [`start`](Self::start) does this as well, but without reporting progress.
    ///
    /// # Errors
    /// When there is no Java, or compiling fails.
    pub fn prepare(system: &'static str, progress: &dyn Fn(&LoadProgress)) -> Result<PathBuf, SystemError> {
        CHILD.classes(system, &ClassPath::new(), progress)
    }

    /// Starts the child and waits until its driver is open.
    ///
    /// # Errors
    /// When there is no Java, the heap is too small, or the child or its driver does not start.
    pub fn start(spec: &JvmSpec<'_>) -> Result<JvmChild, SystemError> {
        Self::start_and_tell(spec, &|| {})
    }

    /// Like [`start`](Self::start). Calls `process_runs` before it waits.
    ///
    /// # Errors
    /// Like there.
    pub fn start_and_tell(
        spec: &JvmSpec<'_>,
        process_runs: &(dyn Fn() + Sync),
    ) -> Result<JvmChild, SystemError> {
        let system = spec.system;
        let failed = |problem: String| SystemError::starting(system, problem);
        if spec.heap_bytes < MIN_HEAP_BYTES {
            return Err(failed(format!(
                "a heap of {:.1} MiB is too small for {}, which needs {} MiB",
                spec.heap_bytes as f64 / f64::from(1 << 20),
                spec.part.unwrap_or("its client process"),
                MIN_HEAP_BYTES >> 20
            )));
        }
        let java = Java::find(system)?;
        let classes = Self::prepare(system, &|_| {})?;
        std::fs::create_dir_all(spec.scratch).map_err(|error| {
            failed(format!("can't make the directory {}: {error}", spec.scratch.display()))
        })?;
        let socket = SocketPath::new(spec.scratch, system)
            .map_err(|error| failed(format!("can't create a path for its socket: {error}")))?;
        // In a file that others can't read, since command lines are public.
        let properties = PropertiesFile::write(
            spec.scratch.join(format!("jvm-{}.properties", socket.name())),
            &properties::text(&spec.properties),
        )
        .map_err(|error| failed(format!("can't write the properties of its driver: {error}")))?;
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
            .arg(&properties.path);
        without_options_of_the_user(&mut command);
        if let Some(namespace) = spec.namespace {
            namespace.enter(&mut command);
        }
        let log = spec.scratch.join(format!("jvm-{}.log", socket.name()));
        let child =
            ChildProcess::spawn_as(system, spec.part.unwrap_or(system), command, &log, spec.resources)?;
        let (hops, is_client) = (ConnectionHops::default(), spec.part.is_none());
        // Made before the wait: if that fails, the process ends with it.
        let started = JvmChild { child, socket, timeout: spec.timeout, hops, is_client };
        process_runs();
        started.wait_until_ready(spec.start_limit, spec.give_up)?;
        Ok(started)
    }

    fn wait_until_ready(&self, limit: Duration, give_up: Option<&AtomicBool>) -> Result<(), SystemError> {
        const DURING: &str = "starting";
        let state = self.child.state();
        let ready = state.wait_until(DURING, "accepting connections", limit, CONNECT_POLL, &|| {
            if give_up.is_some_and(|give_up| give_up.load(Ordering::Relaxed)) {
                return Err(state.failed(DURING, "another part did not start".to_owned()));
            }
            Ok(FramedConnection::open(self.socket.as_path(), self.timeout, Arc::clone(state)).is_ok())
        });
        ready.map_err(|error| match error {
            SystemError::Failed { system, during, problem, log_tail } => {
                SystemError::Failed { system, during, problem: self.named(problem), log_tail }
            }
            other => other,
        })
    }

    /// A client has the name of the system, whose servers may be fine.
    fn named(&self, problem: String) -> String {
        if self.is_client { format!("its client: {problem}") } else { problem }
    }

    pub fn state(&self) -> &Arc<ChildState> {
        self.child.state()
    }

    /// Opens a connection for one thread, for which the child creates a client of the system. The options are those of
    /// the driver.
    ///
    /// # Errors
    /// When the child is gone, or its client can't reach the system.
    pub fn connect(&self, options: &[(&str, &str)]) -> Result<JvmClient, SystemError> {
        const DURING: &str = "connecting";
        let mut connection = self.open(DURING, self.timeout)?;
        let mut values = FieldValues::default();
        for (number, text) in (0..).zip(options.iter().flat_map(|&(name, value)| [name, value])) {
            values.push(number, text.as_bytes());
        }
        // Create the client now, so that one that can't reach the system fails here and not at its first operation.
        connection
            .call(WireOpcode::Open, FieldSelection::All, 0, b"", Some(&values))
            .map_err(|error| self.explain(DURING, error))?;
        Ok(JvmClient::new(connection, self.hops.connection()))
    }

    /// Checks that the child answers.
    ///
    /// # Errors
    /// When its process has ended, or does not answer.
    pub fn health(&self) -> Result<(), SystemError> {
        self.request("running", WireOpcode::Ping, 0, "", "", self.timeout).map(drop)
    }

    /// The driver's figures, and those of the hop to it: the totals `client_calls`, `client_driver_seconds` and
    /// `client_hop_seconds`, and `current_client_hop_p50_us` and `..._p99_us` since there last was no client. All are
    /// by this machine's clock.
    ///
    /// # Errors
    /// When the child does not answer, or not with numbers.
    pub fn figures(&self) -> Result<BTreeMap<String, f64>, SystemError> {
        let mut figures = self.driver_figures()?;
        figures.extend(self.hops.figures());
        Ok(figures)
    }

    /// Those of the driver alone, for a child that the load generator does not talk to.
    pub(crate) fn driver_figures(&self) -> Result<BTreeMap<String, f64>, SystemError> {
        self.numbers(WireOpcode::Figures)
    }

    /// The driver's gauges: those of its figures that say how much is running in the background.
    ///
    /// # Errors
    /// When the child does not answer, or not with numbers.
    pub fn gauges(&self) -> Result<BTreeMap<String, f64>, SystemError> {
        self.numbers(WireOpcode::Gauges)
    }

    fn numbers(&self, opcode: WireOpcode) -> Result<BTreeMap<String, f64>, SystemError> {
        const DURING: &str = "reading its figures";
        // Wait longer than the driver's own timeout, because its error says more than ours would.
        let text = self.request(DURING, opcode, 0, "", "", self.patience(Duration::ZERO))?;
        serde_json::from_str(&text)
            .map_err(|error| self.state().failed(DURING, format!("its answer can't be read: {error}")))
    }

    /// Lets the driver flush the data and wait for background work, within `limit`.
    ///
    /// # Errors
    /// When it fails or takes longer.
    pub fn settle(&self, limit: Duration) -> Result<(), SystemError> {
        self.request("settling", WireOpcode::Settle, millis(limit), "", "", self.patience(limit)).map(drop)
    }

    /// Runs a command of the driver within `limit` and returns its answer.
    ///
    /// # Errors
    /// When it fails or takes longer.
    pub fn command(
        &self,
        during: &'static str,
        name: &str,
        argument: &str,
        limit: Duration,
    ) -> Result<String, SystemError> {
        self.request(during, WireOpcode::Command, millis(limit), name, argument, self.patience(limit))
    }

    /// Kills it. Pending requests fail.
    pub fn kill(&self) {
        self.child.kill();
    }

    /// Closes the driver and waits for the process to end.
    ///
    /// # Errors
    /// When closing fails, or the process had to be killed after `limit`.
    pub fn stop(&self, limit: Duration) -> Result<(), SystemError> {
        const DURING: &str = "stopping";
        self.request(DURING, WireOpcode::Stop, 0, "", "", limit)?;
        self.child.wait_for_end(limit)
    }

    fn patience(&self, limit: Duration) -> Duration {
        limit.saturating_add(GRACE).saturating_add(self.timeout)
    }

    fn open(&self, during: &'static str, timeout: Duration) -> Result<FramedConnection, SystemError> {
        let state = self.child.state();
        FramedConnection::open(self.socket.as_path(), timeout, Arc::clone(state)).map_err(|error| {
            // The kernel closes the sockets of a killed process a moment before it can be reaped.
            let problem = match state.wait(OBITUARY_WAIT) {
                true => state.describe(),
                false => format!("can't connect to process {}: {error}", state.pid()),
            };
            state.failed(during, self.named(problem))
        })
    }

    /// Sends one request on a new connection and returns the text of the reply.
    fn request(
        &self,
        during: &'static str,
        opcode: WireOpcode,
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
        match connection.call(opcode, FieldSelection::All, number, key.as_bytes(), Some(&values)) {
            Ok(reply) => Ok(reply.text()),
            Err(error) => Err(self.explain(during, error)),
        }
    }

    fn explain(&self, during: &'static str, error: ClientError) -> SystemError {
        let state = self.child.state();
        match error {
            ClientError::Timeout(limit) => {
                let seconds = limit.as_secs_f64();
                let name = if self.is_client { "its client" } else { state.name() };
                let problem =
                    format!("{name} (process {}) did not answer within {seconds:.1} s", state.pid());
                state.failed(during, problem)
            }
            // The driver's own message is complete, and the log is about other things.
            ClientError::System(problem) => SystemError::failed(state.system(), during, problem),
            ClientError::Lost(problem) => state.failed(during, self.named(problem)),
        }
    }
}

fn millis(limit: Duration) -> u64 {
    u64::try_from(limit.as_millis()).unwrap_or(u64::MAX)
}

/// The file of the driver's properties. The child deletes it; dropping this does as well, in case the child did not get
/// that far.
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
        // Fails if the child has deleted it, as it should.
        let _ = std::fs::remove_file(&self.path);
    }
}
