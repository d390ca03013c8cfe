//! A fio job's requests to a device, read from its text. A prediction needs them exactly, so unclear jobs are refused.

use underlay_systems::benchmark::fio::{FioJobSection, JobFile};

/// A job in which every operation is one request that bypasses the page cache, or one write and its flush.
#[derive(Clone, Debug, PartialEq)]
pub struct FioJob {
    /// Whether it writes and waits for the flush of each write; otherwise it reads.
    pub writes: bool,
    /// Each request starts where the previous one ended on the device.
    pub sequential: bool,
    pub block_bytes: u64,
    /// The number of requests in flight.
    pub at_once: u32,
    pub engine: String,
}

/// Engines that wait for one request before they send the next.
const ONE_AT_A_TIME: [&str; 6] = ["psync", "sync", "pvsync", "pvsync2", "vsync", "preadv2"];
/// `posixaio` is missing, as it has one request in flight on each file.
const SEVERAL: [&str; 2] = ["libaio", "io_uring"];
const KNOWN: [&str; 8] = ["rw", "bs", "direct", "ioengine", "iodepth", "numjobs", "fsync", "fdatasync"];
/// Options that don't change requests.
const HARMLESS: [&str; 15] = [
    "filename",
    "directory",
    "time_based",
    "runtime",
    "ramp_time",
    "group_reporting",
    "thread",
    "name",
    "description",
    "randrepeat",
    "norandommap",
    "randseed",
    "invalidate",
    "allow_file_create",
    "end_fsync",
];

impl FioJob {
    /// Reads the text of a job file.
    ///
    /// # Errors
    /// Describes the unclear part.
    pub fn parse(text: &str) -> Result<FioJob, String> {
        let file = JobFile::parse(text);
        if let Some(stray) = file.strays.first() {
            return Err(format!("a line of fio's job in no section: `{}`", stray.text));
        }
        let jobs: Vec<FioJobSection<'_>> = file.jobs().collect();
        let [job] = jobs.as_slice() else { return Err(format!("{} jobs of fio at once", jobs.len())) };
        // fio applies a `[global]` section only to the jobs after it.
        if file.sections.last().is_some_and(|section| section.is_global) {
            return Err("a `[global]` after fio's job, which does not affect it".to_owned());
        }
        let mut named = job.settings();
        if let Some(other) = named.find(|one| !KNOWN.contains(&one.name()) && !HARMLESS.contains(&one.name()))
        {
            return Err(format!("fio's option `{}`", other.key));
        }
        let value_of = |name: &str| job.value(name);
        // fio splits a list of files at colons, and spreads a job's requests over them.
        if ["filename", "directory"].into_iter().filter_map(value_of).any(|value| value.contains(':')) {
            return Err("a job of fio on several files".to_owned());
        }
        let number = |key: &str, default: u32| match value_of(key) {
            None => Ok(default),
            Some(value) => value.parse::<u32>().map_err(|_| format!("fio's `{key}={value}`")),
        };
        let (writes, sequential) = match value_of("rw").unwrap_or("read") {
            "read" => (false, true),
            "randread" => (false, false),
            "write" => (true, true),
            other => return Err(format!("fio's `rw={other}`")),
        };
        let block = value_of("bs").unwrap_or("4k");
        let block_bytes = bytes(block).ok_or_else(|| format!("fio's `bs={block}`"))?;
        let engine = value_of("ioengine").unwrap_or("psync").to_owned();
        let (depth, jobs) = (number("iodepth", 1)?, number("numjobs", 1)?);
        // A synchronous engine has one request in flight, whatever `iodepth` says.
        let each = match engine.as_str() {
            one if ONE_AT_A_TIME.contains(&one) => 1,
            one if SEVERAL.contains(&one) => depth,
            _ => return Err(format!("fio's `ioengine={engine}`")),
        };
        let at_once = each.saturating_mul(jobs);
        if at_once == 0 {
            return Err("a job of fio without requests".to_owned());
        }
        let flushed = number("fsync", 0)?.max(number("fdatasync", 0)?);
        let direct = number("direct", 0)? == 1;
        // A page cache would answer some of them, and how many is unknown.
        if !writes && !direct {
            return Err("fio's reads through the page cache, without `direct=1`".to_owned());
        }
        if writes && (flushed != 1 || at_once != 1) {
            return Err("fio's writes, unless a single job flushes after each one".to_owned());
        }
        // Their requests would mix at the device, which would then not see a single sequence.
        if sequential && jobs > 1 {
            return Err("several jobs of fio that each go through the file in order".to_owned());
        }
        Ok(FioJob { writes, sequential, block_bytes, at_once, engine })
    }

    /// `randread of 8192 bytes by libaio`: jobs that differ in this can't be compared.
    pub fn describe(&self) -> String {
        let kind = match (self.writes, self.sequential) {
            (true, _) => "flushed write",
            (false, true) => "read",
            (false, false) => "randread",
        };
        format!("{kind} of {} bytes by {}", self.block_bytes, self.engine)
    }
}

/// Whether a job waits until its writes are durable, by flushes or by `O_SYNC`.
pub(crate) fn waits_for_writes(text: &str) -> bool {
    let file = JobFile::parse(text);
    file.jobs().any(|job| {
        let flushes = |name: &str| {
            job.value(name).and_then(|every| every.parse::<u64>().ok()).is_some_and(|every| every > 0)
        };
        let access = job.value("rw").unwrap_or("read");
        let writes = access.contains("write") || access.starts_with("rw") || access.starts_with("randrw");
        let is_synced = job.value("sync").is_some_and(|word| !matches!(word, "0" | "none"));
        writes && (flushes("fsync") || flushes("fdatasync") || is_synced)
    })
}

/// `8k`, in fio's units: powers of two.
fn bytes(text: &str) -> Option<u64> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let factor: u64 = match text[digits.len()..].to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" | "kb" | "kib" => 1 << 10,
        "m" | "mb" | "mib" => 1 << 20,
        _ => return None,
    };
    let bytes = digits.parse::<u64>().ok()?.checked_mul(factor)?;
    (512..=1 << 28).contains(&bytes).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(options: &str) -> Result<FioJob, String> {
        FioJob::parse(&format!(
            "; by hand\n[one]\nfilename={{data}}/file\n{options}\nruntime={{duration_s}}\n"
        ))
    }

    #[test]
    fn job_describes_its_operations() {
        let reads = parsed("rw=randread\nbs=8k\ndirect=1\nioengine=libaio\niodepth=16\nnumjobs=2").unwrap();
        assert_eq!(
            (reads.writes, reads.sequential, reads.block_bytes, reads.at_once),
            (false, false, 8192, 32)
        );
        let single = parsed("readwrite=read\nblocksize=1M\ndirect=1\nioengine=psync\niodepth=16").unwrap();
        assert_eq!((single.sequential, single.block_bytes, single.at_once), (true, 1 << 20, 1));
        let log = parsed("rw=write\nbs=8k\nfdatasync=1").unwrap();
        assert!(log.writes && log.at_once == 1 && log.describe().contains("8192"), "{log:?}");
        let global = FioJob::parse("[global]\ndirect=1\nrw=randread\n[one]\nfilename=x\nbs=4096").unwrap();
        assert_eq!((global.block_bytes, global.at_once), (4096, 1));
    }

    #[test]
    fn final_flush_is_no_log() {
        assert!(waits_for_writes("[log]\nrw=write\n fdatasync = 1\n"));
        assert!(waits_for_writes("[global]\nsync=dsync\n[log]\nrw=write\n"));
        assert!(!waits_for_writes("[reads]\nrw=randread\nfsync=1\n"), "fio flushes after writes only");
        let fill = "[fill]\nrw=write\nend_fsync=1\nfdatasync=0\nsync=none\n# fsync=1\n";
        assert!(!waits_for_writes(fill) && !waits_for_writes(""));
    }

    #[test]
    fn inexact_job_is_refused_by_name() {
        for (options, words) in [
            ("rw=randread", "page cache"),
            ("rw=randrw\ndirect=1", "rw=randrw"),
            ("rw=randread\ndirect=1\nbs=4k,8k", "bs=4k,8k"),
            ("rw=randread\ndirect=1\nbs=4k-8k", "bs=4k-8k"),
            ("rw=randread\ndirect=1\nrate_iops=100", "`rate_iops`"),
            ("rw=randread\ndirect=1\nioengine=mmap", "ioengine=mmap"),
            ("rw=randread\ndirect=1\niodepth=many", "iodepth=many"),
            ("rw=randread\ndirect=1\nnumjobs=0", "without requests"),
            ("rw=write\ndirect=1", "flush"),
            ("rw=write\nfsync=1\nioengine=libaio\niodepth=4", "flush"),
            ("rw=read\ndirect=1\nnumjobs=2", "in order"),
            ("rw=randread\ndirect=1\n[two]\nrw=read", "2 jobs"),
            ("rw=randread\n[global]\ndirect=1", "[global]"),
            ("rw=read\ndirect=1\nfilename=one:two", "several files"),
            ("rw=randread\ndirect=1\nioengine=posixaio\niodepth=16", "posixaio"),
            ("rw=randread\ndirect=1\nbs=\u{e9}k", "bs="),
        ] {
            let refused = parsed(options).unwrap_err();
            assert!(refused.contains(words), "{options}: {refused}");
        }
        assert!(FioJob::parse("").unwrap_err().contains("0 jobs"));
    }
}
