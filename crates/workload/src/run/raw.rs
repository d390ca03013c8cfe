//! Every operation of a run, one by one, to recompute its metrics.
//!
//! Threads fill their own buffers and pass them on when they are full. A slow reader holds up the threads, which shows
//! in their lateness: nothing is left out, and memory does not grow.

use std::sync::mpsc::{self, Receiver, SyncSender};

use crate::client::{ClientError, OperationOutcome};
use crate::mix::OperationKind;

/// Operations that all threads together keep before they pass them on.
const BUFFERED: usize = 1 << 17;
/// Buffers that wait for the reader.
const WAITING: usize = 64;

/// How an operation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RawAnswer {
    Found,
    Missing,
    Throttled,
    Error,
    /// Its end is when the client stopped waiting.
    Timeout,
    /// It was due and never sent: its start and its end are the end of the measured time.
    Unstarted,
}

impl RawAnswer {
    pub const ALL: [RawAnswer; 6] = [
        RawAnswer::Found,
        RawAnswer::Missing,
        RawAnswer::Throttled,
        RawAnswer::Error,
        RawAnswer::Timeout,
        RawAnswer::Unstarted,
    ];

    pub fn name(self) -> &'static str {
        match self {
            RawAnswer::Found => "found",
            RawAnswer::Missing => "missing",
            RawAnswer::Throttled => "throttled",
            RawAnswer::Error => "error",
            RawAnswer::Timeout => "timeout",
            RawAnswer::Unstarted => "unstarted",
        }
    }

    pub(crate) fn from_answer(answer: &Result<OperationOutcome, ClientError>) -> Self {
        match answer {
            Ok(OperationOutcome::Found) => RawAnswer::Found,
            Ok(OperationOutcome::Missing) => RawAnswer::Missing,
            Ok(OperationOutcome::Throttled) => RawAnswer::Throttled,
            Err(ClientError::Timeout(_)) => RawAnswer::Timeout,
            Err(_) => RawAnswer::Error,
        }
    }

    /// Whether it has a latency that counts.
    pub fn is_timed(self) -> bool {
        !matches!(self, RawAnswer::Throttled | RawAnswer::Error)
    }
}

/// One operation. Times are modelled nanoseconds from the start of the measured time, below zero before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RawOperation {
    pub kind: OperationKind,
    pub thread: u32,
    /// When it was due: its start in a closed loop.
    pub intended_ns: i64,
    pub start_ns: i64,
    pub end_ns: i64,
    /// For a read-modify-write whose read found its record: when the read ended and the update was sent.
    pub read_end_ns: Option<i64>,
    pub answer: RawAnswer,
}

/// The destination of operations from a run's threads.
#[derive(Debug)]
pub struct RawLog {
    buffers: SyncSender<Vec<RawOperation>>,
}

/// Returns the operations, a buffer at a time, until the run is over.
#[derive(Debug)]
pub struct RawOperations {
    buffers: Receiver<Vec<RawOperation>>,
}

impl RawLog {
    /// A log and its other end.
    pub fn new() -> (RawLog, RawOperations) {
        let (sender, receiver) = mpsc::sync_channel(WAITING);
        (RawLog { buffers: sender }, RawOperations { buffers: receiver })
    }

    /// One thread's part, of `threads` in all.
    pub(crate) fn thread(&self, thread: u32, threads: u32) -> RawThread {
        let most = (BUFFERED / threads.max(1) as usize).max(64);
        RawThread { thread, most, operations: Vec::with_capacity(most), buffers: self.buffers.clone() }
    }
}

impl Iterator for RawOperations {
    type Item = Vec<RawOperation>;

    fn next(&mut self) -> Option<Vec<RawOperation>> {
        self.buffers.recv().ok()
    }
}

/// One thread's buffer.
#[derive(Debug)]
pub(crate) struct RawThread {
    thread: u32,
    most: usize,
    operations: Vec<RawOperation>,
    buffers: SyncSender<Vec<RawOperation>>,
}

impl RawThread {
    /// Stores an operation. True when that took time, because a buffer was passed on.
    pub(crate) fn push(
        &mut self,
        kind: OperationKind,
        [intended_ns, start_ns, end_ns]: [i64; 3],
        read_end_ns: Option<i64>,
        answer: RawAnswer,
    ) -> bool {
        self.operations.push(RawOperation {
            kind,
            thread: self.thread,
            intended_ns,
            start_ns,
            end_ns,
            read_end_ns,
            answer,
        });
        let is_full = self.operations.len() >= self.most;
        if is_full {
            self.flush();
        }
        is_full
    }

    /// Passes on the buffered operations; without a reader they are dropped.
    pub(crate) fn flush(&mut self) {
        if !self.operations.is_empty() {
            let full = std::mem::replace(&mut self.operations, Vec::with_capacity(self.most));
            let _ = self.buffers.send(full);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_arrive_in_order_within_each_thread() {
        let (log, operations) = RawLog::new();
        let threads: Vec<_> = (0..4)
            .map(|thread| {
                let mut raw = log.thread(thread, 100_000);
                std::thread::spawn(move || {
                    for index in 0..1_000 {
                        let passed_on = raw.push(OperationKind::Read, [index; 3], None, RawAnswer::Found);
                        assert_eq!(passed_on, index % 64 == 63);
                    }
                    raw.flush();
                })
            })
            .collect();
        drop(log);
        let mut seen: [Vec<i64>; 4] = Default::default();
        for one in operations.flatten() {
            seen[one.thread as usize].push(one.end_ns);
        }
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        for ends in seen {
            assert_eq!(ends, (0..1_000).collect::<Vec<_>>());
        }
    }

    #[test]
    fn lost_reader_blocks_nobody() {
        let (log, operations) = RawLog::new();
        let mut raw = log.thread(0, u32::MAX);
        drop(operations);
        for _ in 0..100_000 {
            raw.push(OperationKind::Scan, [0; 3], None, RawAnswer::Error);
        }
    }
}
