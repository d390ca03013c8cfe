//! The time of this thread's simulation: the world sets it, and the machine's clocks show it.

use std::cell::Cell;

thread_local! {
    static NOW_NS: Cell<u64> = const { Cell::new(0) };
}

pub(crate) fn set_now(now: std::time::Duration) {
    NOW_NS.set(now.as_nanos() as u64);
}

/// Since the beginning of the run.
pub(crate) fn now_ns() -> u64 {
    NOW_NS.get()
}
