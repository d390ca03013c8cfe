//! Real disks' activity, from the kernel's own counters.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use underlay_record::{
    DeviceActivity, DeviceDescription, DeviceGlance, DeviceId, DeviceSample, DeviceTotals,
};

use crate::machine::error::AttachError;
use crate::machine::mounts;

/// The counters' unit for data, independent of the disk's own sectors (Documentation/block/stat.rst).
const SECTOR_BYTES: u64 = 512;

/// A block device below a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RealDevice {
    /// `/dev/nvme0n1p1`
    name: String,
    statistics: PathBuf,
}

impl RealDevice {
    /// The block device that holds `path`; `None` for memory and network filesystems.
    pub fn below(path: &Path) -> Option<RealDevice> {
        let number = fs::metadata(path).ok()?.dev();
        let direct = (rustix::fs::major(number), rustix::fs::minor(number));
        // Some file systems (btrfs) give files a number that belongs to no device; their mount names the device.
        let through_mount = || {
            let mounted = mounts::all();
            let mount = mounted.iter().rev().filter(|mount| path.starts_with(&mount.mount_point));
            let source = &mount.max_by_key(|mount| mount.mount_point.components().count())?.source;
            let number = fs::metadata(source).ok()?.rdev();
            Some((rustix::fs::major(number), rustix::fs::minor(number)))
        };
        let found = |(major, minor): (u32, u32)| {
            let directory = PathBuf::from(format!("/sys/dev/block/{major}:{minor}")).canonicalize().ok()?;
            let statistics = directory.join("stat");
            let name = format!("/dev/{}", directory.file_name()?.to_str()?);
            statistics.exists().then_some(RealDevice { name, statistics })
        };
        found(direct).or_else(|| found(through_mount()?))
    }

    /// Its totals since this host began to count; `None` for a disk that is gone.
    pub(crate) fn glance(&self) -> Option<DeviceGlance> {
        let totals = self.read()?;
        let now = clock_gettime(ClockId::Monotonic);
        Some(DeviceGlance {
            id: DeviceId::new(self.name.clone()),
            since_s: now.tv_sec as f64 + now.tv_nsec as f64 / 1e9,
            answered: totals.reads + totals.writes + totals.flushes + totals.discards,
            // A request is in the queue for as long as it takes.
            delivered_us: totals.queue_us,
            totals,
            ..DeviceGlance::default()
        })
    }

    fn read(&self) -> Option<DeviceTotals> {
        parse_statistics(&fs::read_to_string(&self.statistics).ok()?)
    }
}

/// Reads `/sys/block/*/stat`, by Documentation/block/stat.rst of the kernel: reads, merges, sectors, ticks; the
/// same for writes; in flight; busy ticks; queue ticks; the four for discards; flushes and their ticks. Ticks are
/// milliseconds; fields at the end are missing on older kernels.
pub(crate) fn parse_statistics(text: &str) -> Option<DeviceTotals> {
    let fields: Vec<u64> = text.split_ascii_whitespace().map(|field| field.parse().unwrap_or(0)).collect();
    if fields.len() < 11 {
        return None;
    }
    let later = |index: usize| fields.get(index).copied().unwrap_or(0);
    Some(DeviceTotals {
        reads: fields[0],
        writes: fields[4],
        flushes: later(15),
        discards: later(11),
        read_bytes: fields[2].saturating_mul(SECTOR_BYTES),
        write_bytes: fields[6].saturating_mul(SECTOR_BYTES),
        busy_us: fields[9] as f64 * 1e3,
        queue_us: fields[10] as f64 * 1e3,
    })
}

fn difference(later: &DeviceTotals, earlier: &DeviceTotals) -> DeviceTotals {
    DeviceTotals {
        reads: later.reads.saturating_sub(earlier.reads),
        writes: later.writes.saturating_sub(earlier.writes),
        flushes: later.flushes.saturating_sub(earlier.flushes),
        discards: later.discards.saturating_sub(earlier.discards),
        read_bytes: later.read_bytes.saturating_sub(earlier.read_bytes),
        write_bytes: later.write_bytes.saturating_sub(earlier.write_bytes),
        busy_us: (later.busy_us - earlier.busy_us).max(0.0),
        queue_us: (later.queue_us - earlier.queue_us).max(0.0),
    }
}

/// The activity in `span_s` seconds up to `t_s`, as rates.
fn sample(t_s: f64, span_s: f64, totals: &DeviceTotals) -> DeviceSample {
    DeviceSample {
        t_s,
        read_iops: totals.reads as f64 / span_s,
        write_iops: totals.writes as f64 / span_s,
        read_bytes_per_s: totals.read_bytes as f64 / span_s,
        write_bytes_per_s: totals.write_bytes as f64 / span_s,
        queue_depth: totals.queue_us / (span_s * 1e6),
        busy: (totals.busy_us / (span_s * 1e6)).min(1.0),
    }
}

/// A thread that reads the counters at a fixed interval.
pub struct CounterSampler {
    stop: Sender<()>,
    thread: JoinHandle<Vec<DeviceActivity>>,
}

impl CounterSampler {
    /// `interval_s` is in wall seconds, 0.001 to 86400.
    ///
    /// # Errors
    /// When the interval is out of range, or a disk has no counters.
    pub fn start(devices: Vec<RealDevice>, interval_s: f64) -> Result<CounterSampler, AttachError> {
        if !(0.001..=86_400.0).contains(&interval_s) {
            return Err(AttachError::failed(format!(
                "a sampling interval of {interval_s} s: expected 0.001 to 86400"
            )));
        }
        let (stop, stopped) = mpsc::channel();
        let mut watched: Vec<SampledDevice> = devices.into_iter().filter_map(SampledDevice::new).collect();
        let run = move || {
            let start = Instant::now();
            let mut previous_s = 0.0;
            loop {
                let due_s = next_due_s(start.elapsed().as_secs_f64(), interval_s);
                let due = start + Duration::from_secs_f64(due_s);
                let outcome = stopped.recv_timeout(due.saturating_duration_since(Instant::now()));
                let now_s = start.elapsed().as_secs_f64();
                let ends = !matches!(outcome, Err(RecvTimeoutError::Timeout));
                // A short remainder of an interval would only show noise.
                if !ends || now_s - previous_s > interval_s / 2.0 {
                    watched.iter_mut().for_each(|device| device.sample(now_s, now_s - previous_s));
                    previous_s = now_s;
                }
                if ends {
                    break;
                }
            }
            let duration_s = start.elapsed().as_secs_f64();
            watched.into_iter().map(|device| device.finish(duration_s)).collect()
        };
        let thread = std::thread::Builder::new()
            .name("disk-sampler".into())
            .spawn(run)
            .map_err(|error| AttachError::failed(format!("could not start the sampling thread: {error}")))?;
        Ok(CounterSampler { stop, thread })
    }

    /// Ends it; returns every device's activity since the start.
    pub fn finish(self) -> Vec<DeviceActivity> {
        drop(self.stop);
        self.thread.join().unwrap_or_default()
    }
}

/// The next multiple of the interval. Those that passed during a stall are left out: sampled late and directly after
/// each other, they would show rates over microseconds.
fn next_due_s(now_s: f64, interval_s: f64) -> f64 {
    let due_s = ((now_s / interval_s).floor() + 1.0) * interval_s;
    // A time that the timer woke for slightly early, by rounding, is not in the future but now.
    if due_s - now_s < EARLY_S { due_s + interval_s } else { due_s }
}

/// How early a timer may fire by rounding: far less than the shortest interval.
const EARLY_S: f64 = 1e-6;

struct SampledDevice {
    device: RealDevice,
    first: DeviceTotals,
    last: DeviceTotals,
    series: Vec<DeviceSample>,
}

impl SampledDevice {
    fn new(device: RealDevice) -> Option<SampledDevice> {
        let first = device.read()?;
        Some(SampledDevice { device, first, last: first, series: Vec::new() })
    }

    fn sample(&mut self, t_s: f64, span_s: f64) {
        // A disk that was removed has no counters any more, so its series ends.
        if let Some(now) = self.device.read() {
            self.series.push(sample(t_s, span_s, &difference(&now, &self.last)));
            self.last = now;
        }
    }

    fn finish(self, duration_s: f64) -> DeviceActivity {
        let now = self.device.read().unwrap_or(self.last);
        DeviceActivity {
            inputs: None,
            description: DeviceDescription {
                id: DeviceId::new(self.device.name),
                ..DeviceDescription::default()
            },
            duration_s,
            totals: difference(&now, &self.first),
            series: self.series,
            modelled: None,
            delivered: None,
            wear: None,
            faults: Vec::new(),
            earlier_faults: Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_of_new_and_old_kernels() {
        let new = "  100 5 800 40 50 6 1600 30 2 60 75 7 0 56 1 9 12\n";
        let totals = parse_statistics(new).unwrap();
        assert_eq!((totals.reads, totals.writes, totals.discards, totals.flushes), (100, 50, 7, 9));
        assert_eq!((totals.read_bytes, totals.write_bytes), (409_600, 819_200));
        assert_eq!((totals.busy_us, totals.queue_us), (60_000.0, 75_000.0));
        let old = "100 5 800 40 50 6 1600 30 2 60 75";
        assert_eq!(parse_statistics(old).unwrap().flushes, 0);
        assert!(parse_statistics("1 2 3").is_none());
        assert!(parse_statistics("").is_none());
    }

    #[test]
    fn rates_are_per_second_and_busy_is_a_share() {
        let totals = DeviceTotals {
            reads: 50,
            read_bytes: 4096,
            busy_us: 1e6,
            queue_us: 4e6,
            ..DeviceTotals::default()
        };
        let shown = sample(10.0, 2.0, &totals);
        assert_eq!(
            (shown.read_iops, shown.read_bytes_per_s, shown.queue_depth, shown.busy),
            (25.0, 2048.0, 2.0, 0.5)
        );
    }

    #[test]
    fn ticks_that_a_stall_let_pass_are_left_out() {
        assert_eq!(next_due_s(0.0, 0.5), 0.5);
        assert_eq!(next_due_s(0.501, 0.5), 1.0);
        assert_eq!(next_due_s(1.0, 0.5), 1.5);
        // Ten seconds late: the next one, not twenty at once.
        assert_eq!(next_due_s(10.7, 0.5), 11.0);
        // Just before the tick that it has been woken for.
        assert_eq!(next_due_s(0.999_999_9, 0.5), 1.5);
    }

    #[test]
    fn memory_filesystem_has_no_block_device() {
        assert_eq!(RealDevice::below(Path::new("/proc/self")), None);
    }
}
