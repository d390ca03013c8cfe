//! One writer of a name at a time, where a condition is checked before the write and not by it.

use std::collections::HashMap;
use std::sync::Arc;

use tokio::sync::OwnedMutexGuard;
use underlay_sync::Mutex;

type NameLockTable = Mutex<HashMap<String, Arc<tokio::sync::Mutex<()>>>>;

/// The names that somebody is writing to.
#[derive(Clone, Default)]
pub(super) struct NameLocks(Arc<NameLockTable>);

/// While it lives, nobody else of this process writes to the name.
pub(crate) struct NameLock {
    turns: NameLocks,
    key: String,
    guard: Option<OwnedMutexGuard<()>>,
}

impl NameLocks {
    pub(super) async fn take(&self, key: &str) -> NameLock {
        let lock = Arc::clone(self.0.lock().entry(key.to_owned()).or_default());
        // Made before the wait: one who gives up waiting cleans up as well.
        let mut turn = NameLock { turns: self.clone(), key: key.to_owned(), guard: None };
        turn.guard = Some(lock.lock_owned().await);
        turn
    }
}

impl Drop for NameLock {
    fn drop(&mut self) {
        let mut locks = self.turns.0.lock();
        self.guard = None;
        // Each waiter holds a reference, too.
        if locks.get(&self.key).is_some_and(|lock| Arc::strong_count(lock) == 1) {
            locks.remove(&self.key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn name_lock_has_a_single_holder_and_leaves_nothing() {
        let turns = NameLocks::default();
        let first = turns.take("a").await;
        drop(turns.take("b").await);
        let mut second = Box::pin(turns.take("a"));
        assert!(futures_util::poll!(&mut second).is_pending());
        let mut gives_up = Box::pin(turns.take("a"));
        assert!(futures_util::poll!(&mut gives_up).is_pending());
        drop(first);
        drop(second.await);
        drop(gives_up);
        assert!(turns.0.lock().is_empty());
    }
}
