//! A connection: what its host sends, taken apart and handed on.
//!
//! One thread runs it. It takes all that was received at once, answers what can be answered, and waits again. Data that
//! a host sends goes from the socket into the buffer that the device gets.

mod admin;
mod fabric;
mod io_commands;

use std::collections::VecDeque;
use std::io::{self, IoSliceMut, Read};
use std::sync::Arc;
use std::time::Duration;
use underlay_sync::Instant;

use super::TargetShared;
use super::lease::WriteAdmission;
use super::outbox::SendOutcome;
use super::subsystems::TargetNamespace;
use super::subsystems::controller::queue::{
    CommandAdmission, CommandReply, ConnectionTerms, STRANGER_BUDGET_BYTES, TargetQueue,
};
use super::transfer::TransferTable;
use crate::command::{DataDirection, FABRICS, FLAGS_FUSED, FLAGS_SGL, NvmeCommand};
use crate::pdu::{
    ConnectionSide, DataState, DataTransfer, FatalStatus, IcReq, IcResp, Pdu, PduDecoder, PduFraming,
    PduReceiver, ProtocolError, R2t, ReceiveError,
};
use crate::status::NvmeStatus;
use fabric::AuthStage;

/// The most bytes that one call receives, unless they are data.
const RECEIVE_BUFFER_BYTES: usize = 128 << 10;
/// Until the host has proven who it is: a Connect with its data fits.
const STRANGER_BUFFER_BYTES: usize = 4 << 10;
/// The most data of a command capsule, on all queues. The admin queue needs 8 KiB by the specification.
pub(super) const CAPSULE_DATA_BYTES: u32 = 16 << 10;
/// The largest transfer of a command: 2 to the power of [`MDTS`] pages of 4 KiB.
pub(super) const MAX_TRANSFER_BYTES: u32 = 1 << 20;
pub(super) const MDTS: u8 = 8;
/// The most data in one H2CData PDU: a whole transfer.
const MAX_H2C_DATA_BYTES: u32 = MAX_TRANSFER_BYTES;
/// Answers that wait to be sent while more commands are taken.
const MAX_OWED_ENTRIES: usize = 1024;
/// How long a host has to close the connection after a C2HTermReq.
const TERMINATION_TIMEOUT: Duration = Duration::from_secs(2);
/// How long a thread waits for what may never happen before it looks again.
const LOOK_AGAIN: Duration = Duration::from_millis(500);

/// The receiving half of the stream. Before it waits, what is owed is sent; while it doesn't wait, answers are held
/// back, to be sent together.
pub(super) struct StreamInlet {
    queue: Arc<TargetQueue>,
}

impl StreamInlet {
    fn receive(&self, buffers: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        self.queue.hold_back(false);
        while self.queue.send(true) == SendOutcome::Left {
            // For either direction: a host that sends more before it reads what it is owed would otherwise
            // wait for us while we wait for it.
            if self.queue.stream.wait(true, true, None)?.can_receive {
                break;
            }
        }
        let received = self.queue.stream.receive(buffers);
        self.queue.hold_back(true);
        let received = received?;
        self.queue.received_bytes.fetch_add(received as u64, std::sync::atomic::Ordering::Relaxed);
        if let Some(association) = self.queue.association() {
            // All traffic counts as a sign of life (CTRATT.TBKAS), not Keep Alive alone.
            association.controller.heard();
        }
        Ok(received)
    }
}

impl Read for StreamInlet {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.receive(&mut [IoSliceMut::new(buffer)])
    }

    fn read_vectored(&mut self, buffers: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        self.receive(buffers)
    }
}

/// A command that waits for the connection's budget.
struct BudgetWaiter {
    command: NvmeCommand,
    /// The length of its data.
    length_bytes: usize,
}

pub(super) struct TargetConnection {
    pub shared: Arc<TargetShared>,
    pub queue: Arc<TargetQueue>,
    receiver: PduReceiver<StreamInlet>,
    transfers: TransferTable,
    waiting: VecDeque<BudgetWaiter>,
    pub authenticating: AuthStage,
    /// The receive buffer has grown, as for every admitted host.
    is_at_home: bool,
    /// The namespace that was used last, and the generation of its subsystem then.
    pub last_namespace: Option<(u64, Arc<TargetNamespace>)>,
    /// To that namespace.
    pub last_admission: Option<WriteAdmission>,
}

/// Why a connection ends.
pub(super) enum ConnectionEnd {
    /// The host ended it, or it may not go on.
    Over,
    /// The host broke the protocol, and gets a C2HTermReq.
    Broken(ProtocolError),
}

impl From<ReceiveError> for ConnectionEnd {
    fn from(error: ReceiveError) -> ConnectionEnd {
        match error {
            ReceiveError::Protocol(error) => ConnectionEnd::Broken(error),
            ReceiveError::Io(_) | ReceiveError::Truncated => ConnectionEnd::Over,
        }
    }
}

impl TargetConnection {
    pub(super) fn new(shared: Arc<TargetShared>, queue: Arc<TargetQueue>) -> TargetConnection {
        let inlet = StreamInlet { queue: Arc::clone(&queue) };
        TargetConnection {
            shared,
            receiver: PduReceiver::new(inlet, arriving(PduFraming::default()), STRANGER_BUFFER_BYTES),
            queue,
            transfers: TransferTable::default(),
            waiting: VecDeque::new(),
            authenticating: AuthStage::default(),
            is_at_home: false,
            last_namespace: None,
            last_admission: None,
        }
    }

    /// Runs until either side ends it.
    pub(super) fn run(mut self) {
        if let Err(ConnectionEnd::Broken(error)) = self.begin().and_then(|()| self.serve()) {
            self.terminate(&error);
        } else {
            // The last answers are owed even by a connection that ends.
            self.queue.hold_back(false);
            self.queue.send(true);
        }
        self.queue.kill();
    }

    /// Agrees on digests and alignment (TCP 3.3.1).
    fn begin(&mut self) -> Result<(), ConnectionEnd> {
        let request = match self.receiver.next()? {
            None => return Err(ConnectionEnd::Over),
            Some((Pdu::IcReq(request), _)) => request,
            Some((Pdu::H2cTermReq(_), _)) => return Err(ConnectionEnd::Over),
            Some((pdu, _)) => return Err(out_of_sequence(&pdu, "a connection must start with ICReq")),
        };
        if request.format_version != 0 {
            const VERSION_AT: u32 = 8;
            let header = PduFraming::default().encode(&Pdu::IcReq(request), &[]);
            let (status, problem) =
                (FatalStatus::UnsupportedParameter, "the version of the PDU format is not supported");
            return Err(ConnectionEnd::Broken(ProtocolError::new(status, VERSION_AT, &header, problem)));
        }
        let IcReq { digests, data_alignment_bytes, .. } = request;
        let response = IcResp {
            format_version: 0,
            data_alignment_bytes: 4,
            digests,
            max_h2c_data_bytes: MAX_H2C_DATA_BYTES,
        };
        self.queue.send_pdu(&Pdu::IcResp(response), Vec::new());
        let framing = PduFraming { digests, data_alignment_bytes };
        self.queue.agree(ConnectionTerms { framing });
        self.receiver.set_arriving(arriving(framing));
        Ok(())
    }

    fn serve(&mut self) -> Result<(), ConnectionEnd> {
        loop {
            self.start_waiting()?;
            if !self.is_at_home && !self.queue.is_stranger() {
                // Only now: anyone who reaches the port can open connections, and each would cost the full
                // buffer.
                self.receiver.grow(RECEIVE_BUFFER_BYTES);
                self.is_at_home = true;
            }
            if !self.receiver.is_ready() {
                self.wait()?;
            }
            let Some((pdu, data_bytes)) = self.receiver.next()? else { return Ok(()) };
            match pdu {
                Pdu::CapsuleCmd(bytes) => self.take_command(NvmeCommand::decode(&bytes), data_bytes)?,
                Pdu::H2cData(transfer) => self.take_data(transfer)?,
                Pdu::H2cTermReq(_) => return Err(ConnectionEnd::Over),
                _ => return Err(out_of_sequence(&pdu, "a connection starts only once")),
            }
        }
    }

    /// Returns when something can be received. Meanwhile commands begin that waited for the budget, and a host that
    /// takes no answers gets no more commands in.
    fn wait(&mut self) -> Result<(), ConnectionEnd> {
        while !self.waiting.is_empty() || self.queue.owed_entries() > MAX_OWED_ENTRIES {
            self.queue.hold_back(false);
            let sent = self.queue.send(true);
            if sent == SendOutcome::Dead {
                return Err(ConnectionEnd::Over);
            }
            let may_receive = self.queue.owed_entries() <= MAX_OWED_ENTRIES;
            // Others may be sending, and won't tell when they are done.
            let ready = self.queue.stream.wait(may_receive, sent == SendOutcome::Left, Some(LOOK_AGAIN));
            self.queue.hold_back(true);
            if ready.map_err(|_| ConnectionEnd::Over)?.can_receive && may_receive {
                break;
            }
            self.start_waiting()?;
        }
        Ok(())
    }

    fn take_command(&mut self, command: NvmeCommand, data_bytes: usize) -> Result<(), ConnectionEnd> {
        match self.queue.open(command.cid) {
            CommandAdmission::Yes => {}
            CommandAdmission::Conflict => {
                // The data is on the stream all the same: unread, it would be taken for the next PDU.
                let _ = self.receiver.skip_data()?;
                self.queue.refuse(command.cid, NvmeStatus::COMMAND_ID_CONFLICT.do_not_retry());
                return Ok(());
            }
            CommandAdmission::Overflow => {
                let problem = "there are more commands than the queue has entries";
                return Err(ConnectionEnd::Broken(command_error(
                    FatalStatus::SequenceError,
                    &command,
                    problem,
                )));
            }
        }
        if data_bytes > 0 {
            return self.take_capsule_data(&command, data_bytes);
        }
        let direction = command.direction();
        let length_bytes = match direction {
            DataDirection::None => 0,
            _ => command.sgl.length_bytes as usize,
        };
        if let Err(status) = self.check(&command, length_bytes) {
            self.refuse(&command, status);
        } else if direction == DataDirection::HostToController
            && length_bytes > 0
            && command.sgl.is_in_capsule()
        {
            // The capsule was said to have data, and has none.
            self.refuse(&command, NvmeStatus::DATA_LENGTH_INVALID.do_not_retry());
        } else {
            let budget = self.budget_of(&command, length_bytes);
            // First come, first served, or small commands would starve a large one. Commands without a budget may pass.
            let is_turn = self.waiting.is_empty() || budget == 0;
            if is_turn && self.queue.reserve(budget) {
                return self.start(&command, length_bytes, budget);
            } else {
                self.waiting.push_back(BudgetWaiter { command, length_bytes });
            }
        }
        Ok(())
    }

    fn take_capsule_data(&mut self, command: &NvmeCommand, data_bytes: usize) -> Result<(), ConnectionEnd> {
        let is_expected = command.direction() == DataDirection::HostToController
            && command.sgl.is_in_capsule()
            && command.sgl.length_bytes as usize == data_bytes;
        let checked = match (self.check(command, data_bytes), is_expected) {
            (Ok(()), false) if command.sgl.is_in_capsule() => {
                Err(NvmeStatus::DATA_LENGTH_INVALID.do_not_retry())
            }
            (Ok(()), false) => Err(NvmeStatus::SGL_TYPE_INVALID.do_not_retry()),
            (Ok(()), true) if command.sgl.address != 0 => Err(NvmeStatus::SGL_OFFSET_INVALID.do_not_retry()),
            (checked, _) => checked,
        };
        if let Err(status) = checked {
            let _ = self.receiver.skip_data()?;
            self.refuse(command, status);
            return Ok(());
        }
        let mut data = Vec::new();
        let state = self.receiver.append_data(&mut data, data_bytes)?;
        // A wrong data digest is not fatal: only this command fails, in a way that lets the host send it
        // again.
        if state == DataState::Damaged {
            self.refuse(command, NvmeStatus::TRANSIENT_TRANSPORT_ERROR);
            return Ok(());
        }
        // It is here already. Reads and larger writes wait until there is room again.
        let budget = self.budget_of(command, data_bytes);
        self.queue.take_anyway(budget);
        self.execute(command, data, budget)
    }

    /// The checks of all commands (base 3.3.3.1, 4.1.2).
    fn check(&self, command: &NvmeCommand, length_bytes: usize) -> Result<(), NvmeStatus> {
        if command.flags & FLAGS_FUSED != 0 {
            return Err(NvmeStatus::INVALID_FIELD.do_not_retry());
        }
        if length_bytes == 0 {
            return Ok(());
        }
        // Before Connect we know nothing of the host: it gets no more memory than a Connect takes.
        if self.queue.association().is_none() && length_bytes > CAPSULE_DATA_BYTES as usize {
            return Err(NvmeStatus::COMMAND_SEQUENCE_ERROR.do_not_retry());
        }
        // A list of subsystems may be long, and is sent one at a time.
        let is_list = command.direction() == DataDirection::ControllerToHost
            && self.queue.association().is_some_and(|association| association.controller.is_discovery());
        if self.queue.is_stranger() && !is_list && length_bytes > STRANGER_BUDGET_BYTES {
            return Err(NvmeStatus::AUTHENTICATION_REQUIRED.do_not_retry());
        }
        // Fabrics allow SGLs only (PSDT 01b or 10b), with contiguous metadata or metadata in its own SGL.
        if command.flags & 0xc0 == 0 || command.flags & 0xc0 == 0xc0 {
            return Err(NvmeStatus::INVALID_FIELD.do_not_retry());
        }
        debug_assert_eq!(FLAGS_SGL & 0xc0, FLAGS_SGL);
        if length_bytes > MAX_TRANSFER_BYTES as usize {
            return Err(NvmeStatus::INVALID_FIELD.do_not_retry());
        }
        let is_known = command.sgl.is_transport() || command.sgl.is_in_capsule();
        // A capsule carries data only towards the controller; the other way it comes in C2HData PDUs.
        let goes_there = command.direction() == DataDirection::HostToController || command.sgl.is_transport();
        if is_known && goes_there { Ok(()) } else { Err(NvmeStatus::SGL_TYPE_INVALID.do_not_retry()) }
    }

    fn budget_of(&self, command: &NvmeCommand, length_bytes: usize) -> usize {
        let is_io = self.queue.association().is_some_and(|association| association.queue_id != 0);
        if is_io && command.opcode != FABRICS {
            io_commands::budget_bytes(
                command,
                length_bytes,
                self.last_namespace.as_ref().map(|(_, last)| &**last),
            )
        } else {
            length_bytes
        }
    }

    /// Begins commands that waited, in their order, as far as the budget goes.
    fn start_waiting(&mut self) -> Result<(), ConnectionEnd> {
        while let Some(first) = self.waiting.front() {
            let budget = self.budget_of(&first.command, first.length_bytes);
            if !self.queue.reserve(budget) {
                break;
            }
            if let Some(BudgetWaiter { command, length_bytes }) = self.waiting.pop_front() {
                self.start(&command, length_bytes, budget)?;
            }
        }
        Ok(())
    }

    /// Begins a command that has its budget: it asks for its data, or is executed.
    fn start(
        &mut self,
        command: &NvmeCommand,
        length_bytes: usize,
        budget_bytes: usize,
    ) -> Result<(), ConnectionEnd> {
        if command.direction() != DataDirection::HostToController || length_bytes == 0 {
            return self.execute(command, Vec::new(), budget_bytes);
        }
        let transfer_tag = self.transfers.begin(*command, length_bytes, budget_bytes);
        let length_bytes = length_bytes as u32;
        let r2t = R2t { cid: command.cid, transfer_tag, offset_bytes: 0, length_bytes };
        self.queue.send_pdu(&Pdu::R2t(r2t), Vec::new());
        Ok(())
    }

    fn take_data(&mut self, data: DataTransfer) -> Result<(), ConnectionEnd> {
        let buffer = self.transfers.place_for(&data).map_err(ConnectionEnd::Broken)?;
        let state = self.receiver.read_data(buffer)?;
        let Some(done) = self.transfers.received(&data, state) else { return Ok(()) };
        if done.is_damaged {
            self.reply(&done.command, done.budget_bytes).status(NvmeStatus::TRANSIENT_TRANSPORT_ERROR);
            return Ok(());
        }
        self.execute(&done.command, done.data, done.budget_bytes)
    }

    /// Executes a command, all of whose data is here.
    fn execute(
        &mut self,
        command: &NvmeCommand,
        data: Vec<u8>,
        budget_bytes: usize,
    ) -> Result<(), ConnectionEnd> {
        let reply = self.reply(command, budget_bytes);
        if command.opcode == FABRICS {
            return self.execute_fabrics(command, &data, reply);
        }
        match self.queue.association() {
            // Nothing goes before a Connect.
            None => reply.status(NvmeStatus::COMMAND_SEQUENCE_ERROR.do_not_retry()),
            Some(_) if !self.authenticating.is_done() => {
                reply.status(NvmeStatus::AUTHENTICATION_REQUIRED.do_not_retry());
            }
            Some(association) if !association.controller.is_ready() => {
                reply.status(NvmeStatus::COMMAND_SEQUENCE_ERROR.do_not_retry());
            }
            Some(association) if association.queue_id == 0 => {
                let controller = Arc::clone(&association.controller);
                admin::execute(&self.shared, &controller, command, reply);
            }
            Some(_) => io_commands::execute(self, command, data, reply),
        }
        Ok(())
    }

    fn reply(&self, command: &NvmeCommand, budget_bytes: usize) -> CommandReply {
        CommandReply::new(Arc::clone(&self.queue), command.cid, budget_bytes)
    }

    fn refuse(&self, command: &NvmeCommand, status: NvmeStatus) {
        self.reply(command, 0).status(status);
    }

    /// Tells the host what it did wrong, and waits a little for it to end the connection (TCP 3.3.4): ended
    /// at once, with something unread, the connection would take the explanation along.
    fn terminate(&mut self, error: &ProtocolError) {
        let framing = PduFraming::default();
        debug_assert!(!framing.digests.header);
        self.queue.send_pdu(&Pdu::C2hTermReq(error.term_req()), error.header.clone());
        self.queue.hold_back(false);
        let deadline = Instant::now() + TERMINATION_TIMEOUT;
        let stream = &*self.queue.stream;
        // Over when nothing is left: a simulation's clock stands still until somebody waits.
        let left = || deadline.checked_duration_since(Instant::now()).filter(|left| !left.is_zero());
        while self.queue.send(true) == SendOutcome::Left
            && let Some(left) = left()
        {
            if stream.wait(false, true, Some(left)).is_err() {
                break;
            }
        }
        stream.close_sending();
        let mut unread = vec![0; 16 << 10];
        while let Some(left) = left() {
            match stream.wait(true, false, Some(left)) {
                Ok(ready) if ready.can_receive => {}
                Ok(_) => continue,
                Err(_) => break,
            }
            if !matches!(stream.receive(&mut [IoSliceMut::new(&mut unread)]), Ok(1..)) {
                break;
            }
        }
    }
}

fn arriving(framing: PduFraming) -> PduDecoder {
    PduDecoder {
        side: ConnectionSide::Controller,
        digests: framing.digests,
        data_alignment_bytes: 4,
        max_capsule_data_bytes: CAPSULE_DATA_BYTES,
        max_data_bytes: MAX_H2C_DATA_BYTES,
    }
}

fn out_of_sequence(pdu: &Pdu, problem: &'static str) -> ConnectionEnd {
    let header = PduFraming::default().encode(pdu, &[]);
    ConnectionEnd::Broken(ProtocolError::new(FatalStatus::SequenceError, 0, &header, problem))
}

fn command_error(status: FatalStatus, command: &NvmeCommand, problem: &'static str) -> ProtocolError {
    let header = PduFraming::default().encode(&Pdu::CapsuleCmd(command.encode()), &[]);
    ProtocolError::new(status, 0, &header, problem)
}
