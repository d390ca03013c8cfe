//! A page-mapped flash translation layer: the block and slot of each logical unit, and garbage collection.
//!
//! Writes fill the host's open block slot by slot, copies fill garbage collection's own. When free blocks run
//! out, the closed block with the fewest valid units is emptied and erased (greedy). Nothing here knows of
//! time or bytes.

mod buckets;

use std::collections::VecDeque;

use rand::RngExt;
use rand_pcg::Pcg64Mcg;

use buckets::ValidBuckets;

/// Blocks on top of the spare, without which nothing goes on: the host's open one, garbage collection's, and the
/// free one that it needs to begin. The spare is what full blocks may hold of stale units.
const WORKING_BLOCKS: u32 = 3;

/// With fewer free blocks than these, blocks are collected as the host writes.
const BLOCKS_KEPT_FREE: u32 = 3;

/// In `place` and `content`: nothing. Slots and units are stored one higher, so that a new table is zeros,
/// which cost no memory until they are written.
const NONE: u32 = 0;

#[derive(Clone, Debug)]
pub struct Ftl {
    block_units: u32,
    /// The slot of each logical unit, plus one.
    place: Vec<u32>,
    /// The logical unit that each slot holds, plus one; nothing when it is free or stale.
    content: Vec<u32>,
    /// Units held by each block that are not stale.
    valid: Vec<u32>,
    /// Full, and neither open nor free.
    closed: Vec<bool>,
    /// The closed ones by what they hold.
    buckets: ValidBuckets,
    free: VecDeque<u32>,
    host: OpenBlock,
    gc: OpenBlock,
    /// The units of the last victim's space that the host may still write.
    room_units: u32,
    recycled: bool,
}

/// A block that is being filled.
#[derive(Clone, Copy, Debug)]
struct OpenBlock {
    block: u32,
    filled: u32,
}

/// Garbage collection's work, in units.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CollectionResult {
    pub copied: u64,
    /// Stale ones that went with the erased blocks.
    pub freed: u64,
}

impl CollectionResult {
    fn add(&mut self, other: CollectionResult) {
        self.copied += other.copied;
        self.freed += other.freed;
    }

    /// Units programmed for each that the host wrote, as long as it goes on like this.
    pub fn write_amplification(&self) -> f64 {
        if self.freed == 0 { 1.0 } else { 1.0 + self.copied as f64 / self.freed as f64 }
    }
}

impl Ftl {
    /// A device of `units` logical units as it leaves the factory, with `blocks` of `block_units` for them and
    /// the spare.
    pub fn fresh(units: u32, block_units: u32, blocks: u32) -> Ftl {
        let total = blocks.max(units.div_ceil(block_units)) + WORKING_BLOCKS;
        let mut free: VecDeque<u32> = (0..total).collect();
        let mut open = || OpenBlock { block: free.pop_front().unwrap_or_default(), filled: 0 };
        let (host, gc) = (open(), open());
        Ftl {
            block_units,
            place: vec![NONE; units as usize],
            content: vec![NONE; total as usize * block_units as usize],
            valid: vec![0; total as usize],
            closed: vec![false; total as usize],
            buckets: ValidBuckets::new(total, block_units),
            free,
            host,
            gc,
            room_units: 0,
            recycled: false,
        }
    }

    /// The same device after it was written whole and then over and over at random, and what its garbage
    /// collection does from then on.
    ///
    /// The state is built near its equilibrium and then written over once more: random writes wear a block's
    /// valid units away exponentially with its age, down to the share at which the oldest is collected.
    pub fn steady(
        units: u32,
        block_units: u32,
        blocks: u32,
        random: &mut Pcg64Mcg,
    ) -> (Ftl, CollectionResult) {
        let mut ftl = Ftl::fresh(units, block_units, blocks);
        ftl.deal(random);
        // Not counted: these writes only let the state settle.
        for _ in 0..units / 2 {
            ftl.write(random.random_range(0..units));
        }
        let mut collected = CollectionResult::default();
        for _ in 0..units.div_ceil(2) {
            collected.add(ftl.write(random.random_range(0..units)));
        }
        (ftl, collected)
    }

    /// Maps every unit, at random, to closed blocks of every age.
    fn deal(&mut self, random: &mut Pcg64Mcg) {
        let units = self.place.len() as u32;
        let mut order: Vec<u32> = (0..units).collect();
        // The shuffle of Fisher and Yates (Knuth, TAOCP vol. 2, 3.4.2, algorithm P).
        for index in (1..units).rev() {
            order.swap(index as usize, random.random_range(0..=index) as usize);
        }
        let ages = self.valid.len() as u32 - WORKING_BLOCKS;
        let slots = f64::from(ages) * f64::from(self.block_units);
        let decay = decay(f64::from(units) / slots);
        let mut rest = order.into_iter();
        let mut owed = 0.0;
        for age in 0..ages {
            let block = self.free.pop_front().expect("a free block for every age, and one more");
            // The rest must fit into the younger blocks' places.
            let room_after = u64::from(ages - 1 - age) * u64::from(self.block_units);
            let least = (rest.len() as u64).saturating_sub(room_after);
            owed += f64::from(self.block_units) * (-decay * (f64::from(age) + 0.5) / f64::from(ages)).exp();
            let share = (owed.round().max(0.0) as u64).max(least).min(u64::from(self.block_units)) as u32;
            owed -= f64::from(share);
            for slot in 0..share {
                let Some(unit) = rest.next() else { break };
                self.put(unit, block * self.block_units + slot);
            }
            self.close(block);
        }
        self.recycled = true;
    }

    #[cfg(test)]
    pub fn mapped_units(&self) -> u64 {
        self.valid.iter().map(|valid| u64::from(*valid)).sum()
    }

    #[cfg(test)]
    pub fn memory_bytes(&self) -> usize {
        let tables = 4 * (self.place.len() + self.content.len() + self.valid.len()) + self.closed.len();
        tables + self.buckets.memory_bytes()
    }

    /// Whether any block had to be erased for another use.
    pub fn has_recycled(&self) -> bool {
        self.recycled
    }

    /// The units that the host may still write before the next collection.
    pub fn room_units(&self) -> u32 {
        let free = (self.free.len() as u32 + 1).saturating_sub(BLOCKS_KEPT_FREE);
        let until_scarce = if free == 0 { 0 } else { free * self.block_units - self.host.filled };
        self.room_units.max(until_scarce)
    }

    /// The host writes a unit; what had to be collected to make room for it.
    pub fn write(&mut self, unit: u32) -> CollectionResult {
        let mut collected = CollectionResult::default();
        if self.host.filled == self.block_units {
            self.close(self.host.block);
            // One block must be left to garbage collection.
            while self.free.len() < 2 {
                let victim = self.victim().expect("the host's block has just been closed");
                collected.add(self.collect(victim));
            }
            self.host = self.open();
        } else if self.room_units == 0 && (self.free.len() as u32) < BLOCKS_KEPT_FREE {
            // In good time, so that no write has to collect many blocks.
            match self.victim().filter(|&victim| self.valid[victim] < self.block_units) {
                Some(victim) => collected.add(self.collect(victim)),
                // Nothing would be gained now; it is looked for again after some writes.
                None => self.room_units = self.block_units / 8 + 1,
            }
        }
        self.room_units = self.room_units.saturating_sub(1);
        let slot = self.host.block * self.block_units + self.host.filled;
        self.host.filled += 1;
        self.discard(unit);
        self.put(unit, slot);
        collected
    }

    /// The host no longer needs a unit's content.
    pub fn discard(&mut self, unit: u32) {
        let slot = std::mem::replace(&mut self.place[unit as usize], NONE);
        if slot != NONE {
            self.content[slot as usize - 1] = NONE;
            let block = (slot - 1) / self.block_units;
            if self.closed[block as usize] {
                self.buckets.lose_one(block, self.valid[block as usize]);
            }
            self.valid[block as usize] -= 1;
        }
    }

    /// A block takes no more units.
    fn close(&mut self, block: u32) {
        self.closed[block as usize] = true;
        self.buckets.insert(block, self.valid[block as usize]);
    }

    fn put(&mut self, unit: u32, slot: u32) {
        self.place[unit as usize] = slot + 1;
        self.content[slot as usize] = unit + 1;
        self.valid[(slot / self.block_units) as usize] += 1;
    }

    fn open(&mut self) -> OpenBlock {
        let block = self.free.pop_front().expect("garbage collection keeps a free block");
        OpenBlock { block, filled: 0 }
    }

    /// The closed block that holds the least; of several the first.
    fn victim(&mut self) -> Option<usize> {
        let found = self.buckets.first();
        #[cfg(test)]
        assert_eq!(found, self.victim_by_scan());
        found
    }

    /// The same, the long way.
    #[cfg(test)]
    fn victim_by_scan(&self) -> Option<usize> {
        let closed = (0..self.valid.len()).filter(|&block| self.closed[block]);
        closed.min_by_key(|&block| self.valid[block])
    }

    /// Empties and erases a block.
    fn collect(&mut self, victim: usize) -> CollectionResult {
        self.recycled = true;
        let copied = self.valid[victim];
        self.closed[victim] = false;
        self.buckets.remove(victim as u32, copied);
        let first = victim as u32 * self.block_units;
        for slot in first..first + self.block_units {
            let unit = std::mem::replace(&mut self.content[slot as usize], NONE);
            if unit == NONE {
                continue;
            }
            if self.gc.filled == self.block_units {
                self.close(self.gc.block);
                self.gc = self.open();
            }
            let to = self.gc.block * self.block_units + self.gc.filled;
            self.gc.filled += 1;
            self.valid[victim] -= 1;
            self.put(unit - 1, to);
        }
        self.free.push_back(victim as u32);
        self.room_units += self.block_units - copied;
        CollectionResult { copied: u64::from(copied), freed: u64::from(self.block_units - copied) }
    }
}

/// How a block's valid share falls with its age, `exp(-decay * age)` with ages from 0 to 1, when the mean over
/// all ages is `mean`. The oldest is what greedy collection finds under uniform random writes (Menon and
/// Stockmeyer's and later Desnoyers' limit for large blocks).
fn decay(mean: f64) -> f64 {
    let average = |decay: f64| (1.0 - (-decay).exp()) / decay;
    let (mut low, mut high) = (1e-9, 1e3);
    for _ in 0..100 {
        let middle = (low + high) / 2.0;
        if average(middle) > mean { low = middle } else { high = middle }
    }
    low
}

/// Write amplification in the steady state of uniform random writes, for large blocks, by over-provisioning
/// as a share of the logical capacity.
pub fn uniform_write_amplification(over_provisioning: f64) -> f64 {
    1.0 / (1.0 - (-decay(1.0 / (1.0 + over_provisioning))).exp())
}

#[cfg(test)]
mod tests;
