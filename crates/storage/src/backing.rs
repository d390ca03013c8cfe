//! Where a modelled device keeps its bytes.

pub mod file;
pub mod memory;
pub mod null;

use crate::device::DeviceError;

pub use file::{FileBacking, FlushDurability};
pub use memory::MemoryBacking;
pub use null::NullBacking;

/// A store of numbered bytes without timing. Ranges lie inside its capacity: the device above has checked.
///
/// Unwritten ranges read as zeros. Calls may come from many threads at once; overlapping ones in flight together may
/// happen in any order, block by block.
pub trait Backing: Send + Sync {
    fn read(&self, offset_bytes: u64, buffer: &mut [u8]) -> Result<(), DeviceError>;

    fn write(&self, offset_bytes: u64, data: &[u8]) -> Result<(), DeviceError>;

    /// Gives the space back where it can; the range reads as zeros afterwards.
    fn discard(&self, offset_bytes: u64, length_bytes: u64) -> Result<(), DeviceError>;

    /// Whether all of the range has been written since it was last discarded, as far as this backing can tell.
    fn holds(&self, offset_bytes: u64, length_bytes: u64) -> Result<bool, DeviceError> {
        let _ = (offset_bytes, length_bytes);
        Ok(true)
    }

    /// Makes every finished write as durable as this backing promises.
    fn sync(&self) -> Result<(), DeviceError>;
}
