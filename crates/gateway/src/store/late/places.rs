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

/// One of them.
#[derive(Debug)]
pub(super) struct LatePlace {
    places: Arc<LatePlaces>,
}

impl LatePlaces {
    pub(crate) fn new(most: usize) -> Arc<LatePlaces> {
        Arc::new(LatePlaces { most, count: AtomicUsize::new(0), refusals: RateLimitedLog::default() })
    }

    pub(super) fn try_take(self: &Arc<Self>) -> Option<LatePlace> {
        let place = self.take();
        if self.count() <= self.most || is_planted(PlantedBug::EntriesUncounted) {
            return Some(place);
        }
        if let Some(count) = self.refusals.count() {
            tracing::warn!(
                "{count} writes were refused: stores may still carry out unanswered ones to {} names\n  \
                 what to do: see whether the stores answer; if they do, raise `memory` in [local]",
                self.most
            );
        }
        None
    }

    /// Also where there is none: what may land has to be remembered.
    pub(super) fn take(self: &Arc<Self>) -> LatePlace {
        self.count.fetch_add(1, Ordering::Relaxed);
        LatePlace { places: Arc::clone(self) }
    }

    /// Those that are in use.
    pub(super) fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }
}

impl Drop for LatePlace {
    fn drop(&mut self) {
        self.places.count.fetch_sub(1, Ordering::Relaxed);
    }
}
