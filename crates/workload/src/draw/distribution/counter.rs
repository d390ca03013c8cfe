//! A counter that threads share: each number is handed out once.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

/// Hands out `first .. end`, each number to one caller only.
#[derive(Debug)]
pub struct CounterDistribution {
    next: AtomicU64,
    end: u64,
}

impl CounterDistribution {
    /// The numbers from `first` up to `end`, which is excluded.
    pub fn new(first: u64, end: u64) -> Self {
        CounterDistribution { next: AtomicU64::new(first), end }
    }

    /// The next number, or `None` when all were handed out.
    pub fn take(&self) -> Option<u64> {
        self.take_some(1).next()
    }

    /// The next `most` numbers; fewer at the end, and none when all were handed out.
    pub fn take_some(&self, most: u64) -> Range<u64> {
        let mut first = self.next.load(Ordering::Relaxed);
        // Callers after the end leave the counter unchanged, so that it can't wrap.
        while first < self.end {
            let end = first + most.min(self.end - first);
            match self.next.compare_exchange_weak(first, end, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return first..end,
                Err(others) => first = others,
            }
        }
        self.end..self.end
    }

    /// How many are left.
    pub fn remaining(&self) -> u64 {
        self.end.saturating_sub(self.next.load(Ordering::Relaxed))
    }
}
