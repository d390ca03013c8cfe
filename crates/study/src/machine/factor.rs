//! The factor of slow motion: the smallest at which this host keeps up.

use underlay_attach::{AttachError, Missing, Registry};
use underlay_record::{ChosenBy, SlowMotion};

use super::fastest::{Trial, Verdict};
use super::placement::Placement;
use crate::spec::{MAX_TIME, Study, SystemSpec};

/// The factors that are tried: powers of two, and what lies halfway.
const HALF_STEPS: [f64; 2] = [1.0, 1.5];
const MAX_POWER: i32 = 13;

/// A factor, and why it is that one.
#[derive(Clone, Debug, PartialEq)]
pub struct Chosen {
    pub time: f64,
    pub slow_motion: SlowMotion,
    /// What the user should know of it: that a given factor is too small, say. In words.
    pub notice: Option<String>,
}

/// Finds the smallest factor for a study that leaves it open: the modelled cores must fit on this host's CPUs, and the fastest
/// device keep its latencies. `goes_on` is told each factor that is tried; `None` if it says no.
///
/// # Errors
/// When no factor is large enough, or something fails that is tried.
pub fn choose(
    study: &Study,
    placement: &Placement,
    registry: &Registry,
    goes_on: &mut dyn FnMut(f64) -> bool,
) -> Result<Option<Chosen>, AttachError> {
    let cores_need = study.modelled_cores().map(|cores| placement.fits_from(cores));
    let mut time = smallest_from(cores_need.unwrap_or(1.0)).ok_or_else(too_slow)?;
    let (mut devices_need, mut notice) = (None, None);
    if let Some(trial) = Trial::of(study) {
        loop {
            if !goes_on(time) {
                return Ok(None);
            }
            match trial.at(time, placement, registry)? {
                Verdict::Holds => {
                    devices_need = Some(time);
                    break;
                }
                Verdict::Untried(why) => {
                    notice = Some(format!(
                        "whether the fastest device keeps its latencies in slow motion x{time} could not be tried: {why}. The first cells will tell"
                    ));
                    break;
                }
                Verdict::TooFast => time = next_factor(time).ok_or_else(too_slow)?,
            }
        }
    }
    let slow_motion = SlowMotion {
        chosen_by: ChosenBy::Host,
        times_are_modelled: study.leaves_time_open,
        cores_need,
        cpus_here: Some(placement.system_cpus),
        devices_need,
        given_up: Vec::new(),
    };
    Ok(Some(Chosen { time, slow_motion, notice }))
}

/// What the user should know of a factor that was given: whether the fastest device answers late at it. The run goes on all the same, so what
/// can't be tried is only said.
pub fn weigh_devices(study: &Study, placement: &Placement, registry: &Registry) -> Option<String> {
    let time = study.scale.time;
    let untried = |why: String| {
        format!(
            "whether the fastest device keeps its latencies in slow motion x{time} could not be tried: {why}"
        )
    };
    match Trial::of(study)?.at(time, placement, registry) {
        Ok(Verdict::Holds) => None,
        Ok(Verdict::TooFast) => Some(format!(
            "slow motion x{time} is too fast for this host: a first trial of the fastest device had its answers late, and cells on it are likely to be doubtful"
        )),
        Ok(Verdict::Untried(why)) => Some(untried(why)),
        Err(error) => Some(untried(error.to_string())),
    }
}

/// The smallest factor at which so many modelled cores fit; `None` where none is large enough.
pub fn factor_for(modelled_cores: u32, placement: &Placement) -> Option<f64> {
    smallest_from(placement.fits_from(modelled_cores))
}

/// The factor that a study which leaves it open has on this host at least, if nothing else runs here: for estimates.
pub fn least_factor(study: &Study) -> f64 {
    let needed = study.modelled_cores().map_or(1.0, |cores| Placement::of_an_idle_host().fits_from(cores));
    smallest_from(needed).unwrap_or(MAX_TIME)
}

/// Takes the study's or the user's factor as it is, and says if the modelled cores are too many for it.
pub fn weigh(study: &Study, placement: Option<&Placement>, chosen_by: ChosenBy) -> Chosen {
    let time = study.scale.time;
    let cores_need = study.modelled_cores().zip(placement).map(|(cores, here)| here.fits_from(cores));
    let is_real = !study.storages.iter().all(|storage| storage.is_modelled());
    let notice = cores_need.filter(|&needed| needed > time).map(|needed| {
        if is_real {
            return "this host has too few idle CPUs for the cores of [machine], and real storage can't be slowed down: its cells will \
                    be doubtful. Run on a larger host, or name fewer `cores`"
                .to_owned();
        }
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
    let slow_motion = SlowMotion {
        chosen_by,
        times_are_modelled: study.stretch != 1.0,
        cores_need,
        cpus_here: placement.map(|here| here.system_cpus),
        devices_need: None,
        given_up: Vec::new(),
    };
    Chosen { time, slow_motion, notice }
}

/// What slow motion changes at the study's factor since clocks of its systems can't follow. A sentence each.
pub fn left_at_wall_time(study: &Study) -> Vec<String> {
    let of_system = |system: &SystemSpec| {
        let found = underlay_systems::find(&system.kind)?;
        let settings = system.with_nodes(system.settings.clone());
        Some(found.left_at_wall_time(&settings, study.scale.time))
    };
    study.systems.iter().filter_map(of_system).flatten().collect()
}

/// The next larger factor; `None` beyond the largest.
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
    AttachError::Missing(Missing::new(
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
        // A factor of a study's own lies between them.
        assert_eq!(next_factor(20.0), Some(24.0));
        assert_eq!(next_factor(24.0), Some(32.0));
        assert_eq!(smallest_from(1e9), None);
    }
}
