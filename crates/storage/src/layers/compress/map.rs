//! Where each chunk lies, and how the journal keeps it.

use std::collections::{BTreeMap, BTreeSet};

use super::space::{UnitBitmap, UnitRun};

/// Where a chunk lies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ChunkEntry {
    /// The length of what is stored; a whole chunk is stored as it is.
    pub stored_bytes: u32,
    /// In this order.
    pub runs: Vec<UnitRun>,
}

impl ChunkEntry {
    pub(super) fn units(&self) -> u32 {
        self.runs.iter().map(|run| run.count).sum()
    }
}

/// The table of chunks; what is not in it reads as zeros. It knows which of its entries the journal has.
#[derive(Debug, Default)]
pub(super) struct ChunkMap {
    now: BTreeMap<u32, ChunkEntry>,
    /// Chunks with another entry in the journal, and that entry.
    journalled: BTreeMap<u32, Option<ChunkEntry>>,
    /// Changed since the last [`ChunkMap::capture`].
    changed: BTreeSet<u32>,
    pub stored_bytes: u64,
    pub used_units: u64,
}

/// The changes that a flush takes along.
pub(super) type ChunkChanges = Vec<(u32, Option<ChunkEntry>)>;

impl ChunkMap {
    pub(super) fn get(&self, chunk: u32) -> Option<&ChunkEntry> {
        self.now.get(&chunk)
    }

    pub(super) fn len(&self) -> usize {
        self.now.len()
    }

    /// The chunks that are stored, of those in a range.
    pub(super) fn stored_in(&self, chunks: std::ops::Range<u32>) -> Vec<u32> {
        self.now.range(chunks).map(|(chunk, _)| *chunk).collect()
    }

    /// Changes an entry. Returns the old one, and whether a flush has taken it along or the journal has it:
    /// if not, nobody will ever look for it again.
    pub(super) fn set(&mut self, chunk: u32, entry: Option<ChunkEntry>) -> Option<(ChunkEntry, bool)> {
        let captured = self.changed.insert(chunk);
        let old = self.put(chunk, entry);
        self.journalled.entry(chunk).or_insert_with(|| old.clone());
        old.map(|old| (old, captured))
    }

    fn put(&mut self, chunk: u32, entry: Option<ChunkEntry>) -> Option<ChunkEntry> {
        if let Some(entry) = &entry {
            self.stored_bytes += u64::from(entry.stored_bytes);
            self.used_units += u64::from(entry.units());
        }
        let old = match entry {
            Some(entry) => self.now.insert(chunk, entry),
            None => self.now.remove(&chunk),
        };
        if let Some(old) = &old {
            self.stored_bytes -= u64::from(old.stored_bytes);
            self.used_units -= u64::from(old.units());
        }
        old
    }

    /// Everything that changed since the last time.
    pub(super) fn capture(&mut self) -> ChunkChanges {
        let changed = std::mem::take(&mut self.changed);
        changed.into_iter().map(|chunk| (chunk, self.now.get(&chunk).cloned())).collect()
    }

    /// The captured changes did not get into the journal.
    pub(super) fn give_back(&mut self, changes: ChunkChanges) {
        self.changed.extend(changes.into_iter().map(|(chunk, _)| chunk));
    }

    /// The captured changes are in the journal.
    pub(super) fn note_journalled(&mut self, changes: &ChunkChanges) {
        for (chunk, entry) in changes {
            if self.now.get(chunk) == entry.as_ref() {
                self.journalled.remove(chunk);
            } else {
                self.journalled.insert(*chunk, entry.clone());
            }
        }
    }

    /// The table as the journal has it.
    pub(super) fn snapshot(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        // Not the entries of now, which may point to what no flush has made durable.
        for (chunk, entry) in &self.now {
            match self.journalled.get(chunk) {
                None => encode(*chunk, Some(entry), &mut bytes),
                Some(None) => {}
                Some(entry) => encode(*chunk, entry.as_ref(), &mut bytes),
            }
        }
        for (chunk, entry) in self.journalled.iter().filter(|(chunk, _)| !self.now.contains_key(chunk)) {
            if entry.is_some() {
                encode(*chunk, entry.as_ref(), &mut bytes);
            }
        }
        bytes
    }

    /// The longest snapshot for this many chunks on this many units.
    pub(super) fn snapshot_bytes(chunks: u64, units: u64) -> u64 {
        ENTRY_BYTES * chunks.min(units) + RUN_BYTES * units
    }

    /// Takes in a snapshot or a record. `false` if it is none.
    pub(super) fn apply(&mut self, mut bytes: &[u8]) -> bool {
        while !bytes.is_empty() {
            let Some((chunk, entry, rest)) = decode(bytes) else { return false };
            self.put(chunk, entry);
            bytes = rest;
        }
        true
    }

    /// Takes every unit in use; `false` if two chunks share one, or a chunk or unit lies outside.
    pub(super) fn fill(&self, space: &mut UnitBitmap, chunks: u32, chunk_bytes: u32) -> bool {
        self.now.iter().all(|(chunk, entry)| {
            *chunk < chunks
                && entry.stored_bytes <= chunk_bytes
                && u64::from(entry.stored_bytes) <= u64::from(entry.units()) * super::UNIT_BYTES
                && entry.runs.iter().all(|run| space.take(*run))
        })
    }
}

// As `encode` writes them: 4 + 4 + 1 bytes, and 4 + 2.
const ENTRY_BYTES: u64 = 9;
const RUN_BYTES: u64 = 6;

/// Chunk, stored length, number of runs, and the runs: start and count.
fn encode(chunk: u32, entry: Option<&ChunkEntry>, bytes: &mut Vec<u8>) {
    bytes.extend(chunk.to_le_bytes());
    let (stored_bytes, runs) = entry.map_or((0, [].as_slice()), |e| (e.stored_bytes, e.runs.as_slice()));
    bytes.extend(stored_bytes.to_le_bytes());
    // At most 128, as many units as the longest chunk has.
    bytes.push(runs.len() as u8);
    for run in runs {
        bytes.extend(run.start.to_le_bytes());
        bytes.extend((run.count as u16).to_le_bytes());
    }
}

fn decode(bytes: &[u8]) -> Option<(u32, Option<ChunkEntry>, &[u8])> {
    let (chunk, rest) = bytes.split_first_chunk::<4>()?;
    let (stored, rest) = rest.split_first_chunk::<4>()?;
    let (count, mut rest) = rest.split_first()?;
    let mut runs = Vec::with_capacity(usize::from(*count));
    for _ in 0..*count {
        let (start, after) = rest.split_first_chunk::<4>()?;
        let (count, after) = after.split_first_chunk::<2>()?;
        runs.push(UnitRun {
            start: u32::from_le_bytes(*start),
            count: u32::from(u16::from_le_bytes(*count)),
        });
        rest = after;
    }
    let stored_bytes = u32::from_le_bytes(*stored);
    let entry = (stored_bytes > 0).then_some(ChunkEntry { stored_bytes, runs });
    Some((u32::from_le_bytes(*chunk), entry, rest))
}

/// Records for changes, each of a handy length.
pub(super) fn records(changes: &ChunkChanges) -> Vec<Vec<u8>> {
    let encoded = changes.chunks(1024).map(|some| {
        let mut bytes = Vec::new();
        some.iter().for_each(|(chunk, entry)| encode(*chunk, entry.as_ref(), &mut bytes));
        bytes
    });
    encoded.collect()
}
