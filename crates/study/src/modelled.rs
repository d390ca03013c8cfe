//! A study's cells as a prediction needs them: the devices of their storage configuration, and everything else that
//! defines an operation.

use std::collections::BTreeMap;
use std::path::Path;

use underlay_record::RunHeader;
use underlay_storage::stack::{DeviceSpec, StackNode, VolumeSpec};

use crate::fill;
use crate::plan::CellParts;
use crate::run::storage;
use crate::spec::{InitialCacheState, LinkSpec, PoolVolume, StorageSource, Study, StudyForm};

/// The study of a run, as it was read at that time: with its overrides, its media and its slow-motion factor.
///
/// # Errors
/// When this version does not accept the study any more; the text lists its mistakes.
pub fn study_of_run(run: &RunHeader) -> Result<Study, String> {
    let stored =
        |name: &str| run.media_files.get(name).cloned().ok_or_else(|| format!("the run has no {name}"));
    let form = StudyForm { short: run.short, overrides: &run.overrides };
    let study = Study::parse_with_media("the run's study", &run.study_toml, form, &stored)
        .map_err(|mistakes| mistakes.to_string())?;
    Ok(study.with_slow_motion(run.scale.time))
}

/// The storage configuration of a cell, as far as it can be modelled. The names of backing files are not used.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ModelledStorage {
    /// The volumes of all servers, after the data scale.
    pub volumes: Vec<VolumeSpec>,
    /// The volumes come from one pool: devices of the same name are one device.
    pub shares_devices: bool,
    /// A sentence about what the model leaves out.
    pub assumed: Option<String>,
}

/// A cell's storage configuration as a model needs it.
///
/// # Errors
/// The reason why it can't be modelled: its devices are not paced by us, or their requests are unknown.
pub fn storage_of(study: &Study, entry: &CellParts<'_>) -> Result<ModelledStorage, String> {
    let under = entry.storage.under(entry.system);
    if !entry.system.roles.is_empty() {
        return Err(
            "a storage of its own for a part of the data (nothing measured tells which requests go there)"
                .to_owned(),
        );
    }
    if study.faults.iter().any(|fault| fault.concerns(&entry.storage.name)) {
        return Err("a device with a fault".to_owned());
    }
    if study.events.iter().any(|event| event.concerns(&entry.system.name)) {
        return Err("a node that goes away".to_owned());
    }
    // All get the same name, so that equal storage configurations are equal whatever they are called.
    let named = |volume: VolumeSpec| VolumeSpec { name: "volume".to_owned(), ..volume };
    match &under.source {
        StorageSource::Modelled { .. } => {
            let stack = storage::stack(&under, Path::new(""), study.scale.data, 1.0, 0);
            let of_server: Vec<VolumeSpec> =
                stack.map_or_else(Vec::new, |stack| stack.volumes.into_iter().map(named).collect());
            let volumes = (0..entry.system.servers).flat_map(|_| of_server.clone()).collect();
            Ok(ModelledStorage { volumes, ..ModelledStorage::default() })
        }
        StorageSource::Volume(volume) => {
            let root = pool(volume, &storage::pool_devices(&under, study.scale.data))?;
            let assumed = "the way to the pool's server is the study's link; the time of NVMe over TCP and this host's loopback is left out"
                .to_owned();
            let each = named(VolumeSpec::new("volume", root));
            let volumes = (0..entry.system.servers).map(|_| each.clone()).collect();
            Ok(ModelledStorage { volumes, shares_devices: true, assumed: Some(assumed) })
        }
        StorageSource::Paths(_) => Err("a real storage, which has no model".to_owned()),
        StorageSource::Elsewhere(_) => Err("the storage of a cluster that is already running".to_owned()),
    }
}

/// The bytes that a pool puts on one device before it goes on to the next.
const EXTENT_BYTES: u64 = 256 << 10;

/// A volume of a pool: extents in turn over all of its devices, each on one or two of them. It is thin: extents are
/// allocated as they are written, on the device with the most room. For equal devices this makes no difference.
fn pool(volume: &PoolVolume, devices: &[DeviceSpec]) -> Result<StackNode, String> {
    if volume.compress.is_some() {
        return Err("compression (no measured cell says how far the data shrinks)".to_owned());
    }
    let alike = |device: &DeviceSpec| {
        device.capacity_bytes == devices[0].capacity_bytes && device.medium == devices[0].medium
    };
    if devices.is_empty() || !devices.iter().all(alike) {
        return Err("a pool of unequal devices (its extents go where there is most room)".to_owned());
    }
    let node = |index: usize| StackNode::Device(devices[index % devices.len()].clone());
    let members: Vec<StackNode> = (0..devices.len())
        .map(|index| match volume.mirror {
            true => StackNode::Mirror { members: vec![node(index), node(index + 1)] },
            false => node(index),
        })
        .collect();
    let striped = StackNode::Stripe { chunk_bytes: EXTENT_BYTES, members };
    Ok(match volume.link {
        Some(LinkSpec { bandwidth_mb_s, latency_us }) => {
            StackNode::Link { bandwidth_mb_s, latency_us, member: Box::new(striped) }
        }
        None => striped,
    })
}

/// The operations that fill a cache device before anything is measured.
pub fn filling_operations(study: &Study, entry: &CellParts<'_>, records: u64) -> f64 {
    match study.run.cache {
        InitialCacheState::Cold => 0.0,
        InitialCacheState::Warm => {
            let (system, servers) = (entry.system, u64::from(entry.system.servers.max(1)));
            let data_bytes = records.saturating_mul(entry.workload.record_bytes());
            let sizes = fill::CellSizes { budget_bytes: study.budget_here(system), data_bytes, records };
            (fill::operations(system, entry.storage, study.is_slowed(), sizes) * servers) as f64
        }
    }
}

/// Everything but storage, sizes and load that defines an operation. Cells that differ in one of these can't be
/// compared.
pub fn settings(study: &Study, entry: &CellParts<'_>) -> BTreeMap<String, String> {
    let mut settings = entry.storage.settings_of(entry.system);
    let workload = entry.workload;
    for (key, value) in &workload.properties {
        settings.insert(format!("workload.{key}"), value.clone());
    }
    let cache = match study.run.cache {
        InitialCacheState::Cold => "cold",
        InitialCacheState::Warm => "warm",
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
