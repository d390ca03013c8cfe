//! The CPUs' free time at present. A thread on each CPU computes for a moment and measures how much of that time it
//! got.

use std::hint::black_box;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use underlay_attach::{AttachError, CpuConfinement, CpuTimes, Processors};

/// Long enough to reveal a hypervisor that gives and takes in slices of 10 to 100 ms.
const PROBE: Duration = Duration::from_millis(700);
/// Computation steps between two readings of the clock.
const STEPS: u64 = 20_000;

/// A CPU, and the share of its time that a thread gets if it asks for all: 0 to 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct CpuCapacity {
    pub cpu: u32,
    pub left: f64,
}

/// If less than this share of all CPUs is left, other programs are running.
const QUIET: f64 = 0.9;
/// The number of measurements on a busy host; must be odd.
const LOOKS: usize = 3;

/// The CPUs' free time over some seconds. If the first measurement finds other programs, this is the median of several,
/// since a brief load is no reason for hours of slower motion.
pub(super) fn steady(
    look: &mut dyn FnMut() -> Result<Vec<CpuCapacity>, AttachError>,
) -> Result<Vec<CpuCapacity>, AttachError> {
    let mut looks = vec![look()?];
    let left: f64 = looks[0].iter().map(|one| one.left).sum();
    if left < QUIET * looks[0].len() as f64 {
        while looks.len() < LOOKS {
            looks.push(look()?);
        }
    }
    let median = |index: usize| {
        let mut of_one: Vec<CpuCapacity> = looks.iter().filter_map(|look| look.get(index).copied()).collect();
        of_one.sort_by(|a, b| a.left.total_cmp(&b.left));
        of_one[of_one.len() / 2]
    };
    Ok((0..looks[0].len()).map(median).collect())
}

/// Measures all CPUs at the same time, since a hypervisor takes more from guests that ask for more.
pub(super) fn measure(cpus: &Processors) -> Result<Vec<CpuCapacity>, AttachError> {
    std::thread::scope(|scope| {
        let threads: Vec<_> = cpus.iter().map(|cpu| scope.spawn(move || capacity_of(cpu))).collect();
        threads.into_iter().map(|thread| thread.join().expect("measuring a CPU panicked")).collect()
    })
}

fn capacity_of(cpu: u32) -> Result<CpuCapacity, AttachError> {
    let only: Processors = [cpu].into_iter().collect();
    let _confined = CpuConfinement::confine_to(&only)?;
    let (begun, before, used_before) = (Instant::now(), CpuTimes::read(&only)?, thread_time());
    let mut state = 1u64;
    while begun.elapsed() < PROBE {
        for _ in 0..STEPS {
            state = black_box(state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1));
        }
    }
    let wall_s = begun.elapsed().as_secs_f64();
    let used = (thread_time() - used_before).as_secs_f64() / wall_s;
    let stolen = CpuTimes::read(&only)?.delta_since(before).stolen.as_secs_f64() / wall_s;
    // Some kernels count CPU steal as the thread's own time.
    Ok(CpuCapacity { cpu, left: used.min(1.0 - stolen).clamp(0.0, 1.0) })
}

/// The CPU time that the calling thread has used.
pub(crate) fn thread_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn steady_of(looks: &[[f64; 2]]) -> (Vec<f64>, usize) {
        let mut used = 0;
        let found = steady(&mut || {
            used += 1;
            let [first, second] = looks[used - 1];
            Ok(vec![CpuCapacity { cpu: 0, left: first }, CpuCapacity { cpu: 1, left: second }])
        });
        (found.unwrap().iter().map(|one| one.left).collect(), used)
    }

    #[test]
    fn brief_load_by_others_does_not_count() {
        assert_eq!(steady_of(&[[1.0, 0.9]]), (vec![1.0, 0.9], 1), "a quiet host is looked at once");
        assert_eq!(steady_of(&[[0.2, 0.9], [1.0, 0.8], [0.9, 0.95]]), (vec![0.9, 0.9], 3));
        assert_eq!(steady_of(&[[0.5, 1.0], [0.5, 1.0], [0.4, 0.9]]), (vec![0.5, 1.0], 3));
    }
}
