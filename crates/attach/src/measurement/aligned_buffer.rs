//! Memory for direct I/O.

use std::alloc::{Layout, alloc_zeroed, dealloc};

const BLOCK_BYTES: usize = 4096;

/// Direct I/O requires memory aligned to the device's blocks.
pub(crate) struct AlignedBuffer {
    start: *mut u8,
    layout: Layout,
}

impl AlignedBuffer {
    /// Of `length_bytes`, a positive multiple of a block.
    pub(crate) fn new(length_bytes: usize) -> Self {
        let layout = Layout::from_size_align(length_bytes, BLOCK_BYTES).expect("a block is a power of two");
        assert!(layout.size() > 0, "a buffer for nothing");
        // SAFETY: the layout's size is not zero.
        let start = unsafe { alloc_zeroed(layout) };
        assert!(!start.is_null(), "no memory for a buffer");
        AlignedBuffer { start, layout }
    }

    pub(crate) fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: as many initialised bytes, which belong to this buffer alone.
        unsafe { std::slice::from_raw_parts_mut(self.start, self.layout.size()) }
    }
}

impl Drop for AlignedBuffer {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with the same layout.
        unsafe { dealloc(self.start, self.layout) };
    }
}
