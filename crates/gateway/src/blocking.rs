//! Work that may wait for a disk, beside the tasks.
//!
//! A simulation has one thread, and its own time: there such work is a task as well, which begins a little later than
//! it was asked for.

use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::task::JoinHandle;

/// Whether any thread of this process simulates: only then it is looked whether this one does.
static IS_SIMULATED: AtomicBool = AtomicBool::new(false);

type DelayFunction = Box<dyn Fn() -> Duration>;

thread_local! {
    static DELAYS: RefCell<Option<DelayFunction>> = const { RefCell::new(None) };
}

/// From here on, this thread does such work itself, each piece after a delay that `delays` says.
pub(crate) fn simulate(delays: impl Fn() -> Duration + 'static) {
    DELAYS.set(Some(Box::new(delays)));
    IS_SIMULATED.store(true, Ordering::Relaxed);
}

/// How long this thread waits before the next piece of work, where it simulates.
pub(crate) fn simulated_delay() -> Option<Duration> {
    if !IS_SIMULATED.load(Ordering::Relaxed) {
        return None;
    }
    DELAYS.with_borrow(|delays| delays.as_ref().map(|delay| delay()))
}

/// Carries it out on a thread for such work.
pub(crate) fn spawn_blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    match simulated_delay() {
        None => tokio::task::spawn_blocking(work),
        Some(delay) => tokio::spawn(async move {
            tokio::time::sleep(delay).await;
            work()
        }),
    }
}
