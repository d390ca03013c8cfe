//! Memory for direct I/O, and what a difference looks like.

use std::alloc::{Layout, alloc_zeroed, dealloc};

/// Direct I/O wants memory aligned to blocks.
pub(crate) struct Aligned {
    start: *mut u8,
    layout: Layout,
}

impl Aligned {
    pub(crate) fn new(length: usize) -> Aligned {
        let layout = Layout::from_size_align(length.max(1), 4096).unwrap();
        // SAFETY: the layout's size is not zero.
        let start = unsafe { alloc_zeroed(layout) };
        assert!(!start.is_null(), "no memory");
        Aligned { start, layout }
    }

    pub(crate) fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: these initialised bytes belong to this value alone.
        unsafe { std::slice::from_raw_parts_mut(self.start, self.layout.size()) }
    }
}

impl Drop for Aligned {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this layout.
        unsafe { dealloc(self.start, self.layout) };
    }
}

/// `Err` says where the first difference is and how many bytes differ.
pub(crate) fn compare(offset: u64, expected: &[u8], found: &[u8]) -> Result<(), String> {
    let Some(first) = expected.iter().zip(found).position(|(expected, found)| expected != found) else {
        return Ok(());
    };
    let count = expected.iter().zip(found).filter(|(expected, found)| expected != found).count();
    let show =
        |bytes: &[u8]| bytes[first..].iter().take(16).map(|byte| format!("{byte:02x}")).collect::<String>();
    Err(format!(
        "{count} bytes differ, the first at {}: expected {}…, found {}…",
        offset + first as u64,
        show(expected),
        show(found)
    ))
}
