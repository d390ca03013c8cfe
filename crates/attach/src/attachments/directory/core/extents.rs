//! Where a file's blocks lie: runs of file blocks mapped to runs of device blocks.

use std::collections::BTreeMap;
use std::ops::Range;

/// Blocks that lie side by side on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct BlockRun {
    pub start: u64,
    pub count: u64,
}

impl BlockRun {
    pub(super) fn end(&self) -> u64 {
        self.start + self.count
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FileExtent {
    device: u64,
    count: u64,
    content: ExtentContent,
}

/// The contents of blocks that a file has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ExtentContent {
    Unwritten,
    Written,
    Doubtful,
}

/// A piece of a file: mapped, or a hole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FileSegment {
    /// The first of these blocks in the file.
    pub at: u64,
    pub count: u64,
    pub place: SegmentPlace,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SegmentPlace {
    Hole,
    /// Allocated, but the blocks' content does not belong to the file: it reads as zeros.
    Unwritten(u64),
    Written(u64),
    /// Written, but then a flush failed. It reads as written, but a power cut may turn it into the data of another
    /// file. So the journal calls it unwritten until it is written again.
    Doubtful(u64),
}

impl SegmentPlace {
    /// The first block on the device.
    pub(super) fn device(self) -> Option<u64> {
        match self {
            SegmentPlace::Hole => None,
            SegmentPlace::Unwritten(device)
            | SegmentPlace::Written(device)
            | SegmentPlace::Doubtful(device) => Some(device),
        }
    }

    /// The same, if the file's content is read from there.
    pub(super) fn content(self) -> Option<u64> {
        match self {
            SegmentPlace::Hole | SegmentPlace::Unwritten(_) => None,
            SegmentPlace::Written(device) | SegmentPlace::Doubtful(device) => Some(device),
        }
    }
}

/// The extents of one file, by file block. Neighbours that continue each other are one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ExtentMap {
    extents: BTreeMap<u64, FileExtent>,
    blocks: u64,
}

impl ExtentMap {
    /// The number of extents; each costs metadata.
    pub(super) fn len(&self) -> usize {
        self.extents.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.extents.is_empty()
    }

    /// Blocks that are allocated.
    pub(super) fn blocks(&self) -> u64 {
        self.blocks
    }

    /// Every mapped piece in file order.
    pub(super) fn iter(&self) -> impl Iterator<Item = FileSegment> + '_ {
        self.extents.iter().map(|(&offset, extent)| segment(offset, extent))
    }

    /// The pieces of a range without gaps, holes included.
    pub(super) fn segments(&self, range: Range<u64>) -> Vec<FileSegment> {
        let mut found = Vec::new();
        let mut offset = range.start;
        let first = self.extents.range(..=range.start).next_back().map_or(range.start, |(&start, _)| start);
        for (&start, extent) in self.extents.range(first..range.end.max(first)) {
            let from = start.max(range.start);
            let to = (start + extent.count).min(range.end);
            if from >= to {
                continue;
            }
            if offset < from {
                found.push(FileSegment { at: offset, count: from - offset, place: SegmentPlace::Hole });
            }
            let part = FileExtent { device: extent.device + (from - start), count: to - from, ..*extent };
            found.push(segment(from, &part));
            offset = to;
        }
        if offset < range.end {
            found.push(FileSegment { at: offset, count: range.end - offset, place: SegmentPlace::Hole });
        }
        found
    }

    pub(super) fn place(&self, offset: u64) -> SegmentPlace {
        match self.extents.range(..=offset).next_back() {
            Some((&start, extent)) if offset < start + extent.count => {
                segment(offset, &FileExtent { device: extent.device + (offset - start), ..*extent }).place
            }
            _ => SegmentPlace::Hole,
        }
    }

    /// The mapped piece before a block, whether or not it reaches up to it.
    pub(super) fn segment_before(&self, offset: u64) -> Option<FileSegment> {
        self.extents.range(..offset).next_back().map(|(&start, extent)| segment(start, extent))
    }

    /// The mapped piece that begins after a block.
    pub(super) fn segment_after(&self, offset: u64) -> Option<FileSegment> {
        self.extents.range(offset..).next().map(|(&start, extent)| segment(start, extent))
    }

    /// Maps a range again, and returns the device blocks that it no longer uses.
    pub(super) fn map(&mut self, offset: u64, run: BlockRun, content: ExtentContent) -> Vec<BlockRun> {
        if run.count == 0 {
            return Vec::new();
        }
        let mut replaced = self.cut(offset..offset + run.count);
        // If the blocks are the same, only their mark changes.
        replaced.retain(|(from, old)| run.start + (from - offset) != old.start);
        self.extents.insert(offset, FileExtent { device: run.start, count: run.count, content });
        self.blocks += run.count;
        self.merge_around(offset);
        self.merge_around(offset + run.count);
        replaced.into_iter().map(|(_, old)| old).collect()
    }

    /// Makes a hole, and returns the device blocks that it frees.
    pub(super) fn unmap(&mut self, range: Range<u64>) -> Vec<BlockRun> {
        self.cut(range).into_iter().map(|(_, run)| run).collect()
    }

    /// Takes a range out, by file block.
    fn cut(&mut self, range: Range<u64>) -> Vec<(u64, BlockRun)> {
        if range.is_empty() {
            return Vec::new();
        }
        self.split(range.start);
        self.split(range.end);
        let keys: Vec<u64> = self.extents.range(range).map(|(&offset, _)| offset).collect();
        keys.into_iter()
            .filter_map(|offset| {
                let extent = self.extents.remove(&offset)?;
                self.blocks -= extent.count;
                Some((offset, BlockRun { start: extent.device, count: extent.count }))
            })
            .collect()
    }

    /// Makes `offset` a boundary.
    fn split(&mut self, offset: u64) {
        let Some((&start, extent)) = self.extents.range_mut(..offset).next_back() else { return };
        let head_count = offset - start;
        if head_count >= extent.count {
            return;
        }
        let rest =
            FileExtent { device: extent.device + head_count, count: extent.count - head_count, ..*extent };
        extent.count = head_count;
        self.extents.insert(offset, rest);
    }

    fn merge_around(&mut self, offset: u64) {
        let Some(&right) = self.extents.get(&offset) else { return };
        let Some((_, left)) = self.extents.range_mut(..offset).next_back().filter(|(start, left)| {
            *start + left.count == offset
                && left.device + left.count == right.device
                && left.content == right.content
        }) else {
            return;
        };
        left.count += right.count;
        self.extents.remove(&offset);
    }
}

fn segment(offset: u64, extent: &FileExtent) -> FileSegment {
    let place = match extent.content {
        ExtentContent::Unwritten => SegmentPlace::Unwritten(extent.device),
        ExtentContent::Written => SegmentPlace::Written(extent.device),
        ExtentContent::Doubtful => SegmentPlace::Doubtful(extent.device),
    };
    FileSegment { at: offset, count: extent.count, place }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const BLOCKS: u64 = 40;

    fn flat(map: &ExtentMap) -> Vec<SegmentPlace> {
        map.segments(0..BLOCKS)
            .into_iter()
            .flat_map(|segment| {
                (0..segment.count).map(move |index| match segment.place {
                    SegmentPlace::Hole => SegmentPlace::Hole,
                    SegmentPlace::Unwritten(device) => SegmentPlace::Unwritten(device + index),
                    SegmentPlace::Written(device) => SegmentPlace::Written(device + index),
                    SegmentPlace::Doubtful(device) => SegmentPlace::Doubtful(device + index),
                })
            })
            .collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(400))]

        /// Compared with one entry per block.
        #[test]
        fn maps_like_a_table_of_blocks(
            steps in proptest::collection::vec((0..BLOCKS, 0..12_u64, 0..60_u64, 0..4_u8), 0..40),
        ) {
            let mut map = ExtentMap::default();
            let mut table = vec![SegmentPlace::Hole; BLOCKS as usize];
            for (offset, count, device, kind) in steps {
                let count = count.min(BLOCKS - offset);
                let range = offset as usize..(offset + count) as usize;
                let before: Vec<u64> = table[range.clone()].iter().filter_map(|place| place.device()).collect();
                let (freed, still) = if kind == 0 {
                    table[range].fill(SegmentPlace::Hole);
                    (map.unmap(offset..offset + count), Vec::new())
                } else {
                    let (content, place): (_, fn(u64) -> SegmentPlace) = match kind {
                        1 => (ExtentContent::Written, SegmentPlace::Written),
                        2 => (ExtentContent::Unwritten, SegmentPlace::Unwritten),
                        _ => (ExtentContent::Doubtful, SegmentPlace::Doubtful),
                    };
                    for (index, entry) in (0..).zip(&mut table[range]) {
                        *entry = place(device + index);
                    }
                    let still: Vec<u64> = (device..device + count).collect();
                    (map.map(offset, BlockRun { start: device, count }, content), still)
                };
                prop_assert_eq!(flat(&map), table.clone());
                prop_assert_eq!(map.blocks(), table.iter().filter(|place| place.device().is_some()).count() as u64);
                let freed: Vec<u64> = freed.into_iter().flat_map(|run| run.start..run.end()).collect();
                for block in freed {
                    prop_assert!(before.contains(&block));
                }
                let _ = still;
                for offset in 0..BLOCKS {
                    prop_assert_eq!(map.place(offset), table[offset as usize]);
                }
                // Neighbours that continue each other are one.
                let pieces: Vec<FileSegment> = map.iter().collect();
                for pair in pieces.windows(2) {
                    let continues = pair[0].at + pair[0].count == pair[1].at
                        && match (pair[0].place, pair[1].place) {
                            (SegmentPlace::Written(a), SegmentPlace::Written(b))
                            | (SegmentPlace::Unwritten(a), SegmentPlace::Unwritten(b))
                            | (SegmentPlace::Doubtful(a), SegmentPlace::Doubtful(b)) => a + pair[0].count == b,
                            _ => false,
                        };
                    prop_assert!(!continues, "{pieces:?}");
                }
            }
        }
    }
}
