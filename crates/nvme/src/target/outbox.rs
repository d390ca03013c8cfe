//! A connection's answers to its host, and the sending of them.
//!
//! Answers come from any thread: the connection's own while it handles commands, and those of the devices.
//! The connection's own thread holds sending back while it handles what it received at once, so that all
//! answers to that go out in one system call. Any other thread sends at once, as far as the socket takes it
//! without waiting; the connection's own thread waits for room if it is awake, else the target's housekeeper
//! does.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use underlay_sync::{Mutex, MutexGuard};

use crate::pdu::{DIGEST_BYTES, EncodedHeader};
use crate::stream::ByteStream;

/// A response capsule with its digest, behind a data digest.
const TAIL_BYTES: usize = DIGEST_BYTES + 24 + DIGEST_BYTES;
/// Entries that one call sends at most: with three pieces each, far under the kernel's limit of 1,024.
const ENTRIES_AT_ONCE: usize = 64;

/// Bytes that belong together: a PDU, or data and the response behind it.
pub(super) struct OutboxEntry {
    head: EncodedHeader,
    data: Vec<u8>,
    tail: [u8; TAIL_BYTES],
    tail_bytes: u8,
    /// The bytes that return to the connection's budget when this is sent.
    pub budget_bytes: usize,
}

impl OutboxEntry {
    pub(super) fn new(head: EncodedHeader, data: Vec<u8>, budget_bytes: usize) -> OutboxEntry {
        OutboxEntry { head, data, tail: [0; TAIL_BYTES], tail_bytes: 0, budget_bytes }
    }

    /// Adds bytes behind the data.
    pub(super) fn append(&mut self, bytes: &[u8]) {
        let start = usize::from(self.tail_bytes);
        self.tail[start..start + bytes.len()].copy_from_slice(bytes);
        self.tail_bytes += bytes.len() as u8;
    }

    pub(super) fn data(&self) -> &[u8] {
        &self.data
    }

    pub(super) fn into_data(self) -> Vec<u8> {
        self.data
    }

    fn pieces(&self) -> [&[u8]; 3] {
        [self.head.as_bytes(), &self.data, &self.tail[..usize::from(self.tail_bytes)]]
    }

    fn length(&self) -> usize {
        self.pieces().iter().map(|piece| piece.len()).sum()
    }
}

/// The next step for added answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AddOutcome {
    /// The connection is over.
    Not,
    ToSend,
    /// The owner will send it, or somebody is sending.
    SentByOthers,
}

/// The outcome for owed answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SendOutcome {
    All,
    /// There is no room at present.
    Left,
    /// Somebody else is sending, or the owner will.
    ByOthers,
    /// The connection is over.
    Dead,
}

#[derive(Default)]
struct TargetOutboxState {
    owed: VecDeque<OutboxEntry>,
    /// Bytes of the first entry that went out already.
    sent_of_first: usize,
    is_sending: bool,
    is_held_back: bool,
    is_dead: bool,
    sent_bytes: u64,
}

pub(super) struct TargetOutbox {
    state: Mutex<TargetOutboxState>,
}

impl TargetOutbox {
    pub(super) fn new() -> TargetOutbox {
        TargetOutbox { state: Mutex::default() }
    }

    fn state(&self) -> MutexGuard<'_, TargetOutboxState> {
        self.state.lock()
    }

    /// Adds what `make` makes. It is called under the outbox's lock, so that what it numbers goes out in order. On a
    /// connection that is over it is not called at all.
    pub(super) fn add(&self, make: impl FnOnce() -> OutboxEntry) -> AddOutcome {
        let mut state = self.state();
        if state.is_dead {
            return AddOutcome::Not;
        }
        let entry = make();
        state.owed.push_back(entry);
        if state.is_held_back || state.is_sending { AddOutcome::SentByOthers } else { AddOutcome::ToSend }
    }

    /// From now on, or no longer, only the owner sends.
    pub(super) fn hold_back(&self, is_held_back: bool) {
        self.state().is_held_back = is_held_back;
    }

    pub(super) fn owed_entries(&self) -> usize {
        self.state().owed.len()
    }

    pub(super) fn sent_bytes(&self) -> u64 {
        self.state().sent_bytes
    }

    /// Nothing is sent any more, and what is owed is given to `over`.
    pub(super) fn kill(&self, mut over: impl FnMut(OutboxEntry)) {
        let owed = {
            let mut state = self.state();
            state.is_dead = true;
            std::mem::take(&mut state.owed)
        };
        owed.into_iter().for_each(&mut over);
    }

    /// Sends what goes. Every entry that went is given to `over`. `by_owner` sends although it is held back.
    pub(super) fn send(
        &self,
        stream: &dyn ByteStream,
        by_owner: bool,
        mut over: impl FnMut(OutboxEntry),
    ) -> SendOutcome {
        let mut state = self.state();
        if state.is_dead {
            return SendOutcome::Dead;
        }
        // One sender at a time, or the bytes of two PDUs would mix. It looks at `owed` again before it
        // stops.
        if state.is_sending || (state.is_held_back && !by_owner) {
            return SendOutcome::ByOthers;
        }
        let mut batch = VecDeque::new();
        while !state.owed.is_empty() {
            // Taken out while the lock isn't held: sending a megabyte takes long.
            std::mem::swap(&mut state.owed, &mut batch);
            let mut sent_of_first = state.sent_of_first;
            state.is_sending = true;
            drop(state);
            let outcome = send_batch(stream, &mut batch, &mut sent_of_first, &mut over);
            state = self.state();
            state.is_sending = false;
            state.sent_of_first = sent_of_first;
            state.sent_bytes += outcome.sent_bytes;
            // Answers added meanwhile go behind the rest.
            while let Some(added) = state.owed.pop_front() {
                batch.push_back(added);
            }
            std::mem::swap(&mut state.owed, &mut batch);
            if state.is_dead {
                // Killed meanwhile: `kill` gave back what was in `owed` then; the batch that was out here is
                // ours to give back.
                let owed = std::mem::take(&mut state.owed);
                drop(state);
                owed.into_iter().for_each(&mut over);
                return SendOutcome::Dead;
            }
            match outcome.error {
                None => {}
                Some(error) if error.kind() == io::ErrorKind::WouldBlock => return SendOutcome::Left,
                Some(_) => {
                    drop(state);
                    self.kill(over);
                    return SendOutcome::Dead;
                }
            }
        }
        SendOutcome::All
    }
}

struct OutboxProgress {
    sent_bytes: u64,
    error: Option<io::Error>,
}

/// Sends until nothing is left or nothing goes.
fn send_batch(
    stream: &dyn ByteStream,
    batch: &mut VecDeque<OutboxEntry>,
    sent_of_first: &mut usize,
    over: &mut impl FnMut(OutboxEntry),
) -> OutboxProgress {
    let mut sent_bytes = 0;
    while !batch.is_empty() {
        let mut pieces = [IoSlice::new(&[]); ENTRIES_AT_ONCE * 3];
        let mut count = 0;
        let mut skip = *sent_of_first;
        for piece in batch.iter().take(ENTRIES_AT_ONCE).flat_map(OutboxEntry::pieces) {
            let skipped = skip.min(piece.len());
            skip -= skipped;
            if skipped < piece.len() {
                pieces[count] = IoSlice::new(&piece[skipped..]);
                count += 1;
            }
        }
        let sent = match stream.send(&pieces[..count]) {
            Ok(sent) => sent,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return OutboxProgress { sent_bytes, error: Some(error) },
        };
        sent_bytes += sent as u64;
        *sent_of_first += sent;
        while let Some(length) = batch.front().map(OutboxEntry::length)
            && length <= *sent_of_first
        {
            *sent_of_first -= length;
            batch.pop_front().into_iter().for_each(&mut *over);
        }
    }
    OutboxProgress { sent_bytes, error: None }
}
