//! Volumes that are stored as they are: a slab an extent, written over in place unless a snapshot shares it.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use underlay_storage::device::{CompletionCallback, DeviceCompletion, DeviceError};
use underlay_storage::layers::join::GatherJoin;
use underlay_sync::planted::{PlantedBug, is_planted};

use super::claims::{ExtentLock, LockAccess, PartSet};
use super::core::{PoolCore, VolumeCore};
use super::extent::{
    BLOCK_BYTES, BLOCKS, EXTENT_BYTES, MappedExtent, PLAIN_MAP_BYTES, PlainExtent, ReleasedSpace, Unit,
    first_unit, mask, runs, slab_of,
};
use super::member::{ExtentPlaces, MemberTransition};
use super::volume::{ChangeDone, VolumePart};

const WHOLE: u64 = u64::MAX;

fn blocks_of(part: &VolumePart) -> u64 {
    mask(part.blocks.start, part.blocks.end - part.blocks.start)
}

pub(super) fn places(plain: &PlainExtent, block: u32) -> ExtentPlaces {
    ExtentPlaces { first: first_unit(plain.slab), second: plain.copy.map(first_unit) }.shifted(block)
}

fn pieces(plain: &PlainExtent) -> Vec<ReleasedSpace> {
    MappedExtent::Plain(*plain).pieces()
}

impl VolumeCore {
    fn plain(&self, extent: u32) -> Option<PlainExtent> {
        match self.map.get(extent) {
            Some(MappedExtent::Plain(plain)) => Some(plain),
            _ => None,
        }
    }

    pub(super) fn read_plain(
        self: Arc<Self>,
        core: Arc<PoolCore>,
        part: VolumePart,
        mut buffer: Vec<u8>,
        done: CompletionCallback,
    ) {
        let claims = Arc::clone(&self.claims);
        claims.claim(part.extent, PartSet(blocks_of(&part)), LockAccess::Shared, move |claim| {
            let plain = self.plain(part.extent);
            let wanted = blocks_of(&part);
            let valid = plain.map_or(0, |plain| plain.valid & wanted);
            let Some(plain) = plain.filter(|_| valid != 0) else {
                drop(claim);
                buffer.fill(0);
                return done(Ok(buffer));
            };
            if valid == wanted {
                let answered = move |completion| {
                    drop(claim);
                    done(completion);
                };
                return core.members.read(places(&plain, part.blocks.start), buffer, Box::new(answered));
            }
            let first = part.blocks.start;
            read_runs(&core, &plain, valid, move |read| {
                drop(claim);
                done(read.map(|pieces| {
                    buffer.fill(0);
                    for (block, bytes) in pieces {
                        let offset = (block - first) as usize * BLOCK_BYTES as usize;
                        buffer[offset..offset + bytes.len()].copy_from_slice(&bytes);
                    }
                    buffer
                }));
            });
        });
    }

    pub(super) fn write_plain(
        self: Arc<Self>,
        core: Arc<PoolCore>,
        part: VolumePart,
        data: Vec<u8>,
        fua: bool,
        done: ChangeDone,
    ) {
        let claims = Arc::clone(&self.claims);
        claims.claim(part.extent, PartSet(blocks_of(&part)), LockAccess::Exclusive, move |claim| {
            let own = self.plain(part.extent).filter(|plain| !is_shared(&core, plain));
            if let Some(plain) = own {
                return self.write_in_place(core, plain, part, data, fua, claim, done);
            }
            drop(claim);
            // The whole extent gets another place. The claim on a part is dropped first, or the one on the
            // whole would wait for it.
            let claims = Arc::clone(&self.claims);
            claims.claim(part.extent, PartSet(WHOLE), LockAccess::Exclusive, move |claim| {
                // Looked at again: another write may have come between the two claims.
                match self.plain(part.extent) {
                    Some(plain) if !is_shared(&core, &plain) => {
                        self.write_in_place(core, plain, part, data, fua, claim, done);
                    }
                    old => self.write_elsewhere(core, old, part, data, claim, 0, done),
                }
            });
        });
    }

    #[allow(clippy::too_many_arguments)]
    fn write_in_place(
        self: Arc<Self>,
        core: Arc<PoolCore>,
        plain: PlainExtent,
        part: VolumePart,
        data: Vec<u8>,
        fua: bool,
        claim: ExtentLock,
        done: ChangeDone,
    ) {
        let blocks = blocks_of(&part);
        // Even where nothing is valid: the journal may not have heard of a discard yet.
        let overwrites = plain.copy.is_some();
        let (next, own_core) = (Arc::clone(&self), Arc::clone(&core));
        let begin = move |result: Result<(), DeviceError>| {
            let (volume, core) = (next, own_core);
            if let Err(error) = result {
                drop(claim);
                return done(Err(error));
            }
            let (place, members) = (places(&plain, part.blocks.start), Arc::clone(&core.members));
            // With it the write alone is durable, if the journal knows all that it needs.
            let fua = fua && plain.valid & blocks == blocks && !volume.map.is_dirty(part.extent);
            let written = move |completion: DeviceCompletion| {
                let answer = completion.and_then(|_| volume.map.mark_valid(part.extent, blocks));
                if overwrites {
                    let epoch = core.epoch.load(Ordering::Acquire);
                    volume.end_overwrite(part.extent, epoch, answer.is_ok());
                }
                let durable = fua && !volume.map.is_dirty(part.extent);
                drop(claim);
                done(answer.map(|()| durable));
            };
            members.write(place, data, fua, Box::new(written));
        };
        if overwrites {
            self.begin_overwrite(&core, part.extent, begin);
        } else {
            begin(Ok(()));
        }
    }

    /// The extent is new, or shared: what was valid of it is copied along.
    #[allow(clippy::too_many_arguments)]
    fn write_elsewhere(
        self: Arc<Self>,
        core: Arc<PoolCore>,
        old: Option<PlainExtent>,
        part: VolumePart,
        data: Vec<u8>,
        claim: ExtentLock,
        attempt: u32,
        done: ChangeDone,
    ) {
        // Only an extent that is new makes the map longer.
        if old.is_none() && core.map_bytes() + PLAIN_MAP_BYTES > core.map_limit_bytes {
            drop(claim);
            return done(Err(DeviceError::NoSpace));
        }
        let Some(mut new) = self.take_slabs(&core) else {
            let next = Arc::clone(&core);
            return core.await_space(attempt, move |result| match result {
                Ok(()) => self.write_elsewhere(next, old, part, data, claim, attempt + 1, done),
                Err(error) => {
                    drop(claim);
                    done(Err(error));
                }
            });
        };
        let blocks = blocks_of(&part);
        // With nothing else valid in the old place there is nothing to copy along.
        let Some(old) = old.filter(|old| old.valid & !blocks != 0) else {
            new.valid = blocks;
            let writes = vec![(part.blocks.start, data)];
            return self.write_new(core, old, new, part.extent, writes, claim, done);
        };
        let next = Arc::clone(&core);
        read_runs(&core, &old, old.valid & !blocks, move |read| {
            let core = next;
            let pieces = match read {
                Ok(pieces) => pieces,
                Err(error) => {
                    // No map has pointed to the new place, so it is free at once.
                    core.release(self::pieces(&new));
                    drop(claim);
                    return done(Err(error));
                }
            };
            let mut image = vec![0; EXTENT_BYTES as usize];
            for (block, bytes) in pieces.iter().chain([&(part.blocks.start, data)]) {
                let offset = *block as usize * BLOCK_BYTES as usize;
                image[offset..offset + bytes.len()].copy_from_slice(bytes);
            }
            new.valid = old.valid | blocks;
            let run = |(first, count): (u32, u32)| {
                let offset = first as usize * BLOCK_BYTES as usize;
                (first, image[offset..offset + count as usize * BLOCK_BYTES as usize].to_vec())
            };
            let writes = runs(new.valid).map(run).collect();
            self.write_new(core, Some(old), new, part.extent, writes, claim, done);
        });
    }

    /// The map points to the new place once everything is there.
    #[allow(clippy::too_many_arguments)]
    fn write_new(
        self: Arc<Self>,
        core: Arc<PoolCore>,
        old: Option<PlainExtent>,
        new: PlainExtent,
        extent: u32,
        writes: Vec<(u32, Vec<u8>)>,
        claim: ExtentLock,
        done: ChangeDone,
    ) {
        let members = Arc::clone(&core.members);
        let transition = members.turn();
        let gather = GatherJoin::new(writes.len(), move |completions: Vec<DeviceCompletion>| {
            let written: Result<Vec<_>, DeviceError> = completions.into_iter().collect();
            let released = old.as_ref().map(pieces).unwrap_or_default();
            let listed = written.and_then(|_| self.list_new(&core, extent, new, transition, released));
            // No map ever pointed to what is not listed, so this needs to wait for no commit.
            let listed_pieces = listed.as_ref().map(pieces).unwrap_or_default();
            core.release(pieces(&new).into_iter().filter(|piece| !listed_pieces.contains(piece)));
            drop(claim);
            done(listed.map(|_| false));
        });
        for (part, (block, data)) in writes.into_iter().enumerate() {
            let gather = Arc::clone(&gather);
            let arrive = move |completion| gather.arrive(part, completion);
            members.write(places(&new, block), data, false, Box::new(arrive));
        }
    }

    /// Points the map to those copies that were written; an error where a member that went meanwhile had the only one.
    fn list_new(
        &self,
        core: &PoolCore,
        extent: u32,
        new: PlainExtent,
        transition: MemberTransition,
        released: Vec<ReleasedSpace>,
    ) -> Result<PlainExtent, DeviceError> {
        let mut listed = Err(DeviceError::Gone);
        self.map.change(extent, |_| {
            let places = core.members.listed(places(&new, 0), transition)?;
            let plain = PlainExtent { slab: slab_of(places.first), copy: places.second.map(slab_of), ..new };
            listed = Ok(plain);
            Some((Some(MappedExtent::Plain(plain)), released))
        })?;
        listed
    }

    fn take_slabs(&self, core: &PoolCore) -> Option<PlainExtent> {
        let slab = core.space.take_slab(|member| core.members.takes_data(member))?;
        let mut plain = PlainExtent { slab, copy: None, valid: 0 };
        // With one member in use a mirrored volume goes on with one copy.
        if self.mirror && core.members.count_in_use() > 1 {
            let first = core.members.index_of(first_unit(slab));
            plain.copy = core.space.take_slab(|member| member != first && core.members.takes_data(member));
            if plain.copy.is_none() {
                // Nothing was written: it needs no discard.
                core.space.release(ReleasedSpace::Slab(slab)).into_iter().for_each(|slab| {
                    core.space.free(slab).into_iter().for_each(|job| job());
                });
                return None;
            }
        }
        Some(plain)
    }

    pub(super) fn discard_plain(self: Arc<Self>, part: &VolumePart, done: ChangeDone) {
        let (extent, blocks) = (part.extent, blocks_of(part));
        let claims = Arc::clone(&self.claims);
        claims.claim(extent, PartSet(WHOLE), LockAccess::Exclusive, move |claim| {
            let changed = self.map.change(extent, |old| match old {
                Some(MappedExtent::Plain(plain)) if plain.valid & !blocks == 0 => Some((None, pieces(plain))),
                Some(MappedExtent::Plain(plain)) if plain.valid & blocks != 0 => {
                    let rest = PlainExtent { valid: plain.valid & !blocks, ..*plain };
                    Some((Some(MappedExtent::Plain(rest)), Vec::new()))
                }
                _ => None,
            });
            drop(claim);
            done(changed.map(|()| false));
        });
    }
}

fn is_shared(core: &PoolCore, plain: &PlainExtent) -> bool {
    if is_planted(PlantedBug::SharedWrittenOver) {
        return false;
    }
    core.space.is_shared(plain.slab) || plain.copy.is_some_and(|copy| core.space.is_shared(copy))
}

type ReadRuns = Result<Vec<(u32, Vec<u8>)>, DeviceError>;

/// Reads these blocks of an extent; the answer is (first block, bytes).
pub(super) fn read_runs(
    core: &PoolCore,
    plain: &PlainExtent,
    blocks: u64,
    then: impl FnOnce(ReadRuns) + Send + 'static,
) {
    let wanted: Vec<(u32, u32)> = runs(blocks).collect();
    debug_assert!(wanted.iter().all(|(first, count)| first + count <= BLOCKS));
    let firsts: Vec<u32> = wanted.iter().map(|(first, _)| *first).collect();
    let gather = GatherJoin::new(wanted.len(), move |completions: Vec<DeviceCompletion>| {
        let bytes: Result<Vec<Vec<u8>>, DeviceError> = completions.into_iter().collect();
        then(bytes.map(|bytes| firsts.into_iter().zip(bytes).collect()));
    });
    for (part, (first, count)) in wanted.into_iter().enumerate() {
        let gather = Arc::clone(&gather);
        let buffer = vec![0; count as usize * BLOCK_BYTES as usize];
        let arrive = move |completion| gather.arrive(part, completion);
        core.members.read(places(plain, first), buffer, Box::new(arrive));
    }
}

/// Copies these blocks of a place to another one that nobody reads yet.
pub(super) fn copy_to(
    core: &Arc<PoolCore>,
    from: ExtentPlaces,
    to: Unit,
    blocks: u64,
    then: impl FnOnce(Result<(), DeviceError>) + Send + 'static,
) {
    let members = Arc::clone(&core.members);
    let wanted: Vec<(u32, u32)> = runs(blocks).collect();
    let gather = GatherJoin::new(wanted.len(), move |completions: Vec<DeviceCompletion>| {
        then(completions.into_iter().collect::<Result<Vec<_>, DeviceError>>().map(|_| ()));
    });
    for (part, (first, count)) in wanted.into_iter().enumerate() {
        let (gather, members) = (Arc::clone(&gather), Arc::clone(&members));
        let next = Arc::clone(&members);
        let read = move |completion: DeviceCompletion| match completion {
            Ok(data) => {
                let place = ExtentPlaces { first: to, second: None }.shifted(first);
                let arrive = move |completion| gather.arrive(part, completion);
                next.write(place, data, false, Box::new(arrive));
            }
            Err(error) => gather.arrive(part, Err(error)),
        };
        let buffer = vec![0; count as usize * BLOCK_BYTES as usize];
        members.read(from.shifted(first), buffer, Box::new(read));
    }
}
