//! The table of a cache: which block is in which slot, and how it stands.

use std::collections::{BTreeMap, BTreeSet};

const NOBODY: u32 = u32::MAX;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LineState {
    Empty,
    /// Being filled or overwritten: not to be read.
    Filling,
    /// As on the slow device.
    Clean,
    /// Newer than on the slow device.
    Dirty,
    /// As on the slow device, but the journal may still call it dirty: not to be reused.
    Releasing,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct CacheLine {
    pub block: u32,
    pub standing: LineState,
    /// The last record of the journal calls it dirty.
    pub journalled: bool,
    /// Asked for since the clock's hand came by.
    used: bool,
    /// Reads in flight from the slot.
    pub pins: u16,
    /// The slot's dirty data is being overwritten: its content changes once more.
    pub writing: bool,
    /// Counts changes of the content, and of the block.
    pub version: u32,
    /// Counts blocks that the slot was given to.
    pub tenancy: u32,
}

/// Set-associative: block `b` may be in the slots `way * sets + b % sets`, so that neighbours in one way are
/// neighbours on the fast device too.
#[derive(Debug)]
pub(super) struct CacheLines {
    lines: Vec<CacheLine>,
    sets: u32,
    ways: u32,
    /// Where the last block went: the next one had best go beside it.
    way: u32,
    /// Block by block, so that they are written back in the slow device's order.
    pub dirty: BTreeMap<u32, u32>,
    /// Slots that a flush has to tell the journal of.
    pub unjournalled: BTreeSet<u32>,
    pub cached: u64,
}

impl CacheLines {
    pub(super) fn new(slots: u32, ways: u32) -> CacheLines {
        let line = CacheLine {
            block: NOBODY,
            standing: LineState::Empty,
            journalled: false,
            used: false,
            pins: 0,
            writing: false,
            version: 0,
            tenancy: 0,
        };
        let sets = slots / ways;
        CacheLines {
            lines: vec![line; (sets * ways) as usize],
            sets,
            ways,
            way: 0,
            dirty: BTreeMap::new(),
            unjournalled: BTreeSet::new(),
            cached: 0,
        }
    }

    pub(super) fn len(&self) -> u32 {
        self.sets * self.ways
    }

    pub(super) fn get(&self, slot: u32) -> &CacheLine {
        &self.lines[slot as usize]
    }

    pub(super) fn pin(&mut self, slot: u32) {
        let line = &mut self.lines[slot as usize];
        line.pins += 1;
        line.used = true;
    }

    pub(super) fn unpin(&mut self, slot: u32) {
        self.lines[slot as usize].pins -= 1;
    }

    fn slots_of(&self, block: u32) -> impl Iterator<Item = u32> + use<> {
        let (set, sets) = (block % self.sets, self.sets);
        (0..self.ways).map(move |way| way * sets + set)
    }

    pub(super) fn find(&self, block: u32) -> Option<u32> {
        self.slots_of(block).find(|slot| self.get(*slot).block == block)
    }

    /// The slots of cached blocks in a range, by block.
    pub(super) fn find_all(&self, blocks: std::ops::Range<u64>) -> Vec<(u32, u32)> {
        if blocks.end - blocks.start <= u64::from(self.len()) {
            let found = blocks.filter_map(|block| Some((block as u32, self.find(block as u32)?)));
            return found.collect();
        }
        let occupied = (0..self.len()).map(|slot| (self.get(slot).block, slot));
        let mut found: Vec<(u32, u32)> =
            occupied.filter(|(block, _)| *block != NOBODY && blocks.contains(&u64::from(*block))).collect();
        found.sort_unstable();
        found
    }

    /// Gives a slot of its set to `block`, which is in none: an empty one, or that of a clean block which was
    /// not asked for lately. `None` when all are taken.
    pub(super) fn assign(&mut self, block: u32) -> Option<u32> {
        let set = block % self.sets;
        // CLOCK: the first round spares what was used lately and takes its mark off, so the second one can
        // take it.
        for round in 0..2 {
            for step in 0..self.ways {
                let way = (self.way + step) % self.ways;
                let slot = way * self.sets + set;
                let line = &mut self.lines[slot as usize];
                let free = match line.standing {
                    LineState::Empty => true,
                    LineState::Clean if line.pins == 0 => !std::mem::take(&mut line.used) || round == 1,
                    _ => false,
                };
                if free {
                    self.clear(slot);
                    let line = &mut self.lines[slot as usize];
                    line.block = block;
                    line.standing = LineState::Filling;
                    line.used = false;
                    line.version = line.version.wrapping_add(1);
                    line.tenancy = line.tenancy.wrapping_add(1);
                    self.cached += 1;
                    self.way = way;
                    return Some(slot);
                }
            }
        }
        None
    }

    /// The content is about to change (`writing`), or has changed.
    pub(super) fn touch(&mut self, slot: u32, writing: bool) {
        let line = &mut self.lines[slot as usize];
        line.writing = writing;
        line.version = line.version.wrapping_add(1);
        line.used = true;
    }

    pub(super) fn set_standing(&mut self, slot: u32, standing: LineState) {
        let line = &mut self.lines[slot as usize];
        line.standing = standing;
        let (block, journalled) = (line.block, line.journalled);
        if standing == LineState::Dirty {
            self.dirty.insert(block, slot);
            if !journalled {
                self.unjournalled.insert(slot);
            }
        } else {
            self.dirty.remove(&block);
            self.unjournalled.remove(&slot);
        }
    }

    pub(super) fn set_journalled(&mut self, slot: u32, journalled: bool) {
        self.lines[slot as usize].journalled = journalled;
        if journalled {
            self.unjournalled.remove(&slot);
        }
    }

    /// Takes the block out of its slot.
    pub(super) fn clear(&mut self, slot: u32) {
        if self.get(slot).block == NOBODY {
            return;
        }
        self.set_standing(slot, LineState::Empty);
        self.lines[slot as usize].block = NOBODY;
        self.cached -= 1;
    }

    /// Restores the journal's state: `false` if it can't be.
    pub(super) fn restore(&mut self, slot: u32, block: Option<u32>) -> bool {
        if slot >= self.len() {
            return false;
        }
        self.set_journalled(slot, false);
        self.clear(slot);
        let Some(block) = block else { return true };
        if block % self.sets != slot % self.sets || self.find(block).is_some() {
            return false;
        }
        self.lines[slot as usize].block = block;
        self.cached += 1;
        self.set_journalled(slot, true);
        self.set_standing(slot, LineState::Dirty);
        true
    }

    /// Every dirty block that the journal knows, with its slot.
    pub(super) fn journalled(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        let journalled_lines = self.dirty.iter().filter(|(_, slot)| self.get(**slot).journalled);
        journalled_lines.map(|(block, slot)| (*slot, *block))
    }

    /// Up to `most` dirty blocks from `from` on, and from the beginning again. Not those being written: what
    /// is read from them now is old, and nothing would tell once it has been written back.
    pub(super) fn dirty_from(&self, from: u32, most: usize) -> Vec<(u32, u32)> {
        let candidates = self.dirty.range(from..).chain(self.dirty.range(..from));
        let still = candidates.filter(|(_, slot)| !self.get(**slot).writing);
        let mut found: Vec<(u32, u32)> = still.take(most).map(|(block, slot)| (*block, *slot)).collect();
        found.sort_unstable();
        found
    }
}
