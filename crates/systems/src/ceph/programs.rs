//! Ceph's programs: servers that stay, and tools that end.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::child::{ChildProcess, ChildState};
use crate::network_namespace::NetworkNamespace;
use crate::nodes::NodeProcess;
use crate::private_file::write_private;
use crate::program::on_path;
use crate::system::{SystemError, SystemResources};

/// Between two runs of a tool that could not ask.
const POLL: Duration = Duration::from_millis(200);
const REMEDY: &str = "install Ceph (Debian: apt install --no-install-recommends ceph-mon ceph-mgr ceph-osd radosgw ceph-common)";
/// Variables that a user of Ceph may have set for other clusters.
const VARIABLES: [&str; 3] = ["CEPH_ARGS", "CEPH_CONF", "CEPH_KEYRING"];
const PROGRAMS: [&str; 7] =
    ["ceph-mon", "ceph-mgr", "ceph-osd", "radosgw", "radosgw-admin", "ceph", "monmaptool"];

/// A server of the cluster. Dropping it kills it.
#[derive(Debug)]
pub(super) struct CephDaemon(ChildProcess);

impl NodeProcess for CephDaemon {
    fn state(&self) -> &Arc<ChildState> {
        self.0.state()
    }

    fn kill(&self) {
        self.0.kill();
    }
}

impl CephDaemon {
    pub(super) fn check(&self, during: &'static str) -> Result<(), SystemError> {
        let state = self.state();
        if state.is_running() { Ok(()) } else { Err(state.failed(during, state.describe())) }
    }

    /// Asks it to end and waits. After `limit` it is killed, which is an error.
    pub(super) fn end(&self, limit: Duration) -> Result<(), SystemError> {
        self.state().terminate();
        self.0.wait_for_end(limit)
    }
}

/// A file that goes with this value.
struct RemovedFile<'a>(&'a Path);

impl Drop for RemovedFile<'_> {
    fn drop(&mut self) {
        // It is in the run's scratch, which goes at the latest.
        let _ = std::fs::remove_file(self.0);
    }
}

/// How the programs of one cluster are started.
#[derive(Debug)]
pub(super) struct CephPrograms {
    pub system: &'static str,
    pub configuration: PathBuf,
    pub scratch: PathBuf,
    pub namespace: Arc<NetworkNamespace>,
    /// Those of its tools.
    of_tools: SystemResources,
    tools: AtomicU64,
}

/// Checks that Ceph is installed.
///
/// # Errors
/// Which of its programs is missing.
pub(super) fn check_installed(system: &'static str) -> Result<(), SystemError> {
    match PROGRAMS.iter().find(|program| on_path(program).is_none()) {
        None => Ok(()),
        Some(missing) => Err(SystemError::Missing {
            system,
            missing: format!("the program '{missing}' of Ceph"),
            remedy: REMEDY.to_owned(),
        }),
    }
}

impl CephPrograms {
    /// `resources` are those of the cluster.
    pub(super) fn new(
        system: &'static str,
        scratch: &Path,
        namespace: &Arc<NetworkNamespace>,
        resources: &SystemResources,
    ) -> CephPrograms {
        CephPrograms {
            system,
            configuration: scratch.join("ceph.conf"),
            scratch: scratch.to_owned(),
            namespace: Arc::clone(namespace),
            of_tools: resources.for_tools(),
            tools: AtomicU64::new(0),
        }
    }

    fn command(&self, program: &str, words: &[&str]) -> Command {
        let mut command = Command::new(program);
        command.arg("--conf").arg(&self.configuration).args(words).current_dir(&self.scratch);
        for name in VARIABLES {
            command.env_remove(name);
        }
        self.namespace.enter(&mut command);
        command
    }

    /// Starts a server, which stays in the foreground. It need not be ready when this returns.
    pub(super) fn start(
        &self,
        name: &str,
        program: &str,
        words: &[&str],
        resources: &SystemResources,
    ) -> Result<CephDaemon, SystemError> {
        let words: Vec<&str> = ["--foreground"].into_iter().chain(words.iter().copied()).collect();
        let log = self.scratch.join(format!("{}.out", name.to_lowercase().replace(' ', "-")));
        ChildProcess::spawn_as(self.system, name, self.command(program, &words), &log, resources)
            .map(CephDaemon)
    }

    /// Runs a tool outside of the budget and returns what it printed. Before its own command `ceph` asks the monitor
    /// which there are, and one that has just started may refuse that (`EPERM`): then nothing has been done, and the
    /// tool is run again.
    pub(super) fn run(
        &self,
        during: &'static str,
        limit: Duration,
        program: &str,
        words: &[&str],
    ) -> Result<String, SystemError> {
        self.run_unless(during, limit, program, words, &|| Ok(()))
    }

    /// As [`run`](Self::run), as long as `check` finds nothing that makes it useless: then the tool is killed.
    pub(super) fn run_unless(
        &self,
        during: &'static str,
        limit: Duration,
        program: &str,
        words: &[&str],
        check: &dyn Fn() -> Result<(), SystemError>,
    ) -> Result<String, SystemError> {
        let began = Instant::now();
        loop {
            match self.run_once(during, limit, program, words, check) {
                Err(error) if was_not_asked(&error.to_string()) && began.elapsed() < limit => {
                    check()?;
                    std::thread::sleep(POLL);
                }
                outcome => return outcome,
            }
        }
    }

    fn run_once(
        &self,
        during: &'static str,
        limit: Duration,
        program: &str,
        words: &[&str],
        check: &dyn Fn() -> Result<(), SystemError>,
    ) -> Result<String, SystemError> {
        // Several may run at once.
        let number = self.tools.fetch_add(1, Ordering::Relaxed);
        let log = self.scratch.join(format!("tool-{number}.out"));
        // It may hold a key, so it is nobody else's from its first byte on, and does not stay.
        write_private(&log, "").map_err(|error| {
            let problem = format!("can't write {}: {error}", log.display());
            SystemError::failed(self.system, during, problem)
        })?;
        let _removed = RemovedFile(&log);
        let command = self.command(program, words);
        let tool = ChildProcess::spawn_as(self.system, program, command, &log, &self.of_tools)?;
        let (state, began) = (tool.state(), Instant::now());
        while !state.wait(POLL.min(limit)) {
            check()?;
            if began.elapsed() > limit {
                let problem = format!("{program} did not finish within {:.0} s", limit.as_secs_f64());
                return Err(state.failed(during, problem));
            }
        }
        if !state.ended_well() {
            return Err(state.failed(during, state.describe()));
        }
        let output = std::fs::read(&log).map_err(|error| {
            SystemError::failed(self.system, during, format!("the output of {program} is lost: {error}"))
        })?;
        Ok(String::from_utf8_lossy(&output).into_owned())
    }
}

/// Whether `ceph` failed before it sent its command.
fn was_not_asked(output: &str) -> bool {
    output.contains("problem getting command descriptions from mon")
}
