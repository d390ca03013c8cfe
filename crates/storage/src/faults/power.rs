//! Writes that a power cut takes: those that no flush has covered yet, with the older data below them.
//!
//! Data lies on the backing as soon as it is written, so that reads need no detour and a killed process loses
//! nothing. Beside it stands, for each block with unflushed writes, what each of them replaced. At a cut the writes
//! that do not survive are undone by it.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use underlay_sync::{Mutex, MutexGuard};

use rand::{RngExt as _, SeedableRng};
use rand_pcg::Pcg64Mcg;
use serde::{Deserialize, Serialize};

use super::PowerCut;
use crate::backing::Backing;
use crate::device::{DeviceCompletion, DeviceError};
use crate::paced::BLOCK_BYTES;

const BLOCK: usize = BLOCK_BYTES as usize;

/// The largest volatile cache: beyond it the device writes out the oldest completed writes, as drives do. It is what
/// large drives have, and bounds the memory that a program takes which never flushes.
const CACHE_BYTES: u64 = 64 << 20;

/// A longer discard is carried out and kept at once: what it would take to undo one of a whole device is a copy of
/// the device.
const MAX_UNDONE_DISCARD_BYTES: u64 = 1 << 20;

/// The fate of the writes that no flush had covered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WriteSurvival {
    pub survived: u64,
    pub torn: u64,
    pub lost: u64,
}

impl std::ops::AddAssign for WriteSurvival {
    fn add_assign(&mut self, other: WriteSurvival) {
        self.survived += other.survived;
        self.torn += other.torn;
        self.lost += other.lost;
    }
}

/// The volatile part of a device that is armed for power cuts.
pub(super) struct VolatilePart {
    backing: Arc<dyn Backing>,
    /// Completed writes need no flush.
    protected: bool,
    cache_bytes: u64,
    log: Mutex<WriteLog>,
}

/// A write in flight, until it completes.
pub(super) struct WriteTicket(u64);

/// The writes that a flush will have covered: those that had completed before this one, if no cut came between.
pub(super) struct FlushCoverage {
    before: u64,
    cuts: u64,
}

#[derive(Default)]
pub(super) struct WriteLog {
    off: bool,
    next_write: u64,
    next_completion: u64,
    /// How often the power was cut.
    cuts: u64,
    writes: BTreeMap<u64, VolatileWrite>,
    /// Completed writes by the order in which they completed.
    completed: BTreeMap<u64, u64>,
    /// Of each block with unflushed writes what they replaced, oldest first.
    blocks: HashMap<u64, Vec<ReplacedContent>>,
    held_bytes: u64,
}

struct VolatileWrite {
    first_block: u64,
    blocks: u64,
    durable_when_complete: bool,
}

struct ReplacedContent {
    write: u64,
    content: Arc<[u8]>,
    offset: usize,
}

/// Which blocks of a write are there after a cut.
enum BlockFate {
    Survived,
    Lost,
    Torn(Vec<bool>),
}

impl BlockFate {
    fn holds(&self, block: u64) -> bool {
        match self {
            BlockFate::Survived => true,
            BlockFate::Lost => false,
            BlockFate::Torn(landed) => landed[block as usize],
        }
    }
}

impl VolatilePart {
    pub(super) fn new(backing: Arc<dyn Backing>, protected: bool) -> VolatilePart {
        VolatilePart { backing, protected, cache_bytes: CACHE_BYTES, log: Mutex::default() }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, WriteLog> {
        // Nothing below panics halfway through a change.
        self.log.lock()
    }

    pub(super) fn write(
        &self,
        offset_bytes: u64,
        data: &[u8],
        fua: bool,
    ) -> Result<WriteTicket, DeviceError> {
        self.change(offset_bytes, data.len() as u64, fua, |backing| backing.write(offset_bytes, data))
    }

    /// No ticket for a discard that is kept at once.
    pub(super) fn discard(
        &self,
        offset_bytes: u64,
        length_bytes: u64,
    ) -> Result<Option<WriteTicket>, DeviceError> {
        let discard = |backing: &dyn Backing| backing.discard(offset_bytes, length_bytes);
        if length_bytes <= MAX_UNDONE_DISCARD_BYTES {
            return self.change(offset_bytes, length_bytes, false, discard).map(Some);
        }
        let mut log = self.lock();
        log.check_power()?;
        discard(&*self.backing)?;
        let range = offset_bytes / BLOCK as u64..(offset_bytes + length_bytes) / BLOCK as u64;
        log.blocks.retain(|block, _| !range.contains(block));
        Ok(None)
    }

    /// Notes what the range holds, then changes it: one step, or two changes at once would note each other's.
    fn change(
        &self,
        offset_bytes: u64,
        length_bytes: u64,
        fua: bool,
        change: impl FnOnce(&dyn Backing) -> Result<(), DeviceError>,
    ) -> Result<WriteTicket, DeviceError> {
        let mut log = self.lock();
        log.check_power()?;
        let mut content = vec![0; length_bytes as usize];
        self.backing.read(offset_bytes, &mut content)?;
        let content: Arc<[u8]> = content.into();
        let number = log.next_write;
        log.next_write += 1;
        let (first_block, blocks) = (offset_bytes / BLOCK as u64, length_bytes / BLOCK as u64);
        for index in 0..blocks {
            let replaced = ReplacedContent {
                write: number,
                content: Arc::clone(&content),
                offset: index as usize * BLOCK,
            };
            log.blocks.entry(first_block + index).or_default().push(replaced);
        }
        log.held_bytes += length_bytes;
        let durable_when_complete = fua || self.protected;
        log.writes.insert(number, VolatileWrite { first_block, blocks, durable_when_complete });
        if let Err(error) = change(&*self.backing) {
            // Some of its blocks may be new: they are as unsure as those of any write.
            log.complete(number);
            return Err(error);
        }
        while log.held_bytes > self.cache_bytes {
            let Some((_, oldest)) = log.completed.pop_first() else { break };
            log.keep(oldest);
        }
        Ok(WriteTicket(number))
    }

    /// The answer to a write or discard that is over.
    pub(super) fn completed(
        &self,
        ticket: Option<WriteTicket>,
        completion: DeviceCompletion,
    ) -> DeviceCompletion {
        let mut log = self.lock();
        log.check_power()?;
        if let Some(WriteTicket(number)) = ticket {
            match log.writes.get(&number) {
                Some(write) if write.durable_when_complete && completion.is_ok() => log.keep(number),
                Some(_) => log.complete(number),
                // It was undone by a cut that came while it was in flight, and the power is back already.
                None => return Err(DeviceError::Gone),
            }
        }
        completion
    }

    pub(super) fn flush_begins(&self) -> FlushCoverage {
        let log = self.lock();
        FlushCoverage { before: log.next_completion, cuts: log.cuts }
    }

    /// The answer to a flush that is over: what it covers stays from now on.
    pub(super) fn flush_ends(
        &self,
        FlushCoverage { before, cuts }: FlushCoverage,
        completion: DeviceCompletion,
    ) -> DeviceCompletion {
        let mut log = self.lock();
        log.check_power()?;
        if log.cuts != cuts {
            return Err(DeviceError::Gone);
        }
        if completion.is_ok() {
            while let Some((order, number)) = log.completed.pop_first() {
                if order >= before {
                    log.completed.insert(order, number);
                    break;
                }
                log.keep(number);
            }
        }
        completion
    }

    /// The answer to a read that is over.
    pub(super) fn answered(&self, completion: DeviceCompletion) -> DeviceCompletion {
        self.lock().check_power()?;
        completion
    }

    /// Decides what survives and undoes the rest. `log` is this device's own, locked with those of all devices that
    /// lose power in the same instant, and switched off.
    pub(super) fn undo(&self, log: &mut WriteLog, cut: PowerCut) -> Result<WriteSurvival, DeviceError> {
        let fates = log.decide(cut);
        let mut survival = WriteSurvival::default();
        for fate in fates.values() {
            match fate {
                BlockFate::Survived => survival.survived += 1,
                BlockFate::Torn(_) => survival.torn += 1,
                BlockFate::Lost => survival.lost += 1,
            }
        }
        for (block, versions) in &log.blocks {
            let landed = |version: &&ReplacedContent| {
                // Both are there: `keep` removes a write together with what it replaced.
                let (write, fate) = (&log.writes[&version.write], &fates[&version.write]);
                fate.holds(block - write.first_block)
            };
            // Back from the newest to the newest that landed.
            let undone = versions.iter().rev().take_while(|version| !landed(version)).last();
            if let Some(ReplacedContent { content, offset, .. }) = undone {
                self.backing.write(block * BLOCK as u64, &content[*offset..][..BLOCK])?;
            }
        }
        let WriteLog { next_write, next_completion, cuts, .. } = *log;
        *log = WriteLog { off: true, next_write, next_completion, cuts: cuts + 1, ..WriteLog::default() };
        self.backing.sync()?;
        Ok(survival)
    }
}

impl WriteLog {
    pub(super) fn is_off(&self) -> bool {
        self.off
    }

    pub(super) fn switch(&mut self, off: bool) {
        self.off = off;
    }

    fn check_power(&self) -> Result<(), DeviceError> {
        if self.off { Err(DeviceError::Gone) } else { Ok(()) }
    }

    fn complete(&mut self, number: u64) {
        self.completed.insert(self.next_completion, number);
        self.next_completion += 1;
    }

    /// The write stays in any case, and with it all that it overwrote.
    fn keep(&mut self, number: u64) {
        let Some(write) = self.writes.remove(&number) else { return };
        self.held_bytes -= write.blocks * BLOCK as u64;
        for block in write.first_block..write.first_block + write.blocks {
            if let Some(versions) = self.blocks.get_mut(&block) {
                versions.retain(|version| version.write > number);
                if versions.is_empty() {
                    self.blocks.remove(&block);
                }
            }
        }
    }

    /// A fate for each unflushed write: completed ones in their order, then those in flight.
    fn decide(&self, cut: PowerCut) -> HashMap<u64, BlockFate> {
        let mut random = Pcg64Mcg::seed_from_u64(cut.seed);
        let completed: HashSet<u64> = self.completed.values().copied().collect();
        let under_way = self.writes.keys().copied().filter(|number| !completed.contains(number));
        let order: Vec<u64> = self.completed.values().copied().chain(under_way).collect();
        // Drawn for each cut, so that a cut that takes all and one that takes nothing are both likely.
        let share: f64 = random.random();
        let survivors = random.random_range(0..=order.len());
        let mut fates = HashMap::with_capacity(order.len());
        for (position, number) in order.into_iter().enumerate() {
            let blocks = self.writes[&number].blocks as usize;
            let may_tear = cut.torn && blocks > 1;
            let fate = if cut.reordered {
                match random.random_bool(share) {
                    _ if may_tear && random.random_bool(0.3) => {
                        BlockFate::Torn((0..blocks).map(|_| random.random_bool(0.5)).collect())
                    }
                    true => BlockFate::Survived,
                    false => BlockFate::Lost,
                }
            } else if position < survivors {
                BlockFate::Survived
            } else if position == survivors && may_tear {
                let landed = random.random_range(0..=blocks);
                BlockFate::Torn((0..blocks).map(|block| block < landed).collect())
            } else {
                BlockFate::Lost
            };
            fates.insert(number, fate);
        }
        fates
    }
}

/// The paced device's view of an armed one's backing: the data has moved before its time begins.
pub(super) struct MovedBacking(pub Arc<dyn Backing>);

impl Backing for MovedBacking {
    fn read(&self, offset_bytes: u64, buffer: &mut [u8]) -> Result<(), DeviceError> {
        self.0.read(offset_bytes, buffer)
    }

    fn write(&self, _offset_bytes: u64, _data: &[u8]) -> Result<(), DeviceError> {
        Ok(())
    }

    fn discard(&self, _offset_bytes: u64, _length_bytes: u64) -> Result<(), DeviceError> {
        Ok(())
    }

    fn holds(&self, offset_bytes: u64, length_bytes: u64) -> Result<bool, DeviceError> {
        self.0.holds(offset_bytes, length_bytes)
    }

    fn sync(&self) -> Result<(), DeviceError> {
        self.0.sync()
    }
}
