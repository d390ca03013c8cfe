//! Finds free blocks of the device, and chooses which of them to use.
//!
//! The device is divided into groups. A directory has a home in one of them, and its files begin there. A file
//! continues after its own last block where it can. So related data lies together, and a disk's arm stays near.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use super::extents::BlockRun;

/// As on ext4 with blocks of 4 KiB: 128 MiB. A smaller device has [`MIN_GROUPS`] smaller ones.
const GROUP_BLOCKS: u64 = 32_768;
const MIN_GROUPS: u64 = 8;

/// How many free runs are checked for a near one, before any that is long enough will do.
const NEAR_RUNS: usize = 256;

#[derive(Clone, Debug)]
pub(super) struct BlockAllocator {
    range: Range<u64>,
    group_blocks: u64,
    /// Free runs by their first block; no two touch.
    free: BTreeMap<u64, u64>,
    /// The same by length.
    by_length: BTreeSet<(u64, u64)>,
    free_in_group: Vec<u64>,
    /// The number of directories placed there: they are created before their files are.
    homes_in_group: Vec<u64>,
    free_blocks: u64,
}

/// Used blocks were to be allocated, or free ones to be freed: the metadata contradicts itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("blocks {} to {} are outside the device or belong to another file as well", .0.start, .0.end())]
pub(super) struct AllocationOverlap(pub BlockRun);

impl BlockAllocator {
    /// All blocks of `range` are free.
    pub(super) fn new(range: Range<u64>) -> BlockAllocator {
        let blocks = range.end.saturating_sub(range.start);
        let group_blocks = GROUP_BLOCKS.min(blocks / MIN_GROUPS).max(1);
        let groups = blocks.div_ceil(group_blocks);
        let mut allocator = BlockAllocator {
            group_blocks,
            free: BTreeMap::new(),
            by_length: BTreeSet::new(),
            free_in_group: vec![0; groups as usize],
            homes_in_group: vec![0; groups as usize],
            free_blocks: 0,
            range: range.clone(),
        };
        if blocks > 0 {
            allocator.insert(BlockRun { start: range.start, count: blocks });
            allocator.count(BlockRun { start: range.start, count: blocks }, true);
        }
        allocator
    }

    pub(super) fn free_blocks(&self) -> u64 {
        self.free_blocks
    }

    pub(super) fn total_blocks(&self) -> u64 {
        self.range.end - self.range.start
    }

    /// The free runs in order.
    #[cfg(test)]
    pub(super) fn free_runs(&self) -> impl Iterator<Item = BlockRun> + '_ {
        self.free.iter().map(|(&start, &count)| BlockRun { start, count })
    }

    /// Takes one run of at most `wanted` blocks: at `goal` if that is free, after it where a run is long enough, or
    /// anywhere else where one is. As a last resort it takes the longest run that there is. `None` when nothing is
    /// free.
    pub(super) fn allocate(&mut self, goal: u64, wanted: u64) -> Option<BlockRun> {
        if wanted == 0 {
            return None;
        }
        let run = self
            .allocate_near(goal, wanted)
            .or_else(|| self.near(goal, wanted))
            .or_else(|| self.any(wanted))?;
        self.remove_part(run);
        self.count(run, false);
        Some(run)
    }

    fn allocate_near(&self, goal: u64, wanted: u64) -> Option<BlockRun> {
        let (&start, &count) = self.free.range(..=goal).next_back()?;
        let left = (start + count).checked_sub(goal).filter(|left| *left > 0)?;
        // A small run at the goal would only fragment the file.
        (left >= wanted.min(16)).then_some(BlockRun { start: goal, count: left.min(wanted) })
    }

    fn near(&self, goal: u64, wanted: u64) -> Option<BlockRun> {
        let following = self.free.range(goal..).take(NEAR_RUNS);
        let group = goal.saturating_sub(self.range.start) / self.group_blocks;
        let group_start = self.range.start + group * self.group_blocks;
        let before = self.free.range(group_start.min(goal)..goal).take(NEAR_RUNS);
        following
            .chain(before)
            .find(|(_, count)| **count >= wanted)
            .map(|(&start, _)| BlockRun { start, count: wanted })
    }

    fn any(&self, wanted: u64) -> Option<BlockRun> {
        let &(count, start) = self.by_length.range((wanted, 0)..).next().or_else(|| self.by_length.last())?;
        Some(BlockRun { start, count: count.min(wanted) })
    }

    /// Marks blocks as used that the metadata says are used.
    pub(super) fn take(&mut self, run: BlockRun) -> Result<(), AllocationOverlap> {
        if run.count == 0 {
            return Ok(());
        }
        let end = run.start.checked_add(run.count).ok_or(AllocationOverlap(BlockRun { count: 0, ..run }))?;
        match self.free.range(..=run.start).next_back() {
            Some((&start, &count)) if start + count >= end => {
                self.remove_part(run);
                self.count(run, false);
                Ok(())
            }
            _ => Err(AllocationOverlap(run)),
        }
    }

    /// Frees blocks.
    pub(super) fn release(&mut self, run: BlockRun) -> Result<(), AllocationOverlap> {
        if run.count == 0 {
            return Ok(());
        }
        let before =
            self.free.range(..run.end()).next_back().map(|(&start, &count)| BlockRun { start, count });
        if run.start < self.range.start
            || run.end() > self.range.end
            || before.is_some_and(|before| before.end() > run.start)
        {
            return Err(AllocationOverlap(run));
        }
        let mut whole = run;
        if let Some(before) = before.filter(|before| before.end() == run.start) {
            self.remove(before);
            whole = BlockRun { start: before.start, count: before.count + whole.count };
        }
        if let Some(&count) = self.free.get(&run.end()) {
            self.remove(BlockRun { start: run.end(), count });
            whole.count += count;
        }
        self.insert(whole);
        self.count(run, true);
        Ok(())
    }

    /// Where a new directory's files should begin: near its parent. A directory at the top, or with a parent whose
    /// group is nearly full, goes to the emptiest group. Among equally empty groups the one with the fewest directories
    /// is taken.
    pub(super) fn home(&mut self, parent_home: u64, at_the_top: bool) -> u64 {
        let group = self.group(parent_home);
        let crowded = self.free_in_group.get(group).is_none_or(|free| *free < self.group_blocks / 8);
        if !at_the_top && !crowded {
            return parent_home;
        }
        let emptiest = (0..self.free_in_group.len())
            .max_by_key(|&index| {
                (self.free_in_group[index], Reverse(self.homes_in_group[index]), Reverse(index))
            })
            .unwrap_or(0);
        let home = self.range.start + emptiest as u64 * self.group_blocks;
        self.settle(home);
        home
    }

    /// Records that a directory has its home there.
    pub(super) fn settle(&mut self, home: u64) {
        let group = self.group(home);
        if let Some(homes) = self.homes_in_group.get_mut(group) {
            *homes += 1;
        }
    }

    fn group(&self, block: u64) -> usize {
        (block.saturating_sub(self.range.start) / self.group_blocks) as usize
    }

    fn insert(&mut self, run: BlockRun) {
        self.free.insert(run.start, run.count);
        self.by_length.insert((run.count, run.start));
    }

    fn remove(&mut self, run: BlockRun) {
        self.free.remove(&run.start);
        self.by_length.remove(&(run.count, run.start));
    }

    /// Removes a part from its free run.
    fn remove_part(&mut self, part: BlockRun) {
        let Some((&start, &count)) = self.free.range(..=part.start).next_back() else { return };
        let whole = BlockRun { start, count };
        self.remove(whole);
        if part.start > whole.start {
            self.insert(BlockRun { start: whole.start, count: part.start - whole.start });
        }
        if whole.end() > part.end() {
            self.insert(BlockRun { start: part.end(), count: whole.end() - part.end() });
        }
    }

    fn count(&mut self, run: BlockRun, freed: bool) {
        let mut block = run.start;
        while block < run.end() {
            let group = self.group(block);
            let group_end = self.range.start + (group as u64 + 1) * self.group_blocks;
            let part = group_end.min(run.end()) - block;
            let Some(free) = self.free_in_group.get_mut(group) else { break };
            if freed {
                *free += part;
            } else {
                *free -= part;
            }
            block += part;
        }
        if freed {
            self.free_blocks += run.count;
        } else {
            self.free_blocks -= run.count;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn allocator_growing_file_stays_contiguous() {
        let mut allocator = BlockAllocator::new(100..100_000);
        let mut goal = 100;
        for _ in 0..50 {
            let run = allocator.allocate(goal, 64).unwrap();
            assert_eq!(run, BlockRun { start: goal, count: 64 });
            goal = run.end();
        }
    }

    #[test]
    fn directories_at_the_top_spread_and_those_below_stay() {
        let mut allocator = BlockAllocator::new(0..800);
        let first = allocator.home(0, true);
        allocator.allocate(first, 50).unwrap();
        let second = allocator.home(0, true);
        assert_ne!(first / 100, second / 100);
        assert_eq!(allocator.home(second, false), second);
        allocator.allocate(second, 95).unwrap();
        assert_ne!(allocator.home(second, false) / 100, second / 100);
    }

    #[test]
    fn allocator_directories_made_first_spread_files() {
        let mut allocator = BlockAllocator::new(0..800);
        let homes: BTreeSet<u64> = (0..8).map(|_| allocator.home(0, true)).collect();
        assert_eq!(homes.len(), 8, "{homes:?}");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(300))]

        /// Compared with a set of free blocks: whatever is allocated was free, and free and used blocks are all blocks.
        #[test]
        fn allocator_random_steps_never_overlap_or_leak(
            steps in proptest::collection::vec((any::<bool>(), 0..300_u64, 1..40_u64), 0..80),
        ) {
            let mut allocator = BlockAllocator::new(10..300);
            let mut free: BTreeSet<u64> = (10..300).collect();
            let mut used: Vec<BlockRun> = Vec::new();
            for (take, goal, count) in steps {
                if take || used.is_empty() {
                    match allocator.allocate(goal, count) {
                        None => prop_assert!(free.is_empty()),
                        Some(run) => {
                            prop_assert!(run.count >= 1 && run.count <= count);
                            for block in run.start..run.end() {
                                prop_assert!(free.remove(&block));
                            }
                            used.push(run);
                        }
                    }
                } else {
                    let run = used.swap_remove(goal as usize % used.len());
                    prop_assert_eq!(allocator.release(run), Ok(()));
                    prop_assert_eq!(allocator.release(run), Err(AllocationOverlap(run)));
                    free.extend(run.start..run.end());
                }
                let runs: Vec<BlockRun> = allocator.free_runs().collect();
                let listed: BTreeSet<u64> = runs.iter().flat_map(|run| run.start..run.end()).collect();
                prop_assert_eq!(&listed, &free);
                prop_assert!(runs.windows(2).all(|pair| pair[0].end() < pair[1].start), "{:?}", runs);
                prop_assert_eq!(allocator.free_blocks(), free.len() as u64);
                prop_assert_eq!(allocator.free_in_group.iter().sum::<u64>(), free.len() as u64);
                prop_assert_eq!(allocator.by_length.len(), runs.len());
            }
            // What is free can be marked as used exactly once.
            for run in allocator.free_runs().collect::<Vec<_>>() {
                prop_assert_eq!(allocator.take(run), Ok(()));
                prop_assert_eq!(allocator.take(run), Err(AllocationOverlap(run)));
            }
            prop_assert_eq!(allocator.free_blocks(), 0);
        }
    }
}
