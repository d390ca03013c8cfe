//! A memory budget for a system together with its page cache: a control group of version 1 or 2.
//!
//! A page of the cache belongs to the group of the process that touched it first. So the processes must be in
//! the group before they start, and what others have read of the same files must be dropped first.

mod hierarchy;

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::fs::Advice;
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};

use crate::machine::error::AttachError;
use crate::machine::missing::Missing;
use crate::machine::mounts;
use crate::undo::registry::{Note, Registry, Resource};
use hierarchy::{Hierarchy, Version, read_field, read_number};

/// Our groups' parent, below the group that this process is in.
const PARENT: &str = "underlay";

/// How long a group may take to become empty and removable after its processes were killed.
const REMOVE_LIMIT: Duration = Duration::from_secs(10);

static NEXT_GROUP: AtomicU64 = AtomicU64::new(1);

/// A control group with a memory limit. Dropping it kills what is in it and removes it.
#[derive(Debug)]
pub struct MemoryBudget {
    directory: PathBuf,
    version: Version,
    bytes: u64,
    registry: Registry,
    note: Option<Note>,
}

/// What is missing when no memory controller can be used, or `None` when one can. It may make the empty
/// parent group, and removes it again.
///
/// # Errors
/// What is missing.
pub fn probe() -> Result<&'static str, Missing> {
    let hierarchy = Hierarchy::find(Path::new("/"))?;
    let parent = hierarchy.make_parent(PARENT)?;
    let _ = fs::remove_dir(parent);
    Ok(hierarchy.version.label())
}

impl MemoryBudget {
    /// Makes a group that may use `bytes` of memory, page cache included and swap excluded. `name` only helps to
    /// recognise it.
    ///
    /// # Errors
    /// When this host has no such groups to give, or the kernel refuses this one.
    pub fn create(name: &str, bytes: u64, registry: &Registry) -> Result<MemoryBudget, AttachError> {
        let hierarchy = Hierarchy::find(Path::new("/"))?;
        Self::create_in(&hierarchy, name, bytes, registry)
    }

    fn create_in(
        hierarchy: &Hierarchy,
        name: &str,
        bytes: u64,
        registry: &Registry,
    ) -> Result<MemoryBudget, AttachError> {
        let parent = hierarchy.make_parent(PARENT)?;
        let plain: String = name
            .chars()
            .map(|c| if c.is_ascii_alphanumeric() || c == '-' { c } else { '_' })
            .take(60)
            .collect();
        let number = NEXT_GROUP.fetch_add(1, Ordering::Relaxed);
        let directory = parent.join(format!("{plain}-{}-{number}", std::process::id()));
        let note = registry.note(Resource::Cgroup { directory: directory.clone() })?;
        let budget = MemoryBudget {
            directory,
            version: hierarchy.version,
            bytes,
            registry: registry.clone(),
            note: Some(note),
        };
        // Noted before it is made, so that a process killed in between leaves nothing unrecorded.
        fs::create_dir(&budget.directory)
            .map_err(|error| AttachError::io("make the control group", &budget.directory, error))?;
        budget.set_limits()?;
        Ok(budget)
    }

    fn set_limits(&self) -> Result<(), AttachError> {
        let bytes = self.bytes.to_string();
        match self.version {
            Version::V1 => {
                self.write("memory.limit_in_bytes", &bytes)?;
                // Memory and swap together, which may not be below memory alone: hence after it. Kernels without
                // swap accounting lack the file; their groups may swap, which swappiness then prevents.
                self.write_if_there("memory.memsw.limit_in_bytes", &bytes)?;
                self.write_if_there("memory.swappiness", "0")
            }
            Version::V2 => {
                self.write("memory.max", &bytes)?;
                self.write_if_there("memory.swap.max", "0")
            }
        }
    }

    fn write(&self, file: &str, value: &str) -> Result<(), AttachError> {
        let path = self.directory.join(file);
        fs::write(&path, value).map_err(|error| AttachError::io(&format!("set {value} in"), &path, error))
    }

    fn write_if_there(&self, file: &str, value: &str) -> Result<(), AttachError> {
        if self.directory.join(file).exists() { self.write(file, value) } else { Ok(()) }
    }

    /// The files that a process writes its number (or `0` for itself) into, before it allocates anything.
    pub fn procs_files(&self) -> Vec<PathBuf> {
        vec![self.directory.join("cgroup.procs")]
    }

    /// `cgroup v1` or `cgroup v2`
    pub fn enforced_by(&self) -> &'static str {
        self.version.label()
    }

    pub fn budget_bytes(&self) -> u64 {
        self.bytes
    }

    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Memory in use now, page cache included, in bytes.
    pub(crate) fn usage_bytes(&self) -> Option<u64> {
        read_number(&self.directory.join(self.version.usage_file()))
    }

    /// The most that was in use at once, in bytes. Version 2 reports it from Linux 5.19 on.
    pub fn peak_bytes(&self) -> Option<u64> {
        read_number(&self.directory.join(self.version.peak_file()))
    }

    /// How often the kernel killed a process of the group because the budget was spent.
    pub fn oom_kills(&self) -> u64 {
        read_field(&self.directory.join(self.version.oom_file()), "oom_kill").unwrap_or(0)
    }

    /// Drops the page cache of the group and of all files below `paths`, whoever read them, after writing out
    /// what is dirty. With `whole_machine` every clean page of this machine goes as well, which disturbs others.
    ///
    /// # Errors
    /// When the kernel does not let go of them.
    pub fn drop_caches(&self, paths: &[PathBuf], whole_machine: bool) -> Result<(), AttachError> {
        drop_file_caches(paths)?;
        let reclaimed = match self.version {
            Version::V1 => fs::write(self.directory.join("memory.force_empty"), "0"),
            Version::V2 => match self.usage_bytes() {
                Some(bytes) if bytes > 0 => {
                    fs::write(self.directory.join("memory.reclaim"), bytes.to_string())
                }
                _ => Ok(()),
            },
        };
        match reclaimed {
            // Memory that is really in use stays (EAGAIN, EBUSY); an old kernel has no such file.
            Ok(()) => {}
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) if matches!(Errno::from_io_error(&error), Some(Errno::AGAIN | Errno::BUSY)) => {}
            Err(error) => return Err(AttachError::io("drop the page cache of", &self.directory, error)),
        }
        if whole_machine {
            rustix::fs::sync();
            let path = Path::new("/proc/sys/vm/drop_caches");
            fs::write(path, "1").map_err(|error| AttachError::io("write", path, error))?;
        }
        Ok(())
    }

    /// Kills whatever is in the group and removes it; again does nothing.
    ///
    /// # Errors
    /// When processes are left in it that do not end.
    pub fn remove(&mut self) -> Result<(), AttachError> {
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

impl Drop for MemoryBudget {
    fn drop(&mut self) {
        let _ = self.remove();
    }
}

/// Drops the page cache of `paths` and of all files below them, whoever read them, after writing out what is
/// dirty on their filesystems: the next read comes from the device. It needs no budget and no privileges. Other
/// filesystems mounted below are left alone; files that can't be opened, and pages that are mapped, keep theirs.
///
/// # Errors
/// When a file can't be opened, or the kernel does not let go of it.
pub fn drop_file_caches(paths: &[PathBuf]) -> Result<(), AttachError> {
    for path in paths {
        // Written out first: DONTNEED drops clean pages only (posix_fadvise(2)).
        mounts::write_out(path).map_err(|error| AttachError::io("write out", path, error))?;
        forget_pages_below(path);
    }
    Ok(())
}

/// Advises the kernel to forget every page of a file, or of every file below a directory, without crossing into
/// other filesystems.
fn forget_pages_below(path: &Path) {
    use std::os::unix::fs::MetadataExt;
    let Ok(root) = fs::metadata(path) else { return };
    if root.is_file() {
        forget_pages_of(path);
        return;
    }
    let device = root.dev();
    let mut directories = vec![path.to_owned()];
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
            let Ok(metadata) = entry.metadata() else { continue };
            if metadata.is_dir() && metadata.dev() == device {
                directories.push(entry.path());
            } else if metadata.is_file() {
                forget_pages_of(&entry.path());
            }
        }
    }
}

fn forget_pages_of(path: &Path) {
    if let Ok(file) = File::open(path) {
        let _ = rustix::fs::fadvise(&file, 0, None, Advice::DontNeed);
    }
}

/// Kills every process in a group, until none is left or time is up; tells how many there were. This process
/// itself is moved out instead.
pub(crate) fn end_processes_in(directory: &Path) -> usize {
    let mut seen = BTreeSet::new();
    let deadline = Instant::now() + REMOVE_LIMIT;
    loop {
        let members = members(directory);
        if members.is_empty() || Instant::now() >= deadline {
            return seen.len();
        }
        // Again in every round: a process may fork before its signal arrives.
        for pid in members {
            if pid == std::process::id() {
                if let Some(parent) = directory.parent() {
                    let _ = fs::write(parent.join("cgroup.procs"), "0");
                }
                continue;
            }
            seen.insert(pid);
            if let Some(pid) = Pid::from_raw(pid as i32) {
                let _ = kill_process(pid, Signal::KILL);
            }
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn members(directory: &Path) -> Vec<u32> {
    let text = fs::read_to_string(directory.join("cgroup.procs")).unwrap_or_default();
    // Zero stands for a process that this namespace can't see, and signalling it would hit our own group.
    text.lines().filter_map(|line| line.trim().parse().ok()).filter(|pid| *pid != 0).collect()
}

/// Ends what is in a group and in groups below it, and removes them; then our parent group, if it is empty.
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
            // A process that was just killed may still be on its way out.
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
    if let Some(parent) = directory.parent().filter(|parent| parent.ends_with(PARENT)) {
        // Another budget may be in it.
        let _ = fs::remove_dir(parent);
    }
    Ok(())
}

#[cfg(test)]
mod tests;
