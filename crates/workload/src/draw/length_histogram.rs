//! Field lengths with the frequencies in a file: YCSB's `fieldlengthhistogram`.

use std::path::Path;

use rand::{Rng, RngExt};

/// A file longer than this is no histogram of lengths.
const MAX_FILE_BYTES: u64 = 16 << 20;

/// How often fields have each multiple of a block as their length.
///
/// Numbers below the sum of the counts are distributed to the buckets in turn, as in YCSB. Each bucket but the last
/// stands for its upper edge, the last for its lower one. A number that equals a bucket's end still belongs to it. So
/// the first bucket gets one number more than its count, and the last one fewer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LengthHistogram {
    block_bytes: u32,
    /// The last number of each bucket but the last.
    ends: Vec<u64>,
    sum: u64,
}

impl LengthHistogram {
    /// Reads a file: `BlockSize`, a tab and the bytes of a block in its first line, then the number of each bucket from
    /// 0 on, a tab, and its count.
    ///
    /// # Errors
    /// Names the wrong line and the expected content.
    pub fn read(path: &Path) -> Result<Self, String> {
        let failed = |problem: String| format!("{}: {problem}", path.display());
        let bytes = underlay_files::read(path, MAX_FILE_BYTES)
            .map_err(|error| failed(format!("cannot be read: {error}")))?;
        LengthHistogram::parse(&String::from_utf8_lossy(&bytes)).map_err(failed)
    }

    fn parse(text: &str) -> Result<Self, String> {
        let mut lines = text.lines();
        let block = lines.next().and_then(|line| line.trim_end().strip_prefix("BlockSize\t"));
        let block_bytes = block
            .and_then(|size| size.parse::<u32>().ok())
            .filter(|&size| size > 0)
            .ok_or("line 1: expected BlockSize, a tab and a whole number of at least 1")?;
        let mut counts: Vec<u64> = Vec::new();
        for (index, line) in lines.enumerate() {
            let count = line.trim_end().split_once('\t').and_then(|(bucket, count)| {
                let is_next = bucket.parse::<usize>().ok()? == index;
                count.parse::<u32>().ok().filter(|_| is_next)
            });
            let count = count.ok_or_else(|| {
                format!("line {}: expected {index}, a tab and the number of such lengths", index + 2)
            })?;
            counts.push(u64::from(count));
        }
        let sum: u64 = counts.iter().sum();
        if sum == 0 {
            return Err("has no lengths: expected a count above 0".to_owned());
        }
        let most = (counts.len() as u64 - 1).checked_mul(u64::from(block_bytes));
        if most.is_none_or(|most| most > u64::from(u32::MAX)) {
            return Err(format!(
                "has {} buckets of {block_bytes} bytes: no field is that long",
                counts.len()
            ));
        }
        // Every number beyond the other buckets' ends belongs to the last one, so its count is not needed.
        counts.pop();
        let mut end = 0;
        let ends = counts.into_iter().map(|count| {
            end += count;
            end
        });
        Ok(LengthHistogram { block_bytes, ends: ends.collect(), sum })
    }

    fn length(&self, number: u64) -> u32 {
        let bucket = self.ends.partition_point(|&end| end < number);
        let blocks = if bucket < self.ends.len() { bucket + 1 } else { bucket };
        // Cannot overflow: `parse` refuses more blocks than fit 32 bits of bytes.
        blocks as u32 * self.block_bytes
    }

    /// Draws a length.
    pub fn next<R: Rng>(&self, rng: &mut R) -> u32 {
        self.length(rng.random_range(0..self.sum))
    }

    pub fn max_bytes(&self) -> u32 {
        self.ends.len() as u32 * self.block_bytes
    }

    /// The expected length.
    pub fn mean_bytes(&self) -> f64 {
        let (mut first, mut total) = (0, 0.0);
        for (bucket, &end) in self.ends.iter().enumerate() {
            // The numbers from `first` to `end`, if they can be drawn.
            let bucket_end = (end + 1).min(self.sum);
            total += bucket_end.saturating_sub(first) as f64 * (bucket + 1) as f64;
            first = first.max(bucket_end);
        }
        total += (self.sum - first) as f64 * self.ends.len() as f64;
        total / self.sum as f64 * f64::from(self.block_bytes)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Bucket by bucket, as in YCSB.
    fn dealt(counts: &[i64], number: i64) -> u32 {
        let mut left = number;
        for (bucket, count) in counts[..counts.len() - 1].iter().enumerate() {
            left -= count;
            if left <= 0 {
                return bucket as u32 + 1;
            }
        }
        counts.len() as u32 - 1
    }

    fn text(block: u32, counts: &[i64]) -> String {
        let lines = counts.iter().enumerate().map(|(bucket, count)| format!("{bucket}\t{count}\n"));
        format!("BlockSize\t{block}\n{}", lines.collect::<String>())
    }

    proptest! {
        #[test]
        fn numbers_have_lengths_of_their_buckets(counts in prop::collection::vec(0i64..9, 1..9), block in 1u32..2000) {
            prop_assume!(counts.iter().any(|&count| count > 0));
            let histogram = LengthHistogram::parse(&text(block, &counts)).unwrap();
            let sum: i64 = counts.iter().sum();
            let lengths: Vec<u32> = (0..sum).map(|number| dealt(&counts, number) * block).collect();
            let found: Vec<u32> = (0..sum as u64).map(|number| histogram.length(number)).collect();
            prop_assert_eq!(&found, &lengths);
            prop_assert!(lengths.iter().all(|&length| length <= histogram.max_bytes()));
            let mean = lengths.iter().map(|&length| f64::from(length)).sum::<f64>() / sum as f64;
            prop_assert!((histogram.mean_bytes() - mean).abs() < 1e-6 * mean.max(1.0));
        }

        #[test]
        fn arbitrary_text_never_panics(text in "(BlockSize\t[0-9]{0,10}\n)?([0-9]{1,2}\t[0-9]{0,12}\n){0,5}\\PC{0,9}") {
            let _ = LengthHistogram::parse(&text);
        }
    }

    #[test]
    fn mistakes_are_told_with_their_line() {
        let mistakes = [
            ("", "line 1: expected BlockSize, a tab and a whole number of at least 1"),
            ("BlockSize 5\n", "line 1: expected BlockSize, a tab and a whole number of at least 1"),
            ("BlockSize\t5\n0\t1\n2\t1\n", "line 3: expected 1, a tab and the number of such lengths"),
            ("BlockSize\t5\n0\tmany\n", "line 2: expected 0, a tab and the number of such lengths"),
            ("BlockSize\t5\n0\t0\n", "has no lengths: expected a count above 0"),
        ];
        for (text, problem) in mistakes {
            assert_eq!(LengthHistogram::parse(text), Err(problem.to_owned()));
        }
        let missing = LengthHistogram::read(Path::new("/no/such/hist.txt")).unwrap_err();
        assert!(missing.starts_with("/no/such/hist.txt: cannot be read: "), "{missing}");
    }
}
