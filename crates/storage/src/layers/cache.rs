//! A fast device before a slow one.

mod lines;
mod write_back;

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};

use super::join::Gather;
use super::ranges::{Claim, Ranges};
use crate::device::{BlockDevice, Completion, DeviceError, Done, Geometry, Request};
use crate::journal::{Journal, JournalError, Snapshot};
use lines::{Lines, Standing};

const KIND: crate::journal::format::Kind = *b"wb-cache";
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
/// than `bypass_bytes`, what is not cached yet is written to the slow device directly. A flush makes the fast
/// device durable and commits to a journal on it which slots are dirty, so that whatever was flushed is found
/// after a power cut; the slow device is flushed only if it was written directly. When more than
/// `dirty_percent` of the slots are dirty, batches of them are written back in the order of the slow device,
/// one batch at a time. Both devices belong together from then on: neither has all data alone.
///
/// When a clean block can't be read from the fast device, the slow one answers.
pub struct Cache {
    inner: Arc<Inner>,
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
    #[error("the fast device has {capacity_bytes} bytes: too few for a cache of {least_bytes}")]
    TooSmall { capacity_bytes: u64, least_bytes: u64 },
    #[error("the slow device has {capacity_bytes} bytes, more than 2^32 blocks of 4096")]
    TooLarge { capacity_bytes: u64 },
    #[error("{0} percent of the cache can't be dirty: it must be 0 to 100")]
    Dirty(u32),
    #[error(transparent)]
    Journal(#[from] JournalError),
    #[error(
        "what the cache calls dirty does not fit to these devices: they were part of something else, or are damaged"
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
struct Counters {
    read_hits: AtomicU64,
    read_misses: AtomicU64,
    write_hits: AtomicU64,
    write_misses: AtomicU64,
    written_back: AtomicU64,
}

struct Inner {
    fast: Arc<dyn BlockDevice>,
    slow: Arc<dyn BlockDevice>,
    geometry: Geometry,
    /// In write-back mode.
    journal: Option<Journal>,
    reserved_bytes: u64,
    bypass_bytes: u64,
    dirty_blocks: u64,
    ranges: Arc<Ranges>,
    counters: Counters,
    state: Mutex<State>,
}

struct State {
    lines: Lines,
    /// The slow device was written past the cache since its last flush.
    direct: bool,
    flushing: bool,
    waiters: Vec<Done>,
    writing_back: bool,
    /// Where the next batch begins.
    hand: u32,
    /// Slots whose release the journal could not take yet.
    unreleased: Vec<(u32, u32)>,
}

/// Where part of a request goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
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

fn place_runs(places: &[Place]) -> Vec<Range<usize>> {
    segments(places, |before, after| match (before, after) {
        (Place::Slow, Place::Slow) => true,
        (Place::Fast(slot), Place::Fast(next)) => slot + 1 == *next,
        _ => false,
    })
}

impl Cache {
    /// Reads the journal in write-back mode, so it waits for the fast device.
    ///
    /// # Errors
    /// When the settings make no sense, the devices don't fit, or the fast one holds something else.
    pub fn open(
        fast: Arc<dyn BlockDevice>,
        slow: Arc<dyn BlockDevice>,
        settings: CacheSettings,
    ) -> Result<Cache, CacheError> {
        if settings.dirty_percent > 100 {
            return Err(CacheError::Dirty(settings.dirty_percent));
        }
        let (fast_bytes, geometry) = (fast.geometry().capacity_bytes, slow.geometry());
        if geometry.capacity_bytes / BLOCK_BYTES >= u64::from(u32::MAX) {
            return Err(CacheError::TooLarge { capacity_bytes: geometry.capacity_bytes });
        }
        let reserved_bytes = match settings.mode {
            CacheMode::Read => 0,
            CacheMode::WriteBack => Journal::range_bytes(8 * (fast_bytes / BLOCK_BYTES), LOG_BYTES),
        };
        let least_bytes = reserved_bytes + u64::from(WAYS) * BLOCK_BYTES;
        if fast_bytes < least_bytes {
            return Err(CacheError::TooSmall { capacity_bytes: fast_bytes, least_bytes });
        }
        let slots = ((fast_bytes - reserved_bytes) / BLOCK_BYTES).min(u64::from(u32::MAX - WAYS)) as u32;
        let mut lines = Lines::new(slots, WAYS);
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
        let inner = Arc::new(Inner {
            fast,
            slow,
            geometry: Geometry { block_bytes: geometry.block_bytes.max(BLOCK_BYTES as u32), ..geometry },
            journal,
            reserved_bytes,
            bypass_bytes: settings.bypass_bytes,
            dirty_blocks,
            ranges: Arc::new(Ranges::default()),
            counters: Counters::default(),
            state: Mutex::new(State {
                lines,
                direct: true,
                flushing: false,
                waiters: Vec::new(),
                writing_back: false,
                hand: 0,
                unreleased: Vec::new(),
            }),
        });
        if let Some(journal) = &inner.journal {
            let weak = Arc::downgrade(&inner);
            journal.set_source(move || {
                let Some(inner) = weak.upgrade() else { return Snapshot::default() };
                let Some(journal) = &inner.journal else { return Snapshot::default() };
                // Records are appended under the same lock.
                let state = inner.lock();
                let entries = state.lines.journalled().map(|(slot, block)| (slot, Some(block)));
                Snapshot { state: write_back::encode(entries), covers: journal.appended() }
            });
        }
        Ok(Cache { inner })
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

impl Inner {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn slot_offset(&self, slot: u32) -> u64 {
        self.reserved_bytes + u64::from(slot) * BLOCK_BYTES
    }

    fn read(self: &Arc<Self>, offset_bytes: u64, mut buffer: Vec<u8>, done: Done) {
        let first = offset_bytes / BLOCK_BYTES;
        let blocks = first..first + buffer.len() as u64 / BLOCK_BYTES;
        let inner = Arc::clone(self);
        self.ranges.claim(blocks.clone(), true, move |claim| {
            let places: Vec<Place> = {
                let mut state = inner.lock();
                let place = |block: u64| match state.lines.find(block as u32) {
                    Some(slot) if state.lines.get(slot).standing != Standing::Filling => {
                        state.lines.pin(slot);
                        Place::Fast(slot)
                    }
                    _ => Place::Slow,
                };
                blocks.map(place).collect()
            };
            let hits = places.iter().filter(|place| **place != Place::Slow).count() as u64;
            inner.counters.read_hits.fetch_add(hits, Ordering::Relaxed);
            inner.counters.read_misses.fetch_add(places.len() as u64 - hits, Ordering::Relaxed);
            let runs = place_runs(&places);
            let (next, found) = (Arc::clone(&inner), places.clone());
            let shape = runs.clone();
            let gather = Gather::new(runs.len(), move |parts: Vec<Completion>| {
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
                    if found[run.start] == Place::Slow {
                        missed.push((first as u32 + run.start as u32, bytes));
                    }
                }
                let promoted = buffer.len() as u64 <= next.bypass_bytes;
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
        places: &[Place],
        then: impl FnOnce(Completion) + Send + 'static,
    ) {
        let buffer = vec![0; places.len() * BLOCK_BYTES as usize];
        let from_slow = Request::Read { offset_bytes: block * BLOCK_BYTES, buffer };
        let Place::Fast(slot) = places[0] else { return self.slow.submit(from_slow, Box::new(then)) };
        let (inner, slots) = (Arc::clone(self), slot..slot + places.len() as u32);
        let done = move |completion: Completion| {
            let clean = {
                let mut state = inner.lock();
                let lines = &mut state.lines;
                slots.clone().for_each(|slot| lines.unpin(slot));
                completion.is_err() && slots.clone().all(|slot| lines.get(slot).standing != Standing::Dirty)
            };
            if clean { inner.slow.submit(from_slow, Box::new(then)) } else { then(completion) }
        };
        let buffer = vec![0; places.len() * BLOCK_BYTES as usize];
        let request = Request::Read { offset_bytes: self.slot_offset(slot), buffer };
        self.fast.submit(request, Box::new(done));
    }

    /// Takes in what was read from the slow device. The claim keeps writers away until it is there.
    fn fill(self: &Arc<Self>, missed: Vec<(u32, Vec<u8>)>, claim: Claim) {
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
            let done = move |completion: Completion| {
                {
                    let mut state = inner.lock();
                    for slot in slots {
                        match completion {
                            Ok(_) => state.lines.set_standing(slot, Standing::Clean),
                            Err(_) => state.lines.clear(slot),
                        }
                    }
                }
                drop(claim);
            };
            let request = Request::Write { offset_bytes: self.slot_offset(slot), data, fua: false };
            self.fast.submit(request, Box::new(done));
        }
    }

    fn write(self: &Arc<Self>, offset_bytes: u64, data: Vec<u8>, done: Done) {
        let first = offset_bytes / BLOCK_BYTES;
        let blocks = first..first + data.len() as u64 / BLOCK_BYTES;
        let inner = Arc::clone(self);
        self.ranges.claim(blocks.clone(), false, move |claim| {
            if inner.journal.is_none() {
                return inner.write_through(blocks, data, claim, done);
            }
            let passes = data.len() as u64 > inner.bypass_bytes;
            let places: Vec<Place> = {
                let mut state = inner.lock();
                blocks.map(|block| state.place_write(block as u32, passes)).collect()
            };
            let hits = places.iter().filter(|place| **place != Place::Slow).count() as u64;
            inner.counters.write_hits.fetch_add(hits, Ordering::Relaxed);
            inner.counters.write_misses.fetch_add(places.len() as u64 - hits, Ordering::Relaxed);
            inner.write_places(first, &places, &data, claim, done);
        });
    }

    /// Writes each block where it belongs; what is on the fast device is dirty then.
    fn write_places(self: &Arc<Self>, first: u64, places: &[Place], data: &[u8], claim: Claim, done: Done) {
        let runs = place_runs(places);
        let (inner, slots) = (Arc::clone(self), places.to_vec());
        let shape = runs.clone();
        let gather = Gather::new(runs.len(), move |completions: Vec<Completion>| {
            let mut answer = Ok(Vec::new());
            {
                let mut state = inner.lock();
                for (run, completion) in shape.into_iter().zip(completions) {
                    slots[run].iter().for_each(|place| state.written(*place, completion.is_ok()));
                    if let Err(error) = completion {
                        answer = Err(error);
                    }
                }
            }
            drop(claim);
            done(answer);
            inner.write_back();
        });
        for (part, run) in runs.into_iter().enumerate() {
            let gather = Arc::clone(&gather);
            let bytes = data[run.start * BLOCK_BYTES as usize..run.end * BLOCK_BYTES as usize].to_vec();
            let (device, offset_bytes) = match places[run.start] {
                Place::Fast(slot) => (&self.fast, self.slot_offset(slot)),
                Place::Slow => (&self.slow, (first + run.start as u64) * BLOCK_BYTES),
            };
            let request = Request::Write { offset_bytes, data: bytes, fua: false };
            device.submit(request, Box::new(move |completion| gather.arrive(part, completion)));
        }
    }

    /// A read cache: to the slow device, and over what is cached of it.
    fn write_through(self: &Arc<Self>, blocks: Range<u64>, data: Vec<u8>, claim: Claim, done: Done) {
        let cached = {
            let mut state = self.lock();
            let cached = state.lines.find_all(blocks.clone());
            cached.iter().for_each(|(_, slot)| state.lines.set_standing(*slot, Standing::Filling));
            cached
        };
        self.counters.write_misses.fetch_add(blocks.end - blocks.start, Ordering::Relaxed);
        let runs = segments(&cached, |(block, slot), (b, s)| block + 1 == *b && slot + 1 == *s);
        let (inner, held, shape) = (Arc::clone(self), cached.clone(), runs.clone());
        let gather = Gather::new(runs.len() + 1, move |mut completions: Vec<Completion>| {
            let answer = completions.pop().unwrap_or(Err(DeviceError::Gone));
            {
                let mut state = inner.lock();
                for (run, completion) in shape.into_iter().zip(completions) {
                    for (_, slot) in &held[run] {
                        // A write that failed leaves each block old or new, here and there perhaps not alike.
                        if completion.is_ok() && answer.is_ok() {
                            state.lines.set_standing(*slot, Standing::Clean);
                        } else {
                            state.lines.clear(*slot);
                        }
                    }
                }
            }
            drop(claim);
            done(answer);
        });
        let last = runs.len();
        for (part, run) in runs.into_iter().enumerate() {
            let gather = Arc::clone(&gather);
            let (block, slot) = cached[run.start];
            let from = (u64::from(block) - blocks.start) * BLOCK_BYTES;
            let bytes = data[from as usize..][..run.len() * BLOCK_BYTES as usize].to_vec();
            let request = Request::Write { offset_bytes: self.slot_offset(slot), data: bytes, fua: false };
            self.fast.submit(request, Box::new(move |completion| gather.arrive(part, completion)));
        }
        let request = Request::Write { offset_bytes: blocks.start * BLOCK_BYTES, data, fua: false };
        self.slow.submit(request, Box::new(move |completion| gather.arrive(last, completion)));
    }

    /// What is dirty becomes zeros and stays dirty: dropping it would bring back what the slow device has.
    fn discard(self: &Arc<Self>, offset_bytes: u64, length_bytes: u64, done: Done) {
        let first = offset_bytes / BLOCK_BYTES;
        let blocks = first..first + length_bytes / BLOCK_BYTES;
        let inner = Arc::clone(self);
        self.ranges.claim(blocks.clone(), false, move |claim| {
            let kept: Vec<(u32, u32)> = {
                let mut state = inner.lock();
                let mut kept = state.lines.find_all(blocks.clone());
                kept.retain(|(_, slot)| match state.lines.get(*slot).standing {
                    Standing::Dirty | Standing::Releasing => {
                        state.lines.touch(*slot);
                        true
                    }
                    _ => {
                        state.lines.clear(*slot);
                        false
                    }
                });
                kept
            };
            // Everything between the kept blocks.
            let mut gaps: Vec<Range<u64>> = Vec::new();
            let mut at = blocks.start;
            for end in kept.iter().map(|(block, _)| u64::from(*block)).chain([blocks.end]) {
                if at < end {
                    gaps.push(at..end);
                }
                at = end + 1;
            }
            let runs = segments(&kept, |(_, slot), (_, next)| slot + 1 == *next);
            let (next, held, shape) = (Arc::clone(&inner), kept.clone(), runs.clone());
            let gather = Gather::new(runs.len() + gaps.len(), move |completions: Vec<Completion>| {
                {
                    let mut state = next.lock();
                    state.direct = true;
                    for (run, completion) in shape.into_iter().zip(&completions) {
                        for (_, slot) in &held[run] {
                            state.written(Place::Fast(*slot), completion.is_ok());
                        }
                    }
                }
                drop(claim);
                done(completions.into_iter().find(Result::is_err).unwrap_or(Ok(Vec::new())));
            });
            let zeroed = runs.len();
            for (part, run) in runs.into_iter().enumerate() {
                let gather = Arc::clone(&gather);
                let offset_bytes = inner.slot_offset(kept[run.start].1);
                let data = vec![0; run.len() * BLOCK_BYTES as usize];
                let done = move |completion| gather.arrive(part, completion);
                inner.fast.submit(Request::Write { offset_bytes, data, fua: false }, Box::new(done));
            }
            for (part, gap) in gaps.into_iter().enumerate() {
                let gather = Arc::clone(&gather);
                let (offset_bytes, length) = (gap.start * BLOCK_BYTES, gap.end - gap.start);
                let request = Request::Discard { offset_bytes, length_bytes: length * BLOCK_BYTES };
                let done = move |completion| gather.arrive(zeroed + part, completion);
                inner.slow.submit(request, Box::new(done));
            }
        });
    }
}

impl State {
    /// Where a block goes that is about to be written.
    fn place_write(&mut self, block: u32, passes: bool) -> Place {
        let lines = &mut self.lines;
        let slot = match lines.find(block) {
            Some(slot) if matches!(lines.get(slot).standing, Standing::Dirty | Standing::Releasing) => {
                lines.touch(slot);
                return Place::Fast(slot);
            }
            Some(slot) if passes => {
                lines.clear(slot);
                None
            }
            Some(slot) => {
                lines.set_standing(slot, Standing::Filling);
                lines.touch(slot);
                Some(slot)
            }
            None if passes => None,
            None => lines.assign(block),
        };
        match slot {
            Some(slot) => Place::Fast(slot),
            None => Place::Slow,
        }
    }

    fn written(&mut self, place: Place, good: bool) {
        let Place::Fast(slot) = place else {
            self.direct = true;
            return;
        };
        self.lines.touch(slot);
        match (self.lines.get(slot).standing, good) {
            // Old or new, block by block, as any write that failed; and the only copy.
            (Standing::Dirty, _) | (_, true) => self.lines.set_standing(slot, Standing::Dirty),
            (Standing::Releasing, false) => self.lines.set_standing(slot, Standing::Dirty),
            (_, false) => self.lines.clear(slot),
        }
    }
}

impl BlockDevice for Cache {
    fn geometry(&self) -> Geometry {
        self.inner.geometry
    }

    fn submit(&self, request: Request, done: Done) {
        if let Err(error) = request.check(&self.inner.geometry) {
            return done(Err(error));
        }
        let inner = &self.inner;
        match request {
            Request::Read { buffer, .. } if buffer.is_empty() => done(Ok(buffer)),
            Request::Read { offset_bytes, buffer } => inner.read(offset_bytes, buffer, done),
            Request::Flush => inner.flush(done),
            request if request.extent().1 == 0 => done(Ok(Vec::new())),
            Request::Discard { offset_bytes, length_bytes } => {
                inner.discard(offset_bytes, length_bytes, done)
            }
            Request::Write { offset_bytes, data, fua } => {
                let flusher = Arc::clone(inner);
                let written = move |completion: Completion| match completion {
                    Ok(_) if fua => flusher.flush(done),
                    completion => done(completion),
                };
                inner.write(offset_bytes, data, Box::new(written));
            }
        }
    }
}
