//! So many of something at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// How many are taken, and how many there are.
pub(crate) struct Places {
    taken: Arc<AtomicUsize>,
    most: usize,
}

/// One of them, given back when it is dropped.
pub(crate) struct Place(Arc<AtomicUsize>);

impl Places {
    pub(super) fn of(most: usize) -> Places {
        Places { taken: Arc::default(), most }
    }

    /// Nothing where there is none left.
    pub(super) fn take(&self) -> Option<Place> {
        // Made first: where there is none left it is dropped at once, which takes the count back.
        let place = Place(Arc::clone(&self.taken));
        (self.taken.fetch_add(1, Ordering::SeqCst) < self.most).then_some(place)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}
