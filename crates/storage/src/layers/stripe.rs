//! RAID-0: chunks dealt out over equal devices.

use std::sync::Arc;
use underlay_sync::planted::{PlantedBug, is_planted};

use super::join::CompletionJoin;
use crate::device::{
    BlockDevice, CompletionCallback, DeviceCompletion, DeviceError, DeviceGeometry, DeviceRequest,
};

/// Stripes over `n` devices: chunk `i` lies on device `i % n`, as its chunk `i / n`.
///
/// The capacity is that of the smallest device in whole chunks, times `n`. A request becomes at most one
/// request a device, since the chunks it takes of one lie side by side there. A flush goes to all. When
/// parts fail, the first error to arrive is the answer, once every part is over.
pub struct Stripe {
    devices: Vec<Arc<dyn BlockDevice>>,
    chunk_bytes: u64,
    geometry: DeviceGeometry,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StripeError {
    #[error("a stripe needs at least one device")]
    NoDevice,
    #[error(
        "a chunk of {chunk_bytes} bytes is zero or not a multiple of the devices' blocks of {block_bytes} bytes"
    )]
    Chunk { chunk_bytes: u64, block_bytes: u32 },
    #[error("the smallest device has {capacity_bytes} bytes, less than one chunk of {chunk_bytes}")]
    TooSmall { capacity_bytes: u64, chunk_bytes: u64 },
}

impl Stripe {
    /// # Errors
    /// Without devices, with a chunk that their blocks don't divide, or a device smaller than a chunk.
    pub fn new(devices: Vec<Arc<dyn BlockDevice>>, chunk_bytes: u64) -> Result<Stripe, StripeError> {
        let geometries: Vec<DeviceGeometry> = devices.iter().map(|device| device.geometry()).collect();
        let block_bytes = geometries.iter().map(|g| g.block_bytes).max().ok_or(StripeError::NoDevice)?;
        if chunk_bytes == 0
            || geometries.iter().any(|g| !chunk_bytes.is_multiple_of(u64::from(g.block_bytes)))
        {
            return Err(StripeError::Chunk { chunk_bytes, block_bytes });
        }
        let smallest = geometries.iter().map(|g| g.capacity_bytes).min().ok_or(StripeError::NoDevice)?;
        let chunks = smallest / chunk_bytes;
        if chunks == 0 {
            return Err(StripeError::TooSmall { capacity_bytes: smallest, chunk_bytes });
        }
        let count = devices.len() as u64;
        let geometry = DeviceGeometry {
            capacity_bytes: (chunks * chunk_bytes).saturating_mul(count),
            block_bytes,
            optimal_io_bytes: u32::try_from(chunk_bytes.saturating_mul(count)).unwrap_or(block_bytes),
        };
        Ok(Stripe { devices, chunk_bytes, geometry })
    }

    /// Each device's part of a range.
    fn parts(&self, offset_bytes: u64, length_bytes: u64) -> Vec<StripePart> {
        let count = self.devices.len() as u64;
        let mut parts: Vec<StripePart> = Vec::new();
        let mut done = 0;
        while done < length_bytes {
            let position = offset_bytes + done;
            let (chunk, inside) = (position / self.chunk_bytes, position % self.chunk_bytes);
            let length = (self.chunk_bytes - inside).min(length_bytes - done);
            let (device, device_offset) =
                ((chunk % count) as usize, chunk / count * self.chunk_bytes + inside);
            match parts.iter_mut().find(|part| part.device == device) {
                Some(part) => {
                    part.length_bytes += length;
                    part.pieces.push((done as usize, length as usize));
                }
                None => parts.push(StripePart {
                    device,
                    offset_bytes: device_offset,
                    length_bytes: length,
                    pieces: vec![(done as usize, length as usize)],
                }),
            }
            done += length;
        }
        parts
    }

    /// A discard may span the whole device: the bounds of each part by arithmetic, not chunk by chunk.
    fn discard_parts(&self, offset_bytes: u64, length_bytes: u64) -> Vec<(usize, u64, u64)> {
        let count = self.devices.len() as u64;
        // Of device d, everything below `bound` of the volume is this long.
        let below = |bound: u64, device: u64| {
            let (chunk, inside) = (bound / self.chunk_bytes, bound % self.chunk_bytes);
            let (row, column) = (chunk / count, chunk % count);
            let partial = match device.cmp(&column) {
                std::cmp::Ordering::Less => self.chunk_bytes,
                std::cmp::Ordering::Equal => inside,
                std::cmp::Ordering::Greater => 0,
            };
            row * self.chunk_bytes + partial
        };
        (0..count)
            .map(|device| (device, below(offset_bytes, device), below(offset_bytes + length_bytes, device)))
            .filter(|(_, from, to)| to > from)
            .map(|(device, from, to)| (device as usize, from, to - from))
            .collect()
    }
}

struct StripePart {
    device: usize,
    offset_bytes: u64,
    length_bytes: u64,
    /// (offset in the request, length), in the order in which they lie on the device.
    pieces: Vec<(usize, usize)>,
}

/// The sum of one request's parts: the bytes read, or the first error to arrive.
type SumCallback = Result<Vec<u8>, DeviceError>;

fn join(parts: usize, buffer: Vec<u8>, done: CompletionCallback) -> Arc<CompletionJoin<SumCallback>> {
    Arc::new(CompletionJoin::new(parts, Ok(buffer), done))
}

/// Takes one part's answer, with its bytes.
fn arrive(
    join: &CompletionJoin<SumCallback>,
    completion: DeviceCompletion,
    place: impl FnOnce(&mut Vec<u8>, Vec<u8>),
) {
    join.arrive(|sum| match (sum.as_mut(), completion) {
        (Ok(whole), Ok(bytes)) => place(whole, bytes),
        (Ok(_), Err(error)) => *sum = Err(error),
        (Err(_), _) => {}
    });
}

impl BlockDevice for Stripe {
    fn geometry(&self) -> DeviceGeometry {
        self.geometry
    }

    fn submit(&self, request: DeviceRequest, done: CompletionCallback) {
        if let Err(error) = request.check(&self.geometry) {
            return done(Err(error));
        }
        let (offset_bytes, length_bytes) = request.extent();
        // No device has a part of it, so none would answer.
        if length_bytes == 0 && !matches!(request, DeviceRequest::Flush) {
            return done(Ok(match request {
                DeviceRequest::Read { buffer, .. } => buffer,
                _ => Vec::new(),
            }));
        }
        match request {
            DeviceRequest::Flush => {
                let count = if is_planted(PlantedBug::OneDeviceFlushed) { 1 } else { self.devices.len() };
                let join = join(count, Vec::new(), done);
                for device in &self.devices[..count] {
                    let join = Arc::clone(&join);
                    device.submit(
                        DeviceRequest::Flush,
                        Box::new(move |completion| arrive(&join, completion, |_, _| {})),
                    );
                }
            }
            DeviceRequest::Discard { .. } => {
                let parts = self.discard_parts(offset_bytes, length_bytes);
                let join = join(parts.len(), Vec::new(), done);
                for (device, offset_bytes, length_bytes) in parts {
                    let join = Arc::clone(&join);
                    self.devices[device].submit(
                        DeviceRequest::Discard { offset_bytes, length_bytes },
                        Box::new(move |completion| arrive(&join, completion, |_, _| {})),
                    );
                }
            }
            DeviceRequest::Read { buffer, .. } => {
                let mut parts = self.parts(offset_bytes, length_bytes);
                // Of one device: its answer is the answer, and no byte is copied.
                if let [part] = parts.as_slice() {
                    return self.devices[part.device]
                        .submit(DeviceRequest::Read { offset_bytes: part.offset_bytes, buffer }, done);
                }
                let join = join(parts.len(), buffer, done);
                for part in parts.drain(..) {
                    let join = Arc::clone(&join);
                    let buffer = vec![0; part.length_bytes as usize];
                    let pieces = part.pieces;
                    self.devices[part.device].submit(
                        DeviceRequest::Read { offset_bytes: part.offset_bytes, buffer },
                        Box::new(move |completion| {
                            arrive(&join, completion, |whole, bytes| {
                                let mut position = 0;
                                for (offset, length) in pieces {
                                    whole[offset..offset + length]
                                        .copy_from_slice(&bytes[position..position + length]);
                                    position += length;
                                }
                            });
                        }),
                    );
                }
            }
            DeviceRequest::Write { data, fua, .. } => {
                let parts = self.parts(offset_bytes, length_bytes);
                if let [part] = parts.as_slice() {
                    return self.devices[part.device]
                        .submit(DeviceRequest::Write { offset_bytes: part.offset_bytes, data, fua }, done);
                }
                let join = join(parts.len(), Vec::new(), done);
                for part in parts {
                    let join = Arc::clone(&join);
                    let mut bytes = Vec::with_capacity(part.length_bytes as usize);
                    for (offset, length) in part.pieces {
                        bytes.extend_from_slice(&data[offset..offset + length]);
                    }
                    self.devices[part.device].submit(
                        DeviceRequest::Write { offset_bytes: part.offset_bytes, data: bytes, fua },
                        Box::new(move |completion| arrive(&join, completion, |_, _| {})),
                    );
                }
            }
        }
    }
}
