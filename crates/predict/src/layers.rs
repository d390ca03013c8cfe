//! How the layers of a storage configuration change the requests to its volumes, and how a record shows the original
//! ones.

use underlay_record::{LayerActivity, RunRecord};
use underlay_storage::stack::{StackNode, VolumeSpec};

use crate::cache::BLOCK_BYTES;
use crate::refusal::PredictionRefusal;

/// The cache of a volume, below its link.
pub(crate) fn front_of(volume: &VolumeSpec) -> Option<&StackNode> {
    let below = match &volume.root {
        StackNode::Link { member, .. } => &**member,
        other => other,
    };
    matches!(below, StackNode::Cache { .. }).then_some(below)
}

/// The names of the devices that are caches.
pub(crate) fn cache_devices(volumes: &[VolumeSpec]) -> Vec<&str> {
    let fast = volumes.iter().filter_map(front_of).filter_map(|node| match node {
        StackNode::Cache { fast, .. } => Some(fast.devices()),
        _ => None,
    });
    let mut names: Vec<&str> = fast.flatten().map(|device| device.name.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    names
}

/// The system's requests to its volumes over a measured window.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct VolumeDemand {
    pub reads: u64,
    /// Reads without any part on a device behind a cache.
    pub cached_reads: u64,
    pub read_bytes: u64,
    pub writes: u64,
    pub write_bytes: u64,
    pub flushes: u64,
}

impl VolumeDemand {
    /// For layouts in which every request is one of a device, or one each of several.
    pub(crate) fn from_devices(record: &RunRecord) -> VolumeDemand {
        let sum = |count_of: fn(&underlay_record::DeviceTotals) -> u64| {
            record.devices.iter().fold(0u64, |sum, device| sum.saturating_add(count_of(&device.totals)))
        };
        VolumeDemand {
            reads: sum(|totals| totals.reads),
            cached_reads: 0,
            read_bytes: sum(|totals| totals.read_bytes),
            writes: sum(|totals| totals.writes),
            write_bytes: sum(|totals| totals.write_bytes),
            flushes: sum(|totals| totals.flushes),
        }
    }

    /// For caches that make their own requests: the volumes' counters have the number of requests, and the caches the
    /// number of blocks.
    ///
    /// # Errors
    /// When the record has neither.
    pub(crate) fn from_volumes(
        record: &RunRecord,
        fronts: &[&str],
    ) -> Result<VolumeDemand, PredictionRefusal> {
        let caches = || record.layers.iter().filter(|layer| layer.kind == "cache");
        if caches().next().is_none() || record.paths.is_empty() {
            return Err(PredictionRefusal::Record {
                what: format!(
                    "{}: its record does not count the requests that reached the cache and those that passed it",
                    record.cell.id
                ),
            });
        }
        let blocks = |names: [&str; 2]| {
            let figure = |layer: &LayerActivity, name: &str| layer.figures.get(name).copied().unwrap_or(0.0);
            let all: f64 =
                caches().map(|layer| names.iter().map(|name| figure(layer, name)).sum::<f64>()).sum();
            (all.clamp(0.0, 1e15) * BLOCK_BYTES) as u64
        };
        let requests = |count_of: fn(&underlay_record::PathRecord) -> u64| {
            record.paths.iter().fold(0u64, |sum, path| sum.saturating_add(count_of(path)))
        };
        let device_reads = record
            .devices
            .iter()
            .filter(|device| !fronts.contains(&device.description.id.name.as_str()))
            .fold(0u64, |sum, device| sum.saturating_add(device.totals.reads));
        let reads = requests(|path| path.reads.requests);
        Ok(VolumeDemand {
            reads,
            cached_reads: reads.saturating_sub(device_reads),
            read_bytes: blocks(["read_hits", "read_misses"]),
            writes: requests(|path| path.writes.requests),
            write_bytes: blocks(["write_hits", "write_misses"]),
            flushes: requests(|path| path.flushes.requests),
        })
    }
}

/// How many device requests one volume request makes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct FanOut {
    /// For a write: the number of copies.
    pub copies: f64,
    /// For a flush: each device gets it.
    pub flushed: f64,
}

impl FanOut {
    pub(crate) fn from_volumes(volumes: &[VolumeSpec]) -> FanOut {
        fn copies(node: &StackNode) -> f64 {
            match node {
                StackNode::Mirror { members } => members.len() as f64 * members.first().map_or(1.0, copies),
                other => other.members().first().map_or(1.0, |member| copies(member)),
            }
        }
        let names = |volume: &VolumeSpec| {
            let mut names: Vec<String> = volume.devices().iter().map(|device| device.name.clone()).collect();
            names.sort_unstable();
            // A pool's device may be in two mirrors.
            names.dedup();
            names.len() as f64
        };
        let Some(first) = volumes.first() else { return FanOut { copies: 1.0, flushed: 1.0 } };
        let devices: f64 = volumes.iter().map(names).sum();
        FanOut { copies: copies(&first.root).max(1.0), flushed: (devices / volumes.len() as f64).max(1.0) }
    }
}
