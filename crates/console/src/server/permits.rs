//! So many of something at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// How many are taken, and how many there are.
pub(crate) struct PermitPool {
    taken: Arc<AtomicUsize>,
    most: usize,
}

/// One of them, given back when it is dropped.
pub(crate) struct PoolPermit(Arc<AtomicUsize>);

impl PermitPool {
    pub(super) fn new(most: usize) -> PermitPool {
        PermitPool { taken: Arc::default(), most }
    }

    /// Nothing where there is none left.
    pub(super) fn take(&self) -> Option<PoolPermit> {
        // Made first: where there is none left it is dropped at once, which takes the count back.
        let place = PoolPermit(Arc::clone(&self.taken));
        (self.taken.fetch_add(1, Ordering::SeqCst) < self.most).then_some(place)
    }
}

impl Drop for PoolPermit {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}
