//! Buffers of reads that are used again: a fresh one costs its pages.

use underlay_sync::Mutex;

/// Keeps buffers of one connection by powers of two of their size, up to a number of bytes in all.
pub(super) struct BufferPool {
    kept: Mutex<FreeBuffers>,
    limit_bytes: usize,
}

#[derive(Default)]
struct FreeBuffers {
    by_power: [Vec<Vec<u8>>; 32],
    total_bytes: usize,
}

impl BufferPool {
    pub(super) fn new(limit_bytes: usize) -> BufferPool {
        BufferPool { kept: Mutex::default(), limit_bytes }
    }

    /// A buffer of that length. Its bytes are of an earlier request of the same connection, or zeros.
    pub(super) fn take(&self, length_bytes: usize) -> Vec<u8> {
        let recycled = {
            let mut free = self.kept.lock();
            let found = free.by_power.get_mut(power_of(length_bytes)).and_then(Vec::pop);
            if let Some(found) = &found {
                free.total_bytes -= found.capacity();
            }
            found
        };
        let mut buffer = recycled.unwrap_or_default();
        if buffer.capacity() < length_bytes {
            return vec![0; length_bytes];
        }
        // Only what a longer one needs beyond this one's length has to be written.
        buffer.resize(length_bytes, 0);
        buffer
    }

    pub(super) fn put(&self, buffer: Vec<u8>) {
        let capacity = buffer.capacity();
        if capacity == 0 {
            return;
        }
        let mut free = self.kept.lock();
        if free.total_bytes + capacity <= self.limit_bytes {
            // By its length, since that is what it was taken for.
            let FreeBuffers { by_power, total_bytes } = &mut *free;
            if let Some(of_power) = by_power.get_mut(power_of(buffer.len())) {
                *total_bytes += capacity;
                of_power.push(buffer);
            }
        }
    }
}

fn power_of(length_bytes: usize) -> usize {
    length_bytes.max(1).next_power_of_two().trailing_zeros() as usize
}
