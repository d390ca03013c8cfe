//! A command on its way: what is needed to send it, on one connection or, when that is lost, on another.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use underlay_sync::Instant;
use underlay_sync::{Receiver, RecvTimeoutError, channel};

use crate::command::{CompletionEntry, NvmeCommand, SglDescriptor, admin};

/// Part of a buffer that several commands may share.
#[derive(Clone, Debug)]
pub(super) struct SharedBuffer {
    bytes: Arc<Vec<u8>>,
    range: Range<usize>,
}

impl SharedBuffer {
    pub(super) fn new(bytes: Vec<u8>) -> SharedBuffer {
        let range = 0..bytes.len();
        SharedBuffer { bytes: Arc::new(bytes), range }
    }

    /// A part of this part; `None` where there is none.
    pub(super) fn part(&self, offset: usize, length: usize) -> Option<SharedBuffer> {
        let start = self.range.start.checked_add(offset)?;
        let end = start.checked_add(length).filter(|end| *end <= self.range.end)?;
        Some(SharedBuffer { bytes: Arc::clone(&self.bytes), range: start..end })
    }

    /// As [`SharedBuffer::part`], copied where it would keep a much larger buffer alive.
    pub(super) fn remainder(&self, offset: usize, length: usize) -> Option<SharedBuffer> {
        let part = self.part(offset, length)?;
        let is_small = part.len() < part.bytes.len() / 2;
        Some(if is_small { SharedBuffer::new(part.as_bytes().to_vec()) } else { part })
    }

    #[cfg(test)]
    pub(super) fn buffer_bytes(&self) -> usize {
        self.bytes.len()
    }

    pub(super) fn as_bytes(&self) -> &[u8] {
        &self.bytes[self.range.clone()]
    }

    pub(super) fn len(&self) -> usize {
        self.range.len()
    }
}

/// The data of a command.
#[derive(Debug)]
pub(super) enum CommandPayload {
    None,
    Send(SharedBuffer),
    /// To be filled.
    Receive(Vec<u8>),
}

/// A command's outcome.
#[derive(Debug)]
pub(super) struct CommandAnswer {
    pub completion: CompletionEntry,
    /// The buffer of [`CommandPayload::Receive`], and how much of it was filled.
    pub received: Vec<u8>,
    pub received_bytes: usize,
}

/// No answer came, and none will.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum LostAnswer {
    /// Its connection was lost; why.
    Connection(String),
    /// Nobody waits for the controller any more.
    Gone,
}

pub(super) type AnswerCallback = Box<dyn FnOnce(Result<CommandAnswer, LostAnswer>) + Send>;

pub(super) struct CommandExchange {
    /// The command identifier and the data pointer are filled in by the queue that sends it.
    pub command: NvmeCommand,
    pub payload: CommandPayload,
    /// When its connection is lost it is sent on another one. Doing it twice does no harm.
    pub resend: bool,
    /// When it was first given to a queue.
    pub began: Instant,
    pub done: AnswerCallback,
}

impl CommandExchange {
    pub(super) fn new(
        command: NvmeCommand,
        payload: CommandPayload,
        resend: bool,
        done: AnswerCallback,
    ) -> CommandExchange {
        CommandExchange { command, payload, resend, began: Instant::now(), done }
    }

    /// Tells the target that this host is there. Not sent again: the next connection sends its own.
    pub(super) fn keep_alive(done: AnswerCallback) -> CommandExchange {
        CommandExchange::new(
            NvmeCommand::new(admin::KEEP_ALIVE, 0, 0, SglDescriptor::empty()),
            CommandPayload::None,
            false,
            done,
        )
    }

    /// One whose answer is waited for.
    pub(super) fn awaited(command: NvmeCommand, payload: CommandPayload) -> (CommandExchange, PendingAnswer) {
        let (sender, receiver) = channel();
        let done = Box::new(move |outcome| {
            let _ = sender.send(outcome);
        });
        (CommandExchange::new(command, payload, false, done), PendingAnswer(receiver))
    }
}

pub(super) struct PendingAnswer(Receiver<Result<CommandAnswer, LostAnswer>>);

impl PendingAnswer {
    /// The answer; `None` when there is none in time. Who has had it waits in vain.
    pub(super) fn wait(&self, limit: Duration) -> Option<Result<CommandAnswer, LostAnswer>> {
        match self.0.recv_timeout(limit) {
            Ok(outcome) => Some(outcome),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => Some(Err(LostAnswer::Gone)),
        }
    }
}
