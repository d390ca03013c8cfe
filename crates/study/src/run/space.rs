//! Whether a run has room for what it is bound to write: a full disk ends it after hours.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use underlay_attach::Missing;
use underlay_attach::free_space::free_bytes;
use underlay_record::PlannedCell;

use super::RunError;
use crate::plan::{self, Asked, Entry};
use crate::spec::{StorageSource, Study};
use crate::units;

/// Refuses a run whose data sets alone don't fit below `work`. `left` are the cells that are still to be run.
pub fn check<'a>(
    study: &Study,
    left: impl Iterator<Item = &'a PlannedCell>,
    work: &Path,
) -> Result<(), RunError> {
    let needed_bytes = needed_bytes(study, left);
    match free_bytes(work) {
        Some(free_bytes) if free_bytes < needed_bytes => Err(RunError::Missing(Missing::new(
            format!(
                "room for disk images: the run's data sets and their copies take {} at least, and {} are free at {}",
                units::rounded_bytes(needed_bytes),
                units::rounded_bytes(free_bytes),
                work.display()
            ),
            "keep the images on a larger file system with --work DIR, or run a smaller study: less data, or a larger \
             `data` in [scale]",
        ))),
        _ => Ok(()),
    }
}

/// What lies below the work directory at the same time, at least: each data set once as it was loaded and once for each
/// storage, and the clones of the largest cell. Logs, compaction and what cells write come on top; what jobs write is left out,
/// for it may be compressed.
fn needed_bytes<'a>(study: &Study, left: impl Iterator<Item = &'a PlannedCell>) -> u64 {
    let left: BTreeSet<&str> = left.map(|planned| planned.cell.id.as_str()).collect();
    let mut loaded: BTreeMap<String, u64> = BTreeMap::new();
    let mut imaged: BTreeMap<(String, &str), u64> = BTreeMap::new();
    let mut largest_cell = 0;
    for entry in plan::entries(study) {
        let Asked::Requests(_) = entry.asked else { continue };
        if !left.contains(entry.cell.id.as_str()) || !entry.storage.is_modelled() {
            continue;
        }
        let bytes = stored_bytes(study, &entry);
        let of_all = bytes.saturating_mul(u64::from(entry.system.servers));
        largest_cell = largest_cell.max(of_all);
        if entry.cell.mix == "load" {
            // It begins with an empty storage.
            continue;
        }
        let key = plan::dataset_key_of(study, &entry);
        let is_in_pool = matches!(entry.storage.source, StorageSource::Volume(_));
        imaged.insert((key.clone(), &entry.storage.name), if is_in_pool { of_all } else { bytes });
        loaded.insert(key, bytes);
    }
    loaded.values().chain(imaged.values()).fold(largest_cell, |sum, &bytes| sum.saturating_add(bytes))
}

/// One server's data, less what repeats in the values, which a system or a layer may compress away.
fn stored_bytes(study: &Study, entry: &Entry<'_>) -> u64 {
    let records = study.records_here(entry.system.share(entry.cell.records));
    let repeats = entry.workload.properties.get("compressibility");
    let repeats = repeats.and_then(|text| text.parse::<f64>().ok()).unwrap_or(0.0);
    let bytes = records.saturating_mul(entry.workload.record_bytes());
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
        needed_bytes(&study, order.iter().filter(|planned| keep(planned)))
    }

    #[test]
    fn a_data_set_lies_there_as_it_was_loaded_on_each_storage_and_in_a_cell() {
        let set_bytes = 100_000 * (23 + 10 * 100);
        assert_eq!(needed(STUDY, |_| true), 4 * set_bytes);
        assert_eq!(needed(STUDY, |planned| planned.cell.storage == "one"), 3 * set_bytes);
        assert_eq!(needed(STUDY, |planned| planned.cell.mix == "load"), set_bytes);
        assert_eq!(needed(STUDY, |planned| planned.cell.storage == "real"), 0);
        let half = STUDY.replace("threads = 1", "threads = 1\nproperties = { compressibility = 0.5 }");
        assert_eq!(needed(&half, |_| true), 2 * set_bytes);
    }

    #[test]
    fn a_run_that_cannot_fit_is_told_how_much_room_it_takes_and_where() {
        let study = Study::parse("space.toml", STUDY, false).unwrap();
        let order = plan::order(&study);
        // Nothing can be put there.
        let Err(RunError::Missing(missing)) = check(&study, order.iter(), Path::new("/proc/self")) else {
            panic!("it was not refused");
        };
        assert!(missing.what.contains("409 MB") && missing.what.contains("/proc/self"), "{}", missing.what);
        assert!(missing.remedy.contains("--work"), "{}", missing.remedy);
        check(&study, order.iter().take(0), Path::new("/proc/self")).unwrap();
    }
}
