//! Closed blocks by how much they hold: the one with the fewest valid units is found without looking at all of them.

/// A bucket for each number of valid units, with a bit for each block. A move's cost does not depend on the number of
/// blocks. The search for the first of the fewest starts where it was found last.
#[derive(Clone, Debug)]
pub(super) struct ValidBuckets {
    /// Of one bucket.
    words: usize,
    /// Bucket after bucket. A new table is zeros, which cost no memory until they are written.
    bits: Vec<u64>,
    /// Blocks in each bucket.
    counts: Vec<u32>,
    /// No bucket below this one has any.
    lowest: usize,
}

impl ValidBuckets {
    pub(super) fn new(blocks: u32, block_units: u32) -> ValidBuckets {
        let (words, buckets) = ((blocks as usize).div_ceil(64), block_units as usize + 1);
        ValidBuckets { words, bits: vec![0; words * buckets], counts: vec![0; buckets], lowest: buckets }
    }

    /// The word of a block in a bucket, and its bit there.
    fn place(&self, block: u32, valid: u32) -> (usize, u64) {
        (valid as usize * self.words + block as usize / 64, 1 << (block % 64))
    }

    /// A block that holds so much has been closed.
    pub(super) fn insert(&mut self, block: u32, valid: u32) {
        let (word, bit) = self.place(block, valid);
        self.bits[word] |= bit;
        self.counts[valid as usize] += 1;
        self.lowest = self.lowest.min(valid as usize);
    }

    /// A closed block is to be emptied.
    pub(super) fn remove(&mut self, block: u32, valid: u32) {
        let (word, bit) = self.place(block, valid);
        self.bits[word] &= !bit;
        self.counts[valid as usize] -= 1;
    }

    /// One of a closed block's units has become stale; it held `valid` with it.
    pub(super) fn lose_one(&mut self, block: u32, valid: u32) {
        self.remove(block, valid);
        self.insert(block, valid - 1);
    }

    /// The block that holds the least; of several the first.
    pub(super) fn first(&mut self) -> Option<usize> {
        // Up as far as it went down before: a block loses its units one by one, and takes as many writes to fill.
        while *self.counts.get(self.lowest)? == 0 {
            self.lowest += 1;
        }
        let from = self.lowest * self.words;
        let bucket = &self.bits[from..from + self.words];
        let word = bucket.iter().position(|word| *word != 0)?;
        Some(word * 64 + bucket[word].trailing_zeros() as usize)
    }

    #[cfg(test)]
    pub(super) fn memory_bytes(&self) -> usize {
        8 * self.bits.len() + 4 * self.counts.len()
    }
}
