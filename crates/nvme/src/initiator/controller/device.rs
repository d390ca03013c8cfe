//! A namespace as a block device.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use underlay_sync::planted::{PlantedBug, is_planted};
use underlay_sync::{Mutex, MutexGuard, channel};

use underlay_storage::device::{
    BlockDevice, CompletionCallback, DeviceCompletion, DeviceError, DeviceGeometry, DeviceRequest,
};

use crate::command::{DATASET_DEALLOCATE, DEALLOCATE, DatasetRange, FUA, NvmeCommand, SglDescriptor, nvm};
use crate::identify::{NamespaceData, oncs};
use crate::initiator::association::ControllerLimits;
use crate::initiator::controller::{ControllerInner, ControllerShared};
use crate::initiator::error::InitiatorError;
use crate::initiator::exchange::{CommandAnswer, CommandExchange, CommandPayload, LostAnswer, SharedBuffer};
use crate::initiator::identity::NamespaceIdentity;
use crate::initiator::record::WriteRecord;
use crate::initiator::unflushed::UnflushedWrite;
use crate::status::NvmeStatus;

/// The block count of a command is 16 bits wide.
const MAX_BLOCKS: u64 = 1 << 16;

/// How blocks become zeros.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::initiator) enum ZeroingMethod {
    /// Write Zeroes that gives the space back as well.
    WriteZeroesDeallocate,
    /// Dataset Management where deallocated blocks read as zeros.
    Deallocate,
    WriteZeroes,
    /// The controller has none of it.
    Write,
}

impl ZeroingMethod {
    fn choose(limits: &ControllerLimits, namespace: &NamespaceData) -> ZeroingMethod {
        let supports = |command: u16| limits.identify.oncs & command != 0;
        if supports(oncs::WRITE_ZEROES) && namespace.write_zeroes_deallocates {
            ZeroingMethod::WriteZeroesDeallocate
        } else if supports(oncs::DATASET_MANAGEMENT) && namespace.reads_zeros_after_deallocation {
            ZeroingMethod::Deallocate
        } else if supports(oncs::WRITE_ZEROES) {
            ZeroingMethod::WriteZeroes
        } else {
            ZeroingMethod::Write
        }
    }
}

/// A namespace's state, which outlives connections.
pub(in crate::initiator) struct NamespaceInfo {
    pub nsid: u32,
    block_bytes: u32,
    optimal_io_bytes: u32,
    capacity_bytes: AtomicU64,
    zeroing: ZeroingMethod,
    transfer_bytes: u64,
    zeroes_bytes: u64,
    deallocate_blocks: u64,
    identity: NamespaceIdentity,
    record: Mutex<WriteRecord<(CommandPiece, CompletionCallback)>>,
    /// How often it was found that answered writes are gone which could not be done again.
    losses: AtomicU64,
    has_written: AtomicBool,
    /// A write was answered with success.
    was_answered: AtomicBool,
    controller: Weak<ControllerShared>,
}

impl NamespaceInfo {
    pub(in crate::initiator) fn new(
        nsid: u32,
        data: &NamespaceData,
        identity: NamespaceIdentity,
        limits: &ControllerLimits,
        record: WriteRecord<(CommandPiece, CompletionCallback)>,
        controller: Weak<ControllerShared>,
    ) -> NamespaceInfo {
        let block_bytes = data.block_bytes;
        let in_blocks = |bytes: u64| {
            let most = MAX_BLOCKS * u64::from(block_bytes);
            (bytes.min(most) / u64::from(block_bytes)).max(1) * u64::from(block_bytes)
        };
        let preferred_bytes = data.preferred_blocks.checked_mul(block_bytes).filter(|bytes| *bytes > 0);
        NamespaceInfo {
            nsid,
            block_bytes,
            optimal_io_bytes: preferred_bytes.unwrap_or(block_bytes),
            capacity_bytes: AtomicU64::new(capacity_bytes(data)),
            zeroing: ZeroingMethod::choose(limits, data),
            transfer_bytes: in_blocks(limits.transfer_bytes),
            zeroes_bytes: in_blocks(limits.zeroes_bytes),
            // A range's length is 32 bits wide; a round number below that.
            deallocate_blocks: limits.deallocate_blocks.min(1 << 31),
            identity,
            record: Mutex::new(record),
            losses: AtomicU64::new(0),
            has_written: AtomicBool::new(false),
            was_answered: AtomicBool::new(false),
            controller,
        }
    }

    /// Takes over a new size.
    ///
    /// # Errors
    /// When the namespace is another one than before.
    pub(in crate::initiator) fn renew(
        &self,
        data: &NamespaceData,
        identity: &NamespaceIdentity,
    ) -> Result<(), InitiatorError> {
        if let Some(difference) = self.identity.difference(identity)
            && !is_planted(PlantedBug::OtherVolumeAccepted)
        {
            return Err(InitiatorError::OtherNamespace { nsid: self.nsid, difference });
        }
        if data.block_bytes != self.block_bytes {
            let difference = format!("blocks of {} bytes, not of {}", data.block_bytes, self.block_bytes);
            return Err(InitiatorError::OtherNamespace { nsid: self.nsid, difference });
        }
        self.capacity_bytes.store(capacity_bytes(data), Ordering::SeqCst);
        self.record().forget_behind(data.size_blocks);
        Ok(())
    }

    pub(in crate::initiator) fn has_written(&self) -> bool {
        self.has_written.load(Ordering::SeqCst)
    }

    pub(in crate::initiator) fn was_answered(&self) -> bool {
        self.was_answered.load(Ordering::SeqCst)
    }

    /// Writes to do again, before anything else is sent.
    pub(in crate::initiator) fn unflushed(&self) -> Vec<UnflushedWrite> {
        let capacity_bytes = self.capacity_bytes.load(Ordering::SeqCst);
        self.record().unflushed(capacity_bytes / u64::from(self.block_bytes))
    }

    pub(in crate::initiator) fn repeated(&self, write: &UnflushedWrite) {
        self.record().repeated(write.blocks);
    }

    /// A kept write will not be there again.
    pub(in crate::initiator) fn lose(&self, write: &UnflushedWrite, status: NvmeStatus) {
        let mut record = self.record();
        if !record.has_lost() {
            tracing::error!(namespace = self.nsid, "{}", lost_writes(Some(status)));
        }
        record.lose(write.blocks, status);
        // Last: a thread that sees the new count sees the lost blocks as well.
        self.losses.fetch_add(1, Ordering::SeqCst);
    }

    fn geometry(&self) -> DeviceGeometry {
        DeviceGeometry {
            capacity_bytes: self.capacity_bytes.load(Ordering::SeqCst),
            block_bytes: self.block_bytes,
            optimal_io_bytes: self.optimal_io_bytes,
        }
    }

    fn record(&self) -> MutexGuard<'_, WriteRecord<(CommandPiece, CompletionCallback)>> {
        self.record.lock()
    }

    /// Has the target flush, and forgets what that covers.
    fn flush_target(self: &Arc<NamespaceInfo>, then: impl FnOnce(Result<(), DeviceError>) + Send + 'static) {
        // Before the flush goes out: it covers only what was answered by now.
        let mark = self.record().mark();
        let namespace = Arc::clone(self);
        let flushed = move |outcome: Result<CommandAnswer, LostAnswer>| {
            let outcome = namespace.judge(outcome, 0).map(drop);
            if outcome.is_ok() {
                namespace.record().flushed(mark);
            }
            then(outcome);
            namespace.send_waiting();
        };
        let command = NvmeCommand::new(nvm::FLUSH, 0, self.nsid, SglDescriptor::empty());
        self.submit(CommandExchange::new(command, CommandPayload::None, true, Box::new(flushed)));
    }

    /// A flush that succeeds says that everything answered before it is durable: not as long as something of that is
    /// lost, nor when it was lost in the meantime.
    fn flush(self: &Arc<NamespaceInfo>, done: CompletionCallback) {
        // Before the flush goes out: a loss found while it is in flight has to fail it.
        let losses = self.losses.load(Ordering::SeqCst);
        let had_lost = self.record().has_lost();
        let namespace = Arc::clone(self);
        self.flush_target(move |outcome| {
            let (has_lost, refusal) = {
                let mut record = namespace.record();
                let has_lost = had_lost || namespace.losses.load(Ordering::SeqCst) != losses;
                if is_planted(PlantedBug::LostWritesForgotten) {
                    record.forget_lost();
                }
                (has_lost, record.refusal())
            };
            done(match outcome {
                Ok(()) if has_lost => Err(DeviceError::Io(lost_writes(refusal))),
                outcome => outcome.map(|()| Vec::new()),
            });
        });
    }

    /// Where too much is kept, flushes without being asked.
    fn make_room(self: &Arc<NamespaceInfo>) {
        if !self.record().begin_own_flush() {
            return;
        }
        let namespace = Arc::clone(self);
        self.flush_target(move |outcome| {
            let refused = {
                let mut record = namespace.record();
                if is_planted(PlantedBug::LostWritesForgotten) {
                    record.forget_lost();
                }
                record.own_flush_ended(outcome.is_ok())
            };
            if let Err(error) = outcome {
                refused.into_iter().for_each(|(_, done)| done(Err(error.clone())));
            } else {
                namespace.make_room();
            }
        });
    }

    fn submit(&self, exchange: CommandExchange) {
        match self.controller.upgrade() {
            Some(controller) => controller.submit(exchange),
            None => (exchange.done)(Err(LostAnswer::Gone)),
        }
    }

    /// The meaning of an answer for the request.
    fn judge(&self, outcome: Result<CommandAnswer, LostAnswer>, expected_bytes: usize) -> DeviceCompletion {
        let answer = outcome.map_err(|_| DeviceError::Gone)?;
        let status = answer.completion.status;
        match status.plain() {
            _ if status.is_success() && answer.received_bytes == expected_bytes => Ok(answer.received),
            _ if status.is_success() => Err(DeviceError::Io(format!(
                "the target answered a read of {expected_bytes} bytes with {}",
                answer.received_bytes
            ))),
            NvmeStatus::CAPACITY_EXCEEDED => Err(DeviceError::NoSpace),
            NvmeStatus::INVALID_NAMESPACE | NvmeStatus::NAMESPACE_NOT_READY => Err(DeviceError::Gone),
            NvmeStatus::RESERVATION_CONFLICT => Err(DeviceError::Io(
                "another host, or another process on this one, is writing to this namespace, and only one may \
                     at a time: stop it there first, or share the volume (`shared = true`) for a cluster file system"
                    .into(),
            )),
            _ => Err(DeviceError::Io(format!("the target answered: {status}"))),
        }
    }

    fn read(self: &Arc<NamespaceInfo>, piece: CommandPiece, done: CompletionCallback) {
        let losses = self.losses.load(Ordering::SeqCst);
        let CommandPiece { command, payload, blocks } = piece;
        let is_lost =
            |namespace: &NamespaceInfo| losses_matter(namespace) && namespace.record().is_lost(blocks);
        if is_lost(self) {
            return done(Err(DeviceError::Io(lost_blocks())));
        }
        let expected_bytes = match &payload {
            CommandPayload::Receive(buffer) => buffer.len(),
            CommandPayload::Send(_) | CommandPayload::None => 0,
        };
        let namespace = Arc::clone(self);
        let answered = move |outcome: Result<CommandAnswer, LostAnswer>| {
            let completion = namespace.judge(outcome, expected_bytes);
            match completion {
                // The read data may have been lost meanwhile.
                Ok(buffer) if namespace.losses.load(Ordering::SeqCst) != losses => {
                    namespace.read(
                        CommandPiece { command, payload: CommandPayload::Receive(buffer), blocks },
                        done,
                    );
                }
                completion => done(completion),
            }
        };
        self.submit(CommandExchange::new(command, payload, true, Box::new(answered)));
    }

    /// Sends a write or what empties blocks, or has it wait until it may be sent.
    fn write(self: &Arc<NamespaceInfo>, piece: CommandPiece, done: CompletionCallback) {
        // From here on, answered or not, it must not land on what another host writes meanwhile.
        set(&self.has_written);
        {
            let mut record = self.record();
            if !record.begin(piece.blocks, piece.bytes()) {
                let (blocks, bytes) = (piece.blocks, piece.bytes());
                record.wait(blocks, bytes, (piece, done));
                drop(record);
                self.make_room();
                // Its wait may be over already.
                return self.send_waiting();
            }
        }
        self.send_write(piece, done);
    }

    fn send_waiting(self: &Arc<NamespaceInfo>) {
        if !self.record().begin_admitting() {
            return;
        }
        loop {
            let next = self.record().next();
            let Some((piece, done)) = next else { return };
            self.send_write(piece, done);
        }
    }

    fn send_write(self: &Arc<NamespaceInfo>, piece: CommandPiece, done: CompletionCallback) {
        let bytes = piece.bytes();
        let CommandPiece { command, payload, blocks } = piece;
        let data = match &payload {
            CommandPayload::Send(data) => Some(data.clone()),
            CommandPayload::Receive(_) | CommandPayload::None => None,
        };
        let fua = command.opcode == nvm::WRITE && command.is_fua();
        let namespace = Arc::clone(self);
        let answered = move |outcome: Result<CommandAnswer, LostAnswer>| {
            let completion = namespace.judge(outcome, 0);
            if completion.is_ok() {
                set(&namespace.was_answered);
            }
            let unflushed = completion.is_ok().then_some(UnflushedWrite { command, data, blocks, fua });
            // Kept before it is answered: the caller counts on it from then on, and so it must be repeated
            // after a loss.
            let is_more_due = namespace.record().end(blocks, bytes, unflushed);
            done(completion);
            if is_more_due {
                namespace.make_room();
                namespace.send_waiting();
            }
        };
        self.submit(CommandExchange::new(command, payload, true, Box::new(answered)));
    }

    fn piece(
        &self,
        opcode: u8,
        offset_bytes: u64,
        length_bytes: u64,
        payload: CommandPayload,
    ) -> CommandPiece {
        let block_bytes = u64::from(self.block_bytes);
        let (lba, count) = (offset_bytes / block_bytes, length_bytes / block_bytes);
        let command = NvmeCommand::blocks(opcode, 0, self.nsid, SglDescriptor::empty(), lba, count as u32);
        CommandPiece { command, payload, blocks: (lba, lba + count) }
    }

    /// How to empty a range, piece by piece.
    fn zeroing_pieces(&self, offset_bytes: u64, length_bytes: u64) -> Vec<CommandPiece> {
        let most = match self.zeroing {
            ZeroingMethod::Write => self.transfer_bytes,
            ZeroingMethod::Deallocate => u64::from(self.block_bytes) * self.deallocate_blocks,
            ZeroingMethod::WriteZeroes | ZeroingMethod::WriteZeroesDeallocate => self.zeroes_bytes,
        };
        let zeros = match self.zeroing {
            ZeroingMethod::Write => SharedBuffer::new(vec![0; most.min(length_bytes) as usize]),
            _ => SharedBuffer::new(Vec::new()),
        };
        let piece = |(offset, length): (u64, u64)| match self.zeroing {
            ZeroingMethod::Write => {
                let data = zeros.part(0, length as usize).map_or(CommandPayload::None, CommandPayload::Send);
                self.piece(nvm::WRITE, offset, length, data)
            }
            ZeroingMethod::Deallocate => {
                let block_bytes = u64::from(self.block_bytes);
                let (lba, blocks) = (offset / block_bytes, length / block_bytes);
                let range = DatasetRange { attributes: 0, blocks: blocks as u32, lba };
                let mut command =
                    NvmeCommand::new(nvm::DATASET_MANAGEMENT, 0, self.nsid, SglDescriptor::empty());
                command.dwords[1] = DATASET_DEALLOCATE;
                let payload = CommandPayload::Send(SharedBuffer::new(range.encode().to_vec()));
                CommandPiece { command, payload, blocks: (lba, lba + blocks) }
            }
            ZeroingMethod::WriteZeroes | ZeroingMethod::WriteZeroesDeallocate => {
                let mut piece = self.piece(nvm::WRITE_ZEROES, offset, length, CommandPayload::None);
                if self.zeroing == ZeroingMethod::WriteZeroesDeallocate {
                    piece.command.dwords[2] |= DEALLOCATE;
                }
                piece
            }
        };
        cut(offset_bytes, length_bytes, most).map(piece).collect()
    }
}

fn capacity_bytes(data: &NamespaceData) -> u64 {
    data.size_blocks.saturating_mul(u64::from(data.block_bytes))
}

/// Offsets and lengths of parts no longer than `most`.
fn cut(offset_bytes: u64, length_bytes: u64, most: u64) -> impl Iterator<Item = (u64, u64)> {
    let parts = length_bytes.div_ceil(most);
    (0..parts).map(move |part| (offset_bytes + part * most, (length_bytes - part * most).min(most)))
}

/// The work of one command.
pub(in crate::initiator) struct CommandPiece {
    command: NvmeCommand,
    payload: CommandPayload,
    blocks: (u64, u64),
}

impl CommandPiece {
    /// Of data that is sent.
    fn bytes(&self) -> usize {
        match &self.payload {
            CommandPayload::Send(data) => data.len(),
            CommandPayload::Receive(_) | CommandPayload::None => 0,
        }
    }
}

/// For what stays true: only the first store costs what a store costs that all threads see in one order.
fn set(flag: &AtomicBool) {
    if !flag.load(Ordering::SeqCst) {
        flag.store(true, Ordering::SeqCst);
    }
}

/// Most namespaces never lose anything, and need not look.
fn losses_matter(namespace: &NamespaceInfo) -> bool {
    namespace.losses.load(Ordering::SeqCst) > 0
}

fn lost_writes(refusal: Option<NvmeStatus>) -> String {
    let status = refusal.map_or("nothing".to_owned(), |status| status.to_string());
    format!(
        "the target came back without writes that it had acknowledged, and refused them when they were repeated ({status}): \
         flushes fail until those blocks are written again"
    )
}

fn lost_blocks() -> String {
    "the target lost the last write here, and has older data until these blocks are written again".into()
}

/// A namespace of a controller that is reached over a network.
///
/// A request longer than the controller takes at once goes in several commands. A discarded range reads as zeros.
/// While a lost connection is looked for, requests wait; when it is not found in time they fail with
/// [`DeviceError::Gone`]. Commands in flight are sent again, and so are writes that no flush had covered yet: a target
/// that died may have lost them. Writes that it refuses then are lost: flushes, and reads of them, fail until they are
/// written again. One host at a time may write to a namespace.
#[derive(Clone)]
pub struct RemoteDevice {
    namespace: Arc<NamespaceInfo>,
    /// The connections last as long as a handle does.
    controller: Arc<ControllerInner>,
}

impl RemoteDevice {
    pub(in crate::initiator) fn new(
        namespace: Arc<NamespaceInfo>,
        controller: Arc<ControllerInner>,
    ) -> RemoteDevice {
        RemoteDevice { namespace, controller }
    }

    pub fn nsid(&self) -> u32 {
        self.namespace.nsid
    }

    /// Of data that is kept to be written again or is in flight, for all handles together. Writes that wait to be sent
    /// are not in it.
    pub fn kept_bytes(&self) -> usize {
        self.namespace.record().held_bytes()
    }

    /// Asks to be the one that writes, where the target lets only one host do so, and changes no block: a deallocation
    /// of nothing. Where another host is, it fails.
    ///
    /// # Errors
    /// When the target refuses.
    pub fn reserve(&self) -> Result<(), DeviceError> {
        let empty_range = DatasetRange { attributes: 0, blocks: 0, lba: 0 };
        let mut command =
            NvmeCommand::new(nvm::DATASET_MANAGEMENT, 0, self.namespace.nsid, SglDescriptor::empty());
        command.dwords[1] = DATASET_DEALLOCATE;
        let payload = CommandPayload::Send(SharedBuffer::new(empty_range.encode().to_vec()));
        let (sender, receiver) = channel();
        let done = Box::new(move |completion| {
            let _ = sender.send(completion);
        });
        self.namespace.write(CommandPiece { command, payload, blocks: (0, 0) }, done);
        receiver.recv().unwrap_or(Err(DeviceError::Gone)).map(drop)
    }

    fn count(&self, request: &DeviceRequest) {
        let counters = &self.controller.shared().stats().counters;
        let (_, length_bytes) = request.extent();
        match request {
            DeviceRequest::Read { .. } => counters.read_bytes.fetch_add(length_bytes, Ordering::Relaxed),
            DeviceRequest::Write { .. } => counters.written_bytes.fetch_add(length_bytes, Ordering::Relaxed),
            DeviceRequest::Flush | DeviceRequest::Discard { .. } => 0,
        };
    }
}

impl BlockDevice for RemoteDevice {
    fn geometry(&self) -> DeviceGeometry {
        self.namespace.geometry()
    }

    fn submit(&self, request: DeviceRequest, done: CompletionCallback) {
        let namespace = &self.namespace;
        if let Err(error) = request.check(&namespace.geometry()) {
            return done(Err(error));
        }
        self.count(&request);
        let (offset_bytes, length_bytes) = request.extent();
        let most = namespace.transfer_bytes;
        match request {
            DeviceRequest::Flush => namespace.flush(done),
            // NVMe counts blocks from 0, so it has no command for none.
            DeviceRequest::Read { buffer, .. } if length_bytes == 0 => done(Ok(buffer)),
            _ if length_bytes == 0 => done(Ok(Vec::new())),
            // In one command, straight into the caller's buffer.
            DeviceRequest::Read { buffer, .. } if length_bytes <= most => {
                let payload = CommandPayload::Receive(buffer);
                namespace.read(namespace.piece(nvm::READ, offset_bytes, length_bytes, payload), done);
            }
            DeviceRequest::Read { buffer, .. } => {
                let gather = CommandGather::start(buffer, length_bytes.div_ceil(most), done);
                for (offset, length) in cut(offset_bytes, length_bytes, most) {
                    let payload = CommandPayload::Receive(vec![0; length as usize]);
                    let piece = namespace.piece(nvm::READ, offset, length, payload);
                    let place = (offset - offset_bytes) as usize;
                    namespace.read(piece, CommandGather::part(&gather, place));
                }
            }
            DeviceRequest::Write { data, fua, .. } => {
                let data = SharedBuffer::new(data);
                let pieces = cut(offset_bytes, length_bytes, most).map(|(offset, length)| {
                    let part = data.part((offset - offset_bytes) as usize, length as usize);
                    let payload = part.map_or(CommandPayload::None, CommandPayload::Send);
                    let mut piece = namespace.piece(nvm::WRITE, offset, length, payload);
                    piece.command.dwords[2] |= if fua { FUA } else { 0 };
                    piece
                });
                send_all(namespace, pieces.collect(), done);
            }
            DeviceRequest::Discard { .. } => {
                send_all(namespace, namespace.zeroing_pieces(offset_bytes, length_bytes), done);
            }
        }
    }
}

fn send_all(namespace: &Arc<NamespaceInfo>, mut pieces: Vec<CommandPiece>, done: CompletionCallback) {
    match pieces.pop() {
        Some(only) if pieces.is_empty() => namespace.write(only, done),
        Some(last) => {
            let gather = CommandGather::start(Vec::new(), pieces.len() as u64 + 1, done);
            for piece in pieces.into_iter().chain([last]) {
                namespace.write(piece, CommandGather::part(&gather, 0));
            }
        }
        None => done(Ok(Vec::new())),
    }
}

/// One answer from those of several commands: the first error, if there is one.
struct CommandGather {
    state: Mutex<GatheredAnswers>,
}

struct GatheredAnswers {
    left: u64,
    buffer: Vec<u8>,
    error: Option<DeviceError>,
    done: Option<CompletionCallback>,
}

impl CommandGather {
    fn start(buffer: Vec<u8>, parts: u64, done: CompletionCallback) -> Arc<CommandGather> {
        let state = GatheredAnswers { left: parts, buffer, error: None, done: Some(done) };
        Arc::new(CommandGather { state: Mutex::new(state) })
    }

    /// For the part whose data goes to `place`.
    fn part(gather: &Arc<CommandGather>, place: usize) -> CompletionCallback {
        let gather = Arc::clone(gather);
        Box::new(move |completion| {
            let over = {
                let mut state = gather.state.lock();
                state.left -= 1;
                match completion {
                    Ok(part) => state.buffer[place..place + part.len()].copy_from_slice(&part),
                    Err(error) => drop(state.error.get_or_insert(error)),
                }
                let buffer = if state.left == 0 { std::mem::take(&mut state.buffer) } else { Vec::new() };
                let done = if state.left == 0 { state.done.take() } else { None };
                done.map(|done| (done, state.error.take(), buffer))
            };
            if let Some((done, error, buffer)) = over {
                done(error.map_or(Ok(buffer), Err));
            }
        })
    }
}
