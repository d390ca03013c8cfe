//! A limit on memory for bytes on their way between clients and stores, which no cache counts.

use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The unit of counting.
const UNIT_BYTES: u64 = 64 << 10;

/// See the module.
#[derive(Clone, Debug)]
pub(crate) struct MemoryBudget {
    permits: Arc<Semaphore>,
    units: u32,
}

/// A part of it, for as long as somebody has a clone of this.
#[derive(Clone, Debug)]
pub(crate) struct MemoryHold {
    _permit: Arc<OwnedSemaphorePermit>,
}

/// Bytes that take a part of it.
struct HeldBytes {
    bytes: Bytes,
    _hold: MemoryHold,
}

impl AsRef<[u8]> for HeldBytes {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl MemoryHold {
    /// The same bytes, which hold their memory until nobody has them any more.
    pub(crate) fn wrap(&self, bytes: Bytes) -> Bytes {
        Bytes::from_owner(HeldBytes { bytes, _hold: self.clone() })
    }
}

impl MemoryBudget {
    pub(crate) fn new(bytes: u64) -> MemoryBudget {
        // Tokio's semaphores have that many permits, and nobody has as much memory.
        let units = u32::try_from(bytes / UNIT_BYTES).unwrap_or(u32::MAX).clamp(1, 1 << 28);
        MemoryBudget { permits: Arc::new(Semaphore::new(units as usize)), units }
    }

    pub(crate) fn bytes(&self) -> u64 {
        u64::from(self.units) * UNIT_BYTES
    }

    /// Whether at least half of it is free.
    pub(crate) fn is_ample(&self) -> bool {
        self.permits.available_permits() >= self.units as usize / 2
    }

    /// Memory for so many bytes; more than there is counts as all of it.
    fn units_of(&self, bytes: u64) -> u32 {
        u32::try_from(bytes.div_ceil(UNIT_BYTES)).unwrap_or(u32::MAX).min(self.units)
    }

    pub(crate) fn try_hold(&self, bytes: u64) -> Option<MemoryHold> {
        let permit = Arc::clone(&self.permits).try_acquire_many_owned(self.units_of(bytes)).ok()?;
        Some(MemoryHold { _permit: Arc::new(permit) })
    }

    /// In the order in which they ask.
    pub(crate) async fn hold(&self, bytes: u64) -> Option<MemoryHold> {
        // The semaphore is never closed.
        let permit = Arc::clone(&self.permits).acquire_many_owned(self.units_of(bytes)).await.ok()?;
        Some(MemoryHold { _permit: Arc::new(permit) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_held_until_last_slice_is_dropped() {
        let memory = MemoryBudget::new(4 * UNIT_BYTES);
        let hold = memory.try_hold(3 * UNIT_BYTES).unwrap();
        let bytes = hold.wrap(Bytes::from_static(b"some bytes"));
        drop(hold);
        let slice = bytes.slice(5..);
        drop(bytes);
        assert!(memory.try_hold(2 * UNIT_BYTES).is_none() && !memory.is_ample());
        assert_eq!(slice, b"bytes"[..]);
        drop(slice);
        // More than there is has all of it.
        let all = memory.try_hold(100 * UNIT_BYTES).unwrap();
        assert!(memory.try_hold(1).is_none());
        drop(all);
        assert!(memory.is_ample() && memory.try_hold(1).is_some());
    }
}
