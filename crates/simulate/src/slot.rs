//! A place for what a task brings.

use std::sync::{Arc, MutexGuard};
use underlay_sync::UnsimulatedMutex;

pub(crate) struct Slot<T>(Arc<UnsimulatedMutex<Option<T>>>);

impl<T> Default for Slot<T> {
    fn default() -> Slot<T> {
        Slot(Arc::default())
    }
}

impl<T> Clone for Slot<T> {
    fn clone(&self) -> Slot<T> {
        Slot(Arc::clone(&self.0))
    }
}

impl<T> Slot<T> {
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

impl<T: Clone> Slot<T> {
    pub(crate) fn get(&self) -> Option<T> {
        self.lock().clone()
    }
}
