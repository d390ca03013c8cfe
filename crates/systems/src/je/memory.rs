//! How a budget is divided among Java, JE's cache and the page cache.

use std::collections::BTreeMap;

use crate::memory_plan::ProcessMemory;

pub(crate) const MIB: u64 = 1 << 20;

/// The memory of a Java process with JE besides its heap for code, classes, stacks and buffers. Measured: 75 to 90 MiB.
const JAVA_OWN_BYTES: u64 = 96 * MIB;
/// With a smaller heap, JE's own structures leave hardly any cache.
const MIN_HEAP_BYTES: u64 = 40 * MIB;
/// With a larger heap, measurements would mostly show pauses of the serial collector. The remainder is page cache.
const MAX_HEAP_BYTES: u64 = 8 << 30;

/// The smallest budget of one process, regardless of its shares.
pub(crate) const MIN_BYTES: u64 = JAVA_OWN_BYTES + 2 * MIN_HEAP_BYTES;

pub(crate) const DEFAULT_HEAP_SHARE: f64 = 0.6;
/// JE's own default.
pub(crate) const DEFAULT_CACHE_SHARE: f64 = 0.6;

/// The sizes of one process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct JeMemoryLayout {
    pub heap_bytes: u64,
    /// JE's cache, in the heap.
    pub cache_bytes: u64,
    pub page_cache_bytes: u64,
}

impl JeMemoryLayout {
    /// Divides the memory of one process, at least [`MIN_BYTES`]: `heap_share` of what is left beside Java is its heap,
    /// and `cache_share` of that is JE's cache.
    pub(crate) fn new(process_bytes: u64, heap_share: f64, cache_share: f64) -> JeMemoryLayout {
        let left = process_bytes.saturating_sub(JAVA_OWN_BYTES);
        let heap = ((left as f64 * heap_share) as u64).clamp(MIN_HEAP_BYTES, MAX_HEAP_BYTES) / MIB * MIB;
        JeMemoryLayout {
            heap_bytes: heap,
            cache_bytes: (heap as f64 * cache_share) as u64,
            page_cache_bytes: left.saturating_sub(heap),
        }
    }

    /// The cache lives long: by Java's own rule the old generation would be two thirds of the heap, and a larger cache
    /// would keep the collector busy without end.
    pub(crate) fn java_option(&self) -> String {
        let young = (self.heap_bytes - self.cache_bytes) / 2;
        format!("-Xmn{}k", young >> 10)
    }

    /// Of `count` processes that are divided like this.
    pub(crate) fn process(&self, kind: &'static str, count: u64) -> ProcessMemory {
        ProcessMemory {
            what: kind,
            count,
            heap_bytes: self.heap_bytes,
            direct_bytes: 0,
            own_bytes: JAVA_OWN_BYTES,
            cache_bytes: self.cache_bytes,
        }
    }

    /// For the record.
    pub(crate) fn applied(&self) -> BTreeMap<String, String> {
        let sizes = [
            ("heap_bytes", self.heap_bytes),
            ("cache_bytes", self.cache_bytes),
            ("page_cache_bytes", self.page_cache_bytes),
        ];
        sizes.map(|(name, bytes)| (name.to_owned(), bytes.to_string())).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_layout_fits_budget() {
        let mut bytes = MIN_BYTES;
        while bytes < 1 << 40 {
            for (heap_share, cache_share) in [(0.1, 0.1), (0.6, 0.6), (0.9, 0.8)] {
                let division = JeMemoryLayout::new(bytes, heap_share, cache_share);
                assert!(division.heap_bytes + JAVA_OWN_BYTES + division.page_cache_bytes <= bytes);
                let young: u64 = division.java_option()[4..].trim_end_matches('k').parse().unwrap();
                assert!(young << 10 > MIB && (young << 10) + division.cache_bytes < division.heap_bytes);
                assert!(division.page_cache_bytes >= bytes / 100, "{division:?} of {bytes}");
            }
            bytes *= 2;
        }
        assert_eq!(JeMemoryLayout::new(MIN_BYTES, 0.6, 0.5).cache_bytes, 24 * MIB);
        assert_eq!(JeMemoryLayout::new(1 << 40, 0.6, 0.5).heap_bytes, MAX_HEAP_BYTES);
    }
}
