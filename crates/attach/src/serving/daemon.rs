//! The device daemon: the process that serves the volumes of a storage configuration to the kernel.
//!
//! It is the current program started again with a hidden subcommand, in its own session, so that Ctrl-C
//! ends the run and not the devices under a mounted filesystem. It opens the [`Stack`], mounts the [`export`] on a
//! directory and obeys the [`control`] socket until a shutdown command, SIGTERM or the unmounting of its export.

mod block_devices;
pub mod control;
mod directories;
pub(crate) mod export;
pub(crate) mod request_meter;

use std::fs::File;
use std::io::Read;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use fuser::{Config, MountOption, Session, SessionACL};
use serde::{Deserialize, Serialize};
use underlay_storage::device::DeviceRequest;
use underlay_storage::paced::PathCost;
use underlay_storage::stack::{PacingMode, Stack, StackSpec};
use underlay_sync::slices;

use crate::attachments::directory::DirectoryConfig;
use crate::machine::error::AttachError;
use crate::machine::mounts;
use crate::serving::fuse_uring;
use crate::serving::remote::NvmeTcp;
use control::VolumeInfo;
use export::{ExportFiles, FuseExport};
use request_meter::RequestMeters;

/// The launcher's configuration for the daemon, as a JSON file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DaemonConfig {
    pub stack: StackSpec,
    #[serde(default)]
    pub transport: DaemonTransport,
    /// An empty directory, on which the export is mounted: one file for each volume. With ublk it gets a link to
    /// each device instead.
    pub export: PathBuf,
    /// The source name of the export in the table of mounts.
    pub source: String,
    /// The Unix socket, created once everything works.
    pub control: PathBuf,
    /// A request's time on its path to a device and back, in wall time: requests are backdated by it.
    #[serde(default)]
    pub path: PathCost,
    /// One for each volume that is shown as a directory; nothing is exported in that case.
    #[serde(default)]
    pub directories: Vec<DirectoryConfig>,
}

/// How requests come from the kernel to the daemon.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DaemonTransport {
    /// By reading FUSE's `/dev/fuse`, which every kernel has.
    #[default]
    DevFuse,
    /// Through rings shared with the kernel's FUSE: see [`crate::fuse_uring`].
    Uring,
    /// Without FUSE: see [`crate::ublk`].
    Ublk,
}

/// The file of the export that is not a volume: its reads are answered at once, so they take only the time of the path.
pub(crate) const PROBE_FILE: &str = ".path-probe";

/// Why the daemon ends.
enum DaemonEvent {
    Shutdown,
    Terminated,
}

const MAX_CONFIG_BYTES: u64 = 16 << 20;

/// One thread can't keep up with two cores of requests, and more contend with the program under test.
const EXPORT_THREADS: usize = 2;

/// How often it checks whether the export was unmounted from outside.
const WATCH_INTERVAL: Duration = Duration::from_millis(500);

impl DaemonConfig {
    /// # Errors
    /// When it can't be read, or is not one.
    pub fn read(path: &Path) -> Result<DaemonConfig, AttachError> {
        let mut text = Vec::new();
        File::open(path)
            .and_then(|file| file.take(MAX_CONFIG_BYTES).read_to_end(&mut text))
            .map_err(|error| AttachError::io("read the daemon's configuration", path, error))?;
        serde_json::from_slice(&text).map_err(|error| {
            AttachError::failed(format!("{} is not a device daemon's configuration: {error}", path.display()))
        })
    }
}

/// The exit code of a daemon that found no file system of ours where one should be: `EX_DATAERR` of sysexits.h. It
/// shows its launcher what may be created anew.
pub const NO_FILESYSTEM: u8 = 65;

/// The exit code of a daemon after this error.
pub fn exit_code(error: &AttachError) -> u8 {
    if matches!(error, AttachError::NoFilesystem(_)) { NO_FILESYSTEM } else { 1 }
}

/// Serves until shutdown. This is the hidden subcommand `device-daemon --config FILE`.
///
/// # Errors
/// When the storage can't be opened or served, or its last flush failed.
pub fn main(config_path: &Path) -> Result<(), AttachError> {
    abort_on_panic();
    let config = DaemonConfig::read(config_path)?;
    become_a_disk();
    let stack = Stack::open_with(&config.stack, &NvmeTcp)
        .map_err(|error| AttachError::failed(format!("could not open the devices: {error}")))?;
    stack.set_path(config.path.slowed(config.stack.dilation));
    let stack = Arc::new(stack);
    if !config.directories.is_empty() {
        return directories::serve(&config, &stack);
    }
    if config.transport == DaemonTransport::Ublk {
        return block_devices::serve(&config, &stack);
    }
    let names = config.stack.volumes.iter().map(|volume| volume.name.as_str());
    let doors = RequestMeters::new(&stack);
    let probe = (PROBE_FILE, doors.probe());
    let files = Arc::new(ExportFiles::new(names.zip(doors.volumes()).chain([probe])));
    let mut volumes = files.infos();
    // The file for probes is the last one, and not a volume.
    volumes.truncate(stack.volumes().len());

    let session = mount_export(&files, config.transport, &config.export, &config.source)?
        .spawn()
        .map_err(|error| AttachError::failed(format!("could not start the export's threads: {error}")))?;

    // The file system on the device notices a power cut by the device's errors.
    obey(&config, &stack, doors, volumes, || {}, || session.guard.is_finished())?;
    // A fault ends with its storage. Devices without power stay as they are: nothing more will be written.
    stack.clear_all_faults();
    let is_dark = stack.faults().iter().any(|device| !device.powered);
    // Requests in flight and buffered writes complete at once and become durable.
    stack.set_pace(PacingMode::Immediate);
    for volume in stack.volumes() {
        let flushed = volume.execute(DeviceRequest::Flush);
        if !is_dark {
            flushed.map_err(|error| AttachError::failed(format!("the last flush failed: {error}")))?;
        }
    }
    let _ = std::fs::remove_file(&config.control);
    if let Err(error) = mounts::try_unmount(&config.export, Duration::from_secs(5)) {
        // It is in use, for example by a loop device. After a lazy detach, the export would vanish from the table of
        // mounts and the loop device's file would lose its path, so that their owner would be unknown. Dead but
        // visible, both are found by `underlay clean`. Dropping the session would detach it as well.
        tracing::warn!("left mounted: {}", mounts::explain(&config.export, error));
        std::mem::forget(session);
        return Ok(());
    }
    let deadline = Instant::now() + Duration::from_secs(2);
    while !session.guard.is_finished() && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(2));
    }
    Ok(())
}

/// Obeys the control socket until it gets a shutdown command, or nothing is left to serve.
fn obey(
    config: &DaemonConfig,
    stack: &Arc<Stack>,
    doors: RequestMeters,
    volumes: Vec<VolumeInfo>,
    on_power_cut: impl Fn() + Send + Sync + 'static,
    is_over: impl Fn() -> bool,
) -> Result<(), AttachError> {
    let (events, received) = mpsc::channel();
    watch_sigterm(events.clone())
        .map_err(|error| AttachError::failed(format!("could not catch SIGTERM: {error}")))?;
    let on_shutdown = move || {
        let _ = events.send(DaemonEvent::Shutdown);
    };
    let service =
        control::DaemonService::new(Arc::clone(stack), config.stack.dilation, doors, volumes, on_power_cut);
    control::listen(&config.control, service, on_shutdown)?;
    loop {
        match received.recv_timeout(WATCH_INTERVAL) {
            Ok(DaemonEvent::Shutdown | DaemonEvent::Terminated) | Err(RecvTimeoutError::Disconnected) => {
                return Ok(());
            }
            Err(RecvTimeoutError::Timeout) if is_over() => return Ok(()),
            Err(RecvTimeoutError::Timeout) => {}
        }
    }
}

/// A thread that panics ends the process. Otherwise its requests would never be answered, and processes that wait for
/// them could not even be killed. Once the daemon is gone, the kernel fails them all (EIO).
fn abort_on_panic() {
    let print = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        print(panic);
        std::process::abort();
    }));
}

/// Configures a process that serves devices. Called before it has threads, which inherit the settings. Without the
/// privileges it still works.
pub fn become_a_disk() {
    // Allocations during write-out must not wait for other pages to be written out.
    let _ = rustix::process::configure_io_flusher_behavior(true);
    let _ = rustix::process::setpriority_process(None, -10);
    go_first_as_a_session();
    let _ = slices::shorten();
    // The process behind a disk must not be killed when memory runs out.
    let _ = std::fs::write("/proc/self/oom_score_adj", "-900");
    // The default of 50 µs would be added to every modelled latency.
    let _ = underlay_sync::timer_slack::narrow();
}

/// The session's weight against others, as a nice value: three times an ordinary one. More would be too much. The pacer
/// spins most of the time on fast devices. Its yields reach other sessions' threads only while its session has had more
/// CPU than its weight allows. An NVMe drive's 16 clients, threads of another session, each waited 100 us for 8 us of
/// CPU time at -10, and some 40 us at -5.
const SESSION_NICE: &str = "-5";

/// Where the scheduler groups processes by session (autogroup, Linux's default), a process's nice value counts only
/// within its session. Against programs of other terminals the session's own value counts. Only a session leader may
/// change it, since other processes share their session with a user's shell.
fn go_first_as_a_session() {
    // SAFETY: it takes and gives numbers only. In a container the leader may be outside of it, and its number is then 0, which
    // rustix's type of process numbers can't be.
    let leader = unsafe { libc::getsid(0) };
    if leader == rustix::process::getpid().as_raw_pid() {
        let _ = std::fs::write("/proc/self/autogroup", SESSION_NICE);
    }
}

/// Mounts the files. With rings they are served when this returns, otherwise once the session runs.
fn mount_export(
    files: &Arc<ExportFiles>,
    transport: DaemonTransport,
    directory: &Path,
    source: &str,
) -> Result<Session<FuseExport>, AttachError> {
    let over_uring = transport == DaemonTransport::Uring;
    let mut config = Config::default();
    config.mount_options = vec![
        MountOption::FSName(source.to_owned()),
        MountOption::NoExec,
        MountOption::NoSuid,
        MountOption::NoDev,
    ];
    config.acl = SessionACL::Owner;
    // With rings, almost nothing is left to read from the device.
    config.n_threads = Some(if over_uring { 1 } else { EXPORT_THREADS });
    config.clone_fd = !over_uring;
    let session = Session::new(FuseExport::new(Arc::clone(files), over_uring), directory, &config)
        .map_err(|error| AttachError::io("mount the export on", directory, error))?;
    if over_uring {
        fuse_uring::serve(session.as_fd(), files)?;
    }
    Ok(session)
}

/// The handler only writes a byte; a thread waits for it.
fn watch_sigterm(events: Sender<DaemonEvent>) -> std::io::Result<()> {
    let (mut receiver, sender) = UnixStream::pair()?;
    signal_hook::low_level::pipe::register(signal_hook::consts::SIGTERM, sender)?;
    std::thread::Builder::new().name("sigterm".into()).spawn(move || {
        let mut byte = [0];
        while let Ok(1) = receiver.read(&mut byte) {
            let _ = events.send(DaemonEvent::Terminated);
        }
    })?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::{Command, Stdio};

    use super::*;

    const PANICS_VARIABLE: &str = "UNDERLAY_TEST_PANICS";

    /// Not a test but the process of the test below. Without the variable, as in `cargo test -- --ignored`, it
    /// fails at once.
    #[test]
    #[ignore = "the panicking process of the other test here"]
    fn panicking_process() {
        assert!(std::env::var_os(PANICS_VARIABLE).is_some(), "started by a test of this file");
        abort_on_panic();
        std::thread::spawn(|| panic!("a bug in a model"));
        std::thread::sleep(Duration::from_secs(60));
    }

    #[test]
    fn panic_on_any_thread_ends_daemon_with_message() {
        let started = Instant::now();
        let ended = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "serving::daemon::tests::panicking_process", "--ignored", "--nocapture"])
            .env(PANICS_VARIABLE, "1")
            .stdin(Stdio::null())
            .output()
            .unwrap();
        assert_eq!(ended.status.signal(), Some(libc::SIGABRT), "{ended:?}");
        assert!(String::from_utf8_lossy(&ended.stderr).contains("a bug in a model"), "{ended:?}");
        assert!(started.elapsed() < Duration::from_secs(30));
    }
}
