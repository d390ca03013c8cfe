//! Waking the pacer.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use underlay_sync::{Condvar, Mutex};

/// A device wakes the pacer with this when its next event may be earlier than the pacer's.
pub(crate) struct Waker {
    /// Until when the pacer sleeps, in the model's nanoseconds; 0 while it is awake and looks by itself.
    pub(crate) sleeping_until_ns: AtomicU64,
    pub(crate) stop: AtomicBool,
    pub(crate) lock: Mutex<()>,
    pub(crate) changed: Condvar,
}

impl Waker {
    pub(crate) fn wake(&self, next_ns: u64) {
        // The pacer announces its sleep before it looks at the devices a last time, and a device publishes
        // its event before it looks here: one of the two sees the other.
        if next_ns < self.sleeping_until_ns.load(Ordering::SeqCst) {
            // Under the lock: a pacer that has announced its sleep holds it until it waits, and so can't miss
            // this.
            let _guard = self.lock.lock();
            self.changed.notify_one();
        }
    }
}
