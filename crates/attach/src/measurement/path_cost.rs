//! A request's time on its path to a device and back, measured by reads from a device of known latency.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, Instant};
use underlay_sync::Mutex;

use underlay_storage::paced::PathCost;
use underlay_storage::stack::{BackingSpec, DeviceSpec, StackNode, StackSpec, VolumeSpec};

use crate::attachments::block_volumes::BlockVolumes;
use crate::machine::error::AttachError;
use crate::measurement::aligned_buffer::AlignedBuffer;
use crate::serving::daemon::DaemonTransport;
use crate::serving::daemon::control::{MAX_MIB_US, MAX_PATH_US};
use crate::serving::daemon_process::DaemonProgram;
use crate::undo::registry::ResourceRegistry;

pub(crate) const READ_BYTES: usize = 4096;
pub(crate) const DEVICE_BYTES: u64 = 1 << 30;

/// The latency of the device of [`path_cost`]: long enough for processors to fall asleep, as under a real disk.
const PATH_DEVICE_LATENCY_US: f64 = 500.0;
const PATH_PROBE: Duration = Duration::from_millis(150);
const PATH_WARM_UP_READS: u32 = 20;
/// The request size of a filesystem or a sequential reader.
const LONG_READ_BYTES: usize = 128 << 10;

/// A request's time on its path to a device and back, by this transport and in wall time: one read at a time from a
/// device of known latency. Measured once per process.
pub(crate) fn path_cost(
    program: &DaemonProgram,
    transport: DaemonTransport,
    hurry_limit: Duration,
    registry: &ResourceRegistry,
) -> Result<PathCost, AttachError> {
    static MEASURED: Mutex<BTreeMap<DaemonTransport, PathCost>> = Mutex::new(BTreeMap::new());
    // Held during the measurement: two at once would measure each other.
    let mut measured = MEASURED.lock();
    if let Some(path) = measured.get(&transport) {
        return Ok(*path);
    }
    let device = DeviceSpec::new("null.0", None, DEVICE_BYTES, BackingSpec::Null);
    // Enough bandwidth that bytes cost nothing.
    let root = StackNode::Link {
        bandwidth_mb_s: 1e6,
        latency_us: PATH_DEVICE_LATENCY_US / 2.0,
        member: Box::new(StackNode::Device(device)),
    };
    let stack = StackSpec { volumes: vec![VolumeSpec::new("path", root)], dilation: 1.0, seed: 1 };
    let mut volumes =
        BlockVolumes::attach(program, transport, PathCost::default(), hurry_limit, &stack, registry)?;
    let device = volumes.paths()[0].clone();
    let found = volumes.run_with_watchdog(|| -> Result<_, AttachError> {
        let small = read_latencies_us(&device, READ_BYTES, PATH_WARM_UP_READS, PATH_PROBE)?;
        Ok((small, read_latencies_us(&device, LONG_READ_BYTES, 0, PATH_PROBE)?))
    });
    volumes.detach()?;
    let (mut small, mut long) = found?;
    // The undisturbed reads are preferred: answering too early would be worse than too late.
    let small_us = percentile(&mut small, 0.4) - PATH_DEVICE_LATENCY_US;
    let long_us = percentile(&mut long, 0.4) - PATH_DEVICE_LATENCY_US;
    let mib = f64::from(1 << 20);
    let mib_us = (long_us - small_us) / ((LONG_READ_BYTES - READ_BYTES) as f64 / mib);
    let path = PathCost {
        fixed_us: (small_us - mib_us.max(0.0) * READ_BYTES as f64 / mib).clamp(0.0, MAX_PATH_US),
        mib_us: mib_us.clamp(0.0, MAX_MIB_US),
    };
    measured.insert(transport, path);
    Ok(path)
}

pub(crate) fn read_latencies_us(
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
    // A stride coprime to the number of blocks visits all of them, far apart.
    let mut block = 0;
    while latencies_us.is_empty() || Instant::now() < deadline {
        latencies_us.push(read(block)?);
        block = (block + 100_003) % blocks;
    }
    Ok(latencies_us)
}

/// The smallest value that is not exceeded by at least the share `rank` of all values (nearest rank).
pub(crate) fn percentile(values: &mut [f64], rank: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    let index = (rank * values.len() as f64).ceil() as usize;
    values.get(index.saturating_sub(1)).copied().unwrap_or(0.0)
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
