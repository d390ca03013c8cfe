//! Whether what a job moves goes past the page cache, so that devices must see all of it.

use super::job_file::{FioJobSection, JobFile};

/// Engines whose direct requests all go to a device. The others go through a mapping, or move no data (`mmap`,
/// `falloc`, `ftruncate`).
const DIRECT_ENGINES: [&str; 8] =
    ["sync", "psync", "vsync", "pvsync", "pvsync2", "libaio", "posixaio", "io_uring"];
/// fio's own on Linux.
const DEFAULT_ENGINE: &str = "psync";

/// Whether every job of a job file's text moves its data past the page cache.
pub fn passes_the_page_cache(text: &str) -> bool {
    let file = JobFile::parse(text);
    let mut jobs = file.jobs().peekable();
    jobs.peek().is_some() && jobs.all(|job| is_direct(&job) && has_direct_engine(&job))
}

/// To fio `buffered` is `direct` the other way round: the later of both counts.
fn is_direct(job: &FioJobSection<'_>) -> bool {
    let last = job.settings().rev().find(|setting| matches!(setting.name(), "direct" | "buffered"));
    job.is_on("atomic") || last.is_some_and(|setting| setting.is_on() == (setting.name() == "direct"))
}

fn has_direct_engine(job: &FioJobSection<'_>) -> bool {
    DIRECT_ENGINES.contains(&job.value("ioengine").unwrap_or(DEFAULT_ENGINE))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_all_direct_jobs_bypass_page_cache() {
        for (text, expected) in [
            ("[t]\nfilename={data}/file\ndirect=1\n", true),
            ("[t]\nbuffered=0\n", true),
            ("[t]\ndirect\n", true),
            ("[t]\nrw=read\n", false),
            ("[t]\ndirect=1\nbuffered=1\n", false),
            ("[t]\ndirect=0 ; not this time\n", false),
            ("[t]\ndirect=1 # past the cache\n", true),
            ("[global]\ndirect=1\n[a]\nrw=read\n[b]\nrw=write\n", true),
            ("[global]\ndirect=1\n[a]\nrw=read\n[b]\ndirect=0\n", false),
            ("[a]\nrw=read\n[global]\ndirect=1\n[b]\nrw=read\n", false),
            ("; direct=1\n[a]\n#direct=1\nrw=read\n", false),
            ("direct=1\n", false),
            ("", false),
        ] {
            assert_eq!(passes_the_page_cache(text), expected, "{text}");
        }
    }

    #[test]
    fn mapping_and_null_engines_do_not_bypass_page_cache() {
        for (engine, expected) in
            [("libaio", true), ("io_uring", true), ("mmap", false), ("falloc", false), ("ftruncate", false)]
        {
            let text = format!("[t]\ndirect=1\nioengine={engine}\n");
            assert_eq!(passes_the_page_cache(&text), expected, "{engine}");
        }
    }
}
