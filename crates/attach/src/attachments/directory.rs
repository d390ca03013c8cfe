//! Modelled storage as directories of its own file system, without root: the attachment `fuse-directory`.
//!
//! [`crate::BlockAttachment`] gives a block device to the kernel's file systems; here the device daemon is the file
//! system itself. It places files on the volume (see [`core`]), so that requests to the modelled devices have
//! positions. Files of one directory are close together, a growing file stays in one piece, and a stripe's devices
//! share a large request. The kernel's FUSE delivers the requests, and caches the pages.

pub mod core;
mod fuse;
mod mount;
mod serve;

use std::ffi::OsString;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use underlay_record::{DeviceActivity, DeviceGlance, DeviceInputs, LayerActivity};
use underlay_storage::stack::PacingMode;

use crate::attachments::attachment::{
    AttachSpec, AttachedStorage, Attachment, HeldResource, check_mount_point, check_names, needs_filesystem,
    split_directories,
};
use crate::machine::error::AttachError;
use crate::machine::missing::MissingCapability;
use crate::machine::mounts;
use crate::machine::privileges::{probe_fuse, probe_privileges};
use crate::machine::programs::find_program;
use crate::serving::daemon::control::DaemonCommand;
use crate::serving::daemon_process::{DAEMON_SUBCOMMAND, DaemonProcess, DaemonProgram};
use crate::undo::registry::{OwnedResource, RegistryNote, ResourceRegistry};

pub use serve::DirectoryConfig;

pub use self::core::is_beginning;
pub(crate) use serve::ServedDirectories;

/// Its name in records and on command lines.
pub const NAME: &str = "fuse-directory";

/// A change of pace waits for everything in flight, which in slow motion may be many seconds.
const HURRY_LIMIT: Duration = Duration::from_secs(60);

#[derive(Clone, Debug)]
pub struct FuseDirectory {
    daemon: DaemonProgram,
    hurry_limit: Duration,
}

impl FuseDirectory {
    /// The device daemon is this program, started again with the subcommand `device-daemon`.
    ///
    /// # Errors
    /// When this program can't be found.
    pub fn new() -> Result<FuseDirectory, AttachError> {
        let program = std::env::current_exe().map_err(|error| {
            AttachError::failed(format!("could not find this program to start it again: {error}"))
        })?;
        Ok(FuseDirectory::with_daemon(program, vec![DAEMON_SUBCOMMAND.into()]))
    }

    /// Uses another program as the device daemon: see [`crate::BlockAttachment::with_daemon`].
    pub fn with_daemon(daemon_program: impl Into<PathBuf>, daemon_args: Vec<OsString>) -> FuseDirectory {
        let daemon = DaemonProgram { program: daemon_program.into(), arguments: daemon_args };
        FuseDirectory { daemon, hurry_limit: HURRY_LIMIT }
    }

    /// How long detaching waits for a daemon that does not answer. The default is a minute.
    #[must_use]
    pub fn with_hurry_limit(self, hurry_limit: Duration) -> FuseDirectory {
        FuseDirectory { hurry_limit, ..self }
    }
}

impl Attachment for FuseDirectory {
    fn name(&self) -> &'static str {
        NAME
    }

    fn probe(&self) -> Result<(), MissingCapability> {
        probe_fuse()?;
        if probe_privileges().is_err() && find_program(mount::HELPER).is_none() {
            return Err(MissingCapability::new(
                format!("{}, which mounts without root", mount::HELPER),
                "install the Debian package fuse3, or run as root",
            ));
        }
        Ok(())
    }

    /// The spec's file system does not matter: the directory has its own.
    fn attach(&self, spec: &AttachSpec, registry: &ResourceRegistry) -> Result<AttachedStorage, AttachError> {
        self.probe()?;
        check_names(&spec.stack)?;
        check_mount_point(spec)?;
        needs_filesystem(NAME, spec)?;
        let mut mounted = MountedDirectories {
            mounts: Vec::new(),
            made: Vec::new(),
            registry: registry.clone(),
            daemon: None,
            hurry_limit: self.hurry_limit,
        };
        match mounted.attach(&self.daemon, spec) {
            Ok(paths) => Ok(AttachedStorage::new(NAME, paths, Box::new(mounted))),
            Err(error) => {
                // Steps that can't be undone stay in the registry; the first error counts.
                let _ = mounted.detach();
                Err(error)
            }
        }
    }
}

/// Distinguishes the mounts of one process.
static NEXT_SOURCE: AtomicU64 = AtomicU64::new(1);

struct MountedDirectories {
    mounts: Vec<(DirectoryConfig, RegistryNote)>,
    made: Vec<(PathBuf, RegistryNote)>,
    registry: ResourceRegistry,
    daemon: Option<DaemonProcess>,
    hurry_limit: Duration,
}

impl MountedDirectories {
    fn attach(&mut self, program: &DaemonProgram, spec: &AttachSpec) -> Result<Vec<PathBuf>, AttachError> {
        let mut configs = Vec::new();
        for volume in &spec.stack.volumes {
            let wanted = spec.mount_point.clone().unwrap_or_else(|| spec.mount_root.join(&volume.name));
            let (mount_point, mut made) = mounts::empty_directory(&wanted, &self.registry)?;
            self.made.append(&mut made);
            let number = NEXT_SOURCE.fetch_add(1, Ordering::Relaxed);
            let source = format!("underlay:directory-{}-{number}", std::process::id());
            let config = DirectoryConfig {
                mount_point: mount_point.clone(),
                source: source.clone(),
                format: spec.format,
            };
            let note = self.registry.note(OwnedResource::Directory { mount_point, source })?;
            self.mounts.push((config.clone(), note));
            configs.push(config);
        }
        let mount_points: Vec<PathBuf> = configs.iter().map(|config| config.mount_point.clone()).collect();
        self.daemon = Some(DaemonProcess::start_directories(program, &spec.stack, configs, &self.registry)?);
        let paths = split_directories(mount_points, &spec.stack)?;
        self.daemon()?.tell(&DaemonCommand::SetPace { pace: PacingMode::Modelled })?;
        Ok(paths)
    }

    fn daemon(&self) -> Result<&DaemonProcess, AttachError> {
        self.daemon.as_ref().ok_or_else(|| AttachError::failed("the storage has been detached"))
    }
}

/// Whether this mount is still there.
fn is_mounted(config: &DirectoryConfig) -> bool {
    is_mounted_as(&config.mount_point, &config.source)
}

pub(crate) fn is_mounted_as(mount_point: &Path, source: &str) -> bool {
    mounts::find(mount_point)
        .is_some_and(|mount| mount.filesystem.starts_with("fuse") && mount.source == Path::new(source))
}

impl HeldResource for MountedDirectories {
    fn set_pace(&self, pace: PacingMode) -> Result<(), AttachError> {
        self.daemon()?.tell(&DaemonCommand::SetPace { pace })
    }

    fn begin_measurement(&self, interval_s: f64) -> Result<(), AttachError> {
        self.daemon()?.tell(&DaemonCommand::BeginMeasurement { interval_s })
    }

    fn end_measurement(&self) -> Result<Vec<DeviceActivity>, AttachError> {
        self.daemon()?.end_measurement()
    }

    fn glance(&self) -> Result<Vec<DeviceGlance>, AttachError> {
        self.daemon()?.glance()
    }

    fn layers(&self) -> Result<Vec<LayerActivity>, AttachError> {
        self.daemon()?.layers()
    }

    fn inputs(&self) -> Result<Vec<(String, DeviceInputs)>, AttachError> {
        self.daemon()?.inputs()
    }

    fn daemon_pid(&self) -> Option<u32> {
        self.daemon.as_ref().map(DaemonProcess::pid)
    }

    fn control(&self) -> Option<PathBuf> {
        self.daemon.as_ref().map(DaemonProcess::control)
    }

    fn health(&self) -> Result<(), AttachError> {
        self.daemon()?.health()?;
        match self.mounts.iter().find(|(config, _)| !is_mounted(config)) {
            Some((config, _)) => {
                Err(AttachError::failed(format!("{} was unmounted by someone", config.mount_point.display())))
            }
            None => Ok(()),
        }
    }

    fn detach(&mut self) -> Result<(), AttachError> {
        if let Some(daemon) = self.daemon.as_ref().filter(|_| !self.mounts.is_empty()) {
            daemon.hurry_or_kill(self.hurry_limit);
        }
        let mut lost = None;
        while let Some((config, _)) = self.mounts.last() {
            let place = &config.mount_point;
            if is_mounted(config) {
                // A successful unmount doesn't prove that everything was written; this does. The program learnt that
                // the disk was full when it closed or synced its file.
                let written = mounts::write_out_within(place, self.hurry_limit);
                if let Some(error) = written.err().filter(|error| error.kind() != ErrorKind::StorageFull) {
                    if let (ErrorKind::TimedOut, Some(daemon)) = (error.kind(), &self.daemon) {
                        daemon.kill();
                    }
                    lost.get_or_insert(AttachError::failed(format!(
                        "{} could not write everything out ({error}): unsynced writes are lost",
                        place.display()
                    )));
                }
                let mut outcome = mounts::try_unmount(place, self.hurry_limit);
                if let (Err(mounts::UnmountError::TimedOut), Some(daemon)) = (&outcome, &self.daemon) {
                    // It hangs on the daemon, and continues with errors once that is gone.
                    daemon.kill();
                    outcome = mounts::try_unmount(place, self.hurry_limit);
                }
                if let Err(error) = outcome {
                    // Lost data matters more than the process that keeps the mount.
                    return Err(lost.unwrap_or_else(|| mounts::explain(place, error)));
                }
            }
            if let Some((_, note)) = self.mounts.pop() {
                self.registry.forget(note);
            }
        }
        if let Some(daemon) = &mut self.daemon {
            daemon.stop()?;
            self.daemon = None;
        }
        self.registry.remove_directories(&mut self.made);
        lost.map_or(Ok(()), Err)
    }
}

impl Drop for MountedDirectories {
    fn drop(&mut self) {
        let _ = self.detach();
    }
}
