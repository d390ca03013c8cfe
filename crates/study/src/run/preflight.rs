//! Checks before anything is measured or loaded: whether the run's real directories can be used, and whether this host
//! can hold a system to its memory and CPUs.

use std::collections::BTreeSet;

use underlay_attach::{AttachError, MissingCapability, ResourceRegistry, budget};
use underlay_record::PlannedCell;

use super::storage::attach_paths;
use super::{RunError, RunObserver};
use crate::spec::{StorageSource, StorageSpec, Study};

/// Refuses a run that names a real directory in which nothing can be created. `left` are the cells still to run. Roles
/// have no real directories.
pub(super) fn check<'a>(
    study: &Study,
    left: impl Iterator<Item = &'a PlannedCell>,
    registry: &ResourceRegistry,
) -> Result<(), RunError> {
    for storage in
        select_storages(study, left).filter(|storage| matches!(storage.source, StorageSource::Paths(_)))
    {
        // Like a cell: a fresh directory in each, removed again.
        attach_paths(storage, registry)
            .map_err(|error| refused(&format!("[storage.{}]", storage.name), &error))?;
    }
    Ok(())
}

/// A failed or full disk is not the user's mistake.
pub(super) fn refused(place: &str, error: &AttachError) -> RunError {
    let text = format!("{place}: {error}");
    match error {
        AttachError::Io { source, .. } if underlay_files::is_storage_failure(source) => {
            RunError::Failed(text)
        }
        _ => RunError::Mistake(text),
    }
}

/// Reports what this host lacks to hold systems to their memory and CPUs. Their cells will be doubtful, and the user
/// should learn this before waiting for them.
pub(super) fn tell_what_holds_nothing<'a>(
    study: &Study,
    left: impl Iterator<Item = &'a PlannedCell>,
    observer: &dyn RunObserver,
) {
    if select_storages(study, left).all(StorageSpec::is_elsewhere) {
        // An external system's memory and CPUs are not limited.
        return;
    }
    let tell = |resource: &str, MissingCapability { what: missing, remedy }: MissingCapability| {
        observer.notice(&format!(
            "nothing here can hold a system to its {resource}, so cells will be doubtful. Missing: {missing}; {remedy}"
        ));
    };
    let cpus = if study.machine.is_some() { budget::probe_cpu().err() } else { None };
    match (budget::probe(), cpus) {
        (Err(missing), None) => tell("memory", missing),
        (Err(missing), Some(_)) => tell("memory and its CPUs", missing),
        (Ok(_), Some(missing)) => tell("CPUs", missing),
        (Ok(_), None) => {}
    }
}

/// The storage configurations of these cells.
fn select_storages<'s, 'a>(
    study: &'s Study,
    cells: impl Iterator<Item = &'a PlannedCell>,
) -> impl Iterator<Item = &'s StorageSpec> {
    let names: BTreeSet<&str> = cells.map(|planned| planned.cell.storage.as_str()).collect();
    study.storages.iter().filter(move |storage| names.contains(storage.name.as_str()))
}
