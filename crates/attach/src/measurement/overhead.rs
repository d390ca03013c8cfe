//! The attachment's own cost: this machine can't model a lower latency.

use std::time::{Duration, Instant};

use underlay_storage::stack::{BackingSpec, DeviceSpec, StackSpec, VolumeSpec};

use crate::attachments::block_attachment::BlockAttachment;
use crate::machine::error::AttachError;
use crate::measurement::path_cost::{DEVICE_BYTES, READ_BYTES, percentile, read_latencies_us};
use crate::undo::registry::ResourceRegistry;

/// The cost of the path and of the timer, in microseconds of wall time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PathOverhead {
    /// One 4 KiB read at a time through loop device, FUSE and daemon, from a device that completes at once.
    pub path_p50_us: f64,
    pub path_p99_us: f64,
    /// The path cost of a slower device, with processors that fall asleep in between. Requests to modelled devices are
    /// backdated by it.
    pub dated_back_us: f64,
    /// How late a thread wakes from a sleep of half a millisecond, with a timer slack of 1 ns.
    pub timer_lateness_p99_us: f64,
}

const SLEEP: Duration = Duration::from_micros(500);

/// Reads before the first counted one: caches and the daemon's threads warm up.
const WARM_UP_READS: u32 = 200;

/// Measures for about `duration`, divided between the two parts, with this program as the daemon and the better of this
/// host's two transports.
///
/// # Errors
/// When the device can't be attached or read.
pub fn measure(duration: Duration) -> Result<PathOverhead, AttachError> {
    let attachment = BlockAttachment::best()?;
    measure_with(&attachment, &ResourceRegistry::open()?, duration)
}

/// The same with a daemon and a registry of the caller's choice.
///
/// # Errors
/// When the device can't be attached or read.
pub fn measure_with(
    attachment: &BlockAttachment,
    registry: &ResourceRegistry,
    duration: Duration,
) -> Result<PathOverhead, AttachError> {
    let device = DeviceSpec::new("null.0", None, DEVICE_BYTES, BackingSpec::Null);
    let volume = VolumeSpec::striped("null", vec![device], 0);
    let stack = StackSpec { volumes: vec![volume], dilation: 1.0, seed: 1 };
    let mut volumes = attachment.attach_devices(&stack, registry)?;
    let path = volumes.paths()[0].clone();
    let read = || read_latencies_us(&path, READ_BYTES, WARM_UP_READS, duration / 2);
    let mut reads_us = volumes.run_with_watchdog(read)?;
    volumes.detach()?;
    let dated_back_us = attachment.path_cost(registry)?.fixed_us;
    let mut lateness_us = timer_lateness_us(duration / 2)?;
    Ok(PathOverhead {
        path_p50_us: percentile(&mut reads_us, 0.50),
        path_p99_us: percentile(&mut reads_us, 0.99),
        dated_back_us,
        timer_lateness_p99_us: percentile(&mut lateness_us, 0.99),
    })
}

fn timer_lateness_us(duration: Duration) -> Result<Vec<f64>, AttachError> {
    let sample = move || {
        // The slack belongs to the thread, so this needs no undoing.
        let _ = underlay_sync::timer_slack::narrow();
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
