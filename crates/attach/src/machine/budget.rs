//! A system's budget on this host: memory including its page cache, and CPU time. Control groups of version 1 or 2
//! enforce it.
//!
//! A page of the cache belongs to the group of the process that touched it first. So the processes must be in the group
//! before they start, and pages that others have read of the same files must be dropped first.

mod cpu;
mod group;
mod hierarchy;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::io::Errno;

use crate::machine::error::AttachError;
use crate::machine::missing::MissingCapability;
use crate::machine::page_cache;
use crate::undo::registry::ResourceRegistry;
use cpu::CpuLimitState;
use cpu::KernelQuota;
pub use cpu::{CpuQuota, CpuShare, CpuUsage};
use group::{ControlGroup, PARENT, PARENT_OF_OTHERS};
pub(crate) use group::{end_processes_in, remove_group};
use hierarchy::{CgroupController, CgroupVersion, read_field, read_number};

const FOR_CPU: [CgroupController; 4] =
    [CgroupController::Cpu, CgroupController::Cpuacct, CgroupController::Cpuset, CgroupController::Pressure];

static NEXT_GROUP: AtomicU64 = AtomicU64::new(1);

/// A group's limits.
#[derive(Clone, Debug, PartialEq)]
pub struct GroupLimits {
    /// Page cache included and swap excluded.
    pub memory_bytes: u64,
    /// `None`: all CPUs.
    pub cpu: Option<CpuShare>,
}

/// Control groups with limits: one, or one per controller where this host separates them. Dropping it kills their
/// processes and removes them.
#[derive(Debug)]
pub struct ResourceBudget {
    /// The group for memory is the first.
    groups: Vec<ControlGroup>,
    memory_bytes: u64,
    cpu: Option<CpuLimit>,
}

/// The limit that [`ResourceBudget::hold_cpu`] sets.
#[derive(Debug)]
struct CpuLimit {
    /// `None`: it may use all the time of its CPUs.
    quota: Option<KernelQuota>,
    share: CpuShare,
    held: CpuLimitState,
    /// The number of CPUs on which it has priority over other programs.
    prevails_on: Option<usize>,
}

/// The mechanism that would limit memory, such as `cgroup v2`. It may create the empty parent group, and removes it
/// again.
///
/// # Errors
/// The missing capability.
pub fn probe() -> Result<&'static str, MissingCapability> {
    let mut label = "";
    for hierarchy in hierarchy::find(Path::new("/"), &[CgroupController::Memory])? {
        let parent = hierarchy.make_parent(PARENT)?;
        let _ = fs::remove_dir(parent.directory);
        label = hierarchy.version.label();
    }
    Ok(label)
}

/// Like [`probe`], for CPU time: `cgroup v2, with CPU sets`.
///
/// # Errors
/// The missing capability.
pub fn probe_cpu() -> Result<String, MissingCapability> {
    let (mut label, mut has_sets) = ("", false);
    for hierarchy in hierarchy::find(Path::new("/"), &FOR_CPU)? {
        match hierarchy.make_parent(PARENT) {
            Ok(parent) => {
                let _ = fs::remove_dir(parent.directory);
                has_sets |= parent.controllers.contains(&CgroupController::Cpuset);
                if parent.controllers.contains(&CgroupController::Cpu) {
                    label = hierarchy.version.label();
                }
            }
            Err(_) if hierarchy.is_optional() => {}
            Err(missing) => return Err(missing),
        }
    }
    let sets = if has_sets { "with CPU sets" } else { "without CPU sets: affinity stands in for them" };
    Ok(format!("{label}, {sets}"))
}

impl ResourceBudget {
    /// Creates groups with these `limits`, but without a quota of CPU time until [`hold_cpu`](Self::hold_cpu). `name`
    /// only helps to recognise them.
    ///
    /// # Errors
    /// [`AttachError::MissingCapability`] when this host offers no such groups; with a limit of CPU time, also when it
    /// offers them for memory alone. Others when a limit makes no sense, or the kernel refuses it.
    pub fn create(
        name: &str,
        limits: &GroupLimits,
        registry: &ResourceRegistry,
    ) -> Result<ResourceBudget, AttachError> {
        Self::create_in(Path::new("/"), name, limits, registry)
    }

    /// `root` stands for `/`.
    fn create_in(
        root: &Path,
        name: &str,
        limits: &GroupLimits,
        registry: &ResourceRegistry,
    ) -> Result<ResourceBudget, AttachError> {
        let quota = limits.cpu.as_ref().map(CpuShare::quota).transpose()?;
        let mut wanted = vec![CgroupController::Memory, CgroupController::Io];
        if limits.cpu.is_some() {
            wanted.extend(FOR_CPU);
        }
        let plain: String = name
            .chars()
            .map(|c| if c.is_ascii_alphanumeric() || c == '-' { c } else { '_' })
            .take(60)
            .collect();
        let number = NEXT_GROUP.fetch_add(1, Ordering::Relaxed);
        let name = format!("{plain}-{}-{number}", std::process::id());
        let parent = if limits.cpu.is_some() { PARENT } else { PARENT_OF_OTHERS };
        let mut groups = Vec::new();
        for hierarchy in hierarchy::find(root, &wanted)? {
            match ControlGroup::make(&hierarchy, parent, &name, registry) {
                Ok(group) => groups.push(group),
                Err(_) if hierarchy.is_optional() => {}
                Err(error) => return Err(error),
            }
        }
        let prevails_on = limits.cpu.as_ref().filter(|share| share.prevails).map(|share| share.cpus.len());
        let share = limits.cpu.clone();
        let limit = |(quota, share)| CpuLimit { quota, share, held: CpuLimitState::default(), prevails_on };
        let cpu = quota.zip(share).map(limit);
        let budget = ResourceBudget { groups, memory_bytes: limits.memory_bytes, cpu };
        budget.limit_memory()?;
        if let (Some(share), Some(group)) = (&limits.cpu, budget.group(CgroupController::Cpuset)) {
            group.write("cpuset.cpus", &share.cpus.to_string())?;
        }
        Ok(budget)
    }

    fn limit_memory(&self) -> Result<(), AttachError> {
        let bytes = self.memory_bytes.to_string();
        let group = self.memory();
        match group.version() {
            CgroupVersion::V1 => {
                group.write("memory.limit_in_bytes", &bytes)?;
                // Memory and swap together, which must not be below memory alone, and so comes after it. Kernels
                // without swap accounting lack the file; their groups may swap, which swappiness then prevents.
                group.write_if_there("memory.memsw.limit_in_bytes", &bytes)?;
                group.write_if_there("memory.swappiness", "0")
            }
            CgroupVersion::V2 => {
                group.write("memory.max", &bytes)?;
                group.write_if_there("memory.swap.max", "0")
            }
        }
    }

    fn memory(&self) -> &ControlGroup {
        &self.groups[0]
    }

    fn group(&self, controller: CgroupController) -> Option<&ControlGroup> {
        self.groups.iter().find(|group| group.has(controller))
    }

    /// The files into which a process writes its number (or `0` for itself), all of them, before it allocates anything.
    pub fn join_files(&self) -> Vec<PathBuf> {
        self.groups.iter().map(|group| group.file("cgroup.procs")).collect()
    }

    /// The mechanism that limits the memory: `cgroup v1` or `cgroup v2`.
    pub fn enforced_by(&self) -> &'static str {
        self.memory().version().label()
    }

    pub fn budget_bytes(&self) -> u64 {
        self.memory_bytes
    }

    /// The groups themselves, that of memory first.
    pub fn directories(&self) -> Vec<&Path> {
        self.groups.iter().map(ControlGroup::directory).collect()
    }

    /// Memory in use now, page cache included, in bytes.
    pub fn usage_bytes(&self) -> Option<u64> {
        let group = self.memory();
        read_number(&group.file(group.version().usage_file()))
    }

    /// The peak memory use in bytes. Version 2 reports it from Linux 5.19 on.
    pub fn peak_bytes(&self) -> Option<u64> {
        let group = self.memory();
        read_number(&group.file(group.version().peak_file()))
    }

    /// How often the kernel killed a process of the group because the budget was used up.
    pub fn oom_kills(&self) -> u64 {
        let group = self.memory();
        read_field(&group.file(group.version().oom_file()), "oom_kill").unwrap_or(0)
    }

    /// Kills everything in the group.
    pub fn end_processes(&self) {
        for directory in self.directories() {
            end_processes_in(directory);
        }
    }

    /// From now on the group gets no more CPU time than its share, but has priority for it over other programs. Without
    /// a limit of CPU time this does nothing, and where the share is all the time of its CPUs there is nothing to do.
    ///
    /// # Errors
    /// When the kernel refuses the quota.
    pub fn hold_cpu(&self) -> Result<(), AttachError> {
        self.set_cpu(true)
    }

    /// The group may use all the time of its CPUs again.
    ///
    /// # Errors
    /// When the kernel refuses it.
    pub fn release_cpu(&self) -> Result<(), AttachError> {
        self.set_cpu(false)
    }

    fn set_cpu(&self, is_held: bool) -> Result<(), AttachError> {
        let (Some(CpuLimit { quota, held: kernel_quota, prevails_on, .. }), Some(group)) =
            (&self.cpu, self.group(CgroupController::Cpu))
        else {
            return Ok(());
        };
        // Even without a quota: the cpuset limits whole CPUs, but other programs may run there.
        if let Some(cpus) = prevails_on {
            cpu::prevail(group, *cpus, is_held);
        }
        match quota {
            Some(_) => {
                // A concurrent `CpuQuota::change` waits here, and then sees whether the quota still applies.
                let mut kernel_quota = kernel_quota.lock();
                let quota = quota.filter(|_| is_held);
                *kernel_quota = quota;
                cpu::set_quota(group, quota)
            }
            None => Ok(()),
        }
    }

    /// The quota, if there is one that can be changed.
    pub fn cpu_quota(&self) -> Option<CpuQuota> {
        let CpuLimit { quota, share, held: kernel_quota, .. } = self.cpu.as_ref()?;
        quota.as_ref()?;
        Some(CpuQuota::new(self.group(CgroupController::Cpu)?, share, kernel_quota))
    }

    /// The mechanism that limits the CPU time, if it has a limit: `cgroup v1` or `cgroup v2`.
    pub fn cpu_enforced_by(&self) -> Option<&'static str> {
        self.cpu.as_ref()?;
        self.group(CgroupController::Cpu).map(|group| group.version().label())
    }

    /// The CPU time used so far; `None` if it has no limit.
    pub fn cpu_usage(&self) -> Option<CpuUsage> {
        self.cpu.as_ref()?;
        let group = self.group(CgroupController::Cpu)?;
        let of_its_own = (group.version() == CgroupVersion::V2).then_some(group);
        cpu::usage(
            group,
            self.group(CgroupController::Cpuacct),
            self.group(CgroupController::Pressure).or(of_its_own),
        )
    }

    /// Drops the page cache of the group and of all files below `paths`, no matter which process read them, after
    /// writing dirty pages out. With `whole_machine`, every clean page of this machine is dropped too, which disturbs
    /// other programs.
    ///
    /// # Errors
    /// When the kernel does not drop them.
    pub fn drop_caches(&self, paths: &[PathBuf], whole_machine: bool) -> Result<(), AttachError> {
        page_cache::drop_file_caches(paths)?;
        let group = self.memory();
        let reclaimed = match group.version() {
            CgroupVersion::V1 => fs::write(group.file("memory.force_empty"), "0"),
            CgroupVersion::V2 => match self.usage_bytes() {
                Some(bytes) if bytes > 0 => fs::write(group.file("memory.reclaim"), bytes.to_string()),
                _ => Ok(()),
            },
        };
        match reclaimed {
            // Memory that is in use stays (EAGAIN, EBUSY); an old kernel has no such file.
            Ok(()) => {}
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) if matches!(Errno::from_io_error(&error), Some(Errno::AGAIN | Errno::BUSY)) => {}
            Err(error) => return Err(AttachError::io("drop the page cache of", group.directory(), error)),
        }
        if whole_machine {
            page_cache::drop_all()?;
        }
        Ok(())
    }

    /// Kills all processes in the groups and removes the groups; a second call does nothing.
    ///
    /// # Errors
    /// When processes in one of them do not end.
    pub fn remove(&mut self) -> Result<(), AttachError> {
        self.groups.iter_mut().map(ControlGroup::remove).fold(Ok(()), Result::and)
    }
}

#[cfg(test)]
mod tests;
