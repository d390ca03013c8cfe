//! Removes what dead owners left, in an order in which each step enables the next.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::fs::FlockOperation;
use rustix::process::Signal;
use underlay_files::{control_socket, scratch_dir};
use underlay_record::DisturbedBy;
use underlay_storage::stack::PacingMode;

use crate::attachments::directory::is_mounted_as;
use crate::attachments::{dirty_limit, loop_device, nvme_kernel, read_ahead};
use crate::machine::error::AttachError;
use crate::machine::{budget, mounts, processes};
use crate::serving::daemon::DaemonConfig;
use crate::serving::daemon::control::{DaemonCommand, DaemonConnection};
use crate::serving::daemon_process::{
    CONFIG_FILE, CONTROL_SOCKET, EXPORT_DIRECTORY, daemons_with, end_daemon,
};
use crate::serving::daemon_watchdog::run_with_watchdog;
use crate::serving::ublk;
use crate::undo::registry::{OwnedResource, RegistryJournal, ResourceRegistry, remove_journal};

/// The results of a clean-up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CleanupResult {
    /// Resources that still existed and were removed.
    pub removed: usize,
    /// Resources of living processes, not touched.
    pub in_use: usize,
}

/// How long a file system may take to write out its memory before its daemon is killed.
const WRITE_OUT_LIMIT: Duration = Duration::from_secs(60);
const CONTROL_LIMIT: Duration = Duration::from_secs(10);

/// Removes what dead processes left, and reports each step to `report`. It touches only recorded resources that can
/// still be identified as ours, and none of a living process. Steps that failed stay recorded, and the error lists
/// them.
///
/// # Errors
/// The steps that failed, with the reasons.
pub fn clean(
    registry: &ResourceRegistry,
    report: &mut dyn FnMut(&str),
) -> Result<CleanupResult, AttachError> {
    let directory = registry.directory();
    // Two simultaneous clean-ups would interfere with each other.
    let lock = File::open(directory).map_err(|error| AttachError::io("open", directory, error))?;
    rustix::io::retry_on_intr(|| rustix::fs::flock(&lock, FlockOperation::LockExclusive))
        .map_err(|errno| AttachError::io("lock", directory, errno))?;

    let mut cleaned = CleanupResult::default();
    let mut dead = Vec::new();
    let mut limited = BTreeSet::new();
    let mut owned = Vec::new();
    for (path, journal) in registry.journals() {
        if journal.is_alive() {
            cleaned.in_use += journal.resources.len();
            let RegistryJournal { owner, resources, .. } = &journal;
            limited.extend(resources.iter().filter_map(|(_, resource)| match resource {
                OwnedResource::DirtyLimit { device, .. } | OwnedResource::ReadAhead { device, .. } => {
                    Some(device.clone())
                }
                _ => None,
            }));
            report(&format!(
                "left alone: {} (process {}{}) is still running and uses {} things",
                owner.command,
                owner.process.pid,
                if owner.is_of_this_namespace() { "" } else { " of another PID namespace" },
                resources.len()
            ));
            owned.extend(journal.resources.into_iter().map(|(_, resource)| resource));
        } else {
            dead.push((path, journal));
        }
    }
    let mut problems = Vec::new();
    for (path, mut journal) in dead {
        // After a removal by hand, another process may have created a new one at the same path.
        journal.resources.retain(|(_, resource)| !owned.contains(resource));
        let configs = journal.resources.iter().filter_map(|(_, resource)| match resource {
            OwnedResource::Daemon { config, .. } => Some(config.clone()),
            _ => None,
        });
        let daemons = configs.collect();
        let limited = limited.clone();
        let mut cleaner = RegistryCleaner {
            registry,
            report: &mut *report,
            daemons,
            limited,
            sees_processes: journal.owner.is_of_this_namespace(),
            removed: 0,
            problems: Vec::new(),
        };
        cleaner.undo(&journal);
        cleaned.removed += cleaner.removed;
        if cleaner.problems.is_empty() {
            remove_journal(&path);
        }
        problems.append(&mut cleaner.problems);
    }
    for folder in scratch_dir::left_behind() {
        match underlay_files::remove_tree(&folder) {
            Ok(()) => {
                cleaned.removed += 1;
                report(&format!("removed {}", folder.display()));
            }
            Err(error) => problems.push(format!("{}: {error}", folder.display())),
        }
    }
    match problems.as_slice() {
        [] => Ok(cleaned),
        some => Err(AttachError::failed(format!("not everything could be removed: {}", some.join("; ")))),
    }
}

struct RegistryCleaner<'a> {
    registry: &'a ResourceRegistry,
    report: &'a mut dyn FnMut(&str),
    /// The configurations of the owner's device daemons.
    daemons: Vec<PathBuf>,
    /// Devices that living processes have configured: their limits of dirty pages, their read-ahead.
    limited: BTreeSet<String>,
    /// Whether the owner's process numbers have the same meaning here.
    sees_processes: bool,
    removed: usize,
    problems: Vec<String>,
}

impl RegistryCleaner<'_> {
    fn undo(&mut self, journal: &RegistryJournal) {
        let same_boot = journal.owner.is_of_this_boot();
        // Latest first: later resources depend on earlier ones.
        let resources: Vec<&OwnedResource> =
            journal.resources.iter().rev().map(|(_, resource)| resource).collect();
        // After a restart only files are left, and a process number refers to another process.
        if same_boot {
            // From the top down, one kind after the other. A loop device can't be cleared under a mount. A daemon can't
            // be ended under either without losing their remaining writes.
            let stages: [fn(&mut Self, &OwnedResource); 10] = [
                Self::end_processes,
                Self::lift_dirty_limit,
                Self::restore_read_ahead,
                Self::unmount_filesystem,
                Self::clear_loop,
                Self::disconnect,
                Self::stop_daemon,
                Self::unmount_export,
                Self::remove_ublk,
                Self::remove_cgroup,
            ];
            // Modelled devices are slow on purpose; the remaining writes need not be.
            resources.iter().for_each(|resource| fast_forward(resource));
            for stage in stages {
                resources.iter().for_each(|resource| stage(self, resource));
            }
        }
        resources.iter().for_each(|resource| self.remove_path(resource));
        resources.iter().for_each(|resource| self.name_elsewhere(resource));
    }

    /// Only its owner has the keys, so its location is reported, once.
    fn name_elsewhere(&mut self, resource: &OwnedResource) {
        if let OwnedResource::ElsewhereContent { place } = resource {
            (self.report)(&format!("left elsewhere, delete it there: {place}"));
        }
    }

    fn done(&mut self, message: String) {
        self.removed += 1;
        (self.report)(&message);
    }

    fn end_processes(&mut self, resource: &OwnedResource) {
        match resource {
            OwnedResource::Cgroup { directory } => {
                let ended = budget::end_processes_in(directory);
                if ended > 0 {
                    self.done(format!("ended {ended} processes of {}", directory.display()));
                }
            }
            OwnedResource::Process { process, what: description }
                if self.sees_processes && process.is_alive() =>
            {
                match process.end(Duration::from_secs(3)) {
                    true => self.done(format!("ended {description} (process {})", process.pid)),
                    false => {
                        self.problems.push(format!("{description} (process {}) does not end", process.pid))
                    }
                }
            }
            // For hosts without control groups to find them by.
            OwnedResource::Tree { path } => {
                for process in processes::list_programs_below(path) {
                    let description =
                        format!("a process ({}) of a program in {}", process.pid, path.display());
                    match process.end(Duration::ZERO) {
                        true => self.done(format!("ended {description}")),
                        false => self.problems.push(format!("{description} does not end")),
                    }
                }
            }
            _ => {}
        }
    }

    /// While the device exists: unmounting takes longer under a limit.
    fn lift_dirty_limit(&mut self, resource: &OwnedResource) {
        let OwnedResource::DirtyLimit { device, previous } = resource else { return };
        // The device's present owner took over its earlier setting.
        if self.limited.contains(device) {
            return;
        }
        match dirty_limit::restore(device, *previous) {
            Ok(true) => self.done(format!("lifted the limit of dirty pages of device {device}")),
            Ok(false) => {}
            Err(error) => self.problems.push(error.to_string()),
        }
    }

    /// While the device exists: a loop device would keep it for its next user.
    fn restore_read_ahead(&mut self, resource: &OwnedResource) {
        let OwnedResource::ReadAhead { device, previous_kib } = resource else { return };
        // The device's present owner took over its earlier setting.
        if self.limited.contains(device) {
            return;
        }
        match read_ahead::restore(device, *previous_kib) {
            Ok(true) => self.done(format!("restored the read-ahead of device {device}")),
            Ok(false) => {}
            Err(error) => self.problems.push(error.to_string()),
        }
    }

    /// Its daemon still serves it, so that the kernel's memory is written first; without the daemon this is impossible.
    fn unmount_filesystem(&mut self, resource: &OwnedResource) {
        match resource {
            OwnedResource::Mount { mount_point, backing } => {
                let is_ours =
                    || mounts::find(mount_point).is_some_and(|mount| is_device_of(backing, &mount.source));
                // The backing file is `SESSION/export/VOLUME`.
                let session = backing.parent().and_then(Path::parent);
                let served_by = session.map(|session| session.join(CONFIG_FILE));
                self.unmount(mount_point, &is_ours, served_by.as_slice());
            }
            OwnedResource::Directory { mount_point, source } => {
                let served_by = self.daemons.iter().filter(|config| serves(config, source));
                let served_by: Vec<PathBuf> = served_by.cloned().collect();
                self.unmount(mount_point, &|| is_mounted_as(mount_point, source), &served_by);
            }
            _ => {}
        }
    }

    /// Unmounts the file system there while it `is_ours`: something else may have been mounted there since. The daemons
    /// that serve it have these configurations.
    fn unmount(&mut self, mount_point: &Path, is_ours: &dyn Fn() -> bool, served_by: &[PathBuf]) {
        while is_ours() {
            // With a limit: unmounting first writes out, and hangs if the device no longer answers.
            let mut outcome = mounts::try_unmount(mount_point, WRITE_OUT_LIMIT);
            if matches!(outcome, Err(mounts::UnmountError::TimedOut)) {
                // It continues with errors once the daemons are gone.
                for daemon in served_by.iter().flat_map(|config| daemons_with(config)) {
                    daemon.signal(Signal::KILL);
                }
                outcome = mounts::try_unmount(mount_point, WRITE_OUT_LIMIT);
            }
            match outcome {
                Ok(()) => self.done(format!("unmounted {}", mount_point.display())),
                Err(error) => {
                    self.problems.push(mounts::explain(mount_point, error).to_string());
                    return;
                }
            }
        }
    }

    fn clear_loop(&mut self, resource: &OwnedResource) {
        let OwnedResource::Loop { backing } = resource else { return };
        // A device that is still mounted would only be cleared later, unnoticed.
        let mounted = mounts::all();
        let devices = loop_device::on_file(backing);
        if devices.iter().any(|device| mounted.iter().any(|mount| mount.source == *device)) {
            return;
        }
        // Clearing writes out the page cache, and hangs if the daemon no longer answers.
        let (is_killed, session) = (AtomicBool::new(false), backing.parent().and_then(Path::parent));
        let kill = || {
            for daemon in session.iter().flat_map(|session| daemons_with(&session.join(CONFIG_FILE))) {
                daemon.signal(Signal::KILL);
                is_killed.store(true, Ordering::Release);
            }
        };
        let control = session.unwrap_or(backing).join(CONTROL_SOCKET);
        let cleared =
            run_with_watchdog(&control, CONTROL_LIMIT, kill, || loop_device::clear_on_file(backing));
        if is_killed.load(Ordering::Acquire) {
            self.done(format!(
                "ended the device daemon under {}, which did not answer: unflushed writes are lost",
                backing.display()
            ));
        }
        match cleared {
            Ok(devices) => {
                devices.iter().for_each(|device| self.done(format!("detached {}", device.display())))
            }
            Err(error) => self.problems.push(error.to_string()),
        }
    }

    fn disconnect(&mut self, resource: &OwnedResource) {
        let OwnedResource::NvmeController { subsystem_nqn, host_nqn, instance } = resource else { return };
        let controller = nvme_kernel::SysfsController {
            subsystem_nqn: subsystem_nqn.clone(),
            host_nqn: host_nqn.clone(),
            instance: *instance,
        };
        // Under a file system it stays, since its writes would be lost.
        if let Some(mount) = mounted_from(&controller.devices()) {
            let (place, device) = (mount.mount_point.display(), mount.source.display());
            return self.problems.push(format!("{device} is still mounted on {place}"));
        }
        match nvme_kernel::remove(&controller) {
            Ok(names) => names.iter().for_each(|name| self.done(format!("disconnected {name}"))),
            Err(error) => self.problems.push(error.to_string()),
        }
    }

    fn stop_daemon(&mut self, resource: &OwnedResource) {
        let OwnedResource::Daemon { config, control } = resource else { return };
        // A volume in use needs its daemon: ending it would make the user's data unreadable.
        if self.is_in_use(config) {
            return;
        }
        for process in daemons_with(config) {
            match end_daemon(process, control) {
                true => self.done(format!("ended the device daemon (process {})", process.pid)),
                false => {
                    self.problems.push(format!("the device daemon (process {}) does not end", process.pid))
                }
            }
        }
    }

    /// Whether a loop device still uses an export of the daemon with this configuration, or one of its directories is
    /// mounted.
    fn is_in_use(&self, config: &Path) -> bool {
        let Some(session) = config.parent() else { return false };
        let directories = DaemonConfig::read(config).map(|config| config.directories).unwrap_or_default();
        let export = session.join(EXPORT_DIRECTORY);
        !loop_device::below(&export).is_empty()
            || mounted_from(&ublk::nodes_of(&export)).is_some()
            || directories.iter().any(|found| is_mounted_as(&found.mount_point, &found.source))
    }

    fn unmount_export(&mut self, resource: &OwnedResource) {
        let OwnedResource::FuseMount { mount_point, source } = resource else { return };
        let is_ours =
            |mount: &mounts::Mount| mount.filesystem.starts_with("fuse") && mount.source == Path::new(source);
        while mounts::find(mount_point).is_some_and(|mount| is_ours(&mount)) {
            if let Some(device) = loop_device::below(mount_point).first() {
                self.problems.push(format!("{} still uses {}", device.display(), mount_point.display()));
                return;
            }
            match mounts::detach_lazily(mount_point) {
                Ok(()) => self.done(format!("unmounted {}", mount_point.display())),
                Err(errno) => {
                    self.problems.push(format!("could not unmount {}: {errno}", mount_point.display()));
                    return;
                }
            }
        }
    }

    /// Its daemon has ended by now, or is in use.
    fn remove_ublk(&mut self, resource: &OwnedResource) {
        let OwnedResource::Ublk { export } = resource else { return };
        if let Some(mount) = mounted_from(&ublk::nodes_of(export)) {
            let (place, device) = (mount.mount_point.display(), mount.source.display());
            return self.problems.push(format!("{device} is still mounted on {place}"));
        }
        match ublk::remove(export) {
            Ok(devices) => {
                devices.iter().for_each(|device| self.done(format!("removed {}", device.display())))
            }
            Err(error) => self.problems.push(error.to_string()),
        }
    }

    fn remove_cgroup(&mut self, resource: &OwnedResource) {
        let OwnedResource::Cgroup { directory } = resource else { return };
        if !directory.is_dir() {
            return;
        }
        match budget::remove_group(directory) {
            Ok(()) => self.done(format!("removed {}", directory.display())),
            Err(error) => self.problems.push(error.to_string()),
        }
    }

    /// Whether a living process has created something at this path or below it; it may have started after this
    /// clean-up.
    fn is_held(&self, resource: &OwnedResource) -> bool {
        let Some(path) = resource.made_path() else { return false };
        let living = self.registry.living();
        living
            .iter()
            .filter_map(|(_, resource)| resource.made_path())
            .any(|made_path| made_path.starts_with(path))
    }

    fn remove_path(&mut self, resource: &OwnedResource) {
        if self.is_held(resource) {
            return;
        }
        let (path, outcome) = match resource {
            OwnedResource::File { path } if is_kind(path, fs::FileType::is_file) => {
                (path, underlay_files::remove_file(path))
            }
            // Another process may listen at the same path by now.
            OwnedResource::Socket { path }
            | OwnedResource::Nodes { control: path }
            | OwnedResource::Run { control: path, .. }
            | OwnedResource::Service { control: path }
                if is_kind(path, FileTypeExt::is_socket) && !control_socket::is_listening(path) =>
            {
                (path, underlay_files::remove_file(path))
            }
            // The mount there has been reported already.
            OwnedResource::EmptyDirectory { path } if mounts::find(path).is_some() => return,
            OwnedResource::EmptyDirectory { path } if is_kind(path, fs::FileType::is_dir) => {
                (path, remove_if_empty(path))
            }
            OwnedResource::Tree { path } if is_kind(path, fs::FileType::is_dir) => {
                // A session of a daemon that could not be ended.
                if !daemons_with(&path.join(CONFIG_FILE)).is_empty() {
                    self.problems.push(format!("the device daemon of {} is still running", path.display()));
                    return;
                }
                // Removing through a mount would empty another user's file system.
                if let Some(mount) =
                    mounts::all().into_iter().find(|mount| mount.mount_point.starts_with(path))
                {
                    self.problems.push(format!(
                        "{} holds the mount {}",
                        path.display(),
                        mount.mount_point.display()
                    ));
                    return;
                }
                (path, underlay_files::remove_tree(path))
            }
            _ => return,
        };
        match outcome {
            Ok(()) => self.done(format!("removed {}", path.display())),
            Err(error) => self.problems.push(format!("could not remove {}: {error}", path.display())),
        }
    }
}

/// Whether this is the loop device of the volume's file, the ublk device of the volume's export, or the kernel's own.
fn is_device_of(backing: &Path, device: &PathBuf) -> bool {
    backing == device
        || loop_device::on_file(backing).contains(device)
        || backing.parent().is_some_and(|export| ublk::nodes_of(export).contains(device))
}

fn mounted_from(devices: &[PathBuf]) -> Option<mounts::Mount> {
    mounts::all().into_iter().find(|mount| devices.contains(&mount.source))
}

fn fast_forward(resource: &OwnedResource) {
    let OwnedResource::Daemon { config, control } = resource else { return };
    if daemons_with(config).is_empty() {
        return;
    }
    if let Ok(mut connection) = DaemonConnection::open(control, CONTROL_LIMIT) {
        // A device that a fault makes slow would not hurry before it has completed its present requests. A daemon that
        // doesn't answer is handled when it is ended.
        let _ = connection
            .ask(&DaemonCommand::ClearFaults { device: None, by: DisturbedBy::default() })
            .and_then(|_| connection.ask(&DaemonCommand::SetPace { pace: PacingMode::Immediate }));
    }
}

/// Whether the daemon with this configuration serves the directory with the source name `source`.
fn serves(config: &Path, source: &str) -> bool {
    DaemonConfig::read(config)
        .is_ok_and(|config| config.directories.iter().any(|directory| directory.source == source))
}

fn is_kind(path: &Path, kind: fn(&fs::FileType) -> bool) -> bool {
    fs::symlink_metadata(path).is_ok_and(|metadata| kind(&metadata.file_type()))
}

/// A mount point with contents belongs to its user by now.
fn remove_if_empty(path: &Path) -> std::io::Result<()> {
    match fs::remove_dir(path) {
        Err(error) if error.kind() == std::io::ErrorKind::DirectoryNotEmpty => Ok(()),
        outcome => outcome,
    }
}

#[cfg(test)]
mod tests;
