//! A crash-safe log of records on a range of a block device.
//!
//! For callers that keep a map in memory and want it back after a power cut: a layer's table, a directory's tree.
//!
//! ```text
//! let (journal, recovered) = Journal::open(device, range, *b"my-table")?;   // waits
//! table.load(recovered.snapshot)?;
//! for record in recovered.records { table.apply(&record)?; }
//! journal.set_source(move || table.lock().snapshot());                       // for checkpoints
//!
//! let number = journal.append(record);          // in memory, at once
//! journal.commit(Box::new(|result| ...));       // or journal.commit_and_wait()?
//! ```
//!
//! **Promise.** When a commit is answered with `Ok`, every record that was appended before the commit was
//! asked for outlives a power cut. A record is there whole or not at all. After a power cut the journal replays a
//! prefix of the records appended, which includes every committed one. Appended records that were not committed may be
//! there or not.
//!
//! **What it does not order.** A commit writes its records with `fua` and flushes nothing else. Where a record
//! speaks of data written beside the journal, that data must be flushed before the record is *appended*:
//! someone else's commit may carry it out at once.
//!
//! **Checkpoints.** The range is two areas (see [`format`]). When the one in use is full, the owner's snapshot
//! is written to the other one, which then takes over; commits wait meanwhile. The snapshot is asked for
//! without any lock of the journal held. It says up to which record it covers, so take that number and the
//! state under one lock: the one under which records are appended.
//!
//! **Commits gather.** One batch is in progress at a time; commits that come meanwhile share the next. A commit
//! that fails leaves its records in memory, and the next one tries them again in the same place.
//!
//! **Damage.** A torn tail is recognised and dropped. Anything else that can't be read as it was written is an
//! error that says where: never a shorter journal.

mod checkpoint;
pub mod format;

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use underlay_sync::planted::{PlantedBug, is_planted};
use underlay_sync::{Mutex, MutexGuard, channel};

use crate::device::{BlockDevice, DeviceError, DeviceRequest};
use format::{AreaContent, AreaHeader, BLOCK_BYTES, HeaderBlock, JournalKind};

/// How much of a snapshot is written, or of an area read, by one request.
const PIECE_BYTES: u64 = 1 << 20;

/// More records than this become several batches.
const MAX_BATCH_BYTES: u64 = 8 << 20;

/// The owner's whole state, and the number of the last record whose effect is in it (0 for none).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JournalSnapshot {
    pub state: Vec<u8>,
    pub covers: u64,
}

/// A journal's contents at its opening.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecoveredJournal {
    /// Empty if there has been no checkpoint.
    pub snapshot: Vec<u8>,
    /// Appended after the snapshot was taken, in order.
    pub records: Vec<Vec<u8>>,
    /// How many checkpoints and commits the journal has seen: of two copies, the later one has more.
    pub version: (u64, u64),
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JournalError {
    #[error("the journal could not be read or written: {0}")]
    Device(#[from] DeviceError),
    #[error(
        "the journal at byte {offset_bytes} is damaged ({problem}): restore the device, or create it again, \
             which loses its data"
    )]
    Damaged { offset_bytes: u64, problem: String },
    #[error("this is a journal of '{found}', not of '{expected}': the device was used in another way before")]
    OtherKind { found: String, expected: String },
    #[error("a range of {length_bytes} bytes at {offset_bytes} can't hold a journal: {problem}")]
    Range { offset_bytes: u64, length_bytes: u64, problem: &'static str },
}

/// Called once, on any thread, when a commit is over. It must not block.
pub type CommitDone = Box<dyn FnOnce(Result<(), DeviceError>) + Send>;

type SnapshotSource = Arc<dyn Fn() -> JournalSnapshot + Send + Sync>;

/// A handle: clones are the same journal.
#[derive(Clone)]
pub struct Journal {
    inner: Arc<JournalInner>,
}

struct JournalInner {
    device: Arc<dyn BlockDevice>,
    start_bytes: u64,
    area_bytes: u64,
    kind: JournalKind,
    identity: u64,
    source: Mutex<Option<SnapshotSource>>,
    state: Mutex<JournalState>,
}

struct JournalState {
    /// Appended and not yet durable; the last one has the number `appended`.
    pending: VecDeque<Vec<u8>>,
    appended: u64,
    waiters: Vec<DurabilityWaiter>,
    checkpoint_wanted: bool,
    /// A batch or a checkpoint is in progress.
    busy: bool,
    active: u64,
    header: AreaHeader,
    end_bytes: u64,
    sequence: u64,
    /// A checkpoint failed, and may have left a header that would take over.
    other_area_suspect: bool,
    /// The last write before the journal was opened, and its place. Its writer may have been killed before it was
    /// durable, or its flush may have failed. Then it was read from a cache, and a power cut would take it and leave
    /// later writes. All else was durable before the next step. So it is written again before anything else.
    unconfirmed: VecDeque<(u64, Vec<u8>)>,
}

struct DurabilityWaiter {
    /// The last record that must be durable.
    number: u64,
    /// An explicit checkpoint, not a commit.
    checkpoint: bool,
    done: CommitDone,
}

enum JournalWork {
    Confirm { bytes: Vec<u8>, offset_bytes: u64 },
    Batch { bytes: Vec<u8>, records: usize, offset_bytes: u64 },
    Checkpoint,
}

impl Journal {
    /// Opens the journal on `range`, or makes one where none ever was. Waits for the device, so someone must
    /// be driving it, or it must be at the immediate pace.
    ///
    /// # Errors
    /// When the range is too small or unaligned, the device fails, the journal is damaged or someone else's.
    pub fn open(
        device: Arc<dyn BlockDevice>,
        range: Range<u64>,
        kind: JournalKind,
    ) -> Result<(Journal, RecoveredJournal), JournalError> {
        let (journal, recovered) = Journal::open_unconfirmed(device, range, kind)?;
        journal.commit_and_wait()?;
        Ok((journal, recovered))
    }

    /// As [`Journal::open`], for who wants to know what is there even where nothing can be written: what was recovered
    /// may be lost by a power cut until the first commit is answered.
    ///
    /// # Errors
    /// As of [`Journal::open`].
    pub fn open_unconfirmed(
        device: Arc<dyn BlockDevice>,
        range: Range<u64>,
        kind: JournalKind,
    ) -> Result<(Journal, RecoveredJournal), JournalError> {
        let area_bytes = check_range(&*device, &range)?;
        let start_bytes = range.start;
        let headers = [read_header(&*device, start_bytes)?, read_header(&*device, start_bytes + area_bytes)?];
        let valid = |header: &HeaderBlock| match header {
            HeaderBlock::Valid(header) => Some(*header),
            _ => None,
        };
        for header in headers.iter().filter_map(valid) {
            if header.kind != kind {
                let text = |kind: JournalKind| String::from_utf8_lossy(&kind).trim().to_owned();
                return Err(JournalError::OtherKind { found: text(header.kind), expected: text(kind) });
            }
        }
        let made = |header: &HeaderBlock| valid(header).is_some_and(|header| header.generation > 0);
        if headers.iter().all(|h| !made(h) && *h != HeaderBlock::Damaged) {
            // Never made, cut off while it was made, or robbed of its first header: batches tell.
            if let Some(second) = valid(&headers[1]) {
                let read = |offset, length| read_range(&*device, start_bytes + offset, length);
                if format::holds_batches(&AreaHeader { generation: 1, ..second }, area_bytes, read)? {
                    let problem = "the header of its first area is missing".into();
                    return Err(JournalError::Damaged { offset_bytes: start_bytes, problem });
                }
            }
            return make(device, start_bytes, area_bytes, kind);
        }
        if let Some(broken) = headers.iter().position(|header| valid(header).is_none()) {
            return Err(JournalError::Damaged {
                offset_bytes: start_bytes + broken as u64 * area_bytes,
                problem: "the header of one of its two areas can't be read".into(),
            });
        }
        let generation = |area: u64| valid(&headers[area as usize]).map_or(0, |header| header.generation);
        // The later generation is in force: a checkpoint writes its header last.
        let active = u64::from(generation(1) > generation(0));
        let HeaderBlock::Valid(header) = headers[active as usize] else {
            unreachable!("both headers are valid");
        };
        let area_start = start_bytes + active * area_bytes;
        let read = |offset, length| read_range(&*device, area_start + offset, length);
        let AreaContent { snapshot, records, end_bytes, sequence, last_bytes } =
            format::read_area(&header, area_bytes, read)?.map_err(|damage| JournalError::Damaged {
                offset_bytes: area_start + damage.offset_bytes,
                problem: damage.problem.into(),
            })?;
        let place = |area: u64| start_bytes + area * area_bytes;
        let other = valid(&headers[1 - active as usize]).unwrap_or(header);
        let mut unconfirmed =
            VecDeque::from([(place(1 - active), other.encode()), (area_start, header.encode())]);
        if !last_bytes.is_empty() {
            unconfirmed.push_back((area_start + end_bytes - last_bytes.len() as u64, last_bytes));
        }
        let inner = JournalInner::new(device, start_bytes, area_bytes, header, active, end_bytes, sequence);
        if !is_planted(PlantedBug::TailTakenForDurable) {
            inner.lock().unconfirmed = unconfirmed;
        }
        let version = (header.generation, sequence);
        Ok((Journal { inner: Arc::new(inner) }, RecoveredJournal { snapshot, records, version }))
    }

    /// How long a range must be for snapshots of up to `snapshot_bytes`, with as much again, and no less than
    /// `log_bytes`, for what is committed between two checkpoints.
    pub fn range_bytes(snapshot_bytes: u64, log_bytes: u64) -> u64 {
        let log_bytes = log_bytes.max(snapshot_bytes / 2);
        // Two areas, each with a header block, a snapshot, the log, and the block that a checkpoint wants
        // free for its first batch.
        2 * (2 * BLOCK_BYTES + format::whole_blocks(snapshot_bytes) + format::whole_blocks(log_bytes))
    }

    /// Says where snapshots come from. Without a source a journal that is full fails its commits. A source
    /// that owns the journal should hold itself weakly.
    pub fn set_source(&self, source: impl Fn() -> JournalSnapshot + Send + Sync + 'static) {
        *self.inner.source.lock() = Some(Arc::new(source));
    }

    /// Adds a record, and says its number, counted from 1 since the journal was opened. It is not durable
    /// until a later commit is answered.
    pub fn append(&self, record: Vec<u8>) -> u64 {
        let mut state = self.inner.lock();
        state.pending.push_back(record);
        state.appended += 1;
        state.appended
    }

    /// The number of the last record appended.
    pub fn appended(&self) -> u64 {
        self.inner.lock().appended
    }

    /// Makes everything appended so far durable.
    pub fn commit(&self, done: CommitDone) {
        self.inner.wait_for(false, done);
    }

    /// Writes a snapshot now, full or not: before a clean end, to make the next opening quick.
    pub fn checkpoint(&self, done: CommitDone) {
        self.inner.wait_for(true, done);
    }

    /// [`Journal::commit`] for callers that have nothing else to do.
    ///
    /// # Errors
    /// When the device fails; the records are tried again by the next commit.
    pub fn commit_and_wait(&self) -> Result<(), DeviceError> {
        wait(|done| self.commit(done))
    }

    /// [`Journal::checkpoint`] for callers that have nothing else to do.
    ///
    /// # Errors
    /// When the device fails; what was committed before still is.
    pub fn checkpoint_and_wait(&self) -> Result<(), DeviceError> {
        wait(|done| self.checkpoint(done))
    }
}

fn wait(ask: impl FnOnce(CommitDone)) -> Result<(), DeviceError> {
    let (sender, receiver) = channel();
    ask(Box::new(move |result| {
        let _ = sender.send(result);
    }));
    receiver.recv().unwrap_or(Err(DeviceError::Gone))
}

fn check_range(device: &dyn BlockDevice, range: &Range<u64>) -> Result<u64, JournalError> {
    let geometry = device.geometry();
    let length_bytes = range.end.saturating_sub(range.start);
    let problem = if !BLOCK_BYTES.is_multiple_of(u64::from(geometry.block_bytes)) {
        "the device's blocks do not divide the journal's"
    } else if !range.start.is_multiple_of(BLOCK_BYTES) || !length_bytes.is_multiple_of(2 * BLOCK_BYTES) {
        "it must begin at a multiple of 4096 and be a multiple of 8192 long"
    } else if range.end > geometry.capacity_bytes {
        "it lies outside the device"
    } else if length_bytes < 8 * BLOCK_BYTES {
        "it is too short"
    } else {
        return Ok(length_bytes / 2);
    };
    Err(JournalError::Range { offset_bytes: range.start, length_bytes, problem })
}

fn read_header(device: &dyn BlockDevice, offset_bytes: u64) -> Result<HeaderBlock, DeviceError> {
    let block =
        device.execute(DeviceRequest::Read { offset_bytes, buffer: vec![0; BLOCK_BYTES as usize] })?;
    Ok(AreaHeader::decode(&block))
}

fn read_range(device: &dyn BlockDevice, start: u64, length: u64) -> Result<Vec<u8>, DeviceError> {
    let mut bytes = Vec::with_capacity(length as usize);
    while (bytes.len() as u64) < length {
        let piece = (length - bytes.len() as u64).min(PIECE_BYTES);
        let offset_bytes = start + bytes.len() as u64;
        bytes.extend(device.execute(DeviceRequest::Read { offset_bytes, buffer: vec![0; piece as usize] })?);
    }
    Ok(bytes)
}

fn void(kind: JournalKind, identity: u64) -> AreaHeader {
    AreaHeader { kind, identity, generation: 0, snapshot_bytes: 0, snapshot_crc: crc32fast::hash(&[]) }
}

fn make(
    device: Arc<dyn BlockDevice>,
    start_bytes: u64,
    area_bytes: u64,
    kind: JournalKind,
) -> Result<(Journal, RecoveredJournal), JournalError> {
    // Unlike any other journal's; nothing is kept secret by it.
    let identity = underlay_sync::random_u64();
    let header = AreaHeader { generation: 1, ..void(kind, identity) };
    // The first area's header makes it a journal: it comes last.
    for (offset_bytes, header) in [(start_bytes + area_bytes, void(kind, identity)), (start_bytes, header)] {
        device.execute(DeviceRequest::Write { offset_bytes, data: header.encode(), fua: true })?;
    }
    let inner = JournalInner::new(device, start_bytes, area_bytes, header, 0, header.batches_start(), 1);
    let recovered = RecoveredJournal { version: (1, 1), ..RecoveredJournal::default() };
    Ok((Journal { inner: Arc::new(inner) }, recovered))
}

impl JournalInner {
    fn new(
        device: Arc<dyn BlockDevice>,
        start_bytes: u64,
        area_bytes: u64,
        header: AreaHeader,
        active: u64,
        end_bytes: u64,
        sequence: u64,
    ) -> JournalInner {
        let state = JournalState {
            pending: VecDeque::new(),
            appended: 0,
            waiters: Vec::new(),
            checkpoint_wanted: false,
            busy: false,
            active,
            header,
            end_bytes,
            sequence,
            other_area_suspect: false,
            unconfirmed: VecDeque::new(),
        };
        let (kind, identity) = (header.kind, header.identity);
        let (source, state) = (Mutex::default(), Mutex::new(state));
        JournalInner { device, start_bytes, area_bytes, kind, identity, source, state }
    }

    fn lock(&self) -> MutexGuard<'_, JournalState> {
        self.state.lock()
    }

    fn wait_for(self: &Arc<Self>, checkpoint: bool, done: CommitDone) {
        {
            let mut state = self.lock();
            let number = state.appended;
            state.checkpoint_wanted |= checkpoint;
            state.waiters.push(DurabilityWaiter { number, checkpoint, done });
        }
        self.start_next_work();
    }

    /// Begins what is to be done next, unless something is in flight.
    fn start_next_work(self: &Arc<Self>) {
        let (ready, work) = {
            let mut state = self.lock();
            if state.busy {
                return;
            }
            let durable = state.appended - state.pending.len() as u64;
            let confirmed = state.unconfirmed.is_empty();
            let is_ready = |w: &mut DurabilityWaiter| confirmed && !w.checkpoint && w.number <= durable;
            let ready: Vec<DurabilityWaiter> = state.waiters.extract_if(.., is_ready).collect();
            let work = state.next_work(self);
            state.busy = work.is_some();
            (ready, work)
        };
        // Outside the lock: `done` may append and commit.
        for waiter in ready {
            (waiter.done)(Ok(()));
        }
        match work {
            Some(JournalWork::Confirm { bytes, offset_bytes }) => self.confirm(offset_bytes, bytes),
            Some(JournalWork::Batch { bytes, records, offset_bytes }) => {
                self.write_batch(offset_bytes, bytes, records)
            }
            Some(JournalWork::Checkpoint) => self.begin_checkpoint(),
            None => {}
        }
    }

    fn confirm(self: &Arc<Self>, offset_bytes: u64, data: Vec<u8>) {
        let inner = Arc::clone(self);
        let written = move |completion: Result<Vec<u8>, DeviceError>| match completion {
            Ok(_) => {
                {
                    let mut state = inner.lock();
                    state.unconfirmed.pop_front();
                    state.busy = false;
                }
                inner.start_next_work();
            }
            Err(error) => inner.fail(&error),
        };
        self.device.submit(DeviceRequest::Write { offset_bytes, data, fua: true }, Box::new(written));
    }

    fn write_batch(self: &Arc<Self>, offset_bytes: u64, data: Vec<u8>, records: usize) {
        let (inner, length) = (Arc::clone(self), data.len() as u64);
        let written = move |completion: Result<Vec<u8>, DeviceError>| match completion {
            Ok(_) => {
                {
                    let mut state = inner.lock();
                    state.pending.drain(..records);
                    state.end_bytes += length;
                    state.sequence += 1;
                    state.busy = false;
                }
                inner.start_next_work();
            }
            Err(error) => inner.fail(&error),
        };
        let fua = !is_planted(PlantedBug::CommitNotForced);
        self.device.submit(DeviceRequest::Write { offset_bytes, data, fua }, Box::new(written));
    }

    /// Tells everyone who waits; the next commit tries again.
    fn fail(self: &Arc<Self>, error: &DeviceError) {
        let waiters = {
            let mut state = self.lock();
            state.busy = false;
            state.checkpoint_wanted = false;
            std::mem::take(&mut state.waiters)
        };
        for waiter in waiters {
            (waiter.done)(Err(error.clone()));
        }
        // One of them may have asked again, and others while it was in flight.
        self.start_next_work();
    }
}

impl JournalState {
    fn next_work(&mut self, inner: &JournalInner) -> Option<JournalWork> {
        if self.waiters.is_empty() {
            return None;
        }
        if let Some((offset_bytes, bytes)) = self.unconfirmed.front().cloned() {
            return Some(JournalWork::Confirm { bytes, offset_bytes });
        }
        // After a checkpoint that failed the other area may have the later header: a batch here would be lost.
        if self.checkpoint_wanted || self.other_area_suspect {
            return Some(JournalWork::Checkpoint);
        }
        let room = (inner.area_bytes - self.end_bytes).min(MAX_BATCH_BYTES);
        let (mut records, mut payload_bytes) = (0, 0);
        for record in &self.pending {
            let longer = payload_bytes + format::record_bytes(record.len());
            if format::batch_bytes(longer) > room {
                break;
            }
            (records, payload_bytes) = (records + 1, longer);
        }
        // Not even one record fits: the area is full.
        if records == 0 {
            return Some(JournalWork::Checkpoint);
        }
        let first = self.pending.iter().take(records).map(Vec::as_slice);
        Some(JournalWork::Batch {
            bytes: format::encode_batch(&self.header, self.sequence, first, payload_bytes),
            records,
            offset_bytes: inner.start_bytes + self.active * inner.area_bytes + self.end_bytes,
        })
    }
}
