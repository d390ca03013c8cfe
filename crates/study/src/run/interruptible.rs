//! Waits for a call that can't be interrupted, until the run is stopped.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use underlay_sync::Mutex;

const POLL: Duration = Duration::from_millis(50);

/// An answer that another thread waits for, or nothing once `stop` is raised. The thread ends when the asked process
/// does. If no thread can be started, the caller itself asks, and a stop waits for the answer.
pub(super) fn unless_stopped<T: Send + 'static>(
    stop: &AtomicBool,
    ask: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    run_with(stop, ask, |asking| std::thread::Builder::new().name("ask".to_owned()).spawn(asking).is_ok())
}

/// `spawn` says whether it has a thread for it.
fn run_with<T: Send + 'static>(
    stop: &AtomicBool,
    ask: impl FnOnce() -> T + Send + 'static,
    spawn: impl FnOnce(Box<dyn FnOnce() + Send>) -> bool,
) -> Option<T> {
    let (tell, receiver) = mpsc::sync_channel(1);
    let question = Arc::new(Mutex::new(Some(ask)));
    let asked = Arc::clone(&question);
    let asking = move || {
        let ask = asked.lock().take();
        if let Some(ask) = ask {
            // The receiver may be gone.
            let _ = tell.send(ask());
        }
    };
    if !spawn(Box::new(asking)) {
        let ask = question.lock().take();
        return ask.map(|ask| ask());
    }
    while !stop.load(Ordering::Relaxed) {
        match receiver.recv_timeout(POLL) {
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
    fn stop_waits_for_no_answer() {
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

    #[test]
    fn without_a_thread_it_is_asked_all_the_same() {
        assert_eq!(run_with(&AtomicBool::new(false), || 7, |_| false), Some(7));
    }
}
