//! A thread that does one thing repeatedly.

use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::JoinHandle;
use std::time::Duration;

use underlay_sync::ThreadFate;

/// It ends when this is dropped.
pub(crate) struct SamplerTicker {
    over: Option<mpsc::Sender<()>>,
    thread: Option<JoinHandle<()>>,
    fate: ThreadFate,
}

impl SamplerTicker {
    /// `begin` runs on the new thread and returns the function to repeat. That function returns the pause until its
    /// next call. If no thread can be started, nothing happens.
    pub(crate) fn start<Each: FnMut() -> Duration>(
        name: &str,
        first: Duration,
        begin: impl FnOnce() -> Option<Each> + Send + 'static,
    ) -> SamplerTicker {
        let (over, ended) = mpsc::channel::<()>();
        let fate = ThreadFate::default();
        let of_thread = fate.clone();
        let work = move || {
            let Some(mut each) = begin() else { return };
            let mut pause = first;
            while let Err(RecvTimeoutError::Timeout) = ended.recv_timeout(pause) {
                pause = each();
            }
        };
        let thread = std::thread::Builder::new().name(name.to_owned());
        let thread = thread.spawn(move || of_thread.watch(work));
        SamplerTicker { over: Some(over), thread: thread.ok(), fate }
    }

    /// Call this before reading the thread's counts: counts that no longer change would be taken for correct ones.
    ///
    /// # Panics
    /// If the thread has panicked.
    pub(crate) fn check(&self) {
        self.fate.check();
    }
}

impl Drop for SamplerTicker {
    fn drop(&mut self) {
        drop(self.over.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        self.fate.check();
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::time::Instant;

    use super::*;

    fn broken() -> SamplerTicker {
        SamplerTicker::start("broken", Duration::ZERO, || {
            Some(|| -> Duration { panic!("a bug of the ticker") })
        })
    }

    #[test]
    fn owner_notices_ticker_panic() {
        let ticker = broken();
        let deadline = Instant::now() + Duration::from_secs(60);
        while catch_unwind(AssertUnwindSafe(|| ticker.check())).is_ok() {
            assert!(Instant::now() < deadline, "nobody notices");
            std::thread::sleep(Duration::from_millis(1));
        }
        // Reported once.
        drop(ticker);
        // If it is not read any more, the drop notices.
        let ticker = broken();
        let deadline = Instant::now() + Duration::from_secs(60);
        while !ticker.thread.as_ref().unwrap().is_finished() {
            assert!(Instant::now() < deadline, "it does not end");
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(catch_unwind(AssertUnwindSafe(|| drop(ticker))).is_err());
    }
}
