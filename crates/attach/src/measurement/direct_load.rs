//! Requests to empty modelled devices from several threads at once: whether this host keeps their latencies at a
//! slow-motion factor.

use std::fs::File;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use underlay_record::Histogram;
use underlay_storage::stack::StackSpec;

use crate::attachments::block_attachment::BlockAttachment;
use crate::attachments::block_volumes::BlockVolumes;
use crate::machine::error::AttachError;
use crate::machine::processors::{CpuConfinement, Processors};
use crate::measurement::aligned_buffer::AlignedBuffer;
use crate::serving::daemon_process::HurryOutcome;
use crate::undo::registry::ResourceRegistry;

const BLOCK_BYTES: u64 = 4096;
/// The distance between consecutive blocks. It is coprime to the number of blocks, so that all are visited, and none is
/// near the previous one.
const STRIDE: u64 = 100_003;
/// The shortest sampling interval of a daemon's devices, in modelled time.
const MIN_INTERVAL_S: f64 = 0.001;
/// Writes among ten requests of a mixed load.
const MIXED_WRITES: u64 = 3;
/// Caches and the daemon's threads warm up.
const WARM_UP: Duration = Duration::from_millis(150);

/// The threads' operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DirectRequests {
    RandomReads,
    /// Three of ten requests are writes.
    Mixed,
    /// One after the other, each followed by a flush, like the writes of a log.
    SyncedWrites,
}

/// The threads, their requests, and their duration.
#[derive(Clone, Debug)]
pub struct DirectLoad {
    pub requests: DirectRequests,
    pub threads: u32,
    /// The CPUs that the threads run on.
    pub cpus: Processors,
    pub duration: Duration,
}

/// Latencies of the same requests, in modelled time. A flush counts as a separate request.
#[derive(Clone, Debug, Default)]
pub struct DirectLatencies {
    /// According to the models.
    pub modelled: Histogram,
    /// According to the threads' waits.
    pub waited: Histogram,
}

/// How long to wait at most for requests in flight at the end.
const DRAIN_LIMIT: Duration = Duration::from_secs(5);
/// How soon a user's stop is noticed.
const LISTENS_EVERY: Duration = Duration::from_millis(50);

/// Attaches the first volume of the stack as a block device, and sends it requests. The devices' backing store should
/// be [`Null`](underlay_storage::stack::BackingSpec::Null), so that only the path and the models take time. `None` if
/// `stop` was raised.
///
/// # Errors
/// When the device can't be attached ([`AttachError::MissingCapability`] explains why), or a request fails.
pub fn measure(
    stack: &StackSpec,
    load: &DirectLoad,
    registry: &ResourceRegistry,
    stop: &AtomicBool,
) -> Result<Option<DirectLatencies>, AttachError> {
    if stop.load(Ordering::Relaxed) {
        return Ok(None);
    }
    let mut volumes = BlockAttachment::best()?.attach_devices(stack, registry)?;
    let measured = run(&volumes, stack.dilation, load, stop);
    let detached = volumes.detach();
    let (latencies, is_whole) = measured?;
    // Empty devices have nothing to lose.
    if is_whole {
        detached?;
    }
    Ok((!stop.load(Ordering::Relaxed)).then_some(latencies))
}

/// Sleeps, but at most until `stop` is raised.
fn sleep(duration: Duration, stop: &AtomicBool) {
    let ends = Instant::now() + duration;
    while !stop.load(Ordering::Relaxed) {
        match ends.saturating_duration_since(Instant::now()) {
            Duration::ZERO => break,
            left => std::thread::sleep(left.min(LISTENS_EVERY)),
        }
    }
}

fn run(
    volumes: &BlockVolumes,
    dilation: f64,
    load: &DirectLoad,
    stop: &AtomicBool,
) -> Result<(DirectLatencies, bool), AttachError> {
    let path = &volumes.paths()[0];
    let (counts, over) = (AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..load.threads)
            .map(|thread| {
                let (counts, over) = (&counts, &over);
                scope.spawn(move || {
                    let _confined = CpuConfinement::confine_to(&load.cpus)?;
                    request_until(path, load.requests, u64::from(thread), dilation, counts, over)
                })
            })
            .collect();
        sleep(WARM_UP, stop);
        let begun = volumes.begin_measurement((load.duration.as_secs_f64() / dilation).max(MIN_INTERVAL_S));
        counts.store(true, Ordering::Relaxed);
        sleep(load.duration, stop);
        let devices = volumes.end_measurement();
        over.store(true, Ordering::Relaxed);
        // Requests in flight may take minutes in slow motion.
        let is_whole = volumes.hurry_or_kill(DRAIN_LIMIT) == HurryOutcome::Hurried;
        let mut latencies = DirectLatencies::default();
        // Each of them still waits for a request.
        let ended: Vec<_> =
            volumes.run_with_watchdog(|| threads.into_iter().map(|thread| thread.join()).collect());
        for outcome in ended {
            latencies.waited.merge(&outcome.expect("a thread of the trial panicked")?);
        }
        begun?;
        devices?.iter().filter_map(|device| device.modelled.as_ref()).for_each(|modelled| {
            latencies.modelled.merge(modelled);
        });
        Ok((latencies, is_whole))
    })
}

fn request_until(
    path: &Path,
    requests: DirectRequests,
    thread: u64,
    dilation: f64,
    counts: &AtomicBool,
    over: &AtomicBool,
) -> Result<Histogram, AttachError> {
    let cannot = |action: &str, error| AttachError::io(action, path, error);
    let file = File::options()
        .read(true)
        .write(requests != DirectRequests::RandomReads)
        .custom_flags(libc::O_DIRECT)
        .open(path)
        .map_err(|error| cannot("open", error))?;
    let size_bytes = rustix::fs::seek(&file, rustix::fs::SeekFrom::End(0))
        .map_err(|error| cannot("find the size of", error.into()))?;
    let blocks = (size_bytes / BLOCK_BYTES).max(1);
    let mut buffer = AlignedBuffer::new(BLOCK_BYTES as usize);
    // Threads start far apart.
    let mut block = thread * STRIDE * STRIDE % blocks;
    let mut waited = Histogram::default();
    for number in 0u64.. {
        if over.load(Ordering::Relaxed) {
            break;
        }
        let is_counted = counts.load(Ordering::Relaxed);
        let mut timed = |request: &mut dyn FnMut() -> Result<(), AttachError>| {
            let begun = Instant::now();
            match request() {
                // Requests that were in flight when the daemon was killed.
                Err(_) if over.load(Ordering::Relaxed) => return Ok(()),
                outcome => outcome?,
            }
            // One that began within the measured time and ended after it would be missing from the modelled ones.
            if is_counted && !over.load(Ordering::Relaxed) {
                waited.record_ns((begun.elapsed().as_secs_f64() * 1e9 / dilation) as u64);
            }
            Ok::<(), AttachError>(())
        };
        let (step, writes) = match requests {
            DirectRequests::RandomReads => (STRIDE, false),
            DirectRequests::Mixed => (STRIDE, number * MIXED_WRITES % 10 < MIXED_WRITES),
            DirectRequests::SyncedWrites => (1, true),
        };
        block = (block + step) % blocks;
        timed(&mut || {
            let at_byte = block * BLOCK_BYTES;
            match writes {
                true => file.write_all_at(buffer.bytes(), at_byte).map_err(|error| cannot("write", error)),
                false => file.read_exact_at(buffer.bytes(), at_byte).map_err(|error| cannot("read", error)),
            }
        })?;
        if requests == DirectRequests::SyncedWrites {
            timed(&mut || file.sync_data().map_err(|error| cannot("flush", error)))?;
        }
    }
    Ok(waited)
}
