//! Volumes that are stored compressed: chunk by chunk, and never over what is there.

use std::ops::Range;
use std::sync::Arc;

use underlay_storage::device::{CompletionCallback, DeviceCompletion, DeviceError};
use underlay_storage::layers::compress::{CompressionCodec, PackedChunk as Image};
use underlay_storage::layers::join::GatherJoin;

use super::claims::{ExtentLock, LockAccess, PartSet};
use super::core::{PoolCore, VolumeCore};
use super::extent::{
    BLOCK_BYTES, CHUNK_BYTES, CHUNKS, MappedExtent, PackedExtent, ReleasedSpace, StoredChunk, Unit, mask,
    slab_of,
};
use super::member::{ExtentPlaces, MemberTransition};
use super::volume::{ChangeDone, VolumePart};

const CHUNK_BLOCKS: u32 = (CHUNK_BYTES / BLOCK_BYTES) as u32;
/// The most that a chunk takes of the map, the start of its extent included.
const CHUNK_MAP_BYTES: u64 = 32;

type FetchResult = Result<Vec<(usize, StoredChunk, Vec<u8>)>, DeviceError>;
/// Chunks and their new images: nothing for zeros.
type ChunkImages = Vec<(usize, Option<Image>)>;

fn chunks_of(part: &VolumePart) -> Range<usize> {
    (part.blocks.start / CHUNK_BLOCKS) as usize..part.blocks.end.div_ceil(CHUNK_BLOCKS) as usize
}

fn parts_of(part: &VolumePart) -> u64 {
    let chunks = chunks_of(part);
    mask(chunks.start as u32, (chunks.end - chunks.start) as u32)
}

/// The bytes of a chunk that a part covers, and where they are in the part.
fn overlap(part: &VolumePart, chunk: usize) -> (Range<usize>, usize) {
    let start = chunk as u32 * CHUNK_BLOCKS;
    let from = part.blocks.start.max(start);
    let to = part.blocks.end.min(start + CHUNK_BLOCKS);
    let bytes = |blocks: u32| blocks as usize * BLOCK_BYTES as usize;
    (bytes(from - start)..bytes(to - start), bytes(from - part.blocks.start))
}

impl VolumeCore {
    fn packed(&self, extent: u32) -> Option<Arc<PackedExtent>> {
        match self.map.get(extent) {
            Some(MappedExtent::Packed(packed)) => Some(packed),
            _ => None,
        }
    }

    pub(super) fn read_packed(
        self: Arc<Self>,
        core: Arc<PoolCore>,
        codec: CompressionCodec,
        part: VolumePart,
        mut buffer: Vec<u8>,
        done: CompletionCallback,
    ) {
        let claims = Arc::clone(&self.claims);
        claims.claim(part.extent, PartSet(parts_of(&part)), LockAccess::Shared, move |claim| {
            let Some(packed) = self.packed(part.extent) else {
                drop(claim);
                buffer.fill(0);
                return done(Ok(buffer));
            };
            let workers = core.workers.clone();
            fetch(&core, &packed, chunks_of(&part).collect(), move |fetched| {
                drop(claim);
                let fetched = match fetched {
                    Ok(fetched) => fetched,
                    Err(error) => return done(Err(error)),
                };
                workers.run(move || {
                    buffer.fill(0);
                    for (chunk, stored, bytes) in fetched {
                        let (inside, offset) = overlap(&part, chunk);
                        match codec.unpack(bytes, stored.bytes(), CHUNK_BYTES as usize) {
                            Ok(bytes) => {
                                buffer[offset..offset + inside.len()].copy_from_slice(&bytes[inside])
                            }
                            Err(error) => return done(Err(error)),
                        }
                    }
                    done(Ok(buffer));
                });
            });
        });
    }

    /// Without data it is a discard.
    pub(super) fn change_packed(
        self: Arc<Self>,
        core: Arc<PoolCore>,
        codec: CompressionCodec,
        part: VolumePart,
        data: Option<Vec<u8>>,
        done: ChangeDone,
    ) {
        let claims = Arc::clone(&self.claims);
        claims.claim(part.extent, PartSet(parts_of(&part)), LockAccess::Exclusive, move |claim| {
            let packed = self.packed(part.extent).unwrap_or_default();
            let is_partial = |chunk: &usize| overlap(&part, *chunk).0.len() < CHUNK_BYTES as usize;
            let partial: Vec<usize> = chunks_of(&part).filter(is_partial).collect();
            let next = Arc::clone(&core);
            fetch(&core, &packed, partial, move |fetched| {
                let old = match fetched {
                    Ok(old) => old,
                    Err(error) => {
                        drop(claim);
                        return done(Err(error));
                    }
                };
                let workers = next.workers.clone();
                workers.run(move || match prepare(codec, &part, data.as_deref(), old) {
                    Ok(images) => self.place(next, part.extent, images, claim, 0, done),
                    Err(error) => {
                        drop(claim);
                        done(Err(error));
                    }
                });
            });
        });
    }

    /// Finds room for the chunks, writes them there, and then changes the map.
    fn place(
        self: Arc<Self>,
        core: Arc<PoolCore>,
        extent: u32,
        images: ChunkImages,
        claim: ExtentLock,
        attempt: u32,
        done: ChangeDone,
    ) {
        let current = self.packed(extent).unwrap_or_default();
        let new = images
            .iter()
            .filter(|(chunk, image)| image.is_some() && current.chunks[*chunk].is_none())
            .count();
        // What is written over may need a longer entry, for which some room is kept.
        let reserve_bytes = if new > 0 { 0 } else { core.map_limit_bytes / 16 };
        let more_bytes = images.len() as u64 * CHUNK_MAP_BYTES;
        let stores = images.iter().any(|(_, image)| image.is_some());
        if stores && core.map_bytes() + more_bytes > core.map_limit_bytes + reserve_bytes {
            drop(claim);
            return done(Err(DeviceError::NoSpace));
        }
        let sizes: Vec<u32> =
            images.iter().flat_map(|(_, image)| image).map(|image| units(image.bytes.len())).collect();
        let Some(places) = self.take_runs(&core, &sizes) else {
            let next = Arc::clone(&core);
            return core.await_space(attempt, move |result| match result {
                Ok(()) => self.place(next, extent, images, claim, attempt + 1, done),
                Err(error) => {
                    drop(claim);
                    done(Err(error));
                }
            });
        };
        let mut rest = places.iter();
        let mut writes: Vec<(ExtentPlaces, Vec<u8>)> = Vec::new();
        let mut entries: Vec<(usize, Option<StoredChunk>, Option<Unit>)> = Vec::with_capacity(images.len());
        for (chunk, image) in images {
            let Some((image, places)) = image.and_then(|image| rest.next().map(|places| (image, *places)))
            else {
                entries.push((chunk, None, None));
                continue;
            };
            entries.push((chunk, StoredChunk::new(places.first, image.stored_bytes), places.second));
            match writes.last_mut() {
                Some((start, data)) if continues(*start, units(data.len()), places) => {
                    data.extend(image.bytes)
                }
                _ => writes.push((places, image.bytes)),
            }
        }
        let members = Arc::clone(&core.members);
        let transition = members.turn();
        let gather = GatherJoin::new(writes.len(), move |completions: Vec<DeviceCompletion>| {
            let written: Result<Vec<_>, DeviceError> = completions.into_iter().collect();
            let answer = written.and_then(|_| self.point_to(&core, extent, entries, transition));
            // No map ever pointed to what is not listed, so this needs to wait for no commit.
            core.release(match &answer {
                Ok(unlisted) => unlisted.clone(),
                Err(_) => pieces(&places, &sizes),
            });
            drop(claim);
            done(answer.map(|_| false));
        });
        for (part, (places, data)) in writes.into_iter().enumerate() {
            let gather = Arc::clone(&gather);
            members.write(places, data, false, Box::new(move |completion| gather.arrive(part, completion)));
        }
    }

    /// Points the map to those copies that were written, and says which were not; an error where a member that went
    /// meanwhile had the only one.
    fn point_to(
        &self,
        core: &PoolCore,
        extent: u32,
        mut entries: Vec<(usize, Option<StoredChunk>, Option<Unit>)>,
        transition: MemberTransition,
    ) -> Result<Vec<ReleasedSpace>, DeviceError> {
        let mut unlisted = Ok(Vec::new());
        self.map.change(extent, |old| {
            unlisted = entries
                .iter_mut()
                .map(|(_, stored, copy)| list_written(core, stored, copy, transition))
                .filter_map(Result::transpose)
                .collect();
            if unlisted.is_err() {
                return None;
            }
            let mut packed = match old {
                Some(MappedExtent::Packed(packed)) => Arc::clone(packed),
                _ => Arc::default(),
            };
            let released: Vec<ReleasedSpace> =
                entries.iter().flat_map(|(chunk, ..)| packed.pieces_of(*chunk)).collect();
            if released.is_empty() && entries.iter().all(|(_, stored, _)| stored.is_none()) {
                return None;
            }
            let own = Arc::make_mut(&mut packed);
            entries.iter().for_each(|(chunk, stored, copy)| own.set(*chunk, *stored, *copy));
            let new = Some(MappedExtent::Packed(packed)).filter(|new| !new.is_empty());
            Some((new, released))
        })?;
        unlisted
    }

    /// Room for runs of these sizes: together if there is such room, else wherever each one fits.
    fn take_runs(&self, core: &PoolCore, sizes: &[u32]) -> Option<Vec<ExtentPlaces>> {
        if sizes.is_empty() {
            return Some(Vec::new());
        }
        let twice = self.mirror && core.members.count_in_use() > 1;
        let take = |sizes: &[u32]| {
            let firsts = core.space.take_runs(sizes, |member| core.members.takes_data(member))?;
            if !twice {
                return Some(
                    firsts.into_iter().map(|first| ExtentPlaces { first, second: None }).collect::<Vec<_>>(),
                );
            }
            let other = core.members.index_of(*firsts.first()?);
            let allowed = |member| member != other && core.members.takes_data(member);
            let Some(seconds) = core.space.take_runs(sizes, allowed) else {
                let firsts = firsts.into_iter().map(|first| ExtentPlaces { first, second: None });
                undo(core, &firsts.collect::<Vec<_>>(), sizes);
                return None;
            };
            let both = firsts.into_iter().zip(seconds);
            Some(both.map(|(first, second)| ExtentPlaces { first, second: Some(second) }).collect())
        };
        if let Some(places) = take(sizes) {
            return Some(places);
        }
        let mut places = Vec::new();
        for size in sizes {
            match take(&[*size]) {
                Some(run) => places.extend(run),
                None => {
                    undo(core, &places, sizes);
                    return None;
                }
            }
        }
        Some(places)
    }
}

/// Leaves of a chunk's places those that were written, and says which was not.
fn list_written(
    core: &PoolCore,
    stored: &mut Option<StoredChunk>,
    copy: &mut Option<Unit>,
    transition: MemberTransition,
) -> Result<Option<ReleasedSpace>, DeviceError> {
    let (Some(chunk), Some(second)) = (*stored, *copy) else { return Ok(None) };
    let places = ExtentPlaces { first: chunk.unit(), second: Some(second) };
    let listed = core.members.listed(places, transition).ok_or(DeviceError::Gone)?;
    if listed == places {
        return Ok(None);
    }
    let unlisted = if listed.first == second { chunk.unit() } else { second };
    (*stored, *copy) = (StoredChunk::new(listed.first, chunk.bytes()), listed.second);
    Ok(Some(ReleasedSpace::Run { unit: unlisted, units: chunk.units() }))
}

fn units(bytes: usize) -> u32 {
    (bytes as u64 / BLOCK_BYTES) as u32
}

/// Whether `next` lies behind `start`, at both places.
fn continues(start: ExtentPlaces, units: u32, next: ExtentPlaces) -> bool {
    start.shifted(units) == next
        && slab_of(start.first) == slab_of(next.first)
        && start.second.map(slab_of) == next.second.map(slab_of)
}

fn pieces(places: &[ExtentPlaces], sizes: &[u32]) -> Vec<ReleasedSpace> {
    let piece = |(places, &units): (&ExtentPlaces, &u32)| {
        let run = move |unit| ReleasedSpace::Run { unit, units };
        std::iter::once(places.first).chain(places.second).map(run).collect::<Vec<_>>()
    };
    places.iter().zip(sizes).flat_map(piece).collect()
}

/// Nothing was written there: it needs no discard.
fn undo(core: &PoolCore, places: &[ExtentPlaces], sizes: &[u32]) {
    for slab in pieces(places, sizes).into_iter().filter_map(|piece| core.space.release(piece)) {
        core.space.free(slab).into_iter().for_each(|job| job());
    }
}

/// Fetches the stored bytes of those chunks that are stored.
pub(super) fn fetch(
    core: &PoolCore,
    packed: &PackedExtent,
    chunks: Vec<usize>,
    then: impl FnOnce(FetchResult) + Send + 'static,
) {
    let wanted: Vec<(usize, StoredChunk)> =
        chunks.into_iter().filter_map(|chunk| packed.chunks[chunk].map(|stored| (chunk, stored))).collect();
    // Neighbours on the member are read by one request.
    let mut reads: Vec<(ExtentPlaces, u32)> = Vec::new();
    let mut in_read: Vec<(usize, usize)> = Vec::new();
    for (chunk, stored) in &wanted {
        let places = ExtentPlaces { first: stored.unit(), second: packed.copy(*chunk) };
        let last = reads.len().saturating_sub(1);
        match reads.last_mut() {
            Some((start, count)) if continues(*start, *count, places) => {
                in_read.push((last, *count as usize * BLOCK_BYTES as usize));
                *count += stored.units();
            }
            _ => {
                in_read.push((reads.len(), 0));
                reads.push((places, stored.units()));
            }
        }
    }
    let gather = GatherJoin::new(reads.len(), move |completions: Vec<DeviceCompletion>| {
        let parts: Result<Vec<Vec<u8>>, DeviceError> = completions.into_iter().collect();
        then(parts.map(|parts| {
            let cut = |((chunk, stored), (part, offset)): ((usize, StoredChunk), (usize, usize))| {
                (chunk, stored, parts[part][offset..offset + stored.bytes() as usize].to_vec())
            };
            wanted.into_iter().zip(in_read).map(cut).collect()
        }));
    });
    for (part, (places, count)) in reads.into_iter().enumerate() {
        let gather = Arc::clone(&gather);
        let buffer = vec![0; count as usize * BLOCK_BYTES as usize];
        core.members.read(places, buffer, Box::new(move |completion| gather.arrive(part, completion)));
    }
}

fn prepare(
    codec: CompressionCodec,
    part: &VolumePart,
    data: Option<&[u8]>,
    old: Vec<(usize, StoredChunk, Vec<u8>)>,
) -> Result<ChunkImages, DeviceError> {
    let mut old = old.into_iter().peekable();
    let mut images = Vec::with_capacity(CHUNKS);
    for chunk in chunks_of(part) {
        let (inside, offset) = overlap(part, chunk);
        let mut bytes = match old.next_if(|(old_chunk, ..)| *old_chunk == chunk) {
            Some((_, stored, bytes)) => codec.unpack(bytes, stored.bytes(), CHUNK_BYTES as usize)?,
            None if data.is_none() => {
                images.push((chunk, None));
                continue;
            }
            None => vec![0; CHUNK_BYTES as usize],
        };
        match data {
            Some(data) => bytes[inside.clone()].copy_from_slice(&data[offset..offset + inside.len()]),
            None => bytes[inside].fill(0),
        }
        images.push((chunk, codec.pack(bytes, BLOCK_BYTES as usize)));
    }
    Ok(images)
}
