//! The share of this host's CPU time that a group may use, and what it has used.

use std::fs;
use std::time::Duration;

use super::group::Group;
use super::hierarchy::{Version, read_field, read_number};
use crate::machine::error::AttachError;
use crate::machine::processors::Processors;

/// What the kernel takes for a quota and for its period (`min_cfs_quota_period`, `max_cfs_quota_period`).
const MIN_QUOTA_US: u64 = 1_000;
const MAX_PERIOD_US: u64 = 1_000_000;

/// A share of this host's CPU time.
#[derive(Clone, Debug, PartialEq)]
pub struct CpuShare {
    /// The CPUs that it may run on; never empty.
    pub cpus: Processors,
    /// CPUs' worth of time. As many as `cpus` or more: all that these have, without a quota.
    pub quota_cpus: f64,
    /// The quota's period, wall time, from 1 ms to 1 s: short ones keep throttling out of the tails. A quota that
    /// would be below the kernel's least, 1 ms, gets a longer one.
    pub period: Duration,
}

/// A quota as the kernel takes it: so much of each period.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Quota {
    pub(super) quota_us: u64,
    pub(super) period_us: u64,
}

impl CpuShare {
    /// `None`: everything that its CPUs have. They hold it without a quota, which is kinder to the tails.
    pub(super) fn quota(&self) -> Result<Option<Quota>, AttachError> {
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
        Ok(Some(Quota { quota_us, period_us }))
    }
}

/// What a group has used, and how often its quota stopped it: sums since the group was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuUsage {
    pub used: Duration,
    /// How long its threads had to wait for the next period, summed up over CPUs.
    pub throttled: Duration,
    /// Periods in which it had something to run, while the quota was set.
    pub periods: u64,
    /// Those in which its quota ran out.
    pub throttled_periods: u64,
}

/// Sets the quota of a group with the controller `cpu`, or lifts it.
pub(super) fn set_quota(group: &Group, quota: Option<Quota>) -> Result<(), AttachError> {
    let file = group.version().quota_file();
    match (group.version(), quota) {
        (Version::V1, None) => group.write(file, "-1"),
        (Version::V1, Some(Quota { quota_us, period_us })) => {
            // Between the two the group has no quota or its old one, never one that the kernel refuses.
            group.write(file, "-1")?;
            group.write("cpu.cfs_period_us", &period_us.to_string())?;
            group.write(file, &quota_us.to_string())
        }
        (Version::V2, None) => group.write(file, "max"),
        (Version::V2, Some(Quota { quota_us, period_us })) => {
            group.write(file, &format!("{quota_us} {period_us}"))
        }
    }
}

/// Has our groups prevail over other programs that want the same CPUs, up to their quotas: as one group among the host's programs they
/// would have no more of a CPU than any of these, and less on many CPUs, since the kernel divides a group's weight among the CPUs that it
/// runs on. The weight is that of the parent, which all groups of ours share; it goes when the parent does.
///
/// Returns how many times a program's weight that is on each CPU; 0 where groups of others are further up, since the CPUs are divided among
/// those first.
pub(super) fn prevail(group: &Group, share: &CpuShare) -> Result<f64, AttachError> {
    let Some(parent) = group.directory().parent() else { return Ok(0.0) };
    let weight = group.version().weight();
    let file = parent.join(weight.file);
    fs::write(&file, weight.largest.to_string())
        .map_err(|error| AttachError::io(&format!("set {} in", weight.largest), &file, error))?;
    if !parent.parent().is_some_and(|top| group.version().is_root(top)) {
        return Ok(0.0);
    }
    Ok(weight.largest as f64 / weight.of_a_program as f64 / share.cpus.len() as f64)
}

/// What the group has used; in version 1 `accounting` is the group with the controller `cpuacct`.
pub(super) fn usage(group: &Group, accounting: Option<&Group>) -> Option<CpuUsage> {
    let file = group.file("cpu.stat");
    let field = |name: &str| read_field(&file, name);
    let (used, throttled) = match group.version() {
        Version::V1 => {
            let used_ns = read_number(&accounting?.file("cpuacct.usage"))?;
            (Duration::from_nanos(used_ns), Duration::from_nanos(field("throttled_time").unwrap_or(0)))
        }
        Version::V2 => {
            let throttled_us = field("throttled_usec").unwrap_or(0);
            (Duration::from_micros(field("usage_usec")?), Duration::from_micros(throttled_us))
        }
    };
    let count = |name: &str| field(name).unwrap_or(0);
    Some(CpuUsage { used, throttled, periods: count("nr_periods"), throttled_periods: count("nr_throttled") })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quota(cpus: u32, quota_cpus: f64, period_ms: u64) -> Result<Option<(u64, u64)>, String> {
        let share =
            CpuShare { cpus: (0..cpus).collect(), quota_cpus, period: Duration::from_millis(period_ms) };
        let quota = share.quota().map_err(|error| error.to_string())?;
        Ok(quota.map(|Quota { quota_us, period_us }| (quota_us, period_us)))
    }

    #[test]
    fn quotas_are_what_the_kernel_takes() {
        assert_eq!(quota(4, 2.5, 5), Ok(Some((12_500, 5_000))));
        assert_eq!(quota(2, 1.6, 10), Ok(Some((16_000, 10_000))));
        // All of its CPUs, and more than it has.
        assert_eq!(quota(2, 2.0, 5), Ok(None));
        assert_eq!(quota(2, 16.0, 5), Ok(None));
        assert_eq!(quota(1, f64::INFINITY, 5), Ok(None));
        // The quota has a least length, and the period has both.
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
}
