//! Operations of a world's thread.

use std::cell::RefCell;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use super::{TaskGroup, WorldShared};

/// A thread of a world.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TaskId(pub(super) usize);

/// Wakes a task from one wait; a later wait of the same task has another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaskWaker {
    pub(super) task: TaskId,
    pub(super) wait: u64,
}

/// The calling thread, as its world knows it.
#[derive(Clone)]
pub struct SimulatedTask {
    pub(super) shared: Arc<WorldShared>,
    pub(super) id: TaskId,
}

/// Worlds that run now: where there is none, nobody looks further.
pub(super) static WORLDS: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static CURRENT: RefCell<Option<SimulatedTask>> = const { RefCell::new(None) };
}

/// The calling thread, if it is one of a world's.
#[inline]
pub fn current() -> Option<SimulatedTask> {
    if is_ordinary() { None } else { current_of_worlds() }
}

/// Whether no world runs: then everything is as in `std`, and what asks only this first is short enough to be inlined
/// everywhere.
#[inline]
pub(crate) fn is_ordinary() -> bool {
    // Relaxed is enough: a world's threads start after the count is raised, and any other thread finds that it has no
    // task, regardless of the count.
    WORLDS.load(Ordering::Relaxed) == 0
}

#[cold]
fn current_of_worlds() -> Option<SimulatedTask> {
    // A thread that is ending may have lost this thread-local already.
    CURRENT.try_with(|current| current.borrow().clone()).ok().flatten()
}

impl SimulatedTask {
    pub(super) fn become_current(&self) {
        CURRENT.with(|current| *current.borrow_mut() = Some(self.clone()));
    }

    pub fn now(&self) -> Duration {
        self.shared.now()
    }

    pub fn random_u64(&self) -> u64 {
        self.shared.with_random(|random| random.next_u64())
    }

    /// Now and then lets another task go first, so that what happens between two locks is found.
    pub(crate) fn may_yield(&self) {
        // A thread that unwinds must get through.
        if self.shared.yields_now() && !std::thread::panicking() {
            self.shared.yield_turn(self.id);
        }
    }

    pub(crate) fn wait_for_lock(&self, address: usize) {
        self.shared.wait_for_lock(self.id, address);
    }

    pub(crate) fn unlocked(&self, address: usize) {
        self.shared.unlocked(address);
    }

    /// For the wait that begins now.
    pub(crate) fn waker(&self) -> TaskWaker {
        self.shared.waker(self.id)
    }

    pub(crate) fn wake(&self, waker: TaskWaker) {
        self.shared.wake(waker);
    }

    /// Until somebody uses the waker, or the time is over.
    pub(crate) fn block(&self, timeout: Option<Duration>) {
        self.shared.block(self.id, timeout);
    }

    pub(crate) fn sleep(&self, duration: Duration) {
        self.waker();
        self.shared.block(self.id, Some(duration));
    }

    pub(crate) fn wait_for_end(&self, other: TaskId) {
        self.shared.wait_for_end(self.id, other);
    }

    pub(crate) fn spawn<T: Send + 'static>(
        &self,
        builder: std::thread::Builder,
        body: impl FnOnce() -> T + Send + 'static,
    ) -> io::Result<(JoinHandle<T>, TaskId)> {
        let group = self.shared.group_of(self.id);
        spawn(&self.shared, group, builder, body)
    }
}

/// Starts a thread that waits for its first turn.
pub(super) fn spawn<T: Send + 'static>(
    shared: &Arc<WorldShared>,
    group: TaskGroup,
    builder: std::thread::Builder,
    body: impl FnOnce() -> T + Send + 'static,
) -> io::Result<(JoinHandle<T>, TaskId)> {
    let id = shared.reserve(group);
    let task = SimulatedTask { shared: Arc::clone(shared), id };
    let thread = builder.spawn(move || {
        task.become_current();
        task.shared.await_turn(id);
        let outcome = catch_unwind(AssertUnwindSafe(body));
        if let Err(panic) = &outcome {
            task.shared.failed(id, panic_message(&**panic));
        }
        // After `end` this thread has no turn: what its other thread-locals still drop must not go through
        // the scheduler.
        CURRENT.with(|current| current.borrow_mut().take());
        task.shared.end(id);
        outcome.unwrap_or_else(|panic| resume_unwind(panic))
    })?;
    shared.started(id, thread.thread().clone());
    Ok((thread, id))
}

pub(super) fn panic_message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "a panic without words".into())
}
