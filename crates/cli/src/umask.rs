//! The umask that everything is made under, here and by the programs that are started.

use std::sync::atomic::{AtomicU32, Ordering};

static FORMER: AtomicU32 = AtomicU32::new(0o022);

/// Nobody else ever writes to what is made, and the owner can always use it: with a umask of 0777 we could not enter
/// our own folders. To be called before there is a second thread.
pub(crate) fn set() {
    // SAFETY: it changes a number of this process.
    unsafe {
        // A umask can only be read by setting another: until the next call, one that gives others nothing.
        let mask = libc::umask(0o077);
        FORMER.store(mask, Ordering::Relaxed);
        libc::umask((mask | 0o022) & 0o077);
    }
}

/// The user's own, for a command of theirs.
pub(crate) fn former() -> libc::mode_t {
    FORMER.load(Ordering::Relaxed)
}
