//! How much smaller data is where it is stored.

use crate::spec::read::{SectionSites, StorageSite, SystemSite, WorkloadSite};

/// The share of repeated bytes that remains after compression: headers of blocks, and references to matches.
const LEFT_OF_REPEATS: f64 = 0.1;

/// The bytes that a workload's records take on this storage configuration, relative to their own: 1 where one of the
/// study's systems stores them unchanged. Data that a layer below the file system compresses takes its full room in the
/// file system.
pub(super) fn stored_share(storage: &StorageSite, workload: &WorkloadSite, sites: &SectionSites) -> f64 {
    match sites.systems.iter().all(|system| compresses(storage, system)) {
        true => 1.0 - workload.compressibility() * (1.0 - LEFT_OF_REPEATS),
        false => 1.0,
    }
}

fn compresses(storage: &StorageSite, system: &SystemSite) -> bool {
    let settings = storage.spec.settings_of(&system.spec);
    underlay_systems::find(&system.spec.kind).is_some_and(|kind| kind.compresses(&settings))
}
