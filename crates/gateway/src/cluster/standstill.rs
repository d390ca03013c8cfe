//! Whether anything still moves in a request that was sent on to another gateway.

use std::time::Duration;

use tokio::time::Instant;
use underlay_sync::Mutex;

/// See the module.
pub(super) struct StallDetector {
    limit: Duration,
    moved: Mutex<Instant>,
}

impl StallDetector {
    pub(super) fn new(limit: Duration) -> StallDetector {
        StallDetector { limit, moved: Mutex::new(Instant::now()) }
    }

    /// Something has gone one way or the other.
    pub(super) fn moves(&self) {
        *self.moved.lock() = Instant::now();
    }

    /// When it last did.
    pub(super) fn moved_at(&self) -> Instant {
        *self.moved.lock()
    }

    /// Returns once nothing has moved for as long as the limit.
    pub(super) async fn is_over(&self) {
        loop {
            let ends = *self.moved.lock() + self.limit;
            if Instant::now() >= ends {
                return;
            }
            tokio::time::sleep_until(ends).await;
        }
    }
}
