//! The share of this host's CPU time that a group may use, and its usage.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use underlay_sync::Mutex;

use super::group::ControlGroup;
use super::hierarchy::{CgroupVersion, PRESSURE_FILE, read_field, read_number};
use crate::machine::error::AttachError;
use crate::machine::processors::Processors;

/// The kernel's limits of a quota and of its period (`min_cfs_quota_period`, `max_cfs_quota_period`).
const MIN_QUOTA_US: u64 = 1_000;
const MAX_PERIOD_US: u64 = 1_000_000;

/// A share of this host's CPU time.
#[derive(Clone, Debug, PartialEq)]
pub struct CpuShare {
    /// The CPUs that it may run on; never empty.
    pub cpus: Processors,
    /// CPU time in CPUs. With as many as `cpus` or more, it is all their time, without a quota.
    pub quota_cpus: f64,
    /// The quota's period in wall time, from 1 ms to 1 s: short ones keep throttling out of the tails. If the quota
    /// would be below the kernel's minimum, 1 ms, the period becomes longer.
    pub period: Duration,
    /// Up to its quota, the group has priority over other programs on these CPUs. Must be false where they also run the
    /// load generator and the devices.
    pub prevails: bool,
}

/// A quota in the kernel's form: this much of each period.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct KernelQuota {
    pub(super) quota_us: u64,
    pub(super) period_us: u64,
}

impl CpuShare {
    /// `None`: all the time of its CPUs. They limit it without a quota, which is better for the tails.
    pub(super) fn quota(&self) -> Result<Option<KernelQuota>, AttachError> {
        if self.cpus.is_empty() {
            return Err(AttachError::failed("a share of CPU time has no CPUs: name one at least"));
        }
        let quota_cpus = self.quota_cpus;
        if quota_cpus >= self.cpus.len() as f64 {
            return Ok(None);
        }
        let least_cpus = MIN_QUOTA_US as f64 / MAX_PERIOD_US as f64;
        if quota_cpus.is_nan() || quota_cpus < least_cpus {
            return Err(AttachError::failed(format!(
                "a quota of {quota_cpus} CPUs can't be held: the kernel takes {least_cpus} at least"
            )));
        }
        let least_period_us = (MIN_QUOTA_US as f64 / quota_cpus).ceil() as u64;
        let asked_us = u64::try_from(self.period.as_micros()).unwrap_or(u64::MAX);
        let period_us = asked_us.max(least_period_us).clamp(MIN_QUOTA_US, MAX_PERIOD_US);
        let quota_us = ((quota_cpus * period_us as f64).round() as u64).max(MIN_QUOTA_US);
        Ok(Some(KernelQuota { quota_us, period_us }))
    }
}

/// A group's usage, and how often its quota stopped it: sums since the group was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuUsage {
    pub used: Duration,
    /// How long its threads had to wait for the next period, summed up over CPUs.
    pub throttled: Duration,
    /// Periods in which it had something to run, while the quota was set.
    pub periods: u64,
    /// The periods in which its quota ran out.
    pub throttled_periods: u64,
    /// How long it had something to run and nothing of it ran (the kernel's pressure stall information), including
    /// waits for its next period. `None` where the kernel doesn't report this.
    pub stalled: Option<Duration>,
}

/// Sets the quota of a group with the controller `cpu`, or lifts it.
pub(super) fn set_quota(group: &ControlGroup, quota: Option<KernelQuota>) -> Result<(), AttachError> {
    let file = group.version().quota_file();
    match (group.version(), quota) {
        (CgroupVersion::V1, None) => group.write(file, "-1"),
        (CgroupVersion::V1, Some(KernelQuota { quota_us, period_us })) => {
            // In between, the group has no quota or its old one, never one that the kernel refuses.
            group.write(file, "-1")?;
            group.write("cpu.cfs_period_us", &period_us.to_string())?;
            match group.write(file, &quota_us.to_string()) {
                // A parent group, such as a container's, allows less than this, and so limits it more strictly. Missing
                // time counts as lost.
                Err(AttachError::Io { source, .. }) if source.kind() == io::ErrorKind::InvalidInput => Ok(()),
                written => written,
            }
        }
        (CgroupVersion::V2, None) => group.write(file, "max"),
        (CgroupVersion::V2, Some(KernelQuota { quota_us, period_us })) => {
            group.write(file, &format!("{quota_us} {period_us}"))
        }
    }
}

/// A group's quota, which can be changed while it applies.
#[derive(Clone, Debug)]
pub struct CpuQuota {
    directory: PathBuf,
    version: CgroupVersion,
    share: CpuShare,
    held: CpuLimitState,
}

/// A group's present limit; none while it has none.
pub(super) type CpuLimitState = Arc<Mutex<Option<KernelQuota>>>;

impl CpuQuota {
    pub(super) fn new(group: &ControlGroup, share: &CpuShare, limit_state: &CpuLimitState) -> CpuQuota {
        let (directory, version) = (group.directory().to_owned(), group.version());
        CpuQuota { directory, version, share: share.clone(), held: Arc::clone(limit_state) }
    }

    /// Changes the group's share of its CPUs; at most all their time. Has no effect while no quota applies.
    ///
    /// # Errors
    /// When the kernel refuses it.
    pub fn change(&self, quota_cpus: f64) -> Result<(), AttachError> {
        let mut guard = self.held.lock();
        let Some(before) = *guard else { return Ok(()) };
        // The period stays the same, unless the quota would be too small for it.
        let most_cpus = self.share.cpus.len() as f64;
        let quota_cpus = quota_cpus.min(most_cpus * (1.0 - UNHELD_SHARE));
        let Some(quota) = (CpuShare { quota_cpus, ..self.share.clone() }).quota()? else { return Ok(()) };
        if quota == before {
            return Ok(());
        }
        let file = self.directory.join(self.version.quota_file());
        let set = |file: &Path, text: String| {
            fs::write(file, &text).map_err(|error| AttachError::io(&format!("set {text} in"), file, error))
        };
        match self.version {
            CgroupVersion::V2 => set(&file, format!("{} {}", quota.quota_us, quota.period_us))?,
            CgroupVersion::V1 => {
                if quota.period_us != before.period_us {
                    set(&file, "-1".to_owned())?;
                    set(&self.directory.join("cpu.cfs_period_us"), quota.period_us.to_string())?;
                }
                set(&file, quota.quota_us.to_string())?;
            }
        }
        *guard = Some(quota);
        Ok(())
    }
}

/// A group with a quota lacks at least this share of its CPUs: a quota of all their time would be none.
const UNHELD_SHARE: f64 = 1e-6;

/// If all its CPUs are busy, a group with priority weighs as much as this many programs on each of them. On one CPU,
/// while the others are idle, it weighs more. It then gets its quota next to one or two programs. A greater weight
/// would starve the kernel's own threads, which carry requests to our devices on the same CPUs. At 256 each got a 257th
/// of the CPU while the system wanted it, and requests took 0.5 ms longer.
const PROGRAMS: u64 = 8;

/// Gives our groups priority over other programs on the same CPUs, or withdraws it. As one group among the host's
/// programs they would get no more of a CPU than any of these. On many CPUs they would get less, since the kernel
/// divides a group's weight among its CPUs. The weight belongs to the parent, which all our groups share, including
/// those of other runs on this host: it stays while they live. Where it can't be set, the system waits longer, which is
/// counted.
pub(super) fn prevail(group: &ControlGroup, cpus: usize, prevails: bool) {
    let weight = group.version().weight();
    if let Some(parent) = group.directory().parent() {
        if !prevails && has_another_run(parent) {
            return;
        }
        let set = |programs: u64| {
            let wanted = weight.of_a_program.saturating_mul(programs).min(weight.largest);
            let _ = fs::write(parent.join(weight.file), wanted.to_string());
        };
        let prevailing = PROGRAMS * cpus.max(1) as u64;
        set(if prevails { prevailing } else { 1 });
        // Another run may have begun since, and would lose its weight.
        if !prevails && has_another_run(parent) {
            set(prevailing);
        }
    }
}

/// Whether another living process has groups in it; `ResourceBudget` names them `what-process-number`.
fn has_another_run(parent: &Path) -> bool {
    let groups = fs::read_dir(parent).into_iter().flatten().flatten();
    groups
        .filter_map(|entry| process_of(entry.file_name().to_str()?))
        .any(|process| process != std::process::id() && Path::new("/proc").join(process.to_string()).exists())
}

fn process_of(group: &str) -> Option<u32> {
    group.rsplit('-').nth(1)?.parse().ok()
}

/// The group's usage; in version 1 `accounting` is the group with the controller `cpuacct`. `pressure` is the group of
/// version 2 with the same processes.
pub(super) fn usage(
    group: &ControlGroup,
    accounting: Option<&ControlGroup>,
    pressure: Option<&ControlGroup>,
) -> Option<CpuUsage> {
    let file = group.file("cpu.stat");
    let field = |name: &str| read_field(&file, name);
    let (used, throttled) = match group.version() {
        CgroupVersion::V1 => {
            let used_ns = read_number(&accounting?.file("cpuacct.usage"))?;
            (Duration::from_nanos(used_ns), Duration::from_nanos(field("throttled_time").unwrap_or(0)))
        }
        CgroupVersion::V2 => {
            let throttled_us = field("throttled_usec").unwrap_or(0);
            (Duration::from_micros(field("usage_usec")?), Duration::from_micros(throttled_us))
        }
    };
    let count = |name: &str| field(name).unwrap_or(0);
    let stalled = pressure
        .and_then(|group| fs::read_to_string(group.file(PRESSURE_FILE)).ok())
        .and_then(|text| stalled(&text));
    Some(CpuUsage {
        used,
        throttled,
        periods: count("nr_periods"),
        throttled_periods: count("nr_throttled"),
        stalled,
    })
}

/// From `full avg10=0.00 avg60=0.00 avg300=0.00 total=12345`, in microseconds. Kernels before 5.13 have no such line
/// for CPUs.
fn stalled(pressure: &str) -> Option<Duration> {
    let full = pressure.lines().find_map(|line| line.strip_prefix("full "))?;
    let total_us = full.split_ascii_whitespace().find_map(|field| field.strip_prefix("total="))?;
    total_us.parse().ok().map(Duration::from_micros)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quota(cpus: u32, quota_cpus: f64, period_ms: u64) -> Result<Option<(u64, u64)>, String> {
        let share = CpuShare {
            cpus: (0..cpus).collect(),
            quota_cpus,
            period: Duration::from_millis(period_ms),
            prevails: true,
        };
        let quota = share.quota().map_err(|error| error.to_string())?;
        Ok(quota.map(|KernelQuota { quota_us, period_us }| (quota_us, period_us)))
    }

    #[test]
    fn quotas_are_what_the_kernel_takes() {
        assert_eq!(quota(4, 2.5, 5), Ok(Some((12_500, 5_000))));
        assert_eq!(quota(2, 1.6, 10), Ok(Some((16_000, 10_000))));
        // All the time of its CPUs, and more than they have.
        assert_eq!(quota(2, 2.0, 5), Ok(None));
        assert_eq!(quota(2, 16.0, 5), Ok(None));
        assert_eq!(quota(1, f64::INFINITY, 5), Ok(None));
        // The quota has a minimum, and the period has both limits.
        assert_eq!(quota(1, 0.1, 5), Ok(Some((1_000, 10_000))));
        assert_eq!(quota(1, 0.001, 5), Ok(Some((1_000, 1_000_000))));
        assert_eq!(quota(2, 1.5, 0), Ok(Some((1_500, 1_000))));
        assert_eq!(quota(2, 1.5, 60_000), Ok(Some((1_500_000, 1_000_000))));
    }

    #[test]
    fn shares_that_nothing_can_hold_are_refused() {
        assert!(quota(0, 1.0, 5).unwrap_err().contains("name one"));
        for none in [0.0, -1.0, 0.0001, f64::NAN] {
            assert!(quota(2, none, 5).unwrap_err().contains("at least"), "{none}");
        }
    }

    #[test]
    fn throttled_time_is_parsed() {
        let text = "some avg10=9.99 avg60=1.00 avg300=0.10 total=98765\nfull avg10=1.00 avg60=0.00 avg300=0.00 total=12345\n";
        assert_eq!(stalled(text), Some(Duration::from_micros(12_345)));
        for none in [
            "",
            "some avg10=0.00 total=5",
            "full",
            "full total=",
            "full total=-1",
            "full total=99999999999999999999999",
        ] {
            assert_eq!(stalled(none), None, "{none}");
        }
    }
}
