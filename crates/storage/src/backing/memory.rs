//! Memory, taken only where something was written.

use std::collections::HashMap;
use underlay_sync::{Mutex, MutexGuard};

use super::Backing;
use crate::device::DeviceError;

const CHUNK_BYTES: u64 = 64 * 1024;
/// Into how many parts the memory is divided, each with its lock, so that concurrent requests don't queue at
/// one.
const SHARDS: u64 = 16;

type MemoryChunks = HashMap<u64, Box<[u8]>>;

/// Keeps a device's bytes in memory; they go with the value.
#[derive(Debug, Default)]
pub struct MemoryBacking {
    shards: [Mutex<MemoryChunks>; SHARDS as usize],
}

impl MemoryBacking {
    pub fn new() -> Self {
        Self::default()
    }

    fn shard(&self, chunk: u64) -> MutexGuard<'_, MemoryChunks> {
        // A chunk is whole at every moment, so a panic elsewhere left nothing broken.
        self.shards[(chunk % SHARDS) as usize].lock()
    }
}

/// The parts of a range by chunk: (chunk, offset inside it, offset in the range, length).
fn pieces(offset_bytes: u64, length_bytes: u64) -> impl Iterator<Item = (u64, usize, u64, usize)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        if done == length_bytes {
            return None;
        }
        let position = offset_bytes + done;
        let inside = position % CHUNK_BYTES;
        let length = (CHUNK_BYTES - inside).min(length_bytes - done);
        let piece = (position / CHUNK_BYTES, inside as usize, done, length as usize);
        done += length;
        Some(piece)
    })
}

impl Backing for MemoryBacking {
    fn read(&self, offset_bytes: u64, buffer: &mut [u8]) -> Result<(), DeviceError> {
        for (chunk, inside, done, length) in pieces(offset_bytes, buffer.len() as u64) {
            let target = &mut buffer[done as usize..][..length];
            match self.shard(chunk).get(&chunk) {
                Some(bytes) => target.copy_from_slice(&bytes[inside..][..length]),
                None => target.fill(0),
            }
        }
        Ok(())
    }

    fn write(&self, offset_bytes: u64, data: &[u8]) -> Result<(), DeviceError> {
        for (chunk, inside, done, length) in pieces(offset_bytes, data.len() as u64) {
            let mut shard = self.shard(chunk);
            let bytes = shard.entry(chunk).or_insert_with(|| vec![0; CHUNK_BYTES as usize].into());
            bytes[inside..][..length].copy_from_slice(&data[done as usize..][..length]);
        }
        Ok(())
    }

    fn discard(&self, offset_bytes: u64, length_bytes: u64) -> Result<(), DeviceError> {
        let end = offset_bytes + length_bytes;
        let (first, last) = (offset_bytes / CHUNK_BYTES, end.div_ceil(CHUNK_BYTES));
        for shard in 0..SHARDS {
            // Over the chunks that exist, not over the range: a discard of a whole device is cheap.
            self.shard(shard).retain(|&chunk, bytes| {
                if chunk < first || chunk >= last {
                    return true;
                }
                let start = chunk * CHUNK_BYTES;
                let from = offset_bytes.max(start) - start;
                let to = end.min(start + CHUNK_BYTES) - start;
                bytes[from as usize..to as usize].fill(0);
                to - from < CHUNK_BYTES
            });
        }
        Ok(())
    }

    fn holds(&self, offset_bytes: u64, length_bytes: u64) -> Result<bool, DeviceError> {
        Ok(pieces(offset_bytes, length_bytes).all(|(chunk, ..)| self.shard(chunk).contains_key(&chunk)))
    }

    fn sync(&self) -> Result<(), DeviceError> {
        Ok(())
    }
}
