//! How many operations fill a cell's caches.

use crate::spec::{StorageSpec, SystemSpec};

/// Warm caches: the mix runs in fast-forward until each page of the budget could have been read this often. Most
/// records lie across two pages, so once is enough.
const CACHE_FILLS: u64 = 1;
const PAGE_BYTES: u64 = 4096;
const MIN_FILL_OPERATIONS: u64 = 1_000;
/// Where a record cache would need more operations than this, only pages are filled. Filling it would take longer than
/// the cell.
const MAX_RECORD_FILLS: u64 = 400_000;
/// Random operations miss a third of the records in one round, a seventh in two, and one in fifty in four. A miss waits
/// for a disk. So even a seventh decides the result of a data set that fits in memory.
const MAX_RECORD_ROUNDS: f64 = 4.0;

/// One server's part of a cell on this host.
#[derive(Clone, Copy)]
pub(crate) struct CellSizes {
    pub budget_bytes: u64,
    /// The size of its data set; `records` counts for it too.
    pub data_bytes: u64,
    pub records: u64,
}

/// For one server of a system on a storage configuration. In slow motion, a warm-up of modelled time is too short for a
/// program that is compiled while it runs. So that happens here as well, with all CPUs and without waiting for devices.
pub(crate) fn operations(
    system: &SystemSpec,
    storage: &StorageSpec,
    is_slowed: bool,
    sizes: CellSizes,
) -> u64 {
    let kind = underlay_systems::find(&system.kind);
    let caches_records = kind.is_some_and(|kind| kind.capabilities().caches_records);
    // Each node has its own cache.
    let records_on_nodes = caches_records.then(|| sizes.records.saturating_mul(u64::from(system.nodes)));
    let of_caches = operations_for(sizes.budget_bytes, sizes.data_bytes, records_on_nodes);
    match kind {
        Some(kind) if is_slowed => {
            let settings = system.with_nodes(storage.settings_of(system));
            of_caches.max(kind.operations_to_compile(&settings))
        }
        _ => of_caches,
    }
}

/// `records_on_nodes` is for a system that caches records rather than pages.
fn operations_for(budget_bytes: u64, data_bytes: u64, records_on_nodes: Option<u64>) -> u64 {
    // At most what there is to read: a budget that holds everything is full after one pass.
    let pages = CACHE_FILLS * budget_bytes.min(data_bytes) / PAGE_BYTES;
    let records = records_on_nodes
        .map(|records| {
            (records as f64 * rounds(budget_bytes as f64 / data_bytes.max(1) as f64)).ceil() as u64
        })
        .filter(|operations| *operations <= MAX_RECORD_FILLS);
    pages.max(records.unwrap_or(0)).max(MIN_FILL_OPERATIONS)
}

/// How many rounds of random draws reach this share of the records at least once. After r rounds, e^-r of them are
/// left.
fn rounds(share: f64) -> f64 {
    if share >= 1.0 { MAX_RECORD_ROUNDS } else { (-(1.0 - share.max(0.0)).ln()).min(MAX_RECORD_ROUNDS) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::Study;

    #[test]
    fn compiled_system_in_slow_motion_is_warmed_up() {
        let text = |system: &str| {
            format!(
                "name = \"x\"\nbaseline = \"hdd\"\n{system}\n[storage.hdd]\ndevices = [{{ medium = \"hdd-7200-sas\" }}]\n\
                 [workload.w]\nmixes = [\"a\"]\ndata = \"2 MB\"\nthreads = 4\nrecord = {{ fields = 1, bytes = 1000 }}\n"
            )
        };
        let records_of = |system: &str, is_slowed: bool| {
            let study = Study::parse("x.toml", &text(system), false).unwrap();
            let sizes = CellSizes { budget_bytes: 1 << 30, data_bytes: 1_000_000, records: 1000 };
            operations(&study.systems[0], &study.storages[0], is_slowed, sizes)
        };
        let group = "[system.je-ha]\nmemory = \"2 GiB\"\nnodes = 3\nshards = 2";
        // Six processes share the reads. Four rounds of the records on three nodes fill the caches.
        assert_eq!((records_of(group, true), records_of(group, false)), (300_000, 12_000));
        let compiled = "[system.rocksdb]\nmemory = \"2 GiB\"";
        assert_eq!(records_of(compiled, true), records_of(compiled, false));
    }

    #[test]
    fn pages_are_read_once_and_records_until_cached() {
        let (mib, records) = (1 << 20, 50_000);
        assert_eq!(operations_for(64 * mib, 1000 * mib, None), 64 * mib / 4096);
        assert_eq!(operations_for(64 * mib, 16 * mib, None), 16 * mib / 4096, "no more than there is");
        assert_eq!(operations_for(mib, 2 * mib, None), MIN_FILL_OPERATIONS);
        // All of them fit: four rounds miss one in fifty. Half of them fit: ln 2 rounds draw half of them.
        assert_eq!(operations_for(100 * mib, 50 * mib, Some(records)), 200_000);
        assert_eq!(operations_for(25 * mib, 50 * mib, Some(records)), 34_658);
        // Too many to be worth filling.
        assert_eq!(operations_for(100 * mib, 50 * mib, Some(200_000)), 50 * mib / 4096);
    }

    #[test]
    fn rounds_are_what_drawing_at_random_needs() {
        for share in [0.1_f64, 0.5, 0.9] {
            let records = 20_000_u64;
            let draws = (records as f64 * rounds(share)) as u64;
            let mut state = 7_u64;
            let mut seen = vec![false; records as usize];
            for _ in 0..draws {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                seen[((state >> 33) % records) as usize] = true;
            }
            let drawn = seen.iter().filter(|seen| **seen).count() as f64 / records as f64;
            assert!((drawn - share).abs() < 0.02, "{drawn} of {share}");
        }
    }
}
