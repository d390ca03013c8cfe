//! A data system: how it starts on given storage and memory, and how a client reaches it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use underlay_record::{BenchmarkRecord, CacheUse, JobRecord, MetricDilation, TopologyRecord};
use underlay_workload::client::Client;

use crate::benchmark::BenchmarkPlan;
use crate::connect_allowlist::MayConnect;
pub use crate::error::SystemError;
use crate::left_elsewhere::RemoteLedger;
use crate::memory_plan::{ClientLoad, MemoryPlan};
use crate::nodes::{PlannedNode, SystemNodes};
use crate::parts::SystemPart;
use crate::profile::SystemProfile;
pub use crate::storage_paths::{NodePaths, StoragePaths};

/// The first of `system`'s data directories.
///
/// # Errors
/// When there is none.
pub(crate) fn first_data_directory<'a, T>(system: &'static str, data: &'a [T]) -> Result<&'a T, SystemError> {
    data.first().ok_or_else(|| SystemError::starting(system, "there is no data directory"))
}

/// Checks that `directory` exists. Systems must not create a missing one: it would end up on the file system below the
/// missing mount.
pub(crate) fn check_attached(system: &'static str, directory: &Path) -> Result<(), SystemError> {
    if directory.is_dir() {
        return Ok(());
    }
    let problem = format!("the data directory {} is missing: is the storage attached?", directory.display());
    Err(SystemError::starting(system, problem))
}

/// Creates the directory `folder` of `system` on a storage. The root of a file system is not used, since it may hold
/// other things (`lost+found`).
pub(crate) fn make_on(system: &'static str, storage: &Path, folder: &Path) -> Result<PathBuf, SystemError> {
    check_attached(system, storage)?;
    let folder = storage.join(folder);
    std::fs::create_dir_all(&folder).map_err(|error| {
        let problem = format!("can't write to the data directory {}: {error}", storage.display());
        SystemError::starting(system, problem)
    })?;
    Ok(folder)
}

/// Checks that every role in `given_roles`, which have a storage, is one of `known_roles`.
///
/// # Errors
/// The first role that it does not know.
pub fn check_roles<'a>(
    system: &'static str,
    known_roles: &[(&str, &str)],
    given_roles: impl IntoIterator<Item = &'a String>,
) -> Result<(), SystemError> {
    match given_roles.into_iter().find(|role| known_roles.iter().all(|(name, _)| name != role)) {
        Some(unknown) => Err(SystemError::starting(system, format!("it has no role called '{unknown}'"))),
        None => Ok(()),
    }
}

/// A system's resources on this host, and its view of the modelled machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SystemResources {
    /// For the system's own memory and its page cache together.
    pub budget_bytes: u64,
    /// The files of control groups that every process of the system must be written into before it allocates.
    pub join_files: Vec<PathBuf>,
    /// The CPUs of this host that its processes may run on. By default they may run where this process may.
    pub processors: Option<Vec<u32>>,
    /// The cores of the modelled machine, by which a Java program sizes its pools of threads. By default it counts this
    /// host's.
    pub modelled_cores: Option<u32>,
    /// Like `join_files`, of groups without limits for its tools and for client programs: all their processes are found
    /// there.
    pub client_join_files: Vec<PathBuf>,
    /// Where it writes down what it makes in places that are not this host's.
    pub ledger: RemoteLedger,
}

impl SystemResources {
    /// A memory budget that nobody enforces, on the CPUs of this process.
    pub fn with_budget(budget_bytes: u64) -> SystemResources {
        SystemResources {
            budget_bytes,
            join_files: Vec::new(),
            processors: None,
            modelled_cores: None,
            client_join_files: Vec::new(),
            ledger: RemoteLedger::default(),
        }
    }

    /// For processes that aren't part of the system under test, and that nobody has to end with it.
    pub fn unlimited() -> SystemResources {
        SystemResources::with_budget(u64::MAX)
    }

    /// For the system's tools and clients: they are not held to anything, and end with the servers when nobody wants
    /// these any more.
    pub(crate) fn for_tools(&self) -> SystemResources {
        SystemResources { join_files: self.client_join_files.clone(), ..SystemResources::unlimited() }
    }

    /// The same, with a machine of so many cores at most: the modelled one, or this host where none is.
    pub(crate) fn with_cores_up_to(&self, most: u32) -> SystemResources {
        let here = || std::thread::available_parallelism().map_or(1, |cores| cores.get() as u32);
        let modelled_cores = match self.modelled_cores {
            None if here() <= most => None,
            cores => Some(cores.unwrap_or(most).min(most)),
        };
        SystemResources { modelled_cores, ..self.clone() }
    }

    /// The option that tells a Java program of the system how many cores its machine has.
    pub(crate) fn java_option(&self) -> Option<String> {
        self.modelled_cores.map(|cores| format!("-XX:ActiveProcessorCount={}", cores.max(1)))
    }

    /// The same for the record, among the settings that were `applied`.
    pub(crate) fn record_java_option(&self, applied: &mut BTreeMap<String, String>) {
        if let Some(cores) = self.modelled_cores {
            applied.insert("active_processor_count".to_owned(), cores.max(1).to_string());
        }
    }
}

/// A system's capabilities. A study that asks for more is rejected before it runs. What it is to people and to the host
/// is in its [`SystemProfile`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SystemCapabilities {
    /// It doesn't store what is written, so there is nothing to verify.
    pub keeps_nothing: bool,
    pub scan: bool,
    /// Scans in the order of the keys' hashes, not in key order.
    pub scans_by_hash: bool,
    pub delete: bool,
    /// Can use several data directories.
    pub many_directories: bool,
    /// Can be started as several nodes by its setting `nodes`.
    pub many_nodes: bool,
    /// Roles with a separate storage, each with its contents.
    pub roles: &'static [(&'static str, &'static str)],
    /// The settings that a study may use, each with what it means.
    pub settings: &'static [(&'static str, &'static str)],
    /// The setting that says where an existing cluster is. With it, nothing is started.
    pub elsewhere: Option<ElsewhereSetting>,
    /// The batch jobs that it can run, each with what it does, ordered so that each finds the output of earlier ones. A
    /// system with jobs has no [`Client`]s.
    pub jobs: &'static [(&'static str, &'static str)],
    /// It spreads one data set over all of its directories and roles, so that data must be loaded by a system that runs
    /// on the storage under test.
    pub spreads_data: bool,
    /// Marks each field with a visibility, and readers see what their authorisations allow:
    /// [`SystemSettings::visibility`].
    pub cell_visibility: bool,
    /// Its servers can filter scans by a pattern: [`SystemSettings::scan_filter`].
    pub scan_filter: bool,
    /// It has no [`Client`]s: its data set is loaded and its workloads are run by commands.
    pub by_command: bool,
    /// Its own cache holds single records, so that only operations on each of them fill it; others hold pages, or leave
    /// that to the kernel.
    pub caches_records: bool,
}

/// The setting by which a system is a cluster that runs already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ElsewhereSetting {
    pub key: &'static str,
    /// A value as a study has it: `["10.0.0.1:9042"]`.
    pub example: &'static str,
}

impl SystemCapabilities {
    /// Whether these settings refer to an existing cluster.
    pub fn runs_elsewhere(&self, settings: &BTreeMap<String, String>) -> bool {
        let place = self.elsewhere.and_then(|setting| settings.get(setting.key));
        place.is_some_and(|place| !place.trim().is_empty())
    }
}

/// How to set a system up: the study's `[system.NAME]` after scaling.
#[derive(Clone, Debug, PartialEq)]
pub struct SystemSettings {
    /// The system's own settings, by the names in its [`SystemCapabilities`].
    pub values: BTreeMap<String, String>,
    /// Fields in a record and bytes in a field.
    pub fields: u32,
    pub field_bytes: u32,
    /// How long a client waits for an answer, already stretched by slow motion.
    pub timeout: Duration,
    /// How many times slower than its model the storage is here; 1 undilated. A system's own timeouts follow it.
    pub slow_motion: f64,
    pub visibility: Option<Visibility>,
    /// A regular expression: scans return only records with a field whose value matches.
    pub scan_filter: Option<String>,
    /// For an existing cluster: what may be connected to.
    pub may_connect: MayConnect,
}

/// Who may read the fields of a workload.
#[derive(Clone, Debug, PartialEq)]
pub struct Visibility {
    /// The expression that every field is written with: `secret&(a|b)`.
    pub expression: String,
    /// The authorisations of readers.
    pub authorizations: Vec<String>,
    /// The share of clients, from 0 to 1, that read without any authorisation.
    pub unauthorized_share: f64,
}

impl Default for SystemSettings {
    fn default() -> Self {
        SystemSettings {
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
pub struct LoadProgress {
    /// A phrase such as `fetching cassandra, 100 files`.
    pub what: String,
    pub done_bytes: u64,
    pub total_bytes: u64,
}

/// Roughly what a batch job takes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct JobTakes {
    /// On a modelled machine of a few cores, in modelled time.
    pub modelled: Duration,
    /// Making what it reads and checking what it left, which no slow motion stretches, on two CPUs.
    pub around: Duration,
    /// Until a cache has stored what was written into it, behind the job and what made its input, in modelled time.
    pub storing: Duration,
}

/// A system that a study can name.
pub trait System: Send + Sync {
    /// Its name in studies: `rocksdb`.
    fn name(&self) -> &'static str;
    /// What it is, with any settings.
    fn profile(&self) -> SystemProfile;
    fn capabilities(&self) -> SystemCapabilities;
    /// Versions for the record, by program.
    fn versions(&self) -> BTreeMap<String, String>;
    /// Of these, what it runs by with any of these settings.
    fn versions_with(&self, _settings: &[BTreeMap<String, String>]) -> BTreeMap<String, String> {
        self.versions()
    }
    /// Finds every mistake in the settings without starting anything: (setting, what was expected).
    fn check_settings(&self, settings: &BTreeMap<String, String>) -> Vec<(String, String)>;
    /// Fetches what it needs from outside this host, such as its programs. Most need nothing. [`System::start`] does
    /// this as well, but without reporting progress.
    fn prepare(&self, _progress: &dyn Fn(&LoadProgress)) -> Result<(), SystemError> {
        Ok(())
    }
    /// What only the user can supply, and where it was found. `None` for most, which need nothing that can't be
    /// fetched.
    ///
    /// # Errors
    /// The missing part, and how to supply it.
    fn supplied(&self) -> Option<Result<String, SystemError>> {
        None
    }
    /// The folder that it makes on its storage for all its data.
    fn folder_on(&self, storage: &Path) -> PathBuf {
        storage.join(self.name())
    }
    /// Roughly how long it takes to start, settle and stop on a small machine, which a cell takes in addition to its
    /// measured time. Only used for estimates.
    fn start_and_stop(&self, _settings: &BTreeMap<String, String>) -> Duration {
        Duration::from_secs(1)
    }
    /// Roughly how many records of 1 KB one server of it takes a second on two CPUs where devices take no time. Only
    /// used for estimates.
    fn loads_per_s(&self) -> f64 {
        50_000.0
    }
    /// Roughly how long a batch job over so many bytes takes. Only used for estimates; `None` where nothing is known.
    fn job_takes(
        &self,
        _job: &str,
        _data_bytes: u64,
        _settings: &BTreeMap<String, String>,
    ) -> Option<JobTakes> {
        None
    }
    /// How many operations it does until it has compiled what it runs most, where that happens while it runs. Before,
    /// an operation takes many times the CPU time that it takes afterwards.
    fn operations_to_compile(&self, _settings: &BTreeMap<String, String>) -> u64 {
        0
    }
    /// Settings for loading data, unless the study sets them itself. They should make the files depend only on the data
    /// and not on when background work ran. Most have none.
    fn settings_for_loading(&self) -> &'static [(&'static str, &'static str)] {
        &[]
    }
    /// Whether its timeouts are stored with its data, where changing them takes longer than loading in slow motion's
    /// would: it is loaded with those that its cells have.
    fn keeps_timeouts(&self) -> bool {
        false
    }
    /// Effects of slow motion by this factor on the system's own clocks that can't follow it: ticks, heartbeats, limits
    /// per second, timeouts that have a maximum. A sentence each.
    fn left_at_wall_time(&self, _settings: &BTreeMap<String, String>, _slow_motion: f64) -> Vec<String> {
        Vec::new()
    }
    /// The nodes that it has with these settings and that can go away and come back one by one: those that
    /// [`RunningSystem::nodes`] lists, in the same order. Without them, or with mistakes in the settings, none.
    fn planned_nodes(&self, _settings: &BTreeMap<String, String>) -> Vec<PlannedNode> {
        Vec::new()
    }
    /// Its processes with these settings on these directories, and what each keeps where. None where it is one process
    /// that has all of them, where nothing is started here, and with mistakes in the settings.
    fn parts(&self, _paths: &StoragePaths, _settings: &BTreeMap<String, String>) -> Vec<SystemPart> {
        Vec::new()
    }
    /// How many copies of each record it stores with these settings.
    fn copies(&self, _settings: &BTreeMap<String, String>) -> u64 {
        1
    }
    /// The share of the data that the fullest of so many nodes stores with these settings, above 0 and at most 1.
    fn share_of_fullest_node(&self, settings: &BTreeMap<String, String>, nodes: u64) -> f64 {
        let nodes = nodes.max(1);
        self.copies(settings).clamp(1, nodes) as f64 / nodes as f64
    }
    /// How many DataNodes of HDFS may have a storage each with these settings, 0 where they share one. `None` where the
    /// nodes keep the data themselves.
    fn datanodes_with_own_storage(&self, _settings: &BTreeMap<String, String>) -> Option<u64> {
        None
    }
    /// How one server uses a budget of this size under such a load, where it knows before it starts; `None` where it
    /// does not.
    ///
    /// # Errors
    /// Why it would not start, or not live through it, in a sentence.
    fn memory(
        &self,
        _settings: &BTreeMap<String, String>,
        _budget_bytes: u64,
        _load: ClientLoad,
    ) -> Option<Result<MemoryPlan, String>> {
        None
    }
    /// Whether it stores records compressed with these settings.
    fn compresses(&self, _settings: &BTreeMap<String, String>) -> bool {
        false
    }
    /// Whether it compacts everything at once with these settings, which may take room for a second copy of its data.
    fn compacts_everything(&self, _settings: &BTreeMap<String, String>) -> bool {
        false
    }
    /// The effect on clients while so many of its nodes, or of one shard's, are down at once: a sentence. `None` where
    /// it does all that it did before.
    fn without_nodes(
        &self,
        _settings: &BTreeMap<String, String>,
        _shard: Option<u32>,
        _away: usize,
    ) -> Option<String> {
        None
    }
    /// Cautions about allowed settings before it runs: a sentence each.
    fn cautions(&self, _settings: &BTreeMap<String, String>) -> Vec<String> {
        Vec::new()
    }
    /// The ends of logs that are worth keeping, by name, of a server that could not start or be loaded: what is left of
    /// it below its scratch directory.
    fn logs_left(&self, _scratch: &Path) -> Vec<(String, String)> {
        Vec::new()
    }
    /// Starts it on storage that is empty or that it has used before.
    fn start(
        &self,
        paths: &StoragePaths,
        resources: &SystemResources,
        settings: &SystemSettings,
    ) -> Result<Box<dyn RunningSystem>, SystemError>;
}

/// A batch job as a study asks for it, after scaling.
#[derive(Clone, Debug, PartialEq)]
pub struct JobRequest {
    /// One of [`SystemCapabilities::jobs`].
    pub name: String,
    /// How much data it generates, moves or reads on this machine.
    pub data_bytes: u64,
    /// Map tasks and reduce tasks; the system's own choice when absent.
    pub maps: Option<u32>,
    pub reduces: Option<u32>,
    /// The share of generated values that repeats, 0 to 1.
    pub compressibility: f64,
    pub seed: u64,
    /// A job that takes longer counts as failed.
    pub limit: Duration,
}

/// How far a running job is.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct JobProgress {
    /// `map`, `reduce`.
    pub phase: String,
    /// 0 to 1, of the whole job.
    pub done: f64,
}

/// A benchmark of the user's as a study asks for it, after scaling.
#[derive(Clone, Debug, PartialEq)]
pub struct BenchmarkRequest {
    /// As the study names its workload.
    pub name: String,
    pub plan: BenchmarkPlan,
    pub data_bytes: u64,
    pub seed: u64,
    /// How long it is to be measured, and to warm up before, by this machine's clock.
    pub duration: Duration,
    pub warmup: Duration,
}

/// The purpose of a program's data set.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LoadRequest {
    pub data_bytes: u64,
    pub seed: u64,
}

/// Asked again and again while a command runs; returns whether it should continue.
pub type CommandWatch<'a> = &'a (dyn Fn() -> bool + Sync);

/// The same of a benchmark, with what it last printed of its progress.
pub type BenchmarkWatch<'a> = &'a (dyn Fn(Option<BenchmarkProgress>) -> bool + Sync);

/// A figure that a benchmark prints while it runs, by this machine's clock.
#[derive(Clone, Debug, PartialEq)]
pub struct BenchmarkProgress {
    pub name: String,
    pub unit: String,
    pub slow_motion: MetricDilation,
    pub value: f64,
}

/// Called with a job's progress; returns whether the job should continue.
pub type JobWatch<'a> = &'a (dyn Fn(&JobProgress) -> bool + Sync);

/// A started system. Dropping it kills its processes; `stop` shuts them down cleanly.
pub trait RunningSystem: Send + Sync {
    /// A new connection, for one thread.
    fn connect(&self) -> Result<Box<dyn Client>, SystemError>;
    /// Generates what a batch job reads if no earlier job has, so that this is not counted as part of the job. Most do
    /// nothing.
    fn prepare_job(&self, _job: &JobRequest, _watch: JobWatch<'_>) -> Result<(), SystemError> {
        Ok(())
    }
    /// Runs a batch job from submission to completion. All times in the record are by this machine's clock: the study
    /// divides them by slow motion. `None` for a system that has no jobs.
    fn run_job(&self, _job: &JobRequest, _watch: JobWatch<'_>) -> Option<Result<JobRecord, SystemError>> {
        None
    }
    /// Waits until a cache of the system has stored everything that it acknowledged in the job. This is behind the
    /// measured window, at the measured devices' pace. Returns the cache's work, by this machine's clock. `None`
    /// without such a cache.
    ///
    /// # Errors
    /// When it can't be stored.
    fn drain_job(&self, _job: &JobRequest, _watch: JobWatch<'_>) -> Result<Option<CacheUse>, SystemError> {
        Ok(None)
    }
    /// Adds to a job's record what could be asked only behind the measured window, because asking takes time. Most add
    /// nothing.
    fn complete_job(&self, _job: &mut JobRecord) {}
    /// Checks what the job left, with as much reading as that takes: it is no part of the job, and is not measured.
    /// Many jobs check themselves.
    ///
    /// # Errors
    /// The fault in the output.
    fn verify_job(&self, _job: &JobRequest, _watch: JobWatch<'_>) -> Result<(), SystemError> {
        Ok(())
    }
    /// Has the system's own command put a data set there. `None` for a system that is loaded by clients.
    fn load_data(&self, _load: &LoadRequest, _watch: CommandWatch<'_>) -> Option<Result<(), SystemError>> {
        None
    }
    /// Runs a benchmark of the user's to its end and takes its figures, by this machine's clock: the study divides slow
    /// motion out. `None` for a system that runs none.
    fn run_benchmark(
        &self,
        _benchmark: &BenchmarkRequest,
        _watch: BenchmarkWatch<'_>,
    ) -> Option<Result<BenchmarkRecord, SystemError>> {
        None
    }
    /// The ends of logs that are worth keeping, by name.
    fn logs(&self) -> Vec<(String, String)> {
        Vec::new()
    }
    /// Its nodes, where they can go away and come back one by one.
    fn nodes(&self) -> Option<&dyn SystemNodes> {
        None
    }
    /// Process ids, for accounting.
    fn processes(&self) -> Vec<u32>;
    /// The settings in force, for the record.
    fn applied_settings(&self) -> BTreeMap<String, String>;
    /// Where it has its copies of the data, for the record, without devices. Systems whose data have one place do not
    /// tell.
    fn topology(&self) -> Option<TopologyRecord> {
        None
    }
    /// Checks that it is still working.
    ///
    /// # Errors
    /// When it has failed, with the end of its log.
    fn health(&self) -> Result<(), SystemError>;
    /// The system's own running totals, by name.
    fn figures(&self) -> Result<BTreeMap<String, f64>, SystemError>;
    /// The figures that are shown over time, such as how much runs in the background (`current_compactions_running`).
    /// They are sampled while the system is measured, so reading them must cost it next to nothing. Many have none.
    fn gauges(&self) -> Result<BTreeMap<String, f64>, SystemError> {
        Ok(BTreeMap::new())
    }
    /// Brings the data to the state that measurements start from: everything flushed, no background work left.
    fn settle(&self, limit: Duration) -> Result<(), SystemError>;
    /// Starts compacting everything while clients continue, as an operator would. The compaction may or may not be
    /// finished when this returns.
    fn compact(&self, limit: Duration) -> Result<(), SystemError> {
        self.settle(limit)
    }
    /// Kills the processes that answer requests or that settling waits for, so that everyone who waits gets an error.
    /// Its other processes may live until it is dropped, and an existing cluster keeps running.
    fn abort(&self);
    /// Shuts down cleanly: everything acknowledged is on the storage when this returns.
    fn stop(self: Box<Self>) -> Result<(), SystemError>;
}
