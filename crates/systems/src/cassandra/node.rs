//! One node: its process, its management port.

use std::fs::File;
use std::io::Read;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::NAME;
use super::database::Figures;
use super::network::Network;
use super::node_files::{MANAGEMENT_USER, NodePlan, module_arguments, names_argument};
use super::table::KEYSPACE;
use crate::child::{Child, ChildState};
use crate::java::Java;
use crate::system::{Memory, SystemError};

const POLL: Duration = Duration::from_millis(100);
const CONNECT_LIMIT: Duration = Duration::from_secs(2);

/// A node that was started.
pub struct Node {
    child: Child,
    native: SocketAddr,
    network: Network,
    data: Vec<PathBuf>,
    /// The command line of `nodetool`, up to what it shall do.
    tool: Vec<String>,
    java: Java,
    scratch: PathBuf,
}

impl Node {
    /// Starts the node of `plan`, which is not ready yet when this returns.
    pub fn start(plan: &NodePlan<'_>, java: &Java, memory: &Memory) -> Result<Node, SystemError> {
        let scratch = plan.directories.scratch.clone();
        let failed = |problem: String| SystemError::starting(NAME, problem);
        let mut random = [0; 16];
        File::open("/dev/urandom")
            .and_then(|mut source| source.read_exact(&mut random))
            .map_err(|error| failed(format!("the kernel gives no random numbers: {error}")))?;
        let password: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
        std::fs::create_dir_all(&scratch).and_then(|()| plan.write(&password)).map_err(|error| {
            failed(format!("can't prepare the directories of node {}: {error}", plan.number + 1))
        })?;
        let mut command = Command::new(&java.program);
        command.arg(format!("@{}", scratch.join("java.arguments").display())).current_dir(&scratch);
        // Each of its hundred threads would keep a heap of its own in the C library.
        command.env("MALLOC_ARENA_MAX", "2").env_remove("JAVA_TOOL_OPTIONS").env_remove("_JAVA_OPTIONS");
        plan.network.enter(&mut command);
        let child = Child::spawn(NAME, command, &scratch.join("cassandra.log"), memory)?;
        let mut tool: Vec<String> =
            ["-Xmx64m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData"]
                .map(str::to_owned)
                .into();
        tool.extend(module_arguments());
        tool.push(names_argument(&scratch));
        tool.extend([
            // It writes a history of its commands to the user's home.
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
                .map_err(|error| failed(format!("{} is no address: {error}", plan.ip)))?,
            plan.native_port,
        );
        let data = plan.directories.data.clone();
        let network = plan.network.clone();
        Ok(Node { child, native, network, data, tool, java: java.clone(), scratch })
    }

    pub fn state(&self) -> &Arc<ChildState> {
        self.child.state()
    }

    /// Ends its process at once.
    pub fn kill(&self) {
        self.child.kill();
    }

    /// Waits until it takes clients.
    pub fn wait_until_ready(&self, limit: Duration) -> Result<(), SystemError> {
        let started = Instant::now();
        let state = self.state();
        while self.network.connect(self.native, CONNECT_LIMIT).is_err() {
            if state.wait(POLL) {
                return Err(state.failed("starting", state.describe()));
            }
            if started.elapsed() > limit {
                let problem = format!("{} is not ready after {:.0} s", state.describe(), limit.as_secs_f64());
                return Err(state.failed("starting", problem));
            }
        }
        Ok(())
    }

    /// `Err` when its process has ended or takes no clients.
    pub fn health(&self) -> Result<(), SystemError> {
        let state = self.state();
        if !state.is_running() {
            return Err(state.failed("running", state.describe()));
        }
        match self.network.connect(self.native, CONNECT_LIMIT) {
            Ok(_) => Ok(()),
            Err(error) => {
                let problem =
                    format!("{}, but takes no clients at {}: {error}", state.describe(), self.native);
                Err(state.failed("running", problem))
            }
        }
    }

    /// Runs `nodetool` with these words, outside of the memory budget, and gives what it printed.
    pub fn tool(&self, words: &[&str], during: &'static str, limit: Duration) -> Result<String, SystemError> {
        let state = self.state();
        let what = words.first().copied().unwrap_or_default();
        if !state.is_running() {
            return Err(state.failed(during, state.describe()));
        }
        let mut command = Command::new(&self.java.program);
        command.args(&self.tool).args(words).current_dir(&self.scratch);
        command.env_remove("JAVA_TOOL_OPTIONS").env_remove("_JAVA_OPTIONS");
        self.network.enter(&mut command);
        // One name for each command at a time: two of a kind never run at once on a node.
        let log = self.scratch.join(format!("nodetool-{what}.log"));
        let tool = Child::spawn(NAME, command, &log, &Memory::unlimited())?;
        let ended = tool.state().wait(limit);
        let output = std::fs::read(&log).unwrap_or_default();
        let output = String::from_utf8_lossy(&output).into_owned();
        if !ended {
            let problem = format!("nodetool {what} is not done after {:.0} s", limit.as_secs_f64());
            return Err(state.failed(during, problem));
        }
        // What is not there needs no removal.
        let _ = std::fs::remove_file(&log);
        if !tool.state().ended_well() {
            return Err(SystemError::Failed {
                system: NAME,
                during,
                problem: format!("nodetool {what} failed; {}", state.describe()),
                log_tail: tool_words(&output).or_else(|| state.log_tail()),
            });
        }
        Ok(output)
    }

    /// What can be seen from outside: its memory, and the files of a table.
    pub fn outside_figures(&self, table: &str) -> Figures {
        let mut figures = Figures::new();
        let files = self.data.iter().map(|data| sstables(&data.join(KEYSPACE), table)).sum::<usize>();
        figures.insert("current_sstables".to_owned(), files as f64);
        if let Some(bytes) = self.resident_bytes() {
            figures.insert("current_resident_bytes".to_owned(), bytes);
        }
        figures
    }

    fn resident_bytes(&self) -> Option<f64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.state().pid())).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
        let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
        Some((kib << 10) as f64)
    }

    /// After a `drain`: ends the process, by force if it takes longer than `limit`.
    pub fn end(&self, limit: Duration) -> Result<(), SystemError> {
        self.child.wait_for_end(limit)
    }
}

/// How many sorted files the table has: in its directory, which is called by its name and an identity, each has one
/// file of data.
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

/// The beginning of what `nodetool` printed, without its trace of Java calls.
fn tool_words(output: &str) -> Option<String> {
    let lines: Vec<&str> = output
        .lines()
        .filter(|line| !line.starts_with("\tat ") && !line.starts_with("--") && !line.trim().is_empty())
        .collect();
    let words = lines[..lines.len().min(5)].join("\n");
    (!words.is_empty()).then_some(words)
}
