//! The CPU time that this process and this machine used.

use std::time::Instant;

/// Counters at one moment; two of them make a [`MachineUse`].
#[derive(Clone, Copy, Debug)]
pub struct MachineSnapshot {
    at: Instant,
    process_cpu_s: f64,
    machine: Option<MachineTicks>,
}

/// CPU time of all cores together since the machine started, in clock ticks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct MachineTicks {
    total: u64,
    idle: u64,
    steal: u64,
}

/// Over the time between two snapshots.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct MachineUse {
    /// CPU time of this process over wall time: 1.0 is one core.
    pub process_cores: f64,
    /// The share of all cores' time that was not idle, 0 to 1; time taken by the hypervisor counts as busy. Zero where
    /// the kernel does not report it.
    pub machine_busy: f64,
    /// The share of all cores' time that the hypervisor took, 0 to 1.
    pub steal_share: f64,
}

impl MachineSnapshot {
    pub fn take() -> Self {
        MachineSnapshot {
            at: Instant::now(),
            process_cpu_s: process_cpu_s(),
            machine: std::fs::read_to_string("/proc/stat").ok().and_then(|stat| parse_stat(&stat)),
        }
    }

    /// The use from this snapshot to a later one.
    pub fn use_until(&self, later: &MachineSnapshot) -> MachineUse {
        let wall_s = later.at.saturating_duration_since(self.at).as_secs_f64();
        let process_cores =
            if wall_s > 0.0 { ((later.process_cpu_s - self.process_cpu_s) / wall_s).max(0.0) } else { 0.0 };
        let (machine_busy, steal_share) = match (self.machine, later.machine) {
            (Some(before), Some(after)) => shares(before, after),
            _ => (0.0, 0.0),
        };
        MachineUse { process_cores, machine_busy, steal_share }
    }
}

fn shares(before: MachineTicks, after: MachineTicks) -> (f64, f64) {
    // Idle and steal time sometimes go backwards: a difference is never below zero.
    let total = after.total.saturating_sub(before.total);
    if total == 0 {
        return (0.0, 0.0);
    }
    let share = |after: u64, before: u64| (after.saturating_sub(before) as f64 / total as f64).min(1.0);
    (1.0 - share(after.idle, before.idle), share(after.steal, before.steal))
}

/// The first line of `/proc/stat`: user, nice, system, idle, iowait, irq, softirq, steal; guest time is in user's.
fn parse_stat(stat: &str) -> Option<MachineTicks> {
    let line = stat.lines().find(|line| line.starts_with("cpu "))?;
    let ticks: Vec<u64> =
        line.split_whitespace().skip(1).take(8).map_while(|field| field.parse().ok()).collect();
    let [_, _, _, idle, iowait, _, _, steal] = ticks[..] else { return None };
    Some(MachineTicks { total: ticks.iter().sum(), idle: idle + iowait, steal })
}

/// User and system time of this process, in seconds.
fn process_cpu_s() -> f64 {
    // SAFETY: an all-zero rusage is valid, and getrusage only writes into the one it is given.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        if libc::getrusage(libc::RUSAGE_SELF, &mut usage) != 0 {
            return 0.0;
        }
        usage
    };
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
    seconds(usage.ru_utime) + seconds(usage.ru_stime)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_follow_the_kernels_columns() {
        let before = parse_stat("cpu  100 0 50 800 50 0 0 0 7 0\ncpu0 1 2 3\n").unwrap();
        let after = parse_stat("cpu  150 0 60 830 60 0 0 100 9 0\n").unwrap();
        assert_eq!((before.total, after.total), (1000, 1200));
        assert_eq!(shares(before, after), (0.8, 0.5));
        assert_eq!(parse_stat("cpu 1 2 x"), None);
    }

    #[test]
    fn counters_that_go_back_give_no_negative_share() {
        let before = MachineTicks { total: 100, idle: 90, steal: 5 };
        let after = MachineTicks { total: 110, idle: 80, steal: 4 };
        assert_eq!(shares(before, after), (1.0, 0.0));
    }
}
