//! The sizes of a job's blocks.

use super::directions::DirectionValues;
use super::job_file::{FioJobSection, JobFile};
use super::value::KiloBase;

/// fio's `bs`.
const DEFAULT_BYTES: u64 = 4096;

/// The known block sizes of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BlockSizes {
    /// For reads, writes and trims.
    pub(super) smallest: [u64; 3],
    /// fio counts a rate of requests in these.
    pub(super) is_plain: bool,
}

/// The smallest request past the page cache that is no multiple of `block_bytes`, in a job file's text.
pub fn smallest_direct_request(text: &str, block_bytes: u64) -> Option<u64> {
    let file = JobFile::parse(text);
    let is_direct = |job: &FioJobSection<'_>| {
        job.is_on("direct") || job.is_on("atomic") || job.value("buffered").is_some_and(|value| value == "0")
    };
    let sizes = file.jobs().filter(is_direct).flat_map(|job| {
        let kilo = KiloBase::from_job(&job);
        // `bssplit` counts before `bs`. Of each size, what stands before the share or the end of a range.
        let named =
            ["bssplit", "bsrange", "bs"].into_iter().find_map(|name| job.value(name)).unwrap_or_default();
        let size = |part: &str| kilo.number(part.split(['/', '-']).next().unwrap_or_default());
        named.split([',', ':']).filter_map(size).collect::<Vec<u64>>()
    });
    sizes.filter(|bytes| *bytes > 0 && !bytes.is_multiple_of(block_bytes)).min()
}

impl BlockSizes {
    /// Nothing where the text does not show them.
    pub(super) fn from_job(job: &FioJobSection<'_>, kilo: KiloBase) -> Option<BlockSizes> {
        let is_plain = job.setting("bssplit").is_none() && !job.is_on("bs_is_seq_rand");
        let read = |text: &str| kilo.number(text).filter(|bytes| *bytes > 0);
        let sizes = match (job.value("bs"), job.value("bsrange")) {
            (None, None) => return Some(BlockSizes { smallest: [DEFAULT_BYTES; 3], is_plain }),
            (Some(bytes), None) => DirectionValues::parse(bytes, read)?,
            (None, Some(range)) => DirectionValues::parse(range, |part| read(part.split('-').next()?))?,
            // Which of the two fio takes for which kind depends on their order.
            (Some(_), Some(_)) => return None,
        };
        Some(BlockSizes { smallest: sizes.all(DEFAULT_BYTES), is_plain })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_that_are_no_whole_blocks_are_found() {
        let smallest = |options: &str| smallest_direct_request(&format!("[t]\n{options}\n"), 4096);
        assert_eq!(smallest("direct=1\nbs=4k\nbssplit=512/10:4k/90"), Some(512));
        assert_eq!(smallest("buffered=0\nbs=8k,6k"), Some(6144));
        assert_eq!(smallest("direct=1\nbsrange=1k-8k"), Some(1024));
        assert_eq!(smallest("bs=512"), None, "the page cache takes it");
        assert_eq!(
            [smallest("direct=1\nbs=64k"), smallest("direct=1"), smallest("direct=0\nbs=1k")],
            [None; 3]
        );
    }
}
