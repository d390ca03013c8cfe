//! One queue of a controller, which is one connection: what its thread and the devices' threads share.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use underlay_sync::Instant;

use crate::command::CompletionEntry;
use crate::pdu::{DataTransfer, Pdu, PduFraming};
use crate::status::NvmeStatus;
use crate::stream::ByteStream;
use crate::target::TargetShared;
use crate::target::buffers::BufferPool;
use crate::target::counters::{ConnectionSnapshot, QueueSnapshot, count};
use crate::target::outbox::{AddOutcome, OutboxEntry, SendOutcome, TargetOutbox};
use crate::target::subsystems::controller::TargetController;

/// Buffers that an idle connection may keep.
const KEPT_BYTES: usize = 4 << 20;
/// Command identifiers are 16 bits.
const CID_WORDS: usize = 65_536 / 64;
/// Data of commands under way until the host is admitted: room for one authentication message.
pub(in crate::target) const STRANGER_BUDGET_BYTES: usize = 64 << 10;
/// The submission queue's head when there is no flow control (base 3.3.3.2).
const NO_HEAD: u16 = 0xffff;

/// The terms agreed on when the connection began.
pub(in crate::target) struct ConnectionTerms {
    pub framing: PduFraming,
}

/// The terms agreed on when the queue was connected.
pub(in crate::target) struct QueueAssociation {
    pub controller: Arc<TargetController>,
    pub queue_id: u16,
    /// Entries of the submission queue.
    pub entries: u32,
    pub has_flow_control: bool,
}

pub(in crate::target) struct TargetQueue {
    pub number: u64,
    pub stream: Arc<dyn ByteStream>,
    pub buffers: BufferPool,
    pub began: Instant,
    outbox: TargetOutbox,
    shared: Weak<TargetShared>,
    agreed: OnceLock<ConnectionTerms>,
    association: OnceLock<QueueAssociation>,
    /// A bit for each command identifier that is in use.
    cids: Box<[AtomicU64; CID_WORDS]>,
    /// Commands that were received and not answered.
    open: AtomicUsize,
    /// Commands that a device has.
    at_device: AtomicUsize,
    sq_head: AtomicU16,
    /// Bytes of data of commands under way, answers that wait to be sent among them.
    budget_used_bytes: AtomicUsize,
    budget_bytes: usize,
    /// The queue's thread waits for some of the budget to come back.
    wants_budget: AtomicBool,
    /// The host is connected, and is who it says.
    pub is_admitted: AtomicBool,
    is_killed: AtomicBool,
    commands: AtomicU64,
    errors: AtomicU64,
    pub received_bytes: AtomicU64,
}

impl TargetQueue {
    pub(in crate::target) fn new(
        number: u64,
        stream: Arc<dyn ByteStream>,
        shared: Weak<TargetShared>,
        budget_bytes: usize,
    ) -> TargetQueue {
        TargetQueue {
            number,
            stream,
            buffers: BufferPool::new(KEPT_BYTES),
            began: Instant::now(),
            outbox: TargetOutbox::new(),
            shared,
            agreed: OnceLock::new(),
            association: OnceLock::new(),
            cids: Box::new([const { AtomicU64::new(0) }; CID_WORDS]),
            open: AtomicUsize::new(0),
            at_device: AtomicUsize::new(0),
            sq_head: AtomicU16::new(0),
            budget_used_bytes: AtomicUsize::new(0),
            budget_bytes,
            wants_budget: AtomicBool::new(false),
            is_admitted: AtomicBool::new(false),
            is_killed: AtomicBool::new(false),
            commands: AtomicU64::new(0),
            errors: AtomicU64::new(0),
            received_bytes: AtomicU64::new(0),
        }
    }

    pub(in crate::target) fn shared(&self) -> Option<Arc<TargetShared>> {
        self.shared.upgrade()
    }

    /// Whether it is the first time.
    pub(in crate::target) fn agree(&self, agreed: ConnectionTerms) -> bool {
        self.agreed.set(agreed).is_ok()
    }

    fn framing(&self) -> PduFraming {
        self.agreed.get().map_or_else(PduFraming::default, |agreed| agreed.framing)
    }

    /// Whether it is the first time.
    pub(in crate::target) fn associate(&self, association: QueueAssociation) -> bool {
        self.association.set(association).is_ok()
    }

    pub(in crate::target) fn association(&self) -> Option<&QueueAssociation> {
        self.association.get()
    }

    pub(in crate::target) fn snapshot(&self) -> ConnectionSnapshot {
        let queue = self.association().map(|association| QueueSnapshot {
            subsystem_nqn: association.controller.subsystem_nqn().to_owned(),
            host_nqn: association.controller.host_nqn.clone(),
            controller_id: association.controller.id,
            queue_id: association.queue_id,
        });
        ConnectionSnapshot {
            peer: self.peer(),
            queue,
            commands: self.commands.load(Ordering::Relaxed),
            errors: self.errors.load(Ordering::Relaxed),
            received_bytes: self.received_bytes.load(Ordering::Relaxed),
            sent_bytes: self.outbox.sent_bytes(),
        }
    }

    /// Its host has not said, or not proven, who it is.
    pub(in crate::target) fn is_stranger(&self) -> bool {
        !self.is_admitted.load(Ordering::Relaxed) && !self.is_killed.load(Ordering::SeqCst)
    }

    pub(in crate::target) fn peer(&self) -> Option<SocketAddr> {
        self.stream.addresses().map(|(_, peer)| peer)
    }

    /// For the log.
    pub(in crate::target) fn peer_name(&self) -> Option<String> {
        self.peer().map(|peer| peer.to_string())
    }

    /// A command was received. Whether its identifier is free and the queue has a place for it.
    pub(in crate::target) fn open(&self, cid: u16) -> CommandAdmission {
        count(&self.commands, 1);
        let entries = self.association().map_or(1, |association| association.entries as usize);
        // Only the connection's thread opens commands, so nobody adds one between this look and the count.
        if self.open.load(Ordering::SeqCst) >= entries {
            return CommandAdmission::Overflow;
        }
        let (word, bit) = place_of(cid);
        if self.cids[word].fetch_or(bit, Ordering::SeqCst) & bit != 0 {
            return CommandAdmission::Conflict;
        }
        self.open.fetch_add(1, Ordering::SeqCst);
        CommandAdmission::Yes
    }

    /// Takes from the connection's budget, unless others have it. One command always gets what it needs.
    pub(in crate::target) fn reserve(&self, bytes: usize) -> bool {
        // Only the connection's thread reserves: between the look and the addition the budget can only
        // grow.
        let take = || {
            let used = self.budget_used_bytes.load(Ordering::SeqCst);
            let budget_bytes = match self.is_admitted.load(Ordering::Relaxed) {
                true => self.budget_bytes,
                false => self.budget_bytes.min(STRANGER_BUDGET_BYTES),
            };
            let has_room = used == 0 || used + bytes <= budget_bytes;
            if has_room {
                self.take_anyway(bytes);
            }
            has_room
        };
        if take() {
            return true;
        }
        // Asked for first and looked at again, so that what comes back in between isn't missed.
        self.wants_budget.store(true, Ordering::SeqCst);
        take()
    }

    /// For what is here already.
    pub(in crate::target) fn take_anyway(&self, bytes: usize) {
        self.budget_used_bytes.fetch_add(bytes, Ordering::SeqCst);
    }

    pub(in crate::target) fn give_back(&self, bytes: usize) {
        if bytes == 0 {
            return;
        }
        self.budget_used_bytes.fetch_sub(bytes, Ordering::SeqCst);
        // The plain load spares the common case, in which nobody waits, the exchange.
        // After the subtraction for every core: else this one could see an old `false`, and the waiter an old sum.
        if self.wants_budget.load(Ordering::SeqCst) && self.wants_budget.swap(false, Ordering::SeqCst) {
            self.stream.wake();
        }
    }

    pub(in crate::target) fn is_killed(&self) -> bool {
        self.is_killed.load(Ordering::SeqCst)
    }

    /// Whether a device has, or may yet get, a command of it.
    pub(in crate::target) fn may_reach_device(&self) -> bool {
        // In this order: what is counted after the end reaches none.
        !self.is_killed() || self.commands_at_device() > 0
    }

    pub(in crate::target) fn commands_at_device(&self) -> usize {
        self.at_device.load(Ordering::SeqCst)
    }

    /// Sends a PDU that answers no command, a demand for data for one.
    pub(in crate::target) fn send_pdu(&self, pdu: &Pdu, data: Vec<u8>) {
        let framing = self.framing();
        self.outbox.add(|| {
            let mut entry = OutboxEntry::new(framing.head(pdu, data.len()), data, 0);
            append_digest(&mut entry, framing, pdu);
            entry
        });
    }

    fn answer(&self, cid: u16, status: NvmeStatus, result: u64, data: Option<Vec<u8>>, budget_bytes: usize) {
        if !status.is_success() {
            count(&self.errors, 1);
        }
        let framing = self.framing();
        let association = self.association();
        let entries = association.map_or(1, |association| association.entries);
        let has_flow_control = association.is_none_or(|association| association.has_flow_control);
        let completion = CompletionEntry {
            result,
            sq_head: NO_HEAD,
            sq_id: association.map_or(0, |association| association.queue_id),
            cid,
            status,
        };
        // The capsule can be left out where the host doesn't need it to know the queue's head (TCP 3.3.2.2).
        let is_success_in_data = !has_flow_control && status.is_success() && result == 0;
        let data_pdu = data.as_ref().filter(|data| !data.is_empty()).map(|data| {
            Pdu::C2hData(DataTransfer {
                cid,
                transfer_tag: 0,
                offset_bytes: 0,
                length_bytes: data.len() as u32,
                is_last: true,
                is_success: is_success_in_data,
            })
        });
        // Outside the outbox's lock: a digest over a megabyte takes long.
        let data_digest = match (&data_pdu, &data) {
            (Some(pdu), Some(data)) if framing.has_data_digest(pdu, data.len()) => {
                Some(PduFraming::data_digest(data))
            }
            _ => None,
        };
        let added = self.outbox.add(|| {
            let mut completion = completion;
            if has_flow_control {
                completion.sq_head = self.advance_head(entries);
            }
            // Before the answer can go out: once the host has it, it may use the identifier again.
            self.close(cid);
            let capsule = framing.head(&Pdu::CapsuleResp(completion.encode()), 0);
            match (data_pdu, data) {
                (Some(pdu), Some(data)) => {
                    let mut entry = OutboxEntry::new(framing.head(&pdu, data.len()), data, budget_bytes);
                    if let Some(digest) = data_digest {
                        entry.append(&digest);
                    }
                    if !is_success_in_data {
                        entry.append(capsule.as_bytes());
                    }
                    entry
                }
                (_, data) => {
                    // A buffer that isn't sent can be used again at once.
                    data.into_iter().for_each(|data| self.buffers.put(data));
                    OutboxEntry::new(capsule, Vec::new(), budget_bytes)
                }
            }
        });
        match added {
            AddOutcome::Not => self.give_back(budget_bytes),
            AddOutcome::ToSend => {
                self.send(false);
            }
            AddOutcome::SentByOthers => {}
        }
    }

    /// Answers a command that could not be opened.
    pub(in crate::target) fn refuse(&self, cid: u16, status: NvmeStatus) {
        count(&self.errors, 1);
        let framing = self.framing();
        let association = self.association();
        let entries = association.map_or(1, |association| association.entries);
        let has_flow_control = association.is_none_or(|association| association.has_flow_control);
        let sq_id = association.map_or(0, |association| association.queue_id);
        self.outbox.add(|| {
            // It had a place in the queue all the same.
            let sq_head = if has_flow_control { self.advance_head(entries) } else { NO_HEAD };
            let completion = CompletionEntry { result: 0, sq_head, sq_id, cid, status };
            OutboxEntry::new(framing.head(&Pdu::CapsuleResp(completion.encode()), 0), Vec::new(), 0)
        });
    }

    /// One more entry of the submission queue is consumed. Under the outbox's lock, so that hosts see heads in order.
    fn advance_head(&self, entries: u32) -> u16 {
        let head = u32::from(self.sq_head.load(Ordering::Relaxed)) + 1;
        let head = if head >= entries { 0 } else { head as u16 };
        self.sq_head.store(head, Ordering::Relaxed);
        head
    }

    fn close(&self, cid: u16) {
        let (word, bit) = place_of(cid);
        self.cids[word].fetch_and(!bit, Ordering::SeqCst);
        self.open.fetch_sub(1, Ordering::SeqCst);
    }

    /// Sends what is owed. The housekeeper sends answers without room, unless the caller is the queue's own thread.
    pub(in crate::target) fn send(&self, by_owner: bool) -> SendOutcome {
        let sent = self.outbox.send(&*self.stream, by_owner, |entry| self.recycle(entry));
        match sent {
            SendOutcome::Left if !by_owner => {
                if let (Some(shared), Some(descriptor)) = (self.shared(), self.stream.descriptor()) {
                    shared.housekeeper.await_room(self.number, descriptor);
                }
            }
            // A thread that waits for the other side learns that there is nothing to wait for.
            SendOutcome::Dead => self.stream.close(),
            _ => {}
        }
        sent
    }

    pub(in crate::target) fn hold_back(&self, is_held_back: bool) {
        self.outbox.hold_back(is_held_back);
    }

    pub(in crate::target) fn owed_entries(&self) -> usize {
        self.outbox.owed_entries()
    }

    /// Nothing is sent or received any more, and no device gets anything more of it.
    pub(in crate::target) fn kill(&self) {
        // The flag first: `CommandReply::at_device` counts and then looks at it, so no command slips past both.
        self.is_killed.store(true, Ordering::SeqCst);
        self.outbox.kill(|entry| self.recycle(entry));
        self.stream.close();
    }

    fn recycle(&self, entry: OutboxEntry) {
        let budget_bytes = entry.budget_bytes;
        self.buffers.put(entry.into_data());
        self.give_back(budget_bytes);
    }
}

fn append_digest(entry: &mut OutboxEntry, framing: PduFraming, pdu: &Pdu) {
    let data = entry.data();
    if framing.has_data_digest(pdu, data.len()) {
        let digest = PduFraming::data_digest(data);
        entry.append(&digest);
    }
}

fn place_of(cid: u16) -> (usize, u64) {
    (usize::from(cid) / 64, 1 << (cid % 64))
}

/// Whether a command may begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::target) enum CommandAdmission {
    Yes,
    /// Another command under way has this identifier.
    Conflict,
    /// The host sent more commands than the queue has places.
    Overflow,
}

/// The answer to one command, owed. Dropped without one, as by a device that vanished, it is an internal error.
pub(in crate::target) struct CommandReply {
    queue: Arc<TargetQueue>,
    cid: u16,
    /// Goes back to the budget when the answer is sent.
    budget_bytes: usize,
    is_at_device: bool,
    is_given: bool,
}

impl CommandReply {
    /// For a command that was opened.
    pub(in crate::target) fn new(queue: Arc<TargetQueue>, cid: u16, budget_bytes: usize) -> CommandReply {
        CommandReply { queue, cid, budget_bytes, is_at_device: false, is_given: false }
    }

    pub(in crate::target) fn cid(&self) -> u16 {
        self.cid
    }

    pub(in crate::target) fn queue(&self) -> &Arc<TargetQueue> {
        &self.queue
    }

    /// From here on the command counts as one that a device has, until it is answered. `None` when the connection is
    /// over and no device may have it.
    pub(in crate::target) fn count_at_device(mut self) -> Option<CommandReply> {
        if !std::mem::replace(&mut self.is_at_device, true) {
            self.queue.at_device.fetch_add(1, Ordering::SeqCst);
        }
        // Looked at after it was counted: the thread that killed the queue sees the count, or this sees the end.
        if self.queue.is_killed.load(Ordering::SeqCst) { None } else { Some(self) }
    }

    pub(in crate::target) fn success(self) {
        self.status(NvmeStatus::SUCCESS);
    }

    pub(in crate::target) fn status(self, status: NvmeStatus) {
        self.result(status, 0);
    }

    /// A status with a value in the completion's first two dwords.
    pub(in crate::target) fn result(mut self, status: NvmeStatus, result: u64) {
        self.give(status, result, None);
    }

    pub(in crate::target) fn data(mut self, data: Vec<u8>) {
        self.give(NvmeStatus::SUCCESS, 0, Some(data));
    }

    fn give(&mut self, status: NvmeStatus, result: u64, data: Option<Vec<u8>>) {
        self.is_given = true;
        // Before the answer: a host that has it may count on the device being done with the command.
        if std::mem::take(&mut self.is_at_device) {
            self.queue.at_device.fetch_sub(1, Ordering::SeqCst);
        }
        self.queue.answer(self.cid, status, result, data, self.budget_bytes);
    }
}

impl Drop for CommandReply {
    fn drop(&mut self) {
        if !self.is_given {
            self.give(NvmeStatus::INTERNAL_ERROR.do_not_retry(), 0, None);
        }
    }
}
