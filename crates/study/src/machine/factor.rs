//! The slow-motion factor: the smallest one at which this host keeps up.

use std::sync::atomic::AtomicBool;

use underlay_attach::{AttachError, MissingCapability, ResourceRegistry};
use underlay_record::{ChosenBy, SlowMotion};

use super::fastest::{FactorTrial, FactorVerdict};
use super::placement::{CpuPlacement, SMALL_SHARE};
use super::ticks::TickThreads;
use crate::spec::{MAX_TIME, Study, SystemSpec};

/// The factors that are tried: powers of two, and the values halfway between.
const HALF_STEPS: [f64; 2] = [1.0, 1.5];
const MAX_POWER: i32 = 13;

/// A factor, and why it was chosen.
#[derive(Clone, Debug, PartialEq)]
pub struct ChosenFactor {
    pub time: f64,
    pub slow_motion: SlowMotion,
    /// A note for the user, for example that a given factor is too small.
    pub notice: Option<String>,
}

/// Finds the smallest factor for a study that leaves it open. The modelled cores must fit on this host's CPUs, and the
/// fastest device must keep its latencies. `trying` gets each factor that is tried. `None` if `stop` was raised.
///
/// # Errors
/// When no factor is large enough, or a trial fails.
pub fn choose(
    study: &Study,
    placement: &CpuPlacement,
    registry: &ResourceRegistry,
    stop: &AtomicBool,
    trying: &mut dyn FnMut(f64),
) -> Result<Option<ChosenFactor>, AttachError> {
    let cores_need = study.modelled_cores().map(|cores| placement.fits_from(cores));
    let mut time = smallest_from(cores_need.unwrap_or(1.0)).ok_or_else(too_slow)?;
    let (mut devices_need, mut notice) = (None, None);
    if let Some(trial) = FactorTrial::from_study(study) {
        // As during the measurement of a cell.
        let _ticks = TickThreads::on_the_systems(placement);
        let found = smallest_that_holds(time, &mut |time| {
            trying(time);
            trial.run_at(time, placement, registry, stop)
        });
        let Some(found) = found? else { return Ok(None) };
        time = found.time;
        match found.untried {
            None => devices_need = Some(time),
            Some(reason) => {
                notice = Some(format!(
                    "whether the fastest device keeps its latencies in slow motion x{time} could not be tried: {reason}. The first cells will tell"
                ));
            }
        }
    }
    let slow_motion = SlowMotion {
        chosen_by: ChosenBy::Host,
        times_are_modelled: study.leaves_time_open,
        cores_need,
        cpus_here: Some(placement.system_cpus),
        devices_need,
        reference_probe_us: placement.speed.map(|speed| speed.reference_us),
        given_up: Vec::new(),
    };
    Ok(Some(ChosenFactor { time, slow_motion, notice }))
}

/// A factor at which the fastest device was tried, or the reason why it could not be tried.
#[derive(Debug, PartialEq)]
struct TriedFactor {
    time: f64,
    untried: Option<String>,
}

/// A trial is repeated if it ends at this many times the factor that it began with.
const FAR: f64 = 2.0;

/// The smallest factor from `first` upwards that holds. The host may have been busy for a moment, which is no reason
/// for hours of much slower motion. If the result is far from `first`, the factors in between are tried again.
fn smallest_that_holds(
    first: f64,
    verdict: &mut dyn FnMut(f64) -> Result<Option<FactorVerdict>, AttachError>,
) -> Result<Option<TriedFactor>, AttachError> {
    let mut time = first;
    loop {
        match verdict(time)? {
            None => return Ok(None),
            Some(FactorVerdict::Holds) => break,
            Some(FactorVerdict::Untried(reason)) => {
                return Ok(Some(TriedFactor { time, untried: Some(reason) }));
            }
            Some(FactorVerdict::TooFast) => time = next_factor(time).ok_or_else(too_slow)?,
        }
    }
    let nearer = factors().filter(|&factor| factor >= first && factor < time && time >= FAR * first);
    for factor in nearer {
        match verdict(factor) {
            Ok(None) => return Ok(None),
            Ok(Some(FactorVerdict::Holds)) => return Ok(Some(TriedFactor { time: factor, untried: None })),
            // If a factor could not be tried this time, the previous one was too fast.
            Ok(Some(FactorVerdict::TooFast | FactorVerdict::Untried(_))) | Err(_) => {}
        }
    }
    Ok(Some(TriedFactor { time, untried: None }))
}

/// A note for the user on a given factor: whether the fastest device answers late at it. The run goes on regardless, so
/// a device that can't be tried is only reported.
pub fn weigh_devices(
    study: &Study,
    placement: &CpuPlacement,
    registry: &ResourceRegistry,
    stop: &AtomicBool,
) -> Option<String> {
    let time = study.scale.time;
    let untried = |reason: String| {
        format!(
            "whether the fastest device keeps its latencies in slow motion x{time} could not be tried: {reason}"
        )
    };
    let trial = FactorTrial::from_study(study)?;
    let _ticks = TickThreads::on_the_systems(placement);
    match trial.run_at(time, placement, registry, stop) {
        Ok(None | Some(FactorVerdict::Holds)) => None,
        Ok(Some(FactorVerdict::TooFast)) => Some(format!(
            "slow motion x{time} is too fast for this host: a first trial of the fastest device had its answers late, and cells on it are likely to be doubtful"
        )),
        Ok(Some(FactorVerdict::Untried(reason))) => Some(untried(reason)),
        Err(error) => Some(untried(error.to_string())),
    }
}

/// The smallest factor at which this many modelled cores fit; `None` if none is large enough.
pub fn factor_for(modelled_cores: u32, placement: &CpuPlacement) -> Option<f64> {
    smallest_from(placement.fits_from(modelled_cores))
}

/// The smallest possible factor on this idle host for a study that leaves the factor open. Estimates use it.
pub fn least_factor(study: &Study) -> f64 {
    let needed = study.modelled_cores().map_or(1.0, |cores| CpuPlacement::for_idle_host().fits_from(cores));
    smallest_from(needed).unwrap_or(MAX_TIME)
}

/// Takes the study's or the user's factor unchanged, and notes if the modelled cores are too many for it.
pub fn weigh(study: &Study, placement: Option<&CpuPlacement>, chosen_by: ChosenBy) -> ChosenFactor {
    let time = study.scale.time;
    let cores_need = study.modelled_cores().zip(placement).map(|(cores, here)| here.fits_from(cores));
    let is_real = !study.is_modelled();
    let notice = cores_need.filter(|&needed| needed > time && !is_real).map(|needed| {
        let named = match chosen_by {
            ChosenBy::CommandLine => format!("--time {time}"),
            ChosenBy::Study => format!("[scale] time = {time}"),
            ChosenBy::Host => format!("the run's slow motion x{time}"),
        };
        let smallest = smallest_from(needed)
            .map_or_else(String::new, |factor| format!(": the cores need {factor} or more"));
        format!(
            "{named} is too small for the modelled cores on this host, and its cells will be doubtful{smallest}"
        )
    });
    let of_real = || too_many_cores(study.modelled_cores()?, placement?);
    let notice = if is_real { of_real() } else { notice };
    let slow_motion = SlowMotion {
        chosen_by,
        times_are_modelled: study.stretch != 1.0,
        cores_need,
        cpus_here: placement.map(|here| here.system_cpus),
        devices_need: None,
        reference_probe_us: placement.and_then(|here| here.speed).map(|speed| speed.reference_us),
        given_up: Vec::new(),
    };
    ChosenFactor { time, slow_motion, notice }
}

/// The share of its cores that a certificate lets a system lack. Real storage can't be slowed down, so a factor's
/// margin doesn't matter.
const LACKING: f64 = 0.05;

/// A note if the study's cores, on real storage, are more than this host has when idle.
pub fn too_many_cores_here(study: &Study) -> Option<String> {
    too_many_cores(study.modelled_cores()?, &CpuPlacement::for_idle_host())
}

/// A note if this many cores of real machines are more than this host has idle.
fn too_many_cores(cores: u32, here: &CpuPlacement) -> Option<String> {
    let cpus = here.measured_cpus();
    if f64::from(cores) * (1.0 - LACKING) <= cpus {
        return None;
    }
    let fewer = if cores > 1 { ", or name fewer `cores`" } else { "" };
    Some(format!(
        "the cores of [machine] are {cores} and this host has {cpus:.2} idle CPUs for them; real storage can't be slowed down, so cells \
         that use their CPUs fully will be doubtful. Run when this host is less busy, or on a larger one{fewer}"
    ))
}

/// A note if other programs or a hypervisor take much of the CPU time that the system would get on this host.
pub fn busy_with_others(placement: &CpuPlacement) -> Option<String> {
    let share = 1.0 - placement.system_cpus / CpuPlacement::for_idle_host().system_cpus;
    (share > BUSY).then(|| {
        format!(
            "this host is busy: other programs or its hypervisor have {:.0} % of the CPU time that the system would get",
            share * 100.0
        )
    })
}

/// Other programs usually have less than this share.
const BUSY: f64 = 0.15;

/// Effects of the study's slow-motion factor on systems whose clocks can't follow, one sentence each.
pub fn left_at_wall_time(study: &Study) -> Vec<String> {
    let of_system = |system: &SystemSpec| {
        let found = underlay_systems::find(&system.kind)?;
        let settings = system.with_nodes(system.settings.clone());
        Some(found.left_at_wall_time(&settings, study.scale.time))
    };
    let clocks = study.systems.iter().filter_map(of_system).flatten();
    clocks.chain(study.systems.iter().filter_map(|system| note_short_slices(study, system))).collect()
}

/// A note if a server gets its cores in slices so short that they do less work.
fn note_short_slices(study: &Study, system: &SystemSpec) -> Option<String> {
    let cores = f64::from(study.machine?.cores) * f64::from(system.nodes);
    let cpus = cores / study.scale.time;
    (cpus < SMALL_SHARE).then(|| {
        format!(
            "the cores of {} are {:.1} % of a CPU here, a millisecond at a time: cells in which they hold the system up will be doubtful",
            system.name,
            cpus * 100.0
        )
    })
}

/// The next larger factor; `None` after the largest.
pub fn next_factor(time: f64) -> Option<f64> {
    factors().find(|&factor| factor > time)
}

fn smallest_from(least: f64) -> Option<f64> {
    factors().find(|&factor| factor >= least)
}

fn factors() -> impl Iterator<Item = f64> {
    let all = (0..=MAX_POWER).flat_map(|power| HALF_STEPS.map(|half| half * 2f64.powi(power)));
    all.take_while(|&factor| factor <= MAX_TIME)
}

fn too_slow() -> AttachError {
    AttachError::Missing(MissingCapability::new(
        "enough CPU time for the modelled machine",
        "run on a host that has more idle CPUs, or give [machine] fewer `cores`",
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn factors_grow_by_half_and_by_a_third() {
        let first: Vec<f64> = factors().take(9).collect();
        assert_eq!(first, [1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0]);
        assert_eq!(smallest_from(18.8), Some(24.0));
        assert_eq!(smallest_from(16.0), Some(16.0));
        // A study's own factor may lie between them.
        assert_eq!(next_factor(20.0), Some(24.0));
        assert_eq!(next_factor(24.0), Some(32.0));
        assert_eq!(smallest_from(1e9), None);
    }

    /// Chooses a factor from a host's scripted answers, all of which must be used.
    fn chosen(first: f64, script: &[(f64, Option<FactorVerdict>)]) -> Option<TriedFactor> {
        let mut script = script.iter();
        let found = smallest_that_holds(first, &mut |time| {
            let (expected, verdict) = script.next().unwrap_or_else(|| panic!("x{time} is tried too"));
            assert_eq!(time, *expected);
            Ok(verdict.clone())
        });
        assert_eq!(script.next(), None);
        found.unwrap()
    }

    #[test]
    fn busy_moment_does_not_slow_motion_much() {
        use FactorVerdict::{Holds, TooFast};
        let trial_at = |time| Some(TriedFactor { time, untried: None });
        assert_eq!(chosen(8.0, &[(8.0, Some(Holds))]), trial_at(8.0));
        assert_eq!(chosen(8.0, &[(8.0, Some(TooFast)), (12.0, Some(Holds))]), trial_at(12.0), "near enough");
        let busy = [(8.0, Some(TooFast)), (12.0, Some(TooFast)), (16.0, Some(Holds))];
        let chosen_with = |more: &[(f64, Option<FactorVerdict>)]| chosen(8.0, &[&busy[..], more].concat());
        assert_eq!(chosen_with(&[(8.0, Some(TooFast)), (12.0, Some(Holds))]), trial_at(12.0));
        // This was no passing load: factors that failed before are not tried again.
        assert_eq!(chosen_with(&[(8.0, Some(TooFast)), (12.0, Some(TooFast))]), trial_at(16.0));
        let stalled = Some(FactorVerdict::Untried("3 requests".to_owned()));
        assert_eq!(chosen_with(&[(8.0, stalled), (12.0, Some(Holds))]), trial_at(12.0));
        assert_eq!(chosen_with(&[(8.0, None)]), None);
        let reason = Some(FactorVerdict::Untried("no loop devices".to_owned()));
        let untried = TriedFactor { time: 8.0, untried: Some("no loop devices".to_owned()) };
        assert_eq!(chosen(8.0, &[(8.0, reason)]), Some(untried));
    }

    #[test]
    fn real_cores_need_no_margin() {
        let placement_of = |system_cpus: f64| {
            let one: underlay_attach::Processors = [0].into_iter().collect();
            CpuPlacement {
                system: one.clone(),
                emulation: one,
                system_cpus,
                by_room: Vec::new(),
                speed: None,
            }
        };
        // An idle CPU minus the margin.
        assert_eq!(too_many_cores(1, &placement_of(0.99 * 0.85)), None);
        let message = too_many_cores(1, &placement_of(0.5 * 0.85)).unwrap();
        assert!(message.contains("0.50 idle CPUs") && !message.contains("fewer"), "{message}");
        assert!(too_many_cores(2, &placement_of(0.99 * 0.85)).unwrap().ends_with("or name fewer `cores`"));
    }
}
