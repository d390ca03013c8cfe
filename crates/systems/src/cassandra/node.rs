//! One node: its process, its management port.

use std::net::{IpAddr, SocketAddr};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::{CapabilitySet, remove_capability_from_bounding_set};

use super::NAME;
use super::database::NodeMetrics;
use super::network::CassandraNetwork;
use super::node_files::{MANAGEMENT_USER, NodePlan, module_arguments, names_argument};
use super::table::KEYSPACE;
use crate::child::{ChildProcess, ChildState};
use crate::credentials::random_password;
use crate::java::{Java, without_options_of_the_user};
use crate::nodes::NodeProcess;
use crate::process_memory::resident_bytes;
use crate::system::{SystemError, SystemResources};

const POLL: Duration = Duration::from_millis(100);
const CONNECT_LIMIT: Duration = Duration::from_secs(2);
/// Not zero: then mlockall(2) fails with EPERM instead of ENOMEM, which Cassandra doesn't expect.
const LOCKED_BYTES: u64 = 64 << 10;

/// A node that was started.
pub(super) struct CassandraNode {
    child: ChildProcess,
    native: SocketAddr,
    network: CassandraNetwork,
    data: Vec<PathBuf>,
    /// The command line of `nodetool` without its command.
    tool: Vec<String>,
    java: Java,
    /// Those of `nodetool`.
    of_tools: SystemResources,
    scratch: PathBuf,
}

impl CassandraNode {
    /// Starts the node of `plan`. It is not ready yet when this returns.
    pub(super) fn start(plan: &NodePlan<'_>, java: &Java) -> Result<CassandraNode, SystemError> {
        let scratch = plan.directories.scratch.clone();
        let failed = |problem: String| SystemError::starting(NAME, problem);
        let password = random_password()
            .map_err(|error| failed(format!("can't make a password for its management port: {error}")))?;
        std::fs::create_dir_all(&scratch).and_then(|()| plan.write(&password)).map_err(|error| {
            failed(format!("can't prepare the directories of node {}: {error}", plan.number + 1))
        })?;
        let mut command = Command::new(&java.program);
        command.arg(format!("@{}", scratch.join("java.arguments").display())).current_dir(&scratch);
        without_options_of_the_user(&mut command);
        plan.network.enter(&mut command);
        keep_memory_unlocked(&mut command);
        let child = ChildProcess::spawn(NAME, command, &scratch.join("cassandra.log"), plan.resources)?;
        let mut tool: Vec<String> =
            ["-Xmx64m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData"]
                .map(str::to_owned)
                .into();
        tool.extend(module_arguments());
        tool.push(names_argument(&scratch));
        tool.extend([
            // nodetool writes a history of its commands to the home directory.
            format!("-Duser.home={}", scratch.join("tmp").display()),
            format!("-Djava.io.tmpdir={}", scratch.join("tmp").display()),
            format!("-Dlogback.configurationFile={}", scratch.join("logback-tools.xml").display()),
            "-cp".to_owned(),
            format!("{}/*", plan.programs.display()),
            "org.apache.cassandra.tools.NodeTool".to_owned(),
            "-h".to_owned(),
            "127.0.0.1".to_owned(),
            "-p".to_owned(),
            plan.management_port.to_string(),
            "-u".to_owned(),
            MANAGEMENT_USER.to_owned(),
            "-pwf".to_owned(),
            scratch.join("nodetool.password").display().to_string(),
        ]);
        let native = SocketAddr::new(
            plan.ip
                .parse::<IpAddr>()
                .map_err(|error| failed(format!("'{}' is not an address: {error}", plan.ip)))?,
            plan.native_port,
        );
        let data = plan.directories.data.clone();
        let network = plan.network.clone();
        let of_tools = plan.resources.for_tools();
        Ok(CassandraNode { child, native, network, data, tool, java: java.clone(), of_tools, scratch })
    }

    /// Where clients reach it.
    pub(super) fn address(&self) -> IpAddr {
        self.native.ip()
    }

    /// Kills its process.
    pub(super) fn kill(&self) {
        self.child.kill();
    }

    /// Waits until it accepts clients.
    pub(super) fn wait_until_ready(&self, limit: Duration) -> Result<(), SystemError> {
        self.state().wait_until("starting", "accepting clients", limit, POLL, &|| {
            Ok(self.network.connect(self.native, CONNECT_LIMIT).is_ok())
        })
    }

    /// Fails if its process has ended or does not accept clients.
    pub(super) fn health(&self) -> Result<(), SystemError> {
        let state = self.state();
        if !state.is_running() {
            return Err(state.failed("running", state.describe()));
        }
        match self.network.connect(self.native, CONNECT_LIMIT) {
            Ok(_) => Ok(()),
            Err(error) => {
                let problem =
                    format!("{}, but does not accept clients at {}: {error}", state.describe(), self.native);
                Err(state.failed("running", problem))
            }
        }
    }

    /// Runs `nodetool` with these arguments, outside of the budget, and returns what it printed.
    pub(super) fn tool(
        &self,
        words: &[&str],
        during: &'static str,
        limit: Duration,
    ) -> Result<String, SystemError> {
        let state = self.state();
        let subcommand = words.first().copied().unwrap_or_default();
        if !state.is_running() {
            return Err(state.failed(during, state.describe()));
        }
        let mut command = Command::new(&self.java.program);
        command.args(&self.tool).args(words).current_dir(&self.scratch);
        without_options_of_the_user(&mut command);
        self.network.enter(&mut command);
        // Named by the command, since no command runs twice at the same time on a node.
        let log = self.scratch.join(format!("nodetool-{subcommand}.log"));
        let tool = ChildProcess::spawn(NAME, command, &log, &self.of_tools)?;
        let ended = tool.state().wait(limit);
        let output = std::fs::read(&log).unwrap_or_default();
        let output = String::from_utf8_lossy(&output).into_owned();
        if !ended {
            let problem = format!("nodetool {subcommand} did not finish within {:.0} s", limit.as_secs_f64());
            return Err(state.failed(during, problem));
        }
        // Fails only if it is gone.
        let _ = std::fs::remove_file(&log);
        if !tool.state().ended_well() {
            return Err(SystemError::Failed {
                system: NAME,
                during,
                problem: format!("nodetool {subcommand} failed; {}", state.describe()),
                log_tail: tool_words(&output).or_else(|| state.log_tail()),
            });
        }
        Ok(output)
    }

    /// The figures that can be seen from outside: its memory and the files of a table.
    pub(super) fn outside_figures(&self, table: &str) -> NodeMetrics {
        let mut figures = NodeMetrics::new();
        let files = self.data.iter().map(|data| sstables(&data.join(KEYSPACE), table)).sum::<usize>();
        figures.insert("current_sstables".to_owned(), files as f64);
        if let Some(bytes) = resident_bytes(self.state().pid()) {
            figures.insert("current_resident_bytes".to_owned(), bytes as f64);
        }
        figures
    }

    /// Waits for a process that has been asked to end. It is killed after `limit`.
    pub(super) fn end(&self, limit: Duration) -> Result<(), SystemError> {
        self.child.wait_for_end(limit)
    }
}

impl NodeProcess for CassandraNode {
    fn state(&self) -> &Arc<ChildState> {
        self.child.state()
    }

    fn kill(&self) {
        self.child.kill();
    }
}

/// Takes away the right to lock memory. Cassandra locks everything that it has mapped when it starts if it may, and
/// root may: besides the heap, 120 to 150 MiB of jars and libraries. Their pages are page cache like any other, but
/// locked ones can't be dropped. With a small budget no page cache would be left, and the kernel would kill the node.
/// Without the right, Cassandra only logs a warning.
fn keep_memory_unlocked(command: &mut Command) {
    // SAFETY: between fork and exec the closure makes two system calls on numbers; it takes no lock and allocates nothing.
    unsafe {
        command.pre_exec(|| {
            if getrlimit(Resource::Memlock).maximum.is_none_or(|bytes| bytes > LOCKED_BYTES) {
                let limit = Rlimit { current: Some(LOCKED_BYTES), maximum: Some(LOCKED_BYTES) };
                setrlimit(Resource::Memlock, limit)?;
            }
            // Fails for users other than root, who don't have it.
            let _ = remove_capability_from_bounding_set(CapabilitySet::IPC_LOCK);
            Ok(())
        });
    }
}

/// The number of SSTables of a table. Its directory is named by the table and an id, and each SSTable has one data file
/// in it.
fn sstables(keyspace: &std::path::Path, table: &str) -> usize {
    let names = |folder: &std::path::Path| -> Vec<String> {
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
    };
    let is_of_table = |name: &String| name.split_once('-').is_some_and(|(start, _)| start == table);
    let folders = names(keyspace).into_iter().filter(is_of_table);
    folders
        .map(|folder| names(&keyspace.join(folder)).iter().filter(|name| name.ends_with("-Data.db")).count())
        .sum()
}

/// The first lines that `nodetool` printed, without stack traces.
fn tool_words(output: &str) -> Option<String> {
    let lines: Vec<&str> = output
        .lines()
        .filter(|line| !line.starts_with("\tat ") && !line.starts_with("--") && !line.trim().is_empty())
        .collect();
    let words = lines[..lines.len().min(5)].join("\n");
    (!words.is_empty()).then_some(words)
}
