//! Cache devices in front of volumes: what of a record was asked of the volume, and how often a device that was not measured would answer.

use underlay_record::{LayerActivity, RunRecord};
use underlay_storage::layers::cache::CacheMode;
use underlay_storage::stack::{Node, VolumeSpec};

use crate::cache::{BLOCK_BYTES, Blocks, MissCurve, Second};
use crate::cell::Point;
use crate::demand::Demand;
use crate::refusal::Refusal;

/// The cache of a volume, below its link.
pub(crate) fn front_of(volume: &VolumeSpec) -> Option<&Node> {
    let below = match &volume.root {
        Node::Link { member, .. } => &**member,
        other => other,
    };
    matches!(below, Node::Cache { .. }).then_some(below)
}

/// The names of the devices that are caches.
pub(crate) fn cache_devices(volumes: &[VolumeSpec]) -> Vec<&str> {
    let fast = volumes.iter().filter_map(front_of).filter_map(|node| match node {
        Node::Cache { fast, .. } => Some(fast.devices()),
        _ => None,
    });
    let mut names: Vec<&str> = fast.flatten().map(|device| device.name.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    names
}

/// What the system asked of its volumes, over a measured window.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Asked {
    pub reads: u64,
    /// Those that no device behind a cache had a part in.
    pub cached_reads: u64,
    pub read_bytes: u64,
    pub writes: u64,
    pub write_bytes: u64,
    pub flushes: u64,
}

impl Asked {
    /// Where every request is a device's, or one each of several.
    pub(crate) fn of_devices(record: &RunRecord) -> Asked {
        let sum = |of: fn(&underlay_record::DeviceTotals) -> u64| {
            record.devices.iter().fold(0u64, |sum, device| sum.saturating_add(of(&device.totals)))
        };
        Asked {
            reads: sum(|totals| totals.reads),
            cached_reads: 0,
            read_bytes: sum(|totals| totals.read_bytes),
            writes: sum(|totals| totals.writes),
            write_bytes: sum(|totals| totals.write_bytes),
            flushes: sum(|totals| totals.flushes),
        }
    }

    /// Where caches make requests of their own: the volumes' own account has how many there were, and the caches how many blocks.
    ///
    /// # Errors
    /// When the record has neither.
    pub(crate) fn of_volumes(record: &RunRecord, fronts: &[&str]) -> Result<Asked, Refusal> {
        let caches = || record.layers.iter().filter(|layer| layer.kind == "cache");
        if caches().next().is_none() || record.paths.is_empty() {
            return Err(Refusal::Record {
                what: format!(
                    "{}: it has no account of what reached the cache and what passed it",
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
        let requests = |of: fn(&underlay_record::PathRecord) -> u64| {
            record.paths.iter().fold(0u64, |sum, path| sum.saturating_add(of(path)))
        };
        let behind = record
            .devices
            .iter()
            .filter(|device| !fronts.contains(&device.description.id.name.as_str()))
            .fold(0u64, |sum, device| sum.saturating_add(device.totals.reads));
        let reads = requests(|path| path.reads.requests);
        Ok(Asked {
            reads,
            cached_reads: reads.saturating_sub(behind),
            read_bytes: blocks(["read_hits", "read_misses"]),
            writes: requests(|path| path.writes.requests),
            write_bytes: blocks(["write_hits", "write_misses"]),
            flushes: requests(|path| path.flushes.requests),
        })
    }
}

/// How many requests of devices become of one to a volume.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Fan {
    /// Of a write: as many as there are copies.
    pub copies: f64,
    /// Of a flush: each device gets it.
    pub flushed: f64,
}

impl Fan {
    pub(crate) fn of(point: &Point) -> Fan {
        fn copies(node: &Node) -> f64 {
            match node {
                Node::Mirror { members } => members.len() as f64 * members.first().map_or(1.0, copies),
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
        let Some(first) = point.volumes.first() else { return Fan { copies: 1.0, flushed: 1.0 } };
        let devices: f64 = point.volumes.iter().map(names).sum();
        Fan { copies: copies(&first.root).max(1.0), flushed: (devices / point.volumes.len() as f64).max(1.0) }
    }
}

/// Of the reads that clients wait for, the share that cache devices answer, 0 to 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Cached {
    pub share: f64,
    /// After a long time, where they are still filling.
    pub later: Option<f64>,
}

/// What cache devices answer. `None` without one.
/// `memory` is how many times the question's memory there is.
///
/// # Errors
/// When the law of the requests is none that is modelled.
pub(crate) fn cached(
    question: &Point,
    demand: &Demand,
    curve: Option<&MissCurve>,
    memory: f64,
) -> Result<Option<Cached>, Refusal> {
    let mut fast_bytes = 0.0;
    let mut takes_writes = false;
    let mut bypass = f64::INFINITY;
    for node in question.volumes.iter().filter_map(front_of) {
        let Node::Cache { fast, mode, bypass_bytes, .. } = node else { continue };
        fast_bytes += fast.devices().iter().map(|device| device.capacity_bytes as f64).sum::<f64>();
        takes_writes |= *mode == CacheMode::WriteBack;
        bypass = bypass.min(*bypass_bytes as f64);
    }
    if fast_bytes == 0.0 {
        return Ok(None);
    }
    let Some(curve) = curve else {
        return Err(Refusal::Distribution { distribution: question.distribution.clone() });
    };
    let data_bytes = question.data_bytes().max(1.0);
    let read_bytes = mean_read_bytes(demand);
    let background = &demand.background;
    // The law's time is counted in requests that read.
    let reading =
        demand.classes.iter().filter(|class| class.reads > 0.0).map(|class| class.share).sum::<f64>();
    let reading = reading.clamp(0.01, 1.0);
    let writing = demand.writing_share() / reading;
    let passing = |bytes: f64, request_bytes: f64| {
        if request_bytes <= bypass { writing * bytes / BLOCK_BYTES } else { 0.0 }
    };
    let passing_blocks = passing(background.read_bytes, background.read_request_bytes)
        + if takes_writes { passing(background.write_bytes, background.write_request_bytes) } else { 0.0 };
    let second = Second {
        blocks: Blocks::new(curve.law, question.records, question.record_bytes, BLOCK_BYTES),
        first_share: curve.useful_share * memory * question.memory_bytes / data_bytes,
        second_share: fast_bytes / data_bytes,
        blocks_a_read: (read_bytes / BLOCK_BYTES).clamp(1.0, 64.0),
        passing_blocks,
        rewritten_share: writing * background.write_bytes / data_bytes,
        age_requests: question.filled_by.map(|operations| reading * operations),
    };
    let now = second.answered();
    let later = now.is_filling.then(|| Second { age_requests: None, ..second }.answered().of_misses);
    Ok(Some(Cached { share: now.of_misses, later }))
}

/// The length of a read that a client waits for.
fn mean_read_bytes(demand: &Demand) -> f64 {
    let reads = demand.reads();
    if reads <= 0.0 {
        return BLOCK_BYTES;
    }
    demand.classes.iter().map(|class| class.share * class.reads * class.read_bytes).sum::<f64>() / reads
}
