//! How often each latency occurred, counted where operations end: one addition to a table, and nothing else.
//!
//! The buckets are those of the record's HdrHistograms (from 1 ns to an hour, three digits), so that conversion changes
//! nothing. They are in blocks, one for each power of two, which are created when a latency falls into them.

use underlay_record::Histogram;

/// One hour: slower operations are counted as this slow.
const MAX_NS: u64 = 3_600_000_000_000;
/// Buckets per power of two, from the second block on: half the number of values below which each has its own bucket.
const BLOCK: usize = 1 << BLOCK_BITS;
const BLOCK_BITS: u32 = 10;
/// An hour is below 2^42 ns: 42 - 10 blocks of one power of two each, and the first block.
const BLOCKS: usize = 33;

/// The type of the counts: 64 bits, or 32 where a table is emptied before they overflow.
pub(crate) trait LatencyCount: Copy + Default + Into<u64> {
    fn increment(&mut self);
}

impl LatencyCount for u32 {
    #[inline]
    fn increment(&mut self) {
        *self += 1;
    }
}

impl LatencyCount for u64 {
    #[inline]
    fn increment(&mut self) {
        *self += 1;
    }
}

/// Counts of latencies in nanoseconds.
#[derive(Clone)]
pub(crate) struct LatencyCounts<C> {
    blocks: [Option<Box<[C; BLOCK]>>; BLOCKS],
    /// A bit for each block with counts: other blocks may exist and hold zeros.
    touched: u64,
}

impl<C: LatencyCount> std::fmt::Debug for LatencyCounts<C> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.recorded()).finish()
    }
}

impl<C> Default for LatencyCounts<C> {
    fn default() -> Self {
        LatencyCounts { blocks: std::array::from_fn(|_| None), touched: 0 }
    }
}

/// The bucket that counts a latency.
#[inline(always)]
pub(crate) fn bucket_of(ns: u64) -> usize {
    let ns = ns.min(MAX_NS);
    // How many low bits a bucket of this size ignores: none below 2048.
    let shift = u64::BITS - 1 - BLOCK_BITS - (ns | (2 * BLOCK as u64 - 1)).leading_zeros();
    ((shift as usize) << BLOCK_BITS) + (ns >> shift) as usize
}

/// The lowest value of a bucket.
fn lowest_of(bucket: usize) -> u64 {
    // Blocks 0 and 1 both have a bucket for every value, hence no shift.
    let shift = (bucket >> BLOCK_BITS).saturating_sub(1);
    ((bucket - (shift << BLOCK_BITS)) as u64) << shift
}

impl<C: LatencyCount> LatencyCounts<C> {
    /// Counts one latency.
    #[inline]
    pub(crate) fn add(&mut self, ns: u64) {
        self.add_in(bucket_of(ns));
    }

    /// The same by the [`bucket_of`] the latency.
    #[inline]
    pub(crate) fn add_in(&mut self, bucket: usize) {
        let place = bucket >> BLOCK_BITS;
        self.touched |= 1 << place;
        let block = self.blocks[place].get_or_insert_with(|| Box::new([C::default(); BLOCK]));
        block[bucket % BLOCK].increment();
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.touched == 0
    }

    /// The total number.
    pub(crate) fn total(&self) -> u64 {
        self.recorded().map(|(_, count)| count).sum()
    }

    /// (nanoseconds, count) of every non-empty bucket, in rising order; a bucket's lowest value represents it.
    pub(crate) fn recorded(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.buckets().map(|(bucket, count)| (lowest_of(bucket), count))
    }

    fn buckets(&self) -> impl Iterator<Item = (usize, u64)> + '_ {
        let touched = self.touched;
        let blocks = self.blocks.iter().enumerate().filter(move |(place, _)| (touched >> place) & 1 == 1);
        let counts = blocks.flat_map(|(place, block)| {
            let counts = block.iter().flat_map(|block| block.iter()).enumerate();
            counts.map(move |(index, count)| {
                let count: u64 = (*count).into();
                (place * BLOCK + index, count)
            })
        });
        counts.filter(|&(_, count)| count > 0)
    }

    /// Adds all counts to `others`.
    pub(crate) fn add_to(&self, others: &mut LatencyCounts<u64>) {
        others.touched |= self.touched;
        for (bucket, count) in self.buckets() {
            let block = others.blocks[bucket / BLOCK].get_or_insert_with(|| Box::new([0; BLOCK]));
            block[bucket % BLOCK] += count;
        }
    }

    /// Starts anew, and keeps its memory.
    pub(crate) fn clear(&mut self) {
        for block in self.blocks.iter_mut().flatten() {
            block.fill(C::default());
        }
        self.touched = 0;
    }

    /// Adds all counts to a histogram of the record.
    pub(crate) fn add_to_histogram(&self, histogram: &mut Histogram) {
        for (ns, count) in self.recorded() {
            histogram.record_n_ns(ns, count);
        }
    }

    pub(crate) fn histogram(&self) -> Histogram {
        let mut histogram = Histogram::default();
        self.add_to_histogram(&mut histogram);
        histogram
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn highest_value_and_slower_ones_share_last_block() {
        assert_eq!(bucket_of(MAX_NS) / BLOCK, BLOCKS - 1);
        assert_eq!(bucket_of(u64::MAX), bucket_of(MAX_NS));
        let mut counts = LatencyCounts::<u32>::default();
        counts.add(u64::MAX);
        let mut expected = Histogram::default();
        expected.record_ns(MAX_NS);
        assert_eq!(counts.histogram(), expected);
    }

    #[test]
    fn buckets_follow_one_another_without_a_gap() {
        for bucket in 0..bucket_of(MAX_NS) {
            assert_eq!(bucket_of(lowest_of(bucket)), bucket);
            assert_eq!(bucket_of(lowest_of(bucket + 1) - 1), bucket);
        }
    }

    fn latencies() -> impl Strategy<Value = Vec<u64>> {
        prop::collection::vec((1u64..=MAX_NS, 0u32..42).prop_map(|(ns, shift)| (ns >> shift).max(1)), 0..200)
    }

    proptest! {
        /// Compared with the library, value by value.
        #[test]
        fn histogram_from_counts_equals_histogram_of_values(latencies in latencies()) {
            let (mut counts, mut expected) = (LatencyCounts::<u32>::default(), Histogram::default());
            for &ns in &latencies {
                counts.add(ns);
                expected.record_ns(ns);
            }
            prop_assert_eq!(counts.histogram(), expected);
            prop_assert_eq!(counts.total(), latencies.len() as u64);
            prop_assert_eq!(counts.is_empty(), latencies.is_empty());
        }

        #[test]
        fn counts_that_are_added_are_those_of_all_values(left in latencies(), right in latencies()) {
            let count = |values: &[u64]| {
                let mut counts = LatencyCounts::<u64>::default();
                values.iter().for_each(|&ns| counts.add(ns));
                counts
            };
            let (mut sum, mut others) = (count(&left), count(&right));
            others.add_to(&mut sum);
            prop_assert_eq!(sum.histogram(), count(&[left, right].concat()).histogram());
            others.clear();
            prop_assert_eq!((others.total(), others.is_empty()), (0, true));
        }
    }
}
