//! How a thread ended, for its owner: what a panic stops would be missed by nobody otherwise, and figures would stand
//! still.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Mutex, PoisonError};

/// A thread's panic, which its owner goes on with. Its clones are one.
#[derive(Clone, Debug, Default)]
pub struct ThreadFate {
    panic: Arc<Mutex<Option<Box<dyn Any + Send>>>>,
}

impl ThreadFate {
    /// Does what the thread is for. A panic has been printed, and is kept for the owner.
    pub fn watch(&self, work: impl FnOnce()) {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(work)) {
            *self.panic.lock().unwrap_or_else(PoisonError::into_inner) = Some(panic);
        }
    }

    /// # Panics
    /// With what the thread panicked with, once: so the process ends as it does by a panic of its main thread.
    pub fn check(&self) {
        let panic = self.panic.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(panic) = panic.filter(|_| !std::thread::panicking()) {
            resume_unwind(panic);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owner_rethrows_thread_panic_once() {
        let fate = ThreadFate::default();
        fate.watch(|| {});
        fate.check();
        let of_thread = fate.clone();
        std::thread::spawn(move || of_thread.watch(|| panic!("a bug"))).join().unwrap();
        let panic = catch_unwind(AssertUnwindSafe(|| fate.check())).unwrap_err();
        assert_eq!(panic.downcast_ref::<&str>(), Some(&"a bug"));
        fate.check();
    }
}
