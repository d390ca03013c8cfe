//! Preparing a program's directories and starting it.

use std::collections::BTreeMap;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use underlay_sync::Mutex;

use super::NAME;
use super::command_env::{BudgetOwner, CommandEnvironment, new_mark};
use super::config::{CommandConfig, SETTINGS};
use super::foreign_files::LOGS;
use super::host_space::HostSpace;
use super::identity::{UnixUser, make_private, write_file};
use super::placeholders::PlaceholderValues;
use super::profile::PROFILE;
use super::running::{RunningProgram, logs_of};
use crate::child::ChildProcess;
use crate::network_namespace::NetworkNamespace;
use crate::profile::SystemProfile;
use crate::system::{
    RunningSystem, StoragePaths, System, SystemCapabilities, SystemError, SystemResources, SystemSettings,
    check_attached, check_roles, first_data_directory,
};

/// Roles with a separate storage.
const ROLES: &[(&str, &str)] =
    &[("wal", "its write-ahead log, as {wal}"), ("temp", "temporary files, as {temp}")];
const FOLDER: &str = "program";
/// Beside it, out of reach of its user.
const OUTPUTS: &str = "outputs";
const READY_POLL: Duration = Duration::from_millis(100);
/// One attempt of `ready`.
const READY_TRY: Duration = Duration::from_secs(30);
const MIB: u64 = 1 << 20;

/// The system `command`.
#[derive(Clone, Copy, Debug, Default)]
pub struct CommandSystem;

pub static INSTALLED: CommandSystem = CommandSystem;

/// Where everything is of a program that is about to start.
struct ProgramDirectories {
    data: PathBuf,
    wal: PathBuf,
    temp: PathBuf,
    scratch: PathBuf,
    logs: PathBuf,
    /// Block devices, where the storage has no file system: its directories are then in `scratch`, and no command has
    /// them.
    devices: Vec<PathBuf>,
    /// The storages, as the user must reach them.
    places: Vec<PathBuf>,
    /// Nothing has been made there yet.
    is_fresh: bool,
}

impl ProgramDirectories {
    fn new(
        config: &CommandConfig,
        paths: &StoragePaths,
        user: Option<&UnixUser>,
    ) -> Result<ProgramDirectories, SystemError> {
        if !paths.further_nodes.is_empty() {
            return Err(SystemError::starting(
                NAME,
                "it is one program and can't use the storage of several nodes",
            ));
        }
        check_roles(NAME, ROLES, paths.roles.keys())?;
        let all = paths.data.iter().chain(paths.roles.values()).chain([&paths.scratch]);
        check_separators(all.map(PathBuf::as_path))?;
        let first = first_data_directory(NAME, &paths.data)?;
        // A device has no directories, so the rest is about file systems alone.
        if is_block_device(first) {
            return ProgramDirectories::beside_devices(paths, user);
        }
        for directory in paths.data.iter().chain(paths.roles.values()) {
            check_attached(NAME, directory)?;
            let opened = user.map_or(Ok(()), |user| user.let_through(directory));
            opened.map_err(|error| {
                SystemError::starting(NAME, format!("can't open {}: {error}", directory.display()))
            })?;
        }
        // The setting counts from 1, and its range says so.
        let number = usize::try_from(config.wal_directory).unwrap_or(usize::MAX) - 1;
        let data_directory = paths.data.get(number).ok_or_else(|| SystemError::Setting {
            system: NAME,
            key: "wal_directory".to_owned(),
            problem: format!("the storage has {} directories", paths.data.len()),
        })?;
        let folder = |storage: &Path, name: &str| storage.join(FOLDER).join(name);
        let of_role = |role: &str, else_on: &Path| {
            folder(paths.roles.get(role).map_or(else_on, PathBuf::as_path), role)
        };
        let failed = |path: &Path, error: std::io::Error| {
            SystemError::starting(NAME, format!("can't make {}: {error}", path.display()))
        };
        let data = folder(first, "data");
        let is_fresh = !data.exists();
        let (wal, temp) = (of_role("wal", data_directory), of_role("temp", first));
        let scratch = paths.scratch.join(FOLDER);
        let logs = scratch.join(LOGS);
        for (path, is_kept) in [(&data, true), (&wal, true), (&temp, true), (&scratch, false), (&logs, false)]
        {
            // A prepared data set brings these directories along, with what the load has left in them.
            if is_kept && !is_fresh && path.exists() {
                continue;
            }
            let parent = path.parent().expect("it was joined");
            if is_kept && !parent.exists() {
                make_private(parent, user).map_err(|error| failed(parent, error))?;
            }
            make_private(path, user).map_err(|error| failed(path, error))?;
        }
        let places = paths.data.iter().chain(paths.roles.values()).chain([&scratch]).cloned().collect();
        Ok(ProgramDirectories { data, wal, temp, scratch, logs, devices: Vec::new(), places, is_fresh })
    }

    /// Of a storage without a file system.
    fn beside_devices(
        paths: &StoragePaths,
        user: Option<&UnixUser>,
    ) -> Result<ProgramDirectories, SystemError> {
        let scratch = paths.scratch.join(FOLDER);
        let logs = scratch.join(LOGS);
        for path in [&scratch, &logs] {
            make_private(path, user).map_err(|error| {
                SystemError::starting(NAME, format!("can't make {}: {error}", path.display()))
            })?;
        }
        let unused = scratch.join("none");
        Ok(ProgramDirectories {
            data: unused.clone(),
            wal: unused.clone(),
            temp: unused,
            places: vec![scratch.clone()],
            devices: paths.data.clone(),
            scratch,
            logs,
            // Whether a device holds what `prepare` made can't be seen: it is run with the data set only.
            is_fresh: false,
        })
    }
}

/// fio and others take what follows a colon for another file, which may be somebody's.
fn check_separators<'p>(mut places: impl Iterator<Item = &'p Path>) -> Result<(), SystemError> {
    let is_divided = |place: &&Path| place.as_os_str().as_encoded_bytes().contains(&b':');
    places.find(is_divided).map_or(Ok(()), |place| {
        let problem = format!(
            "its directories would be below {}, and programs such as fio take the part after a colon for another file: give --out and --work, or \
             `paths`, without one",
            place.display()
        );
        Err(SystemError::starting(NAME, problem))
    })
}

fn is_block_device(path: &Path) -> bool {
    use std::os::unix::fs::FileTypeExt as _;
    std::fs::metadata(path).is_ok_and(|found| found.file_type().is_block_device())
}

/// A port that is free, in a network that others use as well.
fn free_port() -> Result<u64, SystemError> {
    let found = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
    found
        .map(|address| u64::from(address.port()))
        .map_err(|error| SystemError::starting(NAME, format!("there is no free port: {error}")))
}

impl CommandSystem {
    fn start_program(
        paths: &StoragePaths,
        resources: &SystemResources,
        settings: &SystemSettings,
    ) -> Result<RunningProgram, SystemError> {
        let config = CommandConfig::resolve(&settings.values, resources.budget_bytes)
            .map_err(|mistakes| SystemError::first_mistake(NAME, mistakes))?;
        let user = config.user.as_deref().map(UnixUser::find).transpose()?.flatten();
        let directories = ProgramDirectories::new(&config, paths, user.as_ref())?;
        let failed = |error: std::io::Error| {
            SystemError::starting(NAME, format!("can't prepare {}: {error}", directories.scratch.display()))
        };
        let script = directories.scratch.join("script");
        if let Some(text) = &config.script {
            write_file(&script, text, 0o500, user.as_ref()).map_err(failed)?;
        }
        let outputs = paths.scratch.join(OUTPUTS);
        make_private(&outputs, None).map_err(failed)?;
        let network = match NetworkNamespace::create(NAME) {
            Ok(namespace) => Some(namespace),
            Err(SystemError::Missing { .. }) => None,
            Err(error) => return Err(error),
        };
        let port = if network.is_some() { config.port } else { free_port()? };
        let here = || std::thread::available_parallelism().map_or(1, |cores| cores.get() as u32);
        let shown = |path: &Path| path.display().to_string();
        let device: Vec<String> = directories.devices.iter().map(|path| shown(path)).collect();
        let mut values: PlaceholderValues = vec![
            ("data", shown(&directories.data)),
            ("wal", shown(&directories.wal)),
            ("temp", shown(&directories.temp)),
            ("scratch", shown(&directories.scratch)),
            ("logs", shown(&directories.logs)),
            ("script", shown(&script)),
            ("host", "127.0.0.1".to_owned()),
            ("port", port.to_string()),
            ("user", config.user.clone().unwrap_or_else(|| "root".to_owned())),
            ("memory_bytes", resources.budget_bytes.to_string()),
            ("memory_mib", (resources.budget_bytes / MIB).to_string()),
            ("cores", resources.modelled_cores.unwrap_or_else(here).to_string()),
            ("time", settings.slow_motion.to_string()),
            ("data_bytes", "0".to_owned()),
            ("duration_s", "0".to_owned()),
            ("warmup_s", "0".to_owned()),
            ("seed", "0".to_owned()),
        ];
        match device.is_empty() {
            true => values.retain(|(name, _)| *name != "device"),
            false => {
                values.retain(|(name, _)| !matches!(*name, "data" | "wal" | "temp"));
                values.push(("device", device.join(":")));
            }
        }
        let ground = CommandEnvironment {
            user,
            network,
            resources: resources.clone(),
            values,
            places: directories.places,
            scratch: directories.scratch.clone(),
            host_space: HostSpace::from_place(&paths.scratch),
            outputs,
            mark: new_mark().map_err(failed)?,
            runs: AtomicU64::new(1),
            commands: AtomicU64::new(1),
        };
        let mut program =
            RunningProgram { config, ground, main: None, version: None, is_over: Mutex::new(false) };
        // From here on, dropping it ends what was started.
        program.version = version(&program)?;
        if directories.is_fresh
            && let Some(prepare) = &program.config.prepare
        {
            program.run("prepare", prepare, BudgetOwner::System)?;
        }
        if let Some(start) = &program.config.start {
            let started =
                program.ground.spawn("start", start, &PlaceholderValues::new(), BudgetOwner::System)?;
            let child = program.main.insert(started.child);
            wait_until_ready(&program.config, &program.ground, child)?;
        }
        Ok(program)
    }
}

fn version(program: &RunningProgram) -> Result<Option<String>, SystemError> {
    let Some(command) = &program.config.version else { return Ok(None) };
    let text = program.ground.ask("version", command, program.config.limit)?;
    Ok(text.lines().next().map(|line| line.trim().chars().take(200).collect()))
}

/// Waits for a program that takes requests. One whose command has ended well runs on by itself.
fn wait_until_ready(
    config: &CommandConfig,
    ground: &CommandEnvironment,
    child: &ChildProcess,
) -> Result<(), SystemError> {
    let state = child.state();
    let began = Instant::now();
    let mut last_word = None;
    loop {
        if state.wait(READY_POLL) && !state.ended_well() {
            let problem = format!(
                "its command `start` failed: {}{}{}",
                state.describe(),
                ground.full(),
                ground.last_words()
            );
            return Err(state.failed("starting", problem));
        }
        if let Some(problem) = ground.too_much() {
            return Err(state.failed("starting", format!("it was killed: {problem}")));
        }
        let Some(ready) = &config.ready else { return Ok(()) };
        match ground.ask("ready", ready, READY_TRY.min(config.limit)) {
            Ok(_) => return Ok(()),
            Err(error) => last_word = Some(error.to_string()).or(last_word),
        }
        if began.elapsed() > config.limit {
            let word = last_word.map_or_else(String::new, |word| format!("; {word}"));
            let problem = format!(
                "it is not `ready` after {:.0} s{word}{}",
                config.limit.as_secs_f64(),
                ground.last_words()
            );
            return Err(state.failed("starting", problem));
        }
    }
}

impl System for CommandSystem {
    fn name(&self) -> &'static str {
        NAME
    }

    fn profile(&self) -> SystemProfile {
        PROFILE
    }

    fn capabilities(&self) -> SystemCapabilities {
        SystemCapabilities {
            many_directories: true,
            spreads_data: true,
            by_command: true,
            roles: ROLES,
            settings: SETTINGS,
            ..SystemCapabilities::default()
        }
    }

    fn versions(&self) -> BTreeMap<String, String> {
        BTreeMap::new()
    }

    fn check_settings(&self, settings: &BTreeMap<String, String>) -> Vec<(String, String)> {
        CommandConfig::resolve(settings, 0).err().unwrap_or_default()
    }

    fn folder_on(&self, storage: &Path) -> PathBuf {
        storage.join(FOLDER)
    }

    fn start_and_stop(&self, _: &BTreeMap<String, String>) -> Duration {
        Duration::from_secs(5)
    }

    fn logs_left(&self, scratch: &Path) -> Vec<(String, String)> {
        logs_of(&scratch.join(OUTPUTS), &scratch.join(FOLDER))
    }

    fn start(
        &self,
        paths: &StoragePaths,
        resources: &SystemResources,
        settings: &SystemSettings,
    ) -> Result<Box<dyn RunningSystem>, SystemError> {
        Ok(Box::new(CommandSystem::start_program(paths, resources, settings)?))
    }
}
