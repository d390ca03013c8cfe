//! The kernel's counters of a block device: the number of requests of each kind, and how long they were in flight.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The file with a block device's counters.
pub(crate) fn statistics_of(device: &Path) -> Option<PathBuf> {
    let number = fs::metadata(device).ok()?.rdev();
    let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
    Some(PathBuf::from(format!("/sys/dev/block/{major}:{minor}/stat")))
}

/// Requests, and their total time in flight. The kernel sums nanoseconds and prints whole milliseconds, so a difference
/// is off by less than one, however many requests it covers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RequestTotals {
    pub requests: u64,
    /// It wraps at 32 bits.
    ms: u32,
}

impl RequestTotals {
    fn delta_since(&self, earlier: &RequestTotals) -> RequestTotals {
        RequestTotals {
            requests: self.requests.wrapping_sub(earlier.requests),
            ms: self.ms.wrapping_sub(earlier.ms),
        }
    }

    pub(crate) fn wall_us(&self) -> f64 {
        f64::from(self.ms) * 1e3
    }
}

/// Since the device was created.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct BlockCounters {
    pub reads: RequestTotals,
    /// A write that requires a flush, and a flush without a write, count as writes here, including all their waits.
    pub writes: RequestTotals,
    /// The flushes that reached the device: the kernel serves several waiting ones with one.
    pub flushes: RequestTotals,
}

impl BlockCounters {
    pub(crate) fn read(statistics: &Path) -> Option<BlockCounters> {
        BlockCounters::parse(&fs::read_to_string(statistics).ok()?)
    }

    /// Format: Documentation/block/stat.rst of the kernel. `None` before Linux 5.5, which does not count flushes.
    fn parse(text: &str) -> Option<BlockCounters> {
        let fields: Vec<u64> =
            text.split_ascii_whitespace().map(str::parse).collect::<Result<_, _>>().ok()?;
        let counted = |requests: usize, ms: usize| {
            Some(RequestTotals { requests: *fields.get(requests)?, ms: *fields.get(ms)? as u32 })
        };
        Some(BlockCounters { reads: counted(0, 3)?, writes: counted(4, 7)?, flushes: counted(15, 16)? })
    }

    pub(crate) fn delta_since(&self, earlier: &BlockCounters) -> BlockCounters {
        BlockCounters {
            reads: self.reads.delta_since(&earlier.reads),
            writes: self.writes.delta_since(&earlier.writes),
            flushes: self.flushes.delta_since(&earlier.flushes),
        }
    }
}

#[cfg(test)]
impl BlockCounters {
    /// Pairs of requests and milliseconds.
    pub(crate) fn new(reads: (u64, u32), writes: (u64, u32), flushes: (u64, u32)) -> BlockCounters {
        let counted = |(requests, ms): (u64, u32)| RequestTotals { requests, ms };
        BlockCounters { reads: counted(reads), writes: counted(writes), flushes: counted(flushes) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counter_line_is_parsed() {
        let line = "  100 5 800 40 50 6 1600 30 2 60 75 7 0 56 1 9 12\n";
        let found = BlockCounters::parse(line).unwrap();
        assert_eq!(found, BlockCounters::new((100, 40), (50, 30), (9, 12)));
        let without_flushes = "100 5 800 40 50 6 1600 30 2 60 75 7 0 56 1";
        assert_eq!(BlockCounters::parse(without_flushes), None);
        assert_eq!(BlockCounters::parse("a b"), None);
    }

    #[test]
    fn wrapped_counter_continues() {
        let before = BlockCounters::new((5, u32::MAX - 9), (0, 0), (0, 0));
        let after = BlockCounters::new((25, 10), (0, 0), (0, 0));
        assert_eq!(after.delta_since(&before).reads.wall_us(), 20_000.0);
    }
}
