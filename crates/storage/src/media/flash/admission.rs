//! What keeps the controller from answering: commands that it does not hold yet, and writes that it does not
//! acknowledge for a while.

use std::collections::VecDeque;

use crate::medium::ModelRequest;

/// How many commands the controller holds at once; the others wait in the host's queues, in order.
#[derive(Clone, Debug)]
pub(super) struct CommandSlots {
    free: u64,
    /// Each with the instant at which it was submitted.
    waiting: VecDeque<(ModelRequest, u64)>,
}

impl CommandSlots {
    pub(super) fn new(slots: u64) -> CommandSlots {
        CommandSlots { free: slots, waiting: VecDeque::new() }
    }

    /// Whether the controller takes a command at once; otherwise `release` hands it out later.
    pub(super) fn take(&mut self, request: ModelRequest, now_ns: u64) -> bool {
        let is_taken = self.free > 0;
        if is_taken {
            self.free -= 1;
        } else {
            self.waiting.push_back((request, now_ns));
        }
        is_taken
    }

    /// A command was answered: the one that takes its place, and when.
    pub(super) fn release(&mut self, now_ns: u64) -> Option<(ModelRequest, u64)> {
        match self.waiting.pop_front() {
            Some((request, submitted_ns)) => Some((request, submitted_ns.max(now_ns))),
            None => {
                self.free += 1;
                None
            }
        }
    }
}

/// After so many bytes, the controller acknowledges no write for so long: it closes a stripe, or saves its mapping.
#[derive(Clone, Copy, Debug)]
pub(super) struct WriteStall {
    span_ns: u64,
    every_bytes: u64,
    due_bytes: u64,
    since_ns: u64,
    until_ns: u64,
}

impl WriteStall {
    pub(super) fn new(span_ns: u64, every_bytes: u64) -> WriteStall {
        WriteStall { span_ns, every_bytes: every_bytes.max(1), due_bytes: 0, since_ns: 0, until_ns: 0 }
    }

    /// A write is in the buffer; when it is acknowledged.
    pub(super) fn acknowledge(&mut self, length_bytes: u64, now_ns: u64) -> u64 {
        self.due_bytes += length_bytes;
        if self.due_bytes >= self.every_bytes {
            self.due_bytes %= self.every_bytes;
            // The next stall begins when the one in progress is over.
            (self.since_ns, self.until_ns) = match now_ns < self.until_ns {
                true => (self.since_ns, self.until_ns + self.span_ns),
                false => (now_ns, now_ns + self.span_ns),
            };
        }
        if (self.since_ns..self.until_ns).contains(&now_ns) { self.until_ns } else { now_ns }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::medium::{ModelOperation, RequestId};

    fn request(id: u64) -> ModelRequest {
        let operation = ModelOperation::Read;
        ModelRequest { id: RequestId(id), operation, offset_bytes: 0, length_bytes: 4096, fua: false }
    }

    #[test]
    fn full_slots_take_commands_in_order() {
        let mut slots = CommandSlots::new(2);
        assert!(slots.take(request(1), 10) && slots.take(request(2), 10));
        assert!(!slots.take(request(3), 20) && !slots.take(request(4), 30));
        assert_eq!(slots.release(25), Some((request(3), 25)));
        assert_eq!(slots.release(28), Some((request(4), 30)), "not before it was submitted");
        assert_eq!((slots.release(40), slots.release(40)), (None, None));
        assert!(slots.take(request(5), 50) && slots.take(request(6), 50));
        assert!(!slots.take(request(7), 50));
    }

    #[test]
    fn stalled_writes_are_acknowledged_at_its_end() {
        let mut stall = WriteStall::new(100, 8192);
        assert_eq!(stall.acknowledge(4096, 10), 10);
        assert_eq!(stall.acknowledge(4096, 20), 120);
        assert_eq!(stall.acknowledge(4096, 50), 120);
        assert_eq!(stall.acknowledge(1024, 120), 120);
        // Two stalls one after the other.
        assert_eq!(stall.acknowledge(4096, 130), 230);
        assert_eq!(stall.acknowledge(8192, 140), 330);
        // One that came before, and is told of late.
        assert_eq!(stall.acknowledge(512, 125), 125);
    }
}
