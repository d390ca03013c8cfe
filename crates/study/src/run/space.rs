//! Whether a run has room for everything that it is certain to write. A full disk would end it after hours.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use underlay_attach::MissingCapability;
use underlay_files::{free_bytes, refusal_of_file};
use underlay_record::PlannedCell;

use super::RunError;
use crate::plan::{self, CellParts, CellWork};
use crate::spec::{StorageSource, Study};
use underlay_config::units;

/// Refuses a run whose data sets alone don't fit below `work`, or on its real directories. `left` are the cells still
/// to run.
pub(super) fn check<'a>(
    study: &Study,
    left: impl Iterator<Item = &'a PlannedCell>,
    work: &Path,
) -> Result<(), RunError> {
    let left: Vec<&PlannedCell> = left.collect();
    check_device_files(study, &left, work)?;
    let needed = NeededSpace::new(study, left.into_iter());
    if let Some((needed, free)) = lacks(work, needed.work_bytes) {
        return Err(RunError::Missing(MissingCapability::new(
            format!(
                "room for disk images: the run's data sets and their copies take at least {needed}, but only \
                     {free} is free at {}",
                work.display()
            ),
            "keep the images on a larger file system with --work DIR, or run a smaller study: less data, or a larger \
             `data` in [scale]",
        )));
    }
    for (path, (storage, needed_bytes)) in needed.path_bytes {
        if let Some((needed, free)) = lacks(path, needed_bytes) {
            return Err(RunError::Missing(MissingCapability::new(
                format!(
                    "room in [storage.{storage}]: a data set takes at least {needed} in {}, where only {free} is free",
                    path.display()
                ),
                "name a larger file system, or run a smaller study: less data, or a larger `data` in [scale]",
            )));
        }
    }
    Ok(())
}

/// Refuses a run with a device file that is too large for the file system of its images, or for this process to write.
fn check_device_files(study: &Study, left: &[&PlannedCell], work: &Path) -> Result<(), RunError> {
    let stored = left.iter().map(|planned| planned.cell.storage.as_str()).collect::<BTreeSet<_>>();
    let compared = study.storages.iter().filter(|storage| stored.contains(storage.name.as_str()));
    for storage in compared.chain(&study.role_storages) {
        let largest_bytes = storage.device_capacities().max().map_or(0, |bytes| study.bytes_here(bytes));
        if let Some(reason) = refusal_of_file(work, largest_bytes) {
            let (name, size) = (&storage.name, units::rounded_bytes(largest_bytes));
            return Err(RunError::Missing(MissingCapability::new(
                format!("a file of {size} for a device of [storage.{name}]: {reason}"),
                "keep the images on another file system with --work DIR (XFS has files of up to 8 EiB), use smaller devices, or raise \
                 `data` in [scale]",
            )));
        }
    }
    Ok(())
}

/// Below this, any failure may be due to lack of space.
const NEARLY_FULL_BYTES: u64 = 64 << 20;

/// A note on a failure about this host's disk with the images. If the image of a modelled device can't grow, the device
/// only reports an I/O error.
pub(super) fn note(work: &Path) -> Option<String> {
    let free_bytes = free_bytes(work)?;
    (free_bytes < NEARLY_FULL_BYTES).then(|| {
        format!(
            "the disk of this host that holds {} is full ({} free), which devices whose images are on it show as I/O errors: free some, \
             or keep the images elsewhere with --work DIR",
            work.display(),
            units::rounded_bytes(free_bytes)
        )
    })
}

/// The needed and the free bytes in words, where too few are free.
fn lacks(place: &Path, needed_bytes: u64) -> Option<(String, String)> {
    let free_bytes = free_bytes(place).filter(|&free_bytes| free_bytes < needed_bytes)?;
    Some((units::rounded_bytes(needed_bytes), units::rounded_bytes(free_bytes)))
}

/// The smallest total size of files that exist at the same time. Logs, compaction and the writes of cells come on top.
/// Output of jobs is left out, since it may be compressed.
#[derive(Debug, Default)]
struct NeededSpace<'a> {
    /// Below the work directory: each data set once as loaded, once for each modelled storage configuration, and the
    /// clones of the largest cell.
    work_bytes: u64,
    /// On each real directory, with its storage configuration: its part of the largest data set. Cells remove their own
    /// files.
    path_bytes: BTreeMap<&'a Path, (&'a str, u64)>,
}

impl<'a> NeededSpace<'a> {
    fn new<'b>(study: &'a Study, left: impl Iterator<Item = &'b PlannedCell>) -> NeededSpace<'a> {
        let mut needed = NeededSpace::default();
        let left: BTreeSet<&str> = left.map(|planned| planned.cell.id.as_str()).collect();
        let mut loaded: BTreeMap<String, u64> = BTreeMap::new();
        let mut imaged: BTreeMap<(String, &str), u64> = BTreeMap::new();
        let mut largest_cell = 0;
        for entry in plan::entries(study) {
            let CellWork::Requests(_) = entry.asked else { continue };
            if !left.contains(entry.cell.id.as_str()) {
                continue;
            }
            let bytes = stored_bytes(study, &entry);
            let of_all = bytes.saturating_mul(u64::from(entry.system.servers));
            match &entry.storage.source {
                StorageSource::Elsewhere(_) => continue,
                StorageSource::Paths(paths) => {
                    for path in paths {
                        let (_, path_bytes) =
                            needed.path_bytes.entry(path).or_insert((&entry.storage.name, 0));
                        *path_bytes = (*path_bytes).max(bytes / paths.len().max(1) as u64);
                    }
                }
                StorageSource::Modelled { .. } | StorageSource::Volume(_) => {
                    largest_cell = largest_cell.max(of_all)
                }
            }
            if entry.cell.mix_or_job() == "load" {
                // It begins with an empty storage.
                continue;
            }
            let key = plan::dataset_key_of(study, &entry);
            if !entry.storage.is_modelled() {
                // It is copied into the directories from there.
                loaded.insert(key, bytes);
                continue;
            }
            let is_in_pool = matches!(entry.storage.source, StorageSource::Volume(_));
            imaged.insert((key.clone(), &entry.storage.name), if is_in_pool { of_all } else { bytes });
            loaded.insert(key, bytes);
        }
        let kept_bytes = loaded.values().chain(imaged.values());
        needed.work_bytes = kept_bytes.fold(largest_cell, |sum, &bytes| sum.saturating_add(bytes));
        needed
    }
}

/// One server's data with all its copies, without repetitions in the values, which a system or a layer may compress.
fn stored_bytes(study: &Study, entry: &CellParts<'_>) -> u64 {
    let records = entry.cell.requests().map_or(0, |requests| requests.records);
    let records = study.records_here(entry.system.share(records));
    let repeats = entry.workload.properties.get("compressibility");
    let repeats = repeats.and_then(|text| text.parse::<f64>().ok()).unwrap_or(0.0);
    let bytes = records.saturating_mul(entry.workload.record_bytes());
    let bytes = bytes.saturating_mul(entry.storage.copies_of(entry.system));
    (bytes as f64 * (1.0 - repeats.clamp(0.0, 1.0))) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    const STUDY: &str = r#"
name = "space"
baseline = "one"
[system.rocksdb]
memory = "640 MiB"
[storage.one]
devices = [{ medium = "hdd-7200-sata" }]
[storage.two]
devices = [{ medium = "ssd-sata" }]
[storage.real]
paths = ["/mnt/disk"]
[workload.w]
records = 1_000_000
record = { fields = 10, bytes = 100 }
mixes = ["load", "a", "c"]
threads = 1
[scale]
data = 10
"#;

    fn needed(text: &str, keep: impl Fn(&PlannedCell) -> bool) -> u64 {
        let study = Study::parse("space.toml", text, false).unwrap();
        let order = plan::order(&study);
        NeededSpace::new(&study, order.iter().filter(|planned| keep(planned))).work_bytes
    }

    #[test]
    fn data_set_takes_space_per_storage_and_cell() {
        let set_bytes = 100_000 * (23 + 10 * 100);
        assert_eq!(needed(STUDY, |_| true), 4 * set_bytes);
        assert_eq!(needed(STUDY, |planned| planned.cell.storage == "one"), 3 * set_bytes);
        assert_eq!(needed(STUDY, |planned| planned.cell.mix_or_job() == "load"), set_bytes);
        assert_eq!(needed(STUDY, |planned| planned.cell.storage == "real"), set_bytes);
        let half = STUDY.replace("threads = 1", "threads = 1\nproperties = { compressibility = 0.5 }");
        assert_eq!(needed(&half, |_| true), 2 * set_bytes);
    }

    #[test]
    fn record_copies_all_take_space() {
        let set_bytes = 100_000 * (23 + 10 * 100);
        let bytes_of = |system: &str, storage: &str| {
            let text = STUDY
                .replace("[system.rocksdb]\nmemory = \"640 MiB\"", system)
                .replace("[storage.two]", &format!("{storage}[storage.two]"));
            needed(&text, |planned| planned.cell.storage == "one")
        };
        let ring = "[system.cassandra]\nmemory = \"24 GiB\"\nnodes = 3\nreplication_factor = 2";
        assert_eq!(bytes_of(ring, ""), 3 * 2 * set_bytes);
        // Where the study does not say, the number that the system keeps by default.
        let groups = "[system.je-ha]\nmemory = \"24 GiB\"\nnodes = 3";
        assert_eq!(bytes_of(groups, ""), 3 * 3 * set_bytes);
        let fewer = "[storage.one.system]\nreplication = 2\n";
        assert_eq!(bytes_of(groups, fewer), 3 * 2 * set_bytes);
        assert_eq!(bytes_of("[system.je-ha]\nmemory = \"24 GiB\"", ""), 3 * set_bytes);
    }

    #[test]
    fn real_directory_must_hold_largest_data_set() {
        let paths = STUDY.replace("/mnt/disk", "/proc/self");
        let study = Study::parse("space.toml", &paths, false).unwrap();
        let order = plan::order(&study);
        let real = order.iter().filter(|planned| planned.cell.storage == "real");
        let needed = NeededSpace::new(&study, real.clone());
        let set_bytes = 100_000 * (23 + 10 * 100);
        assert_eq!(needed.path_bytes, [(Path::new("/proc/self"), ("real", set_bytes))].into());
        let folder = tempfile::tempdir().unwrap();
        let Err(RunError::Missing(missing)) = check(&study, real, folder.path()) else {
            panic!("it was not refused");
        };
        assert!(
            missing.what.contains("[storage.real]") && missing.what.contains("/proc/self"),
            "{}",
            missing.what
        );
    }

    #[test]
    fn run_without_space_reports_need_and_place() {
        let study = Study::parse("space.toml", STUDY, false).unwrap();
        let order = plan::order(&study);
        // No directory can be created there.
        let Err(RunError::Missing(missing)) = check(&study, order.iter(), Path::new("/proc/self")) else {
            panic!("it was not refused");
        };
        assert!(missing.what.contains("409 MB") && missing.what.contains("/proc/self"), "{}", missing.what);
        assert!(missing.remedy.contains("--work"), "{}", missing.remedy);
        check(&study, order.iter().take(0), Path::new("/proc/self")).unwrap();
    }
}
