//! A place for what a task brings.

use std::sync::{Arc, MutexGuard};
use underlay_sync::UnsimulatedMutex;

pub(crate) struct SharedSlot<T>(Arc<UnsimulatedMutex<Option<T>>>);

impl<T> Default for SharedSlot<T> {
    fn default() -> SharedSlot<T> {
        SharedSlot(Arc::default())
    }
}

impl<T> Clone for SharedSlot<T> {
    fn clone(&self) -> SharedSlot<T> {
        SharedSlot(Arc::clone(&self.0))
    }
}

impl<T> SharedSlot<T> {
    fn lock(&self) -> MutexGuard<'_, Option<T>> {
        self.0.lock()
    }

    pub(crate) fn fill(&self, item: T) {
        *self.lock() = Some(item);
    }

    pub(crate) fn is_full(&self) -> bool {
        self.lock().is_some()
    }
}

impl<T: Clone> SharedSlot<T> {
    pub(crate) fn get(&self) -> Option<T> {
        self.lock().clone()
    }
}
