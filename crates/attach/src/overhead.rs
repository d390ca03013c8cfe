//! What the attachment itself costs: the floor below which no latency can be modelled on this machine.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::collections::BTreeMap;
use std::fs::File;
use std::num::NonZeroU64;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use underlay_storage::paced::PathCost;
use underlay_storage::stack::{BackingSpec, DeviceSpec, Node, StackSpec, VolumeSpec};

use crate::attachment::{AttachError, Attachment as _};
use crate::daemon::Transport;
use crate::fuse_loop::FuseLoop;
use crate::registry::Registry;

/// The cost of the path and of the timer, in microseconds of the clock.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Overhead {
    /// One 4 KiB read at a time through loop device, FUSE and daemon, from a device that completes at once.
    pub path_p50_us: f64,
    pub path_p99_us: f64,
    /// What the path adds to a device that is not that fast, on processors that fall asleep in between: requests to
    /// modelled devices are dated back by it.
    pub dated_back_us: f64,
    /// How late a thread comes back from a sleep of half a millisecond, with a timer slack of 1 ns.
    pub timer_lateness_p99_us: f64,
}

const READ_BYTES: usize = 4096;
const DEVICE_BYTES: u64 = 1 << 30;
const SLEEP: Duration = Duration::from_micros(500);

/// So long does the device of [`path_cost`] take: long enough for processors to fall asleep, as under a real disk.
const PATH_DEVICE_LATENCY_US: f64 = 500.0;
const PATH_PROBE: Duration = Duration::from_millis(150);
const PATH_WARM_UP_READS: u32 = 20;
/// What a filesystem or a sequential reader asks for at once.
const LONG_READ_BYTES: usize = 128 << 10;
/// Dating back by more would say that a busy moment was this machine's nature.
const MAX_PATH_US: f64 = 100.0;
const MAX_MIB_US: f64 = 1000.0;

/// Reads before the first that counts: caches and the daemon's threads warm up.
const WARM_UP_READS: u32 = 200;

/// Measures for about `duration`, which is shared by the two parts, with this program as the daemon and the
/// better of the two transports that this host has.
pub fn measure(duration: Duration) -> Result<Overhead, AttachError> {
    let attachment = FuseLoop::new()?;
    let over_uring = attachment.clone().with_transport(Transport::Uring);
    let attachment = if over_uring.probe().is_ok() { over_uring } else { attachment };
    measure_with(&attachment, &Registry::open()?, duration)
}

/// What a request waits on its way to a device and back, by this attachment and this machine's clock: one read at a time
/// from a device of a known latency. Measured once in a process.
pub(crate) fn path_cost(attachment: &FuseLoop, registry: &Registry) -> Result<PathCost, AttachError> {
    static MEASURED: Mutex<BTreeMap<Transport, PathCost>> = Mutex::new(BTreeMap::new());
    // Held while it is measured: two at once would measure each other.
    let mut measured = MEASURED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(path) = measured.get(&attachment.transport()) {
        return Ok(*path);
    }
    let device = DeviceSpec::new("null.0", None, DEVICE_BYTES, BackingSpec::Null);
    // So much bandwidth that bytes cost nothing.
    let root = Node::Link {
        bandwidth_mb_s: 1e6,
        latency_us: PATH_DEVICE_LATENCY_US / 2.0,
        member: Box::new(Node::Device(device)),
    };
    let stack = StackSpec { volumes: vec![VolumeSpec::new("path", root)], dilation: 1.0, seed: 1 };
    let mut volumes = attachment.attach_at(PathCost::default(), &stack, registry)?;
    let device = volumes.paths()[0].clone();
    let found = read_latencies_us(&device, READ_BYTES, PATH_WARM_UP_READS, PATH_PROBE)
        .and_then(|small| Ok((small, read_latencies_us(&device, LONG_READ_BYTES, 0, PATH_PROBE)?)));
    volumes.detach()?;
    let (mut small, mut long) = found?;
    // Rather the undisturbed reads: to answer too early would be worse than too late.
    let small_us = percentile(&mut small, 0.4) - PATH_DEVICE_LATENCY_US;
    let long_us = percentile(&mut long, 0.4) - PATH_DEVICE_LATENCY_US;
    let mib = f64::from(1 << 20);
    let mib_us = (long_us - small_us) / ((LONG_READ_BYTES - READ_BYTES) as f64 / mib);
    let path = PathCost {
        fixed_us: (small_us - mib_us.max(0.0) * READ_BYTES as f64 / mib).clamp(0.0, MAX_PATH_US),
        mib_us: mib_us.clamp(0.0, MAX_MIB_US),
    };
    measured.insert(attachment.transport(), path);
    Ok(path)
}

/// The same with a daemon and a registry of the caller's choice.
pub fn measure_with(
    attachment: &FuseLoop,
    registry: &Registry,
    duration: Duration,
) -> Result<Overhead, AttachError> {
    let device = DeviceSpec::new("null.0", None, DEVICE_BYTES, BackingSpec::Null);
    let volume = VolumeSpec::striped("null", vec![device], 0);
    let stack = StackSpec { volumes: vec![volume], dilation: 1.0, seed: 1 };
    let mut volumes = attachment.attach_devices(&stack, registry)?;
    let path = volumes.paths()[0].clone();
    let mut reads_us = read_latencies_us(&path, READ_BYTES, WARM_UP_READS, duration / 2)?;
    volumes.detach()?;
    let dated_back_us = path_cost(attachment, registry)?.fixed_us;
    let mut lateness_us = timer_lateness_us(duration / 2)?;
    Ok(Overhead {
        path_p50_us: percentile(&mut reads_us, 0.50),
        path_p99_us: percentile(&mut reads_us, 0.99),
        dated_back_us,
        timer_lateness_p99_us: percentile(&mut lateness_us, 0.99),
    })
}

fn read_latencies_us(
    path: &Path,
    length_bytes: usize,
    warm_up_reads: u32,
    duration: Duration,
) -> Result<Vec<f64>, AttachError> {
    let file = File::options()
        .read(true)
        .custom_flags(libc::O_DIRECT)
        .open(path)
        .map_err(|error| AttachError::io("open", path, error))?;
    let mut buffer = AlignedBuffer::new(length_bytes);
    let mut read = |block: u64| {
        let start = Instant::now();
        file.read_exact_at(buffer.bytes(), block * length_bytes as u64)
            .map_err(|error| AttachError::io("read", path, error))?;
        Ok::<f64, AttachError>(start.elapsed().as_secs_f64() * 1e6)
    };
    let blocks = DEVICE_BYTES / length_bytes as u64;
    for index in 0..warm_up_reads {
        read(u64::from(index))?;
    }
    let deadline = Instant::now() + duration;
    let mut latencies_us = Vec::new();
    // A stride that is coprime to the number of blocks visits all of them, far apart.
    let mut block = 0;
    while latencies_us.is_empty() || Instant::now() < deadline {
        latencies_us.push(read(block)?);
        block = (block + 100_003) % blocks;
    }
    Ok(latencies_us)
}

fn timer_lateness_us(duration: Duration) -> Result<Vec<f64>, AttachError> {
    let sample = move || {
        // The slack is a thread's own, so this needs no undoing.
        let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
        let deadline = Instant::now() + duration;
        let mut lateness_us = Vec::new();
        while lateness_us.is_empty() || Instant::now() < deadline {
            let start = Instant::now();
            std::thread::sleep(SLEEP);
            lateness_us.push(start.elapsed().saturating_sub(SLEEP).as_secs_f64() * 1e6);
        }
        lateness_us
    };
    let thread = std::thread::Builder::new()
        .name("timer-lateness".into())
        .spawn(sample)
        .map_err(|error| AttachError::failed(format!("could not start a thread: {error}")))?;
    thread.join().map_err(|_| AttachError::failed("the thread that measures the timer panicked"))
}

/// The smallest value that at least the share `rank` of all values does not exceed (nearest rank).
fn percentile(values: &mut [f64], rank: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    let index = (rank * values.len() as f64).ceil() as usize;
    values.get(index.saturating_sub(1)).copied().unwrap_or(0.0)
}

/// Direct I/O wants memory aligned to the device's blocks.
struct AlignedBuffer {
    start: *mut u8,
    layout: Layout,
}

impl AlignedBuffer {
    /// Of `length_bytes`, a positive multiple of a block.
    fn new(length_bytes: usize) -> Self {
        let layout = Layout::from_size_align(length_bytes, READ_BYTES).expect("a block is a power of two");
        assert!(layout.size() > 0, "a buffer for nothing");
        // SAFETY: the layout's size is not zero.
        let start = unsafe { alloc_zeroed(layout) };
        assert!(!start.is_null(), "no memory for a buffer");
        AlignedBuffer { start, layout }
    }

    fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: as many initialised bytes, which belong to this buffer alone.
        unsafe { std::slice::from_raw_parts_mut(self.start, self.layout.size()) }
    }
}

impl Drop for AlignedBuffer {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with the same layout.
        unsafe { dealloc(self.start, self.layout) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_by_nearest_rank() {
        let mut values: Vec<f64> = (1..=100).rev().map(f64::from).collect();
        assert_eq!(percentile(&mut values, 0.50), 50.0);
        assert_eq!(percentile(&mut values, 0.99), 99.0);
        assert_eq!(percentile(&mut [7.0], 0.99), 7.0);
        assert_eq!(percentile(&mut [], 0.5), 0.0);
    }
}
