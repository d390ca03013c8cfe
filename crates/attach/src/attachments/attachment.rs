//! The contract of everything that gives a storage configuration to a program.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use underlay_record::{DeviceActivity, DeviceGlance, DeviceInputs, LayerActivity, PathRecord};
use underlay_storage::stack::{PacingMode, StackSpec};

use crate::attachments::dirty_limit::DirtyLimits;
use crate::attachments::filesystem::FilesystemKind;
use crate::attachments::read_ahead::ReadAhead;
use crate::machine::error::AttachError;
use crate::machine::missing::MissingCapability;
use crate::machine::processes::ProcessId;
use crate::machine::processors::Processors;
use crate::serving::daemon::PROBE_FILE;
use crate::serving::daemon_watchdog::{DaemonWatchdog, run_watched};
use crate::undo::registry::ResourceRegistry;

/// A storage configuration to attach, and its location.
#[derive(Clone, Debug)]
pub struct AttachSpec {
    pub stack: StackSpec,
    /// `None` for the block devices themselves, where the attachment has some.
    pub filesystem: Option<FilesystemKind>,
    /// Each volume is mounted in a directory of its name below this one, which is created if it is missing.
    pub mount_root: PathBuf,
    /// Makes a file system on each volume first. When false, the volumes' backing store must hold one already.
    pub format: bool,
    /// Mounts the only volume here instead of below `mount_root`.
    pub mount_point: Option<PathBuf>,
}

/// One way of giving a storage configuration to a program.
pub trait Attachment: Send + Sync {
    /// Its name in messages and records: `fuse+loop`, `directory`.
    fn name(&self) -> &'static str;

    /// Whether this host supports it. Changes nothing.
    fn probe(&self) -> Result<(), MissingCapability>;

    /// Attaches the storage. On an error nothing is left behind, except that anything that could not be undone stays in
    /// the registry for `underlay clean`.
    fn attach(&self, spec: &AttachSpec, registry: &ResourceRegistry) -> Result<AttachedStorage, AttachError>;
}

/// Creates the directories of volumes that are shown as several; `paths` are the locations of the volumes.
pub(crate) fn split_directories(paths: Vec<PathBuf>, stack: &StackSpec) -> Result<Vec<PathBuf>, AttachError> {
    let mut split = Vec::new();
    for (path, volume) in paths.into_iter().zip(&stack.volumes) {
        if volume.directories <= 1 {
            split.push(path);
            continue;
        }
        for number in 0..volume.directories {
            let directory = path.join(format!("dir-{number}"));
            match std::fs::create_dir(&directory) {
                // A link that a volume brought along would lead out of it.
                Err(_) if std::fs::symlink_metadata(&directory).is_ok_and(|metadata| metadata.is_dir()) => {}
                made => made.map_err(|error| AttachError::io("make the directory", &directory, error))?,
            }
            split.push(directory);
        }
    }
    Ok(split)
}

/// For attachments that have no block devices to show.
///
/// # Errors
/// When the spec asks for them.
pub(crate) fn needs_filesystem(name: &str, spec: &AttachSpec) -> Result<FilesystemKind, AttachError> {
    spec.filesystem.ok_or_else(|| {
        AttachError::failed(format!(
            "the attachment {name} shows no block devices: run as root on a host with loop devices, or give the storage a file system"
        ))
    })
}

/// An explicit mount point is for a single volume.
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
            && name != PROBE_FILE
            && !name.contains(['/', '\0']);
        if !fits {
            return Err(AttachError::failed(format!(
                "'{}' can't be a volume's name: it must be a valid file name",
                name.escape_debug()
            )));
        }
        if !seen.insert(name) {
            return Err(AttachError::failed(format!("two volumes are called '{name}': names must differ")));
        }
    }
    Ok(())
}

/// The resources that an implementation keeps alive behind an [`AttachedStorage`].
/// How long a device daemon may be silent while something waits for it.
const SILENCE_LIMIT: Duration = Duration::from_secs(60);

pub(crate) trait HeldResource: Send + Sync {
    fn set_pace(&self, pace: PacingMode) -> Result<(), AttachError>;
    fn begin_measurement(&self, interval_s: f64) -> Result<(), AttachError>;
    fn end_measurement(&self) -> Result<Vec<DeviceActivity>, AttachError>;
    fn glance(&self) -> Result<Vec<DeviceGlance>, AttachError>;
    fn path_records(&self) -> Vec<PathRecord> {
        Vec::new()
    }
    fn watch_for_programs_on(&self, _cpus: &Processors) {}
    fn layers(&self) -> Result<Vec<LayerActivity>, AttachError> {
        Ok(Vec::new())
    }
    fn inputs(&self) -> Result<Vec<(String, DeviceInputs)>, AttachError> {
        Ok(Vec::new())
    }
    fn daemon_pid(&self) -> Option<u32>;
    /// The socket of the daemon that serves the devices.
    fn control(&self) -> Option<PathBuf> {
        None
    }
    fn health(&self) -> Result<(), AttachError>;
    /// Whether it uses devices that were made for it, which may therefore be configured for it.
    fn has_own_devices(&self) -> bool {
        true
    }
    /// Removes everything that is still there; a second call does nothing.
    fn detach(&mut self) -> Result<(), AttachError>;
}

/// The limits that [`AttachedStorage::limit_dirty`] has set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirtyLimit {
    pub devices: u32,
    /// For each of them.
    pub device_bytes: u64,
}

/// Storage in use. Dropping it detaches it, but only [`AttachedStorage::detach`] reports errors.
pub struct AttachedStorage {
    name: &'static str,
    paths: Vec<PathBuf>,
    dirty_limits: Option<DirtyLimits>,
    read_ahead: Option<ReadAhead>,
    held: Box<dyn HeldResource>,
}

impl std::fmt::Debug for AttachedStorage {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("AttachedStorage")
            .field("name", &self.name)
            .field("paths", &self.paths)
            .finish()
    }
}

impl AttachedStorage {
    pub(crate) fn new(name: &'static str, paths: Vec<PathBuf>, resource: Box<dyn HeldResource>) -> Self {
        AttachedStorage { name, paths, dirty_limits: None, read_ahead: None, held: resource }
    }

    /// The attachment's name.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// One directory per volume, or as many as it is split into, in the order of the spec; for real paths, one per
    /// path.
    pub fn paths(&self) -> &[PathBuf] {
        &self.paths
    }

    /// Runs a call that waits in the kernel for this storage's devices. A daemon that does not answer for a minute
    /// meanwhile is killed, so that the wait ends with an error. Real storage has no daemon and no limit.
    pub fn run_with_watchdog<T>(&self, wait: impl FnOnce() -> T) -> T {
        let daemon = self.held.daemon_pid().and_then(ProcessId::from_pid);
        let watched = self.held.control().zip(daemon);
        let watchdog =
            watched.map(|(control, daemon)| DaemonWatchdog { control, daemon, limit: SILENCE_LIMIT });
        run_watched(watchdog, wait)
    }

    /// Switches fast-forward on or off, and returns when it is in effect. Real storage has no pace: nothing happens.
    ///
    /// # Errors
    /// When the daemon does not answer.
    pub fn set_pace(&self, pace: PacingMode) -> Result<(), AttachError> {
        self.held.set_pace(pace)
    }

    /// Clears the devices' counters and samples them every `interval_s` seconds from now on (modelled seconds; on real
    /// storage, wall seconds).
    ///
    /// # Errors
    /// When the devices can't be observed.
    pub fn begin_measurement(&self, interval_s: f64) -> Result<(), AttachError> {
        if let Some(limits) = &self.dirty_limits {
            limits.renew();
        }
        self.held.begin_measurement(interval_s)
    }

    /// Ends the measurement and returns every device's activity since [`AttachedStorage::begin_measurement`].
    ///
    /// # Errors
    /// When the devices could not be observed.
    pub fn end_measurement(&self) -> Result<Vec<DeviceActivity>, AttachError> {
        self.held.end_measurement()
    }

    /// The state of every device, during a measurement or not; counting continues. It costs the devices almost nothing.
    ///
    /// # Errors
    /// When the daemon does not answer.
    pub fn glance(&self) -> Result<Vec<DeviceGlance>, AttachError> {
        self.held.glance()
    }

    /// Programs' waits on the path to each volume during the last finished measurement. Empty where they reach none of
    /// our block devices, and where the kernel does not count them.
    pub fn path_records(&self) -> Vec<PathRecord> {
        self.held.path_records()
    }

    /// Sets the CPUs of the programs that use it, where all of them are known. [`AttachedStorage::path_records`] then
    /// has their waits, without their waits for one of these CPUs.
    pub fn watch_for_programs_on(&self, cpus: &Processors) {
        self.held.watch_for_programs_on(cpus);
    }

    /// The state of every layer that has something to report: its counts since [`AttachedStorage::begin_measurement`],
    /// and its state now. Real storage has none.
    ///
    /// # Errors
    /// When the daemon does not answer.
    pub fn layers(&self) -> Result<Vec<LayerActivity>, AttachError> {
        self.held.layers()
    }

    /// How well the data about each device's medium support its requests in the finished measurement, by device name.
    /// It takes the daemon a moment. Real storage has none.
    ///
    /// # Errors
    /// When the daemon does not answer.
    pub fn inputs(&self) -> Result<Vec<(String, DeviceInputs)>, AttachError> {
        self.held.inputs()
    }

    /// The process that serves the devices, for accounting its CPU time; real storage has none.
    pub fn daemon_pid(&self) -> Option<u32> {
        self.held.daemon_pid()
    }

    /// The control socket of the daemon that serves its devices; real storage has none.
    pub(crate) fn control(&self) -> Option<PathBuf> {
        self.held.control()
    }

    /// `Err` when the storage can't be used any more, with what is known about it.
    ///
    /// # Errors
    /// When something that it depends on is gone.
    pub fn health(&self) -> Result<(), AttachError> {
        self.held.health()
    }

    /// Writes everything out and removes the storage. A file that a program still holds open keeps it there. The error
    /// then names the process, and `detach` may be called again. After a success it does nothing.
    ///
    /// # Errors
    /// When it is in use, or not everything could be written out.
    pub fn detach(&mut self) -> Result<(), AttachError> {
        self.lift_dirty_limit()?;
        self.restore_read_ahead()?;
        self.held.detach()
    }

    /// Sets the kernel's read-ahead on its devices until the storage is detached. See [`crate::read_ahead`].
    ///
    /// # Errors
    /// [`AttachError::MissingCapability`] where this is impossible: without root, or where the devices are not ours to
    /// configure.
    pub fn read_ahead(&mut self, bytes: u64, registry: &ResourceRegistry) -> Result<(), AttachError> {
        if !self.held.has_own_devices() {
            return Err(MissingCapability::new(
                "a read-ahead on disks that others use as well",
                "set it with blockdev --setra, or use modelled devices",
            )
            .into());
        }
        self.restore_read_ahead()?;
        self.read_ahead = Some(ReadAhead::set(&self.paths, bytes, registry)?);
        Ok(())
    }

    /// Holds back programs that write to it while `limit_bytes` wait in memory for its devices; each device has an
    /// equal part. The limit lasts until the storage is detached. See [`crate::dirty_limit`].
    ///
    /// # Errors
    /// [`AttachError::MissingCapability`] where this is impossible: the kernel is too old, or the devices are not ours
    /// to configure.
    pub fn limit_dirty(
        &mut self,
        limit_bytes: u64,
        registry: &ResourceRegistry,
    ) -> Result<DirtyLimit, AttachError> {
        if !self.held.has_own_devices() {
            return Err(MissingCapability::new(
                "a limit of dirty pages on disks that others use as well",
                "set vm.dirty_bytes of this machine, or use modelled devices",
            )
            .into());
        }
        self.lift_dirty_limit()?;
        let limits = DirtyLimits::set(&self.paths, limit_bytes, registry)?;
        let set = DirtyLimit { devices: limits.devices(), device_bytes: limits.device_bytes() };
        self.dirty_limits = Some(limits);
        Ok(set)
    }

    fn restore_read_ahead(&mut self) -> Result<(), AttachError> {
        if let Some(set) = &mut self.read_ahead {
            set.restore()?;
            self.read_ahead = None;
        }
        Ok(())
    }

    /// Before the devices are released, since otherwise the next user of a loop device would inherit it.
    fn lift_dirty_limit(&mut self) -> Result<(), AttachError> {
        if let Some(limits) = &mut self.dirty_limits {
            limits.lift()?;
            self.dirty_limits = None;
        }
        Ok(())
    }
}

impl Drop for AttachedStorage {
    fn drop(&mut self) {
        // After a failure here the entry stays in the registry, where `underlay clean` finds it.
        let _ = self.lift_dirty_limit();
        let _ = self.restore_read_ahead();
        let _ = self.held.detach();
    }
}

#[cfg(test)]
mod tests {
    use underlay_storage::stack::VolumeSpec;

    use super::*;

    fn stack(names: &[&str]) -> StackSpec {
        let volume = |name: &&str| VolumeSpec::striped(*name, Vec::new(), 0);
        StackSpec { volumes: names.iter().map(volume).collect(), dilation: 1.0, seed: 1 }
    }

    #[test]
    fn names_that_would_not_do_for_files_are_refused() {
        for bad in ["", ".", "..", "a/b", "a\0b", PROBE_FILE] {
            assert!(check_names(&stack(&[bad])).is_err(), "{bad:?}");
        }
        assert!(check_names(&stack(&[])).unwrap_err().to_string().contains("no volume"));
        assert!(check_names(&stack(&["a", "a"])).unwrap_err().to_string().contains("differ"));
        check_names(&stack(&["data", "log 2", "é"])).unwrap();
    }
}
