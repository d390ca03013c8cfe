//! Waiting for somebody who can't be interrupted, until the run is to stop.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::Duration;

const POLL: Duration = Duration::from_millis(50);

/// What somebody answers, asked by a thread of its own; nothing where `stop` is raised before. The thread ends with whoever it waits for.
pub(super) fn unless_stopped<T: Send + 'static>(
    stop: &AtomicBool,
    ask: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    let (tell, told) = mpsc::sync_channel(1);
    let asking = move || {
        // Nobody may listen any more.
        let _ = tell.send(ask());
    };
    std::thread::Builder::new().name("ask".to_owned()).spawn(asking).ok()?;
    while !stop.load(Ordering::Relaxed) {
        match told.recv_timeout(POLL) {
            Ok(answer) => return Some(answer),
            Err(mpsc::RecvTimeoutError::Timeout) => {}
            Err(mpsc::RecvTimeoutError::Disconnected) => return None,
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stop_waits_for_no_answer() {
        let stop = AtomicBool::new(false);
        assert_eq!(unless_stopped(&stop, || 7), Some(7));
        let (end, ended) = mpsc::channel::<()>();
        let hang = move || {
            let _ = ended.recv();
        };
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| unless_stopped(&stop, hang));
            stop.store(true, Ordering::Relaxed);
            assert_eq!(waiting.join().unwrap(), None);
        });
        drop(end);
    }
}
