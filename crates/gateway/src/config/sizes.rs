//! Whether the sizes of `[local]` fit this machine: impossible sizes are refused before anything is made, not by the
//! first failure.

use std::path::Path;

use underlay_config::units::rounded_bytes;
use underlay_files::{free_bytes, total_bytes};

use super::LocalConfig;

/// Flash is written in regions, each of which is a file. An entry has to fit one.
pub(crate) fn region_bytes(block_bytes: u64) -> u64 {
    (block_bytes * 4).max(16 << 20)
}

/// With fewer regions the cache keeps all of them free to write to, and has room for nothing.
pub(super) const MIN_REGIONS: u64 = 4;

impl LocalConfig {
    /// Files that the cache on flash keeps open.
    pub(crate) fn cache_files(&self) -> u64 {
        self.flash_bytes / region_bytes(self.block_bytes)
    }
}

/// This machine's sizes; `None` where unknown.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct MachineSizes {
    memory_bytes: Option<u64>,
    /// The control group's limit for this process, if any.
    allowed_bytes: Option<u64>,
    /// Of the file system that the local directory is on.
    disk_bytes: Option<u64>,
    /// Of those, what is free.
    free_bytes: Option<u64>,
}

impl MachineSizes {
    /// As it is, with the disk of this directory.
    pub(crate) fn look(directory: &Path) -> MachineSizes {
        MachineSizes {
            memory_bytes: memory_bytes(),
            allowed_bytes: allowed_bytes(),
            disk_bytes: total_bytes(directory),
            free_bytes: free_bytes(directory),
        }
    }

    /// The default for blocks in memory: an eighth of the machine's memory, from 64 MiB to 1 GiB.
    pub(crate) fn fitting_memory(&self) -> u64 {
        let memory = [self.memory_bytes, self.allowed_bytes].into_iter().flatten().min();
        mebibytes(memory.map_or(1 << 30, |bytes| bytes / 8).clamp(64 << 20, 1 << 30))
    }

    /// The journal's size: a quarter of the free space, from 256 MiB to 8 GiB.
    pub(crate) fn fitting_journal(&self) -> u64 {
        mebibytes(self.free_bytes.map_or(8 << 30, |bytes| bytes / 4).clamp(256 << 20, 8 << 30))
    }
}

/// Rounded down to whole MiB, as people write them.
fn mebibytes(bytes: u64) -> u64 {
    bytes >> 20 << 20
}

/// Warnings for an administrator who starts a gateway with these sizes on this machine.
///
/// # Errors
/// Sizes that can't work at all.
pub(crate) fn check(local: &LocalConfig, machine: &MachineSizes) -> Result<Vec<String>, String> {
    let mut warnings = Vec::new();
    let in_memory = local.memory_bytes.saturating_add(local.metadata_bytes);
    if let Some(available_bytes) = machine.memory_bytes
        && in_memory > available_bytes
    {
        return Err(format!(
            "[local]: `memory` and `metadata_memory` are {} together, and this machine has {} of memory\n  what to do: lower `memory`",
            rounded_bytes(in_memory),
            rounded_bytes(available_bytes)
        ));
    }
    if let Some(allowed_bytes) = machine.allowed_bytes
        && in_memory > allowed_bytes
    {
        warnings.push(format!(
            "[local]: `memory` and `metadata_memory` are {} together, and the control group of this process may have {}: the kernel kills the gateway if it uses more",
            rounded_bytes(in_memory),
            rounded_bytes(allowed_bytes)
        ));
    }
    let Some(disk) = machine.disk_bytes else { return Ok(warnings) };
    let disk_size = format!("the file system of {} has {}", local.directory.display(), rounded_bytes(disk));
    if local.flash_bytes > disk {
        return Err(format!(
            "[local]: `cache` is {}, and {disk_size}\n  what to do: lower `cache`, or put the directory on a larger disk",
            rounded_bytes(local.flash_bytes)
        ));
    }
    if local.journal_bytes.saturating_add(local.flash_bytes) > disk {
        let names = if local.flash_bytes > 0 { "`journal` and `cache` are" } else { "`journal` is" };
        warnings.push(format!(
            "[local]: {names} {}, and {disk_size}: writes answer SlowDown when the disk is full, before the journal is",
            rounded_bytes(local.journal_bytes.saturating_add(local.flash_bytes))
        ));
    }
    Ok(warnings)
}

fn memory_bytes() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// The least of what this process's control group and those above it may have (cgroup v2).
fn allowed_bytes() -> Option<u64> {
    let own = std::fs::read_to_string("/proc/self/cgroup").ok()?;
    let own = own.lines().find_map(|line| line.strip_prefix("0::/"))?;
    // In a container the path is the host's, and what is mounted begins at the container's own group.
    let groups = Path::new(own).ancestors().map(|group| Path::new("/sys/fs/cgroup").join(group));
    let limit = |group: std::path::PathBuf| -> Option<u64> {
        std::fs::read_to_string(group.join("memory.max")).ok()?.trim().parse().ok()
    };
    groups.filter_map(limit).min()
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn local(memory: u64, journal: u64, cache: u64) -> LocalConfig {
        LocalConfig {
            directory: "/var/lib/gateway".into(),
            journal_bytes: journal,
            memory_bytes: memory,
            flash_bytes: cache,
            block_bytes: 1 << 20,
            metadata_bytes: GIB / 4,
            encryption: None,
        }
    }

    const MACHINE: MachineSizes = MachineSizes {
        memory_bytes: Some(16 * GIB),
        allowed_bytes: None,
        disk_bytes: Some(74 * GIB),
        free_bytes: Some(20 * GIB),
    };

    #[test]
    fn impossible_sizes_are_refused_before_creation() {
        let refused = check(&local(GIB, GIB, 100 << 40), &MACHINE).unwrap_err();
        assert!(refused.contains("`cache`") && refused.contains("/var/lib/gateway"), "{refused}");
        let refused = check(&local(16 * GIB, GIB, 0), &MACHINE).unwrap_err();
        assert!(refused.contains("`memory`"), "{refused}");
        assert!(check(&local(u64::MAX, u64::MAX, u64::MAX), &MACHINE).is_err());
        assert_eq!(check(&local(GIB, 8 * GIB, 60 * GIB), &MACHINE).unwrap(), Vec::<String>::new());
    }

    #[test]
    fn risky_sizes_give_warnings() {
        let warnings = check(&local(GIB, 80 * GIB, 0), &MACHINE).unwrap();
        assert!(warnings.len() == 1 && warnings[0].contains("`journal` is"), "{warnings:?}");
        let warnings = check(&local(GIB, 40 * GIB, 40 * GIB), &MACHINE).unwrap();
        assert!(warnings.len() == 1 && warnings[0].contains("`journal` and `cache` are"), "{warnings:?}");
        let small = MachineSizes { allowed_bytes: Some(GIB), ..MACHINE };
        let warnings = check(&local(GIB, GIB, 0), &small).unwrap();
        assert!(warnings.len() == 1 && warnings[0].contains("control group"), "{warnings:?}");
        let unknown = MachineSizes::default();
        assert!(check(&local(u64::MAX, u64::MAX, u64::MAX), &unknown).unwrap().is_empty());
    }

    #[test]
    fn init_sizes_fit_small_and_large_machines() {
        let sizes = |machine: &MachineSizes| (machine.fitting_memory(), machine.fitting_journal());
        assert_eq!(sizes(&MACHINE), (GIB, 5 * GIB));
        let small =
            MachineSizes { memory_bytes: Some(GIB / 4), free_bytes: Some(GIB), ..MachineSizes::default() };
        assert_eq!(sizes(&small), (64 << 20, 256 << 20));
        assert_eq!(sizes(&MachineSizes::default()), (GIB, 8 * GIB));
        // On any machine.
        assert!(MachineSizes::look(Path::new("/")).memory_bytes.is_some_and(|bytes| bytes > 1 << 20));
    }
}
