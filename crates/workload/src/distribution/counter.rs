//! A counter that threads share: each number is given out once.

use std::sync::atomic::{AtomicU64, Ordering};

/// Gives out `first .. end`, each number to one caller only.
#[derive(Debug)]
pub struct Counter {
    next: AtomicU64,
    end: u64,
}

impl Counter {
    /// The numbers from `first` up to `end`, which is not given out.
    pub fn new(first: u64, end: u64) -> Self {
        Counter { next: AtomicU64::new(first), end }
    }

    /// The next number, or `None` when all were given out.
    pub fn take(&self) -> Option<u64> {
        // Callers that come after the end leave the counter as it is, so that it cannot wrap.
        if self.next.load(Ordering::Relaxed) >= self.end {
            return None;
        }
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        (number < self.end).then_some(number)
    }

    /// How many are left to give out.
    pub fn remaining(&self) -> u64 {
        self.end.saturating_sub(self.next.load(Ordering::Relaxed))
    }
}
