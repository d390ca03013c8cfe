//! Whether a cell's workload used the storage under test at all: the bytes that it reports, compared with the requests
//! to the devices.

use std::fs::{self, File};
use std::io::Read as _;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::ptr;

use serde_json::Value;
use underlay_record::{DeviceActivity, DeviceDescription, DeviceTotals};
use underlay_systems::benchmark::fio;

use super::attached::CellStorages;
use super::cell_plan::CellPlan;
use super::program_memory;
use super::storage;
use crate::spec::{StorageSource, StorageSpec};

/// Where a fio job writes its results, in the cell's scratch directory.
const FIO_OUTPUT: &str = "fio.json";
/// More than fio prints about all jobs that a study may have.
const FIO_OUTPUT_MAX_BYTES: u64 = 64 << 20;
/// A file system sends this many requests of its own: its journal, its superblock.
const OWN_REQUESTS: u64 = 16;
/// And they read no more than this. A program that reads more with few requests, such as `dd bs=1M`, reads data.
const OWN_READ_BYTES: u64 = 2 << 20;
/// A tree with more entries than this but no byte in any file counts as empty.
const MAX_ENTRIES: usize = 100_000;

/// The evidence of a workload on a cell's devices and directories.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CellTraffic {
    /// Requests to the devices of the storage under test, without those that roles have to themselves.
    pub requests: u64,
    /// Bytes moved to and from the same devices.
    pub moved_bytes: u64,
    /// The read part of that.
    pub read_bytes: u64,
    /// Bytes for the devices that roles have to themselves, which a fio job may use as well.
    pub moved_for_roles_bytes: u64,
    /// The storage holds data after the window, so reads may come from a cache. Not checked where devices had requests.
    pub holds_data: bool,
    /// Reads may find some of that data without asking a device: in the page cache, or in the memory of a program that
    /// keeps running.
    pub may_be_cached: bool,
    /// The bytes that a fio job moved past the page cache by its own count. Absent where fio doesn't report them, and
    /// behind layers that move fewer bytes.
    pub past_the_cache_bytes: Option<u64>,
    /// The devices are real disks that others may use as well, so only missing requests prove anything.
    pub is_shared: bool,
}

impl CellTraffic {
    /// `None` where the devices' requests are unknown: the storage belongs to a cluster, or the kernel doesn't count
    /// the requests of real disks. On these, only a user's commands are judged. Called after the window, when devices
    /// no longer take modelled time, since this may walk through the stored files. `processes` are those of the system,
    /// which must still run.
    pub(super) fn new(
        plan: &CellPlan<'_>,
        storages: &CellStorages,
        devices: &[DeviceActivity],
        processes: &[u32],
    ) -> Option<CellTraffic> {
        let is_shared = !plan.storage.is_modelled();
        let are_counted = || !devices.is_empty() && have_counters(storages);
        let is_judged = !is_shared || (plan.benchmark.is_some() && are_counted());
        is_judged.then(|| {
            let described =
                storage::describe(&plan.storage, &plan.roles(), plan.system.servers, storages.name());
            // Several real paths may be on one disk.
            let is_one_each = described.devices.len() == devices.len();
            let described: &[DeviceDescription] = if is_one_each { &described.devices } else { &[] };
            let mut traffic = CellTraffic { is_shared, ..CellTraffic::counted(devices, described) };
            if traffic.is_idle() {
                // The systems that Underlay knows have their own caches. A user's command may start any program.
                let has_own_cache = plan.benchmark.is_none();
                let paths = paths_of(storages);
                let contents = DirectoryContents::inspect(&paths, !plan.begins_empty(), !has_own_cache);
                traffic.holds_data = contents.data;
                traffic.may_be_cached = has_own_cache
                    || contents.cached
                    || (runs_a_program(plan)
                        && program_memory::may_hold(processes, &paths, contents.stored_bytes));
            }
            traffic
        })
    }

    /// Whether the devices had no more requests than a file system makes by itself. On real disks, others may have made
    /// those.
    pub(super) fn is_idle(&self) -> bool {
        match self.is_shared {
            true => self.requests == 0,
            false => self.requests <= OWN_REQUESTS && self.read_bytes <= OWN_READ_BYTES,
        }
    }

    /// Counts the requests to devices; the descriptions are in the same order.
    fn counted(devices: &[DeviceActivity], described: &[DeviceDescription]) -> CellTraffic {
        let mut traffic = CellTraffic::default();
        for (index, device) in devices.iter().enumerate() {
            let DeviceTotals { reads, writes, discards, read_bytes, write_bytes, .. } = device.totals;
            let moved_bytes = read_bytes.saturating_add(write_bytes);
            if described.get(index).is_some_and(|device| device.id.role.is_some()) {
                traffic.moved_for_roles_bytes = traffic.moved_for_roles_bytes.saturating_add(moved_bytes);
            } else {
                traffic.requests += reads + writes + discards;
                traffic.moved_bytes = traffic.moved_bytes.saturating_add(moved_bytes);
                traffic.read_bytes = traffic.read_bytes.saturating_add(read_bytes);
            }
        }
        traffic
    }

    /// Adds what a fio job reports.
    pub(super) fn with_fio(self, plan: &CellPlan<'_>, job: Option<&str>, scratch: &Path) -> CellTraffic {
        let is_told = job.is_some_and(fio::passes_the_page_cache) && !compresses(&plan.storage);
        let past_the_cache_bytes = is_told.then(|| fio_bytes(&scratch.join(FIO_OUTPUT))).flatten();
        CellTraffic { past_the_cache_bytes, ..self }
    }
}

/// The contents of a cell's directories.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct DirectoryContents {
    data: bool,
    /// Some of it is in the page cache.
    cached: bool,
    /// Bytes in files, up to the point where the answer was certain.
    stored_bytes: u64,
}

/// The purpose of a walk through directories.
struct WalkPurpose {
    entries_left: usize,
    /// Whether it matters which data is in the page cache. If not, the first file with a byte is enough.
    asks_for_cache: bool,
}

impl DirectoryContents {
    /// Inspects the contents of the storage under test. A bare device holds what it was filled with. The kernel drops
    /// its pages when the last program closes it, so a command that reads it afterwards reads from the device.
    fn inspect(paths: &[PathBuf], is_filled: bool, asks_for_cache: bool) -> DirectoryContents {
        let is_bare = |path: &PathBuf| path.metadata().is_ok_and(|found| found.file_type().is_block_device());
        if is_filled && paths.iter().any(is_bare) {
            return DirectoryContents { data: true, ..DirectoryContents::default() };
        }
        DirectoryContents::inspect_directories(paths, asks_for_cache)
    }

    fn inspect_directories(paths: &[PathBuf], asks_for_cache: bool) -> DirectoryContents {
        let mut contents = DirectoryContents::default();
        let mut walk = WalkPurpose { entries_left: MAX_ENTRIES, asks_for_cache };
        paths.iter().for_each(|path| contents.look_at(path, &mut walk));
        contents
    }

    /// Links are not followed, since their targets are not on this storage.
    fn look_at(&mut self, path: &Path, walk: &mut WalkPurpose) {
        let Ok(metadata) = path.symlink_metadata() else { return };
        if metadata.is_file() && metadata.len() > 0 {
            self.data = true;
            self.stored_bytes = self.stored_bytes.saturating_add(metadata.len());
            self.cached = self.cached || (walk.asks_for_cache && is_cached(path, metadata.len()));
        }
        if !metadata.is_dir() {
            return;
        }
        let entries = fs::read_dir(path).into_iter().flatten().flatten();
        for entry in entries {
            let is_told = self.data && (self.cached || !walk.asks_for_cache);
            if walk.entries_left == 0 || is_told {
                return;
            }
            walk.entries_left -= 1;
            self.look_at(&entry.path(), walk);
        }
    }
}

/// Where the storage under test is.
fn paths_of(storages: &CellStorages) -> Vec<PathBuf> {
    storages.servers().iter().flat_map(|attached| attached.paths().to_vec()).collect()
}

/// Whether the kernel counts all requests for the directories of real storage. File systems on several disks have
/// device numbers that belong to no disk, and counting can be switched off.
fn have_counters(storages: &CellStorages) -> bool {
    let mut paths = storages.servers().iter().flat_map(|attached| attached.paths());
    paths.all(|path| is_counted(path))
}

fn is_counted(path: &Path) -> bool {
    let Ok(found) = path.metadata() else { return false };
    let (major, minor) = (rustix::fs::major(found.dev()), rustix::fs::minor(found.dev()));
    let Ok(disk) = fs::canonicalize(format!("/sys/dev/block/{major}:{minor}")) else { return false };
    // A partition's queue is that of its disk.
    let switches = [disk.join("queue/iostats"), disk.join("../queue/iostats")];
    let mut found = switches.iter().filter_map(|switch| fs::read_to_string(switch).ok());
    found.next().is_some_and(|switch| switch.trim() != "0")
}

/// Whether a user's program runs from before the benchmark until after it. Without one, everything ends with the
/// commands.
fn runs_a_program(plan: &CellPlan<'_>) -> bool {
    plan.storage.settings_of(plan.system).contains_key("start")
}

/// A gigabyte is checked at a time.
const CACHE_LOOK_BYTES: u64 = 1 << 30;
const MIN_PAGE_BYTES: u64 = 4096;

/// Whether a page of a file is in the page cache. In case of doubt, it may be.
fn is_cached(path: &Path, length: u64) -> bool {
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_CLOEXEC;
    let Ok(file) = File::options().read(true).custom_flags(flags).open(path) else { return true };
    let mut offset = 0;
    while offset < length {
        let part = (length - offset).min(CACHE_LOOK_BYTES);
        if is_part_cached(&file, offset, part) {
            return true;
        }
        offset += part;
    }
    false
}

fn is_part_cached(file: &File, offset: u64, length: u64) -> bool {
    let (Ok(size), Ok(from)) = (usize::try_from(length), libc::off_t::try_from(offset)) else { return true };
    let mut pages = vec![0_u8; length.div_ceil(MIN_PAGE_BYTES) as usize];
    // SAFETY: the mapping is new, is never read, and is removed again. The kernel writes one byte for each of its pages into `pages`, which has
    // room for pages of the smallest size.
    unsafe {
        let mapped = libc::mmap(
            ptr::null_mut(),
            size,
            libc::PROT_READ,
            libc::MAP_SHARED,
            std::os::fd::AsRawFd::as_raw_fd(file),
            from,
        );
        if mapped == libc::MAP_FAILED {
            return true;
        }
        let status = libc::mincore(mapped, size, pages.as_mut_ptr());
        libc::munmap(mapped, size);
        status != 0 || pages.iter().any(|page| page & 1 == 1)
    }
}

fn compresses(storage: &StorageSpec) -> bool {
    match &storage.source {
        StorageSource::Modelled { layers, .. } => layers.compress.is_some(),
        StorageSource::Volume(volume) => volume.compress.is_some(),
        StorageSource::Paths(_) | StorageSource::Elsewhere(_) => false,
    }
}

/// The bytes that fio's jobs have read and written, as fio reports them; none where the report can't be read.
fn fio_bytes(path: &Path) -> Option<u64> {
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_CLOEXEC;
    let file = File::options().read(true).custom_flags(flags).open(path).ok()?;
    if !file.metadata().ok()?.is_file() {
        return None;
    }
    let mut text = String::new();
    file.take(FIO_OUTPUT_MAX_BYTES).read_to_string(&mut text).ok()?;
    bytes_in(&text)
}

/// fio may print a note before its JSON.
fn bytes_in(text: &str) -> Option<u64> {
    let found: Value = serde_json::from_str(text.get(text.find('{')?..)?).ok()?;
    let jobs = found.get("jobs")?.as_array()?;
    let moved = |job: &Value| -> u64 {
        let bytes_of =
            |kind: &str| job.get(kind).and_then(|side| side.get("io_bytes")?.as_u64()).unwrap_or(0);
        bytes_of("read").saturating_add(bytes_of("write"))
    };
    Some(jobs.iter().map(moved).fold(0, u64::saturating_add))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use underlay_record::DeviceId;

    use super::*;

    #[test]
    fn directory_with_one_byte_holds_data() {
        let place = tempfile::tempdir().unwrap();
        let paths = [place.path().join("absent"), place.path().to_owned()];
        let found = || DirectoryContents::inspect_directories(&paths, true);
        assert_eq!(found(), DirectoryContents::default());
        fs::create_dir_all(place.path().join("a/b")).unwrap();
        fs::write(place.path().join("a/empty"), "").unwrap();
        let linked = tempfile::tempdir().unwrap();
        fs::write(linked.path().join("file"), "text").unwrap();
        std::os::unix::fs::symlink(linked.path(), place.path().join("a/link")).unwrap();
        assert_eq!(found(), DirectoryContents::default(), "what a link leads to is elsewhere");
        fs::write(place.path().join("a/b/file"), "x").unwrap();
        let written = DirectoryContents { data: true, cached: true, stored_bytes: 1 };
        assert_eq!(found(), written, "what was just written is in the cache");
        let first = DirectoryContents::inspect_directories(&paths, false);
        assert_eq!(first, DirectoryContents { cached: false, ..written }, "nobody asked for the cache");
    }

    #[test]
    fn memory_has_no_disk_that_counts_requests() {
        assert!(!is_counted(Path::new("/proc")));
        assert!(!is_counted(Path::new("/absent")));
    }

    #[test]
    fn hole_is_never_cached() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("sparse");
        File::create(&path).unwrap().set_len(3 << 20).unwrap();
        assert_eq!(
            DirectoryContents::inspect_directories(&[place.path().to_owned()], true),
            DirectoryContents { data: true, cached: false, stored_bytes: 3 << 20 },
            "nobody has read it"
        );
        assert!(is_cached(&place.path().join("absent"), 1), "nobody can tell");
    }

    #[test]
    fn role_device_traffic_does_not_use_compared_storage() {
        let activity = |reads, read_bytes| DeviceActivity {
            totals: DeviceTotals { reads, read_bytes, ..DeviceTotals::default() },
            ..DeviceActivity::default()
        };
        let described = |role: Option<&str>| DeviceDescription {
            id: DeviceId { role: role.map(str::to_owned), ..DeviceId::default() },
            ..DeviceDescription::default()
        };
        let devices = [activity(2, 8192), activity(100, 409_600)];
        let counted = CellTraffic::counted(&devices, &[described(None), described(Some("wal"))]);
        let expected = CellTraffic {
            requests: 2,
            moved_bytes: 8192,
            read_bytes: 8192,
            moved_for_roles_bytes: 409_600,
            ..CellTraffic::default()
        };
        assert_eq!(counted, expected);
        assert_eq!(CellTraffic::counted(&devices, &[]).requests, 102, "nothing is known of them");
    }

    #[test]
    fn fios_own_account_is_read() {
        let text = r#"fio: note
{ "jobs": [
  { "read": { "io_bytes": 4096 }, "write": { "io_bytes": 0 } },
  { "read": {}, "write": { "io_bytes": 8192 } } ] }"#;
        assert_eq!(bytes_in(text), Some(12_288));
        assert_eq!(bytes_in("no output"), None);
        assert_eq!(bytes_in("{\"jobs\": 3}"), None);
        let place = tempfile::tempdir().unwrap();
        fs::write(place.path().join("real"), text).unwrap();
        assert_eq!(fio_bytes(&place.path().join("real")), Some(12_288));
        std::os::unix::fs::symlink(place.path().join("real"), place.path().join("link")).unwrap();
        assert_eq!(fio_bytes(&place.path().join("link")), None, "a link may lead anywhere");
        assert_eq!(fio_bytes(place.path()), None);
    }

    proptest! {
        #[test]
        fn any_output_is_read_or_not(text in "\\PC*|\\{\"jobs\": ?\\[\\{\"(read|write)\": ?\\{\"io_bytes\": ?-?[0-9]{0,25}\\}\\}\\]\\}") {
            let _ = bytes_in(&text);
        }
    }
}
