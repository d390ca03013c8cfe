//! Mutual exclusion.

use std::ops::{Deref, DerefMut};
use std::sync;

use crate::simulation::{current, is_ordinary};
use crate::unsimulated::{attempted, recovered};

#[derive(Debug, Default)]
pub struct Mutex<T: ?Sized> {
    inner: sync::Mutex<T>,
}

/// Unlocks when it is dropped.
pub struct MutexGuard<'a, T: ?Sized> {
    mutex: &'a Mutex<T>,
    /// Present until the guard is dropped or given to a condition.
    inner: Option<sync::MutexGuard<'a, T>>,
}

impl<T> Mutex<T> {
    pub const fn new(value: T) -> Mutex<T> {
        Mutex { inner: sync::Mutex::new(value) }
    }

    pub fn into_inner(self) -> T {
        recovered(self.inner.into_inner())
    }
}

impl<T: ?Sized> Mutex<T> {
    #[inline]
    pub fn lock(&self) -> MutexGuard<'_, T> {
        let inner = match is_ordinary() {
            true => recovered(self.inner.lock()),
            false => self.lock_beside_worlds(),
        };
        MutexGuard { mutex: self, inner: Some(inner) }
    }

    #[cold]
    fn lock_beside_worlds(&self) -> sync::MutexGuard<'_, T> {
        let Some(task) = current() else { return recovered(self.inner.lock()) };
        task.may_yield();
        // Never blocks the thread itself: in a world the holder can only go on once this task gives up its
        // turn.
        loop {
            match attempted(self.inner.try_lock()) {
                Some(guard) => return guard,
                None => task.wait_for_lock(self.address()),
            }
        }
    }

    #[cold]
    fn tell_world(&self) {
        if let Some(task) = current() {
            task.unlocked(self.address());
        }
    }

    pub fn get_mut(&mut self) -> &mut T {
        recovered(self.inner.get_mut())
    }

    fn address(&self) -> usize {
        std::ptr::from_ref(self).cast::<()>().addr()
    }
}

impl<'a, T: ?Sized> MutexGuard<'a, T> {
    /// Takes the guard apart, for a condition that lets go of the lock while it waits.
    pub(crate) fn into_parts(mut self) -> (&'a Mutex<T>, sync::MutexGuard<'a, T>) {
        // An empty guard's `Drop` does nothing, so the lock stays held.
        let inner = self.inner.take().expect("a guard holds its lock until it is dropped");
        (self.mutex, inner)
    }

    pub(crate) fn from_parts(mutex: &'a Mutex<T>, inner: sync::MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        MutexGuard { mutex, inner: Some(inner) }
    }

    /// Unlocks, and wakes those that wait for that in a simulation.
    pub(crate) fn release(mutex: &'a Mutex<T>, inner: sync::MutexGuard<'a, T>) {
        drop(MutexGuard::from_parts(mutex, inner));
    }
}

impl<T: ?Sized> Drop for MutexGuard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        if self.inner.take().is_some() && !is_ordinary() {
            self.mutex.tell_world();
        }
    }
}

impl<T: ?Sized> Deref for MutexGuard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        self.inner.as_ref().expect("a guard holds its lock until it is dropped")
    }
}

impl<T: ?Sized> DerefMut for MutexGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        self.inner.as_mut().expect("a guard holds its lock until it is dropped")
    }
}
