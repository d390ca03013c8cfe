//! A volume as a device: requests in, parts of extents out.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use underlay_storage::device::{
    BlockDevice, CompletionCallback, DeviceCompletion, DeviceError, DeviceGeometry, DeviceRequest,
};
use underlay_storage::layers::join::GatherJoin;

use super::core::{PoolCore, VolumeCore};
use super::description::VolumeInfo;
use super::extent::{BLOCK_BYTES, EXTENT_BYTES};
use super::gate::GateEntry;

/// A volume; a handle: clones are the same volume. Requests are answered with `Gone` once it is deleted or the pool
/// is closed.
#[derive(Clone)]
pub struct VolumeHandle {
    pub(super) core: Arc<PoolCore>,
    pub(super) volume: Arc<VolumeCore>,
}

/// The part of a request that lies in one extent.
#[derive(Clone, Debug)]
pub(super) struct VolumePart {
    pub extent: u32,
    /// In blocks of the extent.
    pub blocks: Range<u32>,
    /// Where it begins in the request.
    pub at_bytes: usize,
}

impl VolumePart {
    pub(super) fn bytes(&self) -> usize {
        (self.blocks.end - self.blocks.start) as usize * BLOCK_BYTES as usize
    }
}

/// Whether a change is durable already, where that was asked for.
pub(super) type ChangeDurability = Result<bool, DeviceError>;

pub(super) type ChangeDone = Box<dyn FnOnce(ChangeDurability) + Send>;

fn parts(offset_bytes: u64, length_bytes: u64) -> impl Iterator<Item = VolumePart> {
    let end = offset_bytes + length_bytes;
    (offset_bytes / EXTENT_BYTES..end.div_ceil(EXTENT_BYTES)).map(move |extent| {
        let start = extent * EXTENT_BYTES;
        let from = offset_bytes.max(start);
        let blocks = (from - start) / BLOCK_BYTES..(end.min(start + EXTENT_BYTES) - start) / BLOCK_BYTES;
        VolumePart {
            extent: extent as u32,
            blocks: blocks.start as u32..blocks.end as u32,
            at_bytes: (from - offset_bytes) as usize,
        }
    })
}

impl VolumeHandle {
    pub fn info(&self) -> VolumeInfo {
        let header = self.volume.header.read().clone();
        let volumes = self.core.volumes();
        let origin = volumes.iter().find(|volume| Some(volume.number) == header.origin);
        let origin = origin.map(|origin| origin.header.read().name.clone());
        let usage = self.volume.map.usage();
        let members_short = self.core.members.count_in_use() < self.core.members.list.len();
        VolumeInfo {
            name: header.name,
            identity: self.volume.identity,
            capacity_bytes: header.spec.capacity_bytes,
            compress: header.spec.compress,
            mirror: header.spec.mirror,
            limits: header.spec.limits,
            access: header.access,
            origin,
            used_bytes: usage.used_bytes,
            stored_bytes: usage.stored_bytes,
            degraded: header.spec.mirror && (usage.single > 0 || members_short),
        }
    }

    /// At once or, if it is over the volume's limits, when it is time.
    fn within_limits(&self, request: DeviceRequest, done: CompletionCallback) {
        let bytes = match &request {
            DeviceRequest::Read { buffer, .. } => buffer.len(),
            DeviceRequest::Write { data, .. } => data.len(),
            DeviceRequest::Flush | DeviceRequest::Discard { .. } => return self.enter(request, done),
        };
        if !self.volume.limited.load(Ordering::Relaxed) {
            return self.enter(request, done);
        }
        let now = self.core.clock.now();
        let admitted_at = {
            let mut limiter = self.volume.limiter.lock();
            limiter.admit(bytes as u64, now)
        };
        if admitted_at <= now {
            return self.enter(request, done);
        }
        let volume = self.clone();
        self.core.timer.run_at(admitted_at, Box::new(move || volume.enter(request, done)));
    }

    pub(super) fn enter(&self, request: DeviceRequest, done: CompletionCallback) {
        match self.volume.gate.enter(request, done) {
            GateEntry::Admitted(request, done) => {
                let volume = Arc::clone(&self.volume);
                let left = move |completion| {
                    volume.gate.leave();
                    done(completion);
                };
                // The volume may have been resized while the request waited.
                match request.check(&self.geometry()) {
                    Ok(()) => self.perform(request, Box::new(left)),
                    Err(error) => left(Err(error)),
                }
            }
            GateEntry::Waits => {}
            GateEntry::Gone(done) => done(Err(DeviceError::Gone)),
        }
    }

    pub(super) fn perform(&self, request: DeviceRequest, done: CompletionCallback) {
        let (core, volume) = (&self.core, &self.volume);
        let changes = matches!(&request, DeviceRequest::Write { .. } | DeviceRequest::Discard { .. });
        if changes && volume.read_only {
            return done(Err(DeviceError::Io("the volume is a read-only snapshot".into())));
        }
        match request {
            DeviceRequest::Read { buffer, .. } if buffer.is_empty() => done(Ok(buffer)),
            DeviceRequest::Read { offset_bytes, buffer } => self.read(offset_bytes, buffer, done),
            DeviceRequest::Flush => core.flush(Some(Arc::clone(volume)), done),
            request if request.extent().1 == 0 => done(Ok(Vec::new())),
            DeviceRequest::Write { offset_bytes, data, fua } => self.write(offset_bytes, data, fua, done),
            DeviceRequest::Discard { offset_bytes, length_bytes } => {
                self.discard(offset_bytes, length_bytes, done)
            }
        }
    }

    fn read(&self, offset_bytes: u64, mut buffer: Vec<u8>, done: CompletionCallback) {
        let mut parts: Vec<VolumePart> = parts(offset_bytes, buffer.len() as u64).collect();
        if let [_] = parts[..]
            && let Some(part) = parts.pop()
        {
            return self.read_part(part, buffer, done);
        }
        let places: Vec<Range<usize>> = parts.iter().map(|p| p.at_bytes..p.at_bytes + p.bytes()).collect();
        let gather = GatherJoin::new(parts.len(), move |completions: Vec<DeviceCompletion>| {
            for (place, completion) in places.into_iter().zip(completions) {
                match completion {
                    Ok(bytes) => buffer[place].copy_from_slice(&bytes),
                    Err(error) => return done(Err(error)),
                }
            }
            done(Ok(buffer));
        });
        for (number, part) in parts.into_iter().enumerate() {
            let (gather, own) = (Arc::clone(&gather), vec![0; part.bytes()]);
            self.read_part(part, own, Box::new(move |completion| gather.arrive(number, completion)));
        }
    }

    fn read_part(&self, part: VolumePart, buffer: Vec<u8>, done: CompletionCallback) {
        let (core, volume) = (Arc::clone(&self.core), Arc::clone(&self.volume));
        match volume.compress {
            None => volume.read_plain(core, part, buffer, done),
            Some(codec) => volume.read_packed(core, codec, part, buffer, done),
        }
    }

    fn write(&self, offset_bytes: u64, data: Vec<u8>, fua: bool, done: CompletionCallback) {
        let mut parts: Vec<VolumePart> = parts(offset_bytes, data.len() as u64).collect();
        let done = self.durably(fua, done);
        if let [_] = parts[..]
            && let Some(part) = parts.pop()
        {
            return self.write_part(part, Some(data), fua, done);
        }
        let gather = gather_changes(parts.len(), done);
        for (number, part) in parts.into_iter().enumerate() {
            let gather = Arc::clone(&gather);
            let own = data[part.at_bytes..part.at_bytes + part.bytes()].to_vec();
            self.write_part(part, Some(own), fua, Box::new(move |changed| gather.arrive(number, changed)));
        }
    }

    fn discard(&self, offset_bytes: u64, length_bytes: u64, done: CompletionCallback) {
        let done = self.durably(false, done);
        let ends = offset_bytes / EXTENT_BYTES..(offset_bytes + length_bytes).div_ceil(EXTENT_BYTES);
        // Over what is mapped, not over the range: a discard of a whole volume is cheap.
        let mapped =
            self.volume.map.mapped_in(ends.start as u32..u32::try_from(ends.end).unwrap_or(u32::MAX));
        let end = offset_bytes + length_bytes;
        let parts: Vec<VolumePart> = mapped
            .into_iter()
            .flat_map(|extent| {
                let start = u64::from(extent) * EXTENT_BYTES;
                let from = offset_bytes.max(start);
                parts(from, end.min(start + EXTENT_BYTES) - from)
            })
            .collect();
        let gather = gather_changes(parts.len(), done);
        for (number, part) in parts.into_iter().enumerate() {
            let gather = Arc::clone(&gather);
            self.write_part(part, None, false, Box::new(move |changed| gather.arrive(number, changed)));
        }
    }

    /// Without data it is a discard.
    fn write_part(&self, part: VolumePart, data: Option<Vec<u8>>, fua: bool, done: ChangeDone) {
        let (core, volume) = (Arc::clone(&self.core), Arc::clone(&self.volume));
        match (volume.compress, data) {
            (None, Some(data)) => volume.write_plain(core, part, data, fua, done),
            (None, None) => volume.discard_plain(&part, done),
            (Some(codec), data) => volume.change_packed(core, codec, part, data, done),
        }
    }

    /// Flushes after a change that has to be durable and is not yet.
    fn durably(&self, fua: bool, done: CompletionCallback) -> ChangeDone {
        let (core, volume) = (Arc::clone(&self.core), Arc::clone(&self.volume));
        Box::new(move |changed| {
            if core.outstanding.unflushed.is_long() {
                core.flush(None, Box::new(drop));
            }
            match changed {
                Ok(durable) if fua && !(durable && core.is_settled()) => core.flush(Some(volume), done),
                Ok(_) => done(Ok(Vec::new())),
                Err(error) => done(Err(error)),
            }
        })
    }
}

fn gather_changes(parts: usize, done: ChangeDone) -> Arc<GatherJoin<ChangeDurability>> {
    GatherJoin::new(parts, move |changes: Vec<ChangeDurability>| {
        let all: Result<Vec<bool>, DeviceError> = changes.into_iter().collect();
        done(all.map(|durable| durable.into_iter().all(|durable| durable)));
    })
}

impl BlockDevice for VolumeHandle {
    fn geometry(&self) -> DeviceGeometry {
        DeviceGeometry {
            capacity_bytes: self.volume.capacity_bytes.load(Ordering::Acquire),
            block_bytes: BLOCK_BYTES as u32,
            optimal_io_bytes: EXTENT_BYTES as u32,
        }
    }

    fn submit(&self, request: DeviceRequest, done: CompletionCallback) {
        match request.check(&self.geometry()) {
            Ok(()) => self.within_limits(request, done),
            Err(error) => done(Err(error)),
        }
    }
}
