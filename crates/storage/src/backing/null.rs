//! Nothing at all.

use super::Backing;
use crate::device::DeviceError;

/// Takes every write, keeps none and reads zeros: what is left is the cost of the path to it.
#[derive(Clone, Copy, Debug, Default)]
pub struct NullBacking;

impl Backing for NullBacking {
    fn read(&self, _offset_bytes: u64, buffer: &mut [u8]) -> Result<(), DeviceError> {
        buffer.fill(0);
        Ok(())
    }

    fn write(&self, _offset_bytes: u64, _data: &[u8]) -> Result<(), DeviceError> {
        Ok(())
    }

    fn discard(&self, _offset_bytes: u64, _length_bytes: u64) -> Result<(), DeviceError> {
        Ok(())
    }

    fn holds(&self, _offset_bytes: u64, length_bytes: u64) -> Result<bool, DeviceError> {
        Ok(length_bytes == 0)
    }

    fn sync(&self) -> Result<(), DeviceError> {
        Ok(())
    }
}
