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
use super::exchange::{Answer, Exchange, Payload};
use super::options::Options;
use super::outbox::{Frame, Outbox};
use super::stats::Stats;
use crate::command::{Command, Completion, Sgl};
use crate::pdu::{
    Arriving, DataState, DataTransfer, FatalStatus, Framing, IcReq, MIN_MAX_H2C_DATA_BYTES, Pdu,
    ProtocolError, R2t, ReceiveError, Receiver, Side,
};
use crate::status::Status;
use crate::stream::ByteStream;

/// The most in-capsule data of admin commands, and of the Connect of any queue.
const ADMIN_CAPSULE_DATA_BYTES: usize = 8192;
const RECEIVE_BUFFER_BYTES: usize = 64 << 10;
/// R2Ts that the controller may have outstanding for a command. Each is answered at once, so more would not help.
const MAX_R2T: u32 = 1;

/// The names of all threads of initiators begin so.
pub(super) const THREAD_PREFIX: &str = "nvme-";

/// Whom a queue tells what it can't deal with itself.
pub(super) trait Owner: Send + Sync {
    /// A connection has ended, with these commands that have no answer. Told once, by the queue's own thread.
    fn ended(&self, association: u64, reason: String, exchanges: Vec<Exchange>);
    /// The target could not carry out a command, and may be able to later.
    fn retry(&self, exchange: Exchange);
}

/// The association that a queue is part of.
#[derive(Clone)]
pub(super) struct Membership {
    pub association: u64,
    pub owner: Arc<dyn Owner>,
}

pub(super) struct Queue {
    id: u16,
    framing: Framing,
    max_h2c_data_bytes: usize,
    capsule_data_bytes: AtomicUsize,
    outbox: Arc<Outbox>,
    table: Mutex<Table>,
    under_way: AtomicUsize,
    stats: Arc<Stats>,
    member: Membership,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

/// The receiving half of the connection. What its thread has put off is sent before it waits.
struct Inlet {
    stream: Arc<dyn ByteStream>,
    outbox: Arc<Outbox>,
    /// How long the other side may be silent, while the connection is made.
    patience: Option<Duration>,
}

impl Inlet {
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

impl Read for Inlet {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.await_bytes()?;
        self.stream.receive(&mut [IoSliceMut::new(into)])
    }

    fn read_vectored(&mut self, into: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        self.await_bytes()?;
        self.stream.receive(into)
    }
}

struct Table {
    entries: Vec<Option<Entry>>,
    free: Vec<u16>,
    /// Commands that found no place.
    backlog: VecDeque<Exchange>,
    is_over: bool,
}

struct Entry {
    exchange: Exchange,
    sent: Instant,
    received_bytes: usize,
    is_damaged: bool,
}

impl Queue {
    /// Connects and agrees on the connection's parameters. What makes it a queue is a Connect command.
    pub(super) fn open(
        options: &Options,
        id: u16,
        depth: u16,
        stats: &Arc<Stats>,
        member: Membership,
    ) -> Result<Arc<Queue>, InitiatorError> {
        let unreachable = |source| InitiatorError::Unreachable { address: options.address.clone(), source };
        let stream = options.dialer.dial(&options.address, options.connect_timeout).map_err(unreachable)?;
        let arriving = Arriving {
            side: Side::Host,
            digests: Default::default(),
            data_alignment_bytes: 4,
            max_capsule_data_bytes: 0,
            // No limit per PDU: `fill` checks the data against the buffer of its command.
            max_data_bytes: u32::MAX,
        };
        let outbox = Arc::new(Outbox::new(Arc::clone(&stream)));
        let inlet = Inlet { stream, outbox: Arc::clone(&outbox), patience: Some(options.connect_timeout) };
        let mut receiver = Receiver::new(inlet, arriving, RECEIVE_BUFFER_BYTES);
        let (framing, max_h2c_data_bytes) = greet(options, &mut receiver)?;
        receiver.set_arriving(Arriving { digests: framing.digests, ..arriving });
        receiver.stream_mut().patience = None;
        let table = Table {
            entries: (0..depth).map(|_| None).collect(),
            free: (0..depth).rev().collect(),
            backlog: VecDeque::new(),
            is_over: false,
        };
        let queue = Arc::new(Queue {
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

    fn start(self: &Arc<Queue>, mut receiver: Receiver<Inlet>) -> io::Result<()> {
        let sending = Arc::clone(self);
        let sender = thread::Builder::new()
            .name(format!("{THREAD_PREFIX}send-{}", self.id))
            .spawn(move || sending.outbox.wait_for_socket())?;
        self.lock_threads().push(sender);
        let queue = Arc::clone(self);
        let reader =
            thread::Builder::new().name(format!("{THREAD_PREFIX}receive-{}", self.id)).spawn(move || {
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
                let Membership { association, owner } = &queue.member;
                owner.ended(*association, reason, exchanges);
            })?;
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
    pub(super) fn submit(&self, exchange: Exchange) -> Result<(), Box<Exchange>> {
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

    fn place(&self, table: &mut Table, cid: u16, exchange: Exchange) -> Frame {
        let mut data = None;
        let sgl = match &exchange.payload {
            Payload::None => Sgl::none(),
            Payload::Receive(buffer) => Sgl::transport(buffer.len() as u32),
            Payload::Send(bytes) if bytes.len() <= self.capsule_data_bytes.load(Ordering::Relaxed) => {
                data = Some(bytes.clone());
                Sgl::in_capsule(bytes.len() as u32)
            }
            Payload::Send(bytes) => Sgl::transport(bytes.len() as u32),
        };
        // The identifier and the SGL belong to this connection; the rest may be sent again on another one.
        let command = Command { cid, sgl, ..exchange.command };
        let length = data.as_ref().map_or(0, |data| data.len());
        let head = self.framing.head(&Pdu::CapsuleCmd(command.encode()), length);
        let entry = Entry { exchange, sent: Instant::now(), received_bytes: 0, is_damaged: false };
        // In the table before it is sent: the answer may arrive before `send` returns.
        table.entries[usize::from(cid)] = Some(entry);
        self.under_way.fetch_add(1, Ordering::Relaxed);
        Frame { head, data, digest: None }
    }

    /// Outside the lock: it takes its time.
    fn with_digest(&self, frame: Frame) -> Frame {
        let digest = match &frame.data {
            Some(data) if self.framing.digests.data && data.len() > 0 => {
                Some(Framing::data_digest(data.as_bytes()))
            }
            _ => None,
        };
        Frame { digest, ..frame }
    }

    /// Takes what arrives until the connection ends.
    fn receive(&self, receiver: &mut Receiver<Inlet>) -> Result<(), ReceiveError> {
        while let Some((pdu, _)) = receiver.next()? {
            match pdu {
                Pdu::CapsuleResp(bytes) => {
                    let completion = Completion::decode(&bytes);
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

    fn take(&self, cid: u16) -> Result<Entry, ProtocolError> {
        let mut table = self.lock();
        let entry = table.entries.get_mut(usize::from(cid)).and_then(Option::take);
        entry.ok_or_else(|| wrong(FatalStatus::InvalidHeaderField, "no command has this identifier"))
    }

    fn take_data(&self, receiver: &mut Receiver<Inlet>, transfer: DataTransfer) -> Result<(), ReceiveError> {
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
                Completion { result: 0, sq_head: 0, sq_id: self.id, cid, status: Status::SUCCESS };
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
                Some(Payload::Send(data)) if length > 0 => data.part(offset, length),
                _ => None,
            }
        };
        let part =
            part.ok_or_else(|| wrong(FatalStatus::DataOutOfRange, "it asks for data that does not exist"))?;
        let pieces = (0..length).step_by(self.max_h2c_data_bytes).filter_map(|at| {
            let bytes = (length - at).min(self.max_h2c_data_bytes);
            let pdu = Pdu::H2cData(DataTransfer {
                cid: r2t.cid,
                transfer_tag: r2t.transfer_tag,
                offset_bytes: (offset + at) as u32,
                length_bytes: bytes as u32,
                is_last: at + bytes == length,
                is_success: false,
            });
            let data = part.part(at, bytes)?;
            Some(self.with_digest(Frame {
                head: self.framing.head(&pdu, bytes),
                data: Some(data),
                digest: None,
            }))
        });
        self.outbox.send(pieces.collect::<Vec<_>>());
        Ok(())
    }

    /// Gives an answer, once the place of its command is taken by the next one.
    fn finish(&self, entry: Entry, completion: Completion) {
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
        let status = if entry.is_damaged { Status::TRANSIENT_TRANSPORT_ERROR } else { completion.status };
        if entry.exchange.resend && may_pass(status) {
            return self.member.owner.retry(entry.exchange);
        }
        let Exchange { payload, done, .. } = entry.exchange;
        let received = match payload {
            Payload::Receive(buffer) => buffer,
            Payload::None | Payload::Send(_) => Vec::new(),
        };
        let completion = Completion { status, ..completion };
        done(Ok(Answer { completion, received, received_bytes: entry.received_bytes }));
    }

    /// Tells the target why we leave, where it is at fault.
    fn say_what_was_wrong(&self, error: &ReceiveError, receiver: &Receiver<Inlet>) {
        if let ReceiveError::Protocol(error) = error {
            let head = self.framing.head(&Pdu::H2cTermReq(error.term_req()), error.header.len());
            let bytes = [head.as_bytes(), &error.header].concat();
            let _ = receiver.stream().stream.send(&[IoSlice::new(&bytes)]);
        }
    }

    fn give_up(&self) -> Vec<Exchange> {
        let mut table = self.lock();
        // Under the table's lock: a command that is submitted is either collected below or sees this.
        table.is_over = true;
        self.under_way.store(0, Ordering::Relaxed);
        let mut exchanges: Vec<Exchange> =
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

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock()
    }

    fn lock_threads(&self) -> MutexGuard<'_, Vec<JoinHandle<()>>> {
        self.threads.lock()
    }
}

/// Whether the same command may succeed a moment later.
pub(super) fn may_pass(status: Status) -> bool {
    let passing = [
        Status::ABORT_REQUESTED,
        Status::SUBMISSION_QUEUE_DELETED,
        Status::KEEP_ALIVE_EXPIRED,
        Status::TRANSIENT_TRANSPORT_ERROR,
        Status::NAMESPACE_NOT_READY,
        Status::INTERNAL_PATH_ERROR,
        Status::ABORTED_BY_HOST,
    ];
    !status.says_do_not_retry() && passing.contains(&status.plain())
}

fn fill(
    receiver: &mut Receiver<Inlet>,
    entry: &mut Entry,
    transfer: &DataTransfer,
) -> Result<(), ReceiveError> {
    let out_of_range = || wrong(FatalStatus::DataOutOfRange, "data arrived that was not requested");
    let Payload::Receive(buffer) = &mut entry.exchange.payload else { return Err(out_of_range().into()) };
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

fn wrong(status: FatalStatus, what: &'static str) -> ProtocolError {
    ProtocolError::new(status, 0, &[], what)
}

/// Exchanges ICReq and ICResp.
fn greet(options: &Options, receiver: &mut Receiver<Inlet>) -> Result<(Framing, usize), InitiatorError> {
    let protocol = |problem: String| InitiatorError::Protocol { address: options.address.clone(), problem };
    let request =
        IcReq { format_version: 0, data_alignment_bytes: 4, digests: options.digests, max_r2t: MAX_R2T };
    // The first bytes of a connection find room.
    receiver
        .stream()
        .stream
        .send(&[IoSlice::new(&Framing::default().encode(&Pdu::IcReq(request), &[]))])
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
    let framing = Framing { digests, data_alignment_bytes: response.data_alignment_bytes };
    // Whole dwords, as data PDUs that are not the last have them.
    Ok((framing, (response.max_h2c_data_bytes & !3) as usize))
}
