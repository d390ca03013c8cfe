//! The environment of commands: a user, a network, directories, groups. Every command of a program is started here.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::fs::{Gid, Uid};

use super::NAME;
use super::foreign_files::{LOGS, MAX_FILE_BYTES, tail, texts_in};
use super::host_space::HostSpace;
use super::identity::{UnixUser, set_apart};
use super::leftovers::{MARK, ProgramProcesses};
use super::placeholders::{PlaceholderValues, fill};
use crate::child::ChildProcess;
use crate::network_namespace::NetworkNamespace;
use crate::system::{CommandWatch, SystemError, SystemResources};

const SHELL: &str = "/bin/sh";
/// The part of our environment that commands get; the rest may hold secrets.
const VARIABLES: [&str; 5] = ["PATH", "LANG", "LC_ALL", "TZ", "TERM"];
const WATCH_INTERVAL: Duration = Duration::from_millis(100);
/// Of a log that goes into an error.
const LAST_WORDS_BYTES: u64 = 4 << 10;
const LAST_WORDS_FILES: usize = 50;
/// So much may the commands of a program print; of each, no more than this is kept. Files of theirs elsewhere are their
/// own affair, as long as the host's disk has room.
const MAX_PRINTED_BYTES: u64 = 256 << 20;

/// Which budget a command belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BudgetOwner {
    /// The system's.
    System,
    /// None: it is a client.
    Client,
}

/// Everything that commands of one started program have in common.
pub(super) struct CommandEnvironment {
    pub user: Option<UnixUser>,
    /// That of the host where this process may not make one.
    pub network: Option<Arc<NetworkNamespace>>,
    pub resources: SystemResources,
    pub values: PlaceholderValues,
    /// Directories that the user must reach.
    pub places: Vec<PathBuf>,
    pub scratch: PathBuf,
    /// The commands' output goes here, where the program's user has no access.
    pub outputs: PathBuf,
    pub mark: String,
    pub host_space: HostSpace,
    /// Numbers the logs.
    pub runs: AtomicU64,
    /// Numbers the commands.
    pub commands: AtomicU64,
}

/// A command that runs.
pub(super) struct SpawnedCommand {
    pub child: ChildProcess,
    log: PathBuf,
    number: u64,
}

/// A command that ended well.
#[derive(Debug)]
pub(super) struct EndedCommand {
    pub log: PathBuf,
    pub took: Duration,
}

impl EndedCommand {
    /// Its output.
    pub(super) fn text(&self) -> std::io::Result<String> {
        let bytes = underlay_files::read(&self.log, MAX_FILE_BYTES)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }
}

impl CommandEnvironment {
    /// All processes that commands started.
    pub(super) fn crew(&self, belongs: BudgetOwner) -> ProgramProcesses {
        let lists = match belongs {
            BudgetOwner::System => &self.resources.join_files,
            BudgetOwner::Client => &self.resources.client_join_files,
        };
        let network = self.network.as_ref().and_then(|network| network.number());
        ProgramProcesses { lists: lists.clone(), mark: self.mark.clone(), network }
    }

    /// The processes of the command with this number; other processes of the program may begin in its group meanwhile.
    fn crew_of(&self, run: u64) -> ProgramProcesses {
        ProgramProcesses { lists: Vec::new(), mark: mark_of(&self.mark, run), network: None }
    }

    /// Starts a command. `further` are values that it alone has. Its log is named by its `verb`.
    pub(super) fn spawn(
        &self,
        verb: &str,
        command: &str,
        further: &PlaceholderValues,
        belongs: BudgetOwner,
    ) -> Result<SpawnedCommand, SystemError> {
        let (run, number) =
            (self.runs.fetch_add(1, Ordering::Relaxed), self.commands.fetch_add(1, Ordering::Relaxed));
        let log = self.outputs.join(format!("{run:04}-{verb}.log"));
        let values: PlaceholderValues = further.iter().chain(&self.values).cloned().collect();
        let mut process = Command::new(SHELL);
        process.arg("-c").arg(fill(command, &values)).current_dir(&self.scratch).env_clear();
        for name in VARIABLES {
            if let Some(value) = std::env::var_os(name) {
                process.env(name, value);
            }
        }
        process
            .env("HOME", &self.scratch)
            .env("TMPDIR", &self.scratch)
            .env(MARK, mark_of(&self.mark, number));
        for (name, value) in values.iter().rev() {
            process.env(format!("UNDERLAY_{}", name.to_ascii_uppercase()), value);
        }
        if let Some(network) = &self.network {
            network.enter(&mut process);
        }
        let resources = match belongs {
            BudgetOwner::System => self.resources.clone(),
            // Clients run where we do.
            BudgetOwner::Client => self.resources.for_tools(),
        };
        let ids: Option<(Uid, Gid)> = self.user.as_ref().map(|user| (user.uid, user.gid));
        let (user, places) = (self.user.clone(), self.places.clone());
        // Some containers give root no namespaces.
        let is_apart = rustix::process::geteuid().is_root() && (self.network.is_some() || user.is_some());
        let child = ChildProcess::spawn_session(
            NAME,
            verb,
            process,
            (&log, MAX_PRINTED_BYTES + 1),
            &resources,
            ids,
            move || match is_apart {
                true => set_apart(user.as_ref(), &places),
                false => Ok(()),
            },
        )?;
        Ok(SpawnedCommand { child, log, number })
    }

    /// Runs a command to its end. Processes that it leaves behind are killed, and make an error.
    pub(super) fn run(
        &self,
        verb: &'static str,
        command: &str,
        further: &PlaceholderValues,
        belongs: BudgetOwner,
        limit: Duration,
        watch: CommandWatch<'_>,
    ) -> Result<EndedCommand, SystemError> {
        let group = self.crew(belongs);
        let before = group.members();
        let began = Instant::now();
        let SpawnedCommand { child, log, number } = self.spawn(verb, command, further, belongs)?;
        // In a group of its own everything new is the command's.
        let crew = if group.lists.is_empty() || !before.is_empty() { self.crew_of(number) } else { group };
        let outcome = self.wait(&child, verb, limit, watch);
        let elapsed = began.elapsed();
        let left = crew.names(&before);
        child.kill();
        crew.kill(&before);
        outcome?;
        if !left.is_empty() {
            let problem = format!(
                "its command `{verb}` ended and left processes behind, which were killed: {}; let it wait for them",
                left.join(", ")
            );
            return Err(child.state().failed("running", problem));
        }
        Ok(EndedCommand { log, took: elapsed })
    }

    /// Waits for a command that has to succeed.
    fn wait(
        &self,
        child: &ChildProcess,
        verb: &str,
        limit: Duration,
        watch: CommandWatch<'_>,
    ) -> Result<(), SystemError> {
        let began = Instant::now();
        let state = child.state();
        while !state.wait(WATCH_INTERVAL) {
            if !watch() {
                return Err(SystemError::failed(
                    NAME,
                    "running",
                    format!("its command `{verb}` was stopped"),
                ));
            }
            if let Some(problem) = self.too_much() {
                return Err(state.failed("running", format!("its command `{verb}` was killed: {problem}")));
            }
            if began.elapsed() > limit {
                let problem = format!(
                    "its command `{verb}` was not done after {:.0} s and was killed; `limit` gives it longer",
                    limit.as_secs_f64()
                );
                return Err(state.failed("running", problem));
            }
        }
        match state.ended_well() {
            true => Ok(()),
            false => {
                let problem = format!("its command `{verb}` failed: {}{}", state.describe(), self.full());
                Err(state.failed("running", problem))
            }
        }
    }

    /// The limit that no command may exceed: it must not fill the host's disk with output or files.
    pub(super) fn too_much(&self) -> Option<String> {
        let entries = std::fs::read_dir(&self.outputs).into_iter().flatten().flatten();
        let logs = entries.filter_map(|entry| {
            Some((entry.metadata().ok()?.len(), entry.file_name().to_string_lossy().into_owned()))
        });
        let logs: Vec<(u64, String)> = logs.collect();
        let printed_bytes: u64 = logs.iter().map(|(bytes, _)| bytes).sum();
        if printed_bytes > MAX_PRINTED_BYTES {
            let (_, log) = logs.into_iter().max()?;
            return Some(format!(
                "the program's commands have printed more than {} MiB, most of it into {log}; have it print less, or write to a file on \
                 the storage",
                MAX_PRINTED_BYTES >> 20
            ));
        }
        self.host_space.shortage()
    }

    /// The end of the newest log of the program's own, for the error of a program that prints nothing.
    pub(super) fn last_words(&self) -> String {
        let logs = texts_in(&self.scratch, LOGS, LAST_WORDS_FILES, LAST_WORDS_BYTES).unwrap_or_default();
        let newest = logs.into_iter().max_by_key(|log| log.modified);
        match newest.filter(|log| !log.text.trim().is_empty()) {
            Some(log) => format!("; its log {} ends:\n{}", log.name, tail(&log.text)),
            None => String::new(),
        }
    }

    /// Says which of the storages have no room left: a likely cause.
    pub(super) fn full(&self) -> String {
        const LITTLE_BYTES: u64 = 1 << 20;
        let is_full = |place: &&PathBuf| {
            rustix::fs::statvfs(place.as_path())
                .is_ok_and(|found| found.f_bavail * found.f_frsize < LITTLE_BYTES)
        };
        let full: BTreeSet<String> =
            self.places.iter().filter(is_full).map(|place| place.display().to_string()).collect();
        match full.is_empty() {
            true => String::new(),
            false => {
                format!("; there is no room left in {}", full.into_iter().collect::<Vec<_>>().join(", "))
            }
        }
    }

    /// The same as [`run`](Self::run), for a command that is asked often and leaves one log: that of the last failure.
    pub(super) fn ask(
        &self,
        verb: &'static str,
        command: &str,
        limit: Duration,
    ) -> Result<String, SystemError> {
        let before = self.runs.load(Ordering::Relaxed);
        let ended = self.run(verb, command, &PlaceholderValues::new(), BudgetOwner::Client, limit, &|| true);
        let text = ended.and_then(|ended| {
            let text = ended.text();
            // Only that of a failure is worth keeping.
            let _ = std::fs::remove_file(&ended.log);
            text.map_err(|error| {
                SystemError::failed(NAME, "running", format!("can't read the output of `{verb}`: {error}"))
            })
        });
        // The next one has its number.
        if self.runs.compare_exchange(before + 1, before, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
            let log = self.outputs.join(format!("{before:04}-{verb}.log"));
            let _ = std::fs::rename(log, self.outputs.join(format!("{verb}.log")));
        }
        text
    }
}

fn mark_of(mark: &str, number: u64) -> String {
    format!("{mark}.{number}.")
}

/// A word that no other program's environment has.
pub(super) fn new_mark() -> std::io::Result<String> {
    let mut random = [0; 12];
    getrandom::fill(&mut random)?;
    Ok(base16ct::lower::encode_string(&random))
}
