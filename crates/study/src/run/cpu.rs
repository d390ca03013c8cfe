//! The CPUs of a cell: who ran where during the measurement, and how much CPU time each got.

use std::time::{Duration, Instant};

use underlay_attach::{AttachError, CpuTimes, CpuUsage};
use underlay_record::CpuRecord;

use super::cell_plan::CellPlan;
use super::cpu_speed::{SampleMark, SpeedAllowance, SpeedProbe};
use super::cpu_waits::{ObservedCpuWaits, WaitProbe};
use crate::machine::{CpuPlacement, ServerShare, TickThreads};
use crate::session::ServerSession;
use crate::spec::SystemSpec;

/// The kernel's counters at one moment.
pub(super) struct CpuCounters {
    at: Instant,
    system: CpuTimes,
    emulation: CpuTimes,
    servers: Vec<Option<CpuUsage>>,
    speed: SampleMark,
    waited: ObservedCpuWaits,
    ticks: u64,
}

impl CpuCounters {
    fn take(meter: &CpuMeter<'_>) -> Result<CpuCounters, AttachError> {
        Ok(CpuCounters {
            at: Instant::now(),
            system: CpuTimes::read(&meter.share.cpu.cpus)?,
            emulation: CpuTimes::read(&meter.placement.emulation)?,
            servers: meter.session.cpu_usage(),
            speed: meter.probe.read(),
            waited: meter.waits.read(),
            ticks: meter.ticks.as_ref().map_or(0, TickThreads::count),
        })
    }
}

/// Reads the CPU counters while a cell is measured.
pub(super) struct CpuMeter<'a> {
    placement: &'a CpuPlacement,
    session: &'a ServerSession,
    share: ServerShare,
    servers: u32,
    /// The reference for the CPUs' speed.
    reference_us: Option<f64>,
    /// The fixed increase of the CPU time, where it does not follow the speed of the CPUs.
    fixed_factor: Option<f64>,
    is_modelled: bool,
    probe: SpeedProbe,
    waits: WaitProbe,
    /// `None` where they would not help. Real storage takes no modelled time and is measured on the host as it is.
    ticks: Option<TickThreads>,
}

impl<'a> CpuMeter<'a> {
    /// `None` where the study names no cores.
    pub(super) fn new(
        plan: &CellPlan<'_>,
        placement: Option<&'a CpuPlacement>,
        session: &'a ServerSession,
    ) -> Option<CpuMeter<'a>> {
        let placement = placement?;
        let share = share_of(plan, placement)?;
        let is_modelled = plan.storage.is_modelled();
        // The cores of a modelled machine run at their fastest; real storage has CPUs as they are.
        let reference_us =
            placement.speed.map(|speed| if is_modelled { speed.reference_us } else { speed.loaded_us });
        let quotas = session.cpu_quotas();
        let can_follow = is_modelled && quotas.len() == plan.system.servers as usize;
        let due_cpus = share.due_cpus;
        let allowance = reference_us.filter(|_| can_follow).map(|reference_us| SpeedAllowance {
            quotas,
            due_cpus,
            reference_us,
            factor: share.cpu.quota_cpus / due_cpus.max(f64::MIN_POSITIVE),
        });
        // A server with whole CPUs keeps them. Where these are too few, the missing time counts as lost.
        let fixed_factor = is_modelled.then(|| share.cpu.quota_cpus / due_cpus.max(f64::MIN_POSITIVE));
        let fixed_factor = fixed_factor.filter(|_| allowance.is_none());
        let probe = SpeedProbe::start(&share.cpu.cpus, allowance);
        let waits = WaitProbe::start(&placement.emulation);
        let servers = plan.system.servers;
        let ticks = is_modelled.then(|| TickThreads::for_share(placement, &share, servers)).flatten();
        Some(CpuMeter {
            placement,
            session,
            share,
            servers,
            reference_us,
            fixed_factor,
            is_modelled,
            probe,
            waits,
            ticks,
        })
    }

    pub(super) fn read(&self) -> Result<CpuCounters, AttachError> {
        CpuCounters::take(self)
    }

    /// The CPU times between two readings.
    pub(super) fn between(&self, began: &CpuCounters, ended: &CpuCounters) -> CpuRecord {
        let wall_s = (ended.at - began.at).as_secs_f64().max(f64::MIN_POSITIVE);
        let system = ended.system.delta_since(began.system);
        let emulation = ended.emulation.delta_since(began.emulation);
        // On a single CPU, clients wait for the system itself, and its processes can't be told from the daemons.
        let waiting_threads = match self.placement.is_shared() {
            true => None,
            false => ended.waited.threads_since(began.waited, ended.at - began.at),
        };
        let cpus = self.share.cpu.cpus.len();
        let (mut used_s, mut throttled_share) = (0.0, 0.0_f64);
        // Servers that share CPUs wait for each other, and on a single CPU for the emulation. This says nothing about
        // other programs.
        let alone = self.servers == 1 && !self.placement.is_shared();
        let mut waited = None;
        // A server that could not be read at either time is unknown.
        let readings = ended.servers.iter().zip(&began.servers);
        for (now, then) in readings.filter_map(|(now, then)| Some((now.as_ref()?, then.as_ref()?))) {
            used_s += now.used.saturating_sub(then.used).as_secs_f64();
            let periods = now.periods.saturating_sub(then.periods);
            let throttled = now.throttled_periods.saturating_sub(then.throttled_periods);
            // The server that is held up most holds up the others.
            throttled_share = throttled_share.max(throttled as f64 / periods.max(1) as f64);
            waited = self::waited(now, then, cpus).filter(|_| alone).or(waited);
        }
        let waited_share = waited.map(|waited| {
            // Summed over CPUs: the others went on.
            let stolen_s = stolen_from_system_s(system, used_s);
            let at_once = ((used_s + stolen_s) / wall_s).max(1.0);
            ((waited.as_secs_f64() + stolen_s / at_once) / wall_s).min(1.0)
        });
        let share = |part: Duration, cpus: usize| part.as_secs_f64() / (wall_s * cpus.max(1) as f64);
        let due_cpus = self.share.due_cpus;
        let allowed = match (self.is_modelled, self.fixed_factor) {
            (false, _) => 1.0,
            (true, Some(fixed)) => fixed,
            (true, None) => ended.speed.allowed_since(began.speed).unwrap_or(1.0),
        };
        // On a single CPU, what the system used is not the emulation's.
        let of_system_s = if self.placement.is_shared() { used_s } else { 0.0 };
        let emulation_busy = emulation.busy.saturating_sub(Duration::from_secs_f64(of_system_s));
        let on_the_cpus = OnTheCpus {
            measured_cpus: self.share.measured_cpus,
            cpus: cpus as f64,
            busy_cpus: system.busy.as_secs_f64() / wall_s,
            stolen_cpus: system.stolen.as_secs_f64() / wall_s,
            stolen_from_it_cpus: stolen_from_system_s(system, used_s) / wall_s,
            used_cpus: used_s / wall_s,
            waits_are_counted: waited_share.is_some(),
        };
        CpuRecord {
            modelled_cores: self.share.modelled_cores,
            due_cpus,
            held_to_cpus: (due_cpus * allowed).min(cpus as f64),
            enforced_by: self.session.cpu_enforced_by().unwrap_or("none").to_owned(),
            used_cpus: on_the_cpus.used_cpus,
            servers: self.servers,
            throttled_share,
            waited_share,
            lost_share: on_the_cpus.lost_of(due_cpus * allowed * f64::from(self.servers), throttled_share),
            system_cpus: self.share.cpu.cpus.to_string(),
            system_stolen_share: share(system.stolen, cpus),
            emulation_cpus: self.placement.emulation.to_string(),
            emulation_busy_share: share(emulation_busy, self.placement.emulation.len()),
            emulation_stolen_share: share(emulation.stolen, self.placement.emulation.len()),
            emulation_waiting_threads: waiting_threads,
            speed_probe_us: self.probe.between_us(began.speed, ended.speed),
            reference_probe_us: self.reference_us,
            allowed_slowdown: self.is_modelled.then_some(allowed),
            extra_ticks: ended.ticks.saturating_sub(began.ticks),
        }
    }
}

/// How long a server was ready to run but had no CPU, other than because of its quota. Throttled time is summed over
/// CPUs. With several CPUs it hides nearly all of what others took, and the wait is then unknown.
fn waited(now: &CpuUsage, then: &CpuUsage, cpus: usize) -> Option<Duration> {
    let stalled = now.stalled?.saturating_sub(then.stalled?);
    let throttled = now.throttled.saturating_sub(then.throttled);
    let is_clear = cpus == 1 || throttled <= stalled / 20;
    is_clear.then(|| stalled.saturating_sub(throttled))
}

/// A hypervisor steals from threads that want to run. The system's part of the CPU steal is as large as its part of
/// what ran on these CPUs. The kernel's account of waiting does not include it.
fn stolen_from_system_s(on_its_cpus: CpuTimes, used_s: f64) -> f64 {
    let busy_s = on_its_cpus.busy.as_secs_f64().max(f64::MIN_POSITIVE);
    on_its_cpus.stolen.as_secs_f64() * (used_s / busy_s).min(1.0)
}

/// Each server's CPU share in the cell; `None` where the study names no cores, or the system runs on another machine.
pub(super) fn share_of(plan: &CellPlan<'_>, placement: &CpuPlacement) -> Option<ServerShare> {
    let machine = plan.study.machine.filter(|_| !plan.storage.is_elsewhere())?;
    let SystemSpec { nodes, servers, .. } = *plan.system;
    Some(placement.share(machine.cores, nodes, servers, plan.scale.time, plan.storage.is_modelled()))
}

/// A system that uses less than this share of what it could have is not short of CPU.
const WANTING: f64 = 0.8;

/// The system's CPUs over the measured time, in CPUs.
#[derive(Default)]
struct OnTheCpus {
    cpus: f64,
    busy_cpus: f64,
    stolen_cpus: f64,
    /// The CPU steal that the servers suffered.
    stolen_from_it_cpus: f64,
    /// CPU time used by the servers.
    used_cpus: f64,
    /// The CPU time measured for them before the first cell: a quota around this process withholds time that looks
    /// idle.
    measured_cpus: f64,
    /// Whether the time that servers waited for other programs is known.
    waits_are_counted: bool,
}

impl OnTheCpus {
    /// The share of the due CPU time that the system wanted and could not have. Time that the hypervisor and other
    /// programs took counts only beyond idle time and time that is not due. A system that left its CPUs idle lacked
    /// none. `throttled_share` is the share of its busy quota periods that ran out.
    fn lost_of(&self, due_cpus: f64, throttled_share: f64) -> f64 {
        self.lost_on_average(due_cpus).max(self.lost_in_bursts(due_cpus, throttled_share))
    }

    /// A hypervisor takes a CPU for 10 ms and more at a time. A quota's shorter period loses what is left at its end,
    /// so having enough on average does not help. The system wanted the same part of the stolen time as the part of all
    /// periods in which it could have used more.
    fn lost_in_bursts(&self, due_cpus: f64, throttled_share: f64) -> f64 {
        let short_cpus = (due_cpus - self.used_cpus).max(0.0);
        (short_cpus.min(self.stolen_from_it_cpus * throttled_share) / due_cpus.max(f64::MIN_POSITIVE))
            .min(1.0)
    }

    fn lost_on_average(&self, due_cpus: f64) -> f64 {
        // A program that is never idle uses what the system leaves. Where waiting for others is counted separately,
        // such programs took nothing here.
        let others = if self.waits_are_counted { 0.0 } else { (self.busy_cpus - self.used_cpus).max(0.0) };
        let available = (self.cpus - self.stolen_cpus - others).max(0.0);
        let available = match due_cpus > self.measured_cpus {
            true => available.min(self.measured_cpus),
            false => available,
        };
        if self.used_cpus < WANTING * due_cpus.min(available) {
            return 0.0;
        }
        // Counters are read one after another, so used time was certainly available.
        let available = available.max(self.used_cpus);
        (1.0 - available / due_cpus.max(f64::MIN_POSITIVE)).clamp(0.0, 1.0)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn lost(cpus: f64, busy_cpus: f64, stolen_cpus: f64, used_cpus: f64, granted: f64) -> f64 {
        let cpu_times = OnTheCpus {
            cpus,
            busy_cpus,
            stolen_cpus,
            used_cpus,
            measured_cpus: cpus,
            ..OnTheCpus::default()
        };
        cpu_times.lost_of(granted, 0.0)
    }

    #[test]
    fn steal_in_bursts_is_lost_despite_average() {
        let of_due = |due_cpus: f64, used_cpus: f64, stolen_cpus: f64, throttled_share: f64| {
            let cpu_times = OnTheCpus {
                cpus: 1.0,
                busy_cpus: used_cpus,
                stolen_cpus,
                stolen_from_it_cpus: stolen_cpus,
                used_cpus,
                measured_cpus: 1.0,
                waits_are_counted: true,
            };
            cpu_times.lost_of(due_cpus, throttled_share)
        };
        let lost_with =
            |used_cpus, stolen_cpus, throttled_share| of_due(0.5, used_cpus, stolen_cpus, throttled_share);
        // 40 % of a CPU is stolen for 30 ms at a time, and a program that computes all the time uses up each period of
        // 20 ms that it gets.
        assert!((lost_with(0.3, 0.4, 0.6) - 0.4).abs() < 1e-9);
        // A program that waits for its disk never does.
        assert_eq!(lost_with(0.3, 0.4, 0.0), 0.0);
        // It got its due time all the same.
        assert_eq!(lost_with(0.5, 0.4, 0.6), 0.0);
        assert!(lost_with(0.45, 0.02, 0.5) < 0.05, "the usual noise");
        // In slow motion x128 less time is due, and proportionally less is stolen from a system that runs for that much
        // less of the time.
        assert!(of_due(0.125, 0.06, 0.003, 0.5) < 0.05, "the usual noise there");
    }

    #[test]
    fn stolen_time_is_lost_only_where_it_was_granted() {
        // A quarter was stolen, and the grant still fits.
        assert_eq!(lost(1.0, 0.6, 0.25, 0.6, 0.66), 0.0);
        // Half was stolen, so a third of what was granted was missing.
        assert!((lost(1.0, 0.5, 0.5, 0.5, 0.75) - 1.0 / 3.0).abs() < 1e-9);
        // Another program had it.
        assert!((lost(1.0, 1.0, 0.0, 0.5, 1.0) - 0.5).abs() < 1e-9);
        // More was granted than this host has.
        assert_eq!(lost(2.0, 2.0, 0.0, 2.0, 16.0), 0.875);
        // Another program had nearly everything, and a server that waits for its disk wanted little of the rest.
        assert_eq!(lost(1.0, 0.99, 0.0, 0.0034, 0.0208), 0.0);
    }

    #[test]
    fn program_using_leftovers_costs_system_nothing() {
        // It is never idle, and the system wanted no more than it got.
        let with_background = |waits_are_counted: bool, stolen_cpus: f64| OnTheCpus {
            cpus: 1.0,
            busy_cpus: 1.0 - stolen_cpus,
            stolen_cpus,
            stolen_from_it_cpus: stolen_cpus,
            used_cpus: 0.11,
            measured_cpus: 0.5,
            waits_are_counted,
        };
        assert_eq!(with_background(true, 0.0).lost_of(0.12, 0.0), 0.0);
        assert!(with_background(false, 0.0).lost_of(0.12, 0.0) > 0.08);
        // Time taken by a hypervisor is not in the kernel's waits.
        assert!(with_background(true, 0.89).lost_of(0.12, 0.0) > 0.08);
    }

    #[test]
    fn quota_wait_is_no_wait_for_others() {
        let usage = |stalled_ms: u64, throttled_ms: u64| CpuUsage {
            stalled: Some(Duration::from_millis(stalled_ms)),
            throttled: Duration::from_millis(throttled_ms),
            ..CpuUsage::default()
        };
        assert_eq!(waited(&usage(500, 380), &usage(100, 80), 1), Some(Duration::from_millis(100)));
        // On two CPUs, throttled time is up to twice the elapsed time, and hides what others took.
        assert_eq!(waited(&usage(500, 900), &usage(100, 80), 2), None);
        assert_eq!(waited(&usage(500, 90), &usage(100, 80), 2), Some(Duration::from_millis(390)));
        assert_eq!(waited(&CpuUsage::default(), &usage(100, 80), 1), None);
    }

    #[test]
    fn steal_while_system_runs_is_a_wait() {
        let cpu_times = |busy_ms: u64, stolen_ms: u64| CpuTimes {
            busy: Duration::from_millis(busy_ms),
            stolen: Duration::from_millis(stolen_ms),
            ..CpuTimes::default()
        };
        // It ran for 300 ms and was kept from running for as long.
        assert!((stolen_from_system_s(cpu_times(300, 300), 0.3) - 0.3).abs() < 1e-9);
        // Half of what ran there belonged to others.
        assert!((stolen_from_system_s(cpu_times(600, 100), 0.3) - 0.05).abs() < 1e-9);
        assert_eq!(stolen_from_system_s(cpu_times(0, 0), 0.0), 0.0);
        assert_eq!(
            stolen_from_system_s(cpu_times(100, 50), 0.3),
            0.05,
            "counters are read one after another"
        );
    }

    #[test]
    fn time_kept_by_outer_quota_is_lost() {
        // Forty CPUs look idle, but a container allows only one and a half.
        let confined = OnTheCpus {
            cpus: 42.0,
            busy_cpus: 1.5,
            used_cpus: 1.4,
            measured_cpus: 1.5,
            ..OnTheCpus::default()
        };
        assert!((confined.lost_of(4.0, 0.0) - 0.625).abs() < 1e-9);
        assert_eq!(confined.lost_of(1.2, 0.0), 0.0);
    }

    proptest! {
        #[test]
        fn lost_time_is_a_share(
            cpus in 1.0..64.0f64,
            busy in 0.0..64.0f64,
            stolen in 0.0..64.0f64,
            used in 0.0..64.0f64,
            granted in 0.001..1000.0f64,
        ) {
            let share = lost(cpus, busy.min(cpus), stolen.min(cpus), used.min(cpus), granted);
            prop_assert!((0.0..=1.0).contains(&share));
        }
    }
}
