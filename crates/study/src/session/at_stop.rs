//! Acting on the user's stop while something goes on that does not hear of it.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

const POLL: Duration = Duration::from_millis(50);

/// Does something that may take minutes and can't be stopped. From `stop` on, `end` is done until it breaks off, so
/// that this fails soon.
pub(super) fn end_on_stop<T>(
    stop: &AtomicBool,
    mut end: impl FnMut() -> ControlFlow<()> + Send,
    act: impl FnOnce() -> T,
) -> T {
    std::thread::scope(|scope| {
        let (over, ended) = mpsc::channel::<()>();
        scope.spawn(move || {
            while let Err(RecvTimeoutError::Timeout) = ended.recv_timeout(POLL) {
                if stop.load(Ordering::Relaxed) && end().is_break() {
                    return;
                }
            }
        });
        // The thread ends once the other end of its channel is gone, however this one does.
        let _over = over;
        act()
    })
}
