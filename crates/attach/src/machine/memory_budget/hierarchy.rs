//! Where this host keeps its memory control groups, and where below them we may make ours.

use std::fs;
use std::path::{Path, PathBuf};

use crate::machine::missing::Missing;
use underlay_files::mountinfo::{self, Mount};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Version {
    V1,
    V2,
}

impl Version {
    pub(super) fn label(self) -> &'static str {
        match self {
            Version::V1 => "cgroup v1",
            Version::V2 => "cgroup v2",
        }
    }

    pub(super) fn usage_file(self) -> &'static str {
        match self {
            Version::V1 => "memory.usage_in_bytes",
            Version::V2 => "memory.current",
        }
    }

    pub(super) fn peak_file(self) -> &'static str {
        match self {
            Version::V1 => "memory.max_usage_in_bytes",
            Version::V2 => "memory.peak",
        }
    }

    /// Lines of a name and a number, `oom_kill` among them.
    pub(super) fn oom_file(self) -> &'static str {
        match self {
            Version::V1 => "memory.oom_control",
            Version::V2 => "memory.events",
        }
    }
}

/// A hierarchy of control groups with a memory controller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Hierarchy {
    pub(super) version: Version,
    /// Where it is mounted.
    mount_point: PathBuf,
    /// The group that this process is in, below the mount point.
    own: PathBuf,
}

impl Hierarchy {
    /// The memory hierarchy of this host; `root` stands for `/`, so that tests can bring their own `/proc` and `/sys`.
    pub(super) fn find(root: &Path) -> Result<Hierarchy, Missing> {
        let proc = root.join("proc/self");
        let mount_table = fs::read(proc.join("mountinfo")).unwrap_or_default();
        let own = fs::read_to_string(proc.join("cgroup")).unwrap_or_default();
        let options = fs::read_to_string(proc.join("mounts")).unwrap_or_default();
        let mounted = mountinfo::parse(&mount_table);
        // Version 1 first: a hybrid host mounts both, and a controller bound to v1 is not available in v2.
        let v1 =
            own_group(&own, Some("memory")).zip(mounted.iter().find(|mount| is_v1_memory(mount, &options)));
        if let Some((group, mount)) = v1 {
            return Ok(Self::at(root, Version::V1, mount, &group));
        }
        let v2 = own_group(&own, None).zip(mounted.iter().find(|mount| mount.filesystem == "cgroup2"));
        match v2 {
            Some((group, mount)) => {
                let found = Self::at(root, Version::V2, mount, &group);
                if offers_memory(&found.mount_point) { Ok(found) } else { Err(no_controller()) }
            }
            None => Err(no_controller()),
        }
    }

    fn at(root: &Path, version: Version, mount: &Mount, group: &str) -> Hierarchy {
        let mount_point = root.join(mount.mount_point.strip_prefix("/").unwrap_or(&mount.mount_point));
        let own = mount_point.join(group.trim_start_matches('/'));
        // In a container the path may be the host's, which does not exist here.
        let own = if own.is_dir() { own } else { mount_point.clone() };
        Hierarchy { version, mount_point, own }
    }

    /// Makes our parent group, as near to this process's own group as the kernel allows, and returns it.
    pub(super) fn make_parent(&self, name: &str) -> Result<PathBuf, Missing> {
        let mut last_error = String::new();
        // A v2 group with processes may not have groups with controllers below it, so ours is put beside it, or
        // further up. Version 1 has no such rule.
        for place in self.own.ancestors().take_while(|place| place.starts_with(&self.mount_point)) {
            match self.try_parent(place, name) {
                Ok(parent) => return Ok(parent),
                Err(error) => last_error = format!("{}: {error}", place.display()),
            }
        }
        Err(Missing::new(
            format!("the right to make a {} memory group ({last_error})", self.version.label()),
            "run as root, or ask for a delegated group with `systemd-run --user --scope -p Delegate=yes underlay …`",
        ))
    }

    fn try_parent(&self, place: &Path, name: &str) -> std::io::Result<PathBuf> {
        let parent = place.join(name);
        if self.version == Version::V2 {
            enable_memory(place)?;
        }
        match fs::create_dir(&parent) {
            // Perhaps another user has just made it: then we need the right to write there.
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
                rustix::fs::access(&parent, rustix::fs::Access::WRITE_OK | rustix::fs::Access::EXEC_OK)?;
            }
            made => made?,
        }
        match self.version {
            Version::V2 => enable_memory(&parent)?,
            Version::V1 => {
                let hierarchical = parent.join("memory.use_hierarchy");
                // Kernels from 5.11 on are always hierarchical and may lack the file or refuse to write it.
                if read_number(&hierarchical) == Some(0) {
                    fs::write(&hierarchical, "1")?;
                }
            }
        }
        Ok(parent)
    }
}

/// Lets the groups below `group` have their own memory limits.
fn enable_memory(group: &Path) -> std::io::Result<()> {
    let control = group.join("cgroup.subtree_control");
    let enabled = fs::read_to_string(&control)?;
    if enabled.split_ascii_whitespace().any(|controller| controller == "memory") {
        return Ok(());
    }
    fs::write(&control, "+memory")
}

fn offers_memory(group: &Path) -> bool {
    let controllers = fs::read_to_string(group.join("cgroup.controllers")).unwrap_or_default();
    controllers.split_ascii_whitespace().any(|controller| controller == "memory")
}

/// A v1 hierarchy tells its controllers in its mount options only.
fn is_v1_memory(mount: &Mount, mounts_table: &str) -> bool {
    let place = mount.mount_point.to_string_lossy();
    mount.filesystem == "cgroup"
        && mounts_table.lines().any(|line| {
            let fields: Vec<&str> = line.split_ascii_whitespace().collect();
            fields.len() > 3
                && fields[1] == place
                && fields[2] == "cgroup"
                && fields[3].split(',').any(|option| option == "memory")
        })
}

/// The group of this process in the v1 hierarchy of `controller`, or in the v2 hierarchy, from the text of
/// `/proc/self/cgroup`: lines of `number:controllers:path`, where v2 has number 0 and no controllers (cgroups(7)).
fn own_group(text: &str, controller: Option<&str>) -> Option<String> {
    text.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':');
        let (number, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
        let matches = match controller {
            Some(wanted) => controllers.split(',').any(|controller| controller == wanted),
            None => number == "0" && controllers.is_empty(),
        };
        matches.then(|| path.to_owned())
    })
}

fn no_controller() -> Missing {
    Missing::new(
        "a memory control group",
        "enable the controller: boot with `cgroup_enable=memory`, or in a container mount the cgroup filesystem writable",
    )
}

pub(super) fn read_number(path: &Path) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// The number behind `name` in a file of names and numbers.
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
        assert_eq!(own_group(text, Some("memory")).as_deref(), Some("/jobs/a:b"));
        assert_eq!(own_group(text, None).as_deref(), Some("/user.slice/x.scope"));
        assert_eq!(own_group("9:pids:/\n", Some("memory")), None);
        assert_eq!(own_group("", None), None);
        assert_eq!(own_group("nonsense", None), None);
    }
}
