//! A server, or a tool, that is a Java program: started by the name of its class with what all of them need, and ended in
//! order.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::child::{Child, ChildState};
use crate::java::{ClassPath, Java};
use crate::network_namespace::NetworkNamespace;
use crate::system::{Memory, SystemError};

const MIB: u64 = 1 << 20;
const POLL: Duration = Duration::from_millis(50);
const CONNECT_LIMIT: Duration = Duration::from_secs(2);

/// Compiled code of one server; Java would set 240 MiB aside.
const CODE_CACHE_MIB: u64 = 64;
/// Programs find their own address by looking their host's name up, which must not ask any network.
const HOSTS: &str = "hosts";

/// A Java program, before it is started.
#[derive(Clone, Debug)]
pub struct JavaServer {
    /// The system that an error is of.
    pub system: &'static str,
    /// What messages and files call the process: `NameNode`, `DataNode 2`.
    pub name: String,
    pub class: String,
    pub arguments: Vec<String>,
    pub class_path: ClassPath,
    /// The largest heap. It is the serial collector's, which takes no threads of its own.
    pub heap_bytes: u64,
    /// The most that buffers outside of the heap may take; Java's own rule, which is as much as the heap, when absent.
    pub direct_bytes: Option<u64>,
    /// Further options of the Java machine: `-Dhadoop.log.dir=/tmp/x`, `--add-opens=java.base/java.lang=ALL-UNNAMED`.
    pub options: Vec<String>,
    pub environment: Vec<(String, String)>,
    /// Compile with the first compiler alone: quicker to start and smaller, slower at its best. For what no measurement is of.
    pub quick_start: bool,
    /// Its working and temporary directory, with its arguments and its log. Off the storage under test; it is made.
    pub folder: PathBuf,
    /// The network that it is in; the host's when absent.
    pub namespace: Option<Arc<NetworkNamespace>>,
}

impl JavaServer {
    /// Starts it inside `memory`. It is not ready yet when this returns.
    pub fn start(&self, java: &Java, memory: &Memory) -> Result<JavaProcess, SystemError> {
        let log = self.log();
        let command = self.command(java).map_err(|error| {
            self.failed("starting", format!("can't prepare {}: {error}", self.folder.display()), None)
        })?;
        let child = Child::spawn_as(self.system, &self.name, command, &log, memory)?;
        Ok(JavaProcess { child, namespace: self.namespace.clone(), killed: AtomicBool::new(false) })
    }

    /// Runs a tool to its end, outside of any memory budget, and gives what it printed. It fails when the tool takes longer
    /// than `limit` or ends with another status than 0.
    pub fn run(&self, java: &Java, during: &'static str, limit: Duration) -> Result<String, SystemError> {
        let process = self.start(java, &Memory::unlimited())?;
        let state = process.state();
        if !state.wait(limit) {
            let problem = format!("{} is not done after {:.0} s", self.name, limit.as_secs_f64());
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
    pub fn log(&self) -> PathBuf {
        self.folder.join(format!("{}.log", self.file_name()))
    }

    fn file_name(&self) -> String {
        self.name.to_lowercase().replace(' ', "-")
    }

    fn failed(&self, during: &'static str, problem: String, log_tail: Option<String>) -> SystemError {
        SystemError::Failed { system: self.system, during, problem, log_tail }
    }

    fn command(&self, java: &Java) -> io::Result<Command> {
        let temporary = self.folder.join("tmp");
        std::fs::create_dir_all(&temporary)?;
        std::fs::write(self.folder.join(HOSTS), hosts())?;
        let arguments = self.folder.join(format!("{}.arguments", self.file_name()));
        std::fs::write(&arguments, argument_file(&self.java_arguments(&temporary)))?;
        let mut command = Command::new(&java.program);
        command.arg(format!("@{}", arguments.display())).current_dir(&self.folder);
        // Each of many threads would keep a heap of its own in the C library.
        command.env("MALLOC_ARENA_MAX", "2");
        for variable in ["JAVA_TOOL_OPTIONS", "_JAVA_OPTIONS", "JDK_JAVA_OPTIONS", "CLASSPATH"] {
            command.env_remove(variable);
        }
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        if let Some(namespace) = &self.namespace {
            namespace.enter(&mut command);
        }
        Ok(command)
    }

    fn java_arguments(&self, temporary: &Path) -> Vec<String> {
        let mut lines = vec![
            format!("-Xmx{}m", (self.heap_bytes / MIB).max(1)),
            "-XX:+UseSerialGC".to_owned(),
            "-Xss256k".to_owned(),
            format!("-XX:ReservedCodeCacheSize={CODE_CACHE_MIB}m"),
            // One that has lost a thread to it would do half of its work.
            "-XX:+ExitOnOutOfMemoryError".to_owned(),
            // Its shared file would be on whatever disk the temporary directory is.
            "-XX:-UsePerfData".to_owned(),
            "-Djava.net.preferIPv4Stack=true".to_owned(),
            format!("-Djava.io.tmpdir={}", temporary.display()),
            // What it keeps for its user belongs to this run.
            format!("-Duser.home={}", temporary.display()),
        ];
        if self.namespace.is_some() {
            lines.push(format!("-Djdk.net.hosts.file={}", self.folder.join(HOSTS).display()));
        }
        if let Some(direct_bytes) = self.direct_bytes {
            lines.push(format!("-XX:MaxDirectMemorySize={}m", (direct_bytes / MIB).max(1)));
        }
        if self.quick_start {
            lines.push("-XX:TieredStopAtLevel=1".to_owned());
        }
        lines.extend(self.options.iter().cloned());
        lines.extend(["-cp".to_owned(), self.class_path.to_argument().to_string_lossy().into_owned()]);
        lines.push(self.class.clone());
        lines.extend(self.arguments.iter().cloned());
        lines
    }
}

/// A Java program that was started. Dropping it ends it at once.
#[derive(Debug)]
pub struct JavaProcess {
    child: Child,
    namespace: Option<Arc<NetworkNamespace>>,
    killed: AtomicBool,
}

impl JavaProcess {
    pub fn state(&self) -> &Arc<ChildState> {
        self.child.state()
    }

    /// Waits until something listens at `address` in its network. Fails when the process ends before.
    pub fn wait_for_listener(&self, address: SocketAddr, limit: Duration) -> Result<(), SystemError> {
        let connects = || TcpStream::connect_timeout(&address, CONNECT_LIMIT).is_ok();
        self.wait_until("starting", &format!("listening at {address}"), limit, &|| {
            Ok(match &self.namespace {
                Some(namespace) => namespace.within(connects).unwrap_or(false),
                None => connects(),
            })
        })
    }

    /// Waits until `ready` says so. Fails with it, when the process ends before, and after `limit`: then it says that it is
    /// not yet `what`.
    pub fn wait_until(
        &self,
        during: &'static str,
        what: &str,
        limit: Duration,
        ready: &dyn Fn() -> Result<bool, SystemError>,
    ) -> Result<(), SystemError> {
        let started = Instant::now();
        let state = self.state();
        while !ready()? {
            if state.wait(POLL) {
                return Err(state.failed(during, state.describe()));
            }
            if started.elapsed() > limit {
                let problem =
                    format!("{} and not yet {what} after {:.0} s", state.describe(), limit.as_secs_f64());
                return Err(state.failed(during, problem));
            }
        }
        Ok(())
    }

    /// `Err` with its last words when it has ended.
    pub fn check(&self, during: &'static str) -> Result<(), SystemError> {
        let state = self.state();
        if state.is_running() { Ok(()) } else { Err(state.failed(during, state.describe())) }
    }

    /// Ends it at once. That is no failure of its own afterwards.
    pub fn kill(&self) {
        self.killed.store(true, Ordering::Relaxed);
        self.child.kill();
    }

    pub fn was_killed(&self) -> bool {
        self.killed.load(Ordering::Relaxed)
    }

    /// Asks it to end and waits; by force after `limit`, which is an error.
    pub fn end(&self, limit: Duration) -> Result<(), SystemError> {
        self.state().terminate();
        self.wait_for_end(limit)
    }

    /// [`end`](Self::end) for one that has been asked already.
    pub fn wait_for_end(&self, limit: Duration) -> Result<(), SystemError> {
        if self.was_killed() { Ok(()) } else { self.child.wait_for_end(limit) }
    }
}

/// Asks all of them to end, then waits for each; whoever takes longer than `limit` is ended by force. The first error.
pub fn end_all<'a>(
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

/// This host's name, as programs look it up, is on loopback.
pub(crate) fn hosts() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    format!("127.0.0.1 localhost {}\n", host.trim())
}

/// One argument a line, in quotes: a path may hold spaces, and in quotes a backslash escapes.
pub fn argument_file(lines: &[String]) -> String {
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
        }
    }

    #[test]
    fn a_program_that_fails_is_named_with_its_last_words() {
        let folder = tempfile::TempDir::new().unwrap();
        let java = Java::find("test").unwrap();
        let mut server = server(folder.path());
        server.class = "no.such.Program".to_owned();
        let error = server.run(&java, "testing", Duration::from_secs(60)).unwrap_err().to_string();
        assert!(error.starts_with("test failed while testing: Version 2 (process "), "{error}");
        assert!(error.contains("exited with status 1"), "{error}");
        assert!(error.contains("no.such.Program"), "{error}");
        assert!(server.folder.join("version-2.log").is_file());
    }

    #[test]
    fn what_it_is_started_with() {
        let mut server = server(Path::new("/scratch"));
        server.namespace = Some(NetworkNamespace::create("test").unwrap());
        let arguments = server.java_arguments(Path::new("/scratch/run/tmp"));
        for expected in [
            "-Xmx32m",
            "-XX:MaxDirectMemorySize=16m",
            "-XX:TieredStopAtLevel=1",
            "-Djdk.net.hosts.file=/scratch/run/hosts",
            "-Da=b c",
        ] {
            assert!(arguments.iter().any(|argument| argument == expected), "{expected}: {arguments:?}");
        }
        assert_eq!(arguments[arguments.len() - 3..], ["-cp", "/scratch", "Program"]);
        server.quick_start = false;
        server.direct_bytes = None;
        let arguments = server.java_arguments(Path::new("/tmp"));
        assert!(!arguments.iter().any(|argument| argument.contains("Tiered") || argument.contains("Direct")));
    }

    #[test]
    fn an_argument_with_spaces_and_quotes_stays_one() {
        let lines = ["-Da=b c".to_owned(), "d\"e\\f".to_owned()];
        assert_eq!(argument_file(&lines), "\"-Da=b c\"\n\"d\\\"e\\\\f\"\n");
    }
}
