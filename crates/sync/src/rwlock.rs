//! Many readers or one writer.

use std::ops::{Deref, DerefMut};
use std::sync;

use crate::simulation::current;
use crate::unsimulated::{attempted, recovered};

#[derive(Debug, Default)]
pub struct RwLock<T: ?Sized> {
    inner: sync::RwLock<T>,
}

pub struct RwLockReadGuard<'a, T: ?Sized> {
    address: usize,
    inner: Option<sync::RwLockReadGuard<'a, T>>,
}

pub struct RwLockWriteGuard<'a, T: ?Sized> {
    address: usize,
    inner: Option<sync::RwLockWriteGuard<'a, T>>,
}

impl<T> RwLock<T> {
    pub const fn new(value: T) -> RwLock<T> {
        RwLock { inner: sync::RwLock::new(value) }
    }
}

impl<T: ?Sized> RwLock<T> {
    #[inline]
    pub fn read(&self) -> RwLockReadGuard<'_, T> {
        let inner = self.acquire(sync::RwLock::read, sync::RwLock::try_read);
        RwLockReadGuard { address: self.address(), inner: Some(inner) }
    }

    #[inline]
    pub fn write(&self) -> RwLockWriteGuard<'_, T> {
        let inner = self.acquire(sync::RwLock::write, sync::RwLock::try_write);
        RwLockWriteGuard { address: self.address(), inner: Some(inner) }
    }

    #[inline]
    fn acquire<'a, G>(
        &'a self,
        wait: fn(&'a sync::RwLock<T>) -> sync::LockResult<G>,
        attempt: fn(&'a sync::RwLock<T>) -> sync::TryLockResult<G>,
    ) -> G {
        let Some(task) = current() else { return recovered(wait(&self.inner)) };
        task.may_yield();
        // Never blocks the thread itself: in a world the holder can only go on once this task gives up its
        // turn.
        loop {
            match attempted(attempt(&self.inner)) {
                Some(guard) => return guard,
                None => task.wait_for_lock(self.address()),
            }
        }
    }

    fn address(&self) -> usize {
        // Names the lock for as long as somebody holds it or waits for it: both borrow it, so it can't move.
        std::ptr::from_ref(self).cast::<()>().addr()
    }
}

impl<T: ?Sized> Deref for RwLockReadGuard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        self.inner.as_ref().expect("a guard holds its lock until it is dropped")
    }
}

impl<T: ?Sized> Deref for RwLockWriteGuard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        self.inner.as_ref().expect("a guard holds its lock until it is dropped")
    }
}

impl<T: ?Sized> DerefMut for RwLockWriteGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        self.inner.as_mut().expect("a guard holds its lock until it is dropped")
    }
}

impl<T: ?Sized> Drop for RwLockReadGuard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        drop(self.inner.take());
        if let Some(task) = current() {
            task.unlocked(self.address);
        }
    }
}

impl<T: ?Sized> Drop for RwLockWriteGuard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        drop(self.inner.take());
        if let Some(task) = current() {
            task.unlocked(self.address);
        }
    }
}
