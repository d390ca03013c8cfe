//! The background work of writes: read and written later, a few requests at a time, and in long sequences.

use underlay_storage::medium::ModelOperation;

use crate::demand::BackgroundDemand;

/// Concurrent background reads: two compactions, each of which reads ahead.
const READS_AT_ONCE: u32 = 2;
/// Concurrent writes: the kernel writes back accumulated data without waiting for each request.
const WRITES_AT_ONCE: u32 = 16;
/// The number of due requests above which writers have to wait.
const MAX_DUE_REQUESTS: f64 = 64.0;
/// Consecutive requests on the device before the next sequence.
const STRETCH: u32 = 16;

pub(super) struct BackgroundBacklog {
    each: BackgroundDemand,
    reads: BacklogStream,
    writes: BacklogStream,
    flushes_due: f64,
    is_flushing: bool,
    log_bytes: u64,
}

/// One direction of the work.
#[derive(Clone, Copy, Debug, Default)]
struct BacklogStream {
    due_bytes: f64,
    request_bytes: f64,
    under_way: u32,
    at_once: u32,
    /// Where the sequence continues, in which volume, and how many of its requests are left.
    volume: usize,
    next_bytes: u64,
    left: u32,
}

/// A request of background work.
pub(super) struct BackgroundRequest {
    pub operation: ModelOperation,
    pub length_bytes: u64,
    /// The volume and the position in it that continue from the last request; separate positions when absent.
    pub continues: Option<(usize, u64)>,
}

impl BacklogStream {
    fn new(request_bytes: f64, at_once: u32) -> BacklogStream {
        // No request is smaller than a block, or larger than a kernel's limit.
        let request_bytes = request_bytes.clamp(4096.0, 4_194_304.0);
        BacklogStream { request_bytes, at_once, ..BacklogStream::default() }
    }

    fn next(&mut self, operation: ModelOperation) -> Option<BackgroundRequest> {
        if self.due_bytes < self.request_bytes || self.under_way >= self.at_once {
            return None;
        }
        self.due_bytes -= self.request_bytes;
        self.under_way += 1;
        let length_bytes = self.request_bytes as u64;
        let continues = (self.left > 0).then_some((self.volume, self.next_bytes));
        if self.left > 0 {
            self.left -= 1;
            self.next_bytes = self.next_bytes.saturating_add(length_bytes);
        }
        Some(BackgroundRequest { operation, length_bytes, continues })
    }

    fn is_too_long(&self) -> bool {
        self.due_bytes > MAX_DUE_REQUESTS * self.request_bytes
    }
}

impl BackgroundBacklog {
    pub(super) fn new(each: &BackgroundDemand) -> BackgroundBacklog {
        BackgroundBacklog {
            each: *each,
            reads: BacklogStream::new(each.read_request_bytes, READS_AT_ONCE),
            writes: BacklogStream::new(each.write_request_bytes, WRITES_AT_ONCE),
            flushes_due: 0.0,
            is_flushing: false,
            log_bytes: 0,
        }
    }

    /// Adds one operation's background work.
    pub(super) fn add(&mut self) {
        self.reads.due_bytes += self.each.read_bytes;
        self.writes.due_bytes += self.each.write_bytes;
        // More than one at a time has no use.
        self.flushes_due = (self.flushes_due + self.each.flushes).min(2.0);
    }

    /// Whether writers have to wait.
    pub(super) fn is_too_long(&self) -> bool {
        self.reads.is_too_long() || self.writes.is_too_long()
    }

    pub(super) fn next(&mut self) -> Option<BackgroundRequest> {
        let work = self.reads.next(ModelOperation::Read).or_else(|| self.writes.next(ModelOperation::Write));
        if work.is_some() {
            return work;
        }
        if self.is_flushing || self.flushes_due < 1.0 {
            return None;
        }
        self.flushes_due -= 1.0;
        self.is_flushing = true;
        Some(BackgroundRequest { operation: ModelOperation::Flush, length_bytes: 0, continues: Some((0, 0)) })
    }

    /// Where a sequence begins. All of it is in one volume, as a file is in one directory.
    pub(super) fn began_at(&mut self, operation: ModelOperation, volume: usize, offset_bytes: u64) {
        let stream = if operation == ModelOperation::Read { &mut self.reads } else { &mut self.writes };
        stream.volume = volume;
        stream.next_bytes = offset_bytes.saturating_add(stream.request_bytes as u64);
        stream.left = STRETCH;
    }

    pub(super) fn done(&mut self, operation: ModelOperation) {
        match operation {
            ModelOperation::Read => self.reads.under_way -= 1,
            ModelOperation::Write => self.writes.under_way -= 1,
            _ => self.is_flushing = false,
        }
    }

    /// Where the log continues.
    pub(super) fn log_offset(&mut self, bytes: u64) -> u64 {
        self.log_bytes = self.log_bytes.wrapping_add(bytes);
        self.log_bytes
    }
}
