//! Starting the process of the engine, and everything except clients' requests.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use ::rocksdb::{DB, Options};
use underlay_files::scratch_dir;
use underlay_workload::client::{Client, ClientError, FieldSelection};

use super::client::RocksdbClient;
use super::config::{MIN_BUDGET_BYTES, RocksdbCompaction, RocksdbConfig, SETTINGS};
use super::engine::EngineArguments;
use super::profile::PROFILE;
use crate::child::{ChildProcess, OBITUARY_WAIT};
use crate::connection::{FramedConnection, SocketPath};
use crate::memory_plan::{ClientLoad, MemoryPlan};
use crate::profile::SystemProfile;
use crate::setting::about_memory;
use crate::system::{
    RunningSystem, StoragePaths, System, SystemCapabilities, SystemError, SystemResources, SystemSettings,
    check_roles, make_on,
};
use crate::wire::WireOpcode;

const NAME: &str = "rocksdb";
const WAL_ROLE: &str = "wal_storage";
const ROLES: &[(&str, &str)] =
    &[(WAL_ROLE, "the write-ahead log (`wal_dir`), otherwise kept beside the data")];
/// The environment variable for running the engine in another program than this one.
const PROGRAM_VARIABLE: &str = "UNDERLAY_PROGRAM";
/// A client's timeout if the settings have none.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(10);
/// Opening replays the log and closing flushes the memtables, which may take long on a slow disk: these limits only
/// tell a stuck process from a slow one.
const MIN_START_LIMIT: Duration = Duration::from_secs(120);
const MIN_STOP_LIMIT: Duration = Duration::from_secs(120);
/// In slow motion everything takes longer. The client's timeout is stretched already, so limits of this many timeouts
/// are as well.
const LIMIT_TIMEOUTS: u32 = 20;
/// How much later than its limit settling may end.
const SETTLE_GRACE: Duration = Duration::from_secs(10);
const CONNECT_POLL: Duration = Duration::from_millis(2);

/// The system `rocksdb`.
#[derive(Clone, Debug, Default)]
pub struct Rocksdb {
    program: Option<PathBuf>,
}

/// The engine of this very program.
pub static INSTALLED: Rocksdb = Rocksdb { program: None };

impl Rocksdb {
    /// Runs the engine in `program`, whose subcommand `engine` must call [`super::engine::main`].
    pub fn with_program(program: impl Into<PathBuf>) -> Self {
        Rocksdb { program: Some(program.into()) }
    }

    fn program(&self) -> PathBuf {
        let chosen = self.program.clone().or_else(|| std::env::var_os(PROGRAM_VARIABLE).map(PathBuf::from));
        // Unlike its path, this is the running program even if a new build has replaced it.
        chosen.unwrap_or_else(|| PathBuf::from("/proc/self/exe"))
    }
}

impl System for Rocksdb {
    fn name(&self) -> &'static str {
        NAME
    }

    fn profile(&self) -> SystemProfile {
        PROFILE
    }

    fn capabilities(&self) -> SystemCapabilities {
        SystemCapabilities {
            scan: true,
            delete: true,
            roles: ROLES,
            settings: SETTINGS,
            ..SystemCapabilities::default()
        }
    }

    fn versions(&self) -> BTreeMap<String, String> {
        let mut versions = BTreeMap::new();
        if let Some(version) = library_version() {
            versions.insert(NAME.to_owned(), version.to_owned());
        }
        versions.insert("rust-rocksdb".to_owned(), env!("UNDERLAY_RUST_ROCKSDB_VERSION").to_owned());
        versions
    }

    fn check_settings(&self, settings: &BTreeMap<String, String>) -> Vec<(String, String)> {
        RocksdbConfig::resolve(settings, MIN_BUDGET_BYTES).err().unwrap_or_default()
    }

    fn memory(
        &self,
        settings: &BTreeMap<String, String>,
        budget_bytes: u64,
        _load: ClientLoad,
    ) -> Option<Result<MemoryPlan, String>> {
        let config = match RocksdbConfig::resolve(settings, budget_bytes) {
            Ok(config) => config,
            Err(mistakes) => return about_memory(mistakes).map(Err),
        };
        Some(Ok(MemoryPlan { budget_bytes, processes: vec![config.memory()] }))
    }

    fn compresses(&self, settings: &BTreeMap<String, String>) -> bool {
        RocksdbConfig::resolve(settings, MIN_BUDGET_BYTES).is_ok_and(|config| config.compresses())
    }

    fn compacts_everything(&self, settings: &BTreeMap<String, String>) -> bool {
        let config = RocksdbConfig::resolve(settings, MIN_BUDGET_BYTES);
        config.is_ok_and(|config| config.compaction == RocksdbCompaction::Universal)
    }

    fn start(
        &self,
        paths: &StoragePaths,
        resources: &SystemResources,
        settings: &SystemSettings,
    ) -> Result<Box<dyn RunningSystem>, SystemError> {
        let config = RocksdbConfig::resolve(&settings.values, resources.budget_bytes)
            .map_err(|mistakes| SystemError::first_mistake(NAME, mistakes))?;
        let [data] = paths.data.as_slice() else {
            let problem = format!(
                "it keeps its data in one directory, not {}: combine the devices with layout = \"stripe\"",
                paths.data.len()
            );
            return Err(SystemError::starting(NAME, problem));
        };
        check_roles(NAME, ROLES, paths.roles.keys())?;
        let database = make_on(NAME, data, NAME.as_ref())?;
        let wal_storage = paths.roles.get(WAL_ROLE);
        let wal_directory =
            wal_storage.map(|storage| make_on(NAME, storage, "rocksdb-wal".as_ref())).transpose()?;
        std::fs::create_dir_all(&paths.scratch).map_err(|error| {
            SystemError::starting(
                NAME,
                format!("can't make the directory {}: {error}", paths.scratch.display()),
            )
        })?;
        let socket = SocketPath::new(&paths.scratch, NAME).map_err(|error| {
            SystemError::starting(NAME, format!("can't create a path for its socket: {error}"))
        })?;
        let arguments = EngineArguments {
            socket: socket.as_path().to_owned(),
            data: database,
            wal_directory,
            log_directory: paths.scratch.clone(),
            budget_bytes: resources.budget_bytes,
            fields: settings.fields,
            settings: settings.values.clone(),
        };
        let mut command = Command::new(self.program());
        // Otherwise a list of processes would show it as `/proc/self/exe`.
        command.arg0("underlay").arg(OsString::from("engine")).args(arguments.to_command_line());
        let log = socket.as_path().with_extension("log");
        let log = paths.scratch.join(log.file_name().unwrap_or("rocksdb.log".as_ref()));
        let timeout = if settings.timeout.is_zero() { DEFAULT_TIMEOUT } else { settings.timeout };
        let started = RunningRocksdb {
            child: ChildProcess::spawn(NAME, command, &log, resources)?,
            socket,
            config,
            timeout,
        };
        started.wait_until_ready()?;
        Ok(Box::new(started))
    }
}

/// The version of the RocksDB that this program is linked with. The C interface doesn't expose it, but RocksDB writes
/// it to the OPTIONS file of each database: this creates one, reads the file and removes it.
fn library_version() -> Option<&'static str> {
    static VERSION: OnceLock<Option<String>> = OnceLock::new();
    let find = || {
        let folder = scratch_dir::make().ok()?;
        let mut options = Options::default();
        options.create_if_missing(true);
        let version = DB::open(&options, folder.path()).ok().and_then(|_| version_in(folder.path()));
        let _ = underlay_files::remove_tree(folder.path());
        version
    };
    VERSION.get_or_init(find).as_deref()
}

fn version_in(database: &Path) -> Option<String> {
    let files = std::fs::read_dir(database).ok()?;
    let options = files.flatten().find(|file| file.file_name().to_string_lossy().starts_with("OPTIONS-"))?;
    let text = underlay_files::read_text(&options.path(), 1 << 20).ok()?;
    text.lines().find_map(|line| line.trim().strip_prefix("rocksdb_version=")).map(str::to_owned)
}

/// A running engine.
struct RunningRocksdb {
    child: ChildProcess,
    socket: SocketPath,
    config: RocksdbConfig,
    timeout: Duration,
}

impl RunningRocksdb {
    fn wait_until_ready(&self) -> Result<(), SystemError> {
        let limit = MIN_START_LIMIT.max(self.timeout.saturating_mul(LIMIT_TIMEOUTS));
        let state = self.child.state();
        let ready = state.wait_until("starting", "accepting connections", limit, CONNECT_POLL, &|| {
            Ok(FramedConnection::open(self.socket.as_path(), self.timeout, state.clone()).is_ok())
        });
        ready.map_err(|error| self.explain_failed_start(error))
    }

    /// `error`, or what is missing in the library that the program is linked with.
    fn explain_failed_start(&self, error: SystemError) -> SystemError {
        let state = self.child.state();
        if state.log_tail().is_some_and(|log| log.contains("is not linked with the binary")) {
            let compression = self.config.applied().remove("compression").unwrap_or_default();
            return SystemError::Missing {
                system: NAME,
                missing: format!("a RocksDB library with {compression} compression"),
                remedy: "set compression = \"none\", or build with the feature rocksdb-from-source"
                    .to_owned(),
            };
        }
        error
    }

    fn open(&self, during: &'static str, timeout: Duration) -> Result<FramedConnection, SystemError> {
        let state = self.child.state();
        FramedConnection::open(self.socket.as_path(), timeout, state.clone()).map_err(|error| {
            // The kernel closes the sockets of a killed process a moment before it can be reaped.
            let problem = match state.wait(OBITUARY_WAIT) {
                true => state.describe(),
                false => format!("can't connect to process {}: {error}", state.pid()),
            };
            state.failed(during, problem)
        })
    }

    /// Sends one request on a new connection and returns the text of the reply.
    fn request(
        &self,
        during: &'static str,
        opcode: WireOpcode,
        number: u64,
        timeout: Duration,
    ) -> Result<String, SystemError> {
        let state = self.child.state();
        let mut connection = self.open(during, timeout)?;
        match connection.call(opcode, FieldSelection::All, number, b"", None) {
            Ok(reply) => Ok(reply.text()),
            Err(ClientError::Timeout(limit)) => {
                let seconds = limit.as_secs_f64();
                let problem = format!("process {} did not answer within {seconds:.1} s", state.pid());
                Err(state.failed(during, problem))
            }
            Err(ClientError::System(problem) | ClientError::Lost(problem)) => {
                Err(state.failed(during, problem))
            }
        }
    }

    fn numbers(&self, opcode: WireOpcode) -> Result<BTreeMap<String, f64>, SystemError> {
        const DURING: &str = "reading its figures";
        let text = self.request(DURING, opcode, 0, self.timeout)?;
        serde_json::from_str(&text)
            .map_err(|error| self.child.state().failed(DURING, format!("its answer can't be read: {error}")))
    }
}

impl RunningSystem for RunningRocksdb {
    fn connect(&self) -> Result<Box<dyn Client>, SystemError> {
        Ok(Box::new(RocksdbClient::new(self.open("connecting", self.timeout)?)))
    }

    fn processes(&self) -> Vec<u32> {
        let state = self.child.state();
        if state.is_running() { vec![state.pid()] } else { Vec::new() }
    }

    fn applied_settings(&self) -> BTreeMap<String, String> {
        self.config.applied()
    }

    fn health(&self) -> Result<(), SystemError> {
        self.request("running", WireOpcode::Ping, 0, self.timeout).map(drop)
    }

    fn figures(&self) -> Result<BTreeMap<String, f64>, SystemError> {
        self.numbers(WireOpcode::Figures)
    }

    fn gauges(&self) -> Result<BTreeMap<String, f64>, SystemError> {
        self.numbers(WireOpcode::Gauges)
    }

    fn settle(&self, limit: Duration) -> Result<(), SystemError> {
        let limit_ms = u64::try_from(limit.as_millis()).unwrap_or(u64::MAX);
        let patience = limit.saturating_add(SETTLE_GRACE).saturating_add(self.timeout);
        self.request("settling", WireOpcode::Settle, limit_ms, patience).map(drop)
    }

    fn abort(&self) {
        self.child.kill();
    }

    fn stop(self: Box<Self>) -> Result<(), SystemError> {
        let limit = MIN_STOP_LIMIT.max(self.timeout.saturating_mul(LIMIT_TIMEOUTS));
        self.request("stopping", WireOpcode::Stop, 0, limit)?;
        self.child.wait_for_end(limit)
    }
}
