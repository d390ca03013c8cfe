//! Whether a cell's workload used the storage under test at all: what it moved by its own account, held against what the devices were asked for.

use std::fs::{self, File};
use std::io::Read as _;
use std::os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::ptr;

use serde_json::Value;
use underlay_record::{DeviceActivity, DeviceTotals};

use super::attached::Storages;
use super::cell_plan::CellPlan;
use crate::spec::{StorageSource, StorageSpec};

/// Where a job of fio leaves what it found, in the cell's folder for what is not data.
const FIO_OUTPUT: &str = "fio.json";
/// More than fio prints of the jobs that a study may have.
const FIO_OUTPUT_MAX_BYTES: u64 = 64 << 20;
/// A tree of more entries than these without a byte in any file holds nothing.
const MAX_ENTRIES: usize = 100_000;

/// What a cell's devices and directories say of its workload.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    pub requests: u64,
    pub moved_bytes: u64,
    /// Something was stored before the window, or lay there at its end: what is read may come from a cache.
    pub holds_data: bool,
    /// Some of that may be where reads find it without asking a device: in the page cache, or in the memory of a program that runs all the time.
    pub may_be_cached: bool,
    /// What a job of fio moved past the page cache, by its own account; absent where it doesn't tell, and behind layers that move fewer bytes.
    pub past_the_cache_bytes: Option<u64>,
}

impl Traffic {
    /// `None` where nothing is modelled, and where the storage is a cluster's own.
    pub(super) fn of(
        plan: &CellPlan<'_>,
        storages: &Storages,
        devices: &[DeviceActivity],
        held_before: Held,
    ) -> Option<Traffic> {
        (plan.storage.is_modelled() && !plan.storage.is_elsewhere()).then(|| {
            let mut traffic = Traffic::default();
            for DeviceTotals { reads, writes, discards, read_bytes, write_bytes, .. } in
                devices.iter().map(|device| device.totals)
            {
                traffic.requests += reads + writes + discards;
                traffic.moved_bytes =
                    traffic.moved_bytes.saturating_add(read_bytes).saturating_add(write_bytes);
            }
            let held = held_before.or(Held::in_directories(&storages.paths()));
            traffic.holds_data = held.data;
            traffic.may_be_cached = held.cached || runs_a_program(plan);
            traffic
        })
    }

    /// With what a job of fio says of itself.
    pub(super) fn with_fio(self, plan: &CellPlan<'_>, job: Option<&str>, scratch: &Path) -> Traffic {
        let is_told = job.is_some_and(passes_the_page_cache_by) && !compresses(&plan.storage);
        let past_the_cache_bytes = is_told.then(|| fio_bytes(&scratch.join(FIO_OUTPUT))).flatten();
        Traffic { past_the_cache_bytes, ..self }
    }
}

/// What lies in a cell's directories.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Held {
    data: bool,
    /// In the page cache.
    cached: bool,
}

impl Held {
    /// Before the window. A bare device holds what it was filled with, and may have it in the cache.
    pub(super) fn before(storages: &Storages, is_filled: bool) -> Held {
        let paths = storages.paths();
        let is_bare = |path: &PathBuf| path.metadata().is_ok_and(|found| found.file_type().is_block_device());
        let bare = is_filled && paths.iter().any(is_bare);
        Held { data: bare, cached: bare }.or(Held::in_directories(&paths))
    }

    fn in_directories(paths: &[PathBuf]) -> Held {
        let (mut held, mut left) = (Held::default(), MAX_ENTRIES);
        paths.iter().for_each(|path| held.look_at(path, &mut left));
        held
    }

    fn or(self, other: Held) -> Held {
        Held { data: self.data || other.data, cached: self.cached || other.cached }
    }

    /// Links are not followed: what they lead to is not on this storage.
    fn look_at(&mut self, path: &Path, left: &mut usize) {
        let Ok(metadata) = path.symlink_metadata() else { return };
        if metadata.is_file() && metadata.len() > 0 {
            self.data = true;
            self.cached = self.cached || is_cached(path, metadata.len());
        }
        if !metadata.is_dir() {
            return;
        }
        let entries = fs::read_dir(path).into_iter().flatten().flatten();
        for entry in entries {
            if *left == 0 || *self == (Held { data: true, cached: true }) {
                return;
            }
            *left -= 1;
            self.look_at(&entry.path(), left);
        }
    }
}

/// Whether a program of the system runs from before the benchmark to behind it. Without one, everything ends with the commands.
fn runs_a_program(plan: &CellPlan<'_>) -> bool {
    plan.benchmark.is_none() || plan.storage.settings_of(plan.system).contains_key("start")
}

/// A gigabyte is looked at at a time.
const CACHE_LOOK_BYTES: u64 = 1 << 30;
const SMALLEST_PAGE_BYTES: u64 = 4096;

/// Whether a page of a file is in the page cache. Where nobody can tell it may be.
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
    let mut pages = vec![0_u8; length.div_ceil(SMALLEST_PAGE_BYTES) as usize];
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
        let told = libc::mincore(mapped, size, pages.as_mut_ptr());
        libc::munmap(mapped, size);
        told != 0 || pages.iter().any(|page| page & 1 == 1)
    }
}

fn compresses(storage: &StorageSpec) -> bool {
    match &storage.source {
        StorageSource::Modelled { layers, .. } => layers.compress.is_some(),
        StorageSource::Volume(volume) => volume.compress.is_some(),
        StorageSource::Paths(_) | StorageSource::Elsewhere(_) => false,
    }
}

/// Whether every section of a job of fio has `direct=1`, its own or that of the `[global]` before it.
fn passes_the_page_cache_by(job: &str) -> bool {
    let (mut of_all, mut in_global) = (false, false);
    let mut sections: Vec<bool> = Vec::new();
    for line in job.lines().map(str::trim).filter(|line| !line.starts_with(['#', ';'])) {
        if let Some(name) = line.strip_prefix('[') {
            in_global = name.trim_end_matches(']').trim().eq_ignore_ascii_case("global");
            if !in_global {
                sections.push(of_all);
            }
            continue;
        }
        let (key, value) = line.split_once('=').unwrap_or((line, "1"));
        let is_on = value.trim() != "0";
        let is_direct = match key.trim() {
            "direct" => is_on,
            "buffered" => !is_on,
            _ => continue,
        };
        match (in_global, sections.last_mut()) {
            (true, _) => of_all = is_direct,
            (false, Some(section)) => *section = is_direct,
            (false, None) => {}
        }
    }
    !sections.is_empty() && sections.into_iter().all(|section| section)
}

/// What fio says that its jobs have read and written; none where it says nothing that can be read.
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
        let of = |kind: &str| job.get(kind).and_then(|side| side.get("io_bytes")?.as_u64()).unwrap_or(0);
        of("read").saturating_add(of("write"))
    };
    Some(jobs.iter().map(moved).fold(0, u64::saturating_add))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_directory_holds_data_when_a_file_in_it_has_a_byte() {
        let place = tempfile::tempdir().unwrap();
        let paths = [place.path().join("absent"), place.path().to_owned()];
        let found = || Held::in_directories(&paths);
        assert_eq!(found(), Held::default());
        fs::create_dir_all(place.path().join("a/b")).unwrap();
        fs::write(place.path().join("a/empty"), "").unwrap();
        let elsewhere = tempfile::tempdir().unwrap();
        fs::write(elsewhere.path().join("file"), "text").unwrap();
        std::os::unix::fs::symlink(elsewhere.path(), place.path().join("a/link")).unwrap();
        assert_eq!(found(), Held::default(), "what a link leads to is elsewhere");
        fs::write(place.path().join("a/b/file"), "x").unwrap();
        assert_eq!(found(), Held { data: true, cached: true }, "what was just written is in the cache");
    }

    #[test]
    fn a_hole_is_in_no_cache() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("sparse");
        File::create(&path).unwrap().set_len(3 << 20).unwrap();
        assert_eq!(
            Held::in_directories(&[place.path().to_owned()]),
            Held { data: true, cached: false },
            "nobody has read it"
        );
        assert!(is_cached(&place.path().join("absent"), 1), "nobody can tell");
    }

    #[test]
    fn only_a_job_that_is_direct_throughout_moves_all_its_bytes_past_the_cache() {
        for (job, expected) in [
            ("[t]\nfilename={data}/file\ndirect=1\n", true),
            ("[t]\nbuffered=0\n", true),
            ("[t]\ndirect\n", true),
            ("[t]\nrw=read\n", false),
            ("[global]\ndirect=1\n[a]\nrw=read\n[b]\nrw=write\n", true),
            ("[global]\ndirect=1\n[a]\nrw=read\n[b]\ndirect=0\n", false),
            ("[a]\nrw=read\n[global]\ndirect=1\n[b]\nrw=read\n", false),
            ("; direct=1\n[a]\n#direct=1\nrw=read\n", false),
            ("direct=1\n", false),
        ] {
            assert_eq!(passes_the_page_cache_by(job), expected, "{job}");
        }
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
            let _ = passes_the_page_cache_by(&text);
        }
    }
}
