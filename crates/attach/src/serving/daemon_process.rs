//! The launcher's side of the device daemon: starting it, talking to it, ending it.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};
use underlay_sync::Mutex;

use rustix::process::Signal;
use underlay_files::{Access, Folder};
use underlay_record::{DeviceActivity, DeviceGlance, DeviceInputs, DisturbedBy, LayerActivity};
use underlay_storage::paced::PathCost;
use underlay_storage::stack::{PacingMode, StackSpec};

use crate::attachments::directory::DirectoryConfig;
use crate::machine::error::AttachError;
use crate::machine::mounts;
use crate::machine::processes::{self, ProcessId};
use crate::serving::daemon::control::{DaemonCommand, DaemonConnection, DaemonReply, VolumeInfo};
use crate::serving::daemon::{DaemonConfig, DaemonTransport, NO_FILESYSTEM};
use crate::serving::daemon_watchdog::{DaemonWatchdog, is_timeout};
use crate::serving::ublk;
use crate::undo::registry::{OwnedResource, RegistryNote, ResourceRegistry};

/// The daemon's configuration, in its session directory.
pub(crate) const CONFIG_FILE: &str = "daemon.json";
/// The mount point of its export, in the same directory.
pub(crate) const EXPORT_DIRECTORY: &str = "export";
pub(crate) const CONTROL_SOCKET: &str = "control";
const LOG_FILE: &str = "log";
/// How long, and how often, to check whether a daemon that has stopped answering has ended.
const LAST_BREATH_POLL: Duration = Duration::from_millis(10);
const LAST_BREATH_POLLS: u32 = 100;

/// The longest path of a socket, from `struct sockaddr_un` with its final zero.
const MAX_SOCKET_PATH_BYTES: usize = 107;

/// Opening a large backing may take a while on a busy machine.
const START_LIMIT: Duration = Duration::from_secs(60);
/// A change of pace waits for everything in flight, which in slow motion may be seconds.
const REPLY_LIMIT: Duration = Duration::from_secs(300);
const SHUTDOWN_LIMIT: Duration = Duration::from_secs(30);
const LOG_TAIL_BYTES: u64 = 4096;

/// The subcommand that turns a program into the daemon, and the program that is only the daemon. One of the two is on
/// the command line of every daemon.
pub(crate) const DAEMON_SUBCOMMAND: &str = "device-daemon";
const DAEMON_PROGRAM: &str = "underlay-device-daemon";

/// The daemons that run with this configuration file. Other programs, such as an editor or a wrapper, may have the path
/// among their arguments as well. A daemon has it at the end after `--config`, and is called a daemon.
pub(crate) fn daemons_with(config: &Path) -> Vec<ProcessId> {
    processes::matching(|arguments| is_daemon(arguments, config))
}

fn is_daemon(arguments: &[OsString], config: &Path) -> bool {
    let [program, between @ .., option, path] = arguments else { return false };
    let is_called_daemon = match between.last() {
        Some(last) => last == DAEMON_SUBCOMMAND,
        None => Path::new(program).file_name().is_some_and(|name| name == DAEMON_PROGRAM),
    };
    is_called_daemon && option == "--config" && path == config.as_os_str()
}

/// How to start the daemon: a program, and its arguments before `--config FILE`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DaemonProgram {
    pub program: PathBuf,
    pub arguments: Vec<OsString>,
}

/// Asks a daemon to shut down, and kills it if it doesn't; true when it has ended.
pub(crate) fn end_daemon(process: ProcessId, control: &Path) -> bool {
    let shut_down = DaemonConnection::open(control, SHUTDOWN_LIMIT)
        .and_then(|mut connection| connection.ask(&DaemonCommand::Shutdown));
    let grace = if shut_down.is_ok() { SHUTDOWN_LIMIT } else { Duration::ZERO };
    process.wait_gone(grace) || {
        process.signal(Signal::KILL);
        process.wait_gone(Duration::from_secs(10))
    }
}

/// The outcome of a request to hurry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HurryOutcome {
    Hurried,
    /// It did not answer in time.
    Killed,
    /// It had ended earlier.
    Ended,
}

/// A running daemon with its session directory, export and notes in the registry.
///
/// Dropping it does not end the daemon: a file system that could not be unmounted still depends on it, and `underlay
/// clean` finds both.
pub(crate) struct DaemonProcess {
    session: PathBuf,
    source: String,
    /// It has ublk devices, which outlive it when it is killed.
    has_ublk: bool,
    registry: ResourceRegistry,
    /// In order of creation; undone in reverse.
    session_note: Option<RegistryNote>,
    mount_note: Option<RegistryNote>,
    daemon_note: Option<RegistryNote>,
    child: Option<Mutex<Child>>,
    pid: u32,
    connection: Option<Mutex<DaemonConnection>>,
    volumes: Vec<VolumeInfo>,
    /// It failed on its own, which has not been reported yet.
    ended_badly: Option<AttachError>,
}

impl DaemonProcess {
    /// Starts a daemon for `stack`, which backdates requests by `path`, and waits until its export can be used.
    pub(crate) fn start(
        program: &DaemonProgram,
        stack: &StackSpec,
        transport: DaemonTransport,
        path: PathCost,
        registry: &ResourceRegistry,
    ) -> Result<Self, AttachError> {
        DaemonProcess::begin(program, stack, transport, path, Vec::new(), registry)
    }

    /// Like [`DaemonProcess::start`], with a mounted directory for each volume instead of the export.
    pub(crate) fn start_directories(
        program: &DaemonProgram,
        stack: &StackSpec,
        directories: Vec<DirectoryConfig>,
        registry: &ResourceRegistry,
    ) -> Result<Self, AttachError> {
        DaemonProcess::begin(
            program,
            stack,
            DaemonTransport::default(),
            PathCost::default(),
            directories,
            registry,
        )
    }

    fn begin(
        program: &DaemonProgram,
        stack: &StackSpec,
        transport: DaemonTransport,
        path: PathCost,
        directories: Vec<DirectoryConfig>,
        registry: &ResourceRegistry,
    ) -> Result<Self, AttachError> {
        let (session, note) = registry.session()?;
        let name = session.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let mut daemon = DaemonProcess {
            session,
            source: format!("underlay:{name}"),
            has_ublk: false,
            registry: registry.clone(),
            session_note: Some(note),
            mount_note: None,
            daemon_note: None,
            child: None,
            pid: 0,
            connection: None,
            volumes: Vec::new(),
            ended_badly: None,
        };
        match daemon.launch(program, stack, transport, path, directories) {
            Ok(()) => Ok(daemon),
            Err(error) => {
                // Steps that can't be undone stay in the registry; the first error counts.
                let _ = daemon.stop();
                Err(error)
            }
        }
    }

    fn launch(
        &mut self,
        program: &DaemonProgram,
        stack: &StackSpec,
        transport: DaemonTransport,
        path: PathCost,
        directories: Vec<DirectoryConfig>,
    ) -> Result<(), AttachError> {
        let (export, control) = (self.export(), self.session.join(CONTROL_SOCKET));
        if control.as_os_str().len() > MAX_SOCKET_PATH_BYTES {
            return Err(AttachError::failed(format!(
                "{} is too long for a socket's path: set {} to a shorter directory",
                control.display(),
                crate::undo::registry::RUNTIME_DIR_VARIABLE
            )));
        }
        Folder::make_new(&export, Access::Private)
            .map_err(|error| AttachError::io("make", &export, error))?;
        let config_path = self.session.join(CONFIG_FILE);
        let config = DaemonConfig {
            stack: stack.clone(),
            transport,
            export: export.clone(),
            source: self.source.clone(),
            control: control.clone(),
            path,
            directories,
        };
        let text = serde_json::to_vec_pretty(&config).map_err(|error| {
            AttachError::failed(format!("could not write the storage's description: {error}"))
        })?;
        underlay_files::replace(&config_path, Access::Private, &text)
            .map_err(|error| AttachError::io("write", &config_path, error))?;
        let log_path = self.session.join(LOG_FILE);
        let log = File::options()
            .create(true)
            .append(true)
            .mode(0o600)
            .open(&log_path)
            .map_err(|error| AttachError::io("write", &log_path, error))?;

        let exported = match transport {
            DaemonTransport::Ublk => OwnedResource::Ublk { export },
            _ => OwnedResource::FuseMount { mount_point: export, source: self.source.clone() },
        };
        self.has_ublk = transport == DaemonTransport::Ublk;
        // Noted before it exists. A launcher killed in between leaves a note without an object, which does no harm; a
        // daemon without a note would never be cleaned up.
        self.mount_note = Some(self.registry.note(exported)?);
        self.daemon_note = Some(
            self.registry
                .note(OwnedResource::Daemon { config: config_path.clone(), control: control.clone() })?,
        );
        let mut command = std::process::Command::new(&program.program);
        command.args(&program.arguments).arg("--config").arg(&config_path);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).current_dir("/");
        // SAFETY: setsid is async-signal-safe. In a separate session the daemon gets neither the terminal's
        // Ctrl-C nor its hang-up.
        unsafe {
            command.pre_exec(|| {
                rustix::process::setsid()?;
                Ok(())
            });
        }
        let child = command
            .spawn()
            .map_err(|error| AttachError::io("start the device daemon", &program.program, error))?;
        self.pid = child.id();
        self.child = Some(Mutex::new(child));
        self.wait_ready(&control)
    }

    fn wait_ready(&mut self, control: &Path) -> Result<(), AttachError> {
        let deadline = Instant::now() + START_LIMIT;
        loop {
            if let Ok(mut connection) = DaemonConnection::open(control, REPLY_LIMIT) {
                let reply = connection.ask(&DaemonCommand::Ping).map_err(|error| self.silent(&error))?;
                if let DaemonReply::Pong { volumes } = reply {
                    self.volumes = volumes;
                    self.connection = Some(Mutex::new(connection));
                    return Ok(());
                }
            }
            if let Some(status) = self.exit_status() {
                let ended = self.with_log(format!("the device daemon ended at its start ({status})"));
                return Err(match status.code() == Some(i32::from(NO_FILESYSTEM)) {
                    true => AttachError::NoFilesystem(ended.to_string()),
                    false => ended,
                });
            }
            if Instant::now() >= deadline {
                let limit_s = START_LIMIT.as_secs();
                return Err(self.with_log(format!("the device daemon was not ready after {limit_s} s")));
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.pid
    }

    pub(crate) fn volumes(&self) -> &[VolumeInfo] {
        &self.volumes
    }

    pub(crate) fn volume_file(&self, name: &str) -> PathBuf {
        self.export().join(name)
    }

    /// The socket on which it accepts commands.
    pub(crate) fn control(&self) -> PathBuf {
        self.session.join(CONTROL_SOCKET)
    }

    fn export(&self) -> PathBuf {
        self.session.join(EXPORT_DIRECTORY)
    }

    fn exit_status(&self) -> Option<std::process::ExitStatus> {
        let mut child = self.child.as_ref()?.lock();
        child.try_wait().ok().flatten()
    }

    /// `Err` when the daemon has ended.
    pub(crate) fn health(&self) -> Result<(), AttachError> {
        let ended = |status: std::process::ExitStatus| {
            Err(self.with_log(format!("the device daemon ended ({status})")))
        };
        if let Some(status) = self.exit_status() {
            return ended(status);
        }
        let Err(unanswered) = self.ask(&DaemonCommand::Ping) else { return Ok(()) };
        // The threads of a killed process end one by one, so it may have stopped answering without having ended.
        for _ in 0..LAST_BREATH_POLLS {
            if let Some(status) = self.exit_status() {
                return ended(status);
            }
            std::thread::sleep(LAST_BREATH_POLL);
        }
        Err(unanswered)
    }

    pub(crate) fn tell(&self, command: &DaemonCommand) -> Result<(), AttachError> {
        self.ask(command).map(|_| ())
    }

    /// Switches to fast-forward before everything is removed. A daemon that does not manage this within `limit` is
    /// killed: calls that wait for it then get an error instead of hanging forever.
    pub(crate) fn hurry_or_kill(&self, limit: Duration) -> HurryOutcome {
        let Some(connection) = &self.connection else {
            self.kill();
            return HurryOutcome::Ended;
        };
        let mut connection = connection.lock();
        // A device that a fault makes slow would not hurry before it has completed its present requests.
        let reply = connection
            .set_limit(limit)
            .and_then(|()| {
                connection.ask(&DaemonCommand::ClearFaults { device: None, by: DisturbedBy::default() })
            })
            .and_then(|_| connection.ask(&DaemonCommand::SetPace { pace: PacingMode::Immediate }));
        let _ = connection.set_limit(REPLY_LIMIT);
        drop(connection);
        if matches!(reply, Ok(DaemonReply::Done)) {
            return HurryOutcome::Hurried;
        }
        self.kill();
        // The threads of a killed process end one by one, so for its parent it may not have ended yet.
        match reply {
            Err(error) if !is_timeout(error.kind()) => HurryOutcome::Ended,
            _ => HurryOutcome::Killed,
        }
    }

    /// For calls that wait for its devices in the kernel: a recent hurry does not prove that it still runs. None once
    /// it has ended.
    pub(crate) fn watchdog(&self, limit: Duration) -> Option<DaemonWatchdog> {
        let daemon = ProcessId::from_pid(self.pid)?;
        Some(DaemonWatchdog { control: self.control(), daemon, limit })
    }

    /// Ends it at once; has no effect on one that has already ended.
    pub(crate) fn kill(&self) {
        if let Some(child) = &self.child {
            // Not collected yet, so its number can't mean another process.
            let _ = child.lock().kill();
        }
    }

    pub(crate) fn end_measurement(&self) -> Result<Vec<DeviceActivity>, AttachError> {
        match self.ask(&DaemonCommand::EndMeasurement)? {
            DaemonReply::Activity { devices } => Ok(devices),
            _ => Err(AttachError::failed("the device daemon did not answer with its devices' statistics")),
        }
    }

    pub(crate) fn glance(&self) -> Result<Vec<DeviceGlance>, AttachError> {
        match self.ask(&DaemonCommand::Glance)? {
            DaemonReply::Glance { devices } => Ok(devices),
            _ => Err(AttachError::failed("the device daemon did not answer with how its devices stand")),
        }
    }

    /// How well the data about the devices' media support their requests in the last measurement, by device name.
    pub(crate) fn inputs(&self) -> Result<Vec<(String, DeviceInputs)>, AttachError> {
        match self.ask(&DaemonCommand::Inputs)? {
            DaemonReply::Inputs { devices } => Ok(devices),
            _ => Err(AttachError::failed("the device daemon did not answer with its media's inputs")),
        }
    }

    pub(crate) fn layers(&self) -> Result<Vec<LayerActivity>, AttachError> {
        match self.ask(&DaemonCommand::Layers)? {
            DaemonReply::Layers { layers } => Ok(layers),
            _ => Err(AttachError::failed("the device daemon did not answer with the state of its layers")),
        }
    }

    fn ask(&self, command: &DaemonCommand) -> Result<DaemonReply, AttachError> {
        let Some(connection) = &self.connection else {
            return Err(AttachError::failed("the device daemon has been shut down"));
        };
        let reply = connection.lock().ask(command);
        match reply {
            Ok(DaemonReply::Failed { problem }) => {
                Err(AttachError::failed(format!("the device daemon refused: {problem}")))
            }
            Ok(reply) => Ok(reply),
            Err(error) => Err(self.silent(&error)),
        }
    }

    fn silent(&self, error: &io::Error) -> AttachError {
        match self.exit_status() {
            Some(status) => self.with_log(format!("the device daemon ended ({status})")),
            None => self.with_log(format!("the device daemon does not answer: {error}")),
        }
    }

    fn with_log(&self, message: String) -> AttachError {
        let tail = log_tail(&self.session.join(LOG_FILE)).ok().filter(|tail| !tail.trim().is_empty());
        AttachError::Failed { what: message, output: tail }
    }

    /// Ends the daemon, unmounts its export and removes its directory, as far as they exist.
    pub(crate) fn stop(&mut self) -> Result<(), AttachError> {
        self.connection = None;
        if let Some(child) = self.child.take() {
            // Not collected yet, so the number still means our child.
            let process = ProcessId::from_pid(self.pid);
            if !process.is_none_or(|process| end_daemon(process, &self.session.join(CONTROL_SOCKET))) {
                self.child = Some(child);
                let pid = self.pid;
                return Err(self.with_log(format!(
                    "the device daemon (process {pid}) does not end when killed: it waits in the kernel, most likely \
                     for the disk that holds its data. `underlay clean` removes its devices once it has ended"
                )));
            }
            let mut child = child.into_inner();
            // It has ended or was killed: this collects it. A daemon that fails on its own gives the reason in its log,
            // which is removed with the session.
            if let Ok(status) = child.wait()
                && let Some(code) = status.code().filter(|code| *code != 0)
            {
                self.ended_badly = Some(AttachError::Failed {
                    what: format!("the device daemon ended with code {code}: unflushed writes are lost"),
                    output: log_tail(&self.session.join(LOG_FILE)).ok(),
                });
            }
        }
        self.forget(|daemon| daemon.daemon_note.take());
        let export = self.export();
        let is_ours = |mount: &mounts::Mount| mount.source == Path::new(&self.source);
        while mounts::find(&export).is_some_and(|mount| is_ours(&mount)) {
            mounts::detach_lazily(&export).map_err(|errno| {
                AttachError::failed(format!("could not unmount the export {}: {errno}", export.display()))
            })?;
        }
        if self.has_ublk {
            ublk::remove(&export)?;
        }
        self.forget(|daemon| daemon.mount_note.take());
        if self.session_note.is_some() && self.session.exists() {
            underlay_files::remove_tree(&self.session)
                .map_err(|error| AttachError::io("remove", &self.session, error))?;
        }
        self.forget(|daemon| daemon.session_note.take());
        // Reported after everything else is done, since a second call does nothing.
        self.ended_badly.take().map_or(Ok(()), Err)
    }

    fn forget(&mut self, take: impl Fn(&mut Self) -> Option<RegistryNote>) {
        if let Some(note) = take(self) {
            self.registry.forget(note);
        }
    }
}

fn log_tail(path: &Path) -> io::Result<String> {
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(LOG_TAIL_BYTES)))?;
    let mut bytes = Vec::new();
    file.take(LOG_TAIL_BYTES).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_daemon_with_this_configuration_is_one() {
        let config = Path::new("/run/underlay/session-1-1/daemon.json");
        let is_daemon_line =
            |line: &str| is_daemon(&line.split(' ').map(OsString::from).collect::<Vec<_>>(), config);
        assert!(is_daemon_line("/opt/underlay device-daemon --config /run/underlay/session-1-1/daemon.json"));
        assert!(is_daemon_line("/opt/underlay-device-daemon --config /run/underlay/session-1-1/daemon.json"));
        for stranger in [
            "vi /run/underlay/session-1-1/daemon.json",
            "editor --config /run/underlay/session-1-1/daemon.json",
            "/opt/underlay device-daemon --config /run/underlay/session-1-2/daemon.json",
            "/opt/underlay device-daemon --log /run/underlay/session-1-1/daemon.json",
            "strace underlay device-daemon --config /run/underlay/session-1-1/daemon.json -f",
            "sh -c script --config /run/underlay/session-1-1/daemon.json",
            "/run/underlay/session-1-1/daemon.json",
            "",
        ] {
            assert!(!is_daemon_line(stranger), "{stranger}");
        }
    }
}
