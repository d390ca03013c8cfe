//! A modelled storage under an unmodified filesystem: a FUSE export, a loop device on each volume's file, and
//! a filesystem on each loop device; or the same on ublk devices, without the first two.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use underlay_record::{DeviceActivity, LayerActivity};
use underlay_storage::paced::PathCost;
use underlay_storage::stack::{DeviceSpec, Pace, StackSpec, VolumeSpec};

use crate::attachment::{AttachError, AttachSpec, Attached, Attachment, Held, split_directories};
use crate::daemon::Transport;
use crate::daemon::control::Command;
use crate::daemon_process::{DAEMON_SUBCOMMAND, DaemonProcess, DaemonProgram};
use crate::filesystem::Filesystem;
use crate::fuse_uring;
use crate::host;
use crate::loop_device::{self, LOOP_BLOCK_BYTES, LoopDevice, QueueSettings};
use crate::missing::Missing;
use crate::mounts;
use crate::overhead;
use crate::registry::{Note, Registry, Resource};
use crate::served::Served;
use crate::ublk::{self, Disk};

/// The attachments `fuse+loop`, over io_uring `fuse-uring+loop`, and `ublk`.
#[derive(Clone, Debug)]
pub struct FuseLoop {
    daemon: DaemonProgram,
    transport: Transport,
    hurry_limit: Duration,
}

/// A change of pace waits for everything under way, which in slow motion may be many seconds.
const HURRY_LIMIT: Duration = Duration::from_secs(60);

impl FuseLoop {
    /// The device daemon is this program, started again with the subcommand `device-daemon`.
    pub fn new() -> Result<FuseLoop, AttachError> {
        let program = std::env::current_exe().map_err(|error| {
            AttachError::failed(format!("could not find this program to start it again: {error}"))
        })?;
        Ok(FuseLoop::with_daemon(program, vec![DAEMON_SUBCOMMAND.into()]))
    }

    /// How requests reach the daemon.
    pub(crate) fn transport(&self) -> Transport {
        self.transport
    }

    /// Another program as the device daemon; `--config FILE` is put behind `daemon_args`. To be recognised by
    /// [`Registry::clean`] it has `device-daemon` as its last argument, or none and the file name
    /// `underlay-device-daemon`.
    pub fn with_daemon(daemon_program: impl Into<PathBuf>, daemon_args: Vec<OsString>) -> FuseLoop {
        let daemon = DaemonProgram { program: daemon_program.into(), arguments: daemon_args };
        FuseLoop { daemon, transport: Transport::DevFuse, hurry_limit: HURRY_LIMIT }
    }

    /// By this way from the kernel to the daemon.
    #[must_use]
    pub fn with_transport(self, transport: Transport) -> FuseLoop {
        FuseLoop { transport, ..self }
    }

    /// How long detaching waits for a daemon that does not answer, or for a filesystem to be written out, before
    /// the daemon is killed; a minute unless told.
    #[must_use]
    pub fn with_hurry_limit(self, hurry_limit: Duration) -> FuseLoop {
        FuseLoop { hurry_limit, ..self }
    }

    /// Attaches the volumes as bare block devices, without filesystems: for measuring the path itself, for
    /// power-cut tests, and for systems that want a device.
    pub fn attach_devices(
        &self,
        stack: &StackSpec,
        registry: &Registry,
    ) -> Result<BlockVolumes, AttachError> {
        self.probe()?;
        check_names(stack)?;
        let path = if stack.has_path() { overhead::path_cost(self, registry)? } else { PathCost::default() };
        self.attach_at(path, stack, registry)
    }

    /// The same by a daemon that dates requests back by `path`.
    pub(crate) fn attach_at(
        &self,
        path: PathCost,
        stack: &StackSpec,
        registry: &Registry,
    ) -> Result<BlockVolumes, AttachError> {
        let mut volumes = BlockVolumes {
            registry: registry.clone(),
            transport: self.transport,
            devices: Vec::new(),
            paths: Vec::new(),
            daemon: Some(DaemonProcess::start(&self.daemon, stack, self.transport, path, registry)?),
            hurry_limit: self.hurry_limit,
        };
        volumes.attach_all(stack)?;
        Ok(volumes)
    }
}

impl Attachment for FuseLoop {
    fn name(&self) -> &'static str {
        match self.transport {
            Transport::DevFuse => "fuse+loop",
            Transport::Uring => "fuse-uring+loop",
            Transport::Ublk => "ublk",
        }
    }

    fn probe(&self) -> Result<(), Missing> {
        host::probe_privileges()?;
        if self.transport == Transport::Ublk {
            return ublk::probe();
        }
        host::probe_fuse()?;
        if !Path::new("/dev/loop-control").exists() {
            return Err(loop_device::loop_missing());
        }
        match self.transport {
            Transport::Uring => fuse_uring::probe(),
            Transport::DevFuse | Transport::Ublk => Ok(()),
        }
    }

    /// The devices stand at the modelled pace when it returns; while the filesystem is made and mounted they
    /// complete at once.
    fn attach(&self, spec: &AttachSpec, registry: &Registry) -> Result<Attached, AttachError> {
        if spec.format {
            spec.filesystem.probe()?;
        }
        check_mount_point(spec)?;
        let mut mounted = MountedVolumes {
            mounts: Vec::new(),
            directories: Vec::new(),
            registry: registry.clone(),
            volumes: self.attach_devices(&spec.stack, registry)?,
        };
        match mounted.mount_all(spec) {
            Ok(paths) => Ok(Attached::new(self.name(), paths, Box::new(mounted))),
            Err(error) => {
                // What can't be taken back stays in the registry; the first error is the one to tell.
                let _ = mounted.detach();
                Err(error)
            }
        }
    }
}

/// A mount point of its own is for a single volume.
pub(crate) fn check_mount_point(spec: &AttachSpec) -> Result<(), AttachError> {
    if spec.mount_point.is_some() && spec.stack.volumes.len() != 1 {
        return Err(AttachError::failed(format!(
            "a storage of {} volumes does not fit on one mount point: each volume needs its own directory",
            spec.stack.volumes.len()
        )));
    }
    Ok(())
}

/// Volumes become file and directory names.
pub(crate) fn check_names(stack: &StackSpec) -> Result<(), AttachError> {
    if stack.volumes.is_empty() {
        return Err(AttachError::failed("the storage has no volume to attach"));
    }
    let mut seen = BTreeSet::new();
    for volume in &stack.volumes {
        let name = volume.name.as_str();
        let fits = !name.is_empty()
            && name.len() <= 255
            && name != "."
            && name != ".."
            && !name.contains(['/', '\0']);
        if !fits {
            return Err(AttachError::failed(format!(
                "'{}' can't name a volume: it must do for a file name",
                name.escape_debug()
            )));
        }
        if !seen.insert(name) {
            return Err(AttachError::failed(format!("two volumes are called '{name}': names must differ")));
        }
    }
    Ok(())
}

/// Whether a volume turns: a disk below it makes it seek, whatever else it is striped over. Kernel and programs
/// treat such a device differently; filesystems choose their allocation by it.
pub(crate) fn is_rotational(volume: &VolumeSpec) -> bool {
    let turns = |device: &DeviceSpec| device.medium.as_ref().is_some_and(|m| m.model.is_rotational());
    volume.devices().into_iter().any(turns)
}

/// The block device of a volume.
enum Device {
    Loop(LoopDevice, Note),
    /// It is its daemon's, and goes with it.
    Ublk(Disk),
}

impl Device {
    fn path(&self) -> &Path {
        match self {
            Device::Loop(device, _) => device.path(),
            Device::Ublk(device) => device.path(),
        }
    }

    fn queue(&self) -> &QueueSettings {
        match self {
            Device::Loop(device, _) => device.queue(),
            Device::Ublk(device) => device.queue(),
        }
    }

    fn is_attached(&self) -> bool {
        match self {
            Device::Loop(device, _) => device.is_attached(),
            Device::Ublk(device) => device.is_attached(),
        }
    }
}

/// The volumes of a storage as block devices. Dropping it takes them away.
pub struct BlockVolumes {
    registry: Registry,
    transport: Transport,
    devices: Vec<Device>,
    paths: Vec<PathBuf>,
    daemon: Option<DaemonProcess>,
    hurry_limit: Duration,
}

impl BlockVolumes {
    fn attach_all(&mut self, stack: &StackSpec) -> Result<(), AttachError> {
        let volumes = self.daemon()?.volumes().to_vec();
        // The daemon serves them in the order of the spec.
        for (volume, spec) in volumes.into_iter().zip(&stack.volumes) {
            if !LOOP_BLOCK_BYTES.is_multiple_of(volume.block_bytes.max(1)) {
                return Err(AttachError::failed(format!(
                    "volume '{}' has blocks of {} bytes, which do not divide {LOOP_BLOCK_BYTES}",
                    volume.name, volume.block_bytes
                )));
            }
            if volume.capacity_bytes < u64::from(LOOP_BLOCK_BYTES) {
                return Err(AttachError::failed(format!(
                    "volume '{}' of {} bytes is smaller than a block of {LOOP_BLOCK_BYTES}",
                    volume.name, volume.capacity_bytes
                )));
            }
            let backing = self.daemon()?.volume_file(&volume.name);
            if self.transport == Transport::Ublk {
                let disk = Disk::behind(&backing, is_rotational(spec))?;
                self.paths.push(disk.path().to_owned());
                self.devices.push(Device::Ublk(disk));
                continue;
            }
            let note = self.registry.note(Resource::Loop { backing: backing.clone() })?;
            match LoopDevice::attach(&backing, is_rotational(spec)) {
                Ok(device) => {
                    self.paths.push(device.path().to_owned());
                    self.devices.push(Device::Loop(device, note));
                }
                Err(error) => {
                    self.registry.forget(note);
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    fn daemon(&self) -> Result<&DaemonProcess, AttachError> {
        self.daemon.as_ref().ok_or_else(|| AttachError::failed("the storage has been detached"))
    }

    /// `/dev/loop3`, one for each volume in the order of the spec.
    pub fn paths(&self) -> &[PathBuf] {
        &self.paths
    }

    /// The devices' queues as they are set, in the same order.
    pub fn queues(&self) -> Vec<QueueSettings> {
        self.devices.iter().map(|device| device.queue().clone()).collect()
    }

    pub fn daemon_pid(&self) -> Option<u32> {
        self.daemon.as_ref().map(DaemonProcess::pid)
    }

    /// The handle to the devices' faults.
    pub fn served(&self) -> Option<Served> {
        self.daemon.as_ref().map(|daemon| Served::by_control(daemon.control()))
    }

    /// Returns when the pace is in force.
    pub fn set_pace(&self, pace: Pace) -> Result<(), AttachError> {
        self.daemon()?.tell(&Command::SetPace { pace })
    }

    /// See [`Attached::begin_measurement`].
    pub fn begin_measurement(&self, interval_s: f64) -> Result<(), AttachError> {
        self.daemon()?.tell(&Command::BeginMeasurement { interval_s })
    }

    /// See [`Attached::end_measurement`].
    pub fn end_measurement(&self) -> Result<Vec<DeviceActivity>, AttachError> {
        self.daemon()?.end_measurement()
    }

    /// `Err` when the daemon has ended or a loop device was taken away.
    pub fn health(&self) -> Result<(), AttachError> {
        self.daemon()?.health()?;
        match self.devices.iter().find(|device| !device.is_attached()) {
            Some(device) => {
                Err(AttachError::failed(format!("{} was detached by someone", device.path().display())))
            }
            None => Ok(()),
        }
    }

    fn kill_daemon(&self) {
        if let Some(daemon) = &self.daemon {
            daemon.kill();
        }
    }

    /// Clears the loop devices and ends the daemon; again does nothing.
    pub fn detach(&mut self) -> Result<(), AttachError> {
        let mounted = mounts::all();
        if let Some(mount) =
            mounted.iter().find(|mount| self.paths.contains(&mount.source) && !self.devices.is_empty())
        {
            return Err(AttachError::failed(format!(
                "{} is still mounted on {}: unmount it and try again",
                mount.source.display(),
                mount.mount_point.display()
            )));
        }
        if let Some(daemon) = self.daemon.as_ref().filter(|_| !self.devices.is_empty()) {
            // Clearing a device writes out what the page cache holds for it, and waits for that.
            daemon.hurry_or_kill(self.hurry_limit);
        }
        while let Some(device) = self.devices.last_mut() {
            if let Device::Loop(device, _) = device {
                device.detach()?;
            }
            if let Some(Device::Loop(_, note)) = self.devices.pop() {
                self.registry.forget(note);
            }
        }
        if let Some(daemon) = &mut self.daemon {
            daemon.stop()?;
            self.daemon = None;
        }
        Ok(())
    }
}

impl Drop for BlockVolumes {
    fn drop(&mut self) {
        let _ = self.detach();
    }
}

/// Volumes with their filesystems mounted. Fields are dropped in this order: mounts before devices.
struct MountedVolumes {
    mounts: Vec<(PathBuf, Note)>,
    directories: Vec<(PathBuf, Note)>,
    registry: Registry,
    volumes: BlockVolumes,
}

impl MountedVolumes {
    fn mount_all(&mut self, spec: &AttachSpec) -> Result<Vec<PathBuf>, AttachError> {
        self.volumes.set_pace(Pace::Immediate)?;
        let infos = self.volumes.daemon()?.volumes().to_vec();
        let mut paths = Vec::new();
        for (index, info) in infos.iter().enumerate() {
            spec.filesystem.check_capacity(&info.name, info.capacity_bytes)?;
            let wanted = spec.mount_point.clone().unwrap_or_else(|| spec.mount_root.join(&info.name));
            let (mount_point, made) = mounts::empty_directory(&wanted, &self.registry)?;
            self.directories.extend(made);
            let device = self.volumes.paths[index].clone();
            if spec.format {
                spec.filesystem.make(&device)?;
            }
            let backing = self.volumes.daemon()?.volume_file(&info.name);
            self.mount(spec.filesystem, &device, &mount_point, backing)?;
            paths.push(mount_point);
        }
        let paths = split_directories(paths, &spec.stack)?;
        self.volumes.set_pace(Pace::Modelled)?;
        Ok(paths)
    }

    fn mount(
        &mut self,
        filesystem: Filesystem,
        device: &Path,
        at: &Path,
        backing: PathBuf,
    ) -> Result<(), AttachError> {
        let note = self.registry.note(Resource::Mount { mount_point: at.to_owned(), backing })?;
        match filesystem.mount(device, at) {
            Ok(()) => {
                self.mounts.push((at.to_owned(), note));
                Ok(())
            }
            Err(error) => {
                self.registry.forget(note);
                Err(error)
            }
        }
    }
}

impl Held for MountedVolumes {
    fn set_pace(&self, pace: Pace) -> Result<(), AttachError> {
        self.volumes.set_pace(pace)
    }

    fn begin_measurement(&self, interval_s: f64) -> Result<(), AttachError> {
        self.volumes.begin_measurement(interval_s)
    }

    fn end_measurement(&self) -> Result<Vec<DeviceActivity>, AttachError> {
        self.volumes.end_measurement()
    }

    fn layers(&self) -> Result<Vec<LayerActivity>, AttachError> {
        self.volumes.daemon()?.layers()
    }

    fn daemon_pid(&self) -> Option<u32> {
        self.volumes.daemon_pid()
    }

    fn control(&self) -> Option<PathBuf> {
        self.volumes.daemon.as_ref().map(DaemonProcess::control)
    }

    fn health(&self) -> Result<(), AttachError> {
        self.volumes.health()?;
        match self.mounts.iter().find(|(path, _)| mounts::at(path).is_none()) {
            Some((path, _)) => {
                Err(AttachError::failed(format!("{} was unmounted by someone", path.display())))
            }
            None => Ok(()),
        }
    }

    fn detach(&mut self) -> Result<(), AttachError> {
        let limit = self.volumes.hurry_limit;
        if let Some(daemon) = self.volumes.daemon.as_ref().filter(|_| !self.mounts.is_empty()) {
            // Without a daemon there is nothing to hurry, and the write-out below tells what that means.
            daemon.hurry_or_kill(limit);
        }
        let mut lost = None;
        while let Some((path, _)) = self.mounts.last() {
            // Unmounting doesn't tell whether everything was written; this does.
            if let Err(error) = mounts::write_out_within(path, limit) {
                if error.kind() == std::io::ErrorKind::TimedOut {
                    self.volumes.kill_daemon();
                }
                lost.get_or_insert(AttachError::failed(format!(
                    "{} could not write everything out ({error}): what was not flushed before is lost",
                    path.display()
                )));
            }
            let mut outcome = mounts::try_unmount(path, limit);
            if matches!(outcome, Err(mounts::UnmountError::TimedOut)) {
                // It hangs on the device, and goes on with errors once that is gone.
                self.volumes.kill_daemon();
                outcome = mounts::try_unmount(path, limit);
            }
            outcome.map_err(|error| mounts::explain(path, error))?;
            if let Some((_, note)) = self.mounts.pop() {
                self.registry.forget(note);
            }
        }
        self.volumes.detach()?;
        self.registry.remove_directories(&mut self.directories);
        lost.map_or(Ok(()), Err)
    }
}

impl Drop for MountedVolumes {
    fn drop(&mut self) {
        let _ = self.detach();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stack(names: &[&str]) -> StackSpec {
        let volume = |name: &&str| VolumeSpec::striped(*name, Vec::new(), 0);
        StackSpec { volumes: names.iter().map(volume).collect(), dilation: 1.0, seed: 1 }
    }

    #[test]
    fn names_that_would_not_do_for_files_are_refused() {
        for bad in ["", ".", "..", "a/b", "a\0b"] {
            assert!(check_names(&stack(&[bad])).is_err(), "{bad:?}");
        }
        assert!(check_names(&stack(&[])).unwrap_err().to_string().contains("no volume"));
        assert!(check_names(&stack(&["a", "a"])).unwrap_err().to_string().contains("differ"));
        check_names(&stack(&["data", "log 2", "é"])).unwrap();
    }
}
