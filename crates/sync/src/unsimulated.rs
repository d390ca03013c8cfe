//! Mutual exclusion that no simulation takes over, and where this crate recovers what a panic has poisoned.

use std::sync::{self, LockResult, MutexGuard, PoisonError, TryLockError, TryLockResult};

/// The guard of a lock, whether or not a thread that held it has panicked.
///
/// Poison would turn one thread's panic into panics of all that come after it, also of those that answer requests and
/// end a process in good order. Here a panic has been printed where it happened, the thread's dependants learn
/// of its end, and what a lock guards is changed in steps that each leave it whole.
pub(crate) fn recovered<G>(locked: LockResult<G>) -> G {
    locked.unwrap_or_else(PoisonError::into_inner)
}

/// The same of an attempt; `None` where somebody else holds the lock.
pub(crate) fn attempted<G>(locked: TryLockResult<G>) -> Option<G> {
    match locked {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

/// For what stands outside of a simulated world: the books of the simulator itself. Everything else has
/// [`crate::Mutex`].
#[derive(Debug, Default)]
pub struct UnsimulatedMutex<T: ?Sized>(sync::Mutex<T>);

impl<T> UnsimulatedMutex<T> {
    pub const fn new(value: T) -> UnsimulatedMutex<T> {
        UnsimulatedMutex(sync::Mutex::new(value))
    }

    pub fn into_inner(self) -> T {
        recovered(self.0.into_inner())
    }
}

impl<T: ?Sized> UnsimulatedMutex<T> {
    pub fn lock(&self) -> MutexGuard<'_, T> {
        recovered(self.0.lock())
    }
}
