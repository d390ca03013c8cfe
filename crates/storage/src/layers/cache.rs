//! A fast device before a slow one.

mod lines;
mod write_back;
mod writes;

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use underlay_sync::{Mutex, MutexGuard};

use serde::{Deserialize, Serialize};

use super::flushes::FlushQueue;
use super::join::GatherJoin;
use super::ranges::{DeviceRangeLock, DeviceRanges, LockAccess};
use crate::device::{BlockDevice, CompletionCallback, DeviceCompletion, DeviceGeometry, DeviceRequest};
use crate::journal::{Journal, JournalError, JournalSnapshot};
use lines::{CacheLines, LineState};

const KIND: crate::journal::format::JournalKind = *b"wb-cache";
const BLOCK_BYTES: u64 = 4096;
/// Slots that one block may be in.
const WAYS: u32 = 8;
/// Between two checkpoints at least this much may be journalled.
const LOG_BYTES: u64 = 64 << 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CacheMode {
    /// Writes go to the slow device; what is cached of them is changed too.
    Read,
    /// Writes rest on the fast device and are brought to the slow one later.
    WriteBack,
}

/// Keeps blocks of 4 KiB of the slow device on the fast one, in sets of eight, by the CLOCK rule.
///
/// **Read** takes in every block that was read and not found, but of requests longer than `bypass_bytes`:
/// those read through once should not push out the rest. It is empty when it is opened.
///
/// **Write-back** takes in writes as well. Where all eight slots of a block are dirty, or a request is longer
/// than `bypass_bytes`, what is not cached yet is written to the slow device directly. A flush makes the fast device
/// durable and commits to a journal on it which slots are dirty, so that all flushed data is found after a power cut;
/// the slow device is flushed only if it was written directly. When more than `dirty_percent` of the slots are dirty,
/// batches of them are written back in the order of the slow device, one batch at a time. Both devices belong together
/// from then on: neither has all data alone.
///
/// When a clean block can't be read from the fast device, the slow one answers.
pub struct CacheLayer {
    inner: Arc<CacheInner>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheSettings {
    pub mode: CacheMode,
    /// Longer requests pass by.
    pub bypass_bytes: u64,
    /// 0 to 100.
    pub dirty_percent: u32,
}

impl CacheSettings {
    pub fn new(mode: CacheMode) -> CacheSettings {
        CacheSettings { mode, bypass_bytes: 256 << 10, dirty_percent: 10 }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum CacheError {
    #[error("the fast device has {capacity_bytes} bytes, but a cache needs {least_bytes}")]
    TooSmall { capacity_bytes: u64, least_bytes: u64 },
    #[error("the slow device has {capacity_bytes} bytes, more than 2^32 blocks of 4096")]
    TooLarge { capacity_bytes: u64 },
    #[error("{0} percent of the cache can't be dirty: it must be 0 to 100")]
    Dirty(u32),
    #[error(transparent)]
    Journal(#[from] JournalError),
    #[error(
        "the cache's list of dirty blocks does not fit these devices: they were part of something else, or are damaged"
    )]
    Map,
}

/// Counts of blocks and bytes since the cache was opened; the last two are of now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheFigures {
    pub read_hits: u64,
    pub read_misses: u64,
    /// Written to the fast device alone.
    pub write_hits: u64,
    /// Written to the slow device.
    pub write_misses: u64,
    pub written_back_bytes: u64,
    pub cached_bytes: u64,
    pub dirty_bytes: u64,
}

#[derive(Default)]
struct CacheCounters {
    read_hits: AtomicU64,
    read_misses: AtomicU64,
    write_hits: AtomicU64,
    write_misses: AtomicU64,
    written_back: AtomicU64,
}

struct CacheInner {
    fast: Arc<dyn BlockDevice>,
    slow: Arc<dyn BlockDevice>,
    geometry: DeviceGeometry,
    /// In write-back mode.
    journal: Option<Journal>,
    reserved_bytes: u64,
    bypass_bytes: u64,
    dirty_blocks: u64,
    ranges: Arc<DeviceRanges>,
    counters: CacheCounters,
    state: Mutex<CacheState>,
}

struct CacheState {
    lines: CacheLines,
    /// The slow device was written past the cache since its last flush.
    direct: bool,
    flushes: FlushQueue,
    writing_back: bool,
    /// Where the next batch begins.
    hand: u32,
    /// Slots whose release the journal could not take yet, with their tenancies.
    unreleased: BTreeSet<(u32, u32)>,
}

/// Where part of a request goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RequestSource {
    Fast(u32),
    Slow,
}

/// The maximal runs in which each element is joined to the one before.
fn segments<T>(all: &[T], joined: impl Fn(&T, &T) -> bool) -> Vec<Range<usize>> {
    let mut runs: Vec<Range<usize>> = Vec::new();
    for index in 0..all.len() {
        match runs.last_mut() {
            Some(run) if joined(&all[index - 1], &all[index]) => run.end = index + 1,
            _ => runs.push(index..index + 1),
        }
    }
    runs
}

fn place_runs(places: &[RequestSource]) -> Vec<Range<usize>> {
    segments(places, |before, after| match (before, after) {
        (RequestSource::Slow, RequestSource::Slow) => true,
        (RequestSource::Fast(slot), RequestSource::Fast(next)) => slot + 1 == *next,
        _ => false,
    })
}

impl CacheLayer {
    /// Reads the journal in write-back mode, so it waits for the fast device.
    ///
    /// # Errors
    /// When the settings make no sense, the devices don't fit, or the fast one holds something else.
    pub fn open(
        fast: Arc<dyn BlockDevice>,
        slow: Arc<dyn BlockDevice>,
        settings: CacheSettings,
    ) -> Result<CacheLayer, CacheError> {
        if settings.dirty_percent > 100 {
            return Err(CacheError::Dirty(settings.dirty_percent));
        }
        let (fast_bytes, geometry) = (fast.geometry().capacity_bytes, slow.geometry());
        if geometry.capacity_bytes / BLOCK_BYTES >= u64::from(u32::MAX) {
            return Err(CacheError::TooLarge { capacity_bytes: geometry.capacity_bytes });
        }
        let reserved_bytes = match settings.mode {
            CacheMode::Read => 0,
            // 8 bytes for each slot: the longest snapshot calls all of them dirty.
            CacheMode::WriteBack => Journal::range_bytes(8 * (fast_bytes / BLOCK_BYTES), LOG_BYTES),
        };
        let least_bytes = reserved_bytes + u64::from(WAYS) * BLOCK_BYTES;
        if fast_bytes < least_bytes {
            return Err(CacheError::TooSmall { capacity_bytes: fast_bytes, least_bytes });
        }
        let slots = ((fast_bytes - reserved_bytes) / BLOCK_BYTES).min(u64::from(u32::MAX - WAYS)) as u32;
        let mut lines = CacheLines::new(slots, WAYS);
        let journal = match settings.mode {
            CacheMode::Read => None,
            CacheMode::WriteBack => {
                let (journal, recovered) = Journal::open(Arc::clone(&fast), 0..reserved_bytes, KIND)?;
                for record in std::iter::once(&recovered.snapshot).chain(&recovered.records) {
                    let entries = write_back::decode(record).ok_or(CacheError::Map)?;
                    let inside = |block: Option<u32>| {
                        block.is_none_or(|block| {
                            (u64::from(block) + 1) * BLOCK_BYTES <= geometry.capacity_bytes
                        })
                    };
                    if !entries.into_iter().all(|(slot, block)| inside(block) && lines.restore(slot, block)) {
                        return Err(CacheError::Map);
                    }
                }
                Some(journal)
            }
        };
        let dirty_blocks = u64::from(lines.len()) * u64::from(settings.dirty_percent) / 100;
        let inner = Arc::new(CacheInner {
            fast,
            slow,
            geometry: DeviceGeometry {
                block_bytes: geometry.block_bytes.max(BLOCK_BYTES as u32),
                ..geometry
            },
            journal,
            reserved_bytes,
            bypass_bytes: settings.bypass_bytes,
            dirty_blocks,
            ranges: Arc::new(DeviceRanges::default()),
            counters: CacheCounters::default(),
            state: Mutex::new(CacheState {
                lines,
                // Nobody knows whether what was written to the slow device before was flushed.
                direct: true,
                flushes: FlushQueue::default(),
                writing_back: false,
                hand: 0,
                unreleased: BTreeSet::new(),
            }),
        });
        if let Some(journal) = &inner.journal {
            let weak = Arc::downgrade(&inner);
            journal.set_source(move || {
                let Some(inner) = weak.upgrade() else { return JournalSnapshot::default() };
                let Some(journal) = &inner.journal else { return JournalSnapshot::default() };
                // Records are appended under the same lock.
                let state = inner.lock();
                let entries = state.lines.journalled().map(|(slot, block)| (slot, Some(block)));
                JournalSnapshot { state: write_back::encode(entries), covers: journal.appended() }
            });
        }
        Ok(CacheLayer { inner })
    }

    pub fn figures(&self) -> CacheFigures {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let counters = &self.inner.counters;
        let state = self.inner.lock();
        CacheFigures {
            read_hits: count(&counters.read_hits),
            read_misses: count(&counters.read_misses),
            write_hits: count(&counters.write_hits),
            write_misses: count(&counters.write_misses),
            written_back_bytes: count(&counters.written_back),
            cached_bytes: state.lines.cached * BLOCK_BYTES,
            dirty_bytes: state.lines.dirty.len() as u64 * BLOCK_BYTES,
        }
    }
}

impl CacheInner {
    fn lock(&self) -> MutexGuard<'_, CacheState> {
        self.state.lock()
    }

    fn slot_offset(&self, slot: u32) -> u64 {
        self.reserved_bytes + u64::from(slot) * BLOCK_BYTES
    }

    fn read(self: &Arc<Self>, offset_bytes: u64, mut buffer: Vec<u8>, done: CompletionCallback) {
        let first = offset_bytes / BLOCK_BYTES;
        let blocks = first..first + buffer.len() as u64 / BLOCK_BYTES;
        let inner = Arc::clone(self);
        self.ranges.claim((), blocks.clone(), LockAccess::Shared, move |claim| {
            let places: Vec<RequestSource> = {
                let mut state = inner.lock();
                let place = |block: u64| match state.lines.find(block as u32) {
                    Some(slot) if state.lines.get(slot).standing != LineState::Filling => {
                        state.lines.pin(slot);
                        RequestSource::Fast(slot)
                    }
                    _ => RequestSource::Slow,
                };
                blocks.map(place).collect()
            };
            let hits = places.iter().filter(|place| **place != RequestSource::Slow).count() as u64;
            inner.counters.read_hits.fetch_add(hits, Ordering::Relaxed);
            inner.counters.read_misses.fetch_add(places.len() as u64 - hits, Ordering::Relaxed);
            let runs = place_runs(&places);
            let (next, found) = (Arc::clone(&inner), places.clone());
            let shape = runs.clone();
            let gather = GatherJoin::new(runs.len(), move |parts: Vec<DeviceCompletion>| {
                let mut missed = Vec::new();
                for (run, part) in shape.into_iter().zip(parts) {
                    let bytes = match part {
                        Ok(bytes) => bytes,
                        Err(error) => {
                            drop(claim);
                            return done(Err(error));
                        }
                    };
                    let target = &mut buffer[run.start * BLOCK_BYTES as usize..][..bytes.len()];
                    target.copy_from_slice(&bytes);
                    if found[run.start] == RequestSource::Slow {
                        missed.push((first as u32 + run.start as u32, bytes));
                    }
                }
                let promoted = buffer.len() as u64 <= next.bypass_bytes;
                // Answered first: the reader doesn't wait for what it read to be taken in.
                done(Ok(buffer));
                if promoted {
                    next.fill(missed, claim);
                }
            });
            for (part, run) in runs.into_iter().enumerate() {
                let gather = Arc::clone(&gather);
                let block = first + run.start as u64;
                inner.read_run(block, &places[run], move |completion| gather.arrive(part, completion));
            }
        });
    }

    /// Blocks that are all on the slow device, or all pinned in neighbouring slots.
    fn read_run(
        self: &Arc<Self>,
        block: u64,
        places: &[RequestSource],
        then: impl FnOnce(DeviceCompletion) + Send + 'static,
    ) {
        let buffer = vec![0; places.len() * BLOCK_BYTES as usize];
        let from_slow = DeviceRequest::Read { offset_bytes: block * BLOCK_BYTES, buffer };
        let RequestSource::Fast(slot) = places[0] else { return self.slow.submit(from_slow, Box::new(then)) };
        let (inner, slots) = (Arc::clone(self), slot..slot + places.len() as u32);
        let done = move |completion: DeviceCompletion| {
            let clean = {
                let mut state = inner.lock();
                let lines = &mut state.lines;
                slots.clone().for_each(|slot| lines.unpin(slot));
                completion.is_err() && slots.clone().all(|slot| lines.get(slot).standing != LineState::Dirty)
            };
            if clean { inner.slow.submit(from_slow, Box::new(then)) } else { then(completion) }
        };
        let buffer = vec![0; places.len() * BLOCK_BYTES as usize];
        let request = DeviceRequest::Read { offset_bytes: self.slot_offset(slot), buffer };
        self.fast.submit(request, Box::new(done));
    }

    /// Takes in what was read from the slow device. The claim keeps writers away until it is there.
    fn fill(self: &Arc<Self>, missed: Vec<(u32, Vec<u8>)>, claim: DeviceRangeLock) {
        let mut writes: Vec<(u32, Vec<u8>)> = Vec::new();
        {
            let mut state = self.lock();
            for (first, bytes) in missed {
                for (index, content) in bytes.chunks(BLOCK_BYTES as usize).enumerate() {
                    let block = first + index as u32;
                    // Another reader may be taking it in.
                    if state.lines.find(block).is_some() {
                        continue;
                    }
                    let Some(slot) = state.lines.assign(block) else { continue };
                    match writes.last_mut() {
                        Some((start, data)) if *start + (data.len() as u64 / BLOCK_BYTES) as u32 == slot => {
                            data.extend_from_slice(content);
                        }
                        _ => writes.push((slot, content.to_vec())),
                    }
                }
            }
        }
        let claim = Arc::new(claim);
        for (slot, data) in writes {
            let (inner, claim) = (Arc::clone(self), Arc::clone(&claim));
            let slots = slot..slot + (data.len() as u64 / BLOCK_BYTES) as u32;
            let done = move |completion: DeviceCompletion| {
                {
                    let mut state = inner.lock();
                    for slot in slots {
                        match completion {
                            Ok(_) => state.lines.set_standing(slot, LineState::Clean),
                            Err(_) => state.lines.clear(slot),
                        }
                    }
                }
                drop(claim);
            };
            let request = DeviceRequest::Write { offset_bytes: self.slot_offset(slot), data, fua: false };
            self.fast.submit(request, Box::new(done));
        }
    }
}

impl BlockDevice for CacheLayer {
    fn geometry(&self) -> DeviceGeometry {
        self.inner.geometry
    }

    fn submit(&self, request: DeviceRequest, done: CompletionCallback) {
        if let Err(error) = request.check(&self.inner.geometry) {
            return done(Err(error));
        }
        let inner = &self.inner;
        match request {
            DeviceRequest::Read { buffer, .. } if buffer.is_empty() => done(Ok(buffer)),
            DeviceRequest::Read { offset_bytes, buffer } => inner.read(offset_bytes, buffer, done),
            DeviceRequest::Flush => inner.flush(done),
            request if request.extent().1 == 0 => done(Ok(Vec::new())),
            DeviceRequest::Discard { offset_bytes, length_bytes } => {
                inner.discard(offset_bytes, length_bytes, done)
            }
            DeviceRequest::Write { offset_bytes, data, fua } => {
                let flusher = Arc::clone(inner);
                let written = move |completion: DeviceCompletion| match completion {
                    Ok(_) if fua => flusher.flush(done),
                    completion => done(completion),
                };
                inner.write(offset_bytes, data, Box::new(written));
            }
        }
    }
}
