//! Requests of modelled devices that hold nothing, by several threads at once: whether this host keeps their latencies at a
//! factor of slow motion.

use std::fs::File;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use underlay_record::Histogram;
use underlay_storage::stack::{Pace, StackSpec};

use crate::attachments::block_attachment::BlockAttachment;
use crate::attachments::block_volumes::BlockVolumes;
use crate::machine::error::AttachError;
use crate::machine::processors::{Confined, Processors};
use crate::measurement::aligned_buffer::AlignedBuffer;
use crate::undo::registry::Registry;

const BLOCK_BYTES: u64 = 4096;
/// From one block to the next: it is coprime to the number of blocks, visits all of them, and none is near the one before.
const STRIDE: u64 = 100_003;
/// The shortest interval that a daemon samples its devices at, in modelled time.
const MIN_INTERVAL_S: f64 = 0.001;
/// Caches and the daemon's threads warm up.
const WARM_UP: Duration = Duration::from_millis(150);

/// What the threads do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Requests {
    RandomReads,
    /// One after the other, with a flush behind each, as a log is written.
    SyncedWrites,
}

/// Who makes requests, which, and for how long.
#[derive(Clone, Debug)]
pub struct DirectLoad {
    pub requests: Requests,
    pub threads: u32,
    /// The CPUs that the threads run on.
    pub cpus: Processors,
    pub duration: Duration,
}

/// Latencies of the same requests, in modelled time. A flush is one of its own.
#[derive(Clone, Debug, Default)]
pub struct DirectLatencies {
    /// As the models have it.
    pub modelled: Histogram,
    /// As the threads waited.
    pub waited: Histogram,
}

/// Attaches the first volume of the stack as a block device, and makes requests of it. The devices' backing should be
/// [`Null`](underlay_storage::stack::BackingSpec::Null), so that nothing but the path and the models takes time.
///
/// # Errors
/// When the device can't be attached, which [`AttachError::Missing`] explains, or a request fails.
pub fn measure(
    stack: &StackSpec,
    load: &DirectLoad,
    registry: &Registry,
) -> Result<DirectLatencies, AttachError> {
    let mut volumes = BlockAttachment::best()?.attach_devices(stack, registry)?;
    let measured = run(&volumes, stack.dilation, load);
    let detached = volumes.detach();
    let latencies = measured?;
    detached.map(|()| latencies)
}

fn run(volumes: &BlockVolumes, dilation: f64, load: &DirectLoad) -> Result<DirectLatencies, AttachError> {
    let path = &volumes.paths()[0];
    let (counts, over) = (AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..load.threads)
            .map(|thread| {
                let (counts, over) = (&counts, &over);
                scope.spawn(move || {
                    let _confined = Confined::to(&load.cpus)?;
                    request_until(path, load.requests, u64::from(thread), dilation, counts, over)
                })
            })
            .collect();
        std::thread::sleep(WARM_UP);
        let begun = volumes.begin_measurement((load.duration.as_secs_f64() / dilation).max(MIN_INTERVAL_S));
        counts.store(true, Ordering::Relaxed);
        std::thread::sleep(load.duration);
        let devices = volumes.end_measurement();
        over.store(true, Ordering::Relaxed);
        // What is under way is not waited for in slow motion. A daemon that has died has answered all of it.
        let _ = volumes.set_pace(Pace::Immediate);
        let mut latencies = DirectLatencies::default();
        for thread in threads {
            latencies.waited.merge(&thread.join().expect("a thread of the trial panicked")?);
        }
        begun?;
        devices?.iter().filter_map(|device| device.modelled.as_ref()).for_each(|modelled| {
            latencies.modelled.merge(modelled);
        });
        Ok(latencies)
    })
}

fn request_until(
    path: &Path,
    requests: Requests,
    thread: u64,
    dilation: f64,
    counts: &AtomicBool,
    over: &AtomicBool,
) -> Result<Histogram, AttachError> {
    let cannot = |what: &str, error| AttachError::io(what, path, error);
    let file = File::options()
        .read(true)
        .write(requests == Requests::SyncedWrites)
        .custom_flags(libc::O_DIRECT)
        .open(path)
        .map_err(|error| cannot("open", error))?;
    let size_bytes = rustix::fs::seek(&file, rustix::fs::SeekFrom::End(0))
        .map_err(|error| cannot("find the size of", error.into()))?;
    let blocks = (size_bytes / BLOCK_BYTES).max(1);
    let mut buffer = AlignedBuffer::new(BLOCK_BYTES as usize);
    // Threads begin far apart.
    let mut block = thread * STRIDE * STRIDE % blocks;
    let mut waited = Histogram::default();
    while !over.load(Ordering::Relaxed) {
        let is_counted = counts.load(Ordering::Relaxed);
        let mut timed = |request: &mut dyn FnMut() -> Result<(), AttachError>| {
            let begun = Instant::now();
            request()?;
            // One that began within the measured time and ended after it would be missing among the modelled ones.
            if is_counted && !over.load(Ordering::Relaxed) {
                waited.record_ns((begun.elapsed().as_secs_f64() * 1e9 / dilation) as u64);
            }
            Ok::<(), AttachError>(())
        };
        match requests {
            Requests::RandomReads => {
                block = (block + STRIDE) % blocks;
                timed(&mut || {
                    let read = file.read_exact_at(buffer.bytes(), block * BLOCK_BYTES);
                    read.map_err(|error| cannot("read", error))
                })?;
            }
            Requests::SyncedWrites => {
                block = (block + 1) % blocks;
                timed(&mut || {
                    let written = file.write_all_at(buffer.bytes(), block * BLOCK_BYTES);
                    written.map_err(|error| cannot("write", error))
                })?;
                timed(&mut || file.sync_data().map_err(|error| cannot("flush", error)))?;
            }
        }
    }
    Ok(waited)
}
