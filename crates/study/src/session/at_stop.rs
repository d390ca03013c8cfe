//! Acts on the user's stop during calls that do not notice it themselves.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

const POLL: Duration = Duration::from_millis(50);

/// Calls a function that may take minutes and can't be stopped. After `stop`, `end` is called until it returns an
/// error, so that the function soon fails.
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
        // The thread ends once the other end of its channel is dropped, however this one ends.
        let _over = over;
        act()
    })
}
