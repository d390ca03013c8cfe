//! Waiting for the parts of one request.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Calls its end when every part has arrived, with what each of them brought, in the order of the parts.
pub struct Gather<T> {
    remaining: AtomicUsize,
    parts: Mutex<Vec<Option<T>>>,
    #[allow(clippy::type_complexity)]
    end: Mutex<Option<Box<dyn FnOnce(Vec<T>) + Send>>>,
}

impl<T: Send + 'static> Gather<T> {
    /// Without parts the end comes at once.
    pub fn new(parts: usize, end: impl FnOnce(Vec<T>) + Send + 'static) -> Arc<Gather<T>> {
        if parts == 0 {
            end(Vec::new());
            return Arc::new(Gather { remaining: 0.into(), parts: Mutex::default(), end: Mutex::new(None) });
        }
        Arc::new(Gather {
            remaining: parts.into(),
            parts: Mutex::new((0..parts).map(|_| None).collect()),
            end: Mutex::new(Some(Box::new(end))),
        })
    }

    /// Each part arrives once.
    pub fn arrive(&self, part: usize, brought: T) {
        self.parts.lock().unwrap_or_else(PoisonError::into_inner)[part] = Some(brought);
        if self.remaining.fetch_sub(1, Ordering::SeqCst) > 1 {
            return;
        }
        let parts = std::mem::take(&mut *self.parts.lock().unwrap_or_else(PoisonError::into_inner));
        let end = self.end.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(end) = end {
            end(parts.into_iter().flatten().collect());
        }
    }
}
