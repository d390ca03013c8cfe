//! Modelled storage under an unmodified file system: a FUSE export, a loop device on each volume's file, and a file
//! system on each loop device. Or the same on ublk devices, without the first two.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use underlay_record::{DeviceActivity, DeviceGlance, DeviceInputs, LayerActivity, PathRecord};
use underlay_storage::paced::PathCost;
use underlay_storage::stack::{PacingMode, StackSpec};

use crate::attachments::attachment::{
    AttachSpec, AttachedStorage, Attachment, HeldResource, check_mount_point, check_names, split_directories,
};
use crate::attachments::block_volumes::BlockVolumes;
use crate::attachments::filesystem::FilesystemKind;
use crate::attachments::loop_device;
use crate::machine::error::AttachError;
use crate::machine::missing::MissingCapability;
use crate::machine::mounts;
use crate::machine::privileges::{probe_fuse, probe_privileges};
use crate::machine::processors::Processors;
use crate::measurement::path_cost::path_cost;
use crate::serving::daemon::DaemonTransport;
use crate::serving::daemon_process::{DAEMON_SUBCOMMAND, DaemonProcess, DaemonProgram};
use crate::serving::daemon_watchdog::run_watched;
use crate::serving::fuse_uring;
use crate::serving::ublk;
use crate::undo::registry::{OwnedResource, RegistryNote, ResourceRegistry};

/// The attachments `fuse+loop`, over io_uring `fuse-uring+loop`, and `ublk`.
#[derive(Clone, Debug)]
pub struct BlockAttachment {
    daemon: DaemonProgram,
    transport: DaemonTransport,
    hurry_limit: Duration,
}

/// A change of pace waits for everything in flight, which in slow motion may be many seconds.
const HURRY_LIMIT: Duration = Duration::from_secs(60);

impl BlockAttachment {
    /// The device daemon is this program, started again with the subcommand `device-daemon`.
    ///
    /// # Errors
    /// When this program can't be found.
    pub fn new() -> Result<BlockAttachment, AttachError> {
        let program = std::env::current_exe().map_err(|error| {
            AttachError::failed(format!("could not find this program to start it again: {error}"))
        })?;
        Ok(BlockAttachment::with_daemon(program, vec![DAEMON_SUBCOMMAND.into()]))
    }

    /// The better of the two transports through FUSE that this host has.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub(crate) fn best() -> Result<BlockAttachment, AttachError> {
        let attachment = BlockAttachment::new()?;
        let over_uring = attachment.clone().with_transport(DaemonTransport::Uring);
        Ok(if over_uring.probe().is_ok() { over_uring } else { attachment })
    }

    /// Uses another program as the device daemon; `--config FILE` follows `daemon_args`. For [`crate::cleanup::clean`]
    /// to recognise it, its last argument must be `device-daemon`, or it has no arguments and the file name
    /// `underlay-device-daemon`.
    pub fn with_daemon(daemon_program: impl Into<PathBuf>, daemon_args: Vec<OsString>) -> BlockAttachment {
        let daemon = DaemonProgram { program: daemon_program.into(), arguments: daemon_args };
        BlockAttachment { daemon, transport: DaemonTransport::DevFuse, hurry_limit: HURRY_LIMIT }
    }

    /// Selects the transport from the kernel to the daemon.
    #[must_use]
    pub fn with_transport(self, transport: DaemonTransport) -> BlockAttachment {
        BlockAttachment { transport, ..self }
    }

    /// How long detaching waits for a daemon that does not answer, or for a file system to be written out, before it
    /// kills the daemon. The default is a minute.
    #[must_use]
    pub fn with_hurry_limit(self, hurry_limit: Duration) -> BlockAttachment {
        BlockAttachment { hurry_limit, ..self }
    }

    /// Attaches the volumes as bare block devices, without file systems: to measure the path itself, for power-cut
    /// tests, and for systems that need a device.
    ///
    /// # Errors
    /// When the host lacks something, or the daemon does not start.
    pub fn attach_devices(
        &self,
        stack: &StackSpec,
        registry: &ResourceRegistry,
    ) -> Result<BlockVolumes, AttachError> {
        self.probe()?;
        check_names(stack)?;
        let path = if stack.has_path() { self.path_cost(registry)? } else { PathCost::default() };
        BlockVolumes::attach(&self.daemon, self.transport, path, self.hurry_limit, stack, registry)
    }

    /// The time of a request on its path to a device and back, by this attachment, in wall time.
    pub(crate) fn path_cost(&self, registry: &ResourceRegistry) -> Result<PathCost, AttachError> {
        path_cost(&self.daemon, self.transport, self.hurry_limit, registry)
    }
}

impl Attachment for BlockAttachment {
    fn name(&self) -> &'static str {
        match self.transport {
            DaemonTransport::DevFuse => "fuse+loop",
            DaemonTransport::Uring => "fuse-uring+loop",
            DaemonTransport::Ublk => "ublk",
        }
    }

    fn probe(&self) -> Result<(), MissingCapability> {
        probe_privileges()?;
        if self.transport == DaemonTransport::Ublk {
            return ublk::probe();
        }
        probe_fuse()?;
        if !Path::new("/dev/loop-control").exists() {
            return Err(loop_device::loop_missing());
        }
        match self.transport {
            DaemonTransport::Uring => fuse_uring::probe(),
            DaemonTransport::DevFuse | DaemonTransport::Ublk => Ok(()),
        }
    }

    /// When this returns, the devices run at the modelled pace. While the file system is created and mounted they
    /// complete at once.
    fn attach(&self, spec: &AttachSpec, registry: &ResourceRegistry) -> Result<AttachedStorage, AttachError> {
        if let Some(filesystem) = spec.filesystem.filter(|_| spec.format) {
            filesystem.probe()?;
        }
        check_mount_point(spec)?;
        let mut mounted = MountedVolumes {
            mounts: Vec::new(),
            directories: Vec::new(),
            registry: registry.clone(),
            is_bare: spec.filesystem.is_none(),
            volumes: self.attach_devices(&spec.stack, registry)?,
        };
        match run_watched(mounted.volumes.watchdog(), || mounted.mount_all(spec)) {
            Ok(paths) => Ok(AttachedStorage::new(self.name(), paths, Box::new(mounted))),
            Err(error) => {
                // Steps that can't be undone stay in the registry; the first error counts.
                let _ = mounted.detach();
                Err(error)
            }
        }
    }
}

/// Volumes with their filesystems mounted. Fields are dropped in this order: mounts before devices.
struct MountedVolumes {
    mounts: Vec<(PathBuf, RegistryNote)>,
    directories: Vec<(PathBuf, RegistryNote)>,
    registry: ResourceRegistry,
    /// Programs have the devices themselves, and nothing has written out the data that they left in memory.
    is_bare: bool,
    volumes: BlockVolumes,
}

impl MountedVolumes {
    fn mount_all(&mut self, spec: &AttachSpec) -> Result<Vec<PathBuf>, AttachError> {
        let Some(filesystem) = spec.filesystem else {
            if spec.stack.volumes.iter().any(|volume| volume.directories > 1) {
                return Err(AttachError::failed(
                    "a volume without a file system can't be split into directories",
                ));
            }
            return Ok(self.volumes.paths().to_vec());
        };
        self.volumes.set_pace(PacingMode::Immediate)?;
        let infos = self.volumes.daemon()?.volumes().to_vec();
        let mut paths = Vec::new();
        for (index, info) in infos.iter().enumerate() {
            filesystem.check_capacity(&info.name, info.capacity_bytes)?;
            let wanted = spec.mount_point.clone().unwrap_or_else(|| spec.mount_root.join(&info.name));
            let (mount_point, made) = mounts::empty_directory(&wanted, &self.registry)?;
            self.directories.extend(made);
            let device = self.volumes.paths()[index].clone();
            if spec.format {
                filesystem.make(&device)?;
            }
            let backing = self.volumes.daemon()?.volume_file(&info.name);
            self.mount(filesystem, &device, &mount_point, backing)?;
            paths.push(mount_point);
        }
        let paths = split_directories(paths, &spec.stack)?;
        self.volumes.set_pace(PacingMode::Modelled)?;
        Ok(paths)
    }

    fn mount(
        &mut self,
        filesystem: FilesystemKind,
        device: &Path,
        mount_point: &Path,
        backing: PathBuf,
    ) -> Result<(), AttachError> {
        let note =
            self.registry.note(OwnedResource::Mount { mount_point: mount_point.to_owned(), backing })?;
        match filesystem.mount(device, mount_point) {
            Ok(()) => {
                self.mounts.push((mount_point.to_owned(), note));
                Ok(())
            }
            Err(error) => {
                self.registry.forget(note);
                Err(error)
            }
        }
    }
}

impl HeldResource for MountedVolumes {
    fn set_pace(&self, pace: PacingMode) -> Result<(), AttachError> {
        self.volumes.set_pace(pace)
    }

    fn begin_measurement(&self, interval_s: f64) -> Result<(), AttachError> {
        self.volumes.begin_measurement(interval_s)
    }

    fn end_measurement(&self) -> Result<Vec<DeviceActivity>, AttachError> {
        self.volumes.end_measurement()
    }

    fn glance(&self) -> Result<Vec<DeviceGlance>, AttachError> {
        self.volumes.daemon()?.glance()
    }

    fn path_records(&self) -> Vec<PathRecord> {
        self.volumes.path_records()
    }

    fn watch_for_programs_on(&self, cpus: &Processors) {
        self.volumes.watch_for_programs_on(cpus);
    }

    fn layers(&self) -> Result<Vec<LayerActivity>, AttachError> {
        self.volumes.daemon()?.layers()
    }

    fn inputs(&self) -> Result<Vec<(String, DeviceInputs)>, AttachError> {
        self.volumes.daemon()?.inputs()
    }

    fn daemon_pid(&self) -> Option<u32> {
        self.volumes.daemon_pid()
    }

    fn control(&self) -> Option<PathBuf> {
        self.volumes.daemon.as_ref().map(DaemonProcess::control)
    }

    fn health(&self) -> Result<(), AttachError> {
        self.volumes.health()?;
        match self.mounts.iter().find(|(path, _)| mounts::find(path).is_none()) {
            Some((path, _)) => {
                Err(AttachError::failed(format!("{} was unmounted by someone", path.display())))
            }
            None => Ok(()),
        }
    }

    fn detach(&mut self) -> Result<(), AttachError> {
        let limit = self.volumes.hurry_limit;
        if self.is_bare || !self.mounts.is_empty() {
            // Without a daemon there is nothing to hurry; the write-out below shows what that means.
            self.volumes.hurry_or_kill(limit);
        }
        let mut lost = None;
        if std::mem::take(&mut self.is_bare) {
            lost = self.volumes.write_out().err();
        }
        while let Some((path, _)) = self.mounts.last() {
            // A successful unmount doesn't prove that everything was written; this does.
            if let Err(error) = mounts::write_out_within(path, limit) {
                if error.kind() == std::io::ErrorKind::TimedOut {
                    self.volumes.kill_daemon();
                }
                lost.get_or_insert(AttachError::failed(format!(
                    "{} could not write everything out ({error}): unflushed writes are lost",
                    path.display()
                )));
            }
            let mut outcome = mounts::try_unmount(path, limit);
            if matches!(outcome, Err(mounts::UnmountError::TimedOut)) {
                // It hangs on the device, and continues with errors once that is gone.
                self.volumes.kill_daemon();
                outcome = mounts::try_unmount(path, limit);
            }
            if let Err(error) = outcome {
                // Lost data matters more than the process that keeps the mount.
                return Err(lost.unwrap_or_else(|| mounts::explain(path, error)));
            }
            if let Some((_, note)) = self.mounts.pop() {
                self.registry.forget(note);
            }
        }
        if let Err(error) = self.volumes.detach() {
            return Err(lost.unwrap_or(error));
        }
        self.registry.remove_directories(&mut self.directories);
        lost.map_or(Ok(()), Err)
    }
}

impl Drop for MountedVolumes {
    fn drop(&mut self) {
        let _ = self.detach();
    }
}
