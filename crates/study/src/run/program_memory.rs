//! Whether a program started by a user's command can hold stored data, and so answer without asking a device.

use std::fs;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

/// A shell and a `sleep` have less.
const MIN_CACHE_BYTES: u64 = 2 << 20;
/// A cache holds at least this share of the stored bytes.
const MIN_CACHE_SHARE: f64 = 0.001;
/// A process's own memory, in the lines of `/proc/PID/status`: its heap, shared memory, huge pages.
const OWN_MEMORY: [&str; 3] = ["RssAnon:", "RssShmem:", "HugetlbPages:"];
/// No program has this many files open.
const MAX_OPEN_FILES: usize = 100_000;

/// Whether the processes have enough memory of their own to hold some of the stored bytes, or keep a bare device open,
/// whose pages the kernel then caches. The page cache of files is checked separately. In case of doubt, they may hold
/// data.
pub(super) fn may_hold(processes: &[u32], paths: &[PathBuf], stored_bytes: u64) -> bool {
    let smallest_bytes = MIN_CACHE_BYTES.max((stored_bytes as f64 * MIN_CACHE_SHARE) as u64);
    let mut memory_bytes = 0_u64;
    let devices = device_numbers(paths);
    for process in processes {
        let folder = Path::new("/proc").join(process.to_string());
        match fs::read_to_string(folder.join("status")) {
            Ok(status) => memory_bytes = memory_bytes.saturating_add(own_memory_bytes(&status)),
            // The process has ended.
            Err(_) if !folder.exists() => continue,
            Err(_) => return true,
        }
        if memory_bytes >= smallest_bytes || (!devices.is_empty() && may_have_open(&folder, &devices)) {
            return true;
        }
    }
    false
}

/// The numbers of the block devices among these paths.
fn device_numbers(paths: &[PathBuf]) -> Vec<u64> {
    let found = paths.iter().filter_map(|path| path.metadata().ok());
    found.filter(|found| found.file_type().is_block_device()).map(|found| found.rdev()).collect()
}

fn may_have_open(folder: &Path, devices: &[u64]) -> bool {
    let Ok(open) = fs::read_dir(folder.join("fd")) else { return folder.exists() };
    let mut found = open.flatten().take(MAX_OPEN_FILES).filter_map(|entry| fs::metadata(entry.path()).ok());
    found.any(|found| found.file_type().is_block_device() && devices.contains(&found.rdev()))
}

/// Reads the text of `/proc/PID/status`. Kernel threads and ending processes have no such lines.
fn own_memory_bytes(status: &str) -> u64 {
    let kib = |line: &str| {
        let rest = OWN_MEMORY.iter().find_map(|name| line.strip_prefix(name))?;
        rest.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()
    };
    status.lines().filter_map(kib).fold(0_u64, |sum, kib| sum.saturating_add(kib.saturating_mul(1024)))
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command};

    use super::*;

    struct Ended(Child);

    impl Drop for Ended {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    #[test]
    fn sleeping_process_holds_nothing() {
        let sleeper = Ended(Command::new("sleep").arg("600").spawn().unwrap());
        assert!(!may_hold(&[sleeper.0.id()], &[], 0));
        assert!(!may_hold(&[sleeper.0.id()], &[], 1 << 40));
        assert!(!may_hold(&[], &[], 0), "nothing runs");
    }

    #[test]
    fn process_with_own_memory_may_hold_data() {
        let memory = vec![1_u8; 16 << 20];
        let own = std::process::id();
        assert!(may_hold(&[own], &[], memory.len() as u64));
        assert!(!may_hold(&[own], &[], u64::MAX), "a thousandth of it is more than this process has");
        assert_eq!(memory.iter().filter(|byte| **byte == 1).count(), 16 << 20);
    }

    #[test]
    fn own_memory_is_read_from_process_status() {
        let status = "Name:\tRssAnon: 9 kB\nVmRSS:\t  5000 kB\nRssAnon:\t    100 kB\nRssFile:\t 4000 kB\nRssShmem:\t  24 kB\nHugetlbPages:\t 2048 kB\n";
        assert_eq!(own_memory_bytes(status), (100 + 24 + 2048) << 10);
        for text in ["", "RssAnon:", "RssAnon: x kB", "RssAnon: 5 MB", "RssAnon: -5 kB"] {
            assert_eq!(own_memory_bytes(text), 0, "{text}");
        }
        assert_eq!(own_memory_bytes("RssAnon: 18446744073709551615 kB"), u64::MAX);
    }

    #[test]
    fn directory_is_no_open_device() {
        let place = tempfile::tempdir().unwrap();
        assert_eq!(device_numbers(&[place.path().to_owned(), "/absent".into()]), Vec::<u64>::new());
        assert!(!may_have_open(Path::new("/proc/self"), &[u64::MAX]));
    }
}
