//! The gateway's allocator: mimalloc, with memory that is allocated by whole pages zeroed first.
//!
//! Objects are allocated on one thread and freed on another, in all sizes. The C library's allocator kept a sixth
//! more under mixed writes; mimalloc gives freed pages back.
//!
//! The cache's library writes such pages to flash as they are, with what the memory had before where nothing has been
//! put: a part of an object, or a key, in clear beside blocks that are sealed. Other memory is handed out as it comes.

use std::alloc::{GlobalAlloc, Layout};

use mimalloc::MiMalloc;

const PAGE_BYTES: usize = 4096;

/// See the module.
struct CleanPages;

// SAFETY: everything is mimalloc's own work, and memory that it has zeroed is as good as what it has not.
unsafe impl GlobalAlloc for CleanPages {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller keeps to the layout as `GlobalAlloc` asks.
        unsafe {
            match layout.align() >= PAGE_BYTES {
                true => MiMalloc.alloc_zeroed(layout),
                false => MiMalloc.alloc(layout),
            }
        }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: as above; the memory is mimalloc's.
        unsafe { MiMalloc.dealloc(memory, layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as above.
        unsafe { MiMalloc.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, new_size_bytes: usize) -> *mut u8 {
        if layout.align() < PAGE_BYTES {
            // SAFETY: as above.
            return unsafe { MiMalloc.realloc(memory, layout, new_size_bytes) };
        }
        // SAFETY: the caller sees to it that the new size is none that overflows; both are as long as what is copied.
        unsafe {
            let new_layout = Layout::from_size_align_unchecked(new_size_bytes, layout.align());
            let new_memory = MiMalloc.alloc_zeroed(new_layout);
            if !new_memory.is_null() {
                std::ptr::copy_nonoverlapping(memory, new_memory, layout.size().min(new_size_bytes));
                MiMalloc.dealloc(memory, layout);
            }
            new_memory
        }
    }
}

#[global_allocator]
static ALLOCATOR: CleanPages = CleanPages;
