//! How fast CPUs compute: the CPU time of a fixed computation on registers and memory.
//!
//! A core that a hypervisor shares between two guests does less for each in the same CPU time. So does a core with a
//! lowered clock, or one whose caches others use. No kernel counter shows this: nothing was stolen and nothing waited.
//! The computation does show it.

use std::fs::File;
use std::hint::black_box;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use rustix::io::retry_on_intr;
use serde::{Deserialize, Serialize};
use underlay_attach::{AttachError, CpuConfinement, Processors, ResourceRegistry};
use underlay_files::{Access, Folder};

use super::capacity::thread_time;

const ROUNDS: u64 = 16_000;
/// Independent of each other, so that a core works on several at a time. Sharing a core costs these the most.
const LANES: usize = 8;
/// Half a mebibyte, more than the private caches of a core.
const LINES: usize = 8192;
const WORDS_IN_A_LINE: usize = 16;
/// The highest tenth of the samples is ignored, since interrupts lengthen a few of them by any amount.
const OUTLIERS: f64 = 0.1;
/// A tenth of the samples reach a CPU's fastest speed.
const FASTEST: f64 = 0.1;

/// The memory that the computation goes through: lines in an order that no prefetcher can predict.
pub(crate) struct SpeedComputation {
    lines: Vec<[u32; WORDS_IN_A_LINE]>,
}

impl SpeedComputation {
    pub(crate) fn new() -> SpeedComputation {
        let mut order: Vec<u32> = (0..LINES as u32).collect();
        // The order is always the same. A plain generator is enough for the shuffle (Sattolo's algorithm makes one
        // cycle of all).
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        for last in (1..LINES).rev() {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            order.swap(last, (state >> 33) as usize % last);
        }
        let mut lines = vec![[0; WORDS_IN_A_LINE]; LINES];
        for (line, next) in lines.iter_mut().zip(order) {
            line[0] = next;
        }
        SpeedComputation { lines }
    }

    /// Computes once and returns the CPU time that this thread used; time of other threads in between does not count.
    pub(crate) fn run(&mut self) -> Duration {
        // Warms the nearest caches. Cold ones would show the effect of earlier programs instead of the CPU.
        black_box(self.lines.iter().fold(0, |sum: u32, line| sum.wrapping_add(line[0])));
        let began = thread_time();
        let mut lanes: [u64; LANES] = std::array::from_fn(|lane| black_box(lane as u64));
        for round in 0..ROUNDS {
            for lane in &mut lanes {
                *lane = (*lane ^ round).wrapping_add(*lane << 7).rotate_left(13);
            }
        }
        black_box(lanes);
        let mut index = 0;
        for _ in 0..LINES {
            index = self.lines[index as usize][0];
        }
        black_box(index);
        thread_time().saturating_sub(began)
    }
}

/// The mean of these samples without the slowest; `None` if there are none.
pub(crate) fn usual_us(samples: &[Duration]) -> Option<f64> {
    let mut sorted = samples.to_vec();
    sorted.sort_unstable();
    let kept_count = sorted.len() - (sorted.len() as f64 * OUTLIERS) as usize;
    let sum: Duration = sorted.iter().take(kept_count).sum();
    (kept_count > 0).then(|| sum.as_nanos() as f64 / 1e3 / kept_count as f64)
}

fn fastest_us(samples: &[Duration]) -> Option<f64> {
    let mut sorted = samples.to_vec();
    sorted.sort_unstable();
    sorted.get((sorted.len() as f64 * FASTEST) as usize).map(|sample| sample.as_nanos() as f64 / 1e3)
}

/// How fast this host's CPUs are.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CpuSpeed {
    /// The computation's shortest time seen here.
    pub reference_us: f64,
    /// The computation's time while all CPUs compute at once.
    pub loaded_us: f64,
}

impl CpuSpeed {
    /// How many times slower CPUs are when all of them compute than at their fastest.
    pub fn slowdown_under_load(&self) -> f64 {
        (self.loaded_us / self.reference_us.max(f64::MIN_POSITIVE)).clamp(1.0, MAX_SLOWDOWN)
    }

    /// Whether a CPU of this host can have been this fast before.
    fn is_credible(&self, known_us: f64) -> bool {
        known_us.is_finite() && known_us > self.reference_us / MAX_SLOWDOWN
    }

    /// Takes an earlier reference if it was faster.
    #[must_use]
    pub fn known_from(self, known_us: Option<f64>) -> CpuSpeed {
        let value_us = known_us.filter(|value_us| self.is_credible(*value_us));
        CpuSpeed {
            reference_us: value_us.map_or(self.reference_us, |value_us| value_us.min(self.reference_us)),
            ..self
        }
    }
}

/// A slower CPU than this is a broken measurement.
pub(crate) const MAX_SLOWDOWN: f64 = 4.0;
const ALL_AT_ONCE: Duration = Duration::from_millis(150);
const ALONE: Duration = Duration::from_millis(50);
/// The number of CPUs that are measured alone. As a rule CPUs are alike.
const MAX_ALONE: usize = 4;

/// Measures these CPUs, all of them at the same time and then some of them alone. `None` where none may be used.
pub(super) fn look(cpus: &Processors) -> Option<CpuSpeed> {
    let together: Vec<Vec<Duration>> = std::thread::scope(|scope| {
        let looks = cpus.iter().map(|cpu| scope.spawn(move || samples_on(cpu, ALL_AT_ONCE)));
        // All of them start before the first is awaited.
        let looks: Vec<_> = looks.collect();
        looks.into_iter().filter_map(|look| look.join().ok()?.ok()).collect()
    });
    let alone = cpus.iter().take(MAX_ALONE).filter_map(|cpu| {
        std::thread::scope(|scope| scope.spawn(move || samples_on(cpu, ALONE)).join().ok()?.ok())
    });
    let fastest = alone.chain(together.iter().cloned()).filter_map(|samples| fastest_us(&samples));
    let loaded: Vec<f64> = together.iter().filter_map(|samples| usual_us(samples)).collect();
    let loaded_us = loaded.iter().sum::<f64>() / loaded.len().max(1) as f64;
    fastest
        .reduce(f64::min)
        .filter(|fastest| *fastest > 0.0 && loaded_us > 0.0)
        .map(|fastest| CpuSpeed { reference_us: fastest, loaded_us: loaded_us.max(fastest) })
}

fn samples_on(cpu: u32, length: Duration) -> Result<Vec<Duration>, AttachError> {
    let _there = CpuConfinement::confine_to(&[cpu].into_iter().collect())?;
    let mut computation = SpeedComputation::new();
    let mut samples = Vec::new();
    let begun = Instant::now();
    while begun.elapsed() < length {
        samples.push(computation.run());
    }
    Ok(samples)
}

/// The speed of this host's CPUs, kept from run to run until it boots.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct KnownSpeeds {
    /// A different computation takes a different time.
    computation: u32,
    cpu: String,
    boot: String,
    fastest_us: f64,
}

const FILE: &str = "cpu-speed.json";
const LOCK: &str = "cpu-speed.lock";
const FILE_MAX_BYTES: u64 = 4096;
/// Raised whenever the computation changes.
const COMPUTATION: u32 = 1;

/// The fastest speed since this host booted, including this one. It is kept next to the registry's journals.
pub(super) fn remembered(registry: &ResourceRegistry, cpu: &str, speed: CpuSpeed) -> CpuSpeed {
    let Ok(folder) = Folder::open(registry.directory()) else { return speed };
    // Otherwise, of two runs that measure at once, the slower could replace what the faster has just written.
    let wait_for = |lock: &File| retry_on_intr(|| flock(lock, FlockOperation::LockExclusive));
    let lock = folder.file(LOCK).ok().filter(|lock| wait_for(lock).is_ok());
    let boot =
        std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned();
    let saved: Option<KnownSpeeds> =
        folder.read_text(FILE, FILE_MAX_BYTES).ok().and_then(|text| serde_json::from_str(&text).ok());
    let saved_us = saved
        .filter(|saved| saved.computation == COMPUTATION && saved.cpu == cpu && saved.boot == boot)
        .map(|saved| saved.fastest_us)
        .filter(|value_us| speed.is_credible(*value_us));
    let with_known = speed.known_from(saved_us);
    if lock.is_some() && saved_us.is_none_or(|value_us| speed.reference_us < value_us) {
        let now = KnownSpeeds {
            computation: COMPUTATION,
            cpu: cpu.to_owned(),
            boot,
            fastest_us: with_known.reference_us,
        };
        // On failure the run goes on; the next one only knows less.
        let text = serde_json::to_vec(&now).expect("it is plain data");
        let _ = folder.replace(FILE, Access::Private, &text);
    }
    with_known
}

#[cfg(test)]
mod tests {
    use super::*;

    fn us(count: u64) -> Duration {
        Duration::from_micros(count)
    }

    #[test]
    fn chain_visits_every_line() {
        let SpeedComputation { lines } = SpeedComputation::new();
        let (mut index, mut seen) = (0, vec![false; LINES]);
        for _ in 0..LINES {
            assert!(!std::mem::replace(&mut seen[index], true), "it comes back too early");
            index = lines[index][0] as usize;
        }
        assert_eq!(index, 0);
    }

    #[test]
    fn interrupt_is_no_slow_cpu() {
        let mut samples = vec![us(50); 19];
        samples.push(us(5000));
        assert_eq!(usual_us(&samples), Some(50.0));
        assert_eq!(usual_us(&[us(70)]), Some(70.0));
        assert_eq!(usual_us(&[]), None);
        assert_eq!(fastest_us(&[us(60), us(50), us(90)]), Some(50.0));
    }

    #[test]
    fn faster_earlier_reference_counts() {
        let speed = CpuSpeed { reference_us: 60.0, loaded_us: 75.0 };
        assert_eq!(speed.slowdown_under_load(), 1.25);
        assert_eq!(speed.known_from(Some(50.0)).slowdown_under_load(), 1.5);
        assert_eq!(speed.known_from(Some(70.0)), speed);
        for nonsense in [0.0, -1.0, f64::NAN, f64::INFINITY, 1.0] {
            assert_eq!(speed.known_from(Some(nonsense)), speed, "{nonsense}");
        }
    }

    #[test]
    fn fastest_speed_is_remembered_until_reboot_or_new_cpu() {
        let place = tempfile::tempdir().unwrap();
        let registry = ResourceRegistry::open_at(&place.path().join("runtime")).unwrap();
        let seen = |reference_us| CpuSpeed { reference_us, loaded_us: 90.0 };
        assert_eq!(remembered(&registry, "a", seen(60.0)).reference_us, 60.0);
        assert_eq!(remembered(&registry, "a", seen(70.0)).reference_us, 60.0, "a busy host later");
        assert_eq!(remembered(&registry, "a", seen(50.0)).reference_us, 50.0);
        assert_eq!(remembered(&registry, "b", seen(80.0)).reference_us, 80.0);
        std::fs::write(registry.directory().join(FILE), "{\"fastest_us\": \"no\"}").unwrap();
        assert_eq!(remembered(&registry, "a", seen(70.0)).reference_us, 70.0);
    }

    #[test]
    fn impossible_speed_is_replaced() {
        let place = tempfile::tempdir().unwrap();
        let registry = ResourceRegistry::open_at(&place.path().join("runtime")).unwrap();
        let seen = |reference_us| CpuSpeed { reference_us, loaded_us: 90.0 };
        remembered(&registry, "a", seen(60.0));
        let file = registry.directory().join(FILE);
        let saved: KnownSpeeds = serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
        let nonsense = KnownSpeeds { fastest_us: 1.0, ..saved };
        std::fs::write(&file, serde_json::to_vec(&nonsense).unwrap()).unwrap();
        assert_eq!(remembered(&registry, "a", seen(70.0)).reference_us, 70.0);
        assert_eq!(remembered(&registry, "a", seen(80.0)).reference_us, 70.0);
    }

    #[test]
    fn concurrent_looks_remember_fastest() {
        let place = tempfile::tempdir().unwrap();
        let registry = ResourceRegistry::open_at(&place.path().join("runtime")).unwrap();
        let seen = |reference_us| CpuSpeed { reference_us, loaded_us: 90.0 };
        std::thread::scope(|scope| {
            for number in 0..8u32 {
                let registry = &registry;
                scope.spawn(move || remembered(registry, "a", seen(50.0 + f64::from(number))));
            }
        });
        assert_eq!(remembered(&registry, "a", seen(60.0)).reference_us, 50.0);
    }

    #[test]
    fn this_host_computes() {
        let speed = look(&Processors::available()).unwrap();
        assert!(speed.reference_us > 0.0 && speed.loaded_us >= speed.reference_us, "{speed:?}");
    }
}
