//! Assigns this host's CPUs to their purposes.

use std::time::Duration;

use underlay_attach::{AttachError, CpuShare, Processors, ResourceRegistry};

use super::capacity::{self, CpuCapacity};
use super::speed::{self, CpuSpeed};

/// On a host with a single CPU, the system gets this share of it and the emulation the rest.
const SHARE_OF_A_SINGLE_CPU: f64 = 0.5;
/// A quota's period in modelled time, and its bounds in wall time. A system that has used up its share waits for the
/// rest of the period. The period must be short compared with an operation, but not too short for the kernel.
const PERIOD_MODELLED: Duration = Duration::from_micros(500);
const PERIOD_MIN: Duration = Duration::from_millis(2);
const PERIOD_MAX: Duration = Duration::from_millis(20);
/// A quota below this share of a CPU comes in slices of the kernel's minimum, 1 ms. They are far apart, so caches are
/// cold whenever one begins. RocksDB with all its cores busy did as much at an eighth of a CPU as at a 32nd. At a 48th
/// it did a fifth less (3 to 33 % in four pairs).
pub const SMALL_SHARE: f64 = 0.025;

/// This host's CPUs, divided between the system under test and the emulation of its surroundings: the load generator,
/// the modelled devices and the volume servers.
#[derive(Clone, Debug, PartialEq)]
pub struct CpuPlacement {
    pub system: Processors,
    pub emulation: Processors,
    /// The CPU time that the system can have, in CPUs, after the margin.
    pub system_cpus: f64,
    /// The system's CPUs, those with the most free time first.
    pub(super) by_room: Vec<CpuCapacity>,
    /// `None` where it was not measured.
    pub speed: Option<CpuSpeed>,
}

/// One server's limits.
#[derive(Clone, Debug, PartialEq)]
pub struct ServerShare {
    pub cpu: CpuShare,
    /// Cores of one node of the modelled system.
    pub modelled_cores: u32,
    /// The CPU time of the modelled cores on CPUs at their fastest. `cpu` is larger, since this host's CPUs are slower
    /// while all of them compute.
    pub due_cpus: f64,
    /// The measured free time on the system's CPUs.
    pub measured_cpus: f64,
}

impl CpuPlacement {
    /// Divides the CPUs that this process may run on, by their current free time.
    ///
    /// # Errors
    /// When the free time can't be measured.
    pub fn measure() -> Result<CpuPlacement, AttachError> {
        Ok(divide(capacity::steady(&mut || capacity::measure(&Processors::available()))?))
    }

    /// Adds the speed of the CPUs, measured now. An earlier reference counts if it was faster, both this host's and
    /// `known_us`.
    #[must_use]
    pub fn with_speed(
        self,
        registry: &ResourceRegistry,
        cpu_model: &str,
        known_us: Option<f64>,
    ) -> CpuPlacement {
        let measured = speed::look(&Processors::available());
        let speed = measured.map(|speed| speed::remembered(registry, cpu_model, speed).known_from(known_us));
        CpuPlacement { speed, ..self }
    }

    /// How many times slower a CPU is while all CPUs compute than at its fastest.
    pub fn slowdown(&self) -> f64 {
        self.speed.map_or(1.0, |speed| speed.slowdown_under_load())
    }

    /// The placement if nothing else ran here.
    pub(super) fn for_idle_host() -> CpuPlacement {
        divide(Processors::available().iter().map(|cpu| CpuCapacity { cpu, left: 1.0 }).collect())
    }

    /// The share of each of `servers` servers of `nodes` nodes, each a machine with this many cores, in slow motion by
    /// `time`. A server that has this host to itself gets whole CPUs, which limit it without a quota. A modelled
    /// machine gets more time in proportion as this host's CPUs slow down when all of them compute. With real storage,
    /// CPUs count as they are.
    pub fn share(&self, cores: u32, nodes: u32, servers: u32, time: f64, is_modelled: bool) -> ServerShare {
        let period = PERIOD_MODELLED.mul_f64(time).clamp(PERIOD_MIN, PERIOD_MAX);
        let due_cpus = f64::from(cores) * f64::from(nodes) / time;
        let quota_cpus = if is_modelled { due_cpus * self.slowdown() } else { due_cpus };
        let prevails = !self.is_shared();
        let is_whole = quota_cpus >= 1.0 && quota_cpus.fract() == 0.0;
        let cpus = match is_whole && servers == 1 && quota_cpus < self.by_room.len() as f64 {
            true => self.by_room.iter().map(|one| one.cpu).take(quota_cpus as usize).collect(),
            false => self.system.clone(),
        };
        let measured = self.by_room.iter().take(cpus.len()).map(|one| one.left).sum();
        let measured_cpus = if self.is_shared() { self.measured_cpus() } else { measured };
        let cpu = CpuShare { cpus, quota_cpus, period, prevails };
        ServerShare { cpu, modelled_cores: cores, due_cpus, measured_cpus }
    }

    /// The CPU time measured for the system, in CPUs, margin included.
    pub fn measured_cpus(&self) -> f64 {
        self.system_cpus / (1.0 - super::MARGIN)
    }

    /// Whether the system and the emulation share a CPU.
    pub fn is_shared(&self) -> bool {
        self.system == self.emulation
    }

    /// The smallest factor at which this many modelled cores fit on the system's CPUs.
    pub fn fits_from(&self, modelled_cores: u32) -> f64 {
        (f64::from(modelled_cores) * self.slowdown() / self.system_cpus.max(f64::MIN_POSITIVE)).max(1.0)
    }
}

/// The emulation gets a third of the CPUs, at least one: those with the most free time. A reply that waits for a CPU
/// adds latency that no device had. The system can get its share by slower motion.
fn divide(mut found: Vec<CpuCapacity>) -> CpuPlacement {
    // Among equal CPUs take the last, since the kernel's own work tends to run on the first.
    found.sort_by(|a, b| b.left.total_cmp(&a.left).then(b.cpu.cmp(&a.cpu)));
    let left = |cpus: &[CpuCapacity]| cpus.iter().map(|one| one.left).sum::<f64>() * (1.0 - super::MARGIN);
    let set = |cpus: &[CpuCapacity]| cpus.iter().map(|one| one.cpu).collect::<Processors>();
    if let [only] = found.as_slice() {
        let both = set(&[*only]);
        let system_cpus = left(&found) * SHARE_OF_A_SINGLE_CPU;
        let by_room = vec![*only];
        return CpuPlacement { system: both.clone(), emulation: both, system_cpus, by_room, speed: None };
    }
    let (emulation, system) = found.split_at(found.len().div_ceil(3));
    let by_room = system.to_vec();
    CpuPlacement {
        system: set(system),
        emulation: set(emulation),
        system_cpus: left(system),
        by_room,
        speed: None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn placement_of(left: &[f64]) -> CpuPlacement {
        divide(left.iter().enumerate().map(|(cpu, &left)| CpuCapacity { cpu: cpu as u32, left }).collect())
    }

    #[test]
    fn emulation_gets_free_cpus() {
        let quiet = placement_of(&[1.0, 1.0]);
        assert_eq!((quiet.system.to_string(), quiet.emulation.to_string()), ("0".into(), "1".into()));
        let neighbour_on_the_second = placement_of(&[0.98, 0.5]);
        assert_eq!(neighbour_on_the_second.system.to_string(), "1");
        assert!((neighbour_on_the_second.system_cpus - 0.425).abs() < 1e-9);
        assert_eq!(placement_of(&[1.0; 8]).emulation.to_string(), "5-7");
    }

    #[test]
    fn single_cpu_is_shared() {
        let single = placement_of(&[1.0]);
        assert_eq!(single.system, single.emulation);
        assert_eq!(single.fits_from(1), 1.0 / 0.425);
    }

    #[test]
    fn share_is_cores_divided_by_factor() {
        let placement = placement_of(&[1.0, 1.0]);
        assert_eq!(placement.fits_from(16), 16.0 / 0.85);
        let share = placement.share(16, 2, 1, 64.0, true);
        assert_eq!((share.cpu.quota_cpus, share.modelled_cores), (0.5, 16));
        assert_eq!(share.cpu.period, Duration::from_millis(20));
        assert_eq!(placement.share(1, 1, 1, 1.0, true).cpu.period, Duration::from_millis(2));
        // A machine smaller than this host needs no slow motion to fit its cores.
        assert_eq!(placement_of(&[1.0; 64]).fits_from(16), 1.0);
    }

    /// The same cores do the same work on slower CPUs in more of their time.
    #[test]
    fn slower_cpus_get_more_time_where_available() {
        let speed = CpuSpeed { reference_us: 50.0, loaded_us: 62.5 };
        let slow = CpuPlacement { speed: Some(speed), ..placement_of(&[1.0, 1.0]) };
        assert!((slow.fits_from(16) - 1.25 * 16.0 / 0.85).abs() < 1e-9);
        let share = slow.share(16, 1, 1, 32.0, true);
        assert_eq!((share.due_cpus, share.cpu.quota_cpus), (0.5, 0.625));
        assert_eq!(slow.share(1, 1, 1, 1.0, false).cpu.quota_cpus, 1.0, "real storage waits for nobody");
    }

    #[test]
    fn whole_cpus_are_given_as_such() {
        // The emulation has CPUs 8 to 11.
        let mut left = [0.9; 12];
        left[8..].fill(1.0);
        left[3] = 0.95;
        left[6] = 0.94;
        let placement = placement_of(&left);
        assert_eq!(placement.emulation.to_string(), "8-11");
        let cpus = |cores, servers, time| placement.share(cores, 1, servers, time, true).cpu.cpus.to_string();
        assert_eq!(cpus(16, 1, 8.0), "3,6", "those with most room");
        let measured = placement.share(16, 1, 1, 8.0, true).measured_cpus;
        assert!((measured - 1.89).abs() < 1e-9, "{measured}");
        assert_eq!(cpus(16, 1, 6.0), "0-7", "a quota of 2.67");
        assert_eq!(cpus(16, 2, 8.0), "0-7", "servers share what there is");
        assert_eq!(cpus(8, 1, 1.0), "0-7");
        assert_eq!(cpus(4, 1, 8.0), "0-7", "half a CPU");
    }

    proptest! {
        #[test]
        fn placement_assigns_each_cpu_once(left in prop::collection::vec(0.0..1.0f64, 2..200)) {
            let placement = placement_of(&left);
            let mut all: Vec<u32> = placement.system.iter().chain(placement.emulation.iter()).collect();
            all.sort_unstable();
            prop_assert_eq!(all, (0..left.len() as u32).collect::<Vec<_>>());
            prop_assert!(!placement.system.is_empty() && !placement.emulation.is_empty());
        }
    }
}
