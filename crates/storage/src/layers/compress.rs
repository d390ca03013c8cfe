//! A volume whose bytes are stored compressed.

pub mod codec;
mod flush;
mod map;
mod space;

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use underlay_sync::{Mutex, MutexGuard};

use super::flushes::FlushQueue;
use super::join::GatherJoin;
use super::ranges::{DeviceRangeLock, DeviceRanges, LockAccess};
use super::workers::WorkerThreads;
use crate::device::{
    BlockDevice, CompletionCallback, DeviceCompletion, DeviceError, DeviceGeometry, DeviceRequest,
};
use crate::journal::format::JournalKind;
use crate::journal::{Journal, JournalError, JournalSnapshot};
pub use codec::{CompressionCodec, PackedChunk};
use map::{ChunkEntry, ChunkMap};
use space::{UnitBitmap, UnitRun};

const BLOCK_BYTES: u64 = 4096;
/// Space is given out in units of this size.
pub const UNIT_BYTES: u64 = 4096;
/// Between two checkpoints at least this much may be journalled.
const LOG_BYTES: u64 = 64 << 10;
/// Adjacent chunks are read and written together up to this length.
const MAX_REQUEST_BYTES: u64 = 1 << 20;

/// Cuts the volume into chunks and stores each compressed, in as many units of 4 KiB as it takes.
///
/// **Writes** never go over what is stored: a chunk is compressed anew and put somewhere else, and the old
/// place is free once a flush has made the new one durable. A write of part of a chunk reads the rest of it
/// first. A chunk of zeros takes no space, one that does not get shorter by a unit is stored as it is.
///
/// **Flush**: the member is flushed, then the changes of the map are committed to the journal at the member's
/// beginning. After a power cut every chunk is as it was at the last flush or later, never a mixture.
///
/// **Space**: the volume may be larger than its member. When no unit is free, writes fail with `NoSpace` and
/// leave everything as it was; a discard gives whole chunks back.
pub struct CompressLayer {
    inner: Arc<CompressInner>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompressSettings {
    pub codec: CompressionCodec,
    /// The bytes that are compressed as one: a power of two from 8 KiB to 512 KiB.
    pub chunk_bytes: u32,
    /// How long the volume says it is; as long as the space for chunks unless told.
    pub capacity_bytes: Option<u64>,
}

#[derive(Debug, thiserror::Error)]
pub enum CompressError {
    #[error("{0}")]
    Settings(String),
    #[error("the member has {capacity_bytes} bytes, but {reserved_bytes} are needed for the journal alone")]
    TooSmall { capacity_bytes: u64, reserved_bytes: u64 },
    #[error(transparent)]
    Journal(#[from] JournalError),
    #[error(
        "the map of the compressed volume is inconsistent: the device was created with another capacity, or is damaged"
    )]
    Map,
}

/// The stored bytes, and their compressed size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CompressFigures {
    /// In chunks that are not all zeros.
    pub logical_bytes: u64,
    /// The same, compressed.
    pub stored_bytes: u64,
    /// The units that they take.
    pub used_bytes: u64,
    /// All units.
    pub space_bytes: u64,
}

struct CompressInner {
    member: Arc<dyn BlockDevice>,
    geometry: DeviceGeometry,
    codec: CompressionCodec,
    chunk_bytes: u64,
    reserved_bytes: u64,
    space_bytes: u64,
    journal: Journal,
    ranges: Arc<DeviceRanges>,
    workers: WorkerThreads,
    state: Mutex<CompressState>,
}

struct CompressState {
    map: ChunkMap,
    space: UnitBitmap,
    /// Units that the journal, or a flush in flight, may still lead to.
    replaced: Vec<UnitRun>,
    flushes: FlushQueue,
}

/// Part of a chunk, and what is to be in it.
struct ChunkPiece {
    chunk: u32,
    inside: Range<usize>,
    content: PieceContent,
}

enum PieceContent {
    Data(Arc<Vec<u8>>, usize),
    Zeros,
}

/// A chunk ready to be stored; `None` for zeros.
type PreparedChunk = Result<(u32, Option<PackedChunk>), DeviceError>;

/// `lz4/16`, `zstd/512`: what was stored in one way can't be read in another.
fn kind(settings: &CompressSettings) -> JournalKind {
    let codec = match settings.codec {
        CompressionCodec::Lz4 => "lz4",
        CompressionCodec::Zstd(_) => "zstd",
    };
    let mut kind = *b"        ";
    for (to, from) in kind.iter_mut().zip(format!("{codec}/{}", settings.chunk_bytes >> 10).bytes()) {
        *to = from;
    }
    kind
}

impl CompressLayer {
    /// Reads the map, so it waits for the member.
    ///
    /// # Errors
    /// When the settings make no sense, the member is too small, or holds something else.
    pub fn open(
        member: Arc<dyn BlockDevice>,
        settings: CompressSettings,
        workers: WorkerThreads,
    ) -> Result<CompressLayer, CompressError> {
        let chunk_bytes = u64::from(settings.chunk_bytes);
        if !chunk_bytes.is_power_of_two() || !(8 << 10..=512 << 10).contains(&chunk_bytes) {
            let problem =
                format!("a chunk of {chunk_bytes} bytes: it must be a power of two from 8192 to 524288");
            return Err(CompressError::Settings(problem));
        }
        if let Some(problem) = settings.codec.problem() {
            return Err(CompressError::Settings(problem));
        }
        let member_bytes = member.geometry().capacity_bytes;
        let units = member_bytes / UNIT_BYTES;
        let chunks = settings.capacity_bytes.unwrap_or(member_bytes).div_ceil(chunk_bytes);
        if units > u64::from(u32::MAX) || chunks > u64::from(u32::MAX) {
            let problem = format!("a volume of {chunks} chunks on {units} units: neither may exceed 2^32");
            return Err(CompressError::Settings(problem));
        }
        let reserved_bytes = Journal::range_bytes(ChunkMap::snapshot_bytes(chunks, units), LOG_BYTES);
        if reserved_bytes + chunk_bytes > member_bytes {
            return Err(CompressError::TooSmall { capacity_bytes: member_bytes, reserved_bytes });
        }
        let units = (member_bytes - reserved_bytes) / UNIT_BYTES;
        let capacity_bytes = match settings.capacity_bytes {
            Some(capacity_bytes) => capacity_bytes / BLOCK_BYTES * BLOCK_BYTES,
            None => units * UNIT_BYTES / chunk_bytes * chunk_bytes,
        };
        let (journal, recovered) = Journal::open(Arc::clone(&member), 0..reserved_bytes, kind(&settings))?;
        let mut map = ChunkMap::default();
        let mut space = UnitBitmap::new(units as u32);
        let read = map.apply(&recovered.snapshot) && recovered.records.iter().all(|record| map.apply(record));
        if !read || !map.fill(&mut space, chunks as u32, settings.chunk_bytes) {
            return Err(CompressError::Map);
        }
        let inner = Arc::new(CompressInner {
            geometry: DeviceGeometry {
                capacity_bytes,
                block_bytes: BLOCK_BYTES as u32,
                optimal_io_bytes: settings.chunk_bytes,
            },
            member,
            codec: settings.codec,
            chunk_bytes,
            reserved_bytes,
            space_bytes: units * UNIT_BYTES,
            journal,
            ranges: Arc::new(DeviceRanges::default()),
            workers,
            state: Mutex::new(CompressState {
                map,
                space,
                replaced: Vec::new(),
                flushes: FlushQueue::default(),
            }),
        });
        let weak = Arc::downgrade(&inner);
        inner.journal.set_source(move || {
            let Some(inner) = weak.upgrade() else { return JournalSnapshot::default() };
            // Records are appended under the same lock.
            let state = inner.lock();
            JournalSnapshot { state: state.map.snapshot(), covers: inner.journal.appended() }
        });
        Ok(CompressLayer { inner })
    }

    pub fn figures(&self) -> CompressFigures {
        let state = self.inner.lock();
        CompressFigures {
            logical_bytes: state.map.len() as u64 * self.inner.chunk_bytes,
            stored_bytes: state.map.stored_bytes,
            used_bytes: state.map.used_units * UNIT_BYTES,
            space_bytes: self.inner.space_bytes,
        }
    }
}

impl CompressInner {
    fn lock(&self) -> MutexGuard<'_, CompressState> {
        self.state.lock()
    }

    fn unit_offset(&self, unit: u32) -> u64 {
        self.reserved_bytes + u64::from(unit) * UNIT_BYTES
    }

    fn chunks_of(&self, offset_bytes: u64, length_bytes: u64) -> Range<u64> {
        offset_bytes / self.chunk_bytes..(offset_bytes + length_bytes).div_ceil(self.chunk_bytes)
    }

    /// Fetches the stored bytes of chunks; those that are all zeros come empty.
    fn fetch(
        self: &Arc<Self>,
        entries: Vec<Option<ChunkEntry>>,
        then: impl FnOnce(Result<Vec<Option<(ChunkEntry, Vec<u8>)>>, DeviceError>) + Send + 'static,
    ) {
        // Neighbours on the device are read by one request.
        let mut reads: Vec<UnitRun> = Vec::new();
        for run in entries.iter().flatten().flat_map(|entry| &entry.runs) {
            let longest = (MAX_REQUEST_BYTES / UNIT_BYTES) as u32;
            match reads.last_mut() {
                Some(last) if last.start + last.count == run.start && last.count + run.count <= longest => {
                    last.count += run.count;
                }
                _ => reads.push(*run),
            }
        }
        let gather = GatherJoin::new(reads.len(), move |parts: Vec<DeviceCompletion>| {
            let parts: Result<Vec<Vec<u8>>, DeviceError> = parts.into_iter().collect();
            then(parts.map(|parts| {
                let mut bytes = BufferCursor { parts, part: 0, at: 0 };
                let fetch = |entry: Option<ChunkEntry>| {
                    entry.map(|entry| {
                        let mut stored = bytes.take(entry.units() as usize * UNIT_BYTES as usize);
                        stored.truncate(entry.stored_bytes as usize);
                        (entry, stored)
                    })
                };
                entries.into_iter().map(fetch).collect()
            }));
        });
        for (part, run) in reads.into_iter().enumerate() {
            let gather = Arc::clone(&gather);
            let buffer = vec![0; run.count as usize * UNIT_BYTES as usize];
            let request = DeviceRequest::Read { offset_bytes: self.unit_offset(run.start), buffer };
            self.member.submit(request, Box::new(move |completion| gather.arrive(part, completion)));
        }
    }

    fn unpack(&self, stored: Option<(ChunkEntry, Vec<u8>)>) -> Result<Option<Vec<u8>>, DeviceError> {
        let unpack = |(entry, bytes): (ChunkEntry, Vec<u8>)| {
            self.codec.unpack(bytes, entry.stored_bytes, self.chunk_bytes as usize)
        };
        stored.map(unpack).transpose()
    }

    fn read(self: &Arc<Self>, offset_bytes: u64, mut buffer: Vec<u8>, done: CompletionCallback) {
        let chunks = self.chunks_of(offset_bytes, buffer.len() as u64);
        let inner = Arc::clone(self);
        self.ranges.claim((), chunks.clone(), LockAccess::Shared, move |claim| {
            // Under the claim: no write frees these runs before they are read.
            let entries: Vec<Option<ChunkEntry>> = {
                let state = inner.lock();
                chunks.clone().map(|chunk| state.map.get(chunk as u32).cloned()).collect()
            };
            let next = Arc::clone(&inner);
            inner.fetch(entries, move |fetched| {
                // What was read can't change any more, so writes need not wait for the unpacking.
                drop(claim);
                let fetched = match fetched {
                    Ok(fetched) => fetched,
                    Err(error) => return done(Err(error)),
                };
                let job = Arc::clone(&next);
                // Unpacking takes a processor, and the thread that answers for the device has other requests.
                next.workers.run(move || {
                    for (index, stored) in fetched.into_iter().enumerate() {
                        let chunk = match job.unpack(stored) {
                            Ok(chunk) => chunk,
                            Err(error) => return done(Err(error)),
                        };
                        let chunk_start = (chunks.start + index as u64) * job.chunk_bytes;
                        let from = offset_bytes.max(chunk_start);
                        let to = (offset_bytes + buffer.len() as u64).min(chunk_start + job.chunk_bytes);
                        let target =
                            &mut buffer[(from - offset_bytes) as usize..(to - offset_bytes) as usize];
                        match chunk {
                            None => target.fill(0),
                            Some(chunk) => {
                                let inside = (from - chunk_start) as usize..(to - chunk_start) as usize;
                                target.copy_from_slice(&chunk[inside]);
                            }
                        }
                    }
                    done(Ok(buffer));
                });
            });
        });
    }

    fn pieces(
        &self,
        offset_bytes: u64,
        length_bytes: u64,
        data: Option<Vec<u8>>,
    ) -> (Vec<ChunkPiece>, Range<u32>) {
        let chunks = self.chunks_of(offset_bytes, length_bytes);
        let end = offset_bytes + length_bytes;
        let data = data.map(Arc::new);
        let whole = offset_bytes.div_ceil(self.chunk_bytes)..end / self.chunk_bytes;
        let zeroed = if data.is_none() && whole.start < whole.end { whole } else { 0..0 };
        let pieces = chunks.filter(|chunk| !zeroed.contains(chunk)).map(|chunk| {
            let chunk_start = chunk * self.chunk_bytes;
            let from = offset_bytes.max(chunk_start);
            let to = end.min(chunk_start + self.chunk_bytes);
            let content = match &data {
                Some(data) => PieceContent::Data(Arc::clone(data), (from - offset_bytes) as usize),
                None => PieceContent::Zeros,
            };
            let inside = (from - chunk_start) as usize..(to - chunk_start) as usize;
            ChunkPiece { chunk: chunk as u32, inside, content }
        });
        (pieces.collect(), zeroed.start as u32..zeroed.end as u32)
    }

    /// A write, or a discard where there is no data.
    fn change(
        self: &Arc<Self>,
        offset_bytes: u64,
        length_bytes: u64,
        data: Option<Vec<u8>>,
        done: CompletionCallback,
    ) {
        let inner = Arc::clone(self);
        self.ranges.claim(
            (),
            self.chunks_of(offset_bytes, length_bytes),
            LockAccess::Exclusive,
            move |claim| {
                let (pieces, zeroed) = inner.pieces(offset_bytes, length_bytes, data);
                let partial = |piece: &ChunkPiece| piece.inside.len() < inner.chunk_bytes as usize;
                let entries: Vec<Option<ChunkEntry>> = {
                    let state = inner.lock();
                    let old =
                        |piece: &ChunkPiece| state.map.get(piece.chunk).filter(|_| partial(piece)).cloned();
                    pieces.iter().map(old).collect()
                };
                let next = Arc::clone(&inner);
                inner.fetch(entries, move |fetched| match fetched {
                    Ok(fetched) => next.prepare(pieces, fetched, zeroed, claim, done),
                    Err(error) => {
                        drop(claim);
                        done(Err(error));
                    }
                });
            },
        );
    }

    fn prepare(
        self: &Arc<Self>,
        pieces: Vec<ChunkPiece>,
        fetched: Vec<Option<(ChunkEntry, Vec<u8>)>>,
        zeroed: Range<u32>,
        claim: DeviceRangeLock,
        done: CompletionCallback,
    ) {
        let inner = Arc::clone(self);
        let gather = GatherJoin::new(pieces.len(), move |prepared: Vec<PreparedChunk>| {
            match prepared.into_iter().collect() {
                Ok(prepared) => inner.place(prepared, zeroed, claim, done),
                Err(error) => {
                    drop(claim);
                    done(Err(error));
                }
            }
        });
        for (part, (piece, old)) in pieces.into_iter().zip(fetched).enumerate() {
            let (gather, inner) = (Arc::clone(&gather), Arc::clone(self));
            self.workers.run(move || gather.arrive(part, inner.prepare_one(piece, old)));
        }
    }

    fn prepare_one(&self, piece: ChunkPiece, old: Option<(ChunkEntry, Vec<u8>)>) -> PreparedChunk {
        let mut chunk = match self.unpack(old)? {
            Some(chunk) => chunk,
            None => vec![0; self.chunk_bytes as usize],
        };
        let target = &mut chunk[piece.inside.clone()];
        match piece.content {
            PieceContent::Data(data, from) => target.copy_from_slice(&data[from..from + piece.inside.len()]),
            PieceContent::Zeros => target.fill(0),
        }
        Ok((piece.chunk, self.codec.pack(chunk, UNIT_BYTES as usize)))
    }

    /// Finds room for the chunks, writes them there and changes the map.
    fn place(
        self: &Arc<Self>,
        prepared: Vec<(u32, Option<PackedChunk>)>,
        zeroed: Range<u32>,
        claim: DeviceRangeLock,
        done: CompletionCallback,
    ) {
        let placed = {
            let mut state = self.lock();
            let units = |packed: &PackedChunk| (packed.bytes.len() as u64 / UNIT_BYTES) as u32;
            let wanted: u64 =
                prepared.iter().filter_map(|(_, p)| p.as_ref()).map(|p| u64::from(units(p))).sum();
            if wanted <= u64::from(state.space.free()) {
                // Always succeeds: as much is free, and it need not lie together.
                let mut take = |packed: &PackedChunk| state.space.allocate(units(packed)).unwrap_or_default();
                Ok(prepared.iter().map(|(_, packed)| packed.as_ref().map(&mut take)).collect::<Vec<_>>())
            } else {
                // True if nothing is on its way back either.
                Err(state.replaced.is_empty() && !state.flushes.is_under_way())
            }
        };
        let runs = match placed {
            Ok(runs) => runs,
            Err(true) => {
                drop(claim);
                return done(Err(DeviceError::NoSpace));
            }
            Err(false) => {
                // A flush gives back what was replaced since the last one.
                let inner = Arc::clone(self);
                let flushed = move |completion: DeviceCompletion| match completion {
                    Ok(_) => inner.place(prepared, zeroed, claim, done),
                    Err(error) => {
                        drop(claim);
                        done(Err(error));
                    }
                };
                return self.flush(Box::new(flushed));
            }
        };
        let mut writes: Vec<(u32, Vec<u8>)> = Vec::new();
        let mut entries: BTreeMap<u32, Option<ChunkEntry>> = BTreeMap::new();
        for ((chunk, packed), runs) in prepared.into_iter().zip(runs) {
            let entry = packed.map(|packed| {
                let runs = runs.unwrap_or_default();
                let mut rest = packed.bytes.as_slice();
                for run in &runs {
                    let (bytes, after) = rest.split_at(run.count as usize * UNIT_BYTES as usize);
                    rest = after;
                    match writes.last_mut() {
                        Some((start, data))
                            if u64::from(*start) + data.len() as u64 / UNIT_BYTES == u64::from(run.start)
                                && (data.len() + bytes.len()) as u64 <= MAX_REQUEST_BYTES =>
                        {
                            data.extend_from_slice(bytes);
                        }
                        _ => writes.push((run.start, bytes.to_vec())),
                    }
                }
                ChunkEntry { stored_bytes: packed.stored_bytes, runs }
            });
            entries.insert(chunk, entry);
        }
        let inner = Arc::clone(self);
        let gather = GatherJoin::new(writes.len(), move |completions: Vec<DeviceCompletion>| {
            let answer = inner.placed(entries, zeroed, completions);
            drop(claim);
            done(answer);
        });
        for (part, (start, data)) in writes.into_iter().enumerate() {
            let gather = Arc::clone(&gather);
            let request = DeviceRequest::Write { offset_bytes: self.unit_offset(start), data, fua: false };
            self.member.submit(request, Box::new(move |completion| gather.arrive(part, completion)));
        }
    }

    fn placed(
        &self,
        entries: BTreeMap<u32, Option<ChunkEntry>>,
        zeroed: Range<u32>,
        completions: Vec<DeviceCompletion>,
    ) -> DeviceCompletion {
        let mut state = self.lock();
        let state = &mut *state;
        if let Some(error) = completions.into_iter().find_map(Result::err) {
            let unused_runs = entries.into_values().flatten().flat_map(|entry| entry.runs);
            unused_runs.for_each(|run| state.space.release(run));
            return Err(error);
        }
        let removed = state.map.stored_in(zeroed).into_iter().map(|chunk| (chunk, None));
        for (chunk, entry) in removed.chain(entries) {
            match state.map.set(chunk, entry) {
                Some((old, true)) => state.replaced.extend(old.runs),
                Some((old, false)) => old.runs.into_iter().for_each(|run| state.space.release(run)),
                None => {}
            }
        }
        Ok(Vec::new())
    }
}

/// Takes bytes off the front of several buffers.
struct BufferCursor {
    parts: Vec<Vec<u8>>,
    part: usize,
    at: usize,
}

impl BufferCursor {
    fn take(&mut self, mut length: usize) -> Vec<u8> {
        let mut buffer = Vec::with_capacity(length);
        while length > 0 {
            let rest = &self.parts[self.part][self.at..];
            let count = rest.len().min(length);
            buffer.extend_from_slice(&rest[..count]);
            length -= count;
            self.at += count;
            if self.at == self.parts[self.part].len() {
                (self.part, self.at) = (self.part + 1, 0);
            }
        }
        buffer
    }
}

impl BlockDevice for CompressLayer {
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
                inner.change(offset_bytes, length_bytes, None, done);
            }
            DeviceRequest::Write { offset_bytes, data, fua } => {
                let (length_bytes, flusher) = (data.len() as u64, Arc::clone(inner));
                let written = move |completion: DeviceCompletion| match completion {
                    Ok(_) if fua => flusher.flush(done),
                    completion => done(completion),
                };
                inner.change(offset_bytes, length_bytes, Some(data), Box::new(written));
            }
        }
    }
}
