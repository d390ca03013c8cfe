//! A thread that does one thing again and again.

use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::JoinHandle;
use std::time::Duration;

/// It ends when this is dropped.
pub(crate) struct SamplerTicker {
    over: Option<mpsc::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl SamplerTicker {
    /// `begin` runs on the new thread, and gives what to do each time, which says after what pause to do it again. Nothing is done where no
    /// thread can be had.
    pub(crate) fn start<Each: FnMut() -> Duration>(
        name: &str,
        first: Duration,
        begin: impl FnOnce() -> Option<Each> + Send + 'static,
    ) -> SamplerTicker {
        let (over, ended) = mpsc::channel::<()>();
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(move || {
            let Some(mut each) = begin() else { return };
            let mut pause = first;
            while let Err(RecvTimeoutError::Timeout) = ended.recv_timeout(pause) {
                pause = each();
            }
        });
        SamplerTicker { over: Some(over), thread: thread.ok() }
    }
}

impl Drop for SamplerTicker {
    fn drop(&mut self) {
        drop(self.over.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
