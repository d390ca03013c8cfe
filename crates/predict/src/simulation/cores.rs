//! The modelled machine's cores: one queue, with one server per core.

use std::collections::VecDeque;

pub(super) struct CoreQueue {
    /// Absent if the number is unknown, and nothing waits.
    count: Option<u32>,
    busy: u32,
    waiting: VecDeque<usize>,
    used_ns: u128,
}

impl CoreQueue {
    pub(super) fn new(count: Option<u32>) -> CoreQueue {
        CoreQueue { count, busy: 0, waiting: VecDeque::new(), used_ns: 0 }
    }

    /// The operation continues now, or it waits.
    pub(super) fn enter(&mut self, operation: usize) -> Option<usize> {
        if self.count.is_some_and(|count| self.busy >= count) {
            self.waiting.push_back(operation);
            return None;
        }
        self.busy += 1;
        Some(operation)
    }

    /// A core is free: it goes to the operation that has waited longest.
    pub(super) fn leave(&mut self) -> Option<usize> {
        let next = self.waiting.pop_front();
        if next.is_none() {
            self.busy -= 1;
        }
        next
    }

    pub(super) fn used(&mut self, ns: u64) {
        self.used_ns += u128::from(ns);
    }

    pub(super) fn restart(&mut self) {
        self.used_ns = 0;
    }

    /// 0 to 1; absent if the number of cores is unknown.
    pub(super) fn utilisation(&self, span_ns: u64) -> Option<f64> {
        self.count.map(|count| (self.used_ns as f64 / span_ns as f64 / f64::from(count)).min(1.0))
    }
}
