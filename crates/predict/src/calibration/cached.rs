//! How often a cache device that was not measured would answer.

use underlay_storage::layers::cache::CacheMode;
use underlay_storage::stack::StackNode;

use crate::cache::{BLOCK_BYTES, CachedBlocks, MissCurve, SecondCache};
use crate::cell::CellPoint;
use crate::demand::MixDemand;
use crate::layers::front_of;
use crate::refusal::PredictionRefusal;

/// The share of the reads that clients wait for which cache devices answer, 0 to 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct CachedShare {
    pub share: f64,
    /// After a long time, if they are still filling.
    pub later: Option<f64>,
}

/// The share of requests that cache devices answer. `None` without one. `memory` is the factor on the question's
/// memory.
///
/// # Errors
/// When the law of the requests is not modelled.
pub(super) fn cached(
    question: &CellPoint,
    demand: &MixDemand,
    curve: Option<&MissCurve>,
    memory: f64,
) -> Result<Option<CachedShare>, PredictionRefusal> {
    let mut fast_bytes = 0.0;
    let mut takes_writes = false;
    let mut bypass = f64::INFINITY;
    for node in question.volumes.iter().filter_map(front_of) {
        let StackNode::Cache { fast, mode, bypass_bytes, .. } = node else { continue };
        fast_bytes += fast.devices().iter().map(|device| device.capacity_bytes as f64).sum::<f64>();
        takes_writes |= *mode == CacheMode::WriteBack;
        bypass = bypass.min(*bypass_bytes as f64);
    }
    if fast_bytes == 0.0 {
        return Ok(None);
    }
    let Some(curve) = curve else {
        return Err(PredictionRefusal::Distribution { distribution: question.distribution.clone() });
    };
    let data_bytes = question.data_bytes().max(1.0);
    let read_bytes = mean_read_bytes(demand);
    let background = &demand.background;
    // The law counts time in reading requests.
    let reading =
        demand.classes.iter().filter(|class| class.reads > 0.0).map(|class| class.share).sum::<f64>();
    let reading = reading.clamp(0.01, 1.0);
    let writing = demand.writing_share() / reading;
    let passing = |bytes: f64, request_bytes: f64| {
        if request_bytes <= bypass { writing * bytes / BLOCK_BYTES } else { 0.0 }
    };
    let passing_blocks = passing(background.read_bytes, background.read_request_bytes)
        + if takes_writes { passing(background.write_bytes, background.write_request_bytes) } else { 0.0 };
    let second = SecondCache {
        blocks: CachedBlocks::new(curve.law, question.records, question.record_bytes, BLOCK_BYTES),
        first_share: curve.useful_share * memory * question.memory_bytes / data_bytes,
        second_share: fast_bytes / data_bytes,
        blocks_a_read: (read_bytes / BLOCK_BYTES).clamp(1.0, 64.0),
        passing_blocks,
        rewritten_share: writing * background.write_bytes / data_bytes,
        age_requests: question.filled_by.map(|operations| reading * operations),
    };
    let now = second.answered();
    let later = now.is_filling.then(|| SecondCache { age_requests: None, ..second }.answered().of_misses);
    Ok(Some(CachedShare { share: now.of_misses, later }))
}

/// The length of a read that a client waits for.
fn mean_read_bytes(demand: &MixDemand) -> f64 {
    let reads = demand.reads();
    if reads <= 0.0 {
        return BLOCK_BYTES;
    }
    demand.classes.iter().map(|class| class.share * class.reads * class.read_bytes).sum::<f64>() / reads
}
