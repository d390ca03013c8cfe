//! A data system: how it starts on given storage and memory, and how a client reaches it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use underlay_record::JobRecord;
use underlay_workload::client::Client;

pub use crate::error::SystemError;
use crate::may_connect::MayConnect;

/// Where a system may keep its data: one directory for each volume of the cell's storage.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoragePaths {
    pub data: Vec<PathBuf>,
    /// A directory of its own for a part of what it stores, by the role's name in [`Capabilities::roles`]. A role that is
    /// not here lies on the first data directory.
    pub roles: BTreeMap<String, PathBuf>,
    /// The storage of the second and each later node, for a system of several nodes. Empty: the nodes share `data` and
    /// `roles`, with a directory each.
    pub further_nodes: Vec<NodePaths>,
    /// For what is not data: logs, sockets, configuration. Not on the storage under test.
    pub scratch: PathBuf,
}

/// The storage of one node among several: see [`StoragePaths`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodePaths {
    pub data: Vec<PathBuf>,
    pub roles: BTreeMap<String, PathBuf>,
}

/// The first of `system`'s data directories, of which there must be one.
pub fn first_data_directory<'a, T>(system: &'static str, data: &'a [T]) -> Result<&'a T, SystemError> {
    data.first().ok_or_else(|| SystemError::starting(system, "there is no data directory"))
}

/// `directory` must be there: made by a system, one that is missing would lie on whatever is under the missing mount.
pub fn check_attached(system: &'static str, directory: &Path) -> Result<(), SystemError> {
    if directory.is_dir() {
        return Ok(());
    }
    let problem = format!("the data directory {} is missing: is the storage attached?", directory.display());
    Err(SystemError::starting(system, problem))
}

/// Makes the directory `folder` of `system` on a storage: its file system's root may hold other things (`lost+found`).
pub fn make_on(system: &'static str, storage: &Path, folder: &Path) -> Result<PathBuf, SystemError> {
    check_attached(system, storage)?;
    let folder = storage.join(folder);
    std::fs::create_dir_all(&folder).map_err(|error| {
        let problem = format!("can't write to the data directory {}: {error}", storage.display());
        SystemError::starting(system, problem)
    })?;
    Ok(folder)
}

/// Every role that was `given` a storage must be one of those that the system `knows`.
pub fn check_roles<'a>(
    system: &'static str,
    knows: &[(&str, &str)],
    given: impl IntoIterator<Item = &'a String>,
) -> Result<(), SystemError> {
    match given.into_iter().find(|role| knows.iter().all(|(name, _)| name != role)) {
        Some(unknown) => {
            Err(SystemError::starting(system, format!("it keeps nothing that is called '{unknown}'")))
        }
        None => Ok(()),
    }
}

/// The memory that a system and its page cache share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Memory {
    pub budget_bytes: u64,
    /// The `cgroup.procs` files that every process of the system must be written into before it allocates.
    pub cgroup_procs: Vec<PathBuf>,
}

impl Memory {
    /// For what is no part of the system under test: a tool, a client's process.
    pub fn unlimited() -> Memory {
        Memory { budget_bytes: u64::MAX, cgroup_procs: Vec::new() }
    }
}

/// What a system can do, so that a study that asks for more is refused before it runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Capabilities {
    /// It forgets what is written, so there is nothing to check.
    pub keeps_nothing: bool,
    pub scan: bool,
    /// Scans in an order of its own, a hash of the key, and not in key order.
    pub scans_by_hash: bool,
    pub delete: bool,
    /// Uses several data directories by itself.
    pub many_directories: bool,
    /// May be started as several nodes, by its setting `nodes`.
    pub many_nodes: bool,
    /// What it can keep on a storage of its own, each role with what it holds.
    pub roles: &'static [(&'static str, &'static str)],
    /// The setting names that a study may give it, each with what it means.
    pub settings: &'static [(&'static str, &'static str)],
    /// The setting that makes it a cluster that runs already, by saying where: nothing is started, then.
    pub elsewhere: Option<&'static str>,
    /// The batch jobs that it runs, each with what it does, in an order in which each finds what earlier ones made. A
    /// system with jobs has no [`Client`]s.
    pub jobs: &'static [(&'static str, &'static str)],
    /// It spreads one data set over all of its directories and roles, so data are loaded by a system that stands on the
    /// very storage that shall hold them.
    pub spreads_data: bool,
    /// Marks each field with a visibility and lets readers see what their authorisations allow: [`Settings::visibility`].
    pub cell_visibility: bool,
    /// Leaves out of scans, on its servers, what a pattern does not match: [`Settings::scan_filter`].
    pub scan_filter: bool,
}

impl Capabilities {
    /// Whether these settings make it a cluster that runs already.
    pub fn runs_elsewhere(&self, settings: &BTreeMap<String, String>) -> bool {
        let place = self.elsewhere.and_then(|key| settings.get(key));
        place.is_some_and(|place| !place.trim().is_empty())
    }
}

/// How a system shall be set up: the study's `[system.NAME]` after scaling.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// The system's own settings, by the names in its [`Capabilities`].
    pub values: BTreeMap<String, String>,
    /// Fields in a record and bytes in a field.
    pub fields: u32,
    pub field_bytes: u32,
    /// How long a client waits for an answer, stretched under slow motion already.
    pub timeout: Duration,
    /// How many times slower than its model the storage is here; 1 undilated. A system's own timeouts follow it.
    pub slow_motion: f64,
    pub visibility: Option<Visibility>,
    /// A regular expression: scans give those records alone of which a field's value matches.
    pub scan_filter: Option<String>,
    /// Of a system that runs already.
    pub may_connect: MayConnect,
}

/// Who may read the fields of a workload.
#[derive(Clone, Debug, PartialEq)]
pub struct Visibility {
    /// What every field is written with: `secret&(a|b)`.
    pub expression: String,
    /// What readers are authorised for.
    pub authorizations: Vec<String>,
    /// The share of clients, 0 to 1, that read without any authorisation.
    pub unauthorized_share: f64,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            values: BTreeMap::new(),
            fields: 0,
            field_bytes: 0,
            timeout: Duration::ZERO,
            slow_motion: 1.0,
            visibility: None,
            scan_filter: None,
            may_connect: MayConnect::Anywhere,
        }
    }
}

/// How far a preparation has come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Progress {
    /// In words: `fetching cassandra, 100 files`.
    pub what: String,
    pub done_bytes: u64,
    pub total_bytes: u64,
}

/// A system that a study can name.
pub trait System: Send + Sync {
    /// As a study names it: `rocksdb`.
    fn name(&self) -> &'static str;
    fn capabilities(&self) -> Capabilities;
    /// Versions for the record, by program.
    fn versions(&self) -> BTreeMap<String, String>;
    /// Finds every mistake in the settings without starting anything: (setting, what was expected).
    fn check_settings(&self, settings: &BTreeMap<String, String>) -> Vec<(String, String)>;
    /// Gets what it needs from outside this host, such as its programs: nothing for most. [`System::start`] does so too,
    /// without a word meanwhile.
    fn prepare(&self, _progress: &dyn Fn(&Progress)) -> Result<(), SystemError> {
        Ok(())
    }
    /// About how long it takes to start, settle and stop on a small machine: a cell is so much longer than it measures. For
    /// estimates alone.
    fn start_and_stop(&self) -> Duration {
        Duration::from_secs(2)
    }
    /// Settings that data are loaded with where a study does not write them: after them the files are to depend on the data
    /// alone, and not on when background work ran. None for most.
    fn settings_for_loading(&self) -> &'static [(&'static str, &'static str)] {
        &[]
    }
    /// Starts it on storage that is empty or that it used before.
    fn start(
        &self,
        paths: &StoragePaths,
        memory: &Memory,
        settings: &Settings,
    ) -> Result<Box<dyn Running>, SystemError>;
}

/// A batch job as a study asks for it, after scaling.
#[derive(Clone, Debug, PartialEq)]
pub struct JobRequest {
    /// One of [`Capabilities::jobs`].
    pub name: String,
    /// How much data it makes, moves or reads on this machine.
    pub data_bytes: u64,
    /// Map tasks and reduce tasks; the system's own choice when absent.
    pub maps: Option<u32>,
    pub reduces: Option<u32>,
    /// The share of generated values that repeats, 0 to 1.
    pub compressibility: f64,
    pub seed: u64,
    /// A job that takes longer has failed.
    pub limit: Duration,
}

/// A look at a job that runs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct JobProgress {
    /// `map`, `reduce`.
    pub phase: String,
    /// 0 to 1, of the whole job.
    pub done: f64,
}

/// What watches a job: it is told how far it is, and says whether to go on. `false` ends the job.
pub type JobWatch<'a> = &'a (dyn Fn(&JobProgress) -> bool + Sync);

/// A started system. Dropping it ends its processes at once; `stop` ends them in order.
pub trait Running: Send + Sync {
    /// A new connection, for one thread.
    fn connect(&self) -> Result<Box<dyn Client>, SystemError>;
    /// Makes what a batch job reads and no earlier job has made, so that it counts as no part of the job. Nothing for most.
    fn prepare_job(&self, _job: &JobRequest, _watch: JobWatch<'_>) -> Result<(), SystemError> {
        Ok(())
    }
    /// Runs a batch job from its submission to its end. All times of the record are of this machine's clock: who divides
    /// by slow motion is the study. `None` for a system that has no jobs.
    fn run_job(&self, _job: &JobRequest, _watch: JobWatch<'_>) -> Option<Result<JobRecord, SystemError>> {
        None
    }
    /// Process ids, for accounting.
    fn processes(&self) -> Vec<u32>;
    /// The settings in force, for the record.
    fn applied_settings(&self) -> BTreeMap<String, String>;
    /// `Err` when it has failed, with its last words.
    fn health(&self) -> Result<(), SystemError>;
    /// The system's own running totals, by name.
    fn figures(&self) -> Result<BTreeMap<String, f64>, SystemError>;
    /// Those of the figures that are shown over time: how much runs in the background (`current_compactions_running`). They are
    /// asked for again and again while the system is measured, so telling them must cost it next to nothing. None for many.
    fn gauges(&self) -> Result<BTreeMap<String, f64>, SystemError> {
        Ok(BTreeMap::new())
    }
    /// Brings the data to the state that measurements start from: written out, background work at rest.
    fn settle(&self, limit: Duration) -> Result<(), SystemError>;
    /// Has everything compacted while clients go on, as an operator would. It may be over when this returns, or just have begun.
    fn compact(&self, limit: Duration) -> Result<(), SystemError> {
        self.settle(limit)
    }
    /// Ends at once the processes that answers come from, so that whoever waits for one gets an error. Others of its processes
    /// may live until it is dropped; a cluster that ran before goes on.
    fn abort(&self);
    /// Shuts down in order; everything acknowledged is on the storage when it returns.
    fn stop(self: Box<Self>) -> Result<(), SystemError>;
}
