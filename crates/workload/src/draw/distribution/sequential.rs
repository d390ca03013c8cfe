//! The records one after the other, repeatedly. All threads share one sequence.

use std::sync::atomic::{AtomicU64, Ordering};

use super::KeyRange;

#[derive(Debug)]
pub struct Sequential {
    range: KeyRange,
    drawn: AtomicU64,
}

impl Sequential {
    pub fn new(range: KeyRange) -> Self {
        Sequential { range, drawn: AtomicU64::new(0) }
    }

    pub fn next(&self) -> u64 {
        self.range.first() + self.drawn.fetch_add(1, Ordering::Relaxed) % self.range.count()
    }
}
