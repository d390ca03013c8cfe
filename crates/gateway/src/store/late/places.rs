//! A limit on names that clients' own writes go to, as long as the store may still carry one out.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use underlay_sync::planted::{PlantedBug, is_planted};
use underlay_sync::rate_limited_log::RateLimitedLog;

/// Places for names that clients' requests go to at once, of all buckets together: any of them may get no answer, and
/// is remembered then. A name that a flusher sends something to has its place among those that are pending, and needs
/// none here.
#[derive(Debug)]
pub(crate) struct LatePlaces {
    most: usize,
    count: AtomicUsize,
    refusals: RateLimitedLog,
}

/// The places of one store: the S3 endpoint, or the directory of a bucket. It may have as many as are free, so one that
/// answers nothing takes half of them at most, and others find some.
#[derive(Debug)]
pub(crate) struct StorePlaces {
    all: Arc<LatePlaces>,
    count: AtomicUsize,
}

/// One of them.
#[derive(Debug)]
pub(super) struct LatePlace {
    store: Arc<StorePlaces>,
}

impl LatePlaces {
    pub(crate) fn new(most: usize) -> Arc<LatePlaces> {
        Arc::new(LatePlaces { most, count: AtomicUsize::new(0), refusals: RateLimitedLog::default() })
    }

    /// Those that are in use.
    #[cfg(test)]
    pub(super) fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }
}

impl StorePlaces {
    pub(crate) fn new(all: Arc<LatePlaces>) -> Arc<StorePlaces> {
        Arc::new(StorePlaces { all, count: AtomicUsize::new(0) })
    }

    pub(super) fn try_take(self: &Arc<Self>) -> Option<LatePlace> {
        let (own, all) = self.add();
        let place = LatePlace { store: Arc::clone(self) };
        let free = self.all.most.saturating_sub(all);
        if own < free || is_planted(PlantedBug::EntriesUncounted) {
            return Some(place);
        }
        if let Some(count) = self.all.refusals.count() {
            tracing::warn!(
                "{count} writes were refused: their store may still carry out unanswered ones to {own} names, and all \
                 stores to {all}\n  \
                 what to do: see whether the stores answer; if they do, raise `memory` in [local]"
            );
        }
        None
    }

    /// Also where there is none: what may land has to be remembered.
    pub(super) fn take(self: &Arc<Self>) -> LatePlace {
        self.add();
        LatePlace { store: Arc::clone(self) }
    }

    /// Counts one more. Returns how many there were, of this store and of all.
    fn add(&self) -> (usize, usize) {
        let own = self.count.fetch_add(1, Ordering::Relaxed);
        (own, self.all.count.fetch_add(1, Ordering::Relaxed))
    }
}

impl Drop for LatePlace {
    fn drop(&mut self) {
        self.store.count.fetch_sub(1, Ordering::Relaxed);
        self.store.all.count.fetch_sub(1, Ordering::Relaxed);
    }
}
