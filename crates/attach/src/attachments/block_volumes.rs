//! The volumes of a device daemon as block devices: a loop device on each exported file, or a ublk device.

use std::path::{Path, PathBuf};
use std::time::Duration;

use underlay_record::{DeviceActivity, PathRecord};
use underlay_storage::layers::sectors::SECTOR_BYTES;
use underlay_storage::paced::PathCost;
use underlay_storage::stack::{PacingMode, StackSpec};

use crate::attachments::loop_device::{LOOP_BLOCK_BYTES, LoopDevice, QueueSettings};
use crate::machine::error::AttachError;
use crate::machine::mounts;
use crate::machine::processors::Processors;
use crate::measurement::path_watch::{PathWatch, WatchedPath};
use crate::serving::daemon::control::DaemonCommand;
use crate::serving::daemon::{DaemonTransport, PROBE_FILE};
use crate::serving::daemon_process::{DaemonProcess, DaemonProgram, HurryOutcome};
use crate::serving::daemon_watchdog::{DaemonWatchdog, run_watched};
use crate::serving::served::ServedStorage;
use crate::serving::ublk::UblkDisk;
use crate::undo::registry::{OwnedResource, RegistryNote, ResourceRegistry};

/// The block device of a volume.
enum VolumeDevice {
    Loop(LoopDevice, RegistryNote),
    /// It belongs to its daemon, and goes with it.
    Ublk(UblkDisk),
}

impl VolumeDevice {
    fn path(&self) -> &Path {
        match self {
            VolumeDevice::Loop(device, _) => device.path(),
            VolumeDevice::Ublk(device) => device.path(),
        }
    }

    fn queue(&self) -> &QueueSettings {
        match self {
            VolumeDevice::Loop(device, _) => device.queue(),
            VolumeDevice::Ublk(device) => device.queue(),
        }
    }

    fn is_attached(&self) -> bool {
        match self {
            VolumeDevice::Loop(device, _) => device.is_attached(),
            VolumeDevice::Ublk(device) => device.is_attached(),
        }
    }
}

/// The volumes of a storage configuration as block devices. Dropping it removes them.
pub struct BlockVolumes {
    registry: ResourceRegistry,
    transport: DaemonTransport,
    devices: Vec<VolumeDevice>,
    paths: Vec<PathBuf>,
    pub(crate) daemon: Option<DaemonProcess>,
    pub(crate) hurry_limit: Duration,
    /// Present once all devices are.
    watch: Option<PathWatch>,
    /// Data that could not be written out, until it has been reported.
    lost: Option<AttachError>,
}

impl BlockVolumes {
    /// Starts a daemon that backdates requests by `path`, and makes a block device for each of its volumes.
    pub(crate) fn attach(
        program: &DaemonProgram,
        transport: DaemonTransport,
        path: PathCost,
        hurry_limit: Duration,
        stack: &StackSpec,
        registry: &ResourceRegistry,
    ) -> Result<BlockVolumes, AttachError> {
        let mut volumes = BlockVolumes {
            registry: registry.clone(),
            transport,
            devices: Vec::new(),
            paths: Vec::new(),
            daemon: Some(DaemonProcess::start(program, stack, transport, path, registry)?),
            hurry_limit,
            watch: None,
            lost: None,
        };
        run_watched(volumes.watchdog(), || volumes.attach_all(stack))?;
        volumes.start_watching(stack, path)?;
        Ok(volumes)
    }

    pub(crate) fn watchdog(&self) -> Option<DaemonWatchdog> {
        self.daemon.as_ref()?.watchdog(self.hurry_limit)
    }

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
            if self.transport == DaemonTransport::Ublk {
                let disk = UblkDisk::from_link(&backing, spec.is_rotational())?;
                self.paths.push(disk.path().to_owned());
                self.devices.push(VolumeDevice::Ublk(disk));
                continue;
            }
            let note = self.registry.note(OwnedResource::Loop { backing: backing.clone() })?;
            match LoopDevice::attach(&backing, volume.block_bytes.max(SECTOR_BYTES), spec.is_rotational()) {
                Ok(device) => {
                    self.paths.push(device.path().to_owned());
                    self.devices.push(VolumeDevice::Loop(device, note));
                }
                Err(error) => {
                    self.registry.forget(note);
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    fn start_watching(&mut self, stack: &StackSpec, path: PathCost) -> Result<(), AttachError> {
        let daemon = self.daemon()?;
        let names = daemon.volumes().iter().map(|volume| volume.name.clone());
        let watched = WatchedPath {
            control: daemon.control(),
            volumes: names.zip(self.paths.iter().cloned()).collect(),
            probe: (self.transport != DaemonTransport::Ublk).then(|| daemon.volume_file(PROBE_FILE)),
            dilation: stack.dilation,
            path: stack.has_path().then_some(path),
        };
        self.watch = Some(PathWatch::start(watched)?);
        Ok(())
    }

    pub(crate) fn daemon(&self) -> Result<&DaemonProcess, AttachError> {
        self.daemon.as_ref().ok_or_else(|| AttachError::failed("the storage has been detached"))
    }

    /// `/dev/loop3`, one for each volume in the order of the spec.
    pub fn paths(&self) -> &[PathBuf] {
        &self.paths
    }

    /// The effective queue settings of the devices, in the same order.
    pub fn queues(&self) -> Vec<QueueSettings> {
        self.devices.iter().map(|device| device.queue().clone()).collect()
    }

    pub fn daemon_pid(&self) -> Option<u32> {
        self.daemon.as_ref().map(DaemonProcess::pid)
    }

    /// The handle to the devices' faults.
    pub fn served(&self) -> Option<ServedStorage> {
        self.daemon.as_ref().map(|daemon| ServedStorage::from_control(daemon.control()))
    }

    /// Returns when the pace is in effect.
    ///
    /// # Errors
    /// When the daemon does not answer.
    pub fn set_pace(&self, pace: PacingMode) -> Result<(), AttachError> {
        self.daemon()?.tell(&DaemonCommand::SetPace { pace })?;
        if let Some(watch) = &self.watch {
            watch.set_modelled(pace == PacingMode::Modelled);
        }
        Ok(())
    }

    /// See [`crate::AttachedStorage::begin_measurement`].
    ///
    /// # Errors
    /// When the daemon does not answer.
    pub fn begin_measurement(&self, interval_s: f64) -> Result<(), AttachError> {
        self.daemon()?.tell(&DaemonCommand::BeginMeasurement { interval_s })?;
        self.watch.as_ref().map_or(Ok(()), PathWatch::begin)
    }

    /// See [`crate::AttachedStorage::end_measurement`].
    ///
    /// # Errors
    /// When the daemon does not answer.
    pub fn end_measurement(&self) -> Result<Vec<DeviceActivity>, AttachError> {
        // At the edge itself, since reporting all devices' activity takes a moment.
        self.watch.as_ref().map_or(Ok(()), PathWatch::end)?;
        self.daemon()?.end_measurement()
    }

    /// See [`crate::AttachedStorage::watch_for_programs_on`].
    pub fn watch_for_programs_on(&self, cpus: &Processors) {
        if let Some(watch) = &self.watch {
            watch.stand_for_programs_on(cpus);
        }
    }

    /// See [`crate::AttachedStorage::path_records`].
    pub fn path_records(&self) -> Vec<PathRecord> {
        self.watch.as_ref().map_or_else(Vec::new, PathWatch::found)
    }

    /// `Err` when the daemon has ended or a loop device was taken away.
    ///
    /// # Errors
    /// When a device is gone, or its daemon.
    pub fn health(&self) -> Result<(), AttachError> {
        self.daemon()?.health()?;
        match self.devices.iter().find(|device| !device.is_attached()) {
            Some(device) => {
                Err(AttachError::failed(format!("{} was detached by someone", device.path().display())))
            }
            None => Ok(()),
        }
    }

    /// Writes out the page cache of the devices. Our own handles keep the kernel from doing so when the last program
    /// closes a device. Where there is a file system, unmounting has left nothing to write.
    ///
    /// # Errors
    /// When a device could not accept everything.
    pub(crate) fn write_out(&self) -> Result<(), AttachError> {
        for path in self.devices.iter().map(VolumeDevice::path) {
            self.run_with_watchdog(|| mounts::write_out_device(path)).map_err(|error| {
                AttachError::failed(format!(
                    "{} could not write everything out ({error}): unflushed writes are lost",
                    path.display()
                ))
            })?;
        }
        Ok(())
    }

    /// Fast-forwards requests in flight that are no longer needed. A daemon that takes longer than `limit` is killed.
    pub(crate) fn hurry_or_kill(&self, limit: Duration) -> HurryOutcome {
        if let Some(watch) = &self.watch {
            // Its probes no longer wait for the time of a modelled device.
            watch.set_modelled(false);
        }
        self.daemon.as_ref().map_or(HurryOutcome::Ended, |daemon| daemon.hurry_or_kill(limit))
    }

    /// Runs a call that waits for the devices in the kernel: a daemon that hangs meanwhile is killed.
    pub(crate) fn run_with_watchdog<T>(&self, wait: impl FnOnce() -> T) -> T {
        run_watched(self.watchdog(), wait)
    }

    pub(crate) fn kill_daemon(&self) {
        if let Some(daemon) = &self.daemon {
            daemon.kill();
        }
    }

    /// Clears the loop devices and ends the daemon; a second call does nothing.
    ///
    /// # Errors
    /// When a device is still in use, or something was not flushed.
    pub fn detach(&mut self) -> Result<(), AttachError> {
        let mounted = mounts::all();
        if let Some(mount) =
            mounted.iter().find(|mount| self.paths.contains(&mount.source) && !self.devices.is_empty())
        {
            return Err(AttachError::InUse(format!(
                "{} is still mounted on {}: unmount it and try again",
                mount.source.display(),
                mount.mount_point.display()
            )));
        }
        // Clearing a device writes out its page cache, and waits for that.
        let outcome = match self.devices.is_empty() {
            true => HurryOutcome::Ended,
            false => self.hurry_or_kill(self.hurry_limit),
        };
        // For devices used without a file system. If the daemon has already ended, this is known, and its devices can't
        // write.
        let lost = self.write_out().err().filter(|_| outcome != HurryOutcome::Ended);
        self.lost = self.lost.take().or(lost);
        // Its thread may be in the middle of a request.
        if let Some(mut watch) = self.watch.take() {
            self.run_with_watchdog(|| watch.stop());
        }
        while let Some(device) = self.devices.pop() {
            let VolumeDevice::Loop(mut device, note) = device else { continue };
            if let Err(error) = self.run_with_watchdog(|| device.detach()) {
                self.devices.push(VolumeDevice::Loop(device, note));
                return Err(error);
            }
            self.registry.forget(note);
        }
        if let Some(daemon) = &mut self.daemon {
            daemon.stop()?;
            self.daemon = None;
        }
        // Reported after everything else is done, since a second call does nothing.
        self.lost.take().map_or(Ok(()), Err)
    }
}

impl Drop for BlockVolumes {
    fn drop(&mut self) {
        let _ = self.detach();
    }
}
