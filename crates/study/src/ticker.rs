//! A thread that does one thing again and again.

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
    /// `begin` runs on the new thread, and gives what to do each time, which says after what pause to do it again.
    /// Nothing is done where no thread can be had.
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

    /// Call it before what the thread counts is read: figures that stand still would be taken for true ones.
    ///
    /// # Panics
    /// When the thread has.
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
        // Told once.
        drop(ticker);
        // Where nobody reads any more, the end notices.
        let ticker = broken();
        let deadline = Instant::now() + Duration::from_secs(60);
        while !ticker.thread.as_ref().unwrap().is_finished() {
            assert!(Instant::now() < deadline, "it does not end");
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(catch_unwind(AssertUnwindSafe(|| drop(ticker))).is_err());
    }
}
