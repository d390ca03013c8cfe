//! Which blocks hold something older than what was answered.

use std::collections::BTreeMap;

/// When there are more, neighbours become one: more is then said to be lost than is, which is on the safe side.
const MAX_RANGES: usize = 1024;

/// Ranges of blocks, by their first one, with the one behind their last.
#[derive(Debug, Default)]
pub(super) struct LostRanges {
    ranges: BTreeMap<u64, u64>,
}

impl LostRanges {
    pub(super) fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    pub(super) fn overlaps(&self, (start, end): (u64, u64)) -> bool {
        start < end && self.ranges.range(..end).next_back().is_some_and(|(_, known_end)| *known_end > start)
    }

    pub(super) fn insert(&mut self, (mut start, mut end): (u64, u64)) {
        if start >= end {
            return;
        }
        // Those that it touches become part of it.
        while let Some((&known_start, &known_end)) = self.ranges.range(..=end).next_back()
            && known_end >= start
        {
            self.ranges.remove(&known_start);
            (start, end) = (start.min(known_start), end.max(known_end));
        }
        self.ranges.insert(start, end);
        if self.ranges.len() > MAX_RANGES {
            self.join_nearest();
        }
    }

    pub(super) fn remove(&mut self, (start, end): (u64, u64)) {
        while let Some((&known_start, &known_end)) = self.ranges.range(..end).next_back()
            && known_end > start
        {
            self.ranges.remove(&known_start);
            if known_start < start {
                self.ranges.insert(known_start, start);
            }
            if known_end > end {
                self.ranges.insert(end, known_end);
            }
            if known_start <= start {
                break;
            }
        }
        // A range that was cut in two may be one too many.
        if self.ranges.len() > MAX_RANGES {
            self.join_nearest();
        }
    }

    fn join_nearest(&mut self) {
        let ends = self.ranges.iter().zip(self.ranges.keys().skip(1));
        let nearest =
            ends.min_by_key(|((_, end), next)| *next - *end).map(|((start, _), next)| (*start, *next));
        if let Some((start, next)) = nearest
            && let Some(end) = self.ranges.remove(&next)
        {
            self.ranges.insert(start, end);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(300))]

        #[test]
        fn lost_blocks_are_those_inserted(
            steps in prop::collection::vec((any::<bool>(), 0_u64..60, 0_u64..20), 0..60),
        ) {
            let mut lost = LostRanges::default();
            let mut expected = [false; 80];
            for (is_lost, start, length) in steps {
                expected[start as usize..(start + length) as usize].fill(is_lost);
                match is_lost {
                    true => lost.insert((start, start + length)),
                    false => lost.remove((start, start + length)),
                }
                for block in 0..80 {
                    prop_assert_eq!(lost.overlaps((block, block + 1)), expected[block as usize], "block {}", block);
                }
                prop_assert_eq!(lost.is_empty(), !expected.contains(&true));
            }
        }
    }

    #[test]
    fn there_are_never_too_many_and_none_is_forgotten() {
        let mut lost = LostRanges::default();
        let ranges: Vec<(u64, u64)> =
            (0..5000).map(|number| (number * 10, number * 10 + 1 + number % 7)).collect();
        ranges.iter().for_each(|range| lost.insert(*range));
        assert!(lost.ranges.len() <= MAX_RANGES);
        assert!(
            ranges.iter().all(|(start, end)| (*start..*end).all(|block| lost.overlaps((block, block + 1))))
        );
        lost.remove((0, u64::MAX));
        assert!(lost.is_empty());
    }
}
