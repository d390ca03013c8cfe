//! The export served through FUSE's io_uring interface (Linux 6.14) instead of `/dev/fuse`.
//!
//! The kernel keeps a queue for every possible CPU of the machine. We give each queue a number of entries: an area of
//! memory into which the kernel puts a request, and from which it takes the reply. One command returns a reply and
//! fetches the next request, many of them in one system call. Once every queue has an entry, all requests come this
//! way, except for the few that expect no reply. Those `fuser` continues to read.
//!
//! An entry is in use until its request is answered, so there are as many as a disk's queue is deep. With fewer,
//! waiting requests would be hidden from the model.

mod protocol;
mod worker;

use std::fs;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::mpsc;

use crate::machine::error::AttachError;
use crate::machine::missing::MissingCapability;
use crate::serving::daemon::export::ExportFiles;
use crate::serving::ring;
use worker::UringWorker;

pub use protocol::{FuseCall, FuseRequest, parse};

/// Requests that one queue can have in flight: the maximum of a loop device. All may come from one CPU.
const ENTRIES_PER_QUEUE: usize = 128;
/// With several volumes on one CPU, twice that.
const ENTRIES_PER_SHARED_QUEUE: usize = 256;

/// Threads that serve the queues: one for each, so that a request is served on the CPU that makes it. On a machine with
/// more CPUs than this, a thread serves several.
const MAX_WORKERS: usize = 64;

const PARAMETER: &str = "/sys/module/fuse/parameters/enable_uring";

/// Whether this host supports it. Changes nothing.
///
/// # Errors
/// The missing capability.
pub fn probe() -> Result<(), MissingCapability> {
    match fs::read_to_string(PARAMETER).unwrap_or_default().trim() {
        "Y" | "1" => {}
        "" => return Err(MissingCapability::new("FUSE over io_uring", "use a kernel from 6.14 on")),
        _ => {
            return Err(MissingCapability::new(
                "FUSE over io_uring (it is switched off)",
                format!("as root: echo 1 > {PARAMETER}"),
            ));
        }
    }
    ring::probe().map_err(|error| {
        MissingCapability::new(
            format!("io_uring ({error})"),
            "allow it: `sysctl kernel.io_uring_disabled=0`, and in a container a seccomp profile that permits it",
        )
    })
}

/// Registers entries with every queue of the connection `device`, and serves them on separate threads until
/// the connection ends. Returns when requests can come.
pub(crate) fn serve(device: BorrowedFd<'_>, files: &Arc<ExportFiles>) -> Result<(), AttachError> {
    let possible = fs::read_to_string("/sys/devices/system/cpu/possible").unwrap_or_default();
    let Some(queues) = count_cpus(possible.trim()) else {
        return Err(AttachError::failed(format!(
            "could not tell how many CPUs this machine may have from '{}'",
            possible.trim().escape_debug()
        )));
    };
    let entries = if files.volumes().len() > 1 { ENTRIES_PER_SHARED_QUEUE } else { ENTRIES_PER_QUEUE };
    let workers = queues.min(MAX_WORKERS);
    let (sender, started) = mpsc::channel();
    for index in 0..workers {
        let queues = (index..queues).step_by(workers).map(|queue| queue as u16).collect();
        let device = device
            .try_clone_to_owned()
            .map_err(|error| AttachError::failed(format!("could not share the connection: {error}")))?;
        UringWorker::start(index, device, queues, entries, Arc::clone(files), sender.clone())
            .map_err(|error| AttachError::failed(format!("could not start the export's threads: {error}")))?;
    }
    drop(sender);
    for _ in 0..workers {
        // A thread that sends nothing has panicked, which ends the process.
        if let Ok(Err(error)) = started.recv() {
            return Err(AttachError::failed(format!(
                "the kernel refused a queue of FUSE over io_uring: {error}. Use the attachment fuse+loop instead"
            )));
        }
    }
    Ok(())
}

/// Reads 5 from `0-3,8`.
fn count_cpus(list: &str) -> Option<usize> {
    let mut count = 0;
    for range in list.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        count += last.checked_sub(first)? + 1;
    }
    (count <= usize::from(u16::MAX)).then_some(count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpus_are_counted_over_ranges() {
        assert_eq!(count_cpus("0"), Some(1));
        assert_eq!(count_cpus("0-127"), Some(128));
        assert_eq!(count_cpus("0-3,8"), Some(5));
        for bad in ["", "a", "3-1", "0-", "0-99999"] {
            assert_eq!(count_cpus(bad), None, "{bad}");
        }
    }
}
