//! This host's CPUs: which of them a thread may run on, and their CPU times.

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::marker::PhantomData;
use std::path::Path;
use std::time::Duration;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use underlay_sync::slices;

use crate::machine::error::AttachError;

/// A set of this host's CPUs, by number, in order. It is displayed in the kernel's notation: `0-3,8`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Processors(BTreeSet<u32>);

impl Processors {
    /// The CPUs that the calling thread may run on: its affinity combined with its CPU set.
    pub fn available() -> Processors {
        match sched_getaffinity(None) {
            Ok(allowed) => Processors::from(&allowed),
            // The kernel was built for more CPUs than the call has room for.
            Err(_) => {
                let count = std::thread::available_parallelism().map_or(1, usize::from);
                (0..u32::try_from(count).unwrap_or(u32::MAX)).collect()
            }
        }
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.0.iter().copied()
    }

    fn to_mask(&self) -> Result<CpuSet, AttachError> {
        let mut mask = CpuSet::new();
        for cpu in self.iter() {
            match usize::try_from(cpu) {
                Ok(cpu) if cpu < CpuSet::MAX_CPU => mask.set(cpu),
                _ => {
                    let most = CpuSet::MAX_CPU - 1;
                    return Err(AttachError::failed(format!(
                        "no thread can be confined to CPU {cpu}: choose CPUs up to {most}"
                    )));
                }
            }
        }
        Ok(mask)
    }
}

impl From<&CpuSet> for Processors {
    fn from(mask: &CpuSet) -> Processors {
        let all = 0..u32::try_from(CpuSet::MAX_CPU).unwrap_or(u32::MAX);
        all.filter(|cpu| mask.is_set(*cpu as usize)).collect()
    }
}

impl FromIterator<u32> for Processors {
    fn from_iter<I: IntoIterator<Item = u32>>(cpus: I) -> Processors {
        Processors(cpus.into_iter().collect())
    }
}

impl fmt::Display for Processors {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut ranges: Vec<(u32, u32)> = Vec::new();
        for cpu in self.iter() {
            match ranges.last_mut() {
                Some((_, last)) if last.checked_add(1) == Some(cpu) => *last = cpu,
                _ => ranges.push((cpu, cpu)),
            }
        }
        for (index, (first, last)) in ranges.into_iter().enumerate() {
            let comma = if index == 0 { "" } else { "," };
            match first == last {
                true => write!(formatter, "{comma}{first}")?,
                false => write!(formatter, "{comma}{first}-{last}")?,
            }
        }
        Ok(())
    }
}

/// Confines the calling thread, and every thread and process that it starts afterwards. Dropping it restores this
/// thread's former CPUs; what it has started stays confined.
#[derive(Debug)]
#[must_use = "dropping it gives the thread its CPUs back"]
pub struct CpuConfinement {
    before: CpuSet,
    /// An affinity belongs to one thread, so another thread may not drop this.
    of_this_thread: PhantomData<*const ()>,
}

impl CpuConfinement {
    /// Confines the calling thread to `cpus`.
    ///
    /// # Errors
    /// When it may run on none of these CPUs.
    pub fn confine_to(cpus: &Processors) -> Result<CpuConfinement, AttachError> {
        let mask = cpus.to_mask()?;
        let refused = |errno: rustix::io::Errno| {
            let allowed = Processors::available();
            let text = format!(
                "could not confine a thread to the CPUs {cpus}: {errno}; choose some of {allowed}, which this process may use"
            );
            AttachError::failed(text)
        };
        let before = sched_getaffinity(None).map_err(refused)?;
        sched_setaffinity(None, &mask).map_err(refused)?;
        // On CPUs shared with other programs, a thread that wakes up must not wait for them.
        let _ = slices::shorten();
        Ok(CpuConfinement { before, of_this_thread: PhantomData })
    }
}

impl Drop for CpuConfinement {
    fn drop(&mut self) {
        // Fails only where all of them have gone offline.
        let _ = sched_setaffinity(None, &self.before);
        let _ = slices::restore();
    }
}

/// CPU times since the host started, summed over CPUs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuTimes {
    /// Programs, the kernel and its interrupts. The time of guests on this host is included.
    pub busy: Duration,
    /// Including the wait for devices.
    pub idle: Duration,
    /// CPU steal: time that the hypervisor gave to others while there was something to run.
    pub stolen: Duration,
}

impl CpuTimes {
    /// Reads `/proc/stat`.
    ///
    /// # Errors
    /// When it can't be read, or does not have one of `cpus`.
    pub fn read(cpus: &Processors) -> Result<CpuTimes, AttachError> {
        times_in(&stat()?, cpus)
    }

    /// The times of each CPU separately, in the order of the set, from one reading.
    ///
    /// # Errors
    /// As [`of`](CpuTimes::of).
    pub fn read_each(cpus: &Processors) -> Result<Vec<CpuTimes>, AttachError> {
        let text = stat()?;
        cpus.iter().map(|cpu| times_in(&text, &[cpu].into_iter().collect())).collect()
    }

    /// The difference from `earlier`.
    #[must_use]
    pub fn delta_since(self, earlier: CpuTimes) -> CpuTimes {
        // The kernel's time of waiting for devices may go backwards (proc_stat(5)).
        CpuTimes {
            busy: self.busy.saturating_sub(earlier.busy),
            idle: self.idle.saturating_sub(earlier.idle),
            stolen: self.stolen.saturating_sub(earlier.stolen),
        }
    }
}

fn stat() -> Result<String, AttachError> {
    let path = Path::new("/proc/stat");
    fs::read_to_string(path).map_err(|error| AttachError::io("read", path, error))
}

fn times_in(stat: &str, cpus: &Processors) -> Result<CpuTimes, AttachError> {
    // SAFETY: sysconf only reads; it has no preconditions.
    let ticks_per_s = unsafe { libc::sysconf(libc::_SC_CLK_TCK) };
    parse_stat(stat, cpus, u64::try_from(ticks_per_s).unwrap_or(0).max(1)).map_err(|cpu| {
        AttachError::failed(format!("/proc/stat has no times of CPU {cpu}: leave it out if it is offline"))
    })
}

/// The times of `cpus` from the text of `/proc/stat`, or the first CPU that it does not have:
/// `cpuN user nice system idle iowait irq softirq steal guest guest_nice`, see proc_stat(5).
fn parse_stat(text: &str, cpus: &Processors, ticks_per_s: u64) -> Result<CpuTimes, u32> {
    let (mut busy, mut idle, mut stolen) = (0_u64, 0_u64, 0_u64);
    for cpu in cpus.iter() {
        let name = format!("cpu{cpu}");
        let ticks: Vec<u64> = text
            .lines()
            .find_map(|line| line.strip_prefix(&name)?.strip_prefix(' '))
            .map(|rest| rest.split_ascii_whitespace().map_while(|word| word.parse().ok()).collect())
            .unwrap_or_default();
        let [user, nice, system, rest, waiting, interrupts, softirqs, steal, ..] = ticks[..] else {
            return Err(cpu);
        };
        // Guests' time is left out, since it is already counted as user time.
        busy = [user, nice, system, interrupts, softirqs].into_iter().fold(busy, u64::saturating_add);
        idle = idle.saturating_add(rest).saturating_add(waiting);
        stolen = stolen.saturating_add(steal);
    }
    let duration = |ticks: u64| {
        let rest_ns = u128::from(ticks % ticks_per_s) * 1_000_000_000 / u128::from(ticks_per_s);
        Duration::from_secs(ticks / ticks_per_s) + Duration::from_nanos(u64::try_from(rest_ns).unwrap_or(0))
    };
    Ok(CpuTimes { busy: duration(busy), idle: duration(idle), stolen: duration(stolen) })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn set(cpus: &[u32]) -> Processors {
        cpus.iter().copied().collect()
    }

    #[test]
    fn cpus_are_shown_as_the_kernel_lists_them() {
        for (cpus, expected) in [
            (&[][..], ""),
            (&[5], "5"),
            (&[8, 0, 1, 3, 2], "0-3,8"),
            (&[0, 2, 3, u32::MAX - 1, u32::MAX], "0,2-3,4294967294-4294967295"),
        ] {
            assert_eq!(set(cpus).to_string(), expected);
        }
        assert_eq!(set(&[1, 0, 1]).iter().collect::<Vec<_>>(), [0, 1]);
    }

    const STAT: &str = "cpu  999 0 0 0 0 0 0 0 0 0\n\
        cpu0 100 20 30 400 50 6 7 8 90 10\n\
        cpu1 1 0 0 1 0 0 0 0 0 0\n\
        cpu10 200 0 0 0 0 0 0 0 0 0\n\
        cpu11 5 5 5\n\
        cpu12 1 2 x 4 5 6 7 8\n\
        intr 12345 0 1\n";

    #[test]
    fn cpu_times_sum_without_double_counting_guests() {
        let ms = Duration::from_millis;
        let one = parse_stat(STAT, &set(&[0]), 100).unwrap();
        assert_eq!(one, CpuTimes { busy: ms(1630), idle: ms(4500), stolen: ms(80) });
        let both = parse_stat(STAT, &set(&[0, 10]), 100).unwrap();
        assert_eq!(both, CpuTimes { busy: ms(3630), ..one });
        assert_eq!(parse_stat(STAT, &set(&[1]), 1000).unwrap().busy, ms(1));
        assert_eq!(parse_stat(STAT, &set(&[]), 100), Ok(CpuTimes::default()));
        // Offline, cut short, and not a number.
        for cpu in [2, 11, 12] {
            assert_eq!(parse_stat(STAT, &set(&[0, cpu]), 100), Err(cpu));
        }
    }

    #[test]
    fn times_that_go_backwards_count_as_none() {
        let times = |busy, idle, stolen| {
            let [busy, idle, stolen] = [busy, idle, stolen].map(Duration::from_secs);
            CpuTimes { busy, idle, stolen }
        };
        assert_eq!(times(7, 3, 4).delta_since(times(5, 4, 1)), times(2, 0, 3));
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(
            lines in proptest::collection::vec("(cpu[0-3]{0,2}|intr|)( -?[0-9]{0,20}| x){0,12}", 0..8),
            cpus in proptest::collection::vec(0..40_u32, 0..4),
            ticks_per_s in 1..=u64::MAX,
        ) {
            let wanted: Processors = cpus.into_iter().collect();
            match parse_stat(&lines.join("\n"), &wanted, ticks_per_s) {
                Ok(times) => prop_assert_eq!(times.delta_since(times), CpuTimes::default()),
                Err(cpu) => prop_assert!(wanted.iter().any(|wanted| wanted == cpu)),
            }
        }
    }

    #[test]
    fn this_hosts_cpus_have_done_something() {
        let available = Processors::available();
        assert!(!available.is_empty());
        let times = CpuTimes::read(&available).unwrap();
        assert!(times.busy + times.idle > Duration::ZERO);
        let error = CpuTimes::read(&set(&[99_999])).unwrap_err().to_string();
        assert!(error.contains("CPU 99999"), "{error}");
    }

    #[test]
    fn confined_thread_and_children_stay_until_release() {
        // In a separate thread, so that nothing else is confined.
        let outcome = std::thread::spawn(|| {
            let before = Processors::available();
            let one: Processors = before.iter().take(1).collect();
            let confined = CpuConfinement::confine_to(&one).unwrap();
            assert_eq!(Processors::available(), one);
            assert_eq!(std::thread::spawn(Processors::available).join().unwrap(), one);
            let status = std::process::Command::new("cat").arg("/proc/self/status").output().unwrap();
            let status = String::from_utf8(status.stdout).unwrap();
            let listed = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap();
            assert_eq!(listed.trim(), one.to_string());
            drop(confined);
            assert_eq!(Processors::available(), before);
            for nowhere in [set(&[]), set(&[1023]), set(&[1024])] {
                if !before.iter().any(|cpu| nowhere.iter().any(|other| other == cpu)) {
                    assert!(CpuConfinement::confine_to(&nowhere).is_err(), "{nowhere}");
                }
            }
            assert_eq!(Processors::available(), before);
        });
        outcome.join().unwrap();
    }
}
