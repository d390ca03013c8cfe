//! Where this host keeps its control groups, and where below them we may create ours. Each controller is looked up
//! separately: a hybrid host has some in version 1 and others in version 2.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::machine::missing::MissingCapability;
use underlay_files::mountinfo::{self, Mount};

/// How often creating a group is retried. A process that removes a parent's last group removes the parent, too, perhaps
/// just before another uses it.
pub(super) const PARENT_ATTEMPTS: u32 = 20;

/// In a group of version 2.
pub(super) const PRESSURE_FILE: &str = "cpu.pressure";
/// Files that a new group inherits from its parent, in version 1.
const CPUSET_FILES: [&str; 2] = ["cpuset.cpus", "cpuset.mems"];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CgroupVersion {
    V1,
    V2,
}

impl CgroupVersion {
    pub(super) fn label(self) -> &'static str {
        match self {
            CgroupVersion::V1 => "cgroup v1",
            CgroupVersion::V2 => "cgroup v2",
        }
    }

    pub(super) fn usage_file(self) -> &'static str {
        match self {
            CgroupVersion::V1 => "memory.usage_in_bytes",
            CgroupVersion::V2 => "memory.current",
        }
    }

    pub(super) fn peak_file(self) -> &'static str {
        match self {
            CgroupVersion::V1 => "memory.max_usage_in_bytes",
            CgroupVersion::V2 => "memory.peak",
        }
    }

    /// A file with lines of a name and a number, including `oom_kill`.
    pub(super) fn oom_file(self) -> &'static str {
        match self {
            CgroupVersion::V1 => "memory.oom_control",
            CgroupVersion::V2 => "memory.events",
        }
    }

    /// The quota of CPU time; in version 2 with its period.
    pub(super) fn quota_file(self) -> &'static str {
        match self {
            CgroupVersion::V1 => "cpu.cfs_quota_us",
            CgroupVersion::V2 => "cpu.max",
        }
    }

    /// A group's weight against its siblings when all of them want a CPU, and the weight of a single program there.
    pub(super) fn weight(self) -> GroupWeight {
        match self {
            CgroupVersion::V1 => GroupWeight { file: "cpu.shares", of_a_program: 1024, largest: 1 << 18 },
            CgroupVersion::V2 => GroupWeight { file: "cpu.weight", of_a_program: 100, largest: 10_000 },
        }
    }
}

/// The form in which a version accepts a group's weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct GroupWeight {
    pub(super) file: &'static str,
    pub(super) of_a_program: u64,
    pub(super) largest: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CgroupController {
    Memory,
    Cpu,
    /// Counts CPU time in version 1; version 2 counts it in every group.
    Cpuacct,
    Cpuset,
    /// Limits nothing. A loop device has a separate worker for the requests of each group, and another one for its
    /// flushes. Without this, requests after a flush wait for it.
    Io,
    /// Not a controller but a counter of stalls, which groups of version 2 always have.
    Pressure,
}

impl CgroupController {
    pub(super) fn name(self) -> &'static str {
        match self {
            CgroupController::Memory => "memory",
            CgroupController::Cpu => "cpu",
            CgroupController::Cpuacct => "cpuacct",
            CgroupController::Cpuset => "cpuset",
            CgroupController::Io => "io",
            CgroupController::Pressure => "pressure",
        }
    }

    /// Its name in version 1.
    fn v1_name(self) -> &'static str {
        match self {
            CgroupController::Io => "blkio",
            other => other.name(),
        }
    }

    /// The affinity of processes also limits them to their CPUs, their waits are only counted, and reads that wait for
    /// a flush are late but correct.
    pub(super) fn is_optional(self) -> bool {
        matches!(self, CgroupController::Cpuset | CgroupController::Io | CgroupController::Pressure)
    }

    fn missing(self) -> MissingCapability {
        match self {
            CgroupController::Memory => MissingCapability::new(
                "a memory control group",
                "enable the controller: boot with `cgroup_enable=memory`, or in a container mount the cgroup filesystem writable",
            ),
            _ => MissingCapability::new(
                format!("the controller `{}` of control groups", self.name()),
                "mount a cgroup filesystem that has it, or in a container mount the host's writable; in version 2 \
                 `cgroup.controllers` must list it",
            ),
        }
    }
}

/// A hierarchy of control groups with some of the needed controllers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CgroupHierarchy {
    pub(super) version: CgroupVersion,
    /// The controllers that our groups in it are for.
    pub(super) controllers: Vec<CgroupController>,
    /// Where it is mounted.
    mount_point: PathBuf,
    /// The group that this process is in, below the mount point.
    own: PathBuf,
}

/// The group that contains ours.
#[derive(Debug)]
pub(super) struct ParentGroup {
    pub(super) directory: PathBuf,
    /// The controllers that the groups in it actually have.
    pub(super) controllers: Vec<CgroupController>,
}

/// The hierarchies of this host with the `wanted` controllers. `root` stands for `/`, so that tests can supply their
/// own `/proc` and `/sys`.
pub(super) fn find(
    root: &Path,
    wanted: &[CgroupController],
) -> Result<Vec<CgroupHierarchy>, MissingCapability> {
    let host = HostGroups::read(root);
    let mut found: Vec<CgroupHierarchy> = Vec::new();
    for &controller in wanted {
        let has_cpu = |found: &&CgroupHierarchy| found.controllers.contains(&CgroupController::Cpu);
        let of_cpu = found.iter().find(has_cpu).map(|hierarchy| hierarchy.version);
        // The group for CPU time has both in version 2.
        let is_in_cpu = matches!(controller, CgroupController::Cpuacct | CgroupController::Pressure);
        if is_in_cpu && of_cpu == Some(CgroupVersion::V2) {
            continue;
        }
        let Some(hierarchy) = host.hierarchy(root, controller) else {
            if controller.is_optional() {
                continue;
            }
            return Err(controller.missing());
        };
        match found.iter_mut().find(|other| other.mount_point == hierarchy.mount_point) {
            Some(other) => other.controllers.push(controller),
            None => found.push(hierarchy),
        }
    }
    Ok(found)
}

/// The groups of this process, from `/proc`.
struct HostGroups {
    mounted: Vec<Mount>,
    mounts_table: String,
    own: String,
}

impl HostGroups {
    fn read(root: &Path) -> HostGroups {
        let proc = root.join("proc/self");
        HostGroups {
            mounted: mountinfo::parse(&fs::read(proc.join("mountinfo")).unwrap_or_default()),
            mounts_table: fs::read_to_string(proc.join("mounts")).unwrap_or_default(),
            own: fs::read_to_string(proc.join("cgroup")).unwrap_or_default(),
        }
    }

    fn hierarchy(&self, root: &Path, controller: CgroupController) -> Option<CgroupHierarchy> {
        // Version 1 first: a hybrid host mounts both, and a controller bound to v1 is not available in v2.
        let is_v1 = |mount: &&Mount| is_v1_with(mount, &self.mounts_table, controller);
        let v1 = own_group(&self.own, Some(controller)).zip(self.mounted.iter().find(is_v1));
        if let Some((group, mount)) = v1 {
            return Some(CgroupHierarchy::new(root, CgroupVersion::V1, controller, mount, &group));
        }
        let is_v2 = |mount: &&Mount| mount.filesystem == "cgroup2";
        let (group, mount) = own_group(&self.own, None).zip(self.mounted.iter().find(is_v2))?;
        let found = CgroupHierarchy::new(root, CgroupVersion::V2, controller, mount, &group);
        let is_there = match controller {
            // A user without root could create the group but not move processes into it.
            CgroupController::Pressure => {
                found.mount_point.join(PRESSURE_FILE).exists() && rustix::process::geteuid().is_root()
            }
            CgroupController::Io => {
                offers(&found.mount_point, controller) && rustix::process::geteuid().is_root()
            }
            _ => offers(&found.mount_point, controller),
        };
        is_there.then_some(found)
    }
}

impl CgroupHierarchy {
    fn new(
        root: &Path,
        version: CgroupVersion,
        controller: CgroupController,
        mount: &Mount,
        group: &str,
    ) -> CgroupHierarchy {
        let mount_point = root.join(mount.mount_point.strip_prefix("/").unwrap_or(&mount.mount_point));
        let own = mount_point.join(group.trim_start_matches('/'));
        // In a container the path may be the host's, which does not exist here.
        let own = if own.is_dir() { own } else { mount_point.clone() };
        CgroupHierarchy { version, controllers: vec![controller], mount_point, own }
    }

    /// Whether a budget works without groups in it.
    pub(super) fn is_optional(&self) -> bool {
        self.controllers.iter().all(|controller| controller.is_optional())
    }

    /// Makes our parent group, as near to this process's own group as the kernel allows.
    pub(super) fn make_parent(&self, name: &str) -> Result<ParentGroup, MissingCapability> {
        let mut last_error = String::new();
        // A v2 group with processes may not have groups with controllers below it, so ours goes next to it, or further
        // up. Version 1 has no such rule.
        for place in self.own.ancestors().take_while(|place| place.starts_with(&self.mount_point)) {
            for _ in 0..PARENT_ATTEMPTS {
                match self.try_parent(place, name) {
                    Ok(parent) if parent.directory.is_dir() => return self.with_quotas(parent),
                    Ok(_) => {}
                    Err(error) => {
                        last_error = format!("{}: {error}", place.display());
                        if error.kind() != io::ErrorKind::NotFound {
                            break;
                        }
                    }
                }
            }
        }
        let label = self.version.label();
        let controllers = names(&self.controllers).join(", ");
        let mut remedy = "run as root, or ask for a delegated group with `systemd-run --user --scope -p Delegate=yes underlay …`"
            .to_owned();
        if self.controllers.contains(&CgroupController::Cpu) {
            remedy.push_str(" where the unit `user@.service` delegates `cpu`");
        }
        Err(MissingCapability::new(
            format!("the right to make a {label} group with {controllers} ({last_error})"),
            remedy,
        ))
    }

    /// A kernel can have the controller `cpu` without quotas.
    fn with_quotas(&self, parent: ParentGroup) -> Result<ParentGroup, MissingCapability> {
        let wanted = parent.controllers.contains(&CgroupController::Cpu);
        if wanted && !parent.directory.join(self.version.quota_file()).exists() {
            // Another budget may use it.
            let _ = fs::remove_dir(&parent.directory);
            return Err(MissingCapability::new(
                format!("quotas of CPU time ({})", self.version.quota_file()),
                "use a kernel that has them (CONFIG_CFS_BANDWIDTH)",
            ));
        }
        Ok(parent)
    }

    fn try_parent(&self, place: &Path, name: &str) -> io::Result<ParentGroup> {
        let directory = place.join(name);
        if self.version == CgroupVersion::V2 {
            enable(place, &self.controllers)?;
        }
        match fs::create_dir(&directory) {
            // Perhaps another user has just created it: then we need the right to write there.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                rustix::fs::access(&directory, rustix::fs::Access::WRITE_OK | rustix::fs::Access::EXEC_OK)?;
            }
            made => made?,
        }
        let mut controllers = self.controllers.clone();
        match self.version {
            CgroupVersion::V2 => controllers = enable(&directory, &self.controllers)?,
            CgroupVersion::V1 => {
                let hierarchical = directory.join("memory.use_hierarchy");
                // Kernels from 5.11 on are always hierarchical, and may lack the file or refuse the write.
                if read_number(&hierarchical) == Some(0) {
                    fs::write(&hierarchical, "1")?;
                }
                if controllers.contains(&CgroupController::Cpuset) {
                    inherit_cpuset(place, &directory)?;
                }
            }
        }
        Ok(ParentGroup { directory, controllers })
    }
}

/// Enables these controllers for the groups below `group`, and returns those that they have: all, except perhaps
/// optional ones.
fn enable(group: &Path, controllers: &[CgroupController]) -> io::Result<Vec<CgroupController>> {
    let control = group.join("cgroup.subtree_control");
    let enabled = fs::read_to_string(&control)?;
    let is_on = |controller: &CgroupController| {
        *controller == CgroupController::Pressure
            || enabled.split_ascii_whitespace().any(|name| name == controller.name())
    };
    let (active, off): (Vec<CgroupController>, Vec<CgroupController>) =
        controllers.iter().copied().partition(is_on);
    let (optional, required): (Vec<CgroupController>, Vec<CgroupController>) =
        off.into_iter().partition(|controller| controller.is_optional());
    let write = |controllers: &[CgroupController]| {
        let words: Vec<String> = names(controllers).iter().map(|name| format!("+{name}")).collect();
        fs::write(&control, words.join(" "))
    };
    if !required.is_empty() {
        write(&required).map_err(|error| {
            io::Error::new(error.kind(), format!("enabling {}: {error}", names(&required).join(", ")))
        })?;
    }
    let optional = optional.into_iter().filter(|controller| write(&[*controller]).is_ok());
    Ok(active.into_iter().chain(required.iter().copied()).chain(optional).collect())
}

/// A new group of version 1 has no CPUs and no memory nodes, and can't have processes until it has both.
pub(super) fn inherit_cpuset(from: &Path, to: &Path) -> io::Result<()> {
    for file in CPUSET_FILES {
        let above = fs::read_to_string(from.join(file))?;
        let own = fs::read_to_string(to.join(file)).unwrap_or_default();
        if own.trim() == above.trim() {
            continue;
        }
        match fs::write(to.join(file), above.trim()) {
            // Groups below it still use more than this: its present set is enough for them.
            Err(_) if !own.trim().is_empty() => {}
            written => written?,
        }
    }
    Ok(())
}

fn names(controllers: &[CgroupController]) -> Vec<&'static str> {
    controllers.iter().map(|controller| controller.name()).collect()
}

fn offers(group: &Path, controller: CgroupController) -> bool {
    let controllers = fs::read_to_string(group.join("cgroup.controllers")).unwrap_or_default();
    controllers.split_ascii_whitespace().any(|name| name == controller.name())
}

/// A v1 hierarchy lists its controllers only in its mount options.
fn is_v1_with(mount: &Mount, mounts_table: &str, controller: CgroupController) -> bool {
    let place = mount.mount_point.to_string_lossy();
    mount.filesystem == "cgroup"
        && mounts_table.lines().any(|line| {
            let fields: Vec<&str> = line.split_ascii_whitespace().collect();
            fields.len() > 3
                && fields[1] == place
                && fields[2] == "cgroup"
                && fields[3].split(',').any(|option| option == controller.v1_name())
        })
}

/// The group of this process in the v1 hierarchy of `controller`, or in the v2 hierarchy, from the text of
/// `/proc/self/cgroup`: lines of `number:controllers:path`, where v2 has number 0 and no controllers (cgroups(7)).
fn own_group(text: &str, controller: Option<CgroupController>) -> Option<String> {
    text.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':');
        let (number, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
        let matches = match controller {
            Some(wanted) => controllers.split(',').any(|name| name == wanted.v1_name()),
            None => number == "0" && controllers.is_empty(),
        };
        matches.then(|| path.to_owned())
    })
}

pub(super) fn read_number(path: &Path) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// The number after `name` in a file of names and numbers.
pub(super) fn read_field(path: &Path, name: &str) -> Option<u64> {
    let text = fs::read_to_string(path).ok()?;
    text.lines().find_map(|line| {
        let (found, value) = line.split_once(' ')?;
        (found == name).then(|| value.trim().parse().ok())?
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_groups_of_both_versions() {
        let text = "9:name=systemd:/\n4:cpu,memory:/jobs/a:b\n0::/user.slice/x.scope\n";
        assert_eq!(own_group(text, Some(CgroupController::Memory)).as_deref(), Some("/jobs/a:b"));
        assert_eq!(own_group(text, None).as_deref(), Some("/user.slice/x.scope"));
        assert_eq!(own_group("9:pids:/\n", Some(CgroupController::Memory)), None);
        // `cpu` is not `cpuset`.
        assert_eq!(own_group("9:cpuset,cpuacct:/\n", Some(CgroupController::Cpu)), None);
        assert_eq!(own_group("", None), None);
        assert_eq!(own_group("nonsense", None), None);
    }
}
