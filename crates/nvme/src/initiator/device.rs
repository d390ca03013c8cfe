//! A namespace as a block device.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use underlay_sync::{Mutex, MutexGuard};

use underlay_storage::device::{BlockDevice, Completion, DeviceError, Done, Geometry, Request};

use super::association::Limits;
use super::controller::{Inner, Shared};
use super::exchange::{Answer, Data, Exchange, Lost, Payload};
use super::unflushed::{Kept, Unflushed};
use crate::command::{Command, DATASET_DEALLOCATE, DEALLOCATE, DatasetRange, FUA, Sgl, nvm};
use crate::identify::{NamespaceData, oncs};
use crate::status::Status;

/// The block count of a command is 16 bits wide.
const MOST_BLOCKS: u64 = 1 << 16;
/// Of unflushed writes. When there are more, a flush is sent that nobody asked for.
const MOST_UNFLUSHED_BYTES: usize = 64 << 20;

/// How blocks become zeros.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Zeroing {
    /// Write Zeroes that gives the space back as well.
    WriteZeroesDeallocate,
    /// Dataset Management where deallocated blocks read as zeros.
    Deallocate,
    WriteZeroes,
    /// The controller has none of it.
    Write,
}

impl Zeroing {
    fn of(limits: &Limits, namespace: &NamespaceData) -> Zeroing {
        let has = |command: u16| limits.identify.oncs & command != 0;
        if has(oncs::WRITE_ZEROES) && namespace.write_zeroes_deallocates {
            Zeroing::WriteZeroesDeallocate
        } else if has(oncs::DATASET_MANAGEMENT) && namespace.reads_zeros_after_deallocation {
            Zeroing::Deallocate
        } else if has(oncs::WRITE_ZEROES) {
            Zeroing::WriteZeroes
        } else {
            Zeroing::Write
        }
    }
}

/// What is known of a namespace, and outlives connections.
pub(super) struct Namespace {
    pub nsid: u32,
    block_bytes: u32,
    optimal_io_bytes: u32,
    capacity_bytes: AtomicU64,
    zeroing: Zeroing,
    transfer_bytes: u64,
    zeroes_bytes: u64,
    deallocate_blocks: u64,
    /// Absent where a completed write is durable.
    unflushed: Option<Mutex<Unflushed>>,
    /// A flush of our own is under way.
    is_flushing: AtomicBool,
    /// Answered writes are gone that could not be done again: the next flush has to say so.
    has_lost_writes: AtomicBool,
    controller: Weak<Shared>,
}

impl Namespace {
    pub(super) fn new(
        nsid: u32,
        data: &NamespaceData,
        limits: &Limits,
        controller: Weak<Shared>,
    ) -> Namespace {
        let block_bytes = data.block_bytes;
        let in_blocks = |bytes: u64| {
            let most = MOST_BLOCKS * u64::from(block_bytes);
            (bytes.min(most) / u64::from(block_bytes)).max(1) * u64::from(block_bytes)
        };
        let preferred_bytes = data.preferred_blocks.checked_mul(block_bytes).filter(|bytes| *bytes > 0);
        Namespace {
            nsid,
            block_bytes,
            optimal_io_bytes: preferred_bytes.unwrap_or(block_bytes),
            capacity_bytes: AtomicU64::new(capacity_bytes(data)),
            zeroing: Zeroing::of(limits, data),
            transfer_bytes: in_blocks(limits.transfer_bytes),
            zeroes_bytes: in_blocks(limits.zeroes_bytes),
            // A range's length is 32 bits wide; a round number below that.
            deallocate_blocks: limits.deallocate_blocks.min(1 << 31),
            unflushed: limits.identify.has_volatile_write_cache().then(Mutex::default),
            is_flushing: AtomicBool::new(false),
            has_lost_writes: AtomicBool::new(false),
            controller,
        }
    }

    /// Takes over a new size. False when the namespace is another one than before.
    pub(super) fn renew(&self, data: &NamespaceData) -> bool {
        self.capacity_bytes.store(capacity_bytes(data), Ordering::SeqCst);
        data.block_bytes == self.block_bytes
    }

    pub(super) fn unflushed_batches(&self) -> Vec<Vec<Kept>> {
        self.lock_unflushed().map(|unflushed| unflushed.batches()).unwrap_or_default()
    }

    pub(super) fn lose_writes(&self) {
        self.has_lost_writes.store(true, Ordering::SeqCst);
    }

    fn geometry(&self) -> Geometry {
        Geometry {
            capacity_bytes: self.capacity_bytes.load(Ordering::SeqCst),
            block_bytes: self.block_bytes,
            optimal_io_bytes: self.optimal_io_bytes,
        }
    }

    fn lock_unflushed(&self) -> Option<MutexGuard<'_, Unflushed>> {
        self.unflushed.as_ref().map(|unflushed| unflushed.lock())
    }

    fn keep(self: &Arc<Namespace>, write: Kept) {
        let Some(mut unflushed) = self.lock_unflushed() else { return };
        let kept_bytes = unflushed.keep(write);
        drop(unflushed);
        if kept_bytes > MOST_UNFLUSHED_BYTES && !self.is_flushing.swap(true, Ordering::SeqCst) {
            let namespace = Arc::clone(self);
            self.flush(Box::new(move |_| namespace.is_flushing.store(false, Ordering::SeqCst)));
        }
    }

    fn flush(self: &Arc<Namespace>, done: Done) {
        let mark = self.lock_unflushed().map_or(0, |unflushed| unflushed.mark());
        let namespace = Arc::clone(self);
        let flushed = move |outcome: Result<Answer, Lost>| {
            let completion = namespace.judge(outcome, 0).and_then(|_| {
                if let Some(mut unflushed) = namespace.lock_unflushed() {
                    unflushed.flushed(mark);
                }
                match namespace.has_lost_writes.swap(false, Ordering::SeqCst) {
                    false => Ok(Vec::new()),
                    true => Err(DeviceError::Io(
                        "the target came back without writes that it had answered, and they could not be repeated"
                            .into(),
                    )),
                }
            });
            done(completion);
        };
        let command = Command::new(nvm::FLUSH, 0, self.nsid, Sgl::none());
        self.submit(Exchange::new(command, Payload::None, true, Box::new(flushed)));
    }

    fn submit(&self, exchange: Exchange) {
        match self.controller.upgrade() {
            Some(controller) => controller.submit(exchange),
            None => (exchange.done)(Err(Lost::Gone)),
        }
    }

    /// What an answer means to whoever asked.
    fn judge(&self, outcome: Result<Answer, Lost>, expected_bytes: usize) -> Completion {
        let answer = outcome.map_err(|_| DeviceError::Gone)?;
        let status = answer.completion.status;
        match status.plain() {
            _ if status.is_success() && answer.received_bytes == expected_bytes => Ok(answer.received),
            _ if status.is_success() => Err(DeviceError::Io(format!(
                "the target answered a read of {expected_bytes} bytes with {}",
                answer.received_bytes
            ))),
            Status::CAPACITY_EXCEEDED => Err(DeviceError::NoSpace),
            Status::INVALID_NAMESPACE | Status::NAMESPACE_NOT_READY => Err(DeviceError::Gone),
            _ => Err(DeviceError::Io(format!("the target answered: {status}"))),
        }
    }

    /// Sends a read, a write, or what empties blocks.
    fn transfer(self: &Arc<Namespace>, piece: Piece, done: Done) {
        let Piece { command, payload, blocks } = piece;
        let kept = self.unflushed.is_some().then_some(()).and_then(|()| match &payload {
            Payload::Receive(_) => None,
            Payload::Send(data) => Some(Some(data.clone())),
            Payload::None => Some(None),
        });
        let kept = kept.map(|data| Kept {
            command,
            data,
            blocks,
            fua: command.opcode == nvm::WRITE && command.is_fua(),
        });
        let expected_bytes = match &payload {
            Payload::Receive(buffer) => buffer.len(),
            Payload::Send(_) | Payload::None => 0,
        };
        let namespace = Arc::clone(self);
        let answered = move |outcome: Result<Answer, Lost>| {
            let completion = namespace.judge(outcome, expected_bytes);
            if let (Ok(_), Some(write)) = (&completion, kept) {
                namespace.keep(write);
            }
            done(completion);
        };
        self.submit(Exchange::new(command, payload, true, Box::new(answered)));
    }

    fn piece(&self, opcode: u8, offset_bytes: u64, length_bytes: u64, payload: Payload) -> Piece {
        let block_bytes = u64::from(self.block_bytes);
        let (lba, count) = (offset_bytes / block_bytes, length_bytes / block_bytes);
        let command = Command::blocks(opcode, 0, self.nsid, Sgl::none(), lba, count as u32);
        Piece { command, payload, blocks: (lba, lba + count) }
    }

    /// How to empty a range, piece by piece.
    fn zeroing_pieces(&self, offset_bytes: u64, length_bytes: u64) -> Vec<Piece> {
        let most = match self.zeroing {
            Zeroing::Write => self.transfer_bytes,
            Zeroing::Deallocate => u64::from(self.block_bytes) * self.deallocate_blocks,
            Zeroing::WriteZeroes | Zeroing::WriteZeroesDeallocate => self.zeroes_bytes,
        };
        let zeros = match self.zeroing {
            Zeroing::Write => Data::new(vec![0; most.min(length_bytes) as usize]),
            _ => Data::new(Vec::new()),
        };
        let piece = |(offset, length): (u64, u64)| match self.zeroing {
            Zeroing::Write => {
                let data = zeros.part(0, length as usize).map_or(Payload::None, Payload::Send);
                self.piece(nvm::WRITE, offset, length, data)
            }
            Zeroing::Deallocate => {
                let block_bytes = u64::from(self.block_bytes);
                let (lba, blocks) = (offset / block_bytes, length / block_bytes);
                let range = DatasetRange { attributes: 0, blocks: blocks as u32, lba };
                let mut command = Command::new(nvm::DATASET_MANAGEMENT, 0, self.nsid, Sgl::none());
                command.dwords[1] = DATASET_DEALLOCATE;
                let payload = Payload::Send(Data::new(range.encode().to_vec()));
                Piece { command, payload, blocks: (lba, lba + blocks) }
            }
            Zeroing::WriteZeroes | Zeroing::WriteZeroesDeallocate => {
                let mut piece = self.piece(nvm::WRITE_ZEROES, offset, length, Payload::None);
                if self.zeroing == Zeroing::WriteZeroesDeallocate {
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

/// What one command does.
struct Piece {
    command: Command,
    payload: Payload,
    blocks: (u64, u64),
}

/// A namespace of a controller that is reached over a network.
///
/// A request longer than the controller takes at once goes in several commands. A discarded range reads as zeros.
/// While a lost connection is looked for, requests wait; when it is not found in time they fail with
/// [`DeviceError::Gone`]. What was under way is sent again, and so is what no flush had covered yet: a target that died
/// may have lost it. A namespace is for one host at a time.
#[derive(Clone)]
pub struct RemoteDevice {
    namespace: Arc<Namespace>,
    /// The connections last as long as a handle does.
    controller: Arc<Inner>,
}

impl RemoteDevice {
    pub(super) fn new(namespace: Arc<Namespace>, controller: Arc<Inner>) -> RemoteDevice {
        RemoteDevice { namespace, controller }
    }

    pub fn nsid(&self) -> u32 {
        self.namespace.nsid
    }

    fn count(&self, request: &Request) {
        let counters = &self.controller.shared().stats().counters;
        let (_, length_bytes) = request.extent();
        match request {
            Request::Read { .. } => counters.read_bytes.fetch_add(length_bytes, Ordering::Relaxed),
            Request::Write { .. } => counters.written_bytes.fetch_add(length_bytes, Ordering::Relaxed),
            Request::Flush | Request::Discard { .. } => 0,
        };
    }
}

impl BlockDevice for RemoteDevice {
    fn geometry(&self) -> Geometry {
        self.namespace.geometry()
    }

    fn submit(&self, request: Request, done: Done) {
        let namespace = &self.namespace;
        if let Err(error) = request.check(&namespace.geometry()) {
            return done(Err(error));
        }
        self.count(&request);
        let (offset_bytes, length_bytes) = request.extent();
        let most = namespace.transfer_bytes;
        match request {
            Request::Flush => namespace.flush(done),
            Request::Read { buffer, .. } if length_bytes == 0 => done(Ok(buffer)),
            _ if length_bytes == 0 => done(Ok(Vec::new())),
            Request::Read { buffer, .. } if length_bytes <= most => {
                let payload = Payload::Receive(buffer);
                namespace.transfer(namespace.piece(nvm::READ, offset_bytes, length_bytes, payload), done);
            }
            Request::Read { buffer, .. } => {
                let gather = Gather::start(buffer, length_bytes.div_ceil(most), done);
                for (offset, length) in cut(offset_bytes, length_bytes, most) {
                    let payload = Payload::Receive(vec![0; length as usize]);
                    let piece = namespace.piece(nvm::READ, offset, length, payload);
                    let place = (offset - offset_bytes) as usize;
                    namespace.transfer(piece, Gather::part(&gather, place));
                }
            }
            Request::Write { data, fua, .. } => {
                let data = Data::new(data);
                let pieces = cut(offset_bytes, length_bytes, most).map(|(offset, length)| {
                    let part = data.part((offset - offset_bytes) as usize, length as usize);
                    let payload = part.map_or(Payload::None, Payload::Send);
                    let mut piece = namespace.piece(nvm::WRITE, offset, length, payload);
                    piece.command.dwords[2] |= if fua { FUA } else { 0 };
                    piece
                });
                send_all(namespace, pieces.collect(), done);
            }
            Request::Discard { .. } => {
                send_all(namespace, namespace.zeroing_pieces(offset_bytes, length_bytes), done);
            }
        }
    }
}

fn send_all(namespace: &Arc<Namespace>, mut pieces: Vec<Piece>, done: Done) {
    match pieces.pop() {
        Some(only) if pieces.is_empty() => namespace.transfer(only, done),
        Some(last) => {
            let gather = Gather::start(Vec::new(), pieces.len() as u64 + 1, done);
            for piece in pieces.into_iter().chain([last]) {
                namespace.transfer(piece, Gather::part(&gather, 0));
            }
        }
        None => done(Ok(Vec::new())),
    }
}

/// One answer from those of several commands: the first error, if there is one.
struct Gather {
    state: Mutex<Gathered>,
}

struct Gathered {
    left: u64,
    buffer: Vec<u8>,
    error: Option<DeviceError>,
    done: Option<Done>,
}

impl Gather {
    fn start(buffer: Vec<u8>, parts: u64, done: Done) -> Arc<Gather> {
        let state = Gathered { left: parts, buffer, error: None, done: Some(done) };
        Arc::new(Gather { state: Mutex::new(state) })
    }

    /// For the part whose data goes to `place`.
    fn part(gather: &Arc<Gather>, place: usize) -> Done {
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
