//! One queue pair on one connection: commands out, answers in.

use std::collections::VecDeque;
use std::io::{self, IoSlice, IoSliceMut, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use underlay_sync::Instant;
use underlay_sync::thread::{self, JoinHandle};
use underlay_sync::{Mutex, MutexGuard};

use super::error::InitiatorError;
use super::exchange::{CommandAnswer, CommandExchange, CommandPayload};
use super::options::ControllerOptions;
use super::outbox::{HostOutbox, OutgoingFrame};
use super::stats::InitiatorStats;
use crate::command::{CompletionEntry, NvmeCommand, SglDescriptor};
use crate::pdu::{
    ConnectionSide, DataState, DataTransfer, FatalStatus, IcReq, MIN_MAX_H2C_DATA_BYTES, Pdu, PduDecoder,
    PduFraming, PduReceiver, ProtocolError, R2t, ReceiveError,
};
use crate::status::NvmeStatus;
use crate::stream::ByteStream;

/// The most in-capsule data of admin commands, and of the Connect of any queue.
const ADMIN_CAPSULE_DATA_BYTES: usize = 8192;
const RECEIVE_BUFFER_BYTES: usize = 64 << 10;
/// R2Ts that the controller may have outstanding for a command. Each is answered at once, so more would not help.
const MAX_R2T: u32 = 1;

/// The names of all threads of initiators begin so.
pub(super) const THREAD_PREFIX: &str = "nvme-";

/// Whom a queue tells what it can't deal with itself.
pub(super) trait QueueOwner: Send + Sync {
    /// A connection has ended, with these commands that have no answer. Told once, by the queue's own thread.
    fn ended(&self, association: u64, reason: String, exchanges: Vec<CommandExchange>);
    /// The target could not carry out a command, and may be able to later.
    fn retry(&self, exchange: CommandExchange);
}

/// The association that a queue is part of.
#[derive(Clone)]
pub(super) struct QueueMembership {
    pub association: u64,
    pub owner: Arc<dyn QueueOwner>,
}

pub(super) struct HostQueue {
    id: u16,
    framing: PduFraming,
    max_h2c_data_bytes: usize,
    capsule_data_bytes: AtomicUsize,
    outbox: Arc<HostOutbox>,
    table: Mutex<CommandTable>,
    under_way: AtomicUsize,
    stats: Arc<InitiatorStats>,
    member: QueueMembership,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

/// The receiving half of the connection. Its thread sends deferred commands before it waits.
struct QueueInlet {
    stream: Arc<dyn ByteStream>,
    outbox: Arc<HostOutbox>,
    /// How long the other side may be silent, while the connection is made.
    patience: Option<Duration>,
}

impl QueueInlet {
    fn await_bytes(&self) -> io::Result<()> {
        self.outbox.flush();
        let Some(patience) = self.patience else { return Ok(()) };
        let deadline = Instant::now() + patience;
        // A wait may end early without a reason.
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            // Never a wait of zero: the clock of a simulation only moves while somebody waits.
            if left.is_zero() {
                return Err(io::Error::new(io::ErrorKind::TimedOut, "the other side does not respond"));
            }
            if self.stream.wait(true, false, Some(left))?.can_receive {
                return Ok(());
            }
        }
    }
}

impl Read for QueueInlet {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.await_bytes()?;
        self.stream.receive(&mut [IoSliceMut::new(buffer)])
    }

    fn read_vectored(&mut self, buffers: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        self.await_bytes()?;
        self.stream.receive(buffers)
    }
}

struct CommandTable {
    entries: Vec<Option<CommandEntry>>,
    free: Vec<u16>,
    /// Commands that found no place.
    backlog: VecDeque<CommandExchange>,
    is_over: bool,
}

struct CommandEntry {
    exchange: CommandExchange,
    sent: Instant,
    received_bytes: usize,
    is_damaged: bool,
}

impl HostQueue {
    /// Connects and agrees on the connection's parameters. A Connect command makes it a queue.
    pub(super) fn open(
        options: &ControllerOptions,
        id: u16,
        depth: u16,
        stats: &Arc<InitiatorStats>,
        member: QueueMembership,
    ) -> Result<Arc<HostQueue>, InitiatorError> {
        let unreachable = |source| InitiatorError::Unreachable { address: options.address.clone(), source };
        let stream = options.dialer.dial(&options.address, options.connect_timeout).map_err(unreachable)?;
        let arriving = PduDecoder {
            side: ConnectionSide::Host,
            digests: Default::default(),
            data_alignment_bytes: 4,
            max_capsule_data_bytes: 0,
            // No limit per PDU: `fill` checks the data against the buffer of its command.
            max_data_bytes: u32::MAX,
        };
        let outbox = Arc::new(HostOutbox::new(Arc::clone(&stream)));
        let inlet =
            QueueInlet { stream, outbox: Arc::clone(&outbox), patience: Some(options.connect_timeout) };
        let mut receiver = PduReceiver::new(inlet, arriving, RECEIVE_BUFFER_BYTES);
        let (framing, max_h2c_data_bytes) = greet(options, &mut receiver)?;
        receiver.set_arriving(PduDecoder { digests: framing.digests, ..arriving });
        receiver.stream_mut().patience = None;
        let table = CommandTable {
            entries: (0..depth).map(|_| None).collect(),
            free: (0..depth).rev().collect(),
            backlog: VecDeque::new(),
            is_over: false,
        };
        let queue = Arc::new(HostQueue {
            id,
            framing,
            max_h2c_data_bytes,
            capsule_data_bytes: AtomicUsize::new(ADMIN_CAPSULE_DATA_BYTES),
            outbox,
            table: Mutex::new(table),
            under_way: AtomicUsize::new(0),
            stats: Arc::clone(stats),
            member,
            threads: Mutex::default(),
        });
        queue.start(receiver).map_err(|error| {
            queue.close();
            InitiatorError::Thread(error)
        })?;
        Ok(queue)
    }

    fn start(self: &Arc<HostQueue>, mut receiver: PduReceiver<QueueInlet>) -> io::Result<()> {
        let sending = Arc::clone(self);
        let sender = thread::ThreadBuilder::new()
            .name(format!("{THREAD_PREFIX}send-{}", self.id))
            .spawn(move || sending.outbox.wait_for_socket())?;
        self.lock_threads().push(sender);
        let queue = Arc::clone(self);
        let reader = thread::ThreadBuilder::new().name(format!("{THREAD_PREFIX}receive-{}", self.id)).spawn(
            move || {
                queue.outbox.flushed_by_this_thread();
                let reason = match queue.receive(&mut receiver) {
                    Ok(()) => "the target closed it".into(),
                    Err(error) => {
                        queue.say_what_was_wrong(&error, &receiver);
                        error.to_string()
                    }
                };
                // Closed before the commands are given up: none may still go out here once another
                // connection has it.
                queue.outbox.close();
                let exchanges = queue.give_up();
                let QueueMembership { association, owner } = &queue.member;
                owner.ended(*association, reason, exchanges);
            },
        )?;
        self.lock_threads().push(reader);
        Ok(())
    }

    pub(super) fn id(&self) -> u16 {
        self.id
    }

    pub(super) fn under_way(&self) -> usize {
        self.under_way.load(Ordering::Relaxed)
    }

    /// How much data a command may carry itself, once the controller has said so.
    pub(super) fn set_capsule_data_bytes(&self, bytes: usize) {
        self.capsule_data_bytes.store(bytes, Ordering::Relaxed);
    }

    /// Sends a command, or keeps it until another one is answered. When the connection has ended it comes back.
    pub(super) fn submit(&self, exchange: CommandExchange) -> Result<(), Box<CommandExchange>> {
        let frame = {
            let mut table = self.lock();
            if table.is_over {
                return Err(Box::new(exchange));
            }
            match table.free.pop() {
                Some(cid) => self.place(&mut table, cid, exchange),
                None => {
                    table.backlog.push_back(exchange);
                    return Ok(());
                }
            }
        };
        self.outbox.send([self.with_digest(frame)]);
        Ok(())
    }

    fn place(&self, table: &mut CommandTable, cid: u16, exchange: CommandExchange) -> OutgoingFrame {
        let mut data = None;
        let sgl = match &exchange.payload {
            CommandPayload::None => SglDescriptor::empty(),
            CommandPayload::Receive(buffer) => SglDescriptor::transport(buffer.len() as u32),
            CommandPayload::Send(bytes) if bytes.len() <= self.capsule_data_bytes.load(Ordering::Relaxed) => {
                data = Some(bytes.clone());
                SglDescriptor::new_in_capsule(bytes.len() as u32)
            }
            CommandPayload::Send(bytes) => SglDescriptor::transport(bytes.len() as u32),
        };
        // The identifier and the SGL belong to this connection; the rest may be sent again on another one.
        let command = NvmeCommand { cid, sgl, ..exchange.command };
        let length = data.as_ref().map_or(0, |data| data.len());
        let head = self.framing.head(&Pdu::CapsuleCmd(command.encode()), length);
        let entry = CommandEntry { exchange, sent: Instant::now(), received_bytes: 0, is_damaged: false };
        // In the table before it is sent: the answer may arrive before `send` returns.
        table.entries[usize::from(cid)] = Some(entry);
        self.under_way.fetch_add(1, Ordering::Relaxed);
        OutgoingFrame { head, data, digest: None }
    }

    /// Outside the lock: it takes its time.
    fn with_digest(&self, frame: OutgoingFrame) -> OutgoingFrame {
        let digest = match &frame.data {
            Some(data) if self.framing.digests.data && data.len() > 0 => {
                Some(PduFraming::data_digest(data.as_bytes()))
            }
            _ => None,
        };
        OutgoingFrame { digest, ..frame }
    }

    /// Takes what arrives until the connection ends.
    fn receive(&self, receiver: &mut PduReceiver<QueueInlet>) -> Result<(), ReceiveError> {
        while let Some((pdu, _)) = receiver.next()? {
            match pdu {
                Pdu::CapsuleResp(bytes) => {
                    let completion = CompletionEntry::decode(&bytes);
                    let entry = self.take(completion.cid)?;
                    self.finish(entry, completion);
                }
                Pdu::C2hData(transfer) => self.take_data(receiver, transfer)?,
                Pdu::R2t(r2t) => self.give_data(r2t)?,
                Pdu::C2hTermReq(term) => {
                    let error = format!("the target ended it: {}", term.status);
                    return Err(ReceiveError::Io(io::Error::other(error)));
                }
                _ => return Err(wrong(FatalStatus::SequenceError, "this PDU is not allowed here").into()),
            }
        }
        Ok(())
    }

    fn take(&self, cid: u16) -> Result<CommandEntry, ProtocolError> {
        let mut table = self.lock();
        let entry = table.entries.get_mut(usize::from(cid)).and_then(Option::take);
        entry.ok_or_else(|| wrong(FatalStatus::InvalidHeaderField, "no command has this identifier"))
    }

    fn take_data(
        &self,
        receiver: &mut PduReceiver<QueueInlet>,
        transfer: DataTransfer,
    ) -> Result<(), ReceiveError> {
        if transfer.is_success && !transfer.is_last {
            return Err(
                wrong(FatalStatus::InvalidHeaderField, "success is reported before the last data").into()
            );
        }
        // Nobody else looks for it while its data comes in: only this thread ends a queue.
        let mut entry = self.take(transfer.cid)?;
        let outcome = fill(receiver, &mut entry, &transfer);
        if outcome.is_ok() && transfer.is_success {
            let cid = transfer.cid;
            let completion =
                CompletionEntry { result: 0, sq_head: 0, sq_id: self.id, cid, status: NvmeStatus::SUCCESS };
            self.finish(entry, completion);
        } else {
            self.lock().entries[usize::from(transfer.cid)] = Some(entry);
        }
        outcome
    }

    fn give_data(&self, r2t: R2t) -> Result<(), ProtocolError> {
        let (offset, length) = (r2t.offset_bytes as usize, r2t.length_bytes as usize);
        let part = {
            let table = self.lock();
            let entry = table.entries.get(usize::from(r2t.cid)).and_then(Option::as_ref);
            match entry.map(|entry| &entry.exchange.payload) {
                Some(CommandPayload::Send(data)) if length > 0 => data.part(offset, length),
                _ => None,
            }
        };
        let part =
            part.ok_or_else(|| wrong(FatalStatus::DataOutOfRange, "it asks for data that does not exist"))?;
        let pieces = (0..length).step_by(self.max_h2c_data_bytes).filter_map(|position| {
            let bytes = (length - position).min(self.max_h2c_data_bytes);
            let pdu = Pdu::H2cData(DataTransfer {
                cid: r2t.cid,
                transfer_tag: r2t.transfer_tag,
                offset_bytes: (offset + position) as u32,
                length_bytes: bytes as u32,
                is_last: position + bytes == length,
                is_success: false,
            });
            let data = part.part(position, bytes)?;
            Some(self.with_digest(OutgoingFrame {
                head: self.framing.head(&pdu, bytes),
                data: Some(data),
                digest: None,
            }))
        });
        self.outbox.send(pieces.collect::<Vec<_>>());
        Ok(())
    }

    /// Gives an answer, once the place of its command is taken by the next one.
    fn finish(&self, entry: CommandEntry, completion: CompletionEntry) {
        let next = {
            let mut table = self.lock();
            self.under_way.fetch_sub(1, Ordering::Relaxed);
            match table.backlog.pop_front() {
                Some(exchange) => Some(self.place(&mut table, completion.cid, exchange)),
                None => {
                    table.free.push(completion.cid);
                    None
                }
            }
        };
        if let Some(frame) = next {
            self.outbox.send([self.with_digest(frame)]);
        }
        if self.id != 0 {
            self.stats.record_command(entry.sent.elapsed());
            self.stats.counters.requests.fetch_add(1, Ordering::Relaxed);
        }
        // As if the target itself had found it damaged.
        let status = if entry.is_damaged { NvmeStatus::TRANSIENT_TRANSPORT_ERROR } else { completion.status };
        if entry.exchange.resend && may_pass(status) {
            return self.member.owner.retry(entry.exchange);
        }
        let CommandExchange { payload, done, .. } = entry.exchange;
        let received = match payload {
            CommandPayload::Receive(buffer) => buffer,
            CommandPayload::None | CommandPayload::Send(_) => Vec::new(),
        };
        let completion = CompletionEntry { status, ..completion };
        done(Ok(CommandAnswer { completion, received, received_bytes: entry.received_bytes }));
    }

    /// Tells the target why we leave, where it is at fault.
    fn say_what_was_wrong(&self, error: &ReceiveError, receiver: &PduReceiver<QueueInlet>) {
        if let ReceiveError::Protocol(error) = error {
            let head = self.framing.head(&Pdu::H2cTermReq(error.term_req()), error.header.len());
            let bytes = [head.as_bytes(), &error.header].concat();
            let _ = receiver.stream().stream.send(&[IoSlice::new(&bytes)]);
        }
    }

    fn give_up(&self) -> Vec<CommandExchange> {
        let mut table = self.lock();
        // Under the table's lock: a command that is submitted is either collected below or sees this.
        table.is_over = true;
        self.under_way.store(0, Ordering::Relaxed);
        let mut exchanges: Vec<CommandExchange> =
            table.entries.iter_mut().filter_map(Option::take).map(|entry| entry.exchange).collect();
        exchanges.extend(table.backlog.drain(..));
        exchanges
    }

    /// Ends the connection; its thread then tells so.
    pub(super) fn close(&self) {
        self.outbox.close();
    }

    /// Waits for the threads of a closed connection, but not for the caller's own.
    pub(super) fn join(&self) {
        let threads = std::mem::take(&mut *self.lock_threads());
        for handle in threads {
            if handle.thread().id() != thread::current().id() {
                // One that panicked has said so.
                let _ = handle.join();
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, CommandTable> {
        self.table.lock()
    }

    fn lock_threads(&self) -> MutexGuard<'_, Vec<JoinHandle<()>>> {
        self.threads.lock()
    }
}

/// Whether the same command may succeed a moment later.
pub(super) fn may_pass(status: NvmeStatus) -> bool {
    let passing = [
        NvmeStatus::ABORT_REQUESTED,
        NvmeStatus::SUBMISSION_QUEUE_DELETED,
        NvmeStatus::KEEP_ALIVE_EXPIRED,
        NvmeStatus::TRANSIENT_TRANSPORT_ERROR,
        NvmeStatus::NAMESPACE_NOT_READY,
        NvmeStatus::INTERNAL_PATH_ERROR,
        NvmeStatus::ABORTED_BY_HOST,
    ];
    !status.says_do_not_retry() && passing.contains(&status.plain())
}

fn fill(
    receiver: &mut PduReceiver<QueueInlet>,
    entry: &mut CommandEntry,
    transfer: &DataTransfer,
) -> Result<(), ReceiveError> {
    let out_of_range = || wrong(FatalStatus::DataOutOfRange, "data arrived that was not requested");
    let CommandPayload::Receive(buffer) = &mut entry.exchange.payload else {
        return Err(out_of_range().into());
    };
    let (start, length) = (transfer.offset_bytes as usize, transfer.length_bytes as usize);
    // In order and each once, so that nothing is left out unnoticed.
    // No underflow: `received_bytes` is never more than the buffer's length.
    if start != entry.received_bytes || length > buffer.len() - start {
        return Err(out_of_range().into());
    }
    if receiver.read_data(&mut buffer[start..start + length])? == DataState::Damaged {
        entry.is_damaged = true;
    }
    entry.received_bytes += length;
    Ok(())
}

fn wrong(status: FatalStatus, problem: &'static str) -> ProtocolError {
    ProtocolError::new(status, 0, &[], problem)
}

/// Exchanges ICReq and ICResp.
fn greet(
    options: &ControllerOptions,
    receiver: &mut PduReceiver<QueueInlet>,
) -> Result<(PduFraming, usize), InitiatorError> {
    let protocol = |problem: String| InitiatorError::Protocol { address: options.address.clone(), problem };
    let request =
        IcReq { format_version: 0, data_alignment_bytes: 4, digests: options.digests, max_r2t: MAX_R2T };
    // The first bytes of a connection find room.
    receiver
        .stream()
        .stream
        .send(&[IoSlice::new(&PduFraming::default().encode(&Pdu::IcReq(request), &[]))])
        .map_err(|source| InitiatorError::Unreachable { address: options.address.clone(), source })?;
    let answer = receiver.next().map_err(|error| InitiatorError::received(&options.address, error))?;
    let response = match answer {
        Some((Pdu::IcResp(response), _)) => response,
        Some((Pdu::C2hTermReq(term), _)) => return Err(protocol(format!("it refused: {}", term.status))),
        Some(_) => return Err(protocol("its first PDU is not an ICResp".into())),
        None => return Err(protocol("it closed the connection without an answer".into())),
    };
    let digests = response.digests;
    let unasked = (digests.header && !options.digests.header) || (digests.data && !options.digests.data);
    if response.format_version != 0 || unasked || response.max_h2c_data_bytes < MIN_MAX_H2C_DATA_BYTES {
        receiver.stream().stream.close();
        return Err(protocol(format!("its ICResp can't be used: {response:?}")));
    }
    let framing = PduFraming { digests, data_alignment_bytes: response.data_alignment_bytes };
    // Whole dwords, as data PDUs that are not the last have them.
    Ok((framing, (response.max_h2c_data_bytes & !3) as usize))
}
