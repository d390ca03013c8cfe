//! What can be told of a run before anything is measured or loaded: whether the real directories that it names can be used, and whether this
//! host can hold a system to its memory and CPUs.

use std::collections::BTreeSet;

use underlay_attach::{Missing, Registry, budget};
use underlay_record::PlannedCell;

use super::storage::attach_paths;
use super::{Observer, RunError};
use crate::spec::{StorageSource, StorageSpec, Study};

/// Refuses a run that names a real directory in which nothing can be made. `left` are the cells that are still to be run.
pub(super) fn check<'a>(
    study: &Study,
    left: impl Iterator<Item = &'a PlannedCell>,
    registry: &Registry,
) -> Result<(), RunError> {
    for storage in of(study, left).filter(|storage| matches!(storage.source, StorageSource::Paths(_))) {
        // As a cell does it: a fresh folder in each, which goes again.
        attach_paths(storage, registry)
            .map_err(|error| RunError::Mistake(format!("[storage.{}]: {error}", storage.name)))?;
    }
    Ok(())
}

/// Says what this host lacks to hold systems to their memory and CPUs: their cells will be doubtful for it, and nobody should have to wait for
/// them to be told.
pub(super) fn tell_what_holds_nothing<'a>(
    study: &Study,
    left: impl Iterator<Item = &'a PlannedCell>,
    observer: &dyn Observer,
) {
    if of(study, left).all(StorageSpec::is_elsewhere) {
        // Their memory and CPUs are their own matter.
        return;
    }
    let tell = |what: &str, Missing { what: missing, remedy }: Missing| {
        observer.notice(&format!(
            "nothing can hold a system to its {what} here, so that cells will be doubtful: {missing}; {remedy}"
        ));
    };
    if let Err(missing) = budget::probe() {
        tell("memory", missing);
    } else if study.machine.is_some()
        && let Err(missing) = budget::probe_cpu()
    {
        tell("CPUs", missing);
    }
}

/// The storages of these cells, and those that roles of a system have.
fn of<'s, 'a>(
    study: &'s Study,
    cells: impl Iterator<Item = &'a PlannedCell>,
) -> impl Iterator<Item = &'s StorageSpec> {
    let names: BTreeSet<&str> = cells.map(|planned| planned.cell.storage.as_str()).collect();
    let compared = study.storages.iter().filter(move |storage| names.contains(storage.name.as_str()));
    compared.chain(&study.role_storages)
}
