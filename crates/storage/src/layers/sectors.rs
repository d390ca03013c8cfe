//! Sectors of 512 bytes on devices of larger blocks, as disks sold as 512e have them.
//!
//! To read a part of a physical sector, such a drive reads the whole one. To write a part, it reads the sector, changes
//! it and writes it back: on a disk, the write waits for the sector to come round again. This layer asks the device
//! below for exactly that, so its model gives the time. Requests for whole blocks pass through unchanged.

use std::sync::Arc;

use super::join::GatherJoin;
use super::ranges::{DeviceRangeLock, DeviceRanges, LockAccess};
use crate::device::{
    BlockDevice, CompletionCallback, DeviceCompletion, DeviceError, DeviceGeometry, DeviceRequest,
};

/// Logical sectors of a 512e drive.
pub const SECTOR_BYTES: u32 = 512;

/// A device whose logical sectors are smaller than the blocks of the device below.
pub struct SectorLayer {
    below: Arc<dyn BlockDevice>,
    geometry: DeviceGeometry,
    block_bytes: u64,
    /// Parts of a block are written by reading it first: meanwhile nobody else may write to it. Writes of whole blocks
    /// share.
    claims: Arc<DeviceRanges>,
}

impl SectorLayer {
    /// Sectors of 512 bytes on a device whose blocks are a multiple of them.
    pub fn new(below: Arc<dyn BlockDevice>) -> SectorLayer {
        let DeviceGeometry { capacity_bytes, block_bytes, optimal_io_bytes } = below.geometry();
        let geometry = DeviceGeometry {
            capacity_bytes,
            block_bytes: block_bytes.min(SECTOR_BYTES),
            optimal_io_bytes: optimal_io_bytes.max(block_bytes),
        };
        SectorLayer { below, geometry, block_bytes: u64::from(block_bytes), claims: Arc::default() }
    }

    fn is_whole(&self, offset_bytes: u64, length_bytes: u64) -> bool {
        offset_bytes.is_multiple_of(self.block_bytes) && length_bytes.is_multiple_of(self.block_bytes)
    }

    /// The whole blocks around a range.
    fn around(&self, offset_bytes: u64, length_bytes: u64) -> (u64, u64) {
        let start = offset_bytes - offset_bytes % self.block_bytes;
        (start, (offset_bytes + length_bytes).next_multiple_of(self.block_bytes))
    }

    fn read_part(&self, offset_bytes: u64, mut buffer: Vec<u8>, done: CompletionCallback) {
        let (start, end) = self.around(offset_bytes, buffer.len() as u64);
        let skip = (offset_bytes - start) as usize;
        let whole = DeviceRequest::Read { offset_bytes: start, buffer: vec![0; (end - start) as usize] };
        self.below.submit(
            whole,
            Box::new(move |completion: DeviceCompletion| {
                done(completion.map(|found| {
                    let length = buffer.len();
                    buffer.copy_from_slice(&found[skip..skip + length]);
                    buffer
                }));
            }),
        );
    }

    /// Whole blocks change together with others, but not while a part of one of them does.
    fn write_whole(&self, request: DeviceRequest, done: CompletionCallback) {
        let (offset_bytes, length_bytes) = request.extent();
        let below = Arc::clone(&self.below);
        let start = move |claim: DeviceRangeLock| {
            below.submit(
                request,
                Box::new(move |completion: DeviceCompletion| {
                    drop(claim);
                    done(completion);
                }),
            );
        };
        self.claims.claim((), offset_bytes..offset_bytes + length_bytes, LockAccess::Shared, start);
    }

    /// Reads the blocks at the edges, puts the data between, and writes all of it.
    fn write_part(&self, offset_bytes: u64, data: Vec<u8>, fua: bool, done: CompletionCallback) {
        let block_bytes = self.block_bytes;
        let (start, end) = self.around(offset_bytes, data.len() as u64);
        let mut edges = Vec::new();
        if offset_bytes > start {
            edges.push(start);
        }
        // One block may be both edges. There is always one: whole blocks do not come here.
        let last = end - block_bytes;
        if offset_bytes + (data.len() as u64) < end && edges.last() != Some(&last) {
            edges.push(last);
        }
        let below = Arc::clone(&self.below);
        let modify = move |claim: DeviceRangeLock| {
            let device = Arc::clone(&below);
            let write = move |found: Vec<(u64, DeviceCompletion)>| {
                let mut whole = vec![0; (end - start) as usize];
                for (block, completion) in found {
                    match completion {
                        Ok(content) => {
                            let place = (block - start) as usize;
                            whole[place..place + content.len()].copy_from_slice(&content);
                        }
                        // Nothing was written yet, so the old content stays as a whole.
                        Err(error) => {
                            drop(claim);
                            return done(Err(error));
                        }
                    }
                }
                let place = (offset_bytes - start) as usize;
                whole[place..place + data.len()].copy_from_slice(&data);
                device.submit(
                    DeviceRequest::Write { offset_bytes: start, data: whole, fua },
                    Box::new(move |completion: DeviceCompletion| {
                        drop(claim);
                        done(completion);
                    }),
                );
            };
            let gather = GatherJoin::new(edges.len(), write);
            for (index, block) in edges.into_iter().enumerate() {
                let gather = Arc::clone(&gather);
                let buffer = vec![0; block_bytes as usize];
                below.submit(
                    DeviceRequest::Read { offset_bytes: block, buffer },
                    Box::new(move |completion: DeviceCompletion| gather.arrive(index, (block, completion))),
                );
            }
        };
        self.claims.claim((), start..end, LockAccess::Exclusive, modify);
    }

    /// Whole blocks are discarded, and parts of blocks written with zeros, which discarded ranges read as.
    fn discard_part(&self, offset_bytes: u64, length_bytes: u64, done: CompletionCallback) {
        let end = offset_bytes + length_bytes;
        let inner = (
            offset_bytes.next_multiple_of(self.block_bytes).min(end),
            (end - end % self.block_bytes).max(offset_bytes),
        );
        let mut parts: Vec<DeviceRequest> = Vec::new();
        let zeros = |from: u64, to: u64| DeviceRequest::Write {
            offset_bytes: from,
            data: vec![0; (to - from) as usize],
            fua: false,
        };
        if inner.0 < inner.1 {
            parts.push(DeviceRequest::Discard { offset_bytes: inner.0, length_bytes: inner.1 - inner.0 });
            if offset_bytes < inner.0 {
                parts.push(zeros(offset_bytes, inner.0));
            }
            if inner.1 < end {
                parts.push(zeros(inner.1, end));
            }
        } else {
            // Less than two blocks.
            parts.push(zeros(offset_bytes, end));
        }
        let all = GatherJoin::new(parts.len(), move |found: Vec<Result<(), DeviceError>>| {
            done(found.into_iter().collect::<Result<(), DeviceError>>().map(|()| Vec::new()));
        });
        for (index, part) in parts.into_iter().enumerate() {
            let all = Arc::clone(&all);
            self.submit(
                part,
                Box::new(move |completion: DeviceCompletion| all.arrive(index, completion.map(drop))),
            );
        }
    }
}

impl BlockDevice for SectorLayer {
    fn geometry(&self) -> DeviceGeometry {
        self.geometry
    }

    fn submit(&self, request: DeviceRequest, done: CompletionCallback) {
        if let Err(mistake) = request.check(&self.geometry) {
            return done(Err(mistake));
        }
        let (offset_bytes, length_bytes) = request.extent();
        let is_whole = self.is_whole(offset_bytes, length_bytes);
        match request {
            DeviceRequest::Flush => self.below.submit(request, done),
            _ if length_bytes == 0 => done(Ok(Vec::new())),
            DeviceRequest::Read { .. } if is_whole => self.below.submit(request, done),
            DeviceRequest::Write { .. } | DeviceRequest::Discard { .. } if is_whole => {
                self.write_whole(request, done)
            }
            DeviceRequest::Read { offset_bytes, buffer } => self.read_part(offset_bytes, buffer, done),
            DeviceRequest::Write { offset_bytes, data, fua } => {
                self.write_part(offset_bytes, data, fua, done)
            }
            DeviceRequest::Discard { offset_bytes, length_bytes } => {
                self.discard_part(offset_bytes, length_bytes, done)
            }
        }
    }
}
