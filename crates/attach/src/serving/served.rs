//! Storage that is being served, as found by any process on this machine, to inject faults into its devices.

mod restart;

use std::path::{Path, PathBuf};
use std::time::Duration;

use underlay_record::{DeviceGlance, DeviceInputs, DisturbedBy, LayerActivity};
use underlay_storage::faults::{DeviceFault, DeviceFaults, FaultId, PowerCut, WriteSurvival};

use crate::attachments::attachment::AttachedStorage;
use crate::attachments::directory::DirectoryConfig;
use crate::attachments::{exported, nvme_kernel};
use crate::machine::error::AttachError;
use crate::machine::mounts::{self, Mount};
use crate::serving::daemon::DaemonConfig;
use crate::serving::daemon::control::{DaemonCommand, DaemonConnection, DaemonReply};
use crate::serving::daemon_process::CONFIG_FILE;
use crate::undo::registry::{OwnedResource, RegistryOwner, ResourceRegistry};

/// A device may be in the middle of a slow request.
const REPLY_LIMIT: Duration = Duration::from_secs(60);
/// Unmounting writes out as much as possible, and gets an error for each block of a device without power.
const UNMOUNT_LIMIT: Duration = Duration::from_secs(60);

/// Storage that a living daemon serves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServedStorage {
    control: PathBuf,
    /// The files that the daemon exports are below it.
    session: PathBuf,
    owner: Option<RegistryOwner>,
    /// Its owner has ended without removing it.
    is_orphaned: bool,
    /// Who disturbs its devices.
    by: DisturbedBy,
}

impl AttachedStorage {
    /// The handle to its devices' faults; real storage takes no such commands.
    pub fn served(&self) -> Option<ServedStorage> {
        self.control().map(ServedStorage::from_control)
    }
}

impl ServedStorage {
    /// All served storage in this registry, oldest first, followed by that of ended processes. It may include storage
    /// that is just being created or removed.
    pub fn all(registry: &ResourceRegistry) -> Vec<ServedStorage> {
        let served = |owner: RegistryOwner, resource: OwnedResource, is_orphaned: bool| match resource {
            OwnedResource::Daemon { config, control } => {
                let session = config.parent().map(Path::to_path_buf).unwrap_or_default();
                Some(ServedStorage {
                    control,
                    session,
                    owner: Some(owner),
                    is_orphaned,
                    by: DisturbedBy::Hand,
                })
            }
            _ => None,
        };
        let living =
            registry.living().into_iter().filter_map(|(owner, resource)| served(owner, resource, false));
        let left = registry.leftovers().into_iter();
        let orphaned = left.filter_map(|left| served(left.owner, left.resource, true));
        living.chain(orphaned).filter(|served| served.control.exists()).collect()
    }

    pub(crate) fn from_control(control: PathBuf) -> ServedStorage {
        let session = control.parent().map(Path::to_path_buf).unwrap_or_default();
        ServedStorage { control, session, owner: None, is_orphaned: false, by: DisturbedBy::Hand }
    }

    /// The same, for a study's own faults: the record distinguishes them from disturbances by hand.
    #[must_use]
    pub fn for_study(self) -> ServedStorage {
        ServedStorage { by: DisturbedBy::Study, ..self }
    }

    /// The socket of the daemon, unique to this storage.
    pub fn control(&self) -> &Path {
        &self.control
    }

    /// Its devices' faults and state, for observers: over a separate connection, and within a time limit.
    ///
    /// # Errors
    /// When the daemon can't be reached, refuses, or takes longer.
    pub fn look(&self, limit: Duration) -> Result<(Vec<DeviceFaults>, Vec<DeviceGlance>), AttachError> {
        let unreached = |error| AttachError::io("reach the device daemon at", &self.control, error);
        let mut connection = DaemonConnection::open(&self.control, limit).map_err(unreached)?;
        let faults = match connection.ask(&DaemonCommand::Faults).map_err(unreached)? {
            DaemonReply::Faults { devices } => devices,
            reply => return Err(unexpected(&reply)),
        };
        match connection.ask(&DaemonCommand::Glance).map_err(unreached)? {
            DaemonReply::Glance { devices } => Ok((faults, devices)),
            reply => Err(unexpected(&reply)),
        }
    }

    /// The state of its devices and layers, likewise.
    ///
    /// # Errors
    /// As [`look`](Self::look).
    pub fn watch(&self, limit: Duration) -> Result<(Vec<DeviceGlance>, Vec<LayerActivity>), AttachError> {
        let unreached = |error| AttachError::io("reach the device daemon at", &self.control, error);
        let mut connection = DaemonConnection::open(&self.control, limit).map_err(unreached)?;
        let devices = match connection.ask(&DaemonCommand::Glance).map_err(unreached)? {
            DaemonReply::Glance { devices } => devices,
            reply => return Err(unexpected(&reply)),
        };
        match connection.ask(&DaemonCommand::Layers).map_err(unreached)? {
            DaemonReply::Layers { layers } => Ok((devices, layers)),
            reply => Err(unexpected(&reply)),
        }
    }

    /// How well the data about the devices' media support their requests in the last measurement, by device name. It
    /// uses a separate connection, so that no other caller waits.
    ///
    /// # Errors
    /// As [`look`](Self::look).
    pub fn inputs(&self, limit: Duration) -> Result<Vec<(String, DeviceInputs)>, AttachError> {
        let unreached = |error| AttachError::io("reach the device daemon at", &self.control, error);
        let mut connection = DaemonConnection::open(&self.control, limit).map_err(unreached)?;
        match connection.ask(&DaemonCommand::Inputs).map_err(unreached)? {
            DaemonReply::Inputs { devices } => Ok(devices),
            DaemonReply::Failed { problem } => Err(AttachError::failed(problem)),
            reply => Err(unexpected(&reply)),
        }
    }

    /// Whether a process listens there, even if it does not answer.
    pub fn is_listening(&self) -> bool {
        underlay_files::control_socket::is_listening(&self.control)
    }

    /// The process that created it, if it was found by the registry.
    pub fn owner(&self) -> Option<&RegistryOwner> {
        self.owner.as_ref()
    }

    /// Whether that process has ended: `underlay clean` removes the storage.
    pub fn is_orphaned(&self) -> bool {
        self.is_orphaned
    }

    /// Where its file systems are mounted, or were until an incomplete restart.
    pub fn directories(&self) -> Vec<PathBuf> {
        let own = self.own_directories().into_iter().map(|directory| directory.mount_point);
        let mut all: Vec<PathBuf> =
            self.mounts().into_iter().map(|mount| mount.mount_point).chain(own).collect();
        for remount in restart::pending(&self.session).unwrap_or_default() {
            if !all.contains(&remount.mount_point) {
                all.push(remount.mount_point);
            }
        }
        all
    }

    /// Whether an earlier restart has unmounted file systems and not mounted them again.
    pub fn has_unmounted(&self) -> bool {
        restart::pending(&self.session).is_ok_and(|pending| !pending.is_empty())
    }

    /// Whether this directory is a volume of a server that the kernel's own initiator is connected to: its devices are
    /// not served here.
    pub fn is_elsewhere(registry: &ResourceRegistry, directory: &Path) -> bool {
        registry.living().iter().any(|(_, resource)| match resource {
            OwnedResource::Mount { mount_point, backing } => {
                mount_point == directory && nvme_kernel::is_device(backing)
            }
            _ => false,
        })
    }

    /// The directories for which the daemon is the file system itself.
    fn own_directories(&self) -> Vec<DirectoryConfig> {
        DaemonConfig::read(&self.session.join(CONFIG_FILE))
            .map(|config| config.directories)
            .unwrap_or_default()
    }

    /// The file systems on block devices above its export.
    fn mounts(&self) -> Vec<Mount> {
        let devices = exported::devices_of(&self.session);
        mounts::all().into_iter().filter(|mount| devices.contains(&mount.source)).collect()
    }

    /// The faults of each of its devices.
    ///
    /// # Errors
    /// When the daemon can't be reached, or refuses.
    pub fn faults(&self) -> Result<Vec<DeviceFaults>, AttachError> {
        match self.ask(&DaemonCommand::Faults)? {
            DaemonReply::Faults { devices } => Ok(devices),
            reply => Err(unexpected(&reply)),
        }
    }

    /// Injects a fault into a device: until it is cleared, or for a number of modelled seconds.
    ///
    /// # Errors
    /// When the daemon can't be reached, or refuses.
    pub fn inject(
        &self,
        device: &str,
        fault: DeviceFault,
        for_s: Option<f64>,
    ) -> Result<FaultId, AttachError> {
        match self.ask(&DaemonCommand::Fault { device: device.to_owned(), fault, for_s, by: self.by })? {
            DaemonReply::Fault { id } => Ok(id),
            reply => Err(unexpected(&reply)),
        }
    }

    /// Removes all faults from a device, or from all of them. A device without power stays without.
    ///
    /// # Errors
    /// When the daemon can't be reached, or refuses.
    pub fn clear(&self, device: Option<&str>) -> Result<(), AttachError> {
        self.ask(&DaemonCommand::ClearFaults { device: device.map(str::to_owned), by: self.by }).map(|_| ())
    }

    /// Brings back a device that vanished.
    ///
    /// # Errors
    /// When the daemon can't be reached, or refuses.
    pub fn bring_back(&self, device: &str) -> Result<(), AttachError> {
        self.ask(&DaemonCommand::Return { device: device.to_owned() }).map(|_| ())
    }

    /// Cuts the power of these devices at the same instant; of all devices if none is named.
    ///
    /// # Errors
    /// When the daemon can't be reached, or refuses.
    pub fn cut_power(&self, devices: &[String], cut: PowerCut) -> Result<WriteSurvival, AttachError> {
        let PowerCut { seed, torn, reordered } = cut;
        match self.ask(&DaemonCommand::PowerCut {
            devices: devices.to_vec(),
            seed,
            torn,
            reordered,
            by: self.by,
        })? {
            DaemonReply::PowerCut(survival) => Ok(survival),
            reply => Err(unexpected(&reply)),
        }
    }

    /// Restores the power, and nothing else: file systems that failed without it stay as they are.
    ///
    /// # Errors
    /// When the daemon can't be reached, or refuses.
    pub fn switch_on(&self) -> Result<(), AttachError> {
        self.ask(&DaemonCommand::PowerOn { by: self.by }).map(|_| ())
    }

    /// Restores the power and does what a boot would do: file systems that were mounted on the storage are mounted
    /// again as before, which recovers them. The cut also discards their memory. A file system that an earlier call has
    /// unmounted and could not mount is mounted now.
    ///
    /// All obstacles are checked first. A file system that is still in use can't be mounted anew: the error names the
    /// process, and nothing has changed.
    ///
    /// # Errors
    /// When the daemon can't be reached or refuses, something is in use, or a file system can't be mounted again. In
    /// the last case the error says which one, and how to continue.
    pub fn restore_power(&self) -> Result<(), AttachError> {
        let turn = restart::RestartLock::take(&self.session)?;
        // Checked under the lock: an earlier call may have just restored the power.
        let is_dark = self.faults()?.iter().any(|device| !device.powered);
        let mut remounts = restart::pending(&self.session)?;
        if !is_dark && remounts.is_empty() {
            return Ok(());
        }
        let devices = self.block_devices()?;
        if let Some(missing) = remounts.iter().find(|remount| !devices.contains(&remount.device)) {
            return Err(AttachError::failed(format!(
                "{}, which was mounted on {}, is not there any more: end the storage, and mount it again with the same --keep",
                missing.device.display(),
                missing.mount_point.display()
            )));
        }
        let table = mounts::try_all().map_err(|error| {
            AttachError::io("read the table of mounts", Path::new("/proc/self/mountinfo"), error)
        })?;
        // Mounts made by hand since then need no help.
        remounts.retain(|remount| table.iter().all(|mount| mount.source != remount.device));
        if let Some((remount, other)) = remounts.iter().find_map(|remount| {
            Some((remount, table.iter().rfind(|m| m.mount_point == remount.mount_point)?))
        }) {
            return Err(AttachError::InUse(format!(
                "{} is to be mounted on {}, where {} is mounted now: unmount that first",
                remount.device.display(),
                remount.mount_point.display(),
                other.source.display()
            )));
        }
        if is_dark {
            self.ask(&DaemonCommand::CheckPowerOn)?;
            let mounted = restart::plan(&table, &devices)?;
            let planned = restart::sort_for_unmounting(&remounts, &mounted);
            restart::check_places(&planned)?;
            restart::check_free(&mounted)?;
            remounts = self.switch_on_without(&turn, &devices, planned)?;
            if let Some(directory) = self.own_directories().first() {
                return Err(AttachError::failed(format!(
                    "the power is back, but {} answers with errors until it is attached again, as after a crash: \
                     end its mount, and begin it again with the same --keep",
                    directory.mount_point.display()
                )));
            }
        }
        self.mount_again(&turn, remounts)
    }

    /// The block devices above its export.
    ///
    /// # Errors
    /// When they can't be found, or there are none although its volumes are block devices: a file system on one would
    /// be missed.
    fn block_devices(&self) -> Result<Vec<PathBuf>, AttachError> {
        let config = DaemonConfig::read(&self.session.join(CONFIG_FILE))?;
        let devices = exported::try_devices_of(&self.session, config.transport)
            .map_err(|error| AttachError::io("find the block devices on", &self.session, error))?;
        if devices.is_empty() && config.directories.is_empty() && !config.stack.volumes.is_empty() {
            return Err(AttachError::failed(format!(
                "no block device is found on the storage in {}: nobody can tell what is mounted from it. Nothing has changed: try again \
                 where /sys and /dev are those of this host, or end the storage and mount it again with the same --keep",
                self.session.display()
            )));
        }
        Ok(devices)
    }

    /// Unmounts the file systems to be mounted again, as far as they are mounted, and switches on.
    fn switch_on_without(
        &self,
        turn: &restart::RestartLock,
        devices: &[PathBuf],
        planned: Vec<restart::RemountPlan>,
    ) -> Result<Vec<restart::RemountPlan>, AttachError> {
        // If this process ends after this, the next call mounts them all.
        turn.note(&planned)?;
        let is_mounted = |remount: &&restart::RemountPlan| {
            mounts::try_all().map_or(true, |table| table.iter().any(|mount| mount.source == remount.device))
        };
        let switched_on = planned
            .iter()
            .filter(is_mounted)
            .try_for_each(|remount| {
                // While the power is off: nothing in the old mount's memory may reach the device later.
                mounts::try_unmount(&remount.mount_point, UNMOUNT_LIMIT)
                    .map_err(|error| mounts::explain(&remount.mount_point, error))
            })
            // For all devices: a mount that an earlier call stopped waiting for may still be writing out.
            .and_then(|()| devices.iter().try_for_each(|device| forget_content(device)))
            .and_then(|()| self.switch_on());
        if let Err(error) = switched_on {
            let left = restart::still_to_mount(planned, mounts::try_all());
            let _ = turn.note(&left);
            return Err(restart::unfinished(&error, &left));
        }
        Ok(planned)
    }

    /// With power, in reverse order of unmounting.
    fn mount_again(
        &self,
        turn: &restart::RestartLock,
        mut remounts: Vec<restart::RemountPlan>,
    ) -> Result<(), AttachError> {
        remounts.reverse();
        let mut first_error = None;
        // One that fails does not keep the others unmounted.
        remounts.retain(|remount| match wait_until_free(&remount.device).and_then(|()| remount.mount()) {
            Ok(()) => false,
            Err(error) => {
                first_error.get_or_insert(error);
                true
            }
        });
        // Noted in the order of unmounting, as before.
        remounts.reverse();
        turn.note(&remounts)?;
        match first_error {
            None => Ok(()),
            Some(error) => Err(restart::unfinished(&error, &remounts)),
        }
    }

    /// Delays answers by this much wall time, for tests of what counts as late. No study uses it.
    ///
    /// # Errors
    /// When the daemon can't be reached, or refuses.
    pub fn delay_answers(&self, delay: Duration) -> Result<(), AttachError> {
        self.ask(&DaemonCommand::DelayAnswers { delay_us: delay.as_secs_f64() * 1e6 }).map(|_| ())
    }

    fn ask(&self, command: &DaemonCommand) -> Result<DaemonReply, AttachError> {
        let reply = DaemonConnection::open(&self.control, REPLY_LIMIT)
            .and_then(|mut connection| connection.ask(command))
            .map_err(|error| AttachError::io("reach the device daemon at", &self.control, error))?;
        match reply {
            DaemonReply::Failed { problem } => Err(AttachError::failed(problem)),
            reply => Ok(reply),
        }
    }
}

/// Waits until a device is unused by any file system, even by one whose unmounting has not ended.
fn wait_until_free(device: &Path) -> Result<(), AttachError> {
    mounts::wait_until_free(device, UNMOUNT_LIMIT)
        .map_err(|error| AttachError::io("mount anew what somebody still has:", device, error))
}

/// Waits until a device is unused, and drops the kernel's cached pages of it.
fn forget_content(device: &Path) -> Result<(), AttachError> {
    wait_until_free(device)?;
    mounts::drop_device_cache(device).map_err(|error| AttachError::io("drop the cache of", device, error))
}

fn unexpected(reply: &DaemonReply) -> AttachError {
    AttachError::failed(format!("the device daemon gave an unexpected answer: {reply:?}"))
}
