//! Extents by their number.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use super::extent::MappedExtent;

/// Numbers are spread by one multiplication: maps are asked at each request.
#[derive(Clone, Copy, Default)]
pub struct NumberHasher(u64);

pub(super) type BuildNumberHasher = BuildHasherDefault<NumberHasher>;

impl Hasher for NumberHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u32(u32::from(*byte));
        }
    }

    fn write_u32(&mut self, number: u32) {
        // 2^64 divided by the golden ratio (Knuth, TAOCP vol. 3, 6.4).
        let spread = (self.0 ^ u64::from(number)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        self.0 = spread ^ spread >> 32;
    }
}

pub(super) type ExtentTable = HashMap<u32, MappedExtent, BuildNumberHasher>;
