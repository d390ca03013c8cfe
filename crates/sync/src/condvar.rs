//! Waiting for a condition.

use std::sync;
use std::time::Duration;

use crate::mutex::MutexGuard;
use crate::simulation::{TaskWaker, current};
use crate::unsimulated::{UnsimulatedMutex, recovered};

#[derive(Debug, Default)]
pub struct Condvar {
    inner: sync::Condvar,
    /// Threads of a simulation that wait.
    simulated: UnsimulatedMutex<Vec<TaskWaker>>,
}

impl Condvar {
    pub const fn new() -> Condvar {
        Condvar { inner: sync::Condvar::new(), simulated: UnsimulatedMutex::new(Vec::new()) }
    }

    fn waiters(&self) -> sync::MutexGuard<'_, Vec<TaskWaker>> {
        self.simulated.lock()
    }

    /// May return without a reason, as `std`'s.
    pub fn wait<'a, T>(&self, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        self.wait_at_most(guard, None)
    }

    /// May return early without a reason, as `std`'s.
    pub fn wait_timeout<'a, T>(&self, guard: MutexGuard<'a, T>, timeout: Duration) -> MutexGuard<'a, T> {
        self.wait_at_most(guard, Some(timeout))
    }

    fn wait_at_most<'a, T>(&self, guard: MutexGuard<'a, T>, timeout: Option<Duration>) -> MutexGuard<'a, T> {
        let (mutex, inner) = guard.into_parts();
        if let Some(task) = current() {
            let waker = task.waker();
            self.waiters().push(waker);
            MutexGuard::release(mutex, inner);
            task.block(timeout);
            // After a timeout the waker is still listed, and a later `notify_one` would be wasted on it.
            self.waiters().retain(|other| *other != waker);
            return mutex.lock();
        }
        let inner = match timeout {
            None => recovered(self.inner.wait(inner)),
            Some(timeout) => recovered(self.inner.wait_timeout(inner, timeout)).0,
        };
        MutexGuard::from_parts(mutex, inner)
    }

    pub fn notify_one(&self) {
        self.inner.notify_one();
        if let Some(task) = current() {
            let first = {
                let mut waiters = self.waiters();
                (!waiters.is_empty()).then(|| waiters.remove(0))
            };
            first.into_iter().for_each(|waker| task.wake(waker));
        }
    }

    pub fn notify_all(&self) {
        self.inner.notify_all();
        if let Some(task) = current() {
            let all = std::mem::take(&mut *self.waiters());
            all.into_iter().for_each(|waker| task.wake(waker));
        }
    }
}
