//! A study's cells as a prediction needs them: the devices of their storage, and all that makes an operation what it is.

use std::collections::BTreeMap;
use std::path::Path;

use underlay_record::Run;
use underlay_storage::stack::VolumeSpec;

use crate::plan::Entry;
use crate::run::storage;
use crate::spec::{Cache, Form, StorageSource, Study};

/// The study that a run ran, as it was read then: with its overrides, its media, and its factor of slow motion.
///
/// # Errors
/// When it is no study any more for this version; the text lists its mistakes.
pub fn study_of_run(run: &Run) -> Result<Study, String> {
    let stored =
        |name: &str| run.media_files.get(name).cloned().ok_or_else(|| format!("the run has no {name}"));
    let form = Form { short: run.short, overrides: &run.overrides };
    let study = Study::parse_with_media("the run's study", &run.study_toml, form, &stored)
        .map_err(|mistakes| mistakes.to_string())?;
    Ok(study.at(run.scale.time))
}

/// The volumes of a cell's storage, over all servers, after the data scale. Backing files have names that nothing uses.
///
/// # Errors
/// What the storage is, in words, where nothing of ours paces its devices, or where they are reached over a network.
pub fn volumes(study: &Study, entry: &Entry<'_>) -> Result<Vec<VolumeSpec>, String> {
    let under = entry.storage.under(entry.system);
    match &under.source {
        StorageSource::Modelled { .. } => {}
        StorageSource::Volume(_) => return Err("a volume of a pool, reached over a network".to_owned()),
        StorageSource::Paths(_) => return Err("a real storage, of which there is no model".to_owned()),
        StorageSource::Elsewhere(_) => {
            return Err("the storage of a cluster that is already running".to_owned());
        }
    }
    if !entry.system.roles.is_empty() {
        return Err("a storage of its own for a part of the data".to_owned());
    }
    if study.faults.iter().any(|fault| fault.concerns(&entry.storage.name)) {
        return Err("a device with a fault".to_owned());
    }
    if study.events.iter().any(|event| event.concerns(&entry.system.name)) {
        return Err("a node that goes away".to_owned());
    }
    let stack = storage::stack(&under, Path::new(""), study.scale.data, 1.0, 0);
    // Named alike, so that equal storages are equal whatever studies call them.
    let named = |volume: VolumeSpec| VolumeSpec { name: "volume".to_owned(), ..volume };
    let of_server: Vec<VolumeSpec> =
        stack.map_or_else(Vec::new, |stack| stack.volumes.into_iter().map(named).collect());
    Ok((0..entry.system.servers).flat_map(|_| of_server.clone()).collect())
}

/// Everything but storage, sizes and load that makes an operation what it is: cells that differ in one of these say nothing about
/// each other.
pub fn settings(study: &Study, entry: &Entry<'_>) -> BTreeMap<String, String> {
    let mut settings = entry.storage.settings_of(entry.system);
    let workload = entry.workload;
    for (key, value) in &workload.properties {
        settings.insert(format!("workload.{key}"), value.clone());
    }
    let cache = match study.run.cache {
        Cache::Cold => "cold",
        Cache::Warm => "warm",
    };
    settings.insert("run.cache".to_owned(), cache.to_owned());
    let mut more = |key: &str, value: Option<String>| {
        if let Some(value) = value {
            settings.insert(key.to_owned(), value);
        }
    };
    more("run.dirty_limit", study.run.dirty_limit_bytes.map(|bytes| bytes.to_string()));
    more("workload.scan_filter", workload.scan_filter.clone());
    more("workload.visibility", workload.visibility.as_ref().map(|found| format!("{found:?}")));
    more("workload.compact_at", workload.compact_at.map(|share| share.to_string()));
    settings
}
