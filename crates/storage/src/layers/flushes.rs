//! Shared flushes: one is in flight at a time, and those who come meanwhile are answered by the next one.

use crate::device::{CompletionCallback, DeviceError};

#[derive(Default)]
pub(super) struct FlushQueue {
    waiting: Vec<CompletionCallback>,
    under_way: bool,
}

impl FlushQueue {
    /// Whether the caller must begin one.
    pub(super) fn join(&mut self, done: CompletionCallback) -> bool {
        self.waiting.push(done);
        !std::mem::replace(&mut self.under_way, true)
    }

    /// The waiters that the flush that begins now will answer.
    pub(super) fn begin(&mut self) -> Vec<CompletionCallback> {
        std::mem::take(&mut self.waiting)
    }

    /// The one in flight is over. Whether the caller must begin another.
    pub(super) fn end(&mut self) -> bool {
        self.under_way = !self.waiting.is_empty();
        self.under_way
    }

    pub(super) fn is_under_way(&self) -> bool {
        self.under_way
    }
}

pub(super) fn answer(waiters: Vec<CompletionCallback>, result: &Result<(), DeviceError>) {
    for done in waiters {
        done(result.clone().map(|()| Vec::new()));
    }
}
