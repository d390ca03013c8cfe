//! Servers and tools written in Java: started by the name of their class with the options that all of them need, and
//! shut down cleanly.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::child::{ChildProcess, ChildState};
use crate::java::{ClassPath, Java, without_options_of_the_user};
use crate::network_namespace::NetworkNamespace;
use crate::nodes::NodeProcess;
use crate::system::{SystemError, SystemResources};

const MIB: u64 = 1 << 20;
const POLL: Duration = Duration::from_millis(50);
const CONNECT_LIMIT: Duration = Duration::from_secs(2);

/// Space for compiled code. Java would reserve 240 MiB; these servers use less than this.
const CODE_CACHE_MIB: u64 = 64;
/// Servers look up the name of their host to find their own address, which must not go to any network.
const HOSTS: &str = "hosts";

/// A Java program that can be started.
#[derive(Clone, Debug)]
pub(crate) struct JavaServer {
    /// The system that errors name.
    pub system: &'static str,
    /// The name of the process in messages and files: `NameNode`, `DataNode 2`.
    pub name: String,
    pub class: String,
    pub arguments: Vec<String>,
    pub class_path: ClassPath,
    /// The largest heap. The collector is the serial one, which has no threads that compete for the cores.
    pub heap_bytes: u64,
    /// The limit for buffers outside of the heap. By default Java allows as much as the heap.
    pub direct_bytes: Option<u64>,
    /// Further options of Java: `-Dhadoop.log.dir=/tmp/x`, `--add-opens=java.base/java.lang=ALL-UNNAMED`.
    pub options: Vec<String>,
    pub environment: Vec<(String, String)>,
    /// Use only Java's first compiler: starts faster and needs less memory, but runs slower. For programs whose speed
    /// is not measured.
    pub quick_start: bool,
    /// Its working and temporary directory, which also holds its arguments and log. Created here, not on the storage
    /// under test.
    pub folder: PathBuf,
    /// The network that it runs in; by default that of the host.
    pub namespace: Option<Arc<NetworkNamespace>>,
    /// The directories that it uses, where it gets mounts of its own without those of other runs.
    pub own_mounts: Option<Vec<PathBuf>>,
}

impl JavaServer {
    /// Starts it within `resources`. It need not be ready yet when this returns.
    pub(crate) fn start(&self, java: &Java, resources: &SystemResources) -> Result<JavaProcess, SystemError> {
        let log = self.log();
        let command = self.command(java, resources).map_err(|error| {
            self.failed("starting", format!("can't prepare {}: {error}", self.folder.display()), None)
        })?;
        let child = match self.own_mounts.clone() {
            None => ChildProcess::spawn_as(self.system, &self.name, command, &log, resources)?,
            Some(own) => {
                ChildProcess::spawn_in_own_mounts(self.system, &self.name, command, &log, resources, own)?
            }
        };
        Ok(JavaProcess { child, namespace: self.namespace.clone(), killed: AtomicBool::new(false) })
    }

    /// Runs a tool outside of any budget and returns what it printed; `resources` are those of its system. Fails if the
    /// tool takes longer than `limit` or exits with a status other than 0.
    pub(crate) fn run(
        &self,
        java: &Java,
        resources: &SystemResources,
        during: &'static str,
        limit: Duration,
    ) -> Result<String, SystemError> {
        let process = self.start(java, &resources.for_tools())?;
        let state = process.state();
        if !state.wait(limit) {
            let problem = format!("{} did not finish within {:.0} s", self.name, limit.as_secs_f64());
            return Err(self.failed(during, problem, state.log_tail()));
        }
        if !state.ended_well() {
            return Err(self.failed(during, state.describe(), state.log_tail()));
        }
        std::fs::read(self.log()).map(|output| String::from_utf8_lossy(&output).into_owned()).map_err(
            |error| self.failed(during, format!("the output of {} is lost: {error}", self.name), None),
        )
    }

    /// Where its output goes.
    pub(crate) fn log(&self) -> PathBuf {
        self.folder.join(format!("{}.log", self.file_name()))
    }

    fn file_name(&self) -> String {
        self.name.to_lowercase().replace(' ', "-")
    }

    fn failed(&self, during: &'static str, problem: String, log_tail: Option<String>) -> SystemError {
        SystemError::Failed { system: self.system, during, problem, log_tail }
    }

    fn command(&self, java: &Java, resources: &SystemResources) -> io::Result<Command> {
        let temporary = self.folder.join("tmp");
        std::fs::create_dir_all(&temporary)?;
        std::fs::write(self.folder.join(HOSTS), hosts())?;
        let arguments = self.folder.join(format!("{}.arguments", self.file_name()));
        std::fs::write(&arguments, argument_file(&self.java_arguments(&temporary, resources)))?;
        let mut command = Command::new(&java.program);
        command.arg(format!("@{}", arguments.display())).current_dir(&self.folder);
        without_options_of_the_user(&mut command);
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        if let Some(namespace) = &self.namespace {
            namespace.enter(&mut command);
        }
        Ok(command)
    }

    fn java_arguments(&self, temporary: &Path, resources: &SystemResources) -> Vec<String> {
        let mut lines = vec![
            format!("-Xmx{}m", (self.heap_bytes / MIB).max(1)),
            "-XX:+UseSerialGC".to_owned(),
            "-Xss256k".to_owned(),
            format!("-XX:ReservedCodeCacheSize={CODE_CACHE_MIB}m"),
            // After an OutOfMemoryError a server would go on without the thread that got it, and do half of its work.
            "-XX:+ExitOnOutOfMemoryError".to_owned(),
            // Java would map its performance counters to a file in /tmp, whose disk could stall it.
            "-XX:-UsePerfData".to_owned(),
            "-Djava.net.preferIPv4Stack=true".to_owned(),
            format!("-Djava.io.tmpdir={}", temporary.display()),
            // Tools keep files in the user's home directory; here these belong to the run.
            format!("-Duser.home={}", temporary.display()),
        ];
        if self.namespace.is_some() {
            lines.push(hosts_option(&self.folder.join(HOSTS)));
        }
        if let Some(direct_bytes) = self.direct_bytes {
            lines.push(format!("-XX:MaxDirectMemorySize={}m", (direct_bytes / MIB).max(1)));
        }
        if self.quick_start {
            lines.push("-XX:TieredStopAtLevel=1".to_owned());
        }
        lines.extend(resources.java_option());
        lines.extend(self.options.iter().cloned());
        lines.extend(["-cp".to_owned(), self.class_path.to_argument().to_string_lossy().into_owned()]);
        lines.push(self.class.clone());
        lines.extend(self.arguments.iter().cloned());
        lines
    }
}

/// A running Java program. Dropping it kills it.
#[derive(Debug)]
pub(crate) struct JavaProcess {
    child: ChildProcess,
    namespace: Option<Arc<NetworkNamespace>>,
    killed: AtomicBool,
}

impl NodeProcess for JavaProcess {
    fn state(&self) -> &Arc<ChildState> {
        self.child.state()
    }

    fn kill(&self) {
        self.child.kill();
    }
}

impl JavaProcess {
    pub(crate) fn state(&self) -> &Arc<ChildState> {
        self.child.state()
    }

    /// Waits until something listens at `address` in its network. Fails if the process ends first.
    pub(crate) fn wait_for_listener(&self, address: SocketAddr, limit: Duration) -> Result<(), SystemError> {
        let connects = || TcpStream::connect_timeout(&address, CONNECT_LIMIT).is_ok();
        self.wait_until("starting", &format!("listening at {address}"), limit, &|| {
            Ok(match &self.namespace {
                Some(namespace) => namespace.within(connects).unwrap_or(false),
                None => connects(),
            })
        })
    }

    /// Waits until `ready` returns true. Fails if `ready` does, if the process ends first, and after `limit`: then the
    /// error says that it is not yet in `condition`.
    pub(crate) fn wait_until(
        &self,
        during: &'static str,
        condition: &str,
        limit: Duration,
        ready: &dyn Fn() -> Result<bool, SystemError>,
    ) -> Result<(), SystemError> {
        self.state().wait_until(during, condition, limit, POLL, ready)
    }

    /// Fails with the end of its log if it has ended.
    pub(crate) fn check(&self, during: &'static str) -> Result<(), SystemError> {
        let state = self.state();
        if state.is_running() { Ok(()) } else { Err(state.failed(during, state.describe())) }
    }

    /// Kills it. It doesn't count as failed afterwards.
    pub(crate) fn kill(&self) {
        self.killed.store(true, Ordering::Relaxed);
        self.child.kill();
    }

    pub(crate) fn was_killed(&self) -> bool {
        self.killed.load(Ordering::Relaxed)
    }

    /// Asks it to end and waits. After `limit` it is killed, which is an error.
    pub(crate) fn end(&self, limit: Duration) -> Result<(), SystemError> {
        self.state().terminate();
        self.wait_for_end(limit)
    }

    /// Like [`end`](Self::end), if it has been asked already.
    pub(crate) fn wait_for_end(&self, limit: Duration) -> Result<(), SystemError> {
        if self.was_killed() { Ok(()) } else { self.child.wait_for_end(limit) }
    }
}

/// Asks all of them to end, then waits for each. Those that take longer than `limit` are killed. Returns the first
/// error.
pub(crate) fn end_all<'a>(
    processes: impl IntoIterator<Item = &'a JavaProcess>,
    limit: Duration,
) -> Result<(), SystemError> {
    let processes: Vec<&JavaProcess> = processes.into_iter().collect();
    processes.iter().for_each(|process| process.state().terminate());
    let deadline = Instant::now() + limit;
    let mut outcome = Ok(());
    for process in processes {
        let left = deadline.saturating_duration_since(Instant::now());
        let ended = process.wait_for_end(left);
        outcome = outcome.and(ended);
    }
    outcome
}

/// A file of hosts in which the name of this host is a loopback address.
pub(crate) fn hosts() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    format!("127.0.0.1 localhost {}\n", host.trim())
}

/// Makes a Java program look names up in this file alone: in a network of its own nobody answers for names.
pub(crate) fn hosts_option(file: &Path) -> String {
    format!("-Djdk.net.hosts.file={}", file.display())
}

/// The content of a file of arguments: one a line, in quotes since a path may hold spaces. In quotes a backslash
/// escapes.
pub(crate) fn argument_file(lines: &[String]) -> String {
    lines.iter().map(|line| format!("\"{}\"\n", line.replace('\\', "\\\\").replace('"', "\\\""))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(folder: &Path) -> JavaServer {
        JavaServer {
            system: "test",
            name: "Version 2".to_owned(),
            class: "Program".to_owned(),
            arguments: Vec::new(),
            class_path: ClassPath::new().with_classes(folder),
            heap_bytes: 32 << 20,
            direct_bytes: Some(16 << 20),
            options: vec!["-Da=b c".to_owned()],
            environment: vec![("A".to_owned(), "b".to_owned())],
            quick_start: true,
            folder: folder.join("run"),
            namespace: None,
            own_mounts: None,
        }
    }

    #[test]
    fn failing_program_is_named_with_last_output() {
        let folder = tempfile::TempDir::new().unwrap();
        let java = Java::find("test").unwrap();
        let mut server = server(folder.path());
        server.class = "no.such.Program".to_owned();
        let error = server
            .run(&java, &SystemResources::unlimited(), "testing", Duration::from_secs(60))
            .unwrap_err()
            .to_string();
        assert!(error.starts_with("test failed while testing: Version 2 (process "), "{error}");
        assert!(error.contains("exited with status 1"), "{error}");
        assert!(error.contains("no.such.Program"), "{error}");
        assert!(server.folder.join("version-2.log").is_file());
    }

    #[test]
    fn start_command_has_expected_arguments() {
        let mut server = server(Path::new("/scratch"));
        server.namespace = Some(NetworkNamespace::create("test").unwrap());
        let resources = SystemResources { modelled_cores: Some(16), ..SystemResources::unlimited() };
        let arguments = server.java_arguments(Path::new("/scratch/run/tmp"), &resources);
        for expected in [
            "-Xmx32m",
            "-XX:MaxDirectMemorySize=16m",
            "-XX:TieredStopAtLevel=1",
            "-Djdk.net.hosts.file=/scratch/run/hosts",
            "-XX:ActiveProcessorCount=16",
            "-Da=b c",
        ] {
            assert!(arguments.iter().any(|argument| argument == expected), "{expected}: {arguments:?}");
        }
        assert_eq!(arguments[arguments.len() - 3..], ["-cp", "/scratch", "Program"]);
        server.quick_start = false;
        server.direct_bytes = None;
        let arguments = server.java_arguments(Path::new("/tmp"), &SystemResources::unlimited());
        for unset in ["Tiered", "Direct", "ActiveProcessorCount"] {
            assert!(!arguments.iter().any(|argument| argument.contains(unset)), "{unset}");
        }
    }

    #[test]
    fn argument_with_spaces_and_quotes_stays_one() {
        let lines = ["-Da=b c".to_owned(), "d\"e\\f".to_owned()];
        assert_eq!(argument_file(&lines), "\"-Da=b c\"\n\"d\\\"e\\\\f\"\n");
    }
}
