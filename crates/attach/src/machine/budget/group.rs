//! One of our control groups: noted before it is created, emptied and removed when it is dropped or left behind.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::hierarchy::{CgroupController, CgroupHierarchy, CgroupVersion, PARENT_ATTEMPTS, inherit_cpuset};
use crate::machine::error::AttachError;
use crate::machine::processes;
use crate::undo::registry::{OwnedResource, RegistryNote, ResourceRegistry};

/// The parent of our groups with limited CPU time, below this process's own group.
pub(super) const PARENT: &str = "underlay";
/// The parent of the others. The weight of [`PARENT`] may be that of many programs, and a client would take it from the
/// devices.
pub(super) const PARENT_OF_OTHERS: &str = "underlay-others";

/// How long a group may take to become empty and removable after its processes were killed.
const REMOVE_LIMIT: Duration = Duration::from_secs(10);

/// A control group. Dropping it kills its processes and removes it.
#[derive(Debug)]
pub(super) struct ControlGroup {
    directory: PathBuf,
    version: CgroupVersion,
    controllers: Vec<CgroupController>,
    registry: ResourceRegistry,
    note: Option<RegistryNote>,
}

impl ControlGroup {
    /// Makes the group `name` below the `parent` in `hierarchy`.
    pub(super) fn make(
        hierarchy: &CgroupHierarchy,
        parent: &str,
        name: &str,
        registry: &ResourceRegistry,
    ) -> Result<ControlGroup, AttachError> {
        let mut attempts = 1;
        loop {
            let parent = hierarchy.make_parent(parent)?;
            let directory = parent.directory.join(name);
            let note = registry.note(OwnedResource::Cgroup { directory: directory.clone() })?;
            let group = ControlGroup {
                directory,
                version: hierarchy.version,
                controllers: parent.controllers,
                registry: registry.clone(),
                note: Some(note),
            };
            // Noted before it is made, so that a process killed in between leaves nothing unrecorded.
            match fs::create_dir(&group.directory) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::NotFound && attempts < PARENT_ATTEMPTS => {
                    attempts += 1;
                    continue;
                }
                Err(error) => {
                    return Err(AttachError::io("make the control group", &group.directory, error));
                }
            }
            if group.version == CgroupVersion::V1 && group.has(CgroupController::Cpuset) {
                inherit_cpuset(&parent.directory, &group.directory)
                    .map_err(|error| AttachError::io("set the CPUs of", &group.directory, error))?;
            }
            return Ok(group);
        }
    }

    pub(super) fn has(&self, controller: CgroupController) -> bool {
        self.controllers.contains(&controller)
    }

    pub(super) fn directory(&self) -> &Path {
        &self.directory
    }

    pub(super) fn version(&self) -> CgroupVersion {
        self.version
    }

    pub(super) fn file(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    pub(super) fn write(&self, file: &str, value: &str) -> Result<(), AttachError> {
        let path = self.file(file);
        fs::write(&path, value).map_err(|error| AttachError::io(&format!("set {value} in"), &path, error))
    }

    pub(super) fn write_if_there(&self, file: &str, value: &str) -> Result<(), AttachError> {
        if self.file(file).exists() { self.write(file, value) } else { Ok(()) }
    }

    /// Kills all processes in it and removes it; a second call does nothing.
    pub(super) fn remove(&mut self) -> Result<(), AttachError> {
        if self.note.is_none() {
            return Ok(());
        }
        remove_group(&self.directory)?;
        if let Some(note) = self.note.take() {
            self.registry.forget(note);
        }
        Ok(())
    }
}

impl Drop for ControlGroup {
    fn drop(&mut self) {
        let _ = self.remove();
    }
}

/// Kills every process in a group, until none is left or time is up; returns how many there were. This process itself
/// is moved out instead.
pub(crate) fn end_processes_in(directory: &Path) -> usize {
    let mut seen: BTreeSet<u32> = BTreeSet::new();
    let deadline = Instant::now() + REMOVE_LIMIT;
    loop {
        let members = members(directory);
        if members.is_empty() || Instant::now() >= deadline {
            return seen.len();
        }
        let (own, others): (Vec<u32>, Vec<u32>) =
            members.into_iter().partition(|pid| *pid == std::process::id());
        if !own.is_empty()
            && let Some(parent) = directory.parent()
        {
            let _ = fs::write(parent.join("cgroup.procs"), "0");
        }
        // Repeated in every round, since a process may fork before its signal arrives.
        seen.extend(&others);
        if !others.is_empty() && (!own.is_empty() || !kill_all_of(directory)) {
            others.into_iter().for_each(|pid| kill_member(directory, pid));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Through the kernel, which misses no process and affects no other. False where it can't: version 1, or before Linux
/// 5.14.
fn kill_all_of(directory: &Path) -> bool {
    let kill = directory.join("cgroup.kill");
    // If the file is missing, it is not created: the directory is no control group any more.
    fs::OpenOptions::new().write(true).open(kill).and_then(|mut file| file.write_all(b"1")).is_ok()
}

/// Only while it is a member: after its number was read, it may refer to another process.
fn kill_member(directory: &Path, pid: u32) {
    processes::signal_if(pid, Signal::KILL, || members(directory).contains(&pid));
}

fn members(directory: &Path) -> Vec<u32> {
    let text = fs::read_to_string(directory.join("cgroup.procs")).unwrap_or_default();
    // Zero stands for a process that this namespace can't see, and signalling it would hit our own group.
    text.lines().filter_map(|line| line.trim().parse().ok()).filter(|pid| *pid != 0).collect()
}

/// Ends all processes in a group and the groups below it, and removes the groups; then our parent group, if it is
/// empty.
pub(crate) fn remove_group(directory: &Path) -> Result<(), AttachError> {
    end_processes_in(directory);
    // The groups below first: rmdir(2) refuses a group that has any.
    let below = fs::read_dir(directory).into_iter().flatten().flatten();
    for entry in below.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())) {
        remove_group(&entry.path())?;
    }
    let deadline = Instant::now() + REMOVE_LIMIT;
    loop {
        match fs::remove_dir(directory) {
            Ok(()) => break,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => break,
            // A process that was just killed may still be exiting.
            Err(_) if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(5)),
            Err(error) => {
                let left = members(directory);
                return Err(AttachError::failed(format!(
                    "could not remove the control group {}: {error}; processes in it: {left:?}",
                    directory.display()
                )));
            }
        }
    }
    let is_ours = |parent: &&Path| [PARENT, PARENT_OF_OTHERS].iter().any(|own| parent.ends_with(own));
    if let Some(parent) = directory.parent().filter(is_ours) {
        // Another budget may use it.
        let _ = fs::remove_dir(parent);
    }
    Ok(())
}
