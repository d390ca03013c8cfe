//! This host's capabilities, as `underlay doctor` shows them.

use std::fs;
use std::path::Path;

use crate::attachments::filesystem::FilesystemKind;
use crate::attachments::loop_device;
use crate::machine::budget;
use crate::machine::missing::MissingCapability;
use crate::machine::privileges::{probe_fuse, probe_privileges};
use crate::machine::programs::find_program;
use crate::serving::fuse_uring;

/// Whether a capability is present, with the details.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CapabilityStatus {
    Ok(String),
    Missing(MissingCapability),
}

impl From<Result<String, MissingCapability>> for CapabilityStatus {
    fn from(found: Result<String, MissingCapability>) -> CapabilityStatus {
        found.map_or_else(CapabilityStatus::Missing, CapabilityStatus::Ok)
    }
}

/// How important it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CapabilityNeed {
    /// Without it no storage can be modelled here.
    Required,
    /// Only the features in `needed_for` are missing.
    Optional,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostCapability {
    /// `FUSE`
    pub name: &'static str,
    pub status: CapabilityStatus,
    pub need: CapabilityNeed,
    /// Features that need it.
    pub needed_for: String,
}

/// Every capability except the needs of single systems, the required ones first. `work_directory` is where runs keep
/// their data; it may not exist yet.
pub fn capabilities(work_directory: &Path) -> Vec<HostCapability> {
    use CapabilityNeed::{Optional, Required};
    let capability = |name, need, needed_for: &str, found: Result<String, MissingCapability>| {
        HostCapability { name, need, needed_for: needed_for.to_owned(), status: found.into() }
    };
    let program = |name, package| find_in_package(name, package);
    vec![
        capability(
            "root",
            Required,
            "block devices and memory budgets (without it, modelled storage is a FUSE directory)",
            probe_privileges().map(|()| "CAP_SYS_ADMIN is there".into()),
        ),
        capability("FUSE", Required, "modelled storage", probe_fuse().map(|()| "/dev/fuse opens".into())),
        capability("loop devices", Required, "modelled storage as block devices", loop_control()),
        capability("mkfs.xfs", Required, "XFS on modelled storage", filesystem(FilesystemKind::Xfs)),
        capability("mkfs.ext4", Optional, "ext4 on modelled storage", filesystem(FilesystemKind::Ext4)),
        capability(
            "memory budget",
            Required,
            "holding a system and its page cache to its memory",
            budget::probe().map(str::to_owned),
        ),
        capability(
            "CPU budget",
            Optional,
            "holding a system to the cores of the machine that it is modelled on",
            budget::probe_cpu(),
        ),
        capability("free disk", Required, "the data of a run", free_disk(work_directory)),
        capability("free memory", Required, "the systems under test", free_memory()),
        capability("clock", Required, "honest latencies", clock_source()),
        capability("timer", Required, "honest latencies", timer_slack()),
        capability("fusermount3", Optional, "FUSE without root", program("fusermount3", "fuse3")),
        capability("fio", Optional, "checking a mount against its model", program("fio", "fio")),
        capability("chromium", Optional, "pictures of the HTML report", program("chromium", "chromium")),
        capability(
            "FUSE over io_uring",
            Optional,
            "a cheaper path to the kernel",
            fuse_uring::probe().map(|()| "enabled".into()),
        ),
        capability(
            "NVMe/TCP",
            Optional,
            "volumes of a server by the kernel's own initiator; Underlay's needs nothing",
            nvme_tcp(),
        ),
    ]
}

/// The path of a program.
///
/// # Errors
/// When it is missing, with the Debian package that contains it.
pub fn find_in_package(name: &str, package: &str) -> Result<String, MissingCapability> {
    match find_program(name) {
        Some(path) => Ok(path.display().to_string()),
        None => Err(MissingCapability::new(
            format!("the program {name}"),
            format!("install the Debian package {package}"),
        )),
    }
}

fn filesystem(filesystem: FilesystemKind) -> Result<String, MissingCapability> {
    filesystem.probe()?;
    let name = filesystem.name();
    let filesystems = fs::read_to_string("/proc/filesystems").unwrap_or_default();
    let is_known = filesystems.lines().any(|line| line.split_ascii_whitespace().next_back() == Some(name));
    Ok(if is_known {
        format!("{name} can be made and mounted")
    } else {
        format!("{name} can be made; its module loads on demand")
    })
}

fn loop_control() -> Result<String, MissingCapability> {
    match fs::File::options().read(true).write(true).open("/dev/loop-control") {
        Ok(_) => Ok("/dev/loop-control opens".to_owned()),
        Err(_) => Err(loop_device::loop_missing()),
    }
}

const GIB: f64 = (1_u64 << 30) as f64;

/// The quickstart's data, with room for a prepared data set and its clone.
const ENOUGH_DISK_GIB: f64 = 10.0;
/// A system, its page cache and the load generator.
const ENOUGH_MEMORY_GIB: f64 = 2.0;

fn free_disk(directory: &Path) -> Result<String, MissingCapability> {
    let existing = directory.ancestors().find(|place| place.is_dir()).unwrap_or(Path::new("."));
    let free_gib = rustix::fs::statvfs(existing)
        .map_or(0.0, |found| (found.f_bavail as f64) * (found.f_frsize as f64) / GIB);
    let found = format!("{free_gib:.1} GiB free at {}", existing.display());
    if free_gib >= ENOUGH_DISK_GIB {
        return Ok(found);
    }
    Err(MissingCapability::new(
        format!("disk space ({found})"),
        format!("free some, or keep runs elsewhere with --out: {ENOUGH_DISK_GIB} GiB do for the quickstart"),
    ))
}

fn free_memory() -> Result<String, MissingCapability> {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let field_gib = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.and_then(|rest| rest.trim().trim_end_matches("kB").trim().parse::<f64>().ok()).unwrap_or(0.0)
            * 1024.0
            / GIB
    };
    let found = format!("{:.1} of {:.1} GiB available", field_gib("MemAvailable"), field_gib("MemTotal"));
    if field_gib("MemAvailable") >= ENOUGH_MEMORY_GIB {
        return Ok(found);
    }
    Err(MissingCapability::new(
        format!("memory ({found})"),
        format!("stop other programs: {ENOUGH_MEMORY_GIB} GiB do for the quickstart"),
    ))
}

fn clock_source() -> Result<String, MissingCapability> {
    let path = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
    let source = fs::read_to_string(path).unwrap_or_default().trim().to_owned();
    match source.as_str() {
        // Read without entering the kernel, in some 20 ns.
        "tsc" | "kvm-clock" | "arch_sys_counter" => Ok(source),
        "" => Ok("this kernel doesn't say".to_owned()),
        _ => Err(MissingCapability::new(
            format!("a fast clock (the source is {source})"),
            "boot with `clocksource=tsc tsc=reliable`; until then each reading of the clock costs a microsecond or more",
        )),
    }
}

fn timer_slack() -> Result<String, MissingCapability> {
    match rustix::thread::current_timer_slack() {
        Ok(slack_ns) => {
            Ok(format!("the default slack of {slack_ns} ns is lowered to 1 ns in the device daemon"))
        }
        Err(errno) => Err(MissingCapability::new(
            format!("control of the timer slack ({errno})"),
            "modelled latencies will be some 50 µs late: use slow motion, or a kernel that knows PR_SET_TIMERSLACK",
        )),
    }
}

fn has_module(name: &str) -> bool {
    let loaded = Path::new("/sys/module").join(name).exists();
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let modules = Path::new("/lib/modules").join(release.trim());
    let lists = ["modules.builtin", "modules.dep"]
        .map(|list| fs::read_to_string(modules.join(list)).unwrap_or_default());
    // File names may have hyphens where the module's own name has underscores.
    let listed = |line: &str| {
        let path = line.split(':').next().unwrap_or_default();
        let file = path.rsplit('/').next().unwrap_or_default();
        file.split('.').next().unwrap_or_default().replace('-', "_") == name
    };
    loaded || lists.iter().any(|list| list.lines().any(listed))
}

const NEWER_KERNEL: &str =
    "use a kernel that has it: on Debian, linux-image-cloud-amd64 or linux-image-amd64 of release 13";

fn nvme_tcp() -> Result<String, MissingCapability> {
    match has_module("nvme_tcp") {
        true => Ok("the kernel's initiator (nvme-tcp) is there, and Underlay's own".to_owned()),
        false => Err(MissingCapability::new("the kernel's initiator (the nvme-tcp module)", NEWER_KERNEL)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capabilities_are_present_or_have_remedy() {
        let found = capabilities(Path::new("/no/such/place/yet"));
        assert!(found.len() >= 15);
        for capability in found {
            match capability.status {
                CapabilityStatus::Ok(detail) => assert!(!detail.is_empty(), "{}", capability.name),
                CapabilityStatus::Missing(missing) => assert!(missing.remedy.len() > 10, "{missing}"),
            }
        }
    }

    #[test]
    fn missing_program_names_its_package() {
        let missing = find_in_package("no-such-program-anywhere", "some-package").unwrap_err();
        assert!(missing.remedy.contains("some-package"));
    }
}
