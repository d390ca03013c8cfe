//! The end of something that another thread of a test waits for.

use std::sync::atomic::{AtomicBool, Ordering};

/// Tells by this flag that something has ended, also where it panicked: otherwise who waits for it would wait forever.
pub(crate) struct Ending<'a>(pub &'a AtomicBool);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
